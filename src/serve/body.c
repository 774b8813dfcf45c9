#include "serve/body.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/api.h"

void bt_serve_body_init(bt_body *b)
{
    *b = (bt_body){ .n = 1, .add_generation_prompt = true };
    bt_buf_init(&b->joined, BT_MEM_serve, BT_HTTP_BODY_BYTES_MAX);
}

void bt_serve_body_done(bt_body *b)
{
    bt_serve_json_release(b->root);
    bt_free(b->bias);
    bt_free(b->messages);
    bt_free(b->joined_at);
    bt_buf_done(&b->joined);
    *b = (bt_body){ 0 };
}

/* ---- sampling ---- */

static void read_float(const bt_fields *f, const char *name, double min, double max, float *ret)
{
    double v;
    if (bt_serve_fields_number(f, name, min, max, &v)) {
        *ret = (float)v;
    }
}

static void read_int32(const bt_fields *f, const char *name, int64_t min, int64_t max, int32_t *ret)
{
    int64_t v;
    if (bt_serve_fields_integer(f, name, min, max, &v)) {
        *ret = (int32_t)v;
    }
}

static void read_sampling(bt_body *b, const bt_fields *f)
{
    bt_sampler_options *s = &b->sampling;
    read_float(f, "temperature", 0, 1000, &s->temperature);
    read_float(f, "top_p", 0, 1, &s->top_p);
    read_float(f, "min_p", 0, 1, &s->min_p);
    read_int32(f, "top_k", -1, INT32_MAX, &s->top_k);
    read_float(f, "repetition_penalty", 0.01, 100, &s->penalty_repeat);
    read_float(f, "repeat_penalty", 0.01, 100, &s->penalty_repeat);
    read_float(f, "presence_penalty", -100, 100, &s->penalty_presence);
    read_float(f, "frequency_penalty", -100, 100, &s->penalty_frequency);
    read_int32(f, "repeat_last_n", -1, BT_CONTEXT_MAX, &s->penalty_last_n);
    int64_t v;
    if (bt_serve_fields_integer(f, "min_keep", 0, BT_VOCAB_MAX, &v)) {
        s->min_keep = (uint32_t)v;
    }
    if (bt_serve_fields_integer(f, "seed", INT64_MIN, INT64_MAX, &v)) {
        /* 64-bit seeds fold into 32; those that fit stay as they are. */
        const uint64_t u = (uint64_t)v;
        s->seed = v == -1 ? BT_SEED_RANDOM : (uint32_t)(u ^ (u >> 32));
        b->seed_given = s->seed != BT_SEED_RANDOM;
    }
}

static bool parse_id(const char *text, size_t size, uint32_t *ret_id)
{
    uint64_t id = 0;
    for (size_t i = 0; i < size; i++) {
        if (text[i] < '0' || text[i] > '9' || id > UINT32_MAX) {
            return false;
        }
        id = id * 10 + (uint64_t)(text[i] - '0');
    }
    *ret_id = (uint32_t)id;
    return size > 0 && id < UINT32_MAX;
}

static void read_one_bias(const bt_fields *f, const json_t *id, const char *key,
                          const json_t *value, bt_body_bias *to)
{
    int64_t whole;
    *to = (bt_body_bias){ 0 };
    if (id && bt_serve_json_whole(id, &whole) && whole >= 0 && whole < (int64_t)UINT32_MAX) {
        to->id = (uint32_t)whole;
    } else if (id && json_is_string(id)) {
        to->text = json_string_value(id);
        to->size = json_string_length(id);
    } else if (key && !parse_id(key, strlen(key), &to->id)) {
        to->text = key;
        to->size = strlen(key);
    } else if (!key) {
        bt_serve_problem_set(f->problem, 400, "logit_bias",
                             "Field 'logit_bias': pairs start with a token "
                             "id or a text");
        return;
    }
    if (json_is_false(value)) {
        to->bias = -INFINITY;
    } else if (json_is_number(value) && fabs(json_number_value(value)) <= 1e6) {
        to->bias = (float)json_number_value(value);
    } else {
        bt_serve_problem_set(f->problem, 400, "logit_bias",
                             "Field 'logit_bias': each bias is a number, or "
                             "false to ban the token");
    }
}

