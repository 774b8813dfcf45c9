/* sample/sampler.h: damaged rows, bad options, no memory. */
#include "unit/sample/pick.h"

static const float four[4] = { -1.2039728f, -2.3025851f, -0.9162907f, -1.6094379f };

/* ---- damage ---- */

static void a_damaged_row_is_an_error_and_never_a_token(void **state)
{
    (void)state;
    enum { N = 200 };
    static float row[N];
    const float damage[] = { NAN, -NAN, INFINITY };
    const uint32_t places[] = { 0, 63, 64, 130, 199 };
    for (int kind = 0; kind < 3; kind++) {
        for (size_t at = 0; at < BT_LEN(places); at++) {
            for (int mode = 0; mode < 4; mode++) {
                for (uint32_t i = 0; i < N; i++) {
                    row[i] = (float)(i % 17);
                }
                row[places[at]] = damage[kind];
                bt_sampler_options o = mode == 0 ? greedy_options() : plain_options(1);
                o.top_k = mode == 2 ? 5 : 0;
                o.penalty_presence = mode == 3 ? 1 : 0;
                bt_sampler *s = sampler_of(&o, N, 16);
                bt_sample_accept(s, places[at]);
                uint32_t token = 12345;
                bt_error err = { 0 };
                assert_int_equal(bt_sample_pick(s, row, &token, &err), BT_E_DEVICE);
                assert_int_equal(token, 12345);
                assert_true(err.text[0] != '\0');
                bt_sample_destroy(s);
            }
        }
    }
}

static void a_row_without_finite_values_is_an_error(void **state)
{
    (void)state;
    const float row[3] = { -INFINITY, -INFINITY, -INFINITY };
    for (int mode = 0; mode < 3; mode++) {
        bt_sampler_options o = mode == 0 ? greedy_options() : plain_options(1);
        o.top_k = mode == 2 ? 2 : 0;
        bt_sampler *s = sampler_of(&o, 3, 16);
        uint32_t token = 12345;
        bt_error err = { 0 };
        assert_int_equal(bt_sample_pick(s, row, &token, &err), BT_E_DEVICE);
        assert_int_equal(token, 12345);
        bt_sample_destroy(s);
    }
}

static void banning_everything_is_the_requests_fault(void **state)
{
    (void)state;
    const float row[2] = { 1, 2 };
    const bt_logit_bias ban[] = { { 0, -INFINITY }, { 1, -INFINITY } };
    for (int mode = 0; mode < 3; mode++) {
        bt_sampler_options o = mode == 0 ? greedy_options() : plain_options(1);
        o.top_k = mode == 2 ? 1 : 0;
        o.bias = ban;
        o.n_bias = 2;
        bt_sampler *s = sampler_of(&o, 2, 16);
        uint32_t token = 12345;
        bt_error err = { 0 };
        assert_int_equal(bt_sample_pick(s, row, &token, &err), BT_E_BADINPUT);
        assert_int_equal(token, 12345);
        bt_sample_destroy(s);
    }
}

static void bad_options_are_refused_by_name(void **state)
{
    (void)state;
    const bt_logit_bias far_away[] = { { 4, 1 } }, nan[] = { { 1, NAN } };
    const bt_logit_bias up[] = { { 1, INFINITY } };
    for (int kind = 0; kind < 9; kind++) {
        bt_sampler_options o = bt_sample_defaults();
        const char *names[] = { "temperature", "top_p", "min_p", "min_p", "repeat_penalty",
                                "repeat_last_n", "token 4", "token 1", "token 1" };
        o.temperature = kind == 0 ? NAN : o.temperature;
        o.top_p = kind == 1 ? INFINITY : o.top_p;
        o.min_p = kind == 2 ? NAN : kind == 3 ? 1.5f : o.min_p;
        o.penalty_repeat = kind == 4 ? 0 : o.penalty_repeat;
        o.penalty_last_n = kind == 5 ? -2 : o.penalty_last_n;
        o.bias = kind == 6 ? far_away : kind == 7 ? nan : up;
        o.n_bias = kind >= 6;
        bt_sampler *s = NULL;
        bt_error err = { 0 };
        assert_int_equal(bt_sample_create(&o, 4, 16, &s, &err), BT_E_BADINPUT);
        assert_null(s);
        assert_non_null(strstr(err.text, names[kind]));
    }
}

/* ---- memory ---- */

static void nothing_allocates_after_create(void **state)
{
    (void)state;
    bt_sampler_options o = bt_sample_defaults();
    o.penalty_repeat = 1.1f;
    bt_sampler *s = sampler_of(&o, 4, 16);
    bt_token_logprob top[4];
    float chosen;
    const uint64_t before = bt_memory_calls();
    for (int i = 0; i < 100; i++) {
        bt_sample_logprobs(s, four, pick(s, four), 4, top, &chosen);
    }
    assert_int_equal(bt_memory_calls(), before);
    bt_sample_destroy(s);
}

static void every_failed_allocation_is_said(void **state)
{
    (void)state;
    const bt_logit_bias bias[] = { { 1, 1 } };
    bt_sampler_options o = bt_sample_defaults();
    o.penalty_repeat = 1.1f;
    o.bias = bias;
    o.n_bias = 1;
    o.seed = 1;
    for (uint64_t n = 1;; n++) {
        bt_sampler *s = NULL;
        bt_error err = { 0 };
        bt_memory_fail_after(n);
        const bt_status status = bt_sample_create(&o, 1000, 100, &s, &err);
        bt_memory_fail_after(0);
        if (status == BT_OK) {
            assert_true(n > 5);
            bt_sample_destroy(s);
            break;
        }
        assert_int_equal(status, BT_E_NOMEM);
        assert_null(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_damaged_row_is_an_error_and_never_a_token),
        cmocka_unit_test(a_row_without_finite_values_is_an_error),
        cmocka_unit_test(banning_everything_is_the_requests_fault),
        cmocka_unit_test(bad_options_are_refused_by_name),
        cmocka_unit_test(nothing_allocates_after_create),
        cmocka_unit_test(every_failed_allocation_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
