#include "unit/text/vocabulary.h"

#include "base/limits.h"
#include "text/stream.h"

enum { TEXT_MAX = 4096, STOPS_MAX = 4 };

typedef struct { char text[TEXT_MAX]; size_t size; int stop; bool cut_short; } result;

/* Feeds `bytes` cut at the ends given; piece_max is the longest piece. */
static void feed(const bt_stop *stops, size_t n_stops, const char *bytes, const size_t *ends,
                 size_t n, result *to)
{
    bt_error err = { 0 };
    bt_text_stream *s;
    size_t longest = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t size = ends[i] - (i ? ends[i - 1] : 0);
        longest = size > longest ? size : longest;
    }
    assert_int_equal(bt_text_stream_create(stops, n_stops, longest, &s, &err), BT_OK);
    const size_t room = bt_text_stream_release_max(s);
    *to = (result){ .stop = -1 };
    for (size_t i = 0; i < n; i++) {
        char *part = malloc(room ? room : 1);      /* so that a sanitizer sees one byte too many */
        const size_t begin = i ? ends[i - 1] : 0;
        const size_t got = bt_text_stream_put(s, bytes + begin, ends[i] - begin, part, &to->stop);
        assert_true(got <= room);
        memcpy(to->text + to->size, part, got);
        to->size += got;
        free(part);
        /* What was released is final text: whole characters, valid. */
        assert_true(bt_text_utf8_valid(to->text, to->size));
    }
    char *part = malloc(room ? room : 1);
    const size_t got = bt_text_stream_end(s, part);
    assert_true(got <= room);
    memcpy(to->text + to->size, part, got);
    to->size += got;
    free(part);
    bt_text_stream_destroy(s);
}

static void a_stop_string_over_three_tokens_ends_the_text(void **state)
{
    (void)state;
    const bt_stop stops[] = { { "\nUser:", 6 } };
    const size_t ends[] = { 3, 4, 6, 20 };
    result r;
    feed(stops, 1, "Hi!\nUser: and so on.", ends, 4, &r);
    assert_int_equal(r.size, 3);
    assert_memory_equal(r.text, "Hi!", 3);
    assert_int_equal(r.stop, 0);
}

static void a_stop_string_that_does_not_come_is_released(void **state)
{
    (void)state;
    bt_error err = { 0 };
    bt_text_stream *s;
    char to[64];
    int stop;
    const bt_stop stops[] = { { "abcd", 4 } };
    assert_int_equal(bt_text_stream_create(stops, 1, 8, &s, &err), BT_OK);
    assert_int_equal(bt_text_stream_put(s, "xabc", 4, to, &stop), 1);
    assert_int_equal(bt_text_stream_put(s, "a", 1, to, &stop), 3);
    assert_memory_equal(to, "abc", 3);
    assert_int_equal(bt_text_stream_put(s, "bc", 2, to, &stop), 0);
    assert_int_equal(bt_text_stream_end(s, to), 3);
    assert_memory_equal(to, "abc", 3);
    assert_int_equal(bt_text_stream_end(s, to), 0);
    bt_text_stream_destroy(s);
}

static void a_character_in_two_tokens_comes_whole(void **state)
{
    (void)state;
    bt_error err = { 0 };
    bt_text_stream *s;
    char to[64];
    int stop;
    assert_int_equal(bt_text_stream_create(NULL, 0, 4, &s, &err), BT_OK);
    assert_int_equal(bt_text_stream_put(s, "\xf0\x9f", 2, to, &stop), 0);
    assert_int_equal(bt_text_stream_put(s, "\x98\x80!", 3, to, &stop), 5);
    assert_memory_equal(to, "\xf0\x9f\x98\x80!", 5);
    assert_int_equal(bt_text_stream_put(s, "\xe2\x82", 2, to, &stop), 0);
    assert_int_equal(bt_text_stream_end(s, to), 3);
    assert_memory_equal(to, BT_UTF8_REPLACEMENT, 3);
    assert_int_equal(stop, -1);
    bt_text_stream_destroy(s);
}

