/* cli/option_groups.c - see option_groups.h. */
#include "cli/option_groups.h"

#include "base/limits.h"
#include "handoff/client.h"

_Static_assert(BT_PREFILL_MIN_AUTO == BT_OPTION_AUTO, "--prefill-min-tokens auto");

#define AT(field) offsetof(bt_machine_options, field)

const bt_option bt_model_table[] = {
    { "-m, --model", "FILE", "MODEL", BT_OPT_TEXT, AT(model), NULL,
      "GGUF file; without it, the model that `make demo` has cached" },
    { 0 }
};

const bt_option bt_machine_table[] = {
    { "-t, --threads", "N", "THREADS", BT_OPT_U32, AT(n_threads), "0",
      "threads for decoding; 0: all cores", 0, 1024 },
    { "-tb, --threads-batch", "N", "THREADS_BATCH", BT_OPT_U32, AT(n_threads_batch), "0",
      "threads for prefill; 0: as many as for decoding", 0, 1024 },
    { "--isa", "NAME", "ISA", BT_OPT_TEXT, AT(isa), NULL,
      "instruction set: ref, avx2, avx512, avx512vnni, neon, ...; without it, the best here" },
    { "--no-repack", NULL, "NO_REPACK", BT_OPT_FLAG, AT(no_repack), NULL,
      "use weights as they are mapped: slower, but half the memory" },
    { 0 }
};

const bt_option bt_diagnosis_table[] = {
    { "--trace-ops", "FILE", NULL, BT_OPT_TEXT, AT(trace), NULL,
      "write the time of every op as JSON lines" },
    { "--check-ops", NULL, NULL, BT_OPT_FLAG, AT(check), NULL,
      "run every op on the reference kernels too, and stop at the first that differs" },
    { "-v, --verbose", NULL, "VERBOSE", BT_OPT_FLAG, AT(verbose), NULL,
      "log requests and decisions" },
    { 0 }
};

#undef AT
#define AT(field) offsetof(bt_cache_options, field)

static const char *const cache_types[] = { "f16", "f32", "bf16", "q8_0", "q5_1", "q5_0", "q4_1",
                                           "q4_0", NULL };

const bt_option bt_cache_table[] = {
    { "-ctk, --cache-type-k", "TYPE", "CACHE_TYPE_K", BT_OPT_CHOICE, AT(type_k), "f16",
      "type of cached keys: f32, f16, bf16, q8_0, ...; a server and its workers must agree",
      .choices = cache_types },
    { "-ctv, --cache-type-v", "TYPE", "CACHE_TYPE_V", BT_OPT_CHOICE, AT(type_v), "f16",
      "type of cached values, likewise", .choices = cache_types },
    { 0 }
};

#undef AT
#define AT(field) offsetof(bt_snapshot_options, field)

const bt_option bt_snapshot_table[] = {
    { "--snapshot-every", "N", "SNAPSHOT_EVERY", BT_OPT_U32, AT(every), "1024",
      "for models with recurrent layers: tokens between two kept states", 1, BT_CONTEXT_MAX },
    { "--snapshot-bytes", "BYTES", "SNAPSHOT_BYTES", BT_OPT_SIZE, AT(bytes), "2G",
      "for models with recurrent layers: memory for kept states; 0: keep none" },
    { 0 }
};

#undef AT
#define AT(field) offsetof(bt_link_flags, field)

const bt_option bt_link_table[] = {
    { "--trace-handoff", "FILE", "TRACE_HANDOFF", BT_OPT_TEXT, AT(trace_file), NULL,
      "write a timeline of every remote prompt, for chrome://tracing or ui.perfetto.dev" },
    { "--key-file", "FILE", "KEY_FILE", BT_OPT_TEXT, AT(key_file), NULL,
      "key that a server and its workers share; turns on TLS 1.3" },
    { "--link-buffer", "BYTES", "LINK_BUFFER", BT_OPT_SIZE, AT(buffer_bytes), NULL,
      "socket buffers of a link; without it, the kernel's tuning", 0, BT_LINK_BUFFER_MAX },
    { 0 }
};

#undef AT
#define AT(field) offsetof(bt_context_options, field)

const bt_option bt_context_table[] = {
    { "-c, --ctx-size", "N", "CTX_SIZE", BT_OPT_U32, AT(n_ctx), "0",
      "KV positions, shared by all requests; 0: what the model was trained for, as far as half of "
      "the free memory allows", 0, BT_CONTEXT_MAX },
    { "-b, --batch-size", "N", "BATCH", BT_OPT_U32, AT(n_batch), "2048",
      "tokens of all requests in a step", 1, BT_STEP_ROWS_MAX },
    { "-ub, --ubatch-size", "N", "UBATCH", BT_OPT_U32, AT(chunk), "512",
      "tokens of one prompt in a step", 1, BT_STEP_ROWS_MAX },
    { 0 }
};

