/* cli/runtime.c - see runtime.h. */
#include "cli/runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "cli/verbs.h"
#include "cpu/kernels.h"
#include "device/check.h"
#include "device/cpu/cpu.h"
#include "device/throttle.h"
#include "device/trace.h"
#include "link/key.h"
#include "text/chat.h"

/* Kernels agree with the reference up to the rounding of activations to 8 bits, about 1/254 of a
 * block's largest value: below 1e-3 in relative square for one op. */
static const double CHECK_NMSE_MAX = 1e-3;

#define CACHED_MODEL "smollm2-135m-instruct-q4_1.gguf"

static bool cached_path(const char *name, char *to, size_t capacity)
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

static bool choose_model(const bt_machine_options *o, bt_runtime *s)
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
    if (cached_path(CACHED_MODEL, s->path, sizeof s->path) && access(s->path, R_OK) == 0) {
        return true;
    }
    bt_cli_say_error("no model: give one with -m FILE.gguf, or run `tools/get-model.sh` in the "
                     "source tree, which puts SmolLM2-135M-Instruct (94 MiB) into %s",
                     s->path[0] ? s->path : "the cache folder under HOME, which is not set");
    return false;
}

static bool open_device(const bt_machine_options *o, bt_device **ret_device, bt_error *err)
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

bool bt_runtime_check_model(const bt_machine_options *o)
{
    bt_runtime s = { 0 };
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

bool bt_runtime_open(const bt_machine_options *o, bool want_tokenizer, bt_runtime *ret_runtime)
{
    bt_runtime s = { 0 };
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
        bt_runtime_close(&s);
        return false;
    }
    *ret_runtime = s;
    return true;
}

void bt_runtime_close(bt_runtime *s)
{
    bt_engine_destroy(s->engine);
    bt_text_tokenizer_destroy(s->tokenizer);
    bt_model_destroy(s->model);
    bt_device_close(s->device);
    bt_gguf_close(s->file);
    *s = (bt_runtime){ 0 };
}

bool bt_runtime_preflight(const bt_runtime_options *o)
{
    bt_link_key key;
    bt_error err;
    if (!bt_runtime_check_model(&o->machine)) {
        return false;
    }
    if (o->link.key_file && bt_link_key_load(o->link.key_file, &key, &err) != BT_OK) {
        bt_cli_say_error("%s", err.text);
        return false;
    }
    if (o->link.key_file) {
        bt_link_key_forget(&key);
    }
    return true;
}

bool bt_runtime_start_engine(bt_runtime *r, const bt_runtime_options *o, bt_engine_options engine)
{
    bt_error err;
    engine.model = r->model;
    engine.device = r->device;
    engine.tokenizer = r->tokenizer;
    engine.type_k = bt_runtime_type_k(&o->cache);
    engine.type_v = bt_runtime_type_v(&o->cache);
    engine.snapshot_every = o->snapshot.every;
    engine.snapshot_bytes = o->snapshot.bytes;
    if (bt_engine_create(&engine, &r->engine, &err) != BT_OK) {
        bt_cli_say_error("%s", err.text);
        return false;
    }
    return true;
}

static bt_type cache_type(const char *name)
{
    const bt_type_info *info = bt_quant_type_find_name(name);
    BT_ASSERT(info && info->can_encode);           /* one of the table of options */
    return info->id;
}

bt_type bt_runtime_type_k(const bt_cache_options *o)
{
    return cache_type(o->type_k);
}

bt_type bt_runtime_type_v(const bt_cache_options *o)
{
    return cache_type(o->type_v);
}

const char *bt_runtime_isa(const bt_machine_options *o)
{
    return o->isa ? o->isa : bt_cpu_isa_name(bt_cpu_isa_detect());
}

bt_link_options bt_runtime_link(const bt_link_flags *o)
{
    return (bt_link_options){ .key_file = o->key_file, .buffer_bytes = (uint32_t)o->buffer_bytes };
}

bool bt_runtime_check_template(const char *text)
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

uint32_t bt_runtime_context(const bt_runtime *s, uint32_t wanted, const bt_cache_options *cache)
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
    const uint64_t each = bt_model_kv_token_bytes(c, bt_runtime_type_k(cache),
                                                  bt_runtime_type_v(cache));
    if (memory <= c->weight_bytes || each == 0) {
        return trained < BT_CONTEXT_MAX ? trained : BT_CONTEXT_MAX;
    }
    const uint64_t fits = (memory - c->weight_bytes) / 2 / each;
    return fits < LEAST ? LEAST : fits < trained ? (uint32_t)fits : trained;
}
