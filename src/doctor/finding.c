/* doctor/finding.c - see advice.h and finding.h. */
#include "doctor/finding.h"

#include <stdarg.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/say.h"

const char *bt_doctor_finding_state_name(bt_finding_state s)
{
    static const char *const names[] = { "ok", "advice", "problem", "skipped" };
    return (unsigned)s < BT_LEN(names) ? names[s] : "unknown";
}

/* ---- writing findings ---- */

bt_finding *bt_doctor_finding_say(bt_findings *f, const char *name, bt_finding_state state,
                       const char *format, ...)
{
    bt_finding *at = &f->list[f->n];   /* the last place is for what has none */
    va_list args;
    f->n += f->n < BT_FINDINGS_MAX;
    *at = (bt_finding){ .name = name, .state = state };
    va_start(args, format);
    (void)vsnprintf(at->text, sizeof at->text, format, args);
    va_end(args);
    return at;
}

typedef struct {
    char  *text;
    size_t n, room;
} command_text;

static bool put(command_text *to, const char *text, size_t n)
{
    if (n > to->room - to->n) {
        return false;
    }
    memcpy(to->text + to->n, text, n);
    to->n += n;
    return true;
}

/* As one word for a shell; as it is, where that is one. False: no room. */
static bool quote(command_text *to, const char *value)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_./:@%+,=-";
    if (value[0] != '\0' && value[strspn(value, plain)] == '\0') {
        return put(to, value, strlen(value));
    }
    bool fits = put(to, "'", 1);
    for (; *value != '\0' && fits; value++) {
        fits = *value == '\'' ? put(to, "'\\''", 4) : put(to, value, 1);
    }
    return fits && put(to, "'", 1);
}

/* The format knows %s, a value, which is quoted so that it remains one, and %u. A command that does
 * not fit is left out: half of one fixes nothing. */
void bt_doctor_finding_fix(bt_finding *at, bool worker, const char *format, ...)
{
    va_list args;
    if (at->n_fixes == BT_FIXES_MAX) {
        return;
    }
    bt_fix *m = &at->fixes[at->n_fixes];
    command_text to = { .text = m->command, .room = sizeof m->command - 1 };
    bool fits = true;
    m->worker = worker;
    va_start(args, format);
    for (const char *p = format; *p != '\0' && fits; p++) {
        char number[12];
        if (*p != '%') {
            fits = put(&to, p, 1);
        } else if (*++p == 's') {
            fits = quote(&to, va_arg(args, const char *));
        } else {
            BT_ASSERT(*p == 'u');
            bt_say(number, sizeof number, "%u", va_arg(args, unsigned));
            fits = put(&to, number, strlen(number));
        }
    }
    va_end(args);
    m->command[to.n] = '\0';
    at->n_fixes += fits;
}

/* "512 KiB", "32.0 MiB". */
const char *bt_doctor_size_text(double bytes, char to[24])
{
    if (bytes < 1048576) {
        bt_say(to, 24, "%.0f KiB", bytes / 1024);
    } else {
        bt_say(to, 24, "%.1f MiB", bytes / 1048576);
    }
    return to;
}

/* ---- numbers ---- */

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

bt_spread bt_doctor_spread_of(const double *values, uint32_t n)
{
    double sorted[BT_PROBE_TIMES_MAX];
    bt_spread s = { 0 };
    n = n < BT_PROBE_TIMES_MAX ? n : BT_PROBE_TIMES_MAX;
    if (n == 0) {
        return s;
    }
    memcpy(sorted, values, n * sizeof *values);
    qsort(sorted, n, sizeof *sorted, by_size);
    s.median = n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
    s.low = sorted[(n - 1) / 10];
    s.high = sorted[n - 1 - (n - 1) / 10];
    return s;
}

double bt_doctor_checkup_goodput(const bt_checkup *c)
{
    const double round_trip = bt_doctor_spread_of(c->round_trip_ms, c->n_round_trips).low;
    const double ms = c->large_ms - round_trip;
    return c->large_bytes > 0 && ms > 0 ? c->large_bytes / ms * 1e3 : 0;
}

/* ---- addresses in commands ---- */

/* "10.0.0.2" of "10.0.0.2:7070", "fd00::2" of "[fd00::2]:7070". */
const char *bt_doctor_address_bare(const char *peer, bare_address *to)
{
    const bool v6 = peer[0] == '[';
    bt_say(to->text, sizeof to->text, "%s", peer + v6);
    char *end = v6 ? strchr(to->text, ']') : strrchr(to->text, ':');
    if (end) {
        *end = '\0';
    }
    return to->text;
}

bool bt_doctor_address_is_loopback(const char *bare)
{
    return strncmp(bare, "127.", 4) == 0 || is(bare, "::1");
}

bool bt_doctor_checkup_full(const bt_checkup *c)
{
    return c->visit_error.status == BT_OK && c->facts.n_servers_max > 0 &&
           c->facts.n_servers >= c->facts.n_servers_max;
}

bool bt_doctor_findings_well(const bt_findings *f)
{
    for (uint32_t i = 0; i < f->n; i++) {
        if (f->list[i].state == BT_FINDING_PROBLEM) {
            return false;
        }
    }
    return f->n > 0;
}
