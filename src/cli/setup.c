#include "cli/setup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "device/check.h"
#include "device/cpu/cpu.h"
#include "device/throttle.h"
#include "device/trace.h"
#include "handoff/client.h"
#include "text/chat.h"

#define AT(field) offsetof(bt_setup_options, field)

const bt_option bt_setup_model_table[] = {
    { "Model", "-m, --model", "FILE", "MODEL", BT_OPT_TEXT, AT(model),
      "GGUF file (default: the model cached by `make demo`)", false },
    { 0 }
};

const bt_option bt_setup_option_table[] = {
    { "Machine", "-t, --threads", "N", "THREADS", BT_OPT_U32, AT(n_threads),
      "threads for decoding (default: all cores)", false, 0, 1024 },
    { "Machine", "-tb, --threads-batch", "N", "THREADS_BATCH", BT_OPT_U32, AT(n_threads_batch),
      "threads for prefill (default: as --threads)", false, 0, 1024 },
    { "Machine", "--isa", "TIER", "ISA", BT_OPT_TEXT, AT(isa),
      "ref, avx2, avx512, avx512vnni, neon ... (default: the best of this machine)", false },
    { "Machine", "--no-repack", NULL, "NO_REPACK", BT_OPT_FLAG, AT(no_repack),
      "leave weights mapped: slower, half the memory", false },
    { "Diagnosis", "--trace-ops", "FILE", NULL, BT_OPT_TEXT, AT(trace),
      "write the time of every op as JSON lines", false },
    { "Diagnosis", "--check-ops", NULL, NULL, BT_OPT_FLAG, AT(check),
      "run every op on the reference tier too and stop at the first that differs", false },
    { "Diagnosis", "-v, --verbose", NULL, "VERBOSE", BT_OPT_FLAG, AT(verbose),
      "log requests and decisions", false },
    { 0 }
};

/* A tier agrees with the reference up to the rounding of activations to 8 bits, about 1/254 of a
 * block's largest value: below 1e-3 in relative square for one op. */
static const double CHECK_NMSE_MAX = 1e-3;

#define CACHED_MODEL "smollm2-135m-instruct-q4_1.gguf"

bool bt_setup_cache_path(const char *name, char *to, size_t capacity)
{
    const char *xdg = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    int n = -1;
    if (xdg && xdg[0] == '/') {
        n = snprintf(to, capacity, "%s/baton/%s", xdg, name);
    } else if (home && home[0]) {
#if defined(__APPLE__)
        n = snprintf(to, capacity, "%s/Library/Caches/baton/%s", home, name);
#else
        n = snprintf(to, capacity, "%s/.cache/baton/%s", home, name);
#endif
    }
    return n > 0 && (size_t)n < capacity;
}

static bool choose_model(const bt_setup_options *o, bt_setup *s)
{
    if (o->model) {
        if (strlen(o->model) >= sizeof s->path) {
            bt_cli_say_error("%s is a path of more than %zu bytes", bt_cli_set_by("-m"),
                             sizeof s->path - 1);
            return false;
        }
        memcpy(s->path, o->model, strlen(o->model) + 1);
        return true;
    }
    if (bt_setup_cache_path(CACHED_MODEL, s->path, sizeof s->path) && access(s->path, R_OK) == 0) {
        return true;
    }
    bt_cli_say_error("no model: give one with -m FILE.gguf, or run `tools/get-model.sh` in the "
                     "source tree, which puts SmolLM2-135M-Instruct (94 MiB) into %s",
                     s->path[0] ? s->path : "the cache folder under HOME, which is not set");
    return false;
}

static bool open_device(const bt_setup_options *o, bt_device **ret_device, bt_error *err)
{
    bt_device_cpu_options cpu = { .isa = bt_cpu_isa_detect(), .n_threads = o->n_threads,
                                  .n_threads_batch = o->n_threads_batch,
                                  .no_repack = o->no_repack };
    if (o->isa && (!bt_cpu_isa_parse(o->isa, &cpu.isa) || !bt_cpu_isa_supported(cpu.isa))) {
        bt_fail(err, BT_E_UNSUPPORTED, "%s is '%.60s', which this machine or build does not have; "
                "the best here is %s", bt_cli_set_by("--isa"), o->isa,
                bt_cpu_isa_name(bt_cpu_isa_detect()));
        return false;
    }
    bt_device *device = NULL, *reference = NULL;
    if (bt_device_cpu_open(&cpu, &device, err) != BT_OK) {
        return false;
    }
    if (o->check) {
        bt_device_cpu_options slow = cpu;
        slow.isa = BT_ISA_REF;
        if (bt_device_cpu_open(&slow, &reference, err) != BT_OK ||
            bt_device_check_open(device, reference, CHECK_NMSE_MAX, &device, err) != BT_OK) {
            bt_device_close(reference);
            bt_device_close(device);
            return false;
        }
    }
    if (o->trace) {
        const bt_device_trace_options trace = { .path = o->trace };
        if (bt_device_trace_open(device, &trace, &device, err) != BT_OK) {
            bt_device_close(device);
            return false;
        }
    }
    if (o->rows_per_second > 0 &&
        bt_device_throttle_open(device, (double)o->rows_per_second, &device, err) != BT_OK) {
        bt_device_close(device);
        return false;
    }
    *ret_device = device;
    return true;
}

