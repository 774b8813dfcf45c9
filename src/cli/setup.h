/* cli/setup.h - what every verb that loads a model does: options, file, device, tokenizer.
 *
 * Lifetime: bt_setup_open to bt_setup_close. On failure open() has said why on standard error.
 */
#ifndef BT_CLI_SETUP_H
#define BT_CLI_SETUP_H

#include "cli/verbs.h"
#include "model/model.h"
#include "text/tokenizer.h"

/* Defaults of --snapshot-every and --snapshot-bytes. */
#define BT_SNAPSHOT_EVERY 1024u
#define BT_SNAPSHOT_BYTES (UINT64_C(2) << 30)

typedef struct {
    const char *model;             /* -m */
    uint32_t    n_threads;         /* -t; 0: all cores */
    uint32_t    n_threads_batch;   /* -tb; 0: as -t */
    const char *isa;               /* --isa; NULL: the best */
    bool        no_repack;
    const char *trace;             /* --trace-ops FILE */
    bool        check;             /* --check-ops: compare every op with the reference tier */
    float       rows_per_second;   /* no faster than this; 0: no limit */
    bool        verbose;           /* -v */
} bt_setup_options;

/* -m, and -t -tb --isa --no-repack --trace-ops --check-ops -v, at offset 0 of a verb's options
 * struct: its first member must be a bt_setup_options. A verb to which a model means something else
 * says so in a table of its own. */
extern const bt_option bt_setup_model_table[], bt_setup_option_table[];

typedef struct {
    bt_gguf      *file;
    bt_device    *device;
    bt_model     *model;
    bt_tokenizer *tokenizer;       /* NULL when not asked for */
    char          path[1024];
} bt_setup;

/* Whether there is a model and it is a file of the right kind, said at once instead of after
 * loading; false: said why. */
bool bt_setup_check(const bt_setup_options *o);
/* Without -m: the cached model of `make demo`, or an error that says how to get one. */
bool bt_setup_open(const bt_setup_options *o, bool want_tokenizer, bt_setup *ret_setup);
void bt_setup_close(bt_setup *s);
/* The type of a KV cache by name; false: said on standard error, naming `option`. */
bool bt_setup_cache_type(const char *name, const char *option, bt_type *ret_type);
/* --prefill-min-tokens: a number of tokens or "auto" (BT_PREFILL_MIN_AUTO); false: said why not. */
bool bt_setup_min_tokens(const char *text, uint32_t *ret_tokens);
/* --chat-template: a known name or a template that is understood; NULL is fine. false: said why. */
bool bt_setup_chat_template(const char *text);
/* Positions for `wanted` 0: what the model was trained for, as far as half of the memory that the
 * weights leave goes; else `wanted`. */
uint32_t bt_setup_context(const bt_setup *s, uint32_t wanted, bt_type type_k, bt_type type_v);
/* Where downloaded models live: $XDG_CACHE_HOME/baton or ~/.cache/baton (macOS:
 * ~/Library/Caches/baton). */
bool bt_setup_cache_path(const char *name, char *to, size_t capacity);

#endif
