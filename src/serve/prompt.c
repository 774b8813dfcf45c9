#include "serve/prompt.h"

#include <string.h>

#include "engine/snapshots.h"
#include "serve/connections.h"

void bt_serve_prompts_init(bt_prompts *p, int fd)
{
    *p = (bt_prompts){ .fd = fd };
}

void bt_serve_prompts_done(bt_prompts *p)
{
    for (uint32_t i = 0; i < p->n; i++) {
        bt_text_tokens_done(&p->tokens[i]);
    }
    bt_free(p->bias);
    *p = (bt_prompts){ 0 };
}

static bool client_is_gone(void *prompts)
{
    return bt_serve_socket_is_gone(((const bt_prompts *)prompts)->fd);
}

static void set_failure(bt_problem *problem, bt_status status, const bt_error *err)
{
    if (status == BT_E_CANCELLED) {
        bt_serve_problem_set(problem, 499, NULL, "the client is gone");
    } else {
        bt_serve_problem_set_status(problem, status, err->text);
    }
}

/* What cannot fit whatever its tokens are is not tokenised: 10 MB take up to 26 s. */
static bool may_fit(const bt_serving *serving, size_t bytes, bt_problem *problem)
{
    const uint32_t n_ctx = bt_engine_options_of(serving->engine)->n_ctx;
    const size_t least = bytes / bt_text_tokenizer_piece_max(serving->tokenizer);
    if (least > n_ctx) {
        bt_serve_problem_set_context(problem, least < UINT32_MAX ? (uint32_t)least : UINT32_MAX,
                                     n_ctx, true);
    }
    return least <= n_ctx;
}

static size_t text_bytes(const json_t *value)
{
    size_t bytes = json_string_length(value);
    for (size_t i = 0; i < json_array_size(value); i++) {
        bytes += json_string_length(json_array_get(value, i));
    }
    return bytes;
}

/* ---- plain prompts ---- */

static bool encode_text(const bt_serving *serving, const json_t *value, const bt_encode_options *o,
                        bt_tokens *to, bt_problem *problem)
{
    bt_error err = { 0 };
    const bt_status status = bt_text_tokenizer_encode(serving->tokenizer, json_string_value(value),
                                                      json_string_length(value), o, to, &err);
    if (status != BT_OK) {
        set_failure(problem, status, &err);
    }
    return status == BT_OK;
}

static bool push_id(const bt_serving *serving, const json_t *value, const char *field,
                    bt_tokens *to, bt_problem *problem)
{
    int64_t id = -1;
    const uint32_t n_vocab = bt_text_tokenizer_count(serving->tokenizer);
    if (!bt_serve_json_whole(value, &id) || id < 0 || id >= (int64_t)n_vocab) {
        bt_serve_problem_set(problem, 400, field,
                             "Field '%s': token id %lld is not in the vocabulary of "
                             "%u tokens",
                             field, (long long)id, n_vocab);
        return false;
    }
    const bt_status status = bt_text_tokens_push(to, (uint32_t)id);
    if (status != BT_OK) {
        bt_serve_problem_set_status(problem, status, "");
    }
    return status == BT_OK;
}

bool bt_serve_prompt_encode(const bt_serving *serving, const json_t *value,
                            const bt_encode_options *o, const char *field, bt_tokens *to,
                            bt_problem *problem)
{
    if (json_is_string(value)) {
        return encode_text(serving, value, o, to, problem);
    }
    bt_encode_options piece = *o;
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *item = json_array_get(value, i);
        /* BOS belongs in front of everything, and only where text begins the prompt. */
        piece.add_special = o->add_special && i == 0;
        const bool ok = json_is_string(item) ? encode_text(serving, item, &piece, to, problem)
                                             : push_id(serving, item, field, to, problem);
        if (!ok) {
            return false;
        }
    }
    return true;
}

/* ---- chat ---- */