static void read_bias(bt_body *b, const bt_fields *f)
{
    json_t *all = bt_serve_fields_find(f, "logit_bias");
    if (!all) {
        return;
    }
    const size_t n = json_is_object(all) ? json_object_size(all) : json_array_size(all);
    if (!json_is_object(all) && !json_is_array(all)) {
        bt_serve_fields_complain(f, "logit_bias", all, "an object or an array of pairs");
        return;
    }
    if (n > BT_LOGIT_BIAS_MAX) {
        bt_serve_problem_set(f->problem, 400, "logit_bias",
                             "Field 'logit_bias': %zu entries, at most %u", n, BT_LOGIT_BIAS_MAX);
        return;
    }
    b->bias = bt_alloc_zero(BT_MEM_serve, n, sizeof *b->bias);
    if (!b->bias) {
        bt_serve_problem_set_status(f->problem, BT_E_NOMEM, "");
        return;
    }
    const char *key;
    json_t *value;
    json_object_foreach(all, key, value) {
        read_one_bias(f, NULL, key, value, &b->bias[b->n_bias++]);
    }
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *pair = json_array_get(all, i);
        if (json_array_size(pair) != 2) {
            bt_serve_problem_set(f->problem, 400, "logit_bias",
                                 "Field 'logit_bias[%zu]': a pair [token, "
                                 "bias] is expected",
                                 i);
            return;
        }
        read_one_bias(f, json_array_get(pair, 0), NULL, json_array_get(pair, 1),
                      &b->bias[b->n_bias++]);
    }
}

/* ---- when to end, what to show ---- */

static void add_stop(bt_body *b, const bt_fields *f, const json_t *value)
{
    if (!json_is_string(value)) {
        bt_serve_fields_complain(f, "stop", value, "a string or an array of strings");
        return;
    }
    const size_t size = json_string_length(value);
    if (size > BT_STOP_BYTES_MAX) {
        bt_serve_problem_set(f->problem, 400, "stop",
                             "Field 'stop': a string of %zu bytes, at most %u", size,
                             BT_STOP_BYTES_MAX);
    } else if (size > 0 && b->n_stops == BT_STOPS_MAX) {
        bt_serve_problem_set(f->problem, 400, "stop", "Field 'stop': more than %u strings",
                             BT_STOPS_MAX);
    } else if (size > 0) {
        b->stops[b->n_stops++] = (bt_stop){ json_string_value(value), size };
    }
}

static void read_stops(bt_body *b, const bt_fields *f)
{
    const json_t *stop = bt_serve_fields_find(f, "stop");
    if (!stop) {
        return;
    }
    if (!json_is_array(stop)) {
        add_stop(b, f, stop);
        return;
    }
    for (size_t i = 0; i < json_array_size(stop) && !bt_serve_problem_is(f->problem); i++) {
        add_stop(b, f, json_array_get(stop, i));
    }
}

static void read_length(bt_body *b, const bt_fields *f)
{
    /* The newest name wins when several are given. */
    static const char *const names[] = { "n_predict", "max_tokens", "max_completion_tokens" };
    for (size_t i = 0; i < BT_LEN(names); i++) {
        bt_serve_fields_integer(f, names[i], -1, UINT32_MAX - 1, &b->n_predict);
    }
}

void bt_serve_body_want_logprobs(bt_body *b, uint32_t n_top)
{
    b->want_logprobs = true;
    b->n_logprobs = n_top > b->n_logprobs ? n_top : b->n_logprobs;
}

static void read_probabilities(bt_body *b, const bt_fields *f)
{
    int64_t n = 0;
    if (bt_serve_fields_integer(f, "n_probs", 0, BT_TOP_LOGPROBS_MAX, &n) && n > 0) {
        bt_serve_body_want_logprobs(b, (uint32_t)n);
    }
}

static void read_prefill(bt_body *b, const bt_fields *f)
{
    static const char *const wheres[] = { "auto", "local", "remote", NULL };
    static const char *const policies[] = { "fallback", "fail", "hedge", NULL };
    const bt_fields inner = { .object = bt_serve_fields_object(f, "prefill"), .prefix = "prefill",
                              .problem = f->problem };
    bool cache = true;
    bt_serve_fields_bool(f, "cache_prompt", &cache);
    b->no_cache = !cache;
    if (inner.object) {
        bt_serve_fields_bool(&inner, "cache", &cache);
        b->where = (bt_prefill_where)bt_serve_fields_choice(&inner, "where", wheres, BT_WHERE_AUTO);
        b->policy = (bt_prefill_policy)bt_serve_fields_choice(&inner, "policy", policies,
                                                              (int)b->policy);
    }
    b->no_worker_cache = !cache;
}

static void read_answer(bt_body *b, const bt_fields *f)
{
    bt_serve_fields_bool(f, "stream", &b->stream);
    const bt_fields inner = { .object = bt_serve_fields_object(f, "stream_options"),
                              .prefix = "stream_options", .problem = f->problem };
    bt_serve_fields_bool(&inner, "include_usage", &b->include_usage);
    bt_serve_fields_bool(f, "timings_per_token", &b->timings_per_token);
    bt_serve_fields_bool(f, "return_progress", &b->return_progress);
    bt_serve_fields_bool(f, "return_tokens", &b->return_tokens);
    bt_serve_fields_bool(f, "echo", &b->echo);
    bt_serve_fields_bool(f, "ignore_eos", &b->ignore_eog);
    read_int32(f, "sse_ping_interval", -1, 3600, &b->ping_interval_s);
}

