/* Bytes go through two stages. The first makes valid UTF-8 of them: at most three bytes of an
 * unfinished character wait, what is ill-formed becomes U+FFFD. The second runs one matcher per
 * stop string over the result; a matcher's state is how much of its stop the text ends with, so the
 * longest state of all is exactly what has to wait. Both work byte by byte, which is why the cuts
 * between tokens cannot matter. */
#include "text/stream.h"

#include <string.h>

#include "base/check.h"
#include "base/limits.h"
#include "base/memory.h"
#include "text/unicode.h"

/* Knuth, Morris and Pratt: fall[n] is the longest proper border of the first n bytes. */
typedef struct {
    const char *text;
    uint32_t   *fall;
    uint32_t    size, state;
} matcher;

struct bt_text_stream {
    matcher *stops;
    size_t   n_stops;
    size_t   piece_max;
    char    *held;               /* valid text that may become a stop string */
    size_t   n_held, held_max;
    char     tail[BT_UTF8_MAX];  /* the beginning of a character */
    uint32_t n_tail;
    int      stopped;            /* index of the stop string found, or -1 */
};

/* ---- life ---- */

static bt_status check_stops(const bt_stop *stops, size_t n_stops, size_t *ret_bytes, bt_error *err)
{
    if (n_stops > BT_STOPS_MAX) {
        return bt_fail(err, BT_E_BADINPUT, "%zu stop strings, at most %u are allowed", n_stops,
                       BT_STOPS_MAX);
    }
    size_t bytes = 0;
    for (size_t i = 0; i < n_stops; i++) {
        if (stops[i].size > BT_STOP_BYTES_MAX) {
            return bt_fail(err, BT_E_BADINPUT, "stop string %zu has %zu bytes, at most %u are "
                           "allowed", i, stops[i].size, BT_STOP_BYTES_MAX);
        }
        if (!bt_text_utf8_valid(stops[i].text, stops[i].size)) {
            return bt_fail(err, BT_E_BADINPUT, "stop string %zu is not UTF-8", i);
        }
        bytes += stops[i].size;
    }
    *ret_bytes = bytes;
    return BT_OK;
}

static void prepare(matcher *m)
{
    uint32_t border = 0;
    m->fall[0] = 0;
    m->fall[1] = 0;
    for (uint32_t n = 1; n < m->size; n++) {
        while (border > 0 && m->text[n] != m->text[border]) {
            border = m->fall[border];
        }
        border += m->text[n] == m->text[border];
        m->fall[n + 1] = border;
    }
}

/* One block holds the matchers, their tables, their texts and the held bytes. */
bt_status bt_text_stream_create(const bt_stop *stops, size_t n_stops, size_t piece_max,
                                bt_text_stream **ret_stream, bt_error *err)
{
    size_t bytes = 0;
    BT_TRY(check_stops(stops, n_stops, &bytes, err));
    const size_t n_fall = bytes + 2 * n_stops;
    bt_text_stream *s = bt_alloc_zero(BT_MEM_text, 1, sizeof *s + n_stops * sizeof(matcher) +
                                      n_fall * sizeof(uint32_t) + bytes + BT_STOP_BYTES_MAX + 1);
    if (!s) {
        return bt_fail(err, BT_E_NOMEM, "out of memory for %zu stop strings", n_stops);
    }
    s->stops = (matcher *)(void *)(s + 1);
    uint32_t *fall = (uint32_t *)(void *)(s->stops + n_stops);
    char *text = (char *)(fall + n_fall);
    for (size_t i = 0; i < n_stops; i++) {
        matcher *m = &s->stops[s->n_stops++];
        if (stops[i].size > 0) {
            memcpy(text, stops[i].text, stops[i].size);
        }
        *m = (matcher){ .text = text, .fall = fall, .size = (uint32_t)stops[i].size };
        prepare(m);
        text += stops[i].size;
        fall += stops[i].size + 2;
        s->held_max = stops[i].size > s->held_max ? stops[i].size : s->held_max;
    }
    s->held = text;
    s->piece_max = piece_max;
    s->stopped = -1;
    *ret_stream = s;
    return BT_OK;
}