static bool render(const bt_serving *serving, const bt_body *body, size_t n_messages,
                   const bt_chat_options *options, bt_chat_prompt *ret_prompt, bt_error *err)
{
    return bt_text_chat_render(serving->chat, body->messages, n_messages, options, ret_prompt,
                               err) == BT_OK;
}

bool bt_serve_prompt_render(const bt_serving *serving, const bt_body *body,
                            bt_chat_prompt *ret_prompt, bt_problem *problem)
{
    if (!serving->chat) {
        bt_serve_problem_set(problem, 400, "messages", "this model cannot chat here: %s",
                             serving->chat_reason ? serving->chat_reason : "no chat template");
        return false;
    }
    const bt_chat_options options = { .add_generation_prompt = body->add_generation_prompt,
                                      .continue_final = body->continue_final };
    bt_error err = { 0 };
    if (!render(serving, body, body->n_messages, &options, ret_prompt, &err)) {
        bt_serve_problem_set_status(problem, err.status, err.text);
        return false;
    }
    return true;
}

/* The template may write BOS itself, and the tokenizer may add one: one is enough. */
static void drop_double_bos(const bt_tokenizer *tokenizer, bt_tokens *tokens)
{
    const uint32_t bos = bt_text_tokenizer_bos(tokenizer);
    if (bos != BT_TOKEN_NONE && tokens->count >= 2 && tokens->ids[0] == bos &&
        tokens->ids[1] == bos) {
        tokens->count--;
        memmove(tokens->ids, tokens->ids + 1, tokens->count * sizeof *tokens->ids);
    }
}

static bool encode_chat(const bt_serving *serving, const bt_chat_prompt *prompt, bt_tokens *to,
                        bt_error *err)
{
    const bt_status status = bt_text_tokenizer_encode_spans(serving->tokenizer, prompt->spans,
                                                            prompt->n_spans, true, to, err);
    drop_double_bos(serving->tokenizer, to);
    return status == BT_OK;
}

/* How many tokens the prompt shares with one of its first n_messages and nothing after them; 0
 * where the format does not render those alone. */
static uint32_t shared_tokens(const bt_serving *serving, const bt_body *body, size_t n_messages,
                              const bt_tokens *whole)
{
    const bt_chat_options options = { .add_generation_prompt = false };
    bt_chat_prompt prompt;
    bt_tokens part;
    bt_error err = { 0 };
    uint32_t n = 0;
    bt_text_chat_prompt_init(&prompt);
    bt_text_tokens_init(&part);
    if (n_messages > 0 && render(serving, body, n_messages, &options, &prompt, &err) &&
        encode_chat(serving, &prompt, &part, &err)) {
        while (n < part.count && n < whole->count && part.ids[n] == whole->ids[n]) {
            n++;
        }
    }
    bt_text_tokens_done(&part);
    bt_text_chat_prompt_done(&prompt);
    return n;
}

/* The chat is rendered and encoded up to twice more, which asks nothing of templates and
 * tokenizers and costs little: with SmolLM2's tokenizer 0.4 to 0.8 ms per 1,000 tokens (5.4 to
 * 7.5 ms for 9,500 tokens in 81 messages), beside 0.2 to 0.3 ms for the prompt itself and seconds
 * of prefill. */
static void find_borders(bt_prompts *p, const bt_body *body, const bt_serving *serving)
{
    const bt_tokens *whole = &p->tokens[0];
    if (bt_engine_state_bytes(serving->engine) == 0) {
        return;
    }
    for (size_t back = 2; back-- > 0;) {
        const size_t n_messages = body->n_messages > back ? body->n_messages - back : 0;
        const uint32_t n = shared_tokens(serving, body, n_messages, whole);
        const uint32_t last = p->n_borders > 0 ? p->borders[p->n_borders - 1] : 0;
        if (n > last && n < whole->count) {
            p->borders[p->n_borders++] = n;
        }
    }
}

