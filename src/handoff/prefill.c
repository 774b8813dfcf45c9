/* handoff/prefill.c - see prefill.h; life of the server's side. */
#include "handoff/prefill.h"

#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "handoff/identity.h"
#include "handoff/job_state.h"
#include "handoff/prefill_private.h"
#include "base/say.h"
#include "link/key.h"
#include "link/sync.h"

/* ---- the clerk: ends tickets that no worker has, joins threads of workers that have left ---- */

static void *clerk_main(void *context)
{
    bt_prefill *p = context;
    (void)pthread_mutex_lock(&p->lock);
    while (!p->stopping || p->refused) {
        bt_handoff_job *j = p->refused;
        if (!j) {
            if (!bt_handoff_workers_join_one(p)) {
                (void)pthread_cond_wait(&p->wake, &p->lock);
            }
            continue;
        }
        p->refused = j->next;
        (void)pthread_mutex_unlock(&p->lock);
        bt_handoff_job_give_back(p, j, j->first, j->send_status);
        bt_handoff_job_destroy(j);
        (void)pthread_mutex_lock(&p->lock);
    }
    (void)pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---- life ---- */

/* How rows travel. */
static bt_status set_form(bt_prefill *p, bt_error *err)
{
    BT_TRY(bt_kv_codec_form_init(&p->form, bt_engine_kv_layout(p->engine), p->options.codec,
                                      err));
    const size_t row = bt_kv_codec_layer_bytes_max(&p->form);
    if (row == 0 || bt_wire_rows_fit(row) == 0) {
        return bt_fail(err, BT_E_UNSUPPORTED,
                       "a K and V row of this model takes %zu bytes: no frame can carry it", row);
    }
    p->token_bytes = bt_kv_codec_token_bytes(&p->form);
    return BT_OK;
}

static bt_status copy_options(bt_prefill *p, const bt_prefill_options *o, bt_error *err)
{
    p->options = *o;
    p->numerics = bt_strdup(BT_MEM_handoff, o->numerics ? o->numerics : "");
    p->key_file = o->link.key_file ? bt_strdup(BT_MEM_handoff, o->link.key_file) : NULL;
    p->peers = bt_alloc_zero(BT_MEM_handoff, BT_WORKERS_MAX, sizeof *p->peers);
    p->options.addresses = NULL;       /* it may change */
    if (!p->numerics || !p->peers || (o->link.key_file && !p->key_file)) {
        return bt_fail(err, BT_E_NOMEM, "no memory for the list of workers");
    }
    p->options.link.key_file = p->key_file;
    p->options.link.cancel = &p->stop_waker;
    return bt_waker_open(&p->stop_waker, err);
}

/* The clerk first, who is needed where a later thread cannot be had. */
static bt_status start_threads(bt_prefill *p, const bt_prefill_options *o, bt_error *err)
{
    if (!bt_link_thread_start(&p->clerk, clerk_main, p)) {
        return bt_fail(err, BT_E_NOMEM, "the system gives no thread");
    }
    p->clerk_runs = true;
    BT_TRY(bt_handoff_client_set_workers(p, o->addresses, err));
    (void)pthread_mutex_lock(&p->lock);
    const bool none = bt_handoff_workers_count(p) == 0;
    (void)pthread_mutex_unlock(&p->lock);
    return none && !o->addresses_change
            ? bt_fail(err, BT_E_BADINPUT, "no worker in '%s'", o->addresses) : BT_OK;
}

/* It is read again at each connection; what is wrong with it now is better said now. */
static bt_status check_key(const bt_prefill_options *o, bt_error *err)
{
    bt_link_key key;
    if (!o->link.key_file) {
        return BT_OK;
    }
    BT_TRY(bt_link_key_load(o->link.key_file, &key, err));
    bt_link_key_forget(&key);
    return BT_OK;
}

bt_status bt_handoff_client_open(const bt_prefill_options *o, bt_engine *engine,
                                 bt_prefill **ret_prefill, bt_error *err)
{
    BT_ASSERT(o->addresses != NULL);
    bt_prefill *p = bt_alloc_zero(BT_MEM_handoff, 1, sizeof *p);
    uint64_t session = 0;
    if (!p) {
        return bt_fail(err, BT_E_NOMEM, "no memory for the list of workers");
    }
    (void)pthread_mutex_init(&p->lock, NULL);
    bt_link_cond_init(&p->wake);
    p->stop_waker = (bt_waker){-1, -1};
    p->engine = engine;
    p->last_remote = true;

    bt_status s = copy_options(p, o, err);
    s = s == BT_OK ? check_key(o, err) : s;
    s = s == BT_OK ? set_form(p, err) : s;
    if (s == BT_OK && o->trace_file) {
        s = bt_timeline_open(o->trace_file, "server", &p->trace, err);
    }
    s = s == BT_OK ? bt_handoff_states_layer_bytes(engine, &p->state_bytes, err) : s;
    if (s == BT_OK && bt_random_u64(&session) != BT_OK) {
        s = bt_fail(err, BT_E_IO, "the system gives no random numbers");
    }
    if (s == BT_OK) {
        p->hello = bt_handoff_hello(engine, session, p->numerics);
        s = start_threads(p, o, err);
    }
    if (s != BT_OK) {
        bt_handoff_client_close(p);
        return s;
    }
    const bt_external external = bt_handoff_external(p);
    bt_engine_set_external(engine, &external);
    *ret_prefill = p;
    return BT_OK;
}

void bt_handoff_client_stop(bt_prefill *p)
{
    if (!p) {
        return;
    }
    (void)pthread_mutex_lock(&p->lock);
    p->stopping = true;
    if (p->options.link.cancel) {
        bt_waker_wake(&p->stop_waker);
    }
    for (uint32_t i = 0; p->peers && i < BT_WORKERS_MAX; i++) {
        if (p->peers[i].link) {
            bt_link_close(p->peers[i].link, "the server is shutting down");
        }
    }
    (void)pthread_cond_broadcast(&p->wake);
    (void)pthread_mutex_unlock(&p->lock);
    if (p->clerk_runs) {                /* from then on nobody else joins workers */
        (void)pthread_join(p->clerk, NULL);
        p->clerk_runs = false;
    }
    for (uint32_t i = 0; p->peers && i < BT_WORKERS_MAX; i++) {
        if (p->peers[i].thread_runs) {
            (void)pthread_join(p->peers[i].thread, NULL);
            p->peers[i].thread_runs = false;
        }
    }
}

void bt_handoff_client_close(bt_prefill *p)
{
    if (!p) {
        return;
    }
    bt_handoff_client_stop(p);
    (void)pthread_cond_destroy(&p->wake);
    (void)pthread_mutex_destroy(&p->lock);
    for (uint32_t i = 0; p->peers && i < BT_WORKERS_MAX; i++) {
        bt_kv_codec_scratch_close(&p->peers[i].room);
    }
    bt_waker_close(&p->stop_waker);
    bt_timeline_close(p->trace);
    bt_free(p->state_bytes);
    bt_free(p->peers);
    bt_free(p->numerics);
    bt_free(p->key_file);
    bt_free(p);
}
