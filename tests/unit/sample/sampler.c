/* sample/sampler.h, against rows computed by hand. */
#include "unit/sample/pick.h"

/* ---- the smallest use ---- */

static void greedy_takes_the_first_of_the_largest(void **state)
{
    (void)state;
    const float logits[5] = { 0.5f, 3.0f, -1.0f, 3.0f, 2.0f };
    const bt_sampler_options o = greedy_options();
    bt_sampler *s = sampler_of(&o, 5, 16);
    assert_int_equal(pick(s, logits), 1);
    bt_sample_destroy(s);
}

static void greedy_finds_the_largest_at_every_place(void **state)
{
    (void)state;
    enum { N = 1000 };
    static float logits[N];
    const bt_sampler_options o = greedy_options();
    bt_sampler *s = sampler_of(&o, N, 16);
    for (uint32_t at = 0; at < N; at++) {
        for (uint32_t i = 0; i < N; i++) {
            logits[i] = -(float)((i * 7919u) % 1009u) - 1;
        }
        logits[at] = -0.5f;
        assert_int_equal(pick(s, logits), at);
    }
    bt_sample_destroy(s);
}

static void defaults_are_the_fields(void **state)
{
    (void)state;
    const bt_sampler_options o = bt_sample_defaults();
    assert_float_equal(o.temperature, 0.8, 1e-6);
    assert_int_equal(o.top_k, 40);
    assert_float_equal(o.top_p, 0.95, 1e-6);
    assert_float_equal(o.min_p, 0.05, 1e-6);
    assert_int_equal(o.min_keep, 0);
    assert_int_equal(o.penalty_last_n, 64);
    assert_float_equal(o.penalty_repeat, 1, 0);
    assert_float_equal(o.penalty_frequency, 0, 0);
    assert_float_equal(o.penalty_presence, 0, 0);
    assert_int_equal(o.seed, BT_SEED_RANDOM);
}

/* ---- bias and penalties, by hand ---- */

static void bias_adds_bans_and_sums(void **state)
{
    (void)state;
    const float logits[4] = { 1, 2, 3, 4 };
    const bt_logit_bias bias[] = { { 3, -INFINITY }, { 0, 1 }, { 2, -0.5f }, { 0, 1.25f } };
    bt_sampler_options o = greedy_options();
    o.bias = bias;
    o.n_bias = 4;
    bt_sampler *s = sampler_of(&o, 4, 16);      /* 3.25, 2, 2.5, banned */
    assert_int_equal(pick(s, logits), 0);
    bt_sample_destroy(s);
}

static void equal_after_bias_is_the_smaller_id(void **state)
{
    (void)state;
    const float logits[4] = { 1, 2, 2, 0 };
    const bt_logit_bias up[] = { { 0, 1 } }, late[] = { { 3, 2 } };
    bt_sampler_options o = greedy_options();
    o.bias = up;
    o.n_bias = 1;
    bt_sampler *s = sampler_of(&o, 4, 16);
    assert_int_equal(pick(s, logits), 0);
    bt_sample_destroy(s);
    o.bias = late;
    s = sampler_of(&o, 4, 16);
    assert_int_equal(pick(s, logits), 1);
    bt_sample_destroy(s);
}

static void repeat_penalty_divides_above_zero_and_multiplies_below(void **state)
{
    (void)state;
    bt_sampler_options o = greedy_options();
    o.penalty_repeat = 2;
    bt_sampler *s = sampler_of(&o, 3, 16);
    bt_sample_accept(s, 0);
    const float above[3] = { 3, 1.6f, 0 };      /* 3 / 2 = 1.5 < 1.6 */
    assert_int_equal(pick(s, above), 1);
    bt_sample_destroy(s);
    s = sampler_of(&o, 3, 16);
    bt_sample_accept(s, 0);
    const float below[3] = { -1, -1.9f, -9 };   /* -1 * 2 = -2 < -1.9 */
    assert_int_equal(pick(s, below), 1);
    bt_sample_destroy(s);
}

static void frequency_counts_and_presence_does_not(void **state)
{
    (void)state;
    const float logits[3] = { 5, 4, 3.6f };
    bt_sampler_options o = greedy_options();
    o.penalty_frequency = 0.5f;
    bt_sampler *s = sampler_of(&o, 3, 16);
    for (int i = 0; i < 3; i++) {
        bt_sample_accept(s, 0);                /* 5 - 1.5 = 3.5 */
    }
    assert_int_equal(pick(s, logits), 1);       /* then 1 has 4 - 0.5 = 3.5 */
    assert_int_equal(pick(s, logits), 2);
    bt_sample_destroy(s);

    o.penalty_frequency = 0;
    o.penalty_presence = 0.5f;
    s = sampler_of(&o, 3, 16);
    for (int i = 0; i < 3; i++) {
        bt_sample_accept(s, 0);                /* 5 - 0.5 = 4.5, however often */
    }
    assert_int_equal(pick(s, logits), 0);
    bt_sample_destroy(s);
}

