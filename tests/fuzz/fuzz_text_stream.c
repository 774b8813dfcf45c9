/* rooms: text base
 *
 * Whatever the bytes, the cuts and the stop strings: what is released is valid UTF-8, does not hold
 * a stop string, does not depend on the cuts, and is what treating the whole text at once gives; no
 * call releases more than was promised.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "text/stream.h"
#include "text/unicode.h"

enum { STOPS_MAX = 4, INPUT_MAX = 4096, TEXT_MAX = 3 * INPUT_MAX + 16 };

typedef struct { char text[TEXT_MAX]; size_t size; int stop; bool cut_short; } result;

/* The rule, for the whole text. */
static void whole(const bt_stop *stops, size_t n_stops, const char *bytes, size_t size, result *to)
{
    to->size = 0;
    to->stop = -1;
    to->cut_short = false;
    for (size_t at = 0; at < size;) {
        const bt_utf8_char c = bt_text_utf8_at(bytes + at, size - at);
        const bool good = c.kind == BT_UTF8_GOOD;
        memcpy(to->text + to->size, good ? bytes + at : BT_UTF8_REPLACEMENT, good ? c.size : 3);
        to->size += good ? c.size : 3;
        at += c.size;
        to->cut_short = c.kind == BT_UTF8_SHORT;
    }
    for (size_t end = 1; end <= to->size; end++) {
        size_t longest = 0;
        for (size_t i = 0; i < n_stops; i++) {
            if (stops[i].size > longest && stops[i].size <= end &&
                memcmp(to->text + end - stops[i].size, stops[i].text, stops[i].size) == 0) {
                longest = stops[i].size;
                to->stop = (int)i;
            }
        }
        if (longest > 0) {
            to->cut_short = to->cut_short && end == to->size;
            to->size = end - longest;
            return;
        }
    }
}

/* `cuts` gives the sizes of pieces, over and over; NULL: byte by byte. */
static void stream(const bt_stop *stops, size_t n_stops, const char *bytes, size_t size,
                   const uint8_t *cuts, size_t n_cuts, result *to)
{
    bt_error err = { 0 };
    bt_text_stream *s;
    BT_ASSERT(bt_text_stream_create(stops, n_stops, 16, &s, &err) == BT_OK);
    const size_t room = bt_text_stream_release_max(s);
    char *part = malloc(room);
    BT_ASSERT(part);
    to->size = 0;
    to->stop = -1;
    for (size_t at = 0, k = 0; at < size; k++) {
        size_t n = n_cuts ? cuts[k % n_cuts] % 17 : 1;
        n = n > size - at ? size - at : n;
        n = n == 0 && n_cuts && k % n_cuts + 1 == n_cuts ? 1 : n;      /* it must go on */
        const size_t got = bt_text_stream_put(s, bytes + at, n, part, &to->stop);
        BT_ASSERT(got <= room);
        memcpy(to->text + to->size, part, got);
        to->size += got;
        at += n;
        BT_ASSERT(bt_text_utf8_valid(to->text, to->size));
    }
    const size_t got = bt_text_stream_end(s, part);
    BT_ASSERT(got <= room);
    memcpy(to->text + to->size, part, got);
    to->size += got;
    BT_ASSERT(bt_text_utf8_valid(to->text, to->size));
    free(part);
    bt_text_stream_destroy(s);
}

static void compare(const result *got, const result *want)
{
    BT_ASSERT(got->size == want->size && memcmp(got->text, want->text, want->size) == 0);
    BT_ASSERT(got->stop == (want->cut_short ? -1 : want->stop));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static result want, got;
    bt_stop stops[STOPS_MAX];
    const uint8_t *at = data, *end = data + size;
    const size_t n_stops = at < end ? *at++ % (STOPS_MAX + 1) : 0;
    for (size_t i = 0; i < n_stops; i++) {
        size_t n = at < end ? *at++ % 12 : 0;
        n = n > (size_t)(end - at) ? (size_t)(end - at) : n;
        stops[i] = (bt_stop){ (const char *)at, n };
        at += n;
        if (!bt_text_utf8_valid(stops[i].text, n)) {
            bt_error err = { 0 };
            bt_text_stream *s;
            BT_ASSERT(bt_text_stream_create(stops, i + 1, 16, &s, &err) == BT_E_BADINPUT);
            stops[i].size = 0;
        }
    }
    size_t n_cuts = at < end ? *at++ % 8 : 0;
    n_cuts = n_cuts > (size_t)(end - at) ? (size_t)(end - at) : n_cuts;
    const uint8_t *cuts = at;
    at += n_cuts;
    size_t left = (size_t)(end - at);
    left = left > INPUT_MAX ? INPUT_MAX : left;
    whole(stops, n_stops, (const char *)at, left, &want);
    stream(stops, n_stops, (const char *)at, left, NULL, 0, &got);
    compare(&got, &want);
    stream(stops, n_stops, (const char *)at, left, cuts, n_cuts, &got);
    compare(&got, &want);
    return 0;
}