void bt_text_stream_destroy(bt_text_stream *s)
{
    bt_free(s);
}

size_t bt_text_stream_release_max(const bt_text_stream *s)
{
    /* What waits, and every byte of a piece and of the tail as a U+FFFD. */
    return s->held_max + BT_UTF8_REPLACEMENT_SIZE * (s->piece_max + BT_UTF8_MAX);
}

/* ---- stage two: stop strings ---- */

/* Feeds one byte; true when the stop string is complete. Empty ones never are. */
static bool step(matcher *m, char byte)
{
    if (m->size == 0) {
        return false;
    }
    while (m->state > 0 && m->text[m->state] != byte) {
        m->state = m->fall[m->state];
    }
    m->state += m->text[m->state] == byte;
    return m->state == m->size;
}

/* Takes one byte of valid text; what can no longer be part of a stop string goes to `to`. */
static size_t take_byte(bt_text_stream *s, char byte, char *to)
{
    size_t wait = 0, found = 0;
    for (size_t i = 0; i < s->n_stops; i++) {
        matcher *m = &s->stops[i];
        /* Of several that end here the longest: nothing of any of them may be seen. */
        if (step(m, byte) && m->size > found) {
            found = m->size;
            s->stopped = (int)i;
        }
        wait = m->state > wait ? m->state : wait;
    }
    s->held[s->n_held++] = byte;
    const size_t keep = found ? found : wait;
    const size_t out = s->n_held - keep;
    memcpy(to, s->held, out);
    if (found) {
        s->n_held = 0;
        s->n_tail = 0;
    } else {
        memmove(s->held, s->held + out, keep);
        s->n_held = keep;
    }
    return out;
}

static size_t take_text(bt_text_stream *s, const char *text, size_t size, char *to)
{
    size_t out = 0;
    for (size_t i = 0; i < size && s->stopped < 0; i++) {
        out += take_byte(s, text[i], to + out);
    }
    return out;
}

/* ---- stage one: UTF-8 ---- */

/* Moves what is decided from the tail on; what may still become a character stays. */
static size_t drain(bt_text_stream *s, char *to)
{
    size_t out = 0;
    while (s->n_tail > 0 && s->stopped < 0) {
        const bt_utf8_char c = bt_text_utf8_at(s->tail, s->n_tail);
        if (c.kind == BT_UTF8_SHORT) {
            break;
        }
        char done[BT_UTF8_MAX];
        memcpy(done, s->tail, c.size);
        s->n_tail -= c.size;
        memmove(s->tail, s->tail + c.size, s->n_tail);
        out += c.kind == BT_UTF8_GOOD
                   ? take_text(s, done, c.size, to + out)
                   : take_text(s, BT_UTF8_REPLACEMENT, BT_UTF8_REPLACEMENT_SIZE, to + out);
    }
    return out;
}

size_t bt_text_stream_put(bt_text_stream *s, const char *bytes, size_t size, char *to,
                          int *ret_stop)
{
    BT_ASSERT(size <= s->piece_max);
    size_t out = 0;
    for (size_t i = 0; i < size && s->stopped < 0; i++) {
        s->tail[s->n_tail++] = bytes[i];
        out += drain(s, to + out);
    }
    *ret_stop = s->stopped;
    return out;
}

size_t bt_text_stream_end(bt_text_stream *s, char *to)
{
    size_t out = 0;
    if (s->stopped >= 0) {
        return 0;
    }
    if (s->n_tail > 0) {
        s->n_tail = 0;
        out = take_text(s, BT_UTF8_REPLACEMENT, BT_UTF8_REPLACEMENT_SIZE, to);
    }
    memcpy(to + out, s->held, s->n_held);
    out += s->n_held;
    s->n_held = 0;
    for (size_t i = 0; i < s->n_stops; i++) {
        s->stops[i].state = 0;
    }
    return out;
}
