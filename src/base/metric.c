#include "base/metric.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAME_MAX_BYTES = 160 };

/* ---- histograms ---- */

/* 1 ms to 2 minutes: below lies a cached prompt on a small model, above a long prompt on a slow
 * machine. Steps of about two, so that a quantile is known within a factor of two everywhere. */
static const double bounds[BT_HISTOGRAM_BOUNDS] = {
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.25, 2.5, 5, 15, 45, 120
};

void bt_histogram_add(bt_histogram *h, double seconds)
{
    size_t i = 0;
    if (!(seconds >= 0)) {
        seconds = 0;
    }
    while (i < BT_HISTOGRAM_BOUNDS && seconds > bounds[i]) {
        i++;
    }
    h->counts[i]++;
    h->sum += seconds;
}

void bt_histogram_merge(bt_histogram *to, const bt_histogram *from)
{
    for (size_t i = 0; i <= BT_HISTOGRAM_BOUNDS; i++) {
        to->counts[i] += from->counts[i];
    }
    to->sum += from->sum;
}

static uint64_t histogram_count(const bt_histogram *h)
{
    uint64_t n = 0;
    for (size_t i = 0; i <= BT_HISTOGRAM_BOUNDS; i++) {
        n += h->counts[i];
    }
    return n;
}

/* ---- values ---- */

static double number_of(const bt_metric *m, const void *at)
{
    switch (m->type) {
    case BT_METRIC_U32:  return *(const uint32_t *)at;
    case BT_METRIC_U64:  return (double)*(const uint64_t *)at;
    case BT_METRIC_BOOL: return *(const bool *)at;
    case BT_METRIC_F64:  return *(const double *)at;
    default:             return 0;
    }
}

static const char *text_of(const bt_metric *m, const void *at)
{
    return m->type == BT_METRIC_STRING ? *(const char *const *)at : at;
}

static const void *member(const bt_metric *m, const void *subject)
{
    return (const char *)subject + m->offset;
}

/* ---- JSON ---- */

static void put_json_histogram(bt_json_writer *w, const char *name, const bt_histogram *h)
{
    bt_json_open(w, name, '{');
    bt_json_natural(w, "count", histogram_count(h));
    bt_json_number(w, "sum", h->sum);
    bt_json_close(w, '}');
}

void bt_metric_put_json(bt_json_writer *w, const bt_metric_list *list, const void *subject)
{
    for (size_t i = 0; i < list->n; i++) {
        const bt_metric *m = &list->metrics[i];
        const void *at = member(m, subject);
        switch (m->type) {
        case BT_METRIC_U32:    bt_json_natural(w, m->name, *(const uint32_t *)at); break;
        case BT_METRIC_U64:    bt_json_natural(w, m->name, *(const uint64_t *)at); break;
        case BT_METRIC_F64:    bt_json_number(w, m->name, *(const double *)at); break;
        case BT_METRIC_BOOL:   bt_json_bool(w, m->name, *(const bool *)at); break;
        case BT_METRIC_CHARS:
        case BT_METRIC_STRING: bt_json_string(w, m->name, text_of(m, at)); break;
        case BT_METRIC_DISTRIBUTION: put_json_histogram(w, m->name, at); break;
        }
    }
}

/* ---- Prometheus ---- */

static const char *kind_name(bt_metric_kind kind)
{
    static const char *const names[] = { "counter", "gauge", "text", "histogram" };
    return names[kind];
}

static void series_name(const bt_metric_list *list, const bt_metric *m, char to[NAME_MAX_BYTES])
{
    const char *name = m->name;
    size_t size = strlen(name);
    const bool is_ms = m->unit == BT_UNIT_MS && size > 3 && strcmp(name + size - 3, "_ms") == 0;
    const bool foreign = list->prefix[strlen(list->prefix) - 1] == ':';
    if (!foreign && strncmp(name, "n_", 2) == 0) {
        name += 2;
        size -= 2;
    }
    snprintf(to, NAME_MAX_BYTES, "%s%s%.*s%s%s", list->prefix, foreign ? "" : "_",
             (int)(size - (is_ms ? 3 : 0)), name,
             is_ms ? "_seconds" : "", m->kind == BT_METRIC_COUNTER ? "_total" : "");
}