#undef AT
#define AT(field) offsetof(bt_remote_options, field)

static const char *const policies[] = { "fallback", "fail", "hedge", NULL };
static const char *const wire_types[] = { "stored", "f16", "q8_0", NULL };
static const char *const orders[] = { "push", "layers", "chunks", "taper", "bulk", NULL };

const bt_option bt_remote_table[] = {
    { "--prefill-device", "HOST:PORT[,...]", "PREFILL_DEVICE", BT_OPT_TEXT, AT(workers), NULL,
      "workers that prefill prompts for this process" },
    { "--n-prefill", "N", "N_PREFILL", BT_OPT_U32, AT(n_prefill), "0",
      "prompts in flight per worker; 0: as many as it offers", 0, BT_STREAMS_PER_PEER_MAX },
    { "--n-prefill-chunk", "N", "N_PREFILL_CHUNK", BT_OPT_U32, AT(n_prefill_chunk), "0",
      "tokens of a prompt per step on the worker; 0: the worker decides", 0, BT_STEP_ROWS_MAX },
    { "--prefill-min-tokens", "N|auto", "PREFILL_MIN_TOKENS", BT_OPT_U32_AUTO, AT(min_tokens),
      "auto", "prompts with fewer tokens are prefilled here; auto: by measured rates", 0,
      BT_CONTEXT_MAX },
    { "--prefill-policy", "NAME", "PREFILL_POLICY", BT_OPT_CHOICE, AT(policy), "fallback",
      "when a worker fails: fallback (prefill here) or fail; hedge: like fallback, and prefill "
      "here too when the worker is late", .choices = policies },
    { "--prefill-wire-type", "TYPE", "PREFILL_WIRE_TYPE", BT_OPT_CHOICE, AT(wire_type), "stored",
      "type in which K and V travel: f16 or q8_0 for a slow link; stored: as cached, bit for bit",
      .choices = wire_types },
    { "--handoff", "NAME", "HANDOFF", BT_OPT_CHOICE, AT(handoff), "push",
      "push: each layer as soon as it is computed; for comparison: layers (without splitting "
      "chunks), chunks, taper (shrinking chunks), bulk (everything at the end)",
      .choices = orders },
    { 0 }
};

#undef AT
#define AT(field) offsetof(bt_sampling_options, field)

/* The defaults of bt_sample_defaults(). */
const bt_option bt_sampling_table[] = {
    { "--temp, --temperature", "X", "TEMP", BT_OPT_F32, AT(sampler.temperature), "0.8",
      "0: always the most likely token", 0, 100 },
    { "--top-k", "N", "TOP_K", BT_OPT_I32, AT(sampler.top_k), "40", "0: off", -1, INT32_MAX },
    { "--top-p", "X", "TOP_P", BT_OPT_F32, AT(sampler.top_p), "0.95", "1: off", 0, 1 },
    { "--min-p", "X", "MIN_P", BT_OPT_F32, AT(sampler.min_p), "0.05", "0: off", 0, 1 },
    { "-s, --seed", "N", "SEED", BT_OPT_I32, AT(seed), "-1", "-1: random", -1, INT32_MAX },
    { "--repeat-penalty", "X", "REPEAT_PENALTY", BT_OPT_F32, AT(sampler.penalty_repeat), "1",
      "1: off", 0.01, 100 },
    { "--repeat-last-n", "N", "REPEAT_LAST_N", BT_OPT_I32, AT(sampler.penalty_last_n), "64",
      "how many tokens back penalties look; -1: all", -1, INT32_MAX },
    { "--presence-penalty", "X", "PRESENCE_PENALTY", BT_OPT_F32, AT(sampler.penalty_presence), "0",
      "0: off", -100, 100 },
    { "--frequency-penalty", "X", "FREQUENCY_PENALTY", BT_OPT_F32,
      AT(sampler.penalty_frequency), "0", "0: off", -100, 100 },
    { 0 }
};

#undef AT
#define AT(field) offsetof(bt_answer_options, field)

const bt_option bt_answer_table[] = {
    { "-n, --predict, --n-predict", "N", "N_PREDICT", BT_OPT_I32, AT(n_predict), "-1",
      "most tokens of an answer; -1: until the context is full", -1, INT32_MAX },
    { "--chat-template", "NAME", "CHAT_TEMPLATE", BT_OPT_TEXT, AT(chat_template), NULL,
      "chat format by name, such as chatml, or template text; without it, the model's own" },
    { 0 }
};
