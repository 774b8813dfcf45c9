/* An engine without a model, for tests of the HTTP side: it answers from a clock.
 *
 * Token ids are bytes; 256 begins a text, 257 ends one. A request's answer is fake.answer, one
 * token per byte: BEGIN after queue_ms, the first token prompt_ms later, the next ones gap_ms
 * apart. What the engine door promises about text (whole characters, no stop string) is kept.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/sync.h"
#include "serve/server.h"
#include "base/json.h"

static struct {
    const char *answer;
    uint32_t    queue_ms, prompt_ms, gap_ms;
    uint32_t    n_ctx, n_parallel, queue_max;
    bt_status   fail_status;           /* END with this error instead of ... */
    uint32_t    fail_after;            /* ... this token */
    atomic_bool encode_blocks;         /* until the client leaves */
    atomic_uint n_encoded, n_stopped;
    atomic_uint n_alive, n_submitted, n_cancelled;
} fake;

/* Guards all requests; its thread calls on_event when an event is due. */
static pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t  fake_change;
static bt_request     *fake_requests;

struct bt_request {
    bt_request *next;
    bool     woken;                    /* on_event was called for the event that is due */
    bt_request_options o;
    double   submitted, begun;
    uint32_t n_emitted, n_total;
    size_t   text_end;                 /* of the answer, before a stop string */
    bool     told_begin, cancelled, ended;
    bt_finish finish;
    int      stop_index;
    bt_token_logprob top[2];
};

static void fake_reset(void)
{
    fake.answer = "Hello, w\xC3\xB6rld! \xF0\x9F\x98\x80 END";
    fake.queue_ms = fake.prompt_ms = fake.gap_ms = 0;
    fake.n_ctx = 256;
    fake.n_parallel = 4;
    fake.queue_max = 64;
    fake.fail_status = BT_OK;
    fake.fail_after = 0;
    fake.encode_blocks = false;
    fake.n_encoded = fake.n_stopped = fake.n_submitted = 0;
}

/* ---- engine ---- */

static _Thread_local bt_engine_options fake_options;

const bt_engine_options *bt_engine_options_of(const bt_engine *e)
{
    (void)e;
    fake_options.n_ctx = fake.n_ctx;
    fake_options.n_parallel = fake.n_parallel;
    return &fake_options;
}

void bt_engine_stats_get(const bt_engine *e, bt_engine_stats *s)
{
    (void)e;
    *s = (bt_engine_stats){ .n_parallel = fake.n_parallel, .n_running = fake.n_alive,
                            .n_requests = fake.n_submitted, .prompt_seconds = 1.5 };
}

bt_request_options bt_engine_request_defaults(void)
{
    return (bt_request_options){ .n_predict = UINT32_MAX };
}

static void plan(bt_request *r)
{
    const size_t size = strlen(fake.answer);
    const uint32_t room = fake.n_ctx - r->o.n_tokens;
    r->finish = BT_FINISH_EOG;
    r->n_total = (uint32_t)size;
    r->text_end = size;
    if (r->o.n_predict < r->n_total || room < r->n_total) {
        r->finish = r->o.n_predict <= room ? BT_FINISH_LENGTH : BT_FINISH_CONTEXT;
        r->n_total = r->o.n_predict <= room ? r->o.n_predict : room;
        r->text_end = r->n_total;
    }
    for (uint32_t i = 0; i < r->o.n_stops; i++) {
        const char *at = memmem(fake.answer, r->text_end, r->o.stops[i].text, r->o.stops[i].size);
        if (at) {
            r->finish = BT_FINISH_STOP;
            r->stop_index = (int)i;
            r->text_end = (size_t)(at - fake.answer);
            r->n_total = (uint32_t)(r->text_end + r->o.stops[i].size);
        }
    }
}

/* As the code that places prompts would. */
static void report(bt_handoff_request *handoff)
{
    bt_prefill_report p = { .bytes = 4096, .worker = "spark:7070", .reason = "the worker is faster",
                            .forecast = { .made = true, .n_tokens = 500, .local_ms = 900,
                                          .n_workers = 1 } };
    p.fallback = bt_handoff_request_wish(handoff).where == BT_WHERE_REMOTE;
    p.forecast.workers[0] = (bt_forecast_worker){ .worker = "spark:7070", .ms = 300 };
    bt_handoff_request_begin(handoff, 1);
    bt_handoff_request_end(handoff, 1, &p);
}

static double due_ms(const bt_request *r)
{
    return r->cancelled    ? 0
           : !r->told_begin ? r->begun
                            : r->begun + fake.prompt_ms + (double)r->n_emitted * fake.gap_ms;
}

