/* serve/run.h - the engine requests that answer one HTTP request.
 *
 * One per prompt and choice. The first choice of a prompt goes alone until it has a token, so that
 * the others find its prefix in the cache and the prompt is evaluated once.
 *
 * Lifetime: open to close; close cancels what still runs. Borrows the body, the prompts, the
 *           serving struct.
 * Threads:  owned by the connection's thread.
 * Failure:  open fails with a problem (context too small, queue full); later failures of one choice
 *           are in its `problem`.
 */
#ifndef BT_SERVE_RUN_H
#define BT_SERVE_RUN_H

#include <stdatomic.h>

#include "handoff/report.h"
#include "serve/body.h"
#include "serve/metrics.h"
#include "serve/prompt.h"
#include "serve/server.h"

typedef struct bt_run bt_run;

/* Probabilities of one token; tops lie in bt_choice.tops. */
typedef struct {
    uint32_t id;
    float    logprob;
    size_t   top_first;
    uint32_t n_top;
} bt_choice_logprob;

typedef struct {
    uint32_t      index, prompt;       /* index over all: prompt * n + choice */
    bt_request   *request;             /* NULL: not submitted yet */
    bool          begun, has_token, ended;
    bt_finish     finish;
    int           stop_index;
    bt_problem    problem;             /* why it ended without an answer */
    bt_request_stats stats;            /* after END; before it: bt_serve_choice_stats */
    bt_handoff_request *handoff;       /* goes with `request` */
    bt_prefill_report prefill;         /* after END */
    uint32_t      seed;
    uint32_t      n_tokens;            /* seen so far */
    double        begun_ms, first_token_ms, last_token_ms;
    size_t        token_offset, next_offset;   /* in characters: of the last token, after it */
    bool          has_newline;
    bt_histogram  gaps;
    /* What was answered, kept unless the answer is streamed. */
    bt_buf        text;
    bt_tokens     tokens;
    bt_choice_logprob *logprobs;
    size_t        n_logprobs, logprobs_capacity;
    bt_token_logprob  *tops;
    size_t        n_tops, tops_capacity;
} bt_choice;

typedef struct {
    const bt_serving   *serving;
    const bt_body      *body;
    const bt_prompts   *prompts;
    bt_serve_metrics   *metrics;
    uint32_t            queue_wait_s;  /* of bt_server_options */
    const atomic_bool  *stopping;      /* the server cancels what is in flight ... */
    int                 stop_fd;       /* ... and this is readable from then on; -1: none */
    int                 fd;            /* the client's socket, watched; -1: none */
    bool                keep;          /* collect text, tokens and probabilities */
    uint32_t            tenant;        /* requests of different ones share nothing that is cached */
} bt_run_options;

/* NULL and a problem. */
bt_run *bt_serve_run_open(const bt_run_options *o, bt_problem *problem);
void bt_serve_run_close(bt_run *r);                              /* NULL is fine */

/* Waits for the next event of any choice. BT_E_AGAIN: the deadline, or nothing is running;
 * BT_E_CANCELLED: the client is gone, everything is cancelled; BT_E_CLOSED: the server stops. */
BT_MUST_CHECK bt_status bt_serve_run_next(bt_run *r, uint64_t deadline_ns, bt_choice **ret_choice,
                                          bt_event *ret_event);
bool       bt_serve_run_ended(const bt_run *r);                  /* all choices have */
uint32_t   bt_serve_run_count(const bt_run *r);
bt_choice *bt_serve_run_choice(bt_run *r, uint32_t index);
const bt_run_options *bt_serve_run_options_of(const bt_run *r);
/* What is known so far. */
bt_request_stats bt_serve_choice_stats(const bt_choice *c);

#endif
