/* sample/sampler.h against a naive second implementation of docs/sampling.md, and chance. */
#include "unit/sample/pick.h"

/* ---- a naive second implementation of docs/sampling.md ---- */

typedef struct { uint32_t id; float l; } pair;

static int best_first(const void *a, const void *b)
{
    const pair *x = a, *y = b;
    if (x->l != y->l) {
        return x->l > y->l ? -1 : 1;
    }
    return x->id < y->id ? -1 : 1;
}

typedef struct {
    const bt_sampler_options *o;
    uint32_t   n_vocab;
    bt_mt19937 g;
    uint32_t   history[4096];
    size_t     n_history;
} naive;

static void naive_change(const naive *s, float *l)
{
    const bt_sampler_options *o = s->o;
    for (uint32_t id = 0; id < s->n_vocab; id++) {
        float bias = 0;
        bool any = false;
        for (size_t i = 0; i < o->n_bias; i++) {
            if (o->bias[i].id == id) {
                bias = any ? bias + o->bias[i].bias : o->bias[i].bias;
                any = true;
            }
        }
        if (any) {
            l[id] += bias;
        }
        size_t count = 0;
        const size_t last = o->penalty_last_n < 0 ? s->n_history : (size_t)o->penalty_last_n;
        for (size_t i = s->n_history > last ? s->n_history - last : 0; i < s->n_history; i++) {
            count += s->history[i] == id;
        }
        if (count > 0) {
            l[id] = l[id] <= 0 ? l[id] * o->penalty_repeat : l[id] / o->penalty_repeat;
            l[id] -= (float)count * o->penalty_frequency + o->penalty_presence;
        }
    }
}

static size_t naive_cut(const naive *s, pair *list, size_t n)
{
    const bt_sampler_options *o = s->o;
    if (o->top_k > 0 && (uint32_t)o->top_k < s->n_vocab) {
        qsort(list, n, sizeof *list, best_first);
        n = (size_t)o->top_k;
    }
    float max = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        max = list[i].l > max ? list[i].l : max;
    }
    if (o->top_p < 1) {
        float sum = 0, reached = 0;
        for (size_t i = 0; i < n; i++) {
            sum += expf(list[i].l - max);
        }
        qsort(list, n, sizeof *list, best_first);
        for (size_t i = 0; i < n; i++) {
            reached += expf(list[i].l - max) / sum;
            if (reached >= o->top_p && i + 1 >= o->min_keep) {
                n = i + 1;
            }
        }
    }
    if (o->min_p > 0) {
        pair kept[4096];
        size_t m = 0;
        for (size_t i = 0; i < n; i++) {
            if (list[i].l >= max + logf(o->min_p)) {
                kept[m++] = list[i];
            }
        }
        if (m < o->min_keep) {
            qsort(list, n, sizeof *list, best_first);
            n = n < o->min_keep ? n : o->min_keep;
        } else {
            memcpy(list, kept, m * sizeof *kept);
            n = m;
        }
    }
    return n;
}

static uint32_t naive_pick(naive *s, const float *logits)
{
    float l[4096];
    pair list[4096];
    memcpy(l, logits, s->n_vocab * sizeof *l);
    naive_change(s, l);
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        list[i] = (pair){ i, l[i] };
    }
    uint32_t chosen;
    if (s->o->temperature <= 0) {
        qsort(list, s->n_vocab, sizeof *list, best_first);
        chosen = list[0].id;
    } else {
        const size_t n = naive_cut(s, list, s->n_vocab);
        float max = -INFINITY;
        double total = 0, sum = 0;
        for (size_t i = 0; i < n; i++) {
            list[i].l /= s->o->temperature;
            max = list[i].l > max ? list[i].l : max;
        }
        for (size_t i = 0; i < n; i++) {
            total += (double)expf(list[i].l - max);
        }
        const double r = bt_mt19937_unit(&s->g);
        size_t at = 0;
        for (; at < n; at++) {
            sum += (double)expf(list[at].l - max);
            if (sum >= r * total) {
                break;
            }
        }
        chosen = list[at < n ? at : n - 1].id;
    }
    s->history[s->n_history++] = chosen;
    return chosen;
}

static uint32_t below(bt_mt19937 *g, uint32_t n)
{
    return bt_mt19937_next(g) % n;
}