static void *fake_run(void *context)
{
    (void)context;
    pthread_mutex_lock(&fake_lock);
    for (;;) {
        double next = 1e300;
        for (bt_request *r = fake_requests; r; r = r->next) {
            if (!r->woken && due_ms(r) <= bt_clock_ms()) {
                r->woken = true;
                r->o.on_event.fn(r->o.on_event.context);
            } else if (!r->woken && due_ms(r) < next) {
                next = due_ms(r);
            }
        }
        const uint64_t until = next < 1e300 ? (uint64_t)(next * 1e6) + 1 : UINT64_MAX;
        bt_cond_wait_until(&fake_change, &fake_lock, until);
    }
    return NULL;
}

static void fake_add(bt_request *r)
{
    static bool started;
    pthread_mutex_lock(&fake_lock);
    if (!started) {
        started = true;
        bt_cond_init(&fake_change);
        assert_int_equal(bt_thread_start(NULL, fake_run, NULL, "fake", NULL), BT_OK);
    }
    r->next = fake_requests;
    fake_requests = r;
    pthread_cond_signal(&fake_change);
    pthread_mutex_unlock(&fake_lock);
}

bt_status bt_engine_submit(bt_engine *e, const bt_request_options *o, bt_request **ret,
                           bt_error *err)
{
    (void)e;
    if (o->n_tokens + 1 > fake.n_ctx) {
        return bt_fail(err, BT_E_CONTEXT, "%u tokens, %u fit", o->n_tokens, fake.n_ctx);
    }
    if (fake.n_alive >= fake.n_parallel + fake.queue_max) {
        return bt_fail(err, BT_E_FULL, "the queue is full");
    }
    bt_request *r = calloc(1, sizeof *r);
    r->o = *o;
    r->stop_index = -1;
    r->submitted = bt_clock_ms();
    r->begun = r->submitted + fake.queue_ms;
    plan(r);
    report(o->tag.data);
    fake.n_alive++;
    fake.n_submitted++;
    fake_add(r);
    *ret = r;
    return BT_OK;
}

/* The text that token i releases: a character comes out with its last byte. */
static void release(const bt_request *r, uint32_t i, bt_event *e)
{
    const char *a = fake.answer;
    size_t first = i;
    if (i >= r->text_end || ((unsigned char)a[i + 1] & 0xC0) == 0x80) {
        return;
    }
    while (first > 0 && ((unsigned char)a[first] & 0xC0) == 0x80) {
        first--;
    }
    e->text = a + first;
    e->text_size = i + 1 - first;
}

static bt_status next_event(bt_request *r, bt_event *e)
{
    const double now = bt_clock_ms();
    *e = (bt_event){ .text = "", .message = "", .stop_index = -1 };
    if (r->cancelled) {
        *e = (bt_event){ .kind = BT_EVENT_END, .text = "", .message = "", .stop_index = -1,
                         .finish = BT_FINISH_CANCELLED };
        return BT_OK;
    }
    if (!r->told_begin && now >= r->begun) {
        r->told_begin = true;
        e->kind = BT_EVENT_BEGIN;
        return BT_OK;
    }
    if (r->told_begin && now >= due_ms(r)) {
        if (fake.fail_status != BT_OK && r->n_emitted == fake.fail_after) {
            r->ended = true;
            e->kind = BT_EVENT_END;
            e->finish = BT_FINISH_ERROR;
            e->status = fake.fail_status;
            e->message = "the fake engine failed";
            return BT_OK;
        }
        if (r->n_emitted < r->n_total) {
            e->kind = BT_EVENT_TOKEN;
            e->token = (unsigned char)fake.answer[r->n_emitted];
            e->logprob = -0.5f;
            r->top[0] = (bt_token_logprob){ e->token, -0.5f };
            r->top[1] = (bt_token_logprob){ 257, -1.0f / 0.0f };
            e->top = r->top;
            e->n_top = r->o.n_logprobs < 2 ? r->o.n_logprobs : 2;
            release(r, r->n_emitted++, e);
            return BT_OK;
        }
        r->ended = true;
        e->kind = BT_EVENT_END;
        e->finish = r->finish;
        e->stop_index = r->stop_index;
        /* A cut character comes out at the end, replaced. */
        size_t whole = r->text_end;
        while (whole > 0 && ((unsigned char)fake.answer[whole] & 0xC0) == 0x80) {
            whole--;
        }
        if (whole < r->text_end) {
            e->text = "\xEF\xBF\xBD";
            e->text_size = 3;
        }
        return BT_OK;
    }
    return BT_E_AGAIN;
}

