#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/limits.h"
#include "cli/run_private.h"

enum { POLL_MS = 50, PATIENCE_MS = 2000 };

void bt_run_answer_init(bt_run_answer *a)
{
    *a = (bt_run_answer){ .finish = BT_FINISH_NONE };
    bt_text_tokens_init(&a->tokens);
    bt_buf_init(&a->text, BT_MEM_cli, BT_RENDERED_BYTES_MAX);
}

void bt_run_answer_done(bt_run_answer *a)
{
    bt_text_tokens_done(&a->tokens);
    bt_buf_done(&a->text);
}

/* ---- interrupts ---- */

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

void bt_run_catch_interrupts(void)
{
    /* Without SA_RESTART, so that reading a line ends too. */
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

bool bt_run_take_interrupt(void)
{
    const bool was = interrupted != 0;
    interrupted = 0;
    return was;
}

/* ---- a request ---- */

static bt_request_options request_of(const bt_run_session *s, const bt_tokens *prompt,
                                     const bt_stop *stop)
{
    const bt_run_verb_options *o = s->o;
    bt_request_options r = bt_engine_request_defaults();
    r.tokens = prompt->ids;
    r.n_tokens = prompt->count < UINT32_MAX ? (uint32_t)prompt->count : UINT32_MAX;
    const int32_t n_predict = o->decode.answer.n_predict;
    r.n_predict = n_predict < 0 ? UINT32_MAX : (uint32_t)n_predict;
    r.ignore_eog = o->ignore_eos;
    r.special = o->special;
    r.sampling = s->decode.sampling;
    r.stops = stop;
    r.n_stops = stop->size > 0;
    return r;
}

/* A long prompt says how far it is, where somebody is looking. */
static void say_progress(const bt_event *event, size_t n_prompt, double since_ms, bool *said)
{
    if (bt_clock_ms() - since_ms > PATIENCE_MS && isatty(STDERR_FILENO)) {
        fprintf(stderr, "\rprompt: %u of %zu tokens ", event->n_done, n_prompt);
        *said = true;
    }
}

static void take_event(const bt_event *event, bool stream, bt_run_answer *a)
{
    if (event->kind == BT_EVENT_TOKEN && bt_text_tokens_push(&a->tokens, event->token) != BT_OK) {
        a->status = BT_E_NOMEM;
    }
    bt_buf_put(&a->text, event->text, event->text_size);
    if (stream && event->text_size > 0) {
        fwrite(event->text, 1, event->text_size, stdout);
        fflush(stdout);
    }
    if (event->kind == BT_EVENT_END) {
        a->finish = event->finish;
        a->status = a->status != BT_OK ? a->status : event->status;
        snprintf(a->message, sizeof a->message, "%s", event->message);
    }
}

static bt_status submit(const bt_run_session *s, const bt_tokens *prompt,
                        bt_handoff_request **ret_handoff, bt_request **ret_request, bt_error *err)
{
    const bt_stop stop = { s->o->stop, s->o->stop ? strlen(s->o->stop) : 0 };
    const bt_handoff_wish wish = { .policy = bt_decode_policy(&s->o->decode),
                                   .has_workers = s->decode.prefill != NULL };
    bt_request_options o = request_of(s, prompt, &stop);
    BT_TRY(bt_handoff_request_create(&wish, ret_handoff, err));
    o.tag = bt_handoff_request_tag(*ret_handoff);
    return bt_engine_submit(s->decode.runtime.engine, &o, ret_request, err);
}

bool bt_run_ask(bt_run_session *s, const bt_tokens *prompt, bool stream, bt_run_answer *a)
{
    const double start = bt_clock_ms();
    bt_error err = { 0 };
    bt_request *r = NULL;
    bt_handoff_request *handoff = NULL;
    bool said = false;
    a->status = submit(s, prompt, &handoff, &r, &err);
    if (a->status != BT_OK) {
        snprintf(a->message, sizeof a->message, "%s", err.text);
        bt_handoff_request_unref(handoff);
        return false;
    }
    a->seed = bt_engine_request_seed(r);
    bt_event event = { .kind = BT_EVENT_BEGIN };
    while (event.kind != BT_EVENT_END) {
        if (bt_run_take_interrupt()) {
            bt_engine_request_cancel(r);
        }
        if (bt_engine_request_wait(r, POLL_MS, &event) != BT_OK) {
            continue;
        }
        if (event.kind == BT_EVENT_PROGRESS) {
            say_progress(&event, prompt->count, start, &said);
        } else if (said) {
            fputs("\r                                        \r", stderr);
            said = false;
        }
        take_event(&event, stream, a);
    }
    bt_engine_request_stats_get(r, &a->stats);
    bt_handoff_request_report(handoff, &a->stats, &a->prefill);
    bt_handoff_request_unref(handoff);
    bt_engine_request_release(r);
    if (bt_buf_status(&a->text) != BT_OK) {
        a->status = bt_buf_status(&a->text);
    }
    return true;
}

void bt_run_say_speed(const bt_run_answer *a)
{
    const bt_request_stats *s = &a->stats;
    const bt_prefill_report *p = &a->prefill;
    const uint32_t n_new = s->n_prompt - s->n_cached;
    const uint32_t n_steps = s->n_predicted > 1 ? s->n_predicted - 1 : 0;
    fprintf(stderr, "[prompt: %u tokens, %u cached, %.0f tokens/s", s->n_prompt, s->n_cached,
            s->prompt_ms > 0 ? 1e3 * n_new / s->prompt_ms : 0.0);
    if (p->n_remote > 0) {
        fprintf(stderr, ", %u of them prefilled on %s, %.1f MB, %.0f ms of the transfer exposed",
                p->n_remote, p->worker, (double)p->bytes / 1e6, p->exposed_ms);
    } else if (p->fallback) {
        fprintf(stderr, ", prefilled here: %s", p->reason);
    }
    fprintf(stderr, "; answer: %u tokens, %.1f tokens/s]\n", s->n_predicted,
            s->predicted_ms > 0 ? 1e3 * n_steps / s->predicted_ms : 0.0);
}
