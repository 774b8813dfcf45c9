#include "serve/problem.h"

#include <stdarg.h>
#include <stdio.h>

/* The names that clients of this API know. */
static const char *type_of(int http)
{
    switch (http) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 501: return "not_supported_error";
    case 503: return "unavailable_error";
    default:  return http >= 500 ? "server_error" : "invalid_request_error";
    }
}

void bt_serve_problem_set(bt_problem *p, int http, const char *param, const char *format, ...)
{
    if (p->http) {
        return;
    }
    p->http = http;
    p->type = type_of(http);
    p->retry_after_s = http == 429 ? 1 : 0;
    snprintf(p->param, sizeof p->param, "%s", param ? param : "");
    va_list args;
    va_start(args, format);
    vsnprintf(p->message, sizeof p->message, format, args);
    va_end(args);
}

void bt_serve_problem_set_status(bt_problem *p, bt_status status, const char *sentence)
{
    /* 499 and 202 are for logs and the wire; to a client both mean "not now". */
    const int known = bt_status_http(status);
    const int http = known < 400 || known == 499 ? 503 : known;
    bt_serve_problem_set(p, http, NULL, "%s",
                         sentence && sentence[0] ? sentence : bt_status_text(status));
}

void bt_serve_problem_set_context(bt_problem *p, uint32_t n_prompt_tokens, uint32_t n_ctx,
                                  bool at_least)
{
    if (p->http) {
        return;
    }
    /* Both wordings: agents look for either to decide that the history must be shortened. */
    bt_serve_problem_set(p, 400, NULL,
                         "context_length_exceeded: the prompt has %s%u tokens and exceeds the "
                         "available context size of %u tokens (one is needed for the answer)",
                         at_least ? "at least " : "", n_prompt_tokens, n_ctx);
    p->type = "exceed_context_size_error";
    p->n_prompt_tokens = n_prompt_tokens;
    p->n_ctx = n_ctx;
}

void bt_serve_problem_set_prefill_too_long(bt_problem *p, const char *sentence)
{
    if (p->http) {
        return;
    }
    bt_serve_problem_set(p, 400, NULL, "prefill_too_long: %s", sentence);
    p->type = "prefill_too_long_error";
}

void bt_serve_problem_write(const bt_problem *p, bt_json_writer *w)
{
    bt_json_open(w, NULL, '{');
    bt_json_open(w, "error", '{');
    bt_json_integer(w, "code", p->http);
    bt_json_string(w, "message", p->message);
    bt_json_string(w, "type", p->type);
    bt_json_string(w, "param", p->param[0] ? p->param : NULL);
    if (p->n_ctx) {
        bt_json_natural(w, "n_prompt_tokens", p->n_prompt_tokens);
        bt_json_natural(w, "n_ctx", p->n_ctx);
    }
    bt_json_close(w, '}');
    bt_json_close(w, '}');
}
