/* baton logits - the logits of given tokens as JSON: what golden tests and twins compare.
 *
 *   {"n_vocab":N,"rows":[{"position":P,"logits":[...]}]}
 *
 * Numbers have nine digits, so that reading them back gives the same f32. A logit that is not
 * finite is null. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/memory.h"
#include "cli/runtime.h"
#include "cli/verbs.h"
#include "kv/pages.h"
#include "kv/states.h"

typedef struct {
    bt_machine_options machine;
    bt_cache_options   cache;
    const char        *tokens;
    bool               all;
    uint32_t           chunk;
} options;

#define AT(field) offsetof(options, field)

static const bt_option table[] = {
    { "--tokens", "LIST", NULL, BT_OPT_TEXT, AT(tokens), NULL,
      "token ids, separated by commas" },
    { "--all", NULL, NULL, BT_OPT_FLAG, AT(all), NULL,
      "logits after every token, not only after the last" },
    { "--chunk", "N", NULL, BT_OPT_U32, AT(chunk), "512",
      "tokens evaluated in one step; changes no bit of the result", 1, BT_STEP_ROWS_MAX },
    { 0 }
};

/* ---- tokens ---- */

static size_t count_of(const char *list)
{
    size_t n = 1;
    for (const char *c = list; *c; c++) {
        n += *c == ',';
    }
    return n;
}

/* Decimal numbers separated by single commas, blanks allowed around them. */
static bool parse_tokens(const char *list, uint32_t *to, size_t n)
{
    const char *at = list;
    for (size_t i = 0; i < n; i++) {
        char *end;
        at += strspn(at, " ");
        if (*at < '0' || *at > '9') {
            return false;
        }
        const unsigned long long v = strtoull(at, &end, 10);
        if (v > UINT32_MAX) {
            return false;
        }
        to[i] = (uint32_t)v;
        at = end + strspn(end, " ");
        if (*at != (i + 1 < n ? ',' : '\0')) {
            return false;
        }
        at++;
    }
    return true;
}

/* ---- one sequence through the model ---- */

typedef struct {
    const options *o;
    bt_runtime     runtime;
    bt_kv_pool    *pool;
    bt_state_pool *states;       /* NULL: the model keeps none */
    uint32_t       state_slot;
    bool           has_slot;
    uint32_t      *tokens, *positions, *row_sequence, *logit_rows;      /* [n] */
    uint32_t      *pages;
    uint32_t       n, n_pages, n_taken;
} job;

static bt_status open_pool(job *j, bt_error *err)
{
    const bt_model_config *c = bt_model_config_of(j->runtime.model);
    uint32_t k_dims[BT_LAYERS_MAX], v_dims[BT_LAYERS_MAX];
    for (uint32_t i = 0; i < c->n_layers; i++) {
        k_dims[i] = bt_model_k_dim(c, i);
        v_dims[i] = bt_model_v_dim(c, i);
    }
    j->n_pages = (j->n + BT_KV_PAGE_TOKENS - 1) / BT_KV_PAGE_TOKENS;
    const bt_kv_pool_options o = { .n_layers = c->n_layers, .k_dims = k_dims, .v_dims = v_dims,
                                   .type_k = bt_runtime_type_k(&j->o->cache),
                                   .type_v = bt_runtime_type_v(&j->o->cache),
                                   .n_pages = j->n_pages };
    BT_TRY(bt_kv_pool_create(j->runtime.device, &o, &j->pool, err));
    j->pages = bt_alloc_zero(BT_MEM_cli, j->n_pages, sizeof *j->pages);
    if (!j->pages) {
        return bt_fail_nomem(err, j->n_pages * sizeof *j->pages, "a list of pages");
    }
    while (j->n_taken < j->n_pages) {
        BT_TRY(bt_kv_page_take(j->pool, &j->pages[j->n_taken]));
        j->n_taken++;
    }
    return BT_OK;
}

static bt_status open_state(job *j, bt_error *err)
{
    const bt_model_config *c = bt_model_config_of(j->runtime.model);
    bt_state_layer layers[BT_LAYERS_MAX];
    if (!bt_model_has_state(c)) {
        return BT_OK;
    }
    for (uint32_t i = 0; i < c->n_layers; i++) {
        bt_model_state_layer(c, i, &layers[i]);
    }
    const bt_state_pool_options o = { .n_layers = c->n_layers, .layers = layers, .n_live = 1 };
    BT_TRY(bt_kv_state_pool_create(j->runtime.device, &o, &j->states, err));
    BT_TRY(bt_kv_state_take(j->states, &j->state_slot));
    j->has_slot = true;
    return BT_OK;
}

static void print_row(uint32_t position, const float *logits, uint32_t n_vocab, bool first)
{
    printf("%s{\"position\":%u,\"logits\":[", first ? "" : ",", position);
    for (uint32_t i = 0; i < n_vocab; i++) {
        if (isfinite(logits[i])) {
            printf("%s%.9g", i ? "," : "", (double)logits[i]);
        } else {
            printf("%snull", i ? "," : "");
        }
    }
    fputs("]}", stdout);
}

