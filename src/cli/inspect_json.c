/* `baton inspect --json`; docs/cli.md has the shape. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/inspect_private.h"

static void json_pairs(const bt_gguf *file, const bt_inspect_options *o)
{
    fputs(",\"metadata\":{", stdout);
    for (uint32_t i = 0; i < bt_gguf_pair_count(file); i++) {
        const bt_gguf_pair *pair = bt_gguf_pair_at(file, i);
        const bool array = pair->type == BT_GGUF_ARRAY;
        fputs(i ? "," : "", stdout);
        bt_inspect_print_string(pair->key, SIZE_MAX, true);
        printf(":{\"type\":\"%s\"", bt_gguf_value_type_name(pair->type));
        if (array) {
            printf(",\"element\":\"%s\",\"count\":%" PRIu64 ",\"first\":[",
                   bt_gguf_value_type_name(pair->element), pair->count);
        } else {
            fputs(",\"value\":", stdout);
        }
        bt_inspect_print_values(pair, o);
        fputs(array ? "]}" : "}", stdout);
    }
    putchar('}');
}

static void json_tensors(const bt_gguf *file)
{
    fputs(",\"tensors\":[", stdout);
    for (uint32_t i = 0; i < bt_gguf_tensor_count(file); i++) {
        const bt_gguf_tensor *t = bt_gguf_tensor_at(file, i);
        fputs(i ? ",{\"name\":" : "{\"name\":", stdout);
        bt_inspect_print_string(bt_inspect_string(t->name), SIZE_MAX, true);
        printf(",\"type\":\"%s\",\"shape\":[", t->type->name);
        for (uint32_t d = 0; d < t->n_dims; d++) {
            printf("%s%" PRIu64, d ? "," : "", t->ne[d]);
        }
        printf("],\"bytes\":%" PRIu64 ",\"part\":%" PRIu32 ",\"offset\":%" PRIu64 "}",
               t->size_bytes, t->part, t->offset);
    }
    putchar(']');
}

static void json_total(const bt_inspect_total *t)
{
    printf("\"tensors\":%" PRIu32 ",\"values\":%" PRIu64 ",\"bytes\":%" PRIu64 "}", t->n_tensors,
           t->n_values, t->size_bytes);
}

static void json_needs(const bt_inspect_needs *n, const bt_inspect_totals *t)
{
    if (n->known) {
        printf(",\"memory\":{\"context\":%" PRIu32 ",\"context_trained\":%" PRIu32
               ",\"weights_bytes\":%" PRIu64 ",\"kv_type\":\"f16\",\"kv_token_bytes\":%" PRIu64
               ",\"kv_bytes\":%" PRIu64 ",\"state_bytes\":%" PRIu64 ",\"snapshot_each_bytes\":%"
               PRIu64 ",\"snapshot_limit_bytes\":%" PRIu64 ",\"snapshots\":%" PRIu64
               ",\"snapshot_bytes\":%" PRIu64 ",\"total_bytes\":%" PRIu64 "}", n->n_ctx,
               n->n_ctx_train, t->all.size_bytes, n->token_bytes, n->kv_bytes, n->state_bytes,
               n->snapshot_bytes, n->snapshot_limit, n->n_snapshots,
               n->n_snapshots * n->snapshot_bytes, bt_inspect_bytes_together(n, t));
        printf(",\"layers\":{\"count\":%" PRIu32 ",\"recurrent\":%" PRIu32 ",\"behind\":%" PRIu32
               ",\"experts\":%" PRIu32 ",\"experts_used\":%" PRIu32 "}", n->n_layers,
               n->n_recurrent, n->n_blocks_behind, n->n_experts, n->n_experts_used);
        printf(",\"parameters\":{\"all\":%" PRIu64 ",\"active\":%" PRIu64 "}", t->all.n_values,
               n->n_params_active);
    } else {
        fputs(",\"memory\":null,\"memory_unknown\":", stdout);
        bt_inspect_print_string(bt_inspect_string(n->why.text), SIZE_MAX, true);
    }
}

static void json_sampling(const bt_inspect_sampling *s)
{
    const bt_sampler_options *o = &s->hints.options;
    if (!s->known) {
        fputs(",\"sampling\":null,\"sampling_unknown\":", stdout);
        bt_inspect_print_string(bt_inspect_string(s->why.text), SIZE_MAX, true);
        return;
    }
    printf(",\"sampling\":{\"from_file\":%" PRIu32 ",\"temperature\":%g,\"top_k\":%" PRId32
           ",\"top_p\":%g,\"min_p\":%g,\"repeat_penalty\":%g,\"repeat_last_n\":%" PRId32
           ",\"unsupported\":", s->hints.n_hints, (double)o->temperature, o->top_k,
           (double)o->top_p, (double)o->min_p, (double)o->penalty_repeat, o->penalty_last_n);
    bt_inspect_print_string(bt_inspect_string(s->hints.unsupported), SIZE_MAX, true);
    putchar('}');
}

void bt_inspect_json(const bt_gguf *file, const bt_inspect_options *o, const bt_inspect_totals *t,
                     const bt_inspect_needs *n, const bt_inspect_sampling *s)
{
    fputs("{\"path\":", stdout);
    bt_inspect_print_string(bt_inspect_string(bt_gguf_path(file)), SIZE_MAX, true);
    printf(",\"version\":%" PRIu32 ",\"alignment\":%" PRIu32 ",\"parts\":%" PRIu32
           ",\"bytes\":%" PRIu64, bt_gguf_version(file), bt_gguf_alignment(file),
           bt_gguf_part_count(file), bt_gguf_size_bytes(file));
    json_pairs(file, o);
    json_tensors(file);
    fputs(",\"types\":{", stdout);
    const char *comma = "";
    for (uint32_t id = 0; id < BT_TYPE_ID_MAX; id++) {
        if (t->of_type[id].n_tensors > 0) {
            printf("%s\"%s\":{", comma, bt_quant_type_find(id)->name);
            json_total(&t->of_type[id]);
            comma = ",";
        }
    }
    fputs("},\"total\":{", stdout);
    json_total(&t->all);
    json_needs(n, t);
    json_sampling(s);
    puts("}");
}