void bt_metric_put_head(bt_buf *to, const char *name, bt_metric_kind kind, const char *help)
{
    bt_buf_printf(to, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind_name(kind));
}

/* `more`: a second label with its text, e.g. le="0.1", or "". */
static void put_labels(bt_buf *to, const char *label, const char *text, const char *more)
{
    if (!label && !more[0]) {
        return;
    }
    bt_buf_puts(to, "{");
    if (label) {
        bt_buf_printf(to, "%s=\"", label);
        for (const char *c = text ? text : ""; *c; c++) {
            const bool escaped = *c == '"' || *c == '\\';
            bt_buf_printf(to, "%s%c", escaped ? "\\" : "", (unsigned char)*c < ' ' ? ' ' : *c);
        }
        bt_buf_printf(to, "\"%s", more[0] ? "," : "");
    }
    bt_buf_printf(to, "%s}", more);
}

static void put_value(bt_buf *to, double value)
{
    bt_buf_printf(to, " %.15g\n", isfinite(value) ? value : 0.0);
}

void bt_metric_put_sample(bt_buf *to, const char *name, const char *label, const char *text,
                          double value)
{
    bt_buf_puts(to, name);
    put_labels(to, label, text, "");
    put_value(to, value);
}

static void put_histogram(bt_buf *to, const char *name, const char *label, const char *text,
                          const bt_histogram *h)
{
    uint64_t sum = 0;
    for (size_t i = 0; i <= BT_HISTOGRAM_BOUNDS; i++) {
        char le[32] = "le=\"+Inf\"";
        if (i < BT_HISTOGRAM_BOUNDS) {
            snprintf(le, sizeof le, "le=\"%g\"", bounds[i]);
        }
        sum += h->counts[i];
        bt_buf_printf(to, "%s_bucket", name);
        put_labels(to, label, text, le);
        put_value(to, (double)sum);
    }
    bt_buf_printf(to, "%s_sum", name);
    put_labels(to, label, text, "");
    put_value(to, h->sum);
    bt_buf_printf(to, "%s_count", name);
    put_labels(to, label, text, "");
    put_value(to, (double)sum);
}

static const bt_metric *find(const bt_metric_list *list, const char *name)
{
    for (size_t i = 0; name && i < list->n; i++) {
        if (strcmp(list->metrics[i].name, name) == 0) {
            return &list->metrics[i];
        }
    }
    return NULL;
}

void bt_metric_put_prometheus(bt_buf *to, const bt_metric_list *list, const void *subjects,
                              size_t stride, size_t n, const char *label,
                              const char *label_member)
{
    const bt_metric *labelled = find(list, label_member);
    for (size_t i = 0; i < list->n; i++) {
        const bt_metric *m = &list->metrics[i];
        char name[NAME_MAX_BYTES];
        if (m->kind == BT_METRIC_TEXT) {
            continue;
        }
        series_name(list, m, name);
        bt_metric_put_head(to, name, m->kind, m->help);
        for (size_t k = 0; k < n; k++) {
            const void *subject = (const char *)subjects + k * stride;
            const void *at = member(m, subject);
            const char *text = labelled ? text_of(labelled, member(labelled, subject)) : NULL;
            const char *key = labelled ? label : NULL;
            if (m->type == BT_METRIC_DISTRIBUTION) {
                put_histogram(to, name, key, text, at);
            } else {
                bt_metric_put_sample(to, name, key, text,
                                     number_of(m, at) / (m->unit == BT_UNIT_MS ? 1e3 : 1));
            }
        }
    }
}

/* ---- the page of names ---- */

void bt_metric_put_markdown(bt_buf *to, const bt_metric_list *list)
{
    static const char *const units[] = { "", ", tokens", ", bytes", ", ms", ", seconds",
                                         ", tokens/s", ", bytes/s" };
    for (size_t i = 0; i < list->n; i++) {
        const bt_metric *m = &list->metrics[i];
        char name[NAME_MAX_BYTES] = "";
        if (m->kind != BT_METRIC_TEXT) {
            series_name(list, m, name);
        }
        bt_buf_printf(to, "| `%s` | %s%s%s | %s%s | %s |\n", m->name, name[0] ? "`" : "", name,
                      name[0] ? "`" : "", kind_name(m->kind), units[m->unit], m->help);
    }
}