static void penalties_forget_what_leaves_the_window(void **state)
{
    (void)state;
    const float logits[4] = { 5, 4, 3, 2 };
    bt_sampler_options o = greedy_options();
    o.penalty_presence = 10;
    o.penalty_last_n = 2;
    bt_sampler *s = sampler_of(&o, 4, 16);
    assert_int_equal(pick(s, logits), 0);
    assert_int_equal(pick(s, logits), 1);
    assert_int_equal(pick(s, logits), 2);       /* 0 and 1 are in the window of two */
    assert_int_equal(pick(s, logits), 0);       /* 1 and 2 are */
    bt_sample_destroy(s);
}

/* ---- cuts, by hand: probabilities 0.4, 0.3, 0.2, 0.1 in ids 2, 0, 3, 1 ---- */

static const float four[4] = { -1.2039728f, -2.3025851f, -0.9162907f, -1.6094379f };

static void which_are_drawn(const bt_sampler_options *o, bool seen[4])
{
    bt_sampler *s = sampler_of(o, 4, 16);
    memset(seen, 0, 4 * sizeof *seen);
    for (int i = 0; i < 2000; i++) {            /* missing one of p >= 0.1: below 1e-91 */
        seen[pick(s, four)] = true;
    }
    bt_sample_destroy(s);
}

static void assert_seen(const bool seen[4], bool a, bool b, bool c, bool d)
{
    assert_int_equal(seen[0], a);
    assert_int_equal(seen[1], b);
    assert_int_equal(seen[2], c);
    assert_int_equal(seen[3], d);
}

static void top_k_keeps_k(void **state)
{
    (void)state;
    bool seen[4];
    bt_sampler_options o = plain_options(1);
    o.top_k = 2;
    which_are_drawn(&o, seen);
    assert_seen(seen, true, false, true, false);
    o.top_k = 1;
    which_are_drawn(&o, seen);
    assert_seen(seen, false, false, true, false);
    o.top_k = 4;
    which_are_drawn(&o, seen);
    assert_seen(seen, true, true, true, true);
}

static void top_p_keeps_the_shortest_sufficient_prefix(void **state)
{
    (void)state;
    bool seen[4];
    for (int top_k = 0; top_k <= 3; top_k += 3) {   /* unsorted and sorted lists */
        bt_sampler_options o = plain_options(2);
        o.top_k = top_k;
        o.top_p = 0.39f;
        which_are_drawn(&o, seen);
        assert_seen(seen, false, false, true, false);
        o.top_p = 0.41f;                            /* of 0.9 with top-k 3: 0.444 suffices */
        which_are_drawn(&o, seen);
        assert_seen(seen, top_k == 0, false, true, false);
        o.top_p = 0.85f;                            /* of 0.9: 0.444 + 0.333 = 0.78 does not */
        which_are_drawn(&o, seen);
        assert_seen(seen, true, false, true, true);
        o.top_p = 0;
        which_are_drawn(&o, seen);
        assert_seen(seen, false, false, true, false);
        o.min_keep = 2;
        which_are_drawn(&o, seen);
        assert_seen(seen, true, false, true, false);
    }
}

static void min_p_compares_with_the_best(void **state)
{
    (void)state;
    bool seen[4];
    for (int top_k = 0; top_k <= 3; top_k += 3) {
        bt_sampler_options o = plain_options(3);
        o.top_k = top_k;
        o.min_p = 0.6f;                             /* 0.3 / 0.4 = 0.75, 0.2 / 0.4 = 0.5 */
        which_are_drawn(&o, seen);
        assert_seen(seen, true, false, true, false);
        o.min_p = 1;
        which_are_drawn(&o, seen);
        assert_seen(seen, false, false, true, false);
        o.min_keep = 3;
        which_are_drawn(&o, seen);
        assert_seen(seen, true, false, true, true);
    }
}

static void a_very_low_temperature_is_the_best_and_a_finite_answer(void **state)
{
    (void)state;
    const float coldest[] = { 1e-3f, 1e-20f, 1e-44f };
    for (size_t t = 0; t < 3; t++) {
        bt_sampler_options o = plain_options(4);
        o.temperature = coldest[t];
        bt_sampler *s = sampler_of(&o, 4, 16);
        for (int i = 0; i < 50; i++) {
            assert_int_equal(pick(s, four), 2);
        }
        bt_sample_destroy(s);
    }
}

/* ---- seeds ---- */

static void same_seed_same_tokens(void **state)
{
    (void)state;
    uint32_t a[100], b[100], c[100];
    const bt_sampler_options o = plain_options(42), other = plain_options(43);
    bt_sampler *s[3] = { sampler_of(&o, 4, 16), sampler_of(&o, 4, 16), sampler_of(&other, 4, 16) };
    for (int i = 0; i < 100; i++) {
        a[i] = pick(s[0], four);
        b[i] = pick(s[1], four);
        c[i] = pick(s[2], four);
    }
    assert_memory_equal(a, b, sizeof a);
    assert_memory_not_equal(a, c, sizeof a);
    for (int i = 0; i < 3; i++) {
        bt_sample_destroy(s[i]);
    }
}