bt_status bt_engine_request_wait(bt_request *r, uint32_t timeout_ms, bt_event *e)
{
    assert_int_equal(timeout_ms, 0);           /* serve/ waits for on_event */
    pthread_mutex_lock(&fake_lock);
    const bt_status status = next_event(r, e);
    r->woken = false;
    pthread_cond_signal(&fake_change);
    pthread_mutex_unlock(&fake_lock);
    return status;
}

void bt_engine_request_cancel(bt_request *r)
{
    pthread_mutex_lock(&fake_lock);
    r->cancelled = true;
    pthread_cond_signal(&fake_change);
    pthread_mutex_unlock(&fake_lock);
}

void bt_engine_request_release(bt_request *r)
{
    if (r) {
        pthread_mutex_lock(&fake_lock);
        bt_request **at = &fake_requests;
        while (*at != r) {
            at = &(*at)->next;
        }
        *at = r->next;
        pthread_mutex_unlock(&fake_lock);
        fake.n_cancelled += !r->ended;
        fake.n_alive--;
        free(r);
    }
}

void bt_engine_request_stats_get(const bt_request *r, bt_request_stats *s)
{
    *s = (bt_request_stats){.n_prompt = r->o.n_tokens,
                            .n_cached = 1,
                            .n_predicted = r->n_emitted,
                            .prompt_ms = 2,
                            .predicted_ms = r->n_emitted > 1 ? r->n_emitted - 1 : 0,
                            .first_token_ms = 3};
    s->n_external = r->o.n_tokens;
}

uint64_t bt_engine_request_id(const bt_request *r) { return (uint64_t)(uintptr_t)r; }
uint32_t bt_engine_request_seed(const bt_request *r) { return r->o.sampling.seed; }

/* ---- workers ---- */

BT_METRIC_DEFINE(bt_handoff_client_metrics, bt_prefill_status, "baton_prefill",
                 BT_PREFILL_STATUS_LIST)
BT_METRIC_DEFINE(bt_handoff_client_worker_metrics, bt_prefill_worker_status, "baton_worker",
                 BT_PREFILL_WORKER_STATUS_LIST)

void bt_handoff_client_status_get(const bt_prefill *p, bt_prefill_status *s)
{
    (void)p;
    *s = (bt_prefill_status){ .n_workers = 1, .n_ready = 1, .n_prompts = 7, .n_fallbacks = 3 };
}

bool bt_handoff_client_worker_status_get(const bt_prefill *p, uint32_t index,
                                         bt_prefill_worker_status *s)
{
    (void)p;
    *s = (bt_prefill_worker_status){ .address = "spark\":7070", .phase = BT_PREFILL_READY,
                                     .up = true, .state = "ready", .n_prompts = 7,
                                     .n_fallbacks = 3 };
    return index == 0;
}

uint32_t bt_handoff_client_decisions_get(const bt_prefill *p,
                                         bt_prefill_decision d[BT_PREFILL_DECISIONS_MAX])
{
    (void)p;
    d[0] = (bt_prefill_decision){ .n_tokens = 500, .worker = "spark:7070", .reason = "faster",
                                  .local_ms = 900, .remote_ms = 300 };
    d[1] = (bt_prefill_decision){ .n_tokens = 5, .reason = "short" };
    return 2;
}

const char *bt_handoff_client_outcome_name(bt_prefill_outcome o) { return o ? "?" : "here"; }

const char *bt_handoff_client_state_name(bt_prefill_state s)
{
    return s == BT_PREFILL_READY ? "ready" : "?";
}

/* ---- tokens and chat ---- */

bt_sampler_options bt_sample_defaults(void)
{
    return (bt_sampler_options){ .seed = BT_SEED_RANDOM, .temperature = 0.8f, .top_k = 40,
                                 .top_p = 0.95f, .min_p = 0.05f, .penalty_last_n = 64,
                                 .penalty_repeat = 1 };
}

void bt_text_tokens_init(bt_tokens *t) { *t = (bt_tokens){ 0 }; }
void bt_text_tokens_done(bt_tokens *t) { free(t->ids); bt_text_tokens_init(t); }
bt_status bt_text_tokens_push(bt_tokens *t, uint32_t id)
{
    if (t->count == t->capacity) {
        t->capacity = t->capacity * 2 + 16;
        t->ids = realloc(t->ids, t->capacity * sizeof *t->ids);
    }
    t->ids[t->count++] = id;
    return BT_OK;
}

