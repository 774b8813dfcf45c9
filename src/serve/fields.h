/* serve/fields.h - reading JSON that a client sent.
 *
 * null counts as absent and unknown fields are ignored; a wrong type or a number out of range is a
 * problem (400) that names the field. Readers do nothing once there is a problem, so a parser reads
 * everything and asks once.
 *
 * Lifetime: strings found live as long as the parsed root. Threads: owned by one.
 */
#ifndef BT_SERVE_FIELDS_H
#define BT_SERVE_FIELDS_H

#include <jansson.h>

#include "serve/problem.h"

/* Routes jansson's memory through base/memory.h and seeds its hash. Before any other use of it. */
void bt_serve_json_setup(void);

/* An object, or NULL and a problem: not JSON (line and column), too deep, too many values, another
 * kind of value; 429 when the values of all requests together would take more than
 * BT_JSON_BYTES_MAX. A byte order mark is skipped. */
json_t *bt_serve_json_parse_object(const char *bytes, size_t size, bt_problem *problem);
/* NULL is fine. Memory of large values goes back to the system. */
void bt_serve_json_release(json_t *root);
uint64_t bt_serve_json_bytes(void);        /* held by parsed values of all requests */

typedef struct {
    json_t     *object;        /* borrowed */
    const char *prefix;        /* "stream_options" for messages, "" at the top */
    bt_problem *problem;
} bt_fields;

/* NULL when absent, null, or after a problem. */
json_t *bt_serve_fields_find(const bt_fields *f, const char *name);
/* "Field 'a.b': WANTED is expected, not KIND". */
void bt_serve_fields_complain(const bt_fields *f, const char *name, const json_t *value,
                              const char *wanted);

/* true when present and valid; else *ret is untouched. Whole numbers may be written 40.0. */
bool bt_serve_fields_bool(const bt_fields *f, const char *name, bool *ret);
bool bt_serve_fields_number(const bt_fields *f, const char *name, double min, double max,
                            double *ret);
bool bt_serve_fields_integer(const bt_fields *f, const char *name, int64_t min, int64_t max,
                             int64_t *ret);
bool bt_serve_fields_text(const bt_fields *f, const char *name, const char **ret_text,
                          size_t *ret_size);
/* NULL when absent, or after a problem when it is something else. */
json_t *bt_serve_fields_object(const bt_fields *f, const char *name);
json_t *bt_serve_fields_array(const bt_fields *f, const char *name);
/* The index of the field's text in `names` (NULL-terminated); `fallback` when absent. */
int bt_serve_fields_choice(const bt_fields *f, const char *name, const char *const *names,
                           int fallback);
/* Present, and neither null, false, "", [] nor {}: for features that are refused when asked for. */
bool bt_serve_fields_asks(const bt_fields *f, const char *name);

const char *bt_serve_json_kind_name(const json_t *value);
bool bt_serve_json_whole(const json_t *value, int64_t *ret_value);

#endif