static void a_random_seed_is_told_and_repeats(void **state)
{
    (void)state;
    bt_sampler_options o = plain_options(BT_SEED_RANDOM);
    bt_sampler *s = sampler_of(&o, 4, 16), *other = sampler_of(&o, 4, 16);
    assert_int_not_equal(bt_sample_seed(s), BT_SEED_RANDOM);
    assert_int_not_equal(bt_sample_seed(s), bt_sample_seed(other));   /* 1 in 2^32 to fail */
    o.seed = bt_sample_seed(s);
    bt_sampler *again = sampler_of(&o, 4, 16);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(pick(s, four), pick(again, four));
    }
    bt_sample_destroy(s);
    bt_sample_destroy(other);
    bt_sample_destroy(again);
}

/* One number per token, also when there is nothing to choose. */
static void every_token_draws_once(void **state)
{
    (void)state;
    bt_mt19937 g;
    bt_mt19937_init(&g, 7);
    const float only[4] = { -INFINITY, -INFINITY, 1, -INFINITY };
    const bt_sampler_options o = plain_options(7);
    bt_sampler *s = sampler_of(&o, 4, 16);
    for (int i = 0; i < 200; i++) {
        assert_int_equal(pick(s, only), 2);
        (void)bt_mt19937_unit(&g);
        const double r = bt_mt19937_unit(&g);       /* of the next row, in order of ids */
        double total = 0, sum = 0;
        uint32_t expected = 3;
        for (int j = 0; j < 4; j++) {
            total += (double)expf(four[j] - four[2]);
        }
        for (uint32_t j = 0; j < 4; j++) {
            sum += (double)expf(four[j] - four[2]);
            if (sum >= r * total) {
                expected = j;
                break;
            }
        }
        assert_int_equal(pick(s, four), expected);
    }
    bt_sample_destroy(s);
}

/* ---- log probabilities ---- */

static void logprobs_are_those_of_the_raw_row(void **state)
{
    (void)state;
    const bt_logit_bias ban[] = { { 2, -INFINITY } };
    bt_sampler_options o = plain_options(5);
    o.bias = ban;
    o.n_bias = 1;
    o.temperature = 0.1f;
    bt_sampler *s = sampler_of(&o, 4, 16);
    const uint32_t token = pick(s, four);
    bt_token_logprob top[6];
    float chosen = 0;
    bt_sample_logprobs(s, four, token, 3, top, &chosen);
    const uint32_t ids[3] = { 2, 0, 3 };
    const double p[3] = { 0.4, 0.3, 0.2 };
    for (int i = 0; i < 3; i++) {
        assert_int_equal(top[i].id, ids[i]);
        assert_float_equal(top[i].logprob, log(p[i]), 1e-6);
    }
    assert_float_equal(chosen, four[token], 1e-6);
    bt_sample_logprobs(s, four, 1, 0, NULL, &chosen);
    assert_float_equal(chosen, log(0.1), 1e-6);
    bt_sample_destroy(s);
}

static void a_probability_of_zero_is_the_lowest_float(void **state)
{
    (void)state;
    const float row[3] = { 1, -INFINITY, 0 };
    const bt_sampler_options o = greedy_options();
    bt_sampler *s = sampler_of(&o, 3, 16);
    bt_token_logprob top[3];
    float chosen = 0;
    bt_sample_logprobs(s, row, 1, 3, top, &chosen);
    assert_true(chosen == -FLT_MAX);
    assert_int_equal(top[2].id, 1);
    assert_true(top[2].logprob == -FLT_MAX);
    bt_sample_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_first_of_the_largest),
        cmocka_unit_test(greedy_finds_the_largest_at_every_place),
        cmocka_unit_test(defaults_are_the_fields),
        cmocka_unit_test(bias_adds_bans_and_sums),
        cmocka_unit_test(equal_after_bias_is_the_smaller_id),
        cmocka_unit_test(repeat_penalty_divides_above_zero_and_multiplies_below),
        cmocka_unit_test(frequency_counts_and_presence_does_not),
        cmocka_unit_test(penalties_forget_what_leaves_the_window),
        cmocka_unit_test(top_k_keeps_k),
        cmocka_unit_test(top_p_keeps_the_shortest_sufficient_prefix),
        cmocka_unit_test(min_p_compares_with_the_best),
        cmocka_unit_test(a_very_low_temperature_is_the_best_and_a_finite_answer),
        cmocka_unit_test(same_seed_same_tokens),
        cmocka_unit_test(a_random_seed_is_told_and_repeats),
        cmocka_unit_test(every_token_draws_once),
        cmocka_unit_test(logprobs_are_those_of_the_raw_row),
        cmocka_unit_test(a_probability_of_zero_is_the_lowest_float),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
