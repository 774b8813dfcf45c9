/* cli/inspect_private.h - what the files of `baton inspect` share.
 *
 * verb_inspect.c    options, sums and needs
 * inspect_text.c    the output for people
 * inspect_json.c    the output for scripts
 * inspect_values.c  strings and values of a file, safe for a terminal
 */
#ifndef BT_CLI_INSPECT_PRIVATE_H
#define BT_CLI_INSPECT_PRIVATE_H

#include "cli/option_groups.h"
#include "gguf/gguf.h"
#include "sample/options.h"

typedef struct {
    const char *model;
    uint32_t    n_ctx;
    bt_snapshot_options snapshot;
    bool        json, all;
} bt_inspect_options;

typedef struct {
    uint32_t n_tensors;
    uint64_t n_values, size_bytes;
} bt_inspect_total;

typedef struct {
    bt_inspect_total of_type[BT_TYPE_ID_MAX];
    bt_inspect_total all;
} bt_inspect_totals;

/* What a context needs, or why that is not known. */
typedef struct {
    bool     known;
    uint32_t n_ctx, n_ctx_train;
    uint64_t token_bytes, kv_bytes, state_bytes;    /* per token, of all of them, per sequence */
    uint64_t snapshot_bytes, n_snapshots;   /* of a state that is kept besides; how many may be */
    uint64_t snapshot_limit;           /* --snapshot-bytes */
    uint64_t n_params_active;
    uint32_t n_layers, n_recurrent, n_blocks_behind;
    uint32_t n_experts, n_experts_used;
    bt_error why;
} bt_inspect_needs;

/* What the file suggests for sampling, or why that cannot be read. */
typedef struct {
    bool            known;
    bt_sample_hints hints;
    bt_error        why;
} bt_inspect_sampling;

/* In quotes; at most `n_max` characters. Bytes that are not UTF-8: in JSON, which has no way to
 * write them, U+FFFD; in text \xNN. */
void bt_inspect_print_string(bt_gguf_string s, size_t n_max, bool json);
/* One value, or the first elements with commas between. Returns how many are left out. */
uint64_t bt_inspect_print_values(const bt_gguf_pair *pair, const bt_inspect_options *o);
/* Without quotes, hidden characters as question marks, then spaces up to `width`. */
void bt_inspect_print_plain(bt_gguf_string key, int width);
bt_gguf_string bt_inspect_string(const char *text);

static inline uint64_t bt_inspect_bytes_without_snapshots(const bt_inspect_needs *n,
                                                          const bt_inspect_totals *t)
{
    return t->all.size_bytes + n->kv_bytes + n->state_bytes;
}

static inline uint64_t bt_inspect_bytes_together(const bt_inspect_needs *n,
                                                 const bt_inspect_totals *t)
{
    return bt_inspect_bytes_without_snapshots(n, t) + n->n_snapshots * n->snapshot_bytes;
}

void bt_inspect_text(const bt_gguf *file, const bt_inspect_options *o, const bt_inspect_totals *t,
                     const bt_inspect_needs *n, const bt_inspect_sampling *s);
void bt_inspect_json(const bt_gguf *file, const bt_inspect_options *o, const bt_inspect_totals *t,
                     const bt_inspect_needs *n, const bt_inspect_sampling *s);

#endif
