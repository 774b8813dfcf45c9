/* Completions: one body, its prompts, its run, and the answer as a whole or as events.
 *
 * A stream's headers are held back until something has been generated, or until HOLD_MS have
 * passed: a failure before that is an ordinary HTTP error, one after it an event in the stream.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/sync.h"
#include "serve/api.h"
#include "serve/http.h"

enum { HOLD_MS = 2000, BLOCK_BYTES = 16384 };

typedef struct {
    const bt_api  *api;
    bt_server     *server;
    bt_connection *connection;
    bt_body        body;
    bt_prompts     prompts;
    bt_run        *run;
    bt_answer_head head;
    /* streams */
    bt_buf         out;                /* events not sent yet, from `sent` on */
    size_t         sent;
    uint64_t       wrote_ns;           /* when something last went into `out` */
    bool           done, broken;
    uint8_t        begun[(BT_PARALLEL_MAX * BT_PROMPTS_MAX + 7) / 8];
} completion;

static void log_answer(const completion *c)
{
    for (uint32_t i = 0; c->run && bt_log_wants(BT_LOG_DEBUG) && i < bt_serve_run_count(c->run);
         i++) {
        const bt_choice *choice = bt_serve_run_choice(c->run, i);
        const bt_request_stats *s = &choice->stats;
        bt_log(BT_LOG_DEBUG, "answer",
               "id=%s index=%u cache_n=%u prompt_n=%u predicted_n=%u queue_ms=%.1f "
               "prompt_ms=%.1f predicted_ms=%.1f place=%s bytes=%" PRIu64 " finish=%s",
               c->head.id, i, s->n_cached, s->n_prompt - s->n_cached, s->n_predicted, s->queue_ms,
               s->prompt_ms, s->predicted_ms, bt_handoff_place_name(choice->prefill.place),
               choice->prefill.bytes, bt_engine_finish_name(choice->finish));
    }
}

static void close_completion(void *context)
{
    completion *c = context;
    if (!c) {
        return;
    }
    log_answer(c);
    bt_serve_run_close(c->run);
    bt_serve_prompts_done(&c->prompts);
    bt_serve_body_done(&c->body);
    bt_buf_done(&c->out);
    bt_free(c);
}

static bt_body_defaults defaults_of(const bt_exchange *x)
{
    const bt_server_options *o = &x->server->o;
    return (bt_body_defaults){
        .sampling = x->serving->sampling ? *x->serving->sampling : o->sampling,
        .n_predict = o->n_predict,
        .ping_interval_s = o->ping_interval_s,
        .n_parallel = bt_engine_options_of(x->serving->engine)->n_parallel,
        .policy = o->policy,
    };
}

static completion *open_completion(bt_exchange *x, const bt_api *api, bt_problem *problem)
{
    completion *c = bt_alloc_zero(BT_MEM_serve, 1, sizeof *c);
    if (!c) {
        bt_serve_problem_set_status(problem, BT_E_NOMEM, "");
        return NULL;
    }
    c->api = api;
    c->server = x->server;
    c->connection = x->connection;
    bt_serve_body_init(&c->body);
    bt_serve_prompts_init(&c->prompts, x->connection->fd);
    bt_buf_init(&c->out, BT_MEM_serve, BT_RENDERED_BYTES_MAX);
    const bt_body_defaults defaults = defaults_of(x);
    if (bt_serve_body_parse(&c->body, api, bt_buf_text(&x->body), x->body.size, &defaults,
                            problem) &&
        bt_serve_prompts_make(&c->prompts, &c->body, x->serving, problem)) {
        const bt_run_options options = {
            .serving = x->serving, .body = &c->body, .prompts = &c->prompts,
            .metrics = &x->server->metrics, .queue_wait_s = x->server->o.queue_wait_s,
            .stopping = &x->server->cancelling, .stop_fd = bt_waker_fd(&x->server->stop),
            .fd = x->connection->fd, .keep = !c->body.stream, .tenant = x->key_number,
        };
        c->run = bt_serve_run_open(&options, problem);
    }
    if (!c->run) {
        close_completion(c);
        return NULL;
    }
    bt_serve_answer_head_init(&c->head, c->run);
    return c;
}

/* The first problem of a choice; false if none has any. */
static bool find_problem(const completion *c, bt_problem *ret_problem)
{
    for (uint32_t i = 0; i < bt_serve_run_count(c->run); i++) {
        if (bt_serve_problem_is(&bt_serve_run_choice(c->run, i)->problem)) {
            *ret_problem = bt_serve_run_choice(c->run, i)->problem;
            return true;
        }
    }
    return false;
}

static void set_closing(bt_problem *problem)
{
    bt_serve_problem_set(problem, 503, NULL, "the server is shutting down");
}

/* ---- whole ---- */

static enum MHD_Result answer_whole(bt_exchange *x, completion *c)
{
    bt_problem problem = { 0 };
    while (!bt_serve_run_ended(c->run)) {
        bt_choice *choice;
        bt_event event;
        const bt_status status = bt_serve_run_next(c->run, BT_NEVER_NS, &choice,
                                                   &event);
        if (status == BT_E_CANCELLED) {
            x->code = 499;                   /* nobody reads it; for log and metrics */
            return MHD_NO;
        }
        if (status == BT_E_CLOSED) {
            set_closing(&problem);
            return bt_serve_exchange_fail(x, &problem);
        }
    }
    if (find_problem(c, &problem)) {
        return bt_serve_exchange_fail(x, &problem);
    }
    bt_buf out;
    bt_json_writer w;
    bt_buf_init(&out, BT_MEM_serve, 2 * (size_t)BT_RENDERED_BYTES_MAX);
    bt_json_writer_init(&w, &out);
    c->api->whole(&c->head, c->run, &w);
    return bt_serve_exchange_answer(x, 200, "application/json; charset=utf-8", &out);
}

