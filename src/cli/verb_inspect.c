/* baton inspect FILE - what is in a model file, and the memory that a context needs.
 *
 * Whatever a file holds may be printed to a terminal: control characters, directions and invalid
 * UTF-8 come out as escapes. Only the header is read, so a file of any size takes a moment.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/limits.h"
#include "cli/setup.h"
#include "gguf/gguf.h"
#include "kv/states.h"
#include "model/model.h"
#include "sample/options.h"
#include "text/unicode.h"

typedef struct {
    const char *model;
    uint32_t    n_ctx;
    uint64_t    snapshot_bytes;
    bool        json, all;
} options;

static const options defaults = { .snapshot_bytes = BT_SNAPSHOT_BYTES };

static const bt_option table[] = {
    { "File", "-m, --model", "FILE", "MODEL", BT_OPT_TEXT, offsetof(options, model),
      "the model file, if it is not named as a word", false },
    { "Output", "-c, --ctx-size", "N", NULL, BT_OPT_U32, offsetof(options, n_ctx),
      "tokens to compute the memory for (default: the training context)", false, 0,
      BT_CONTEXT_MAX },
    { "Output", "--snapshot-bytes", "BYTES", "SNAPSHOT_BYTES", BT_OPT_SIZE,
      offsetof(options, snapshot_bytes), "models with recurrent layers: memory for kept states at "
      "most (default: 2G, as in serve)", false },
    { "Output", "--json", NULL, NULL, BT_OPT_FLAG, offsetof(options, json),
      "one JSON object in place of text", true },
    { "Output", "--all", NULL, NULL, BT_OPT_FLAG, offsetof(options, all),
      "all elements of arrays, and long strings whole", true },
    { 0 },
};

enum {
    ELEMENTS_SHOWN = 8,           /* of an array */
    CHARACTERS_SHOWN = 60         /* of a string */
};

/* ---- strings ---- */

/* Characters that move the cursor, change directions or cannot be seen. */
static bool is_hidden(uint32_t code)
{
    static const struct { uint32_t first, last; } ranges[] = {
        { 0x00, 0x1f }, { 0x7f, 0x9f }, { 0xad, 0xad }, { 0x200b, 0x200f }, { 0x2028, 0x202e },
        { 0x2060, 0x206f }, { 0xfeff, 0xfeff }, { 0xfff9, 0xfffb }, { 0xe0000, 0xe007f },
    };
    for (size_t i = 0; i < BT_LEN(ranges); i++) {
        if (code >= ranges[i].first && code <= ranges[i].last) {
            return true;
        }
    }
    return false;
}

/* As \uXXXX, above the first plane as a pair of surrogates: what JSON understands. */
static void print_code(uint32_t code)
{
    if (code >= 0x10000) {
        printf("\\u%04" PRIx32 "\\u%04" PRIx32, 0xd800 + ((code - 0x10000) >> 10),
               0xdc00 + ((code - 0x10000) & 0x3ff));
    } else {
        printf("\\u%04" PRIx32, code);
    }
}

static void print_character(const char *at, bt_utf8_char c)
{
    switch (c.code) {
    case '"':
    case '\\':
        printf("\\%c", (int)c.code);
        break;
    case '\n':
        fputs("\\n", stdout);
        break;
    case '\t':
        fputs("\\t", stdout);
        break;
    default:
        if (is_hidden(c.code)) {
            print_code(c.code);
        } else {
            fwrite(at, 1, c.size, stdout);
        }
        break;
    }
}

/* In quotes; at most `n_max` characters. Bytes that are not UTF-8: in JSON, which cannot say them,
 * U+FFFD; in text \xNN. */
static void print_string(bt_gguf_string s, size_t n_max, bool json)
{
    size_t at = 0;
    putchar('"');
    for (size_t n = 0; at < s.size && n < n_max; n++) {
        const bt_utf8_char c = bt_text_utf8_at(s.data + at, s.size - at);
        if (c.kind == BT_UTF8_GOOD) {
            print_character(s.data + at, c);
        } else if (json) {
            fputs("\\ufffd", stdout);
        } else {
            for (uint32_t i = 0; i < c.size; i++) {
                printf("\\x%02x", (unsigned)(unsigned char)s.data[at + i]);
            }
        }
        at += c.size;
    }
    putchar('"');
    if (at < s.size) {
        printf(" and %zu bytes more", s.size - at);
    }
}

static bt_gguf_string string_of(const char *text)
{
    return (bt_gguf_string){ .data = text, .size = strlen(text) };
}

/* ---- values ---- */