/* ---- prompts ---- */

bool bt_serve_body_prompt_check(const bt_fields *f, const char *name, const json_t *value)
{
    int64_t id;
    if (json_is_string(value)) {
        return true;
    }
    if (!json_is_array(value)) {
        bt_serve_fields_complain(f, name, value, "a string or an array of token ids and strings");
        return false;
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *item = json_array_get(value, i);
        const bool is_id = bt_serve_json_whole(item, &id) && id >= 0 && id < (int64_t)BT_VOCAB_MAX;
        if (!is_id && !json_is_string(item)) {
            bt_serve_problem_set(f->problem, 400, name,
                                 "Field '%s[%zu]': a token id or a string is "
                                 "expected, not %s",
                                 name, i,
                                 json_is_number(item) ? "such a number"
                                                      : bt_serve_json_kind_name(item));
            return false;
        }
    }
    return true;
}

/* An array with a number in it is one prompt; else its elements are prompts. */
static bool is_list_of_prompts(const json_t *value)
{
    for (size_t i = 0; i < json_array_size(value); i++) {
        if (json_is_number(json_array_get(value, i))) {
            return false;
        }
    }
    return json_array_size(value) > 0;
}

static void add_prompt(bt_body *b, const bt_fields *f, const json_t *value, bool objects)
{
    if (objects && json_is_object(value)) {
        if (json_object_get(value, "multimodal_data")) {
            bt_serve_problem_set(f->problem, 400, "prompt",
                                 "Field 'prompt.multimodal_data' is not supported");
            return;
        }
        value = json_object_get(value, "prompt_string");
    }
    if (!value) {
        bt_serve_problem_set(f->problem, 400, "prompt", "Field 'prompt.prompt_string' is missing");
    } else if (bt_serve_body_prompt_check(f, "prompt", value)) {
        b->prompts[b->n_prompts++] = value;
    }
}

bool bt_serve_body_read_prompts(bt_body *b, const bt_fields *f, bool objects)
{
    const json_t *prompt = bt_serve_fields_find(f, "prompt");
    if (!prompt) {
        bt_serve_problem_set(f->problem, 400, "prompt", "Field 'prompt' is missing");
        return false;
    }
    b->prompts_are_list = json_is_array(prompt) && is_list_of_prompts(prompt);
    if (!b->prompts_are_list) {
        add_prompt(b, f, prompt, objects);
        return !bt_serve_problem_is(f->problem);
    }
    if (json_array_size(prompt) > BT_PROMPTS_MAX) {
        bt_serve_problem_set(f->problem, 400, "prompt", "Field 'prompt': %zu prompts, at most %u",
                             json_array_size(prompt), BT_PROMPTS_MAX);
        return false;
    }
    for (size_t i = 0; i < json_array_size(prompt) && !bt_serve_problem_is(f->problem); i++) {
        add_prompt(b, f, json_array_get(prompt, i), objects);
    }
    return !bt_serve_problem_is(f->problem);
}

/* ---- the whole ---- */

static void read_choices(bt_body *b, const bt_fields *f, uint32_t n_parallel)
{
    int64_t n = 1;
    if (!bt_serve_fields_integer(f, "n", 1, BT_PARALLEL_MAX, &n)) {
        bt_serve_fields_integer(f, "n_cmpl", 1, BT_PARALLEL_MAX, &n);
    }
    if (n > (int64_t)n_parallel) {
        bt_serve_problem_set(f->problem, 400, "n",
                             "Field 'n': %lld choices, but this server answers %u at "
                             "once (--parallel)",
                             (long long)n, n_parallel);
    }
    b->n = (uint32_t)n;
}

bool bt_serve_body_parse(bt_body *b, const bt_api *api, const char *bytes, size_t size,
                         const bt_body_defaults *defaults, bt_problem *problem)
{
    b->api = api;
    b->sampling = defaults->sampling;
    b->sampling.bias = NULL;
    b->sampling.n_bias = 0;
    b->n_predict = defaults->n_predict;
    b->ping_interval_s = defaults->ping_interval_s;
    b->policy = defaults->policy;
    b->root = bt_serve_json_parse_object(bytes, size, problem);
    if (!b->root) {
        return false;
    }
    const bt_fields f = { .object = b->root, .prefix = "", .problem = problem };
    const char *model;
    size_t model_size;
    bt_serve_fields_text(&f, "model", &model, &model_size); /* any name is accepted, not any type */
    read_sampling(b, &f);
    read_bias(b, &f);
    read_stops(b, &f);
    read_length(b, &f);
    read_choices(b, &f, defaults->n_parallel);
    read_answer(b, &f);
    read_probabilities(b, &f);
    read_prefill(b, &f);
    api->parse(b, &f);
    bt_serve_body_read_others(b, &f);
    return !bt_serve_problem_is(problem);
}
