#include "sample/select.h"

#include <float.h>
#include <math.h>

#include "base/check.h"

/* A block is left after one question: is any value not at or below the limit? It is a yes for what
 * is better than the limit, for +infinity and for NaN alike, so damage is looked for only in blocks
 * that are looked at anyway. Lanes let the compiler ask 16 times at once. */
enum { BLOCK = 64, LANES = 16 };

static bool any_above(const float *x, uint32_t n, float limit)
{
    if (n < BLOCK) {
        bool all = true;
        for (uint32_t i = 0; i < n; i++) {
            all &= x[i] <= limit;
        }
        return !all;
    }
    uint32_t below[LANES], all = 1;
    for (int j = 0; j < LANES; j++) {
        below[j] = x[j] <= limit;
    }
    for (int i = LANES; i < BLOCK; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            below[j] &= x[i + j] <= limit;
        }
    }
    for (int j = 0; j < LANES; j++) {
        all &= below[j];
    }
    return !all;
}

bool bt_sample_select_best(const float *logits, uint32_t n, const uint32_t *skip,
                           bt_candidate *ret_best)
{
    bt_candidate best = { UINT32_MAX, -INFINITY };
    for (uint32_t i = 0; i < n; i += BLOCK) {
        const uint32_t m = n - i < BLOCK ? n - i : BLOCK;
        if (!any_above(logits + i, m, best.logit)) {
            continue;
        }
        for (uint32_t j = i; j < i + m; j++) {
            if (logits[j] <= best.logit) {
                continue;
            }
            if (!(logits[j] <= FLT_MAX)) {
                return false;
            }
            if (!bt_sample_select_skips(skip, j)) {
                best = (bt_candidate){ j, logits[j] };
            }
        }
    }
    *ret_best = best;
    return true;
}

/* Heaps: `worst_on_top` turns the order round. */
static bool stands_above(bt_candidate a, bt_candidate b, bool worst_on_top)
{
    return worst_on_top ? bt_sample_candidate_before(b, a) : bt_sample_candidate_before(a, b);
}

static void sift_down(bt_candidate *heap, uint32_t count, uint32_t at, bool worst_on_top)
{
    const bt_candidate moved = heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= count) {
            break;
        }
        if (child + 1 < count && stands_above(heap[child + 1], heap[child], worst_on_top)) {
            child++;
        }
        if (!stands_above(heap[child], moved, worst_on_top)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

static void sift_up(bt_candidate *heap, uint32_t at, bool worst_on_top)
{
    const bt_candidate moved = heap[at];
    while (at > 0) {
        const uint32_t parent = (at - 1) / 2;
        if (!stands_above(moved, heap[parent], worst_on_top)) {
            break;
        }
        heap[at] = heap[parent];
        at = parent;
    }
    heap[at] = moved;
}

void bt_sample_select_offer(bt_candidate *heap, uint32_t *count, uint32_t k, bt_candidate c)
{
    if (*count < k) {
        heap[*count] = c;
        sift_up(heap, *count, true);
        *count += 1;
    } else if (bt_sample_candidate_before(c, heap[0])) {
        heap[0] = c;
        sift_down(heap, k, 0, true);
    }
}

bool bt_sample_select_top(const float *logits, uint32_t n, const uint32_t *skip, uint32_t k,
                          bt_candidate *heap, uint32_t *ret_count)
{
    BT_ASSERT(k >= 1);
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i += BLOCK) {
        const uint32_t m = n - i < BLOCK ? n - i : BLOCK;
        /* Ids ascend, so an equal logit that comes later never wins. */
        if (count == k && !any_above(logits + i, m, heap[0].logit)) {
            continue;
        }
        for (uint32_t j = i; j < i + m; j++) {
            if (!(logits[j] <= FLT_MAX)) {
                return false;
            }
            if ((count < k || logits[j] > heap[0].logit) && !bt_sample_select_skips(skip, j)) {
                bt_sample_select_offer(heap, &count, k, (bt_candidate){ j, logits[j] });
            }
        }
    }
    *ret_count = count;
    return true;
}

void bt_sample_select_order(bt_candidate *heap, uint32_t count)
{
    while (count > 1) {
        const bt_candidate worst = heap[0];
        count--;
        heap[0] = heap[count];
        heap[count] = worst;
        sift_down(heap, count, 0, true);
    }
}

void bt_sample_select_heap_best(bt_candidate *list, uint32_t count)
{
    for (uint32_t i = count / 2; i-- > 0;) {
        sift_down(list, count, i, false);
    }
}

bt_candidate bt_sample_select_take_best(bt_candidate *list, uint32_t *count)
{
    BT_ASSERT_HOT(*count > 0);
    const bt_candidate best = list[0];
    *count -= 1;
    list[0] = list[*count];
    list[*count] = best;
    sift_down(list, *count, 0, false);
    return best;
}