/* ---- events ---- */

static void put_begin(completion *c, uint32_t index)
{
    const uint8_t bit = (uint8_t)(1u << (index % 8));
    if (!(c->begun[index / 8] & bit)) {
        c->begun[index / 8] |= bit;
        c->api->begin(&c->head, index, &c->out);
    }
}

static void put_end(completion *c, const bt_choice *choice, const bt_event *event)
{
    const bool last = bt_serve_run_ended(c->run);
    c->api->end(&c->head, c->run, choice, event, last, &c->out);
    if (last) {
        c->api->finish(&c->head, c->run, &c->out);
        c->done = true;
    }
}

/* false: the run has failed and *problem says why; nothing was written for this event. */
static bool put(completion *c, const bt_choice *choice, const bt_event *event, bt_problem *problem)
{
    if (event->kind == BT_EVENT_END && find_problem(c, problem)) {
        return false;
    }
    const size_t before = c->out.size;
    if (event->kind == BT_EVENT_TOKEN) {
        put_begin(c, choice->index);
        c->api->token(&c->head, choice, event, &c->out);
    } else if (event->kind == BT_EVENT_END) {
        put_begin(c, choice->index);
        put_end(c, choice, event);
    } else if (c->body.return_progress) {
        put_begin(c, choice->index);
        c->api->progress(&c->head, choice, event, &c->out);
    }
    if (c->out.size > before) {
        c->wrote_ns = bt_clock_ns();
    }
    return true;
}

/* Waits until the deadline for one event and writes it. false: over, with a problem. */
static bool advance(completion *c, uint64_t deadline_ns, bt_problem *problem)
{
    bt_choice *choice;
    bt_event event;
    const bt_status status = bt_serve_run_next(c->run, deadline_ns, &choice, &event);
    if (status == BT_OK) {
        return put(c, choice, &event, problem);
    }
    if (status == BT_E_CANCELLED) {
        c->broken = true;
        bt_serve_problem_set(problem, 499, NULL, "the client is gone");
        return false;
    }
    if (status == BT_E_CLOSED) {
        set_closing(problem);
        return false;
    }
    /* A choice that could not be submitted ends without an event. */
    return !(bt_serve_run_ended(c->run) && find_problem(c, problem));
}

static void put_ping(completion *c)
{
    bt_buf_puts(&c->out, ":\n\n");
    c->wrote_ns = bt_clock_ns();
}

/* Fills `out` with at least one event or a ping. */
static void fill(completion *c)
{
    const uint64_t interval_ns = c->body.ping_interval_s > 0
            ? (uint64_t)c->body.ping_interval_s * 1000 * BT_NS_PER_MS : BT_NEVER_NS;
    bt_buf_clear(&c->out);
    c->sent = 0;
    while (c->out.size == 0 && !c->done && !c->broken) {
        const uint64_t due = interval_ns == BT_NEVER_NS ? BT_NEVER_NS : c->wrote_ns + interval_ns;
        bt_problem problem = { 0 };
        if (bt_clock_ns() >= due) {
            put_ping(c);
        } else if (!advance(c, due, &problem) && !c->broken) {
            c->api->problem(&problem, &c->out);
            c->done = true;
        }
    }
}

static ssize_t read_stream(void *context, uint64_t position, char *to, size_t capacity)
{
    completion *c = context;
    (void)position;
    if (c->sent == c->out.size) {
        if (c->done) {
            return MHD_CONTENT_READER_END_OF_STREAM;
        }
        bt_connections *all = &c->server->connections;
        bt_serve_connections_enter(all, c->connection, BT_CONNECTION_WORKING, 0);
        fill(c);
        bt_serve_connections_enter(all, c->connection, BT_CONNECTION_SENDING, c->out.size);
    }
    if (c->broken || bt_buf_status(&c->out) != BT_OK) {
        return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    const size_t left = c->out.size - c->sent;
    const size_t n = left < capacity ? left : capacity;
    memcpy(to, c->out.data + c->sent, n);
    c->sent += n;
    return (ssize_t)n;
}

/* Until the first event that counts: false when the answer is an HTTP error after all. */
static bool hold_headers(completion *c, bt_problem *problem)
{
    const uint64_t until = bt_clock_ns() + HOLD_MS * (uint64_t)BT_NS_PER_MS;
    while (c->out.size == 0 && !c->done) {
        if (bt_clock_ns() >= until) {
            /* Queued or in a long prefill: the headers and a sign of life go out now. */
            put_begin(c, 0);
            put_ping(c);
            return true;
        }
        if (!advance(c, until, problem)) {
            return false;
        }
    }
    return true;
}

static enum MHD_Result answer_stream(bt_exchange *x, completion *c)
{
    bt_problem problem = { 0 };
    c->wrote_ns = bt_clock_ns();
    if (!hold_headers(c, &problem)) {
        const bool broken = c->broken;
        close_completion(c);
        x->code = 499;
        return broken ? MHD_NO : bt_serve_exchange_fail(x, &problem);
    }
    struct MHD_Response *response = MHD_create_response_from_callback(
            MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_stream, c, close_completion);
    if (!response) {
        close_completion(c);
        return MHD_NO;
    }
    return bt_serve_exchange_stream(x, response);
}

enum MHD_Result bt_serve_complete_run(bt_exchange *x, const bt_api *api)
{
    bt_problem problem = { 0 };
    completion *c = open_completion(x, api, &problem);
    if (!c) {
        return bt_serve_exchange_fail(x, &problem);
    }
    if (c->body.stream) {
        return answer_stream(x, c);
    }
    const enum MHD_Result result = answer_whole(x, c);
    close_completion(c);
    return result;
}