bool bt_setup_check(const bt_setup_options *o)
{
    bt_setup s = { 0 };
    bt_error err = { 0 };
    if (!choose_model(o, &s)) {
        return false;
    }
    if (bt_gguf_open(s.path, &s.file, &err) != BT_OK) {
        bt_cli_say_error("%s", err.text);
        return false;
    }
    bt_gguf_close(s.file);
    return true;
}

bool bt_setup_open(const bt_setup_options *o, bool want_tokenizer, bt_setup *ret_setup)
{
    bt_setup s = { 0 };
    bt_error err = { 0 };
    if (o->verbose) {
        bt_log_set_level(BT_LOG_DEBUG);
    }
    if (!choose_model(o, &s)) {
        return false;
    }
    if (bt_gguf_open(s.path, &s.file, &err) != BT_OK || !open_device(o, &s.device, &err) ||
        bt_model_load(s.file, s.device, &s.model, &err) != BT_OK ||
        (want_tokenizer && bt_text_tokenizer_create(s.file, &s.tokenizer, &err) != BT_OK)) {
        bt_cli_say_error("%s", err.text);
        bt_setup_close(&s);
        return false;
    }
    *ret_setup = s;
    return true;
}

void bt_setup_close(bt_setup *s)
{
    bt_text_tokenizer_destroy(s->tokenizer);
    bt_model_destroy(s->model);
    bt_device_close(s->device);
    bt_gguf_close(s->file);
    *s = (bt_setup){ 0 };
}

bool bt_setup_cache_type(const char *name, const char *option, bt_type *ret_type)
{
    const bt_type_info *info = bt_quant_type_find_name(name);
    if (!info || !info->can_encode) {
        bt_cli_usage_error("%s is '%.60s', but a cache is f32, f16, bf16, q8_0, q5_1, q5_0, q4_1 "
                           "or q4_0", bt_cli_set_by(option), name);
        return false;
    }
    *ret_type = info->id;
    return true;
}

bool bt_setup_min_tokens(const char *text, uint32_t *ret_tokens)
{
    char *end;
    errno = 0;
    const unsigned long long v = strtoull(text, &end, 10);
    if (strcmp(text, "auto") == 0) {
        *ret_tokens = BT_PREFILL_MIN_AUTO;
        return true;
    }
    if (text[0] < '0' || text[0] > '9' || *end || errno != 0 || v > BT_CONTEXT_MAX) {
        bt_cli_usage_error("%s is '%.60s', but must be a number of tokens or auto",
                           bt_cli_set_by("--prefill-min-tokens"), text);
        return false;
    }
    *ret_tokens = (uint32_t)v;
    return true;
}

bool bt_setup_chat_template(const char *text)
{
    bt_chat_format *format;
    bt_error err;
    if (!text) {
        return true;
    }
    if (bt_text_chat_format_create(NULL, NULL, text, &format, &err) != BT_OK) {
        bt_cli_usage_error("%s: %s", bt_cli_set_by("--chat-template"), err.text);
        return false;
    }
    bt_text_chat_format_destroy(format);
    return true;
}

static void warn_of_context(const bt_model_config *c, uint32_t wanted)
{
    if (c->n_ctx_train > 0 && wanted > c->n_ctx_train) {
        bt_log(BT_LOG_WARN, "context_exceeds_training", "n_ctx=%u trained=%u effect=%s", wanted,
               c->n_ctx_train, "answers get worse beyond what the model was trained for");
    }
}

uint32_t bt_setup_context(const bt_setup *s, uint32_t wanted, bt_type type_k, bt_type type_v)
{
    enum { LEAST = 512 };
    const bt_model_config *c = bt_model_config_of(s->model);
    if (wanted > 0) {
        warn_of_context(c, wanted);
        return wanted;
    }
    const uint32_t trained = c->n_ctx_train > LEAST ? c->n_ctx_train : LEAST;
    const long n_pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    const uint64_t memory = n_pages > 0 && page > 0 ? (uint64_t)n_pages * (uint64_t)page : 0;
    const uint64_t each = bt_model_kv_token_bytes(c, type_k, type_v);
    if (memory <= c->weight_bytes || each == 0) {
        return trained < BT_CONTEXT_MAX ? trained : BT_CONTEXT_MAX;
    }
    const uint64_t fits = (memory - c->weight_bytes) / 2 / each;
    return fits < LEAST ? LEAST : fits < trained ? (uint32_t)fits : trained;
}
