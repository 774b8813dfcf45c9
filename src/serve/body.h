/* serve/body.h - the body of a completion request, from bytes to a struct.
 *
 * Pure functions: no engine, no tokenizer, no clock. What can be found wrong without them is a
 * problem that names the field. A field that would change the answer and is not supported is
 * refused (body_others.c); fields that change nothing, or that nobody knows, are ignored.
 *
 * Lifetime: init, parse, done; texts point into the parsed JSON, which the body owns.
 * Threads:  owned by one.
 */
#ifndef BT_SERVE_BODY_H
#define BT_SERVE_BODY_H

#include "base/limits.h"
#include "engine/engine.h"
#include "handoff/report.h"
#include "serve/fields.h"
#include "text/chat.h"

typedef struct bt_api bt_api;          /* serve/api.h */

/* A bias for one token id, or (text != NULL) for every token of a text. */
typedef struct {
    const char *text;
    size_t      size;
    uint32_t    id;
    float       bias;
} bt_body_bias;

/* What a server was started with; requests override it. */
typedef struct {
    bt_sampler_options sampling;       /* bias unused */
    int64_t  n_predict;                /* -1: until the context is full */
    int32_t  ping_interval_s;          /* <= 0: none */
    uint32_t n_parallel;               /* ceiling for `n` */
    bt_prefill_policy policy;
} bt_body_defaults;

typedef struct {
    const bt_api *api;
    json_t  *root;

    bt_sampler_options sampling;
    int64_t  n_predict;
    uint32_t n;                        /* choices per prompt */
    bool     seed_given;
    bool     ignore_eog, no_cache, no_worker_cache, special;
    bt_stop  stops[BT_STOPS_MAX];
    uint32_t n_stops;
    bt_body_bias *bias;
    size_t   n_bias;

    bool     want_logprobs;
    uint32_t n_logprobs;
    bool     stream, include_usage, timings_per_token, return_progress, return_tokens, echo;
    int32_t  ping_interval_s;
    bt_prefill_where  where;
    bt_prefill_policy policy;

    /* chats */
    bt_chat_message *messages;
    size_t   n_messages;
    bool     continue_final;           /* the last assistant message is to be continued */
    bool     add_generation_prompt;
    bt_buf   joined;                   /* contents that came in several parts */
    size_t  *joined_at;                /* [n_messages], SIZE_MAX: not joined */

    /* all others: each a string, or an array of ids and strings */
    const json_t *prompts[BT_PROMPTS_MAX];
    uint32_t n_prompts;
    bool     prompts_are_list;         /* answered by an array (native) */
} bt_body;

void bt_serve_body_init(bt_body *b);
void bt_serve_body_done(bt_body *b);
/* false: `problem` says what is wrong. */
bool bt_serve_body_parse(bt_body *b, const bt_api *api, const char *bytes, size_t size,
                         const bt_body_defaults *defaults, bt_problem *problem);
/* Parts that an API's own parse() calls. */
void bt_serve_body_want_logprobs(bt_body *b, uint32_t n_top);
bool bt_serve_body_read_prompts(bt_body *b, const bt_fields *f, bool objects); /* {prompt_string} */
void bt_serve_body_read_others(bt_body *b, const bt_fields *f);
/* Also alone, from a parsed object (/apply-template). */
bool bt_serve_body_read_messages(bt_body *b, const bt_fields *f);
/* One prompt: a string, or an array of ids and strings. A problem when it is anything else. */
bool bt_serve_body_prompt_check(const bt_fields *f, const char *name, const json_t *value);

#endif