static bool make_chat(bt_prompts *p, const bt_body *body, const bt_serving *serving,
                      bt_problem *problem)
{
    bt_chat_prompt prompt;
    bt_error err = { 0 };
    bt_text_chat_prompt_init(&prompt);
    bool ok = bt_serve_prompt_render(serving, body, &prompt, problem) &&
              may_fit(serving, prompt.text.size, problem);
    if (ok && !encode_chat(serving, &prompt, &p->tokens[0], &err)) {
        set_failure(problem, err.status, &err);
        ok = false;
    }
    bt_text_chat_prompt_done(&prompt);
    if (ok) {
        find_borders(p, body, serving);
    }
    return ok;
}

/* ---- biases ---- */

static bool push_bias(bt_prompts *p, size_t *capacity, uint32_t id, float bias, bt_problem *problem)
{
    if (p->n_bias == *capacity) {
        *capacity = *capacity ? *capacity * 2 : 16;
        bt_logit_bias *more = bt_realloc(BT_MEM_serve, p->bias, *capacity * sizeof *more);
        if (!more) {
            bt_serve_problem_set_status(problem, BT_E_NOMEM, "");
            return false;
        }
        p->bias = more;
    }
    p->bias[p->n_bias++] = (bt_logit_bias){ id, bias };
    return true;
}

static bool make_one_bias(bt_prompts *p, size_t *capacity, const bt_body_bias *from,
                          const bt_serving *serving, bt_problem *problem)
{
    const uint32_t n_vocab = bt_text_tokenizer_count(serving->tokenizer);
    if (!from->text) {
        if (from->id >= n_vocab) {
            bt_serve_problem_set(problem, 400, "logit_bias",
                                 "Field 'logit_bias': token id %u is not in the "
                                 "vocabulary of %u tokens",
                                 from->id, n_vocab);
            return false;
        }
        return push_bias(p, capacity, from->id, from->bias, problem);
    }
    bt_tokens ids;
    bt_error err = { 0 };
    bt_text_tokens_init(&ids);
    const bt_encode_options options = { 0 };
    const bt_status status = bt_text_tokenizer_encode(serving->tokenizer, from->text, from->size,
                                                      &options, &ids, &err);
    if (status != BT_OK) {
        bt_serve_problem_set_status(problem, status, err.text);
    } else if (p->n_bias + ids.count > BT_LOGIT_BIAS_MAX) {
        bt_serve_problem_set(problem, 400, "logit_bias", "Field 'logit_bias': more than %u tokens",
                             BT_LOGIT_BIAS_MAX);
    }
    for (size_t i = 0; i < ids.count && !bt_serve_problem_is(problem); i++) {
        push_bias(p, capacity, ids.ids[i], from->bias, problem);
    }
    bt_text_tokens_done(&ids);
    return !bt_serve_problem_is(problem);
}

/* ---- the whole ---- */

bool bt_serve_prompts_make(bt_prompts *p, const bt_body *body, const bt_serving *serving,
                           bt_problem *problem)
{
    const bt_encode_options options = { .add_special = true, .parse_special = true };
    const bool chat = body->n_messages > 0;
    const uint32_t n = chat ? 1 : body->n_prompts;
    for (uint32_t i = 0; i < n; i++) {
        bt_tokens *to = &p->tokens[p->n++];
        bt_text_tokens_init(to);
        to->stop = client_is_gone;
        to->stop_context = p;
        const bool ok = chat ? make_chat(p, body, serving, problem)
                             : may_fit(serving, text_bytes(body->prompts[i]), problem) &&
                               bt_serve_prompt_encode(serving, body->prompts[i], &options, "prompt",
                                                      to, problem);
        if (!ok) {
            return false;
        }
        if (to->count == 0) {
            bt_serve_problem_set(problem, 400, chat ? "messages" : "prompt",
                                 "the prompt is empty: this "
                                 "model starts no text by itself");
            return false;
        }
    }
    size_t capacity = 0;
    for (size_t i = 0; i < body->n_bias; i++) {
        if (!make_one_bias(p, &capacity, &body->bias[i], serving, problem)) {
            return false;
        }
    }
    return true;
}