/* A number as short as it can be read back exactly. JSON has no infinities. */
static void print_real(double value, bool single, bool json)
{
    if (isfinite(value)) {
        char text[40];
        for (int digits = 1; digits <= 17; digits++) {
            snprintf(text, sizeof text, "%.*g", digits, value);
            double back = 0;
            sscanf(text, "%lf", &back);
            if (single ? (float)back == (float)value : back == value) {
                break;
            }
        }
        fputs(text, stdout);
    } else {
        fputs(json ? "null" : isnan(value) ? "nan" : value < 0 ? "-inf" : "inf", stdout);
    }
}

/* An element that is not a string. */
static void print_scalar(const bt_gguf_pair *pair, uint64_t i, bool json)
{
    const uint8_t *p = pair->data;
    uint64_t bits;
    double f64;
    switch (pair->element) {
    case BT_GGUF_BOOL:
        fputs(p[i] ? "true" : "false", stdout);
        break;
    case BT_GGUF_U8:
    case BT_GGUF_U16:
    case BT_GGUF_U32:
        printf("%" PRIu32, bt_gguf_array_u32(pair, i));
        break;
    case BT_GGUF_I8:
    case BT_GGUF_I16:
        printf("%d", (int)bt_gguf_array_f32(pair, i));       /* exact: small */
        break;
    case BT_GGUF_I32:
        printf("%" PRId32, (int32_t)bt_get_le32(p + 4 * i));
        break;
    case BT_GGUF_U64:
        printf("%" PRIu64, bt_get_le64(p + 8 * i));
        break;
    case BT_GGUF_I64:
        printf("%" PRId64, (int64_t)bt_get_le64(p + 8 * i));
        break;
    case BT_GGUF_F64:
        bits = bt_get_le64(p + 8 * i);
        memcpy(&f64, &bits, sizeof f64);
        print_real(f64, false, json);
        break;
    default:
        print_real((double)bt_gguf_array_f32(pair, i), true, json);
        break;
    }
}

/* One value, or the first elements with commas between. Returns how many are left out. */
static uint64_t print_values(const bt_gguf_pair *pair, const options *o)
{
    const uint64_t n = o->all || pair->count < ELEMENTS_SHOWN ? pair->count : ELEMENTS_SHOWN;
    const size_t characters = o->all || o->json ? SIZE_MAX : CHARACTERS_SHOWN;
    bt_gguf_strings strings = { 0 };
    if (pair->element == BT_GGUF_STRING) {
        strings = bt_gguf_strings_begin(pair);
    }
    for (uint64_t i = 0; i < n; i++) {
        bt_gguf_string text;
        fputs(i == 0 ? "" : o->json ? "," : ", ", stdout);
        if (pair->element != BT_GGUF_STRING) {
            print_scalar(pair, i, o->json);
        } else if (bt_gguf_strings_next(&strings, &text)) {
            print_string(text, characters, o->json);
        }
    }
    return pair->count - n;
}

/* ---- sums ---- */

typedef struct {
    uint32_t n_tensors;
    uint64_t n_values, size_bytes;
} total;

typedef struct {
    total of_type[BT_TYPE_ID_MAX];
    total all;
} totals;

static void add(total *t, const bt_gguf_tensor *tensor)
{
    t->n_tensors++;
    t->n_values += tensor->n_elems;
    t->size_bytes += tensor->size_bytes;
}

static void sum_up(const bt_gguf *file, totals *ret)
{
    *ret = (totals){ 0 };
    for (uint32_t i = 0; i < bt_gguf_tensor_count(file); i++) {
        const bt_gguf_tensor *t = bt_gguf_tensor_at(file, i);
        add(&ret->of_type[t->type->id], t);
        add(&ret->all, t);
    }
}

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
} needs;

/* What the file suggests for sampling, or why that cannot be read. */
typedef struct {
    bool            known;
    bt_sample_hints hints;
    bt_error        why;
} sampling;

static void find_needs(const bt_gguf *file, const options *o, needs *ret)
{
    static bt_model_config c;          /* large; the program has one thread here */
    static bt_state_layer layers[BT_LAYERS_MAX];
    *ret = (needs){ 0 };
    if (bt_model_config_read(file, &c, &ret->why) != BT_OK) {
        return;
    }
    ret->known = true;
    ret->n_ctx_train = c.n_ctx_train;
    ret->n_ctx = o->n_ctx ? o->n_ctx : c.n_ctx_train;
    ret->token_bytes = bt_model_kv_token_bytes(&c, BT_TYPE_F16, BT_TYPE_F16);
    ret->kv_bytes = ret->token_bytes * ret->n_ctx;
    ret->state_bytes = bt_model_state_bytes(&c);
    for (uint32_t i = 0; i < c.n_layers; i++) {
        bt_model_state_layer(&c, i, &layers[i]);
    }
    ret->snapshot_bytes = bt_kv_state_slot_bytes(layers, c.n_layers);
    ret->snapshot_limit = o->snapshot_bytes;
    ret->n_snapshots = ret->snapshot_bytes ? o->snapshot_bytes / ret->snapshot_bytes : 0;
    ret->n_snapshots = ret->n_snapshots < BT_SNAPSHOTS_MAX ? ret->n_snapshots : BT_SNAPSHOTS_MAX;
    ret->n_params_active = c.n_params_active;
    ret->n_layers = c.n_layers;
    ret->n_blocks_behind = c.n_blocks_behind;
    ret->n_experts = c.n_experts;
    ret->n_experts_used = c.n_experts_used;
    for (uint32_t i = 0; i < c.n_layers; i++) {
        ret->n_recurrent += c.recurrent[i];
    }
}