static void random_options(bt_mt19937 *g, bt_sampler_options *o, bt_logit_bias *bias, uint32_t n)
{
    static const float temperatures[] = { 0, 0.3f, 0.8f, 1, 2.5f };
    static const float top_ps[] = { 0, 0.3f, 0.7f, 0.95f, 0.999f, 1 };
    static const float min_ps[] = { 0, 0.01f, 0.05f, 0.5f, 1 };
    *o = bt_sample_defaults();
    o->seed = bt_mt19937_next(g);
    o->temperature = temperatures[below(g, 5)];
    o->top_k = (int32_t)below(g, 3) * (int32_t)below(g, n + 20) / 2;
    o->top_p = top_ps[below(g, 6)];
    o->min_p = min_ps[below(g, 5)];
    o->min_keep = below(g, 3) ? 0 : below(g, 9);
    o->penalty_last_n = below(g, 4) ? (int32_t)below(g, 30) : -1;
    o->penalty_repeat = below(g, 2) ? 1.0f : 1.3f;
    o->penalty_frequency = below(g, 2) ? 0 : 0.2f;
    o->penalty_presence = below(g, 2) ? 0 : -0.3f;
    o->bias = bias;
    o->n_bias = below(g, 2) ? 0 : below(g, 6);
    for (size_t i = 0; i < o->n_bias; i++) {
        bias[i].id = below(g, n);
        bias[i].bias = below(g, 3) ? (float)below(g, 800) / 100 - 4 : -INFINITY;
    }
}

static void equals_the_naive_implementation(void **state)
{
    (void)state;
    static naive reference;
    static float logits[4096];
    bt_mt19937 g;
    bt_mt19937_init(&g, 20240607);
    for (int trial = 0; trial < 1500; trial++) {
        const uint32_t sizes[] = { 7, 63, 64, 65, 130, 1000 };
        const uint32_t n = sizes[below(&g, 6)];
        bt_sampler_options o;
        bt_logit_bias bias[8];
        random_options(&g, &o, bias, n);
        bt_sampler *s = sampler_of(&o, n, 4096);
        reference = (naive){ .o = &o, .n_vocab = n };
        bt_mt19937_init(&reference.g, o.seed);
        for (uint32_t i = below(&g, 40); i > 0; i--) {
            const uint32_t token = below(&g, n);
            bt_sample_accept(s, token);
            reference.history[reference.n_history++] = token;
        }
        for (int step = 0; step < 12; step++) {
            for (uint32_t i = 0; i < n; i++) {     /* coarse, so that ties are common */
                logits[i] = (float)below(&g, 64) / 8 - 4;
            }
            const uint32_t expected = naive_pick(&reference, logits);
            const uint32_t got = pick(s, logits);
            if (got != expected) {
                print_error("trial %d step %d: n %u t %g k %d p %g min_p %g min_keep %u bias %zu\n",
                            trial, step, n, (double)o.temperature, o.top_k, (double)o.top_p,
                            (double)o.min_p, o.min_keep, o.n_bias);
            }
            assert_int_equal(got, expected);
        }
        bt_sample_destroy(s);
    }
}

/* ---- chance ---- */

/* Pearson's statistic of 7 cells has 6 degrees of freedom; P(X > 35.9) < 3e-6. The seed is fixed,
 * so the test cannot flicker; the bound says how wrong a distribution could be and still pass. */
static void draws_follow_the_probabilities(void **state)
{
    (void)state;
    enum { N = 7, DRAWS = 200000 };
    const double p[N] = { 0.35, 0.25, 0.15, 0.1, 0.08, 0.05, 0.02 };
    float logits[N];
    for (int top_k = 0; top_k < 2; top_k++) {
        bt_sampler_options o = plain_options(99);
        o.temperature = 1.7f;
        o.top_k = top_k * (N - 1);
        const int cells = top_k ? N - 1 : N;
        double kept = 0;
        for (int i = 0; i < N; i++) {
            logits[i] = (float)(1.7 * log(p[i])) + 3;
            kept += i < cells ? p[i] : 0;
        }
        bt_sampler *s = sampler_of(&o, N, 16);
        double count[N] = { 0 };
        for (int i = 0; i < DRAWS; i++) {
            count[pick(s, logits)]++;
        }
        double chi2 = 0;
        for (int i = 0; i < cells; i++) {
            const double expected = DRAWS * p[i] / kept;
            chi2 += (count[i] - expected) * (count[i] - expected) / expected;
        }
        assert_true(chi2 < 35.9);
        assert_true(top_k == 0 || count[N - 1] == 0);
        bt_sample_destroy(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_naive_implementation),
        cmocka_unit_test(draws_follow_the_probabilities),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
