#include "serve/fields.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/memory.h"

enum { TRIM_BYTES = 16 << 20 };

/* ---- memory of parsed values ---- */

/* Of all requests together; signed, as a value may have been made before json_setup. */
static atomic_llong held_bytes;

/* Without memory the parser reports whatever it was looking at, so the truth is noted here. */
static _Thread_local enum { WELL, NO_MEMORY, TOO_MUCH } trouble;

static void *take_memory(size_t size)
{
    void *p = NULL;
    if (atomic_load(&held_bytes) + (long long)size > BT_JSON_BYTES_MAX) {
        trouble = TOO_MUCH;
        return NULL;
    }
    p = bt_alloc(BT_MEM_serve, size);
    if (!p) {
        trouble = NO_MEMORY;
        return NULL;
    }
    atomic_fetch_add(&held_bytes, (long long)bt_memory_size(p));
    return p;
}

static void give_memory(void *p)
{
    atomic_fetch_sub(&held_bytes, (long long)bt_memory_size(p));
    bt_free(p);
}

void bt_serve_json_setup(void)
{
    json_set_alloc_funcs(take_memory, give_memory);
    json_object_seed(0);
}

uint64_t bt_serve_json_bytes(void)
{
    const long long bytes = atomic_load(&held_bytes);
    return bytes > 0 ? (uint64_t)bytes : 0;
}

void bt_serve_json_release(json_t *root)
{
    const uint64_t before = bt_serve_json_bytes();
    json_decref(root);
    /* Millions of small blocks stay with the allocator until it is asked. */
    if (before - bt_serve_json_bytes() >= TRIM_BYTES && before > bt_serve_json_bytes()) {
        bt_memory_trim();
    }
}

/* ---- text to values ---- */

/* Depth and number of values are checked before the parser spends memory on them: a value costs it
 * up to some 100 bytes, so 64 MiB of "[]," would become gigabytes. */
static bool shape_is_sane(const char *bytes, size_t size, bt_problem *problem)
{
    uint32_t depth = 0, n_values = 1;
    bool in_string = false;
    for (size_t i = 0; i < size; i++) {
        const char c = bytes[i];
        if (in_string) {
            if (c == '\\') {
                i++;
            } else if (c == '"') {
                in_string = false;
            }
            continue;
        }
        if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            n_values++;
            if (++depth > BT_JSON_DEPTH_MAX) {
                bt_serve_problem_set(problem, 400, NULL, "the JSON is nested deeper than %u levels",
                                     BT_JSON_DEPTH_MAX);
                return false;
            }
        } else if (c == ']' || c == '}') {
            depth -= depth > 0;
        } else if (c == ',') {
            n_values++;
        }
        if (n_values > BT_JSON_VALUES_MAX) {
            bt_serve_problem_set(problem, 413, NULL, "the JSON holds more than %u values",
                                 BT_JSON_VALUES_MAX);
            return false;
        }
    }
    return true;
}

/* Whole numbers from 2^63 up are read as the nearest real number, so that one in a field that
 * nobody reads does no harm; a field that needs a whole number names itself. */
static json_t *load(const char *bytes, size_t size, json_error_t *error)
{
    const size_t flags = JSON_ALLOW_NUL | JSON_DECODE_ANY;
    json_t *root = json_loadb(bytes, size, flags, error);
    if (!root && trouble == WELL && json_error_code(error) == json_error_numeric_overflow) {
        root = json_loadb(bytes, size, flags | JSON_DECODE_INT_AS_REAL, error);
    }
    return root;
}

static void set_trouble(const json_error_t *error, bt_problem *problem)
{
    if (trouble == NO_MEMORY) {
        bt_serve_problem_set_status(problem, BT_E_NOMEM, "");
    } else if (trouble == TOO_MUCH) {
        bt_serve_problem_set(problem, 429, NULL, "the JSON of all requests together takes more "
                             "than %u MiB; try again", BT_JSON_BYTES_MAX >> 20);
        problem->retry_after_s = 1;
        bt_memory_trim();                  /* what was parsed of this one is free again */
    } else {
        bt_serve_problem_set(problem, 400, NULL,
                             "the body is not valid JSON: %s (line %d, column %d)", error->text,
                             error->line, error->column);
    }
}

json_t *bt_serve_json_parse_object(const char *bytes, size_t size, bt_problem *problem)
{
    static const char mark[] = { (char)0xEF, (char)0xBB, (char)0xBF };
    if (size >= sizeof mark && memcmp(bytes, mark, sizeof mark) == 0) {
        bytes += sizeof mark;              /* a byte order mark (RFC 8259, section 8.1) */
        size -= sizeof mark;
    }
    if (size == 0) {
        bt_serve_problem_set(problem, 400, NULL, "the body is empty; a JSON object is expected");
        return NULL;
    }
    if (!shape_is_sane(bytes, size, problem)) {
        return NULL;
    }
    json_error_t error;
    trouble = WELL;
    json_t *root = load(bytes, size, &error);
    if (!root) {
        set_trouble(&error, problem);
    } else if (!json_is_object(root)) {
        bt_serve_problem_set(problem, 400, NULL, "the body must be a JSON object, not %s",
                             bt_serve_json_kind_name(root));
        bt_serve_json_release(root);
        root = NULL;
    }
    return root;
}

const char *bt_serve_json_kind_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:  return "an object";
    case JSON_ARRAY:   return "an array";
    case JSON_STRING:  return "a string";
    case JSON_INTEGER:
    case JSON_REAL:    return "a number";
    case JSON_NULL:    return "null";
    default:           return "a boolean";
    }
}

