/* One thread owns the device, the pages and all sequences. A round of its loop takes the mail
 * (mail.c), settles what changed, admits, plans one step and runs it; without anything to run it
 * sleeps until there is mail. */
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/sync.h"
#include "engine/private.h"
#include "engine/state.h"

static void *engine_main(void *context)
{
    bt_engine *e = context;
    while (bt_engine_mail_take(e)) {
        bt_engine_sequences_settle(e);
        bt_engine_sequences_reap(e);
        bt_engine_sequences_admit(e);
        const bool any = bt_engine_schedule(e);
        if (any) {
            bt_engine_step_run(e);
        }
        bt_engine_stats_publish(e);
        if (!any) {
            bt_engine_mail_wait(e);
        }
    }
    bt_engine_sequences_close(e);
    bt_engine_stats_publish(e);
    return NULL;
}

/* ---- create ---- */

static bt_status check_options(const bt_engine_options *o, bt_error *err)
{
    const struct { const char *name; uint32_t value, least, most; } ranges[] = {
        { "parallel sequences", o->n_parallel, 1, BT_PARALLEL_MAX },
        { "context size", o->n_ctx, 2, BT_CONTEXT_MAX },
        { "batch size", o->n_batch, 1, BT_STEP_ROWS_MAX },
        { "prefill chunk", o->n_prefill_chunk, 1, UINT32_MAX },
    };
    for (size_t i = 0; i < BT_LEN(ranges); i++) {
        if (ranges[i].value < ranges[i].least || ranges[i].value > ranges[i].most) {
            return bt_fail(err, BT_E_BADINPUT, "the %s is %u; it must be %u to %u", ranges[i].name,
                           ranges[i].value, ranges[i].least, ranges[i].most);
        }
    }
    if (o->n_batch < o->n_parallel) {
        return bt_fail(err, BT_E_BADINPUT, "a batch of %u rows cannot decode %u sequences in one "
                       "step; use a batch of at least %u", o->n_batch, o->n_parallel,
                       o->n_parallel);
    }
    return BT_OK;
}

static bt_status create_pool(bt_engine *e, bt_error *err)
{
    const bt_model_config *config = bt_model_config_of(e->options.model);
    uint32_t k_dims[BT_LAYERS_MAX], v_dims[BT_LAYERS_MAX];
    for (uint32_t i = 0; i < config->n_layers; i++) {
        k_dims[i] = bt_model_k_dim(config, i);
        v_dims[i] = bt_model_v_dim(config, i);
    }
    /* One page more per sequence than the positions need: its last page may be part empty. */
    const uint32_t n_pages = (e->options.n_ctx + BT_KV_PAGE_TOKENS - 1) / BT_KV_PAGE_TOKENS +
                             e->options.n_parallel;
    const bt_kv_pool_options o = {
        .n_layers = config->n_layers, .k_dims = k_dims, .v_dims = v_dims,
        .type_k = e->options.type_k, .type_v = e->options.type_v, .n_pages = n_pages,
    };
    BT_TRY(bt_kv_pool_create(e->options.device, &o, &e->memory.pages, err));
    BT_TRY(bt_kv_prefix_create(e->memory.pages, n_pages, &e->memory.prefixes, err));
    return bt_engine_states_create(e, err);
}

static bt_status find_eog(bt_engine *e, bt_error *err)
{
    const bt_tokenizer *t = e->options.tokenizer;
    const uint32_t n = t ? bt_text_tokenizer_count(t) : 0;
    for (uint32_t pass = 0; pass < 2; pass++) {
        size_t count = 0;
        for (uint32_t id = 0; id < n && id < e->n_vocab; id++) {
            if (bt_text_tokenizer_is_eog(t, id)) {
                if (pass == 1) {
                    e->eog[count] = id;
                }
                count++;
            }
        }
        if (pass == 0) {
            e->n_eog = count;
            e->eog = bt_alloc_zero(BT_MEM_engine, count, sizeof *e->eog);
            if (!e->eog) {
                return bt_fail_nomem(err, count * sizeof *e->eog, "the list of end tokens");
            }
        }
    }
    return BT_OK;
}

