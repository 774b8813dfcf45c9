/* baton inspect FILE - what is in a model file, and the memory that a context needs.
 *
 * Whatever a file holds may be printed to a terminal: control characters, directions and invalid
 * UTF-8 come out as escapes. Only the header is read, so a file of any size takes a moment.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "cli/inspect_private.h"
#include "cli/verbs.h"
#include "kv/states.h"
#include "model/model.h"

#define AT(field) offsetof(bt_inspect_options, field)

static const bt_option file_table[] = {
    { "-m, --model", "FILE", "MODEL", BT_OPT_TEXT, AT(model), NULL,
      "the model file, if it is not named as a word" },
    { "-c, --ctx-size", "N", NULL, BT_OPT_U32, AT(n_ctx), "0",
      "tokens to compute the memory for; 0: the training context", 0, BT_CONTEXT_MAX },
    { 0 },
};

static const bt_option output_table[] = {
    { "--json", NULL, NULL, BT_OPT_FLAG, AT(json), NULL, "one JSON object in place of text",
      .negatable = true },
    { "--all", NULL, NULL, BT_OPT_FLAG, AT(all), NULL,
      "all elements of arrays, and long strings whole", .negatable = true },
    { 0 },
};

static const bt_option_group groups[] = {
    { "File", file_table, 0 },
    { "File", bt_snapshot_table + 1, AT(snapshot) },   /* --snapshot-bytes */
    { "Output", output_table, 0 },
    { 0 }
};

/* ---- sums ---- */

static void add(bt_inspect_total *t, const bt_gguf_tensor *tensor)
{
    t->n_tensors++;
    t->n_values += tensor->n_elems;
    t->size_bytes += tensor->size_bytes;
}

static void sum_up(const bt_gguf *file, bt_inspect_totals *ret)
{
    *ret = (bt_inspect_totals){ 0 };
    for (uint32_t i = 0; i < bt_gguf_tensor_count(file); i++) {
        const bt_gguf_tensor *t = bt_gguf_tensor_at(file, i);
        add(&ret->of_type[t->type->id], t);
        add(&ret->all, t);
    }
}

static void find_needs(const bt_gguf *file, const bt_inspect_options *o, bt_inspect_needs *ret)
{
    static bt_model_config c;          /* large; the program has one thread here */
    static bt_state_layer layers[BT_LAYERS_MAX];
    *ret = (bt_inspect_needs){ 0 };
    if (bt_model_config_read(file, &c, &ret->why) != BT_OK) {
        return;
    }
    ret->known = true;
    ret->n_ctx_train = c.n_ctx_train;
    ret->n_ctx = o->n_ctx ? o->n_ctx : c.n_ctx_train;
    ret->token_bytes = bt_model_kv_token_bytes(&c, BT_TYPE_F16, BT_TYPE_F16);
    ret->kv_bytes = ret->token_bytes * ret->n_ctx;
    ret->state_bytes = bt_model_state_bytes(&c);
    for (uint32_t i = 0; i < c.n_layers; i++) {
        bt_model_state_layer(&c, i, &layers[i]);
    }
    ret->snapshot_bytes = bt_kv_state_slot_bytes(layers, c.n_layers);
    ret->snapshot_limit = o->snapshot.bytes;
    ret->n_snapshots = ret->snapshot_bytes ? o->snapshot.bytes / ret->snapshot_bytes : 0;
    ret->n_snapshots = ret->n_snapshots < BT_SNAPSHOTS_MAX ? ret->n_snapshots : BT_SNAPSHOTS_MAX;
    ret->n_params_active = c.n_params_active;
    ret->n_layers = c.n_layers;
    ret->n_blocks_behind = c.n_blocks_behind;
    ret->n_experts = c.n_experts;
    ret->n_experts_used = c.n_experts_used;
    for (uint32_t i = 0; i < c.n_layers; i++) {
        ret->n_recurrent += c.recurrent[i];
    }
}

/* ---- the verb ---- */

static int inspect(const bt_gguf *file, const bt_inspect_options *o)
{
    bt_inspect_totals sums;
    bt_inspect_needs memory;
    bt_inspect_sampling sample = { 0 };
    sum_up(file, &sums);
    find_needs(file, o, &memory);
    sample.known = bt_sample_hints_read(file, &sample.hints, &sample.why) == BT_OK;
    (o->json ? bt_inspect_json : bt_inspect_text)(file, o, &sums, &memory, &sample);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        return bt_cli_say_error("standard output cannot be written: %s", strerror(errno));
    }
    return 0;
}

static int run(const void *given, int n_rest, char **rest)
{
    const bt_inspect_options *o = given;
    if (n_rest > 1) {
        return bt_cli_usage_error("'%s' is one file too many", rest[1]);
    }
    const char *path = n_rest == 1 ? rest[0] : o->model;
    if (!path) {
        return bt_cli_usage_error("FILE is missing");
    }
    bt_gguf *file;
    bt_error err;
    if (bt_gguf_open(path, &file, &err) != BT_OK) {
        return bt_cli_say_error("%s", err.text);
    }
    const int code = inspect(file, o);
    bt_gguf_close(file);
    return code;
}

const bt_verb bt_verb_inspect = {
    .name = "inspect",
    .summary = "what is in a model file, and the memory that a context needs",
    .usage = "baton inspect FILE [options]",
    .example = "baton inspect model.gguf -c 32768",
    .options_size = sizeof(bt_inspect_options),
    .groups = groups,
    .run = run,
};
