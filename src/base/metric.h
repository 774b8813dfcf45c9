/* base/metric.h - status structs that are written down once.
 *
 * A list names the members of a struct: type, name, kind, unit, help. From it come the struct, its
 * JSON object, its Prometheus families and its table in docs/http.md (which a test compares):
 *
 *   #define BT_EXAMPLE_LIST(X)                                                        \
 *       X(char[64], address,     TEXT,    NONE,   "HOST:PORT")                          \
 *       X(uint64_t, n_prompts,   COUNTER, NONE,   "Prompts committed")                  \
 *       X(double,   transfer_ms, COUNTER, MS,     "Time from first rows to commit")
 *
 *   typedef struct { BT_METRIC_MEMBERS(BT_EXAMPLE_LIST) } bt_example;          in the header
 *   BT_METRIC_DEFINE(bt_example_metrics, bt_example, "baton_example", BT_EXAMPLE_LIST)   in a .c
 *
 * Types: uint32_t, uint64_t, double, bool, char[N], const char * (static; NULL reads as null),
 * bt_histogram. In JSON a member has its own name. In Prometheus it is PREFIX_NAME without a
 * leading "n_", "_ms" becomes "_seconds" (and the value is divided), counters end in "_total", and
 * texts do not appear. So baton_example_prompts_total and baton_example_transfer_seconds_total
 * above. After a prefix that ends in ':', names of others, the "n_" stays.
 *
 * Threads: tables are immutable; a struct belongs to whoever filled it.
 */
#ifndef BT_BASE_METRIC_H
#define BT_BASE_METRIC_H

#include <stddef.h>

#include "base/json.h"

typedef enum {
    BT_METRIC_COUNTER,                 /* only grows */
    BT_METRIC_GAUGE,
    BT_METRIC_TEXT,
    BT_METRIC_HISTOGRAM
} bt_metric_kind;

typedef enum {
    BT_UNIT_NONE,
    BT_UNIT_TOKENS,
    BT_UNIT_BYTES,
    BT_UNIT_MS,
    BT_UNIT_SECONDS,
    BT_UNIT_TOKENS_PER_SECOND,
    BT_UNIT_BYTES_PER_SECOND
} bt_metric_unit;

/* ---- histograms of seconds ---- */

enum { BT_HISTOGRAM_BOUNDS = 16 };

typedef struct {
    uint64_t counts[BT_HISTOGRAM_BOUNDS + 1];
    double   sum;
} bt_histogram;

void bt_histogram_add(bt_histogram *h, double seconds);
void bt_histogram_merge(bt_histogram *to, const bt_histogram *from);

/* ---- lists ---- */

typedef enum {
    BT_METRIC_U32, BT_METRIC_U64, BT_METRIC_F64, BT_METRIC_BOOL, BT_METRIC_CHARS,
    BT_METRIC_STRING, BT_METRIC_DISTRIBUTION
} bt_metric_type;

typedef struct {
    const char    *name, *help;
    bt_metric_type type;
    bt_metric_kind kind;
    bt_metric_unit unit;
    size_t         offset;
} bt_metric;

typedef struct {
    const char      *prefix;           /* of the Prometheus names, "baton_worker" */
    const bt_metric *metrics;
    size_t           n;
} bt_metric_list;

#define BT_METRIC_MEMBER_(type, name, kind, unit, help) __typeof__(type) name;
#define BT_METRIC_MEMBERS(LIST) LIST(BT_METRIC_MEMBER_)

#define BT_METRIC_TYPE_(member)                                                     \
    _Generic((member), uint32_t *: BT_METRIC_U32, uint64_t *: BT_METRIC_U64,        \
             double *: BT_METRIC_F64, bool *: BT_METRIC_BOOL,                       \
             const char **: BT_METRIC_STRING, bt_histogram *: BT_METRIC_DISTRIBUTION, \
             default: BT_METRIC_CHARS)
#define BT_METRIC_ROW_(type, name, kind, unit, help)                                \
    { #name, help, BT_METRIC_TYPE_(&((bt_metric_subject *)0)->name), BT_METRIC_##kind, \
      BT_UNIT_##unit, offsetof(bt_metric_subject, name) },
/* Defines `bt_metric_list function(void)`. */
#define BT_METRIC_DEFINE(function, struct_type, prefix, LIST)                       \
    bt_metric_list function(void)                                                   \
    {                                                                               \
        typedef struct_type bt_metric_subject;                                      \
        static const bt_metric metrics[] = { LIST(BT_METRIC_ROW_) };                \
        return (bt_metric_list){ prefix, metrics, sizeof metrics / sizeof metrics[0] }; \
    }

/* ---- writers ---- */

/* The members as "name": value pairs, inside an object that the caller opened. */
void bt_metric_put_json(bt_json_writer *w, const bt_metric_list *list, const void *subject);

/* Every family of the list: HELP, TYPE, and one sample for each of `n` subjects that lie `stride`
 * bytes apart. `label` NULL: one subject, no label; else {label="TEXT"} with the text of the
 * list's member `label_member`. */
void bt_metric_put_prometheus(bt_buf *to, const bt_metric_list *list, const void *subjects,
                              size_t stride, size_t n, const char *label,
                              const char *label_member);

/* The rows of a Markdown table: member, Prometheus name, kind and unit, help. */
void bt_metric_put_markdown(bt_buf *to, const bt_metric_list *list);

/* For families that no list holds: labels known only at run time. */
void bt_metric_put_head(bt_buf *to, const char *name, bt_metric_kind kind, const char *help);
/* NAME{label="text"} value; `label` NULL: without. */
void bt_metric_put_sample(bt_buf *to, const char *name, const char *label, const char *text,
                          double value);

#endif