static bt_status create_tables(bt_engine *e, bt_error *err)
{
    const size_t n_batch = e->options.n_batch, n = e->options.n_parallel;
    bt_plan *p = &e->plan;
    p->tokens = bt_alloc_zero(BT_MEM_engine, n_batch, sizeof *p->tokens);
    p->positions = bt_alloc_zero(BT_MEM_engine, n_batch, sizeof *p->positions);
    p->row_sequence = bt_alloc_zero(BT_MEM_engine, n_batch, sizeof *p->row_sequence);
    p->logit_rows = bt_alloc_zero(BT_MEM_engine, n, sizeof *p->logit_rows);
    p->sequences = bt_alloc_zero(BT_MEM_engine, n, sizeof *p->sequences);
    p->parts = bt_alloc_zero(BT_MEM_engine, n, sizeof *p->parts);
    e->active = bt_alloc_zero(BT_MEM_engine, n, sizeof *e->active);
    e->tickets = bt_alloc_zero(BT_MEM_engine, n, sizeof *e->tickets);
    const bool all = p->tokens && p->positions && p->row_sequence && p->logit_rows &&
                     p->sequences && p->parts && e->active && e->tickets;
    const size_t size = (n_batch + n) * sizeof *p->parts;
    return all ? BT_OK : bt_fail_nomem(err, size, "the tables of steps");
}

static void release(bt_engine *e)
{
    bt_kv_prefix_destroy(e->memory.prefixes);
    bt_kv_pool_destroy(e->memory.pages);
    bt_kv_state_pool_destroy(e->memory.states);
    bt_plan *p = &e->plan;
    bt_free(p->tokens);
    bt_free(p->positions);
    bt_free(p->row_sequence);
    bt_free(p->logit_rows);
    bt_free(p->sequences);
    bt_free(p->parts);
    bt_free(e->active);
    bt_free(e->tickets);
    bt_free(e->eog);
}

static void init_locks(bt_engine *e)
{
    pthread_mutex_init(&e->mail_lock, NULL);
    pthread_cond_init(&e->mail, NULL);
    pthread_mutex_init(&e->import_lock, NULL);
    pthread_cond_init(&e->writers_left, NULL);
    pthread_mutex_init(&e->stats_lock, NULL);
    atomic_init(&e->refs, 1);
    atomic_init(&e->next_id, 0);
    e->inbox_end = &e->inbox;
    e->n_free = e->options.n_parallel;
}

static bt_status build(bt_engine *e, bt_error *err)
{
    const bt_engine_options *o = &e->options;
    e->n_vocab = bt_model_config_of(o->model)->n_vocab;
    e->piece_max = o->tokenizer ? bt_text_tokenizer_piece_max(o->tokenizer) : 0;
    e->tape = bt_model_tape(o->model, o->push);
    BT_TRY(create_tables(e, err));
    BT_TRY(find_eog(e, err));
    BT_TRY(create_pool(e, err));
    BT_TRY(bt_device_prepare(o->device, e->tape, o->n_batch, o->n_parallel, err));
    bt_engine_stats_publish(e);
    return bt_thread_start(&e->thread, engine_main, e, "baton-engine", err);
}

bt_status bt_engine_create(const bt_engine_options *o, bt_engine **ret_engine, bt_error *err)
{
    BT_ASSERT(o->model);
    BT_ASSERT(o->device);
    BT_TRY(check_options(o, err));
    bt_engine *e = bt_alloc_zero(BT_MEM_engine, 1, sizeof *e);
    if (!e) {
        return bt_fail_nomem(err, sizeof *e, "an engine");
    }
    e->options = *o;
    if (e->options.n_prefill_chunk > o->n_batch) {
        e->options.n_prefill_chunk = o->n_batch;
    }
    if (e->options.snapshot_every == 0) {
        e->options.snapshot_every = 1024;
    }
    if (e->options.decode_gap_ms == 0) {
        e->options.decode_gap_ms = 50;
    }
    init_locks(e);
    const bt_status status = build(e, err);
    if (status != BT_OK) {
        release(e);
        bt_engine_unref(e);
        return status;
    }
    *ret_engine = e;
    return BT_OK;
}

void bt_engine_destroy(bt_engine *e)
{
    if (!e) {
        return;
    }
    bt_engine_mail_close(e);
    pthread_join(e->thread, NULL);
    release(e);
    bt_engine_unref(e);
}

void bt_engine_set_external(bt_engine *e, const bt_external *external)
{
    e->external = *external;
}

const bt_engine_options *bt_engine_options_of(const bt_engine *e)
{
    return &e->options;
}

const bt_kv_layout *bt_engine_kv_layout(const bt_engine *e)
{
    return bt_kv_pool_layout(e->memory.pages);
}
