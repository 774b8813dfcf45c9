/* Options of a request, and what a model file suggests for them. */
#include "sample/options.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"

bt_sampler_options bt_sample_defaults(void)
{
    return (bt_sampler_options){
        .seed = BT_SEED_RANDOM, .temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f,
        .penalty_last_n = 64, .penalty_repeat = 1.0f,
    };
}

bt_status bt_sample_options_check(const bt_sampler_options *o, uint32_t n_vocab, bt_error *err)
{
    const struct { const char *name; float value; } numbers[] = {
        { "temperature", o->temperature }, { "top_p", o->top_p }, { "min_p", o->min_p },
        { "repeat_penalty", o->penalty_repeat }, { "frequency_penalty", o->penalty_frequency },
        { "presence_penalty", o->penalty_presence },
    };
    for (size_t i = 0; i < BT_LEN(numbers); i++) {
        if (!isfinite(numbers[i].value)) {
            return bt_fail(err, BT_E_BADINPUT, "%s is not a finite number", numbers[i].name);
        }
    }
    if (o->penalty_repeat <= 0) {
        return bt_fail(err, BT_E_BADINPUT, "repeat_penalty is %g; it must be above 0 (1 is off)",
                       (double)o->penalty_repeat);
    }
    if (o->min_p > 1) {
        return bt_fail(err, BT_E_BADINPUT, "min_p is %g; it must be at most 1 (0 is off)",
                       (double)o->min_p);
    }
    if (o->penalty_last_n < -1) {
        return bt_fail(err, BT_E_BADINPUT, "repeat_last_n is %d; it must be -1 (the whole "
                       "context), 0 (off) or a number of tokens", (int)o->penalty_last_n);
    }
    for (size_t i = 0; i < o->n_bias; i++) {
        const bt_logit_bias *b = &o->bias[i];
        if (b->id >= n_vocab) {
            return bt_fail(err, BT_E_BADINPUT, "logit_bias names token %u; the vocabulary has %u",
                           b->id, n_vocab);
        }
        if (isnan(b->bias) || b->bias > FLT_MAX) {
            return bt_fail(err, BT_E_BADINPUT, "logit_bias of token %u is not a number", b->id);
        }
    }
    return BT_OK;
}

/* ---- general.sampling.* of a model file ---- */

#define PREFIX "general.sampling."

typedef struct {
    const char *key;
    size_t      offset;            /* in bt_sampler_options */
    bool        whole;             /* an int32_t; else a float */
    float       low, high;
} hint;

#define AT(field) offsetof(bt_sampler_options, field)

/* 2^24: whole numbers beyond it are not exact in f32, and nothing here needs them. */
static const hint hints[] = {
    { PREFIX "temp",           AT(temperature),    false, 0,        1e4f },
    { PREFIX "top_k",          AT(top_k),          true,  -1,       16777216 },
    { PREFIX "top_p",          AT(top_p),          false, 0,        1 },
    { PREFIX "min_p",          AT(min_p),          false, 0,        1 },
    { PREFIX "penalty_last_n", AT(penalty_last_n), true,  -1,       16777216 },
    { PREFIX "penalty_repeat", AT(penalty_repeat), false, FLT_MIN,  1e4f },
};

static bt_status read_hint(const bt_gguf *file, const hint *h, bt_sampler_options *o, bt_error *err)
{
    float v = 0;
    BT_TRY(bt_gguf_get_f32(file, h->key, &v, err));
    if (!(v >= h->low && v <= h->high) || (h->whole && v != floorf(v))) {
        return bt_fail(err, BT_E_BADFILE, "'%s': key '%s' is %g, but must be %s from %g to %g",
                       bt_gguf_path(file), h->key, (double)v,
                       h->whole ? "a whole number" : "a number", (double)h->low, (double)h->high);
    }
    char *to = (char *)o + h->offset;
    const int32_t whole = (int32_t)v;
    memcpy(to, h->whole ? (const void *)&whole : (const void *)&v, sizeof v);
    return BT_OK;
}

static const hint *find_hint(bt_gguf_string key)
{
    for (size_t i = 0; i < BT_LEN(hints); i++) {
        if (key.size == strlen(hints[i].key) && memcmp(key.data, hints[i].key, key.size) == 0) {
            return &hints[i];
        }
    }
    return NULL;
}

/* Zero switches mirostat and XTC off, so that a zero changes no answer. */
static bool says_nothing(const bt_gguf_pair *p)
{
    const bool number = p->type != BT_GGUF_STRING && p->type != BT_GGUF_ARRAY;
    return number && bt_gguf_array_f32(p, 0) == 0;
}

static void add_unsupported(bt_sample_hints *h, bt_gguf_string key)
{
    const size_t used = strlen(h->unsupported), left = sizeof h->unsupported - used;
    snprintf(h->unsupported + used, left, "%s%.*s", used ? ", " : "", (int)key.size, key.data);
}

bt_status bt_sample_hints_read(const bt_gguf *file, bt_sample_hints *ret_hints, bt_error *err)
{
    bt_sample_hints made = { .options = bt_sample_defaults() };
    for (uint32_t i = 0; i < bt_gguf_pair_count(file); i++) {
        const bt_gguf_pair *p = bt_gguf_pair_at(file, i);
        if (p->key.size < sizeof PREFIX || memcmp(p->key.data, PREFIX, sizeof PREFIX - 1) != 0) {
            continue;
        }
        const hint *h = find_hint(p->key);
        if (h) {
            BT_TRY(read_hint(file, h, &made.options, err));
            made.n_hints++;
        } else if (!says_nothing(p)) {
            add_unsupported(&made, p->key);
        }
    }
    *ret_hints = made;
    return BT_OK;
}