bt_status bt_text_tokenizer_encode(const bt_tokenizer *t, const char *text, size_t size,
                                   const bt_encode_options *o, bt_tokens *to, bt_error *err)
{
    (void)t;
    if (o->add_special) {
        BT_TRY(bt_text_tokens_push(to, 256));
    }
    for (size_t i = 0; i < size; i++) {
        fake.n_encoded++;
        while (fake.encode_blocks && to->stop && !to->stop(to->stop_context)) {
            bt_clock_sleep_ms(1);              /* until the client leaves */
        }
        if (fake.encode_blocks) {
            fake.n_stopped++;
            return bt_fail(err, BT_E_CANCELLED, "stopped");
        }
        if (o->parse_special && size - i >= 3 && memcmp(text + i, "<e>", 3) == 0) {
            BT_TRY(bt_text_tokens_push(to, 257));
            i += 2;
        } else {
            BT_TRY(bt_text_tokens_push(to, (unsigned char)text[i]));
        }
    }
    return BT_OK;
}

bt_status bt_text_tokenizer_encode_spans(const bt_tokenizer *t, const bt_text_span *spans, size_t n,
                                         bool add_special, bt_tokens *to, bt_error *err)
{
    bt_encode_options o = { .add_special = add_special };
    for (size_t i = 0; i < n; i++) {
        o.parse_special = !spans[i].from_user;
        BT_TRY(bt_text_tokenizer_encode(t, spans[i].text, spans[i].size, &o, to, err));
        o.add_special = false;
    }
    return BT_OK;
}

const char *bt_text_tokenizer_piece(const bt_tokenizer *t, uint32_t id, bool special,
                                    size_t *ret_size)
{
    static char bytes[256];
    (void)t;
    if (id >= 256) {
        *ret_size = special ? 3 : 0;
        return !special ? "" : id == 256 ? "<b>" : "<e>";
    }
    bytes[id] = (char)id;
    *ret_size = 1;
    return &bytes[id];
}

void bt_text_tokenizer_decode(const bt_tokenizer *t, const uint32_t *ids, size_t n, bool special,
                              bt_buf *to)
{
    for (size_t i = 0; i < n; i++) {
        size_t size;
        const char *piece = bt_text_tokenizer_piece(t, ids[i], special, &size);
        bt_buf_put(to, piece, size);
    }
}

size_t bt_text_tokenizer_piece_max(const bt_tokenizer *t) { (void)t; return 3; }
uint32_t bt_text_tokenizer_count(const bt_tokenizer *t) { (void)t; return 258; }
uint32_t bt_text_tokenizer_bos(const bt_tokenizer *t) { (void)t; return 256; }
uint32_t bt_text_tokenizer_eos(const bt_tokenizer *t) { (void)t; return 257; }

void bt_text_chat_prompt_init(bt_chat_prompt *p)
{
    memset(p, 0, sizeof *p);
    bt_buf_init(&p->text, BT_MEM_test, 1 << 20);
}
void bt_text_chat_prompt_done(bt_chat_prompt *p)
{
    bt_buf_done(&p->text);
    free(p->spans);
}

/* "role:content<e>" per message. */
bt_status bt_text_chat_render(const bt_chat_format *f, const bt_chat_message *messages, size_t n,
                              const bt_chat_options *o, bt_chat_prompt *to, bt_error *err)
{
    (void)f, (void)o;
    to->spans = calloc(3 * n, sizeof *to->spans);
    for (size_t i = 0; i < n; i++) {
        if (strcmp(messages[i].role, "tool") == 0) {
            return bt_fail(err, BT_E_BADINPUT, "message %zu: no tools", i);
        }
        bt_buf_printf(&to->text, "%s:", messages[i].role);
        bt_buf_put(&to->text, messages[i].content ? messages[i].content : "",
                   messages[i].content_size);
        bt_buf_puts(&to->text, "<e>");
    }
    const char *at = bt_buf_text(&to->text);
    for (size_t i = 0; i < n; i++) {
        const size_t sizes[] = { strlen(messages[i].role) + 1, messages[i].content_size, 3 };
        for (size_t k = 0; k < 3; k++) {
            to->spans[to->n_spans++] = (bt_text_span){ at, sizes[k], k == 1 };
            at += sizes[k];
        }
    }
    return BT_OK;
}

const char *bt_text_chat_format_source(const bt_chat_format *f)
{
    (void)f;
    return "{{ template }}";
}
const char *bt_text_chat_format_name(const bt_chat_format *f) { (void)f; return "fake"; }

/* What a server is given; the pointers are never followed. */
static bt_serving fake_serving(void)
{
    static bt_model_config config;
    static char thing[4];
    config.n_vocab = 258;
    config.n_layers = 1;
    strcpy(config.architecture, "fake");
    return (bt_serving){ .engine = (bt_engine *)&thing[0], .prefill = (bt_prefill *)&thing[1],
                         .tokenizer = (const bt_tokenizer *)&thing[2],
                         .chat = (const bt_chat_format *)&thing[3], .config = &config,
                         .alias = "fake-model", .model_path = "/dev/null", .file_type = "Q4_0" };
}