/* ---- text ---- */

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

/* A text without quotes, hidden characters as question marks, then spaces up to `width`. */
static void print_plain(bt_gguf_string key, int width)
{
    int n = 0;
    for (size_t at = 0; at < key.size; n++) {
        const bt_utf8_char c = bt_text_utf8_at(key.data + at, key.size - at);
        if (c.kind == BT_UTF8_GOOD && !is_hidden(c.code)) {
            fwrite(key.data + at, 1, c.size, stdout);
        } else {
            putchar('?');
        }
        at += c.size;
    }
    printf("%*s", n < width ? width - n : width > 0, "");
}

static void print_pairs(const bt_gguf *file, const options *o)
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
        print_plain(pair->key, 44);
        printf("%-14s  ", type);
        fputs(print_values(pair, o) > 0 ? ", ...\n" : "\n", stdout);
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
        print_plain(string_of(t->name), 40);
        printf("%-8s %-22s %12" PRIu64 "\n", t->type->name, shape, t->size_bytes);
    }
}

static void print_totals(const totals *t)
{
    if (t->all.n_tensors == 0) {
        return;
    }
    puts("\ntypes");
    for (uint32_t id = 0; id < BT_TYPE_ID_MAX; id++) {
        const total *one = &t->of_type[id];
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

static uint64_t bytes_without_snapshots(const needs *n, const totals *t)
{
    return t->all.size_bytes + n->kv_bytes + n->state_bytes;
}

static uint64_t bytes_together(const needs *n, const totals *t)
{
    return bytes_without_snapshots(n, t) + n->n_snapshots * n->snapshot_bytes;
}

/* "61.50 KiB each; 34100 fit in 2.00 GiB (--snapshot-bytes), 2.00 GiB in all" */
static void print_snapshots(const needs *n)
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

static void print_needs(const needs *n, const totals *t)
{
    if (!n->known) {
        fputs("\nmemory for a context is not known: ", stdout);
        print_plain(string_of(n->why.text), 0);
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
    print_size(bytes_without_snapshots(n, t));
    if (n->n_snapshots > 0) {
        fputs(", ", stdout);
        print_size(bytes_together(n, t));
        fputs(" once as many states are kept as fit", stdout);
    }
    putchar('\n');
}

static void print_sampling(const sampling *s)
{
    const bt_sampler_options *o = &s->hints.options;
    if (!s->known) {
        fputs("\nsampling defaults cannot be read: ", stdout);
        print_plain(string_of(s->why.text), 0);
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
        print_plain(string_of(s->hints.unsupported), 0);
        putchar('\n');
    }
}

static void print_text(const bt_gguf *file, const options *o, const totals *t, const needs *n,
                       const sampling *s)
{
    print_plain(string_of(bt_gguf_path(file)), 0);
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

/* ---- JSON ---- */

static void json_pairs(const bt_gguf *file, const options *o)
{
    fputs(",\"metadata\":{", stdout);
    for (uint32_t i = 0; i < bt_gguf_pair_count(file); i++) {
        const bt_gguf_pair *pair = bt_gguf_pair_at(file, i);
        const bool array = pair->type == BT_GGUF_ARRAY;
        fputs(i ? "," : "", stdout);
        print_string(pair->key, SIZE_MAX, true);
        printf(":{\"type\":\"%s\"", bt_gguf_value_type_name(pair->type));
        if (array) {
            printf(",\"element\":\"%s\",\"count\":%" PRIu64 ",\"first\":[",
                   bt_gguf_value_type_name(pair->element), pair->count);
        } else {
            fputs(",\"value\":", stdout);
        }
        print_values(pair, o);
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
        print_string(string_of(t->name), SIZE_MAX, true);
        printf(",\"type\":\"%s\",\"shape\":[", t->type->name);
        for (uint32_t d = 0; d < t->n_dims; d++) {
            printf("%s%" PRIu64, d ? "," : "", t->ne[d]);
        }
        printf("],\"bytes\":%" PRIu64 ",\"part\":%" PRIu32 ",\"offset\":%" PRIu64 "}",
               t->size_bytes, t->part, t->offset);
    }
    putchar(']');
}

static void json_total(const total *t)
{
    printf("\"tensors\":%" PRIu32 ",\"values\":%" PRIu64 ",\"bytes\":%" PRIu64 "}", t->n_tensors,
           t->n_values, t->size_bytes);
}

static void json_needs(const needs *n, const totals *t)
{
    if (n->known) {
        printf(",\"memory\":{\"context\":%" PRIu32 ",\"context_trained\":%" PRIu32
               ",\"weights_bytes\":%" PRIu64 ",\"kv_type\":\"f16\",\"kv_token_bytes\":%" PRIu64
               ",\"kv_bytes\":%" PRIu64 ",\"state_bytes\":%" PRIu64 ",\"snapshot_each_bytes\":%"
               PRIu64 ",\"snapshot_limit_bytes\":%" PRIu64 ",\"snapshots\":%" PRIu64
               ",\"snapshot_bytes\":%" PRIu64 ",\"total_bytes\":%" PRIu64 "}", n->n_ctx,
               n->n_ctx_train, t->all.size_bytes, n->token_bytes, n->kv_bytes, n->state_bytes,
               n->snapshot_bytes, n->snapshot_limit, n->n_snapshots,
               n->n_snapshots * n->snapshot_bytes, bytes_together(n, t));
        printf(",\"layers\":{\"count\":%" PRIu32 ",\"recurrent\":%" PRIu32 ",\"behind\":%" PRIu32
               ",\"experts\":%" PRIu32 ",\"experts_used\":%" PRIu32 "}", n->n_layers,
               n->n_recurrent, n->n_blocks_behind, n->n_experts, n->n_experts_used);
        printf(",\"parameters\":{\"all\":%" PRIu64 ",\"active\":%" PRIu64 "}", t->all.n_values,
               n->n_params_active);
    } else {
        fputs(",\"memory\":null,\"memory_unknown\":", stdout);
        print_string(string_of(n->why.text), SIZE_MAX, true);
    }
}

static void json_sampling(const sampling *s)
{
    const bt_sampler_options *o = &s->hints.options;
    if (!s->known) {
        fputs(",\"sampling\":null,\"sampling_unknown\":", stdout);
        print_string(string_of(s->why.text), SIZE_MAX, true);
        return;
    }
    printf(",\"sampling\":{\"from_file\":%" PRIu32 ",\"temperature\":%g,\"top_k\":%" PRId32
           ",\"top_p\":%g,\"min_p\":%g,\"repeat_penalty\":%g,\"repeat_last_n\":%" PRId32
           ",\"unsupported\":", s->hints.n_hints, (double)o->temperature, o->top_k,
           (double)o->top_p, (double)o->min_p, (double)o->penalty_repeat, o->penalty_last_n);
    print_string(string_of(s->hints.unsupported), SIZE_MAX, true);
    putchar('}');
}

static void print_json(const bt_gguf *file, const options *o, const totals *t, const needs *n,
                       const sampling *s)
{
    fputs("{\"path\":", stdout);
    print_string(string_of(bt_gguf_path(file)), SIZE_MAX, true);
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

/* ---- the verb ---- */

static int inspect(const bt_gguf *file, const options *o)
{
    totals sums;
    needs memory;
    sampling sample = { 0 };
    sum_up(file, &sums);
    find_needs(file, o, &memory);
    sample.known = bt_sample_hints_read(file, &sample.hints, &sample.why) == BT_OK;
    (o->json ? print_json : print_text)(file, o, &sums, &memory, &sample);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        return bt_cli_say_error("standard output cannot be written: %s", strerror(errno));
    }
    return 0;
}

static int run(const void *given, int n_rest, char **rest)
{
    const options *o = given;
    if (n_rest > 1) {
        return bt_cli_usage_error("'%s' is one file too many", rest[1]);
    }
    const char *path = n_rest == 1 ? rest[0] : o->model;
    if (!path) {
        return bt_cli_usage_error("FILE is missing");
    }
    bt_gguf *file;
    bt_error err;
    if (bt_gguf_open(path, &file, &err) != BT_OK) {
        return bt_cli_say_error("%s", err.text);
    }
    const int code = inspect(file, o);
    bt_gguf_close(file);
    return code;
}

const bt_verb bt_verb_inspect = {
    .name = "inspect",
    .summary = "what is in a model file, and the memory that a context needs",
    .usage = "baton inspect FILE [options]",
    .example = "baton inspect model.gguf -c 32768",
    .options_size = sizeof(options),
    .defaults = &defaults,
    .tables = { table },
    .run = run,
};
