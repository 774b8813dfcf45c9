/* sample/select.h - finding the best few among very many logits without sorting them all.
 *
 * A row of logits is walked once, in blocks: a block's values are compared with the worst candidate
 * kept so far, so that most blocks are left after one vector comparison. Order of candidates
 * everywhere: larger logit first; of equal ones, the smaller id first.
 *
 * Threads: pure functions. Failure: bt_sample_select_best and bt_sample_select_top give false when
 * the row holds a NaN or +infinity (-infinity is a ban and is allowed).
 */
#ifndef BT_SAMPLE_SELECT_H
#define BT_SAMPLE_SELECT_H

#include <stdbool.h>
#include <stdint.h>

typedef struct { uint32_t id; float logit; } bt_candidate;

/* Whether a stands before b. */
static inline bool bt_sample_candidate_before(bt_candidate a, bt_candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

/* One bit per id; set: leave it out (its logit was changed and it is entered apart). NULL: none. */
static inline bool bt_sample_select_skips(const uint32_t *skip, uint32_t id)
{
    return skip && (skip[id / 32] >> (id % 32) & 1u);
}

/* The first of the largest; id UINT32_MAX when all are left out or -infinity. */
bool bt_sample_select_best(const float *logits, uint32_t n, const uint32_t *skip,
                           bt_candidate *ret_best);

/* The k best of the row (k >= 1, `heap` has room for k), as a heap with the worst on top; gives
 * how many there are in *ret_count. bt_sample_select_offer() enters more, bt_sample_select_order()
sorts. */ bool bt_sample_select_top(const float *logits, uint32_t n, const uint32_t *skip, uint32_t
   k,                        bt_candidate *heap, uint32_t *ret_count);
void bt_sample_select_offer(bt_candidate *heap, uint32_t *count, uint32_t k, bt_candidate c);
/* From a heap with the worst on top to a list, best first. */
void bt_sample_select_order(bt_candidate *heap, uint32_t count);

/* Any list becomes a heap with the best on top; take moves the best after the heap's end, so that
 * after m takes the last m entries of the list are the m best, best last. */
void bt_sample_select_heap_best(bt_candidate *list, uint32_t count);
bt_candidate bt_sample_select_take_best(bt_candidate *list, uint32_t *count);

#endif