/* Rows [first, first + n); prints the logits that were asked for. */
static bt_status run_chunk(job *j, uint32_t first, uint32_t n, bt_error *err)
{
    const bt_tape *tape = bt_model_tape(j->runtime.model, false);
    const bool last = first + n == j->n;
    uint32_t n_logit_rows = 0;
    for (uint32_t r = j->o->all ? 0 : n - 1; r < n && (j->o->all || last); r++) {
        j->logit_rows[n_logit_rows++] = r;
    }
    const bt_step_sequence sequence = { .row_first = 0, .n_rows = n, .position = first,
                                        .pages = j->pages, .n_pages = j->n_pages,
                                        .state_slot = j->state_slot,
                                        .is_long = bt_model_is_long(
                                                bt_model_config_of(j->runtime.model), j->n) };
    const bt_step step = {
        .n_rows = n, .tokens = j->tokens + first, .positions = j->positions + first,
        .row_sequence = j->row_sequence, .n_sequences = 1, .sequences = &sequence,
        .n_logit_rows = n_logit_rows, .logit_rows = j->logit_rows,
        .kv = bt_kv_pool_layout(j->pool),
        .state = j->states ? bt_kv_state_pool_layout(j->states) : NULL
    };
    BT_TRY(bt_device_prepare(j->runtime.device, tape, n, n_logit_rows, err));
    BT_TRY(bt_device_run(j->runtime.device, tape, &step, err));
    if (n_logit_rows == 0) {
        return BT_OK;
    }
    uint64_t stride;
    const float *logits = bt_device_read_rows(j->runtime.device, bt_ops_tape_result(tape), &stride);
    const uint32_t n_vocab = bt_model_config_of(j->runtime.model)->n_vocab;
    for (uint32_t i = 0; i < n_logit_rows; i++) {
        const uint32_t position = first + j->logit_rows[i];
        print_row(position, logits + i * stride, n_vocab, j->o->all ? position == 0 : true);
    }
    return BT_OK;
}

static bt_status evaluate(job *j, bt_error *err)
{
    const uint32_t n_vocab = bt_model_config_of(j->runtime.model)->n_vocab;
    for (uint32_t i = 0; i < j->n; i++) {
        if (j->tokens[i] >= n_vocab) {
            return bt_fail(err, BT_E_BADINPUT, "token %u is %u, but the model has %u tokens", i,
                           j->tokens[i], n_vocab);
        }
        j->positions[i] = i;
    }
    BT_TRY(open_pool(j, err));
    BT_TRY(open_state(j, err));
    printf("{\"n_vocab\":%u,\"rows\":[", n_vocab);
    const uint32_t chunk = j->o->chunk < j->n ? j->o->chunk : j->n;
    for (uint32_t first = 0; first < j->n; first += chunk) {
        BT_TRY(run_chunk(j, first, j->n - first < chunk ? j->n - first : chunk, err));
    }
    puts("]}");
    return BT_OK;
}

static void release(job *j)
{
    for (uint32_t i = 0; i < j->n_taken; i++) {
        bt_kv_page_unref(j->pool, j->pages[i]);
    }
    if (j->has_slot) {
        bt_kv_state_give(j->states, j->state_slot);
    }
    bt_kv_state_pool_destroy(j->states);
    bt_kv_pool_destroy(j->pool);
    bt_runtime_close(&j->runtime);
    bt_free(j->tokens);
    bt_free(j->pages);
}

static int run(const void *given, int n_rest, char **rest)
{
    const options *o = given;
    job j = { .o = o };
    bt_error err = { 0 };
    if (n_rest > 0) {
        return bt_cli_usage_error("'%s': baton logits takes options only", rest[0]);
    }
    if (!o->tokens || count_of(o->tokens) > BT_CONTEXT_MAX) {
        return bt_cli_usage_error("--tokens LIST is needed, with at most %u ids", BT_CONTEXT_MAX);
    }
    j.n = (uint32_t)count_of(o->tokens);
    j.tokens = bt_alloc_zero(BT_MEM_cli, 4 * (size_t)j.n, sizeof *j.tokens);
    if (!j.tokens) {
        return bt_cli_say_error("out of memory for %u tokens", j.n);
    }
    j.positions = j.tokens + j.n;
    j.row_sequence = j.positions + j.n;
    j.logit_rows = j.row_sequence + j.n;
    if (!parse_tokens(o->tokens, j.tokens, j.n)) {
        bt_free(j.tokens);
        return bt_cli_usage_error("--tokens must be whole numbers separated by commas");
    }
    if (!bt_runtime_open(&o->machine, false, &j.runtime)) {
        bt_free(j.tokens);
        return 1;
    }
    const bt_status status = evaluate(&j, &err);
    release(&j);
    return status == BT_OK ? 0 : bt_cli_say_error("%s", err.text);
}

static const bt_option_group groups[] = {
    { "Logits", table, 0 },
    { "Logits", bt_cache_table, AT(cache) },
    { "Model", bt_model_table, AT(machine) },
    { "Machine", bt_machine_table, AT(machine) },
    { "Diagnosis", bt_diagnosis_table, AT(machine) },
    { 0 }
};

const bt_verb bt_verb_logits = {
    .name = "logits",
    .summary = "logits of given tokens, as JSON",
    .usage = "baton logits -m FILE --tokens LIST [options]",
    .example = "baton logits -m model.gguf --tokens 1,2,3 --all",
    .options_size = sizeof(options),
    .groups = groups,
    .run = run,
};
