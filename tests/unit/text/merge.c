/* Merging, compared with the rule written down as simply as possible; and its cost. */
#include "unit/text/vocabulary.h"

typedef struct { char text[600]; size_t size; } symbol;

/* Lists of strings; each round looks through all pairs and all merges. */
static void merge_naively(const vocabulary *v, const char *piece, size_t size, bt_tokens *to)
{
    static symbol s[600];
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        s[n].size = bt_text_utf8_put(bt_text_vocab_code_of_byte((uint8_t)piece[i]), s[n].text);
        n++;
    }
    for (;;) {
        uint32_t best = UINT32_MAX;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            char pair[1300];
            const int size_of_pair = snprintf(pair, sizeof pair, "%.*s %.*s", (int)s[i].size,
                                              s[i].text, (int)s[i + 1].size, s[i + 1].text);
            for (uint32_t rank = 0; rank < best && rank < v->n_merges; rank++) {
                if (strlen(v->merges[rank]) == (size_t)size_of_pair &&
                    memcmp(v->merges[rank], pair, (size_t)size_of_pair) == 0) {
                    best = rank;
                    at = i;
                }
            }
        }
        if (best == UINT32_MAX) {
            break;
        }
        memcpy(s[at].text + s[at].size, s[at + 1].text, s[at + 1].size);
        s[at].size += s[at + 1].size;
        memmove(&s[at + 1], &s[at + 2], (n - at - 2) * sizeof s[0]);
        n--;
    }
    for (size_t i = 0; i < n; i++) {
        for (uint32_t id = 0; id < v->n; id++) {
            if (v->texts[id].size == s[i].size &&
                memcmp(v->texts[id].data, s[i].text, s[i].size) == 0) {
                assert_int_equal(bt_text_tokens_push(to, id), BT_OK);
            }
        }
    }
}

static void encode_naively(const vocabulary *v, const char *text, size_t size, bt_tokens *to)
{
    bt_error err = { 0 };
    bt_splitter *s;
    bt_split_pieces pieces = { 0 };
    assert_int_equal(bt_text_splitter_create(bt_text_split_name_find("gpt-2", 5)->list, &s, &err),
                     BT_OK);
    assert_int_equal(bt_text_splitter_run(s, text, size, &pieces, &err), BT_OK);
    size_t begin = 0;
    for (size_t i = 0; i < pieces.count; i++) {
        merge_naively(v, text + begin, pieces.ends[i] - begin, to);
        begin = pieces.ends[i];
    }
    bt_text_split_pieces_done(&pieces);
    bt_text_splitter_destroy(s);
}

static void random_merges(vocabulary *v, dice *d, char store[][16])
{
    static const char *const atoms[] = { "a", "b", "c", "\xc4\xa0" };
    for (uint32_t i = 0; i < 40; i++) {
        /* Parts are atoms or earlier products, so that merges build on one another. */
        char parts[2][8];
        for (int k = 0; k < 2; k++) {
            const uint32_t pick = roll(d, 4 + i);
            const char *text = atoms[pick % 4];
            char joined[8] = "";
            if (pick >= 4 && strlen(store[pick - 4]) < 7) {
                const char *blank = strchr(store[pick - 4] + 1, ' ');
                snprintf(joined, sizeof joined, "%.*s%s", (int)(blank - store[pick - 4]),
                         store[pick - 4], blank + 1);
                text = joined;
            }
            snprintf(parts[k], sizeof parts[k], "%s", text);
        }
        snprintf(store[i], 16, "%s %s", parts[0], parts[1]);
        vocabulary_merge(v, store[i]);
    }
}

static void merging_is_that_of_the_simple_rule(void **state)
{
    (void)state;
    static vocabulary v;
    dice d = { 4711 };
    for (int round = 0; round < 30; round++) {
        char store[40][16];
        vocabulary_init(&v);
        vocabulary_bytes(&v);
        random_merges(&v, &d, store);
        vocabulary_keys(&v, "gpt2", "gpt-2");
        bt_tokenizer *t = vocabulary_tokenizer(&v);
        for (int i = 0; i < 40; i++) {
            char text[120];
            const size_t size = roll(&d, i % 4 ? 20 : sizeof text);
            for (size_t k = 0; k < size; k++) {
                text[k] = "abc "[roll(&d, i % 3 ? 4 : 2)];
            }
            bt_tokens want;
            bt_text_tokens_init(&want);
            encode_naively(&v, text, size, &want);
            expect_encoding(t, text, size, false, want.ids, want.count);
            bt_text_tokens_done(&want);
        }
        bt_text_tokenizer_destroy(t);
        vocabulary_done(&v);
    }
}

static void a_million_letters_are_no_burden(void **state)
{
    (void)state;
    enum { N = 1000000 };
    vocabulary v;
    vocabulary_init(&v);
    vocabulary_bytes(&v);
    vocabulary_merge(&v, "a a");
    vocabulary_merge(&v, "aa aa");
    vocabulary_merge(&v, "aaaa aaaa");
    const uint32_t a16 = vocabulary_merge(&v, "aaaaaaaa aaaaaaaa");
    vocabulary_keys(&v, "gpt2", "gpt-2");
    bt_tokenizer *t = vocabulary_tokenizer(&v);
    char *text = malloc(N);
    memset(text, 'a', N);
    bt_tokens ids;
    bt_error err = { 0 };
    bt_text_tokens_init(&ids);
    const bt_encode_options o = { 0 };
    assert_int_equal(bt_text_tokenizer_encode(t, text, N, &o, &ids, &err), BT_OK);
    assert_int_equal(ids.count, N / 16);
    for (size_t i = 0; i < ids.count; i++) {
        assert_int_equal(ids.ids[i], a16);
    }
    bt_text_tokens_done(&ids);
    free(text);
    bt_text_tokenizer_destroy(t);
    vocabulary_done(&v);
}

int main(void)
{
    bt_log_set_sink(quiet, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merging_is_that_of_the_simple_rule),
        cmocka_unit_test(a_million_letters_are_no_burden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