static void nothing_follows_a_stop_string(void **state)
{
    (void)state;
    bt_error err = { 0 };
    bt_text_stream *s;
    char to[64];
    int stop;
    const bt_stop stops[] = { { "", 0 }, { "bc", 2 }, { "abc", 3 }, { "c", 1 } };
    assert_int_equal(bt_text_stream_create(stops, 4, 8, &s, &err), BT_OK);
    /* Three end together: the longest is the one, so nothing of it is seen. */
    assert_int_equal(bt_text_stream_put(s, "xabcd", 5, to, &stop), 1);
    assert_int_equal(to[0], 'x');
    assert_int_equal(stop, 2);
    assert_int_equal(bt_text_stream_put(s, "more", 4, to, &stop), 0);
    assert_int_equal(stop, 2);
    assert_int_equal(bt_text_stream_end(s, to), 0);
    bt_text_stream_destroy(s);
}

static void bad_stop_strings_are_refused(void **state)
{
    (void)state;
    static char long_text[BT_STOP_BYTES_MAX + 1];
    static bt_stop many[BT_STOPS_MAX + 1];
    bt_error err = { 0 };
    bt_text_stream *s;
    memset(long_text, 'a', sizeof long_text);
    const bt_stop too_long[] = { { long_text, sizeof long_text } }, broken[] = { { "a\xff", 2 } };
    assert_int_equal(bt_text_stream_create(too_long, 1, 4, &s, &err), BT_E_BADINPUT);
    assert_int_equal(bt_text_stream_create(broken, 1, 4, &s, &err), BT_E_BADINPUT);
    assert_int_equal(bt_text_stream_create(many, BT_LEN(many), 4, &s, &err), BT_E_BADINPUT);
    bt_memory_fail_after(1);
    assert_int_equal(bt_text_stream_create(NULL, 0, 4, &s, &err), BT_E_NOMEM);
    bt_memory_fail_after(0);
}

/* ---- the whole text at once, as simply as it can be said ---- */

static void whole_text(const bt_stop *stops, size_t n_stops, const char *bytes, size_t size,
                       result *to)
{
    *to = (result){ .stop = -1 };
    for (size_t at = 0; at < size;) {
        const bt_utf8_char c = bt_text_utf8_at(bytes + at, size - at);
        const bool good = c.kind == BT_UTF8_GOOD;
        memcpy(to->text + to->size, good ? bytes + at : BT_UTF8_REPLACEMENT, good ? c.size : 3);
        to->size += good ? c.size : 3;
        at += c.size;
        to->cut_short = c.kind == BT_UTF8_SHORT;
    }
    const size_t whole = to->size;
    for (size_t end = 0; end <= to->size; end++) {
        size_t longest = 0;
        for (size_t i = 0; i < n_stops; i++) {
            if (stops[i].size > longest && stops[i].size <= end &&
                memcmp(to->text + end - stops[i].size, stops[i].text, stops[i].size) == 0) {
                longest = stops[i].size;
                to->stop = (int)i;
            }
        }
        if (longest > 0) {
            to->size = end - longest;
            to->cut_short = to->cut_short && end == whole;
            return;
        }
    }
}

/* A stop string that only the end completes, by the U+FFFD of an unfinished character, is left out
 * like any other, but not reported: the text has ended anyway. */
static int reported_stop(const result *whole)
{
    return whole->cut_short ? -1 : whole->stop;
}

static bool contains(const result *r, const bt_stop *stop)
{
    for (size_t at = 0; stop->size > 0 && at + stop->size <= r->size; at++) {
        if (memcmp(r->text + at, stop->text, stop->size) == 0) {
            return true;
        }
    }
    return false;
}

static const char *const atoms[] = {"a",
                                    "b",
                                    "a",
                                    "b",
                                    "ab",
                                    "\n",
                                    "\xe2\x82\xac",
                                    "\xf0\x9f\x98\x80",
                                    "\xe2",
                                    "\x82",
                                    "\xf0\x9f",
                                    "\xff",
                                    "\xed\xa0\x80",
                                    BT_UTF8_REPLACEMENT,
                                    "\xc3",
                                    "\xa4"};

