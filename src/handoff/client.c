/* handoff/client.c - see client.h: open, stop, close. */
#include "handoff/client.h"

#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "base/random.h"
#include "handoff/identity.h"
#include "handoff/client_private.h"
#include "base/say.h"
#include "link/key.h"

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
    p->options.link.cancel = NULL;
    p->numerics = bt_strdup(BT_MEM_handoff, o->numerics ? o->numerics : "");
    p->key_file = o->link.key_file ? bt_strdup(BT_MEM_handoff, o->link.key_file) : NULL;
    p->workers = bt_alloc_zero(BT_MEM_handoff, BT_WORKERS_MAX, sizeof *p->workers);
    p->options.addresses = NULL;       /* it may change */
    if (!p->numerics || !p->workers || (o->link.key_file && !p->key_file)) {
        return bt_fail_nomem(err, BT_WORKERS_MAX * sizeof *p->workers, "the list of workers");
    }
    p->options.link.key_file = p->key_file;
    BT_TRY(bt_waker_open(&p->stop_waker, err));
    p->options.link.cancel = &p->stop_waker;
    return BT_OK;
}

static bt_status start_workers(bt_prefill *p, const bt_prefill_options *o, bt_error *err)
{
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
        return bt_fail_nomem(err, sizeof *p, "the list of workers");
    }
    (void)pthread_mutex_init(&p->lock, NULL);
    bt_cond_init(&p->wake);
    p->stop_waker = (bt_waker){ -1, -1 };
    p->engine = engine;
    p->last_remote = true;

    bt_status s = copy_options(p, o, err);
    s = s == BT_OK ? check_key(o, err) : s;
    s = s == BT_OK ? set_form(p, err) : s;
    if (s == BT_OK && o->trace_file) {
        s = bt_timeline_open(o->trace_file, "server", &p->timeline, err);
    }
    s = s == BT_OK ? bt_handoff_states_layer_bytes(engine, &p->state_bytes, err) : s;
    if (s == BT_OK && bt_random_u64(&session) != BT_OK) {
        s = bt_fail(err, BT_E_IO, "the system gives no random numbers");
    }
    if (s == BT_OK) {
        p->hello = bt_handoff_hello(engine, session, p->numerics);
        s = start_workers(p, o, err);
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
    (void)pthread_mutex_unlock(&p->lock);
    if (p->options.link.cancel) {      /* it got so far that there may be workers */
        bt_waker_wake(&p->stop_waker);
        bt_handoff_workers_stop(p);
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
    bt_waker_close(&p->stop_waker);
    bt_timeline_close(p->timeline);
    bt_free(p->state_bytes);
    bt_free(p->workers);
    bt_free(p->numerics);
    bt_free(p->key_file);
    bt_free(p);
}
