/* cli/option_groups.h - the options that verbs share, one table and one struct per group.
 *
 * The defaults are in the tables. Options that only one verb has stand in that verb's file.
 * Threads: none; plain data.
 */
#ifndef BT_CLI_OPTION_GROUPS_H
#define BT_CLI_OPTION_GROUPS_H

#include "cli/option.h"
#include "sample/sampler.h"

typedef struct {
    const char *model;             /* -m */
    uint32_t    n_threads;         /* -t; 0: all cores */
    uint32_t    n_threads_batch;   /* -tb; 0: as -t */
    const char *isa;               /* --isa; NULL: the best */
    bool        no_repack;
    const char *trace;             /* --trace-ops FILE */
    bool        check;             /* --check-ops */
    bool        verbose;           /* -v */
    float       rows_per_second;   /* of a worker; 0: no limit */
} bt_machine_options;

/* -m stands apart: to some verbs a model means something else, and they have a row of their own. */
extern const bt_option bt_model_table[], bt_machine_table[], bt_diagnosis_table[];

typedef struct { const char *type_k, *type_v; } bt_cache_options;
extern const bt_option bt_cache_table[];

typedef struct { uint32_t every; uint64_t bytes; } bt_snapshot_options;
extern const bt_option bt_snapshot_table[];        /* from the second row on: --snapshot-bytes */

typedef struct { const char *trace_file, *key_file; uint64_t buffer_bytes; } bt_link_flags;
extern const bt_option bt_link_table[];            /* from the second row on: without the trace */

typedef struct { uint32_t n_ctx, n_batch, chunk; } bt_context_options;
extern const bt_option bt_context_table[];

typedef struct {
    const char *workers, *policy, *wire_type, *handoff;
    uint32_t    n_prefill, n_prefill_chunk, min_tokens;
} bt_remote_options;
extern const bt_option bt_remote_table[];

typedef struct { bt_sampler_options sampler; int32_t seed; } bt_sampling_options;
extern const bt_option bt_sampling_table[];

typedef struct { int32_t n_predict; const char *chat_template; } bt_answer_options;
extern const bt_option bt_answer_table[];

#endif
