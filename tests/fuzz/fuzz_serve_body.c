/* rooms: serve
 *
 * Any bytes become a request within its limits, or a problem that clients understand: status 400 or
 * 413, a sentence, and JSON that another parser reads. The first byte chooses the API. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "serve/api.h"

static const bt_api *const apis[] = { &bt_serve_api_chat, &bt_serve_api_text,
                                      &bt_serve_api_native };

/* Reads every byte, so that a pointer that leads astray is found. */
static unsigned touch(const void *bytes, size_t size)
{
    unsigned sum = 0;
    for (size_t i = 0; i < size; i++) {
        sum += ((const unsigned char *)bytes)[i];
    }
    return sum;
}

static void check_sampling(const bt_body *b)
{
    const bt_sampler_options *s = &b->sampling;
    BT_ASSERT(isfinite(s->temperature) && s->temperature >= 0);
    BT_ASSERT(s->top_p >= 0 && s->top_p <= 1 && s->min_p >= 0 && s->min_p <= 1);
    BT_ASSERT(s->top_k >= -1 && s->penalty_last_n >= -1);
    BT_ASSERT(isfinite(s->penalty_repeat) && s->penalty_repeat > 0);
    BT_ASSERT(isfinite(s->penalty_presence) && isfinite(s->penalty_frequency));
    BT_ASSERT(b->n >= 1 && b->n <= 4);
    BT_ASSERT(b->n_predict >= -1 && b->n_predict < UINT32_MAX);
    BT_ASSERT(b->n_logprobs <= BT_TOP_LOGPROBS_MAX);
    BT_ASSERT(b->where <= BT_WHERE_REMOTE && b->policy <= BT_POLICY_FAIL);
}

static unsigned check_texts(const bt_body *b)
{
    unsigned sum = 0;
    BT_ASSERT(b->n_stops <= BT_STOPS_MAX && b->n_bias <= BT_LOGIT_BIAS_MAX);
    for (uint32_t i = 0; i < b->n_stops; i++) {
        BT_ASSERT(b->stops[i].size >= 1 && b->stops[i].size <= BT_STOP_BYTES_MAX);
        sum += touch(b->stops[i].text, b->stops[i].size);
    }
    for (size_t i = 0; i < b->n_bias; i++) {
        BT_ASSERT(!isnan(b->bias[i].bias));
        sum += touch(b->bias[i].text, b->bias[i].text ? b->bias[i].size : 0);
    }
    for (size_t i = 0; i < b->n_messages; i++) {
        BT_ASSERT(b->messages[i].role);
        BT_ASSERT(b->messages[i].content || b->messages[i].content_size == 0);
        BT_ASSERT(bt_json_utf8_valid(b->messages[i].content ? b->messages[i].content : "",
                                           b->messages[i].content_size));
        sum += touch(b->messages[i].content, b->messages[i].content_size);
    }
    return sum;
}

static void check_problem(const bt_problem *p)
{
    BT_ASSERT(p->http == 400 || p->http == 413);
    BT_ASSERT(p->type && p->message[0]);
    bt_buf text;
    bt_json_writer w;
    bt_buf_init(&text, BT_MEM_test, 1 << 20);
    bt_json_writer_init(&w, &text);
    bt_serve_problem_write(p, &w);
    json_t *root = json_loadb(text.data, text.size, 0, NULL);
    BT_ASSERT(json_is_string(json_object_get(json_object_get(root, "error"), "message")));
    json_decref(root);
    bt_buf_done(&text);
}

static void check_body(const bt_body *b)
{
    check_sampling(b);
    check_texts(b);
    if (b->api == &bt_serve_api_chat) {
        BT_ASSERT(b->n_messages >= 1 && b->n_messages <= BT_MESSAGES_MAX);
        BT_ASSERT(!(b->continue_final && b->add_generation_prompt));
    } else {
        BT_ASSERT(b->n_prompts <= BT_PROMPTS_MAX);
        for (uint32_t i = 0; i < b->n_prompts; i++) {
            BT_ASSERT(json_is_string(b->prompts[i]) || json_is_array(b->prompts[i]));
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool ready;
    if (!ready) {
        bt_serve_json_setup();
        ready = true;
    }
    if (size == 0) {
        return 0;
    }
    const bt_body_defaults defaults = {
        .sampling = { .seed = BT_SEED_RANDOM, .temperature = 0.8f, .top_k = 40, .top_p = 0.95f,
                      .min_p = 0.05f, .penalty_last_n = 64, .penalty_repeat = 1 },
        .n_predict = -1, .ping_interval_s = 30, .n_parallel = 4,
    };
    bt_body body;
    bt_problem problem = { 0 };
    bt_serve_body_init(&body);
    if (bt_serve_body_parse(&body, apis[data[0] % 3], (const char *)data + 1, size - 1,
                            &defaults, &problem)) {
        BT_ASSERT(!bt_serve_problem_is(&problem));
        check_body(&body);
    } else {
        check_problem(&problem);
    }
    bt_serve_body_done(&body);
    return 0;
}