bool bt_serve_json_whole(const json_t *value, int64_t *ret_value)
{
    if (json_is_integer(value)) {
        *ret_value = json_integer_value(value);
        return true;
    }
    /* 2^53: beyond it a double no longer tells neighbours apart. */
    const double v = json_is_real(value) ? json_real_value(value) : 0.5;
    if (floor(v) != v || fabs(v) > 9007199254740992.0) {
        return false;
    }
    *ret_value = (int64_t)v;
    return true;
}

/* ---- fields ---- */

json_t *bt_serve_fields_find(const bt_fields *f, const char *name)
{
    if (bt_serve_problem_is(f->problem) || !f->object) {
        return NULL;
    }
    json_t *value = json_object_get(f->object, name);
    return json_is_null(value) ? NULL : value;
}

static const char *full_name(const bt_fields *f, const char *name, char to[96])
{
    const bool nested = f->prefix && f->prefix[0];
    snprintf(to, 96, "%s%s%s", nested ? f->prefix : "", nested ? "." : "", name);
    return to;
}

void bt_serve_fields_complain(const bt_fields *f, const char *name, const json_t *value,
                              const char *wanted)
{
    char full[96];
    full_name(f, name, full);
    if (json_is_number(value)) {
        bt_serve_problem_set(f->problem, 400, full, "Field '%s': %s is expected, not %.17g", full,
                             wanted, json_number_value(value));
    } else {
        bt_serve_problem_set(f->problem, 400, full, "Field '%s': %s is expected, not %s", full,
                             wanted, bt_serve_json_kind_name(value));
    }
}

bool bt_serve_fields_bool(const bt_fields *f, const char *name, bool *ret)
{
    const json_t *value = bt_serve_fields_find(f, name);
    if (!value) {
        return false;
    }
    if (!json_is_boolean(value)) {
        bt_serve_fields_complain(f, name, value, "true or false");
        return false;
    }
    *ret = json_is_true(value);
    return true;
}

bool bt_serve_fields_number(const bt_fields *f, const char *name, double min, double max,
                            double *ret)
{
    const json_t *value = bt_serve_fields_find(f, name);
    if (!value) {
        return false;
    }
    const double v = json_number_value(value);
    if (!json_is_number(value) || !(v >= min && v <= max)) {
        char wanted[96];
        snprintf(wanted, sizeof wanted, "a number from %g to %g", min, max);
        bt_serve_fields_complain(f, name, value, wanted);
        return false;
    }
    *ret = v;
    return true;
}

bool bt_serve_fields_integer(const bt_fields *f, const char *name, int64_t min, int64_t max,
                             int64_t *ret)
{
    const json_t *value = bt_serve_fields_find(f, name);
    if (!value) {
        return false;
    }
    int64_t v;
    if (!bt_serve_json_whole(value, &v) || v < min || v > max) {
        char wanted[96];
        snprintf(wanted, sizeof wanted, "a whole number from %" PRId64 " to %" PRId64, min, max);
        bt_serve_fields_complain(f, name, value, wanted);
        return false;
    }
    *ret = v;
    return true;
}

bool bt_serve_fields_text(const bt_fields *f, const char *name, const char **ret_text,
                          size_t *ret_size)
{
    const json_t *value = bt_serve_fields_find(f, name);
    if (!value) {
        return false;
    }
    if (!json_is_string(value)) {
        bt_serve_fields_complain(f, name, value, "a string");
        return false;
    }
    *ret_text = json_string_value(value);
    *ret_size = json_string_length(value);
    return true;
}

json_t *bt_serve_fields_object(const bt_fields *f, const char *name)
{
    json_t *value = bt_serve_fields_find(f, name);
    if (value && !json_is_object(value)) {
        bt_serve_fields_complain(f, name, value, "an object");
        return NULL;
    }
    return value;
}

json_t *bt_serve_fields_array(const bt_fields *f, const char *name)
{
    json_t *value = bt_serve_fields_find(f, name);
    if (value && !json_is_array(value)) {
        bt_serve_fields_complain(f, name, value, "an array");
        return NULL;
    }
    return value;
}

int bt_serve_fields_choice(const bt_fields *f, const char *name, const char *const *names,
                           int fallback)
{
    const char *text = NULL;
    size_t size = 0;
    if (!bt_serve_fields_text(f, name, &text, &size)) {
        return fallback;
    }
    char wanted[128] = "one of";
    for (int i = 0; names[i]; i++) {
        if (strlen(names[i]) == size && memcmp(names[i], text, size) == 0) {
            return i;
        }
        const size_t used = strlen(wanted);
        snprintf(wanted + used, sizeof wanted - used, "%s '%s'", i ? "," : "", names[i]);
    }
    char full[96];
    full_name(f, name, full);
    bt_serve_problem_set(f->problem, 400, full, "Field '%s': %s is expected, not '%.40s'", full,
                         wanted, text);
    return fallback;
}

bool bt_serve_fields_asks(const bt_fields *f, const char *name)
{
    const json_t *value = bt_serve_fields_find(f, name);
    if (!value || json_is_false(value)) {
        return false;
    }
    return !(json_is_string(value) && json_string_length(value) == 0) &&
           !(json_is_array(value) && json_array_size(value) == 0) &&
           !(json_is_object(value) && json_object_size(value) == 0);
}
