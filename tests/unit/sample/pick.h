/* What the programs of tests/unit/sample share. */
#ifndef TESTS_SAMPLE_PICK_H
#define TESTS_SAMPLE_PICK_H

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/random.h"
#include "sample/sampler.h"
static inline bt_sampler *sampler_of(const bt_sampler_options *o, uint32_t n_vocab,
                                     uint32_t n_context)
{
    bt_sampler *s = NULL;
    bt_error err = { 0 };
    assert_int_equal(bt_sample_create(o, n_vocab, n_context, &s, &err), BT_OK);
    return s;
}

static inline uint32_t pick(bt_sampler *s, const float *logits)
{
    uint32_t token = UINT32_MAX;
    bt_error err = { 0 };
    assert_int_equal(bt_sample_pick(s, logits, &token, &err), BT_OK);
    return token;
}

static inline bt_sampler_options greedy_options(void)
{
    bt_sampler_options o = bt_sample_defaults();
    o.temperature = 0;
    return o;
}

/* Only the draw: everything that cuts is off. */
static inline bt_sampler_options plain_options(uint32_t seed)
{
    bt_sampler_options o = bt_sample_defaults();
    o.temperature = 1;
    o.top_k = 0;
    o.top_p = 1;
    o.min_p = 0;
    o.seed = seed;
    return o;
}

#endif
