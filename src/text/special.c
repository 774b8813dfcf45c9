/* One pass over the text finds all places where some candidate begins and the longest one there.
 * Candidates are kept sorted by text, so that the ones that agree with the text so far are a
 * range that narrows byte by byte. Then the lengths that occurred are taken from the longest down.
 * The result is that of searching the text for every candidate in turn, at the cost of one search
 * and one look at each place per length. */
#include "text/special.h"

#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/memory.h"

#define NONE UINT32_MAX

enum { LENGTH_WORDS = BT_TOKEN_BYTES_MAX / 64 + 1, FIRST_CAPACITY = 64 };

struct bt_special {
    const bt_vocab *vocab;
    uint32_t *sorted;             /* candidate ids, by text */
    uint32_t  first[257];         /* by first byte: range in `sorted` */
    uint8_t  *is_candidate;       /* by id */
    uint32_t  mask_id;            /* takes the blanks before it; NONE: no such token */
};

/* A place where at least one candidate begins. */
typedef struct { uint32_t at, longest; } place;

typedef struct {
    place   *places;
    size_t   count, capacity;
    uint64_t lengths[LENGTH_WORDS];       /* a bit for every length found */
} finding;

/* ---- create ---- */

static bool is_candidate(const bt_vocab *v, uint32_t id)
{
    const bt_vocab_text t = bt_text_vocab_text_of(v, id);
    return (bt_text_vocab_is_special(v, id) || v->types[id] == BT_TOKEN_USER_DEFINED) &&
           bt_text_vocab_find(v, t.data, t.size) == id;
}

static int compare_texts(bt_vocab_text a, bt_vocab_text b)
{
    const int order = memcmp(a.data, b.data, a.size < b.size ? a.size : b.size);
    return order != 0 ? order : (a.size > b.size) - (a.size < b.size);
}

/* Heap sort, since qsort has no context to find the texts by. */
static void sink(const bt_vocab *v, uint32_t *ids, size_t root, size_t n)
{
    for (size_t child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && compare_texts(bt_text_vocab_text_of(v, ids[child]),
                                           bt_text_vocab_text_of(v, ids[child + 1])) < 0) {
            child++;
        }
        if (compare_texts(bt_text_vocab_text_of(v, ids[root]),
                          bt_text_vocab_text_of(v, ids[child])) >= 0) {
            return;
        }
        const uint32_t swap = ids[root];
        ids[root] = ids[child];
        ids[child] = swap;
    }
}

static void sort_by_text(const bt_vocab *v, uint32_t *ids, size_t n)
{
    for (size_t root = n / 2; root-- > 0;) {
        sink(v, ids, root, n);
    }
    for (size_t end = n; end > 1; end--) {
        const uint32_t swap = ids[0];
        ids[0] = ids[end - 1];
        ids[end - 1] = swap;
        sink(v, ids, 0, end - 1);
    }
}

bt_status bt_text_special_create(const bt_vocab *v, bt_special **ret_special, bt_error *err)
{
    bt_special *s = bt_alloc_zero(BT_MEM_text, 1, sizeof *s);
    if (s) {
        s->sorted = bt_alloc(BT_MEM_text, v->count * sizeof *s->sorted);
        s->is_candidate = bt_alloc_zero(BT_MEM_text, v->count, 1);
    }
    if (!s || !s->sorted || !s->is_candidate) {
        bt_text_special_destroy(s);
        return bt_fail_nomem(err, v->count * sizeof *s->sorted, "special tokens");
    }
    s->vocab = v;
    uint32_t n = 0;
    for (uint32_t id = 0; id < v->count; id++) {
        s->is_candidate[id] = is_candidate(v, id);
        if (s->is_candidate[id]) {
            s->sorted[n++] = id;
        }
    }
    sort_by_text(v, s->sorted, n);
    uint32_t i = 0;
    for (int byte = 0; byte < 256; byte++) {
        s->first[byte] = i;
        while (i < n && (uint8_t)bt_text_vocab_text_of(v, s->sorted[i]).data[0] == byte) {
            i++;
        }
    }
    s->first[256] = n;
    s->mask_id = v->pre && v->pre->strip_left_mask ? bt_text_vocab_find(v, "<mask>", 6) : NONE;
    *ret_special = s;
    return BT_OK;
}

