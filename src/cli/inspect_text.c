/* `baton inspect` for people. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "cli/inspect_private.h"
#include "kv/states.h"

static void print_size(uint64_t bytes)
{
    static const char *const units[] = { "bytes", "KiB", "MiB", "GiB", "TiB" };
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < BT_LEN(units)) {
        value /= 1024;
        unit++;
    }
    printf(unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
}

static const char *plural(uint32_t n)
{
    return n == 1 ? "" : "s";
}

static void print_pairs(const bt_gguf *file, const bt_inspect_options *o)
{
    printf("\n%" PRIu32 " key%s\n", bt_gguf_pair_count(file), plural(bt_gguf_pair_count(file)));
    for (uint32_t i = 0; i < bt_gguf_pair_count(file); i++) {
        const bt_gguf_pair *pair = bt_gguf_pair_at(file, i);
        char type[48];
        if (pair->type == BT_GGUF_ARRAY) {
            snprintf(type, sizeof type, "%s[%" PRIu64 "]", bt_gguf_value_type_name(pair->element),
                     pair->count);
        } else {
            snprintf(type, sizeof type, "%s", bt_gguf_value_type_name(pair->type));
        }
        fputs("  ", stdout);
        bt_inspect_print_plain(pair->key, 44);
        printf("%-14s  ", type);
        fputs(bt_inspect_print_values(pair, o) > 0 ? ", ...\n" : "\n", stdout);
    }
}

static void print_tensors(const bt_gguf *file)
{
    printf("\n%" PRIu32 " tensor%s\n", bt_gguf_tensor_count(file),
           plural(bt_gguf_tensor_count(file)));
    for (uint32_t i = 0; i < bt_gguf_tensor_count(file); i++) {
        const bt_gguf_tensor *t = bt_gguf_tensor_at(file, i);
        char shape[96];
        int n = snprintf(shape, sizeof shape, "%" PRIu64, t->ne[0]);
        for (uint32_t d = 1; d < t->n_dims; d++) {
            n += snprintf(shape + n, sizeof shape - (size_t)n, " x %" PRIu64, t->ne[d]);
        }
        fputs("  ", stdout);
        bt_inspect_print_plain(bt_inspect_string(t->name), 40);
        printf("%-8s %-22s %12" PRIu64 "\n", t->type->name, shape, t->size_bytes);
    }
}

static void print_totals(const bt_inspect_totals *t)
{
    if (t->all.n_tensors == 0) {
        return;
    }
    puts("\ntypes");
    for (uint32_t id = 0; id < BT_TYPE_ID_MAX; id++) {
        const bt_inspect_total *one = &t->of_type[id];
        if (one->n_tensors > 0) {
            printf("  %-8s %6" PRIu32 " tensor%-2s %8.2f bits per value  ",
                   bt_quant_type_find(id)->name, one->n_tensors, plural(one->n_tensors),
                   one->n_values ? 8.0 * (double)one->size_bytes / (double)one->n_values : 0.0);
            print_size(one->size_bytes);
            putchar('\n');
        }
    }
    printf("  %-8s %6" PRIu32 " tensor%s, %.2f million values, ", "all", t->all.n_tensors,
           plural(t->all.n_tensors), (double)t->all.n_values / 1e6);
    print_size(t->all.size_bytes);
    putchar('\n');
}

/* "61.50 KiB each; 34100 fit in 2.00 GiB (--snapshot-bytes), 2.00 GiB in all" */
static void print_snapshots(const bt_inspect_needs *n)
{
    print_size(n->snapshot_bytes);
    fputs(" each; ", stdout);
    if (n->n_snapshots == BT_SNAPSHOTS_MAX) {
        printf("%" PRIu64 " are kept at most", n->n_snapshots);
    } else {
        if (n->n_snapshots == 0) {
            fputs("none fits in ", stdout);
        } else {
            printf("%" PRIu64 " fit%s in ", n->n_snapshots, n->n_snapshots == 1 ? "s" : "");
        }
        print_size(n->snapshot_limit);
        fputs(" (--snapshot-bytes)", stdout);
    }
    if (n->n_snapshots > 0) {
        fputs(", ", stdout);
        print_size(n->n_snapshots * n->snapshot_bytes);
        fputs(" in all", stdout);
    }
}