static size_t random_bytes(dice *d, char *to, uint32_t n_atoms, bool valid)
{
    size_t size = 0;
    for (uint32_t n = roll(d, n_atoms); n > 0; n--) {
        const char *atom = atoms[roll(d, BT_LEN(atoms))];
        if (!valid || bt_text_utf8_valid(atom, strlen(atom))) {
            memcpy(to + size, atom, strlen(atom));
            size += strlen(atom);
        }
    }
    return size;
}

/* Concatenated, what is released does not depend on the cuts, equals the simple rule, and holds no
 * stop string; and at no time has a byte been released that the whole text does not begin with. */
static void cuts_do_not_matter(void **state)
{
    (void)state;
    dice d = { 20 };
    for (int round = 0; round < 6000; round++) {
        char bytes[512], stop_text[STOPS_MAX][64];
        bt_stop stops[STOPS_MAX];
        const size_t n_stops = roll(&d, STOPS_MAX + 1);
        for (size_t i = 0; i < n_stops; i++) {
            stops[i] = (bt_stop){ stop_text[i], random_bytes(&d, stop_text[i], 6, true) };
        }
        const size_t size = random_bytes(&d, bytes, 60, false);
        result want, got;
        whole_text(stops, n_stops, bytes, size, &want);
        for (int cutting = 0; cutting < 4; cutting++) {
            size_t ends[512], n = 0;
            for (size_t at = 0; at < size;) {
                at += cutting == 0 ? 1 : cutting == 1 ? size : roll(&d, 7);
                at = at > size ? size : at;
                ends[n++] = at;
                if (n == 511) {
                    ends[n - 1] = size;
                    break;
                }
            }
            feed(stops, n_stops, bytes, ends, n, &got);
            if (got.size != want.size || memcmp(got.text, want.text, want.size) != 0 ||
                got.stop != reported_stop(&want)) {
                fail_msg("round %d: %zu bytes (stop %d), not %zu (stop %d)", round, got.size,
                         got.stop, want.size, want.stop);
            }
            for (size_t i = 0; i < n_stops; i++) {
                assert_false(contains(&got, &stops[i]));
            }
        }
    }
}

/* No more is held back than has to be: as soon as the rest of the text is given, all but a true
 * beginning of a stop string has been released. */
static void only_what_must_wait_waits(void **state)
{
    (void)state;
    dice d = { 5 };
    for (int round = 0; round < 3000; round++) {
        char bytes[256], stop_text[64];
        const size_t stop_size = 1 + random_bytes(&d, stop_text + 1, 5, true);
        stop_text[0] = 'a';
        const bt_stop stop = { stop_text, stop_size };
        const size_t size = random_bytes(&d, bytes, 40, true);
        bt_error err = { 0 };
        bt_text_stream *s;
        char to[1024];
        int found;
        assert_int_equal(bt_text_stream_create(&stop, 1, sizeof bytes, &s, &err), BT_OK);
        const size_t out = bt_text_stream_put(s, bytes, size, to, &found);
        if (found < 0) {
            size_t must = 0;
            for (size_t n = 1; n < stop_size && n <= size; n++) {
                must = memcmp(bytes + size - n, stop_text, n) == 0 ? n : must;
            }
            assert_int_equal(out, size - must);
        }
        bt_text_stream_destroy(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stop_string_over_three_tokens_ends_the_text),
        cmocka_unit_test(a_stop_string_that_does_not_come_is_released),
        cmocka_unit_test(a_character_in_two_tokens_comes_whole),
        cmocka_unit_test(nothing_follows_a_stop_string),
        cmocka_unit_test(bad_stop_strings_are_refused),
        cmocka_unit_test(cuts_do_not_matter),
        cmocka_unit_test(only_what_must_wait_waits),
    };
    return cmocka_run_group_tests_name("text/stream", tests, NULL, NULL);
}
