/* cli/runtime.h - what verbs that load a model share: the checks before anything starts, file,
 * device, model, tokenizer and engine.
 *
 * Lifetime: bt_runtime_open to bt_runtime_close. Threads: one at a time.
 * Failure:  false, and the sentence is on standard error.
 */
#ifndef BT_CLI_RUNTIME_H
#define BT_CLI_RUNTIME_H

#include "cli/option_groups.h"
#include "engine/engine.h"
#include "link/link.h"
#include "model/model.h"
#include "text/tokenizer.h"

/* Of serve, worker and run. */
typedef struct {
    bt_machine_options  machine;
    bt_cache_options    cache;
    bt_snapshot_options snapshot;
    bt_link_flags       link;
} bt_runtime_options;

typedef struct {
    bt_gguf      *file;
    bt_device    *device;
    bt_model     *model;
    bt_tokenizer *tokenizer;       /* NULL when not asked for */
    bt_engine    *engine;          /* NULL before bt_runtime_start_engine */
    char          path[1024];
} bt_runtime;

/* Whether there is a model and it is a file of the right kind: before loading. */
bool bt_runtime_check_model(const bt_machine_options *o);
/* The same, and whether the key file that is named can be used: before anything listens. */
bool bt_runtime_preflight(const bt_runtime_options *o);
/* Without -m: the model that `make demo` has cached, or an error that says how to get one. */
bool bt_runtime_open(const bt_machine_options *o, bool want_tokenizer, bt_runtime *ret_runtime);
/* `engine` without what the options and the runtime say. */
bool bt_runtime_start_engine(bt_runtime *r, const bt_runtime_options *o, bt_engine_options engine);
void bt_runtime_close(bt_runtime *r);              /* the engine too */

bt_type bt_runtime_type_k(const bt_cache_options *o);
bt_type bt_runtime_type_v(const bt_cache_options *o);
const char *bt_runtime_isa(const bt_machine_options *o);
bt_link_options bt_runtime_link(const bt_link_flags *o);
/* --chat-template: a known name or a template that is understood; NULL is fine. */
bool bt_runtime_check_template(const char *text);
/* Positions for `wanted` 0: what the model was trained for, as far as half of the memory that the
 * weights leave goes; else `wanted`. */
uint32_t bt_runtime_context(const bt_runtime *r, uint32_t wanted, const bt_cache_options *cache);

#endif