static void print_needs(const bt_inspect_needs *n, const bt_inspect_totals *t)
{
    if (!n->known) {
        fputs("\nmemory for a context is not known: ", stdout);
        bt_inspect_print_plain(bt_inspect_string(n->why.text), 0);
        putchar('\n');
        return;
    }
    printf("\n%" PRIu32 " layer%s", n->n_layers, plural(n->n_layers));
    if (n->n_recurrent > 0) {
        printf(", %" PRIu32 " of them recurrent", n->n_recurrent);
    }
    if (n->n_blocks_behind > 0) {
        printf("; %" PRIu32 " block%s behind them, not used", n->n_blocks_behind,
               plural(n->n_blocks_behind));
    }
    if (n->n_experts > 0) {
        printf("; %" PRIu32 " of %" PRIu32 " experts used", n->n_experts_used, n->n_experts);
    }
    printf("\n%.2f million parameters, %.2f million of them active\n",
           (double)t->all.n_values / 1e6, (double)n->n_params_active / 1e6);
    printf("\nmemory for a context of %" PRIu32 " tokens (the model was trained for %" PRIu32 ")\n",
           n->n_ctx, n->n_ctx_train);
    fputs("  weights            ", stdout);
    print_size(t->all.size_bytes);
    fputs("\n  keys and values    ", stdout);
    print_size(n->kv_bytes);
    printf(" as f16, %" PRIu64 " bytes per token", n->token_bytes);
    if (n->state_bytes > 0) {
        fputs("\n  recurrent state    ", stdout);
        print_size(n->state_bytes);
        printf(" per sequence, %" PRIu64 " bytes", n->state_bytes);
        fputs("\n  kept states        ", stdout);
        print_snapshots(n);
    }
    fputs("\n  together           ", stdout);
    print_size(bt_inspect_bytes_without_snapshots(n, t));
    if (n->n_snapshots > 0) {
        fputs(", ", stdout);
        print_size(bt_inspect_bytes_together(n, t));
        fputs(" once as many states are kept as fit", stdout);
    }
    putchar('\n');
}

static void print_sampling(const bt_inspect_sampling *s)
{
    const bt_sampler_options *o = &s->hints.options;
    if (!s->known) {
        fputs("\nsampling defaults cannot be read: ", stdout);
        bt_inspect_print_plain(bt_inspect_string(s->why.text), 0);
        putchar('\n');
        return;
    }
    printf("\nsampling defaults%s: temperature %g, top_k %" PRId32 ", top_p %g, min_p %g, "
           "repeat_penalty %g over %" PRId32 " tokens\n",
           s->hints.n_hints ? " (general.sampling.* of this file)" : "", (double)o->temperature,
           o->top_k, (double)o->top_p, (double)o->min_p, (double)o->penalty_repeat,
           o->penalty_last_n);
    if (s->hints.unsupported[0]) {
        fputs("  without effect here: ", stdout);
        bt_inspect_print_plain(bt_inspect_string(s->hints.unsupported), 0);
        putchar('\n');
    }
}

void bt_inspect_text(const bt_gguf *file, const bt_inspect_options *o, const bt_inspect_totals *t,
                     const bt_inspect_needs *n, const bt_inspect_sampling *s)
{
    bt_inspect_print_plain(bt_inspect_string(bt_gguf_path(file)), 0);
    printf("\nGGUF version %" PRIu32 ", ", bt_gguf_version(file));
    print_size(bt_gguf_size_bytes(file));
    printf(" in %" PRIu32 " file%s, alignment %" PRIu32 "\n", bt_gguf_part_count(file),
           plural(bt_gguf_part_count(file)), bt_gguf_alignment(file));
    print_pairs(file, o);
    print_tensors(file);
    print_totals(t);
    print_needs(n, t);
    print_sampling(s);
}
