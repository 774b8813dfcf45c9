/* serve/problem.h - what is wrong with a request, as HTTP tells it.
 *
 * Sticky: the first thing found stays, later ones are dropped. So a parser may read all its fields
 * and ask once, at the end.
 */
#ifndef BT_SERVE_PROBLEM_H
#define BT_SERVE_PROBLEM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/json.h"

typedef struct {
    int         http;                      /* 0: nothing is wrong */
    const char *type;                      /* static */
    char        param[96];                 /* the field, "" if none */
    char        message[BT_ERROR_TEXT_MAX + 160];
    uint32_t    n_prompt_tokens, n_ctx;    /* with exceed_context_size_error */
    uint32_t    retry_after_s;             /* 0: no header */
    const char *allow;                     /* static, with 405: the Allow header */
} bt_problem;

static inline bool bt_serve_problem_is(const bt_problem *p) { return p->http != 0; }

/* `param` may be NULL. */
void bt_serve_problem_set(bt_problem *p, int http, const char *param, const char *format, ...)
        __attribute__((format(printf, 4, 5)));
/* From a failed call of another room. */
void bt_serve_problem_set_status(bt_problem *p, bt_status status, const char *sentence);
/* `at_least`: the prompt was not counted to its end. */
void bt_serve_problem_set_context(bt_problem *p, uint32_t n_prompt_tokens, uint32_t n_ctx,
                                  bool at_least);
/* Policy `fail`, and the prompt is longer than any worker takes: so it would be each time. */
void bt_serve_problem_set_prefill_too_long(bt_problem *p, const char *sentence);
/* {"error": {...}}. */
void bt_serve_problem_write(const bt_problem *p, bt_json_writer *w);

#endif
