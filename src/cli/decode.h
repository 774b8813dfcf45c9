/* cli/decode.h - what the verbs that answer prompts (serve, run) share: an engine that decodes, and
 * the workers that prefill for it.
 *
 * Lifetime: bt_decode_open to bt_decode_close. Threads: one at a time.
 * Failure:  an exit code or false, and the sentence is on standard error.
 */
#ifndef BT_CLI_DECODE_H
#define BT_CLI_DECODE_H

#include "cli/runtime.h"
#include "handoff/client.h"

typedef struct {
    bt_runtime_options  runtime;
    bt_context_options  context;
    uint32_t            n_parallel;    /* -np: the verb's own row, as its default differs */
    bt_remote_options   remote;
    bt_sampling_options sampling;
    bt_answer_options   answer;
} bt_decode_options;

typedef struct {
    bt_runtime  runtime;
    bt_prefill *prefill;               /* NULL: no workers */
    bt_sampler_options sampling;       /* what an option sets, else the model file, else our own */
} bt_decode;

typedef struct {
    uint32_t    queue_max;
    bool        push;                  /* the engine also prefills for others */
    const char *workers;               /* in place of the option's, and may be set anew; or NULL */
} bt_decode_how;

/* 0, or the exit code of a usage error: values that cannot work, and options of remote prefill that
 * do nothing. `workers`: there are some besides the option's; `for_others`: this process prefills
 * for others (--prefill-listen), which also wants a key, buffers and a timeline. */
int  bt_decode_check(bt_decode_options *o, bool workers, bool for_others);
bt_prefill_policy bt_decode_policy(const bt_decode_options *o);
/* Close it in any case. */
bool bt_decode_open(const bt_decode_options *o, const bt_decode_how *how, bt_decode *ret_decode);
void bt_decode_close(bt_decode *d);

#endif