void bt_text_special_destroy(bt_special *s)
{
    if (s) {
        bt_free(s->sorted);
        bt_free(s->is_candidate);
        bt_free(s);
    }
}

/* ---- finding ---- */

/* The first index in [low, high) whose text has at `depth` a byte of at least `byte`. */
static uint32_t lower(const bt_special *s, uint32_t low, uint32_t high, size_t depth, int byte)
{
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if ((uint8_t)bt_text_vocab_text_of(s->vocab, s->sorted[middle]).data[depth] < byte) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Notes the length of every candidate that `text` begins with; returns the longest, or 0. */
static size_t longest_at(const bt_special *s, const char *text, size_t left, uint64_t *lengths)
{
    uint32_t low = s->first[(uint8_t)text[0]], high = s->first[(uint8_t)text[0] + 1];
    size_t longest = 0;
    for (size_t depth = 1; low < high; depth++) {
        if (bt_text_vocab_text_of(s->vocab, s->sorted[low]).size == depth) {
            longest = depth;
            lengths[depth / 64] |= UINT64_C(1) << (depth % 64);
            low++;
        }
        if (depth >= left) {
            break;
        }
        const int byte = (uint8_t)text[depth];
        low = lower(s, low, high, depth, byte);
        high = lower(s, low, high, depth, byte + 1);
    }
    return longest;
}

static bt_status add_place(finding *f, size_t at, size_t longest)
{
    if (f->count == f->capacity) {
        const size_t capacity = f->capacity ? f->capacity * 2 : FIRST_CAPACITY;
        place *places = bt_realloc(BT_MEM_text, f->places, capacity * sizeof *places);
        if (!places) {
            return BT_E_NOMEM;
        }
        f->places = places;
        f->capacity = capacity;
    }
    f->places[f->count++] = (place){ (uint32_t)at, (uint32_t)longest };
    return BT_OK;
}

static bt_status find_places(const bt_special *s, const char *text, size_t size, finding *f)
{
    for (size_t at = 0; at < size; at++) {
        const uint8_t byte = (uint8_t)text[at];
        if (s->first[byte] == s->first[byte + 1]) {
            continue;
        }
        const size_t longest = longest_at(s, text + at, size - at, f->lengths);
        if (longest > 0) {
            BT_TRY(add_place(f, at, longest));
        }
    }
    return BT_OK;
}

/* ---- cutting ---- */

typedef struct {
    const bt_special    *special;
    const char          *text;
    size_t               size;
    const bt_user_range *users;
    size_t               n_users;
    uint8_t             *taken;       /* by byte */
    uint64_t            *order;       /* of one length: id << 32 | place, to be sorted */
    bt_cuts             *cuts;
} cutter;

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool touches_user(const cutter *c, size_t begin, size_t end)
{
    size_t low = 0, high = c->n_users;        /* the first range that ends after `begin` */
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (c->users[middle].end <= begin) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < c->n_users && c->users[low].begin < end;
}

/* Phi-3 takes the blanks after its special tokens, but for these. */
static bool strips_right(const bt_vocab *v, uint32_t id)
{
    static const char *const keep[] = { "<unk>", "<s>", "<|endoftext|>" };
    if (!v->strip_right) {
        return false;
    }
    const bt_vocab_text t = bt_text_vocab_text_of(v, id);
    for (size_t i = 0; i < BT_LEN(keep); i++) {
        if (t.size == strlen(keep[i]) && memcmp(t.data, keep[i], t.size) == 0) {
            return false;
        }
    }
    return true;
}

static bt_status take(cutter *c, size_t begin, size_t end, uint32_t id)
{
    if (memchr(c->taken + begin, 1, end - begin)) {
        return BT_OK;
    }
    if (id == c->special->mask_id) {
        while (begin > 0 && is_blank(c->text[begin - 1]) && !c->taken[begin - 1]) {
            begin--;
        }
    }
    if (strips_right(c->special->vocab, id)) {
        while (end < c->size && is_blank(c->text[end]) && !c->taken[end]) {
            end++;
        }
    }
    memset(c->taken + begin, 1, end - begin);
    bt_cuts *cuts = c->cuts;
    if (cuts->count == cuts->capacity) {
        const size_t capacity = cuts->capacity ? cuts->capacity * 2 : FIRST_CAPACITY;
        bt_cut *at = bt_realloc(BT_MEM_text, cuts->at, capacity * sizeof *at);
        if (!at) {
            return BT_E_NOMEM;
        }
        cuts->at = at;
        cuts->capacity = capacity;
    }
    cuts->at[cuts->count++] = (bt_cut){ (uint32_t)begin, (uint32_t)end, id };
    return BT_OK;
}

static int compare_u64(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int compare_cuts(const void *a, const void *b)
{
    const bt_cut *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* All candidates of one length, by id and then from left to right. */
static bt_status take_length(cutter *c, const finding *f, size_t length)
{
    const bt_vocab *v = c->special->vocab;
    size_t n = 0;
    bool sorted = true;
    for (size_t i = 0; i < f->count; i++) {
        const size_t at = f->places[i].at;
        if (f->places[i].longest < length || c->taken[at]) {
            continue;
        }
        const uint32_t id = bt_text_vocab_find(v, c->text + at, length);
        if (id == NONE || !c->special->is_candidate[id] ||
            (bt_text_vocab_is_special(v, id) && touches_user(c, at, at + length))) {
            continue;
        }
        c->order[n] = (uint64_t)id << 32 | at;
        sorted = sorted && (n == 0 || c->order[n - 1] < c->order[n]);
        n++;
    }
    if (!sorted) {
        qsort(c->order, n, sizeof *c->order, compare_u64);
    }
    for (size_t i = 0; i < n; i++) {
        const size_t at = (uint32_t)c->order[i];
        BT_TRY(take(c, at, at + length, (uint32_t)(c->order[i] >> 32)));
    }
    return BT_OK;
}

static bt_status take_all(cutter *c, const finding *f)
{
    for (size_t word = LENGTH_WORDS; word-- > 0;) {
        for (int bit = 63; f->lengths[word] && bit >= 0; bit--) {
            if (f->lengths[word] >> bit & 1) {
                BT_TRY(take_length(c, f, word * 64 + (size_t)bit));
            }
        }
    }
    if (c->cuts->count > 1) {
        qsort(c->cuts->at, c->cuts->count, sizeof *c->cuts->at, compare_cuts);
    }
    return BT_OK;
}

bt_status bt_text_special_cut(const bt_special *s, const char *text, size_t size,
                              const bt_user_range *users, size_t n_users, bt_cuts *cuts,
                              bt_error *err)
{
    cuts->count = 0;
    finding f = { 0 };
    cutter c = { .special = s, .text = text, .size = size, .users = users, .n_users = n_users,
                 .cuts = cuts };
    bt_status status = find_places(s, text, size, &f);
    if (status == BT_OK && f.count > 0) {
        c.taken = bt_alloc_zero(BT_MEM_text, size, 1);
        c.order = bt_alloc(BT_MEM_text, f.count * sizeof *c.order);
        status = c.taken && c.order ? take_all(&c, &f) : BT_E_NOMEM;
    }
    bt_free(f.places);
    bt_free(c.taken);
    bt_free(c.order);
    return status == BT_OK ? BT_OK : bt_fail(err, status, "out of memory to find special tokens in "
                                           "%zu "
                                             "bytes of text", size);
}

void bt_text_cuts_done(bt_cuts *c)
{
    bt_free(c->at);
    *c = (bt_cuts){ 0 };
}
