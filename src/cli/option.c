/* cli/option.c - see option.h. */
#include "cli/option.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/say.h"
#include "base/status.h"

/* ---- names ---- */

bool bt_option_name_at(const bt_option *o, size_t index, char to[BT_OPTION_NAME_MAX])
{
    const char *at = o->names;
    for (size_t i = 0;; i++) {
        at += strspn(at, ", ");
        const size_t n = strcspn(at, ", ");
        if (n == 0) {
            return false;
        }
        if (i == index) {
            bt_say(to, BT_OPTION_NAME_MAX, "%.*s", (int)n, at);
            return true;
        }
        at += n;
    }
}

bool bt_option_has_name(const bt_option *o, const char *word, bool *ret_negated)
{
    char name[BT_OPTION_NAME_MAX];
    for (size_t i = 0; bt_option_name_at(o, i, name); i++) {
        if (strcmp(word, name) == 0) {
            *ret_negated = false;
            return true;
        }
        if (o->negatable && strncmp(word, "--no-", 5) == 0 && strncmp(name, "--", 2) == 0 &&
            strcmp(word + 5, name + 2) == 0) {
            *ret_negated = true;
            return true;
        }
    }
    return false;
}

bool bt_option_variable_at(const bt_option *o, size_t index, char to[BT_OPTION_NAME_MAX])
{
    static const char *const prefixes[] = { "", "LLAMA_ARG_", "BATON_" };
    if (index >= BT_LEN(prefixes)) {
        return false;
    }
    const char *name = index == 0 ? o->secret_env : o->env;
    bt_say(to, BT_OPTION_NAME_MAX, "%s%s", name ? prefixes[index] : "", name ? name : "");
    return true;
}

/* Levenshtein distance; words are short. */
size_t bt_option_distance(const char *a, const char *b)
{
    size_t row[BT_OPTION_NAME_MAX + 1];
    const size_t n = strnlen(b, BT_OPTION_NAME_MAX);
    for (size_t j = 0; j <= n; j++) {
        row[j] = j;
    }
    for (size_t i = 1; a[i - 1] && i < BT_OPTION_NAME_MAX; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            const size_t replace = diagonal + (a[i - 1] != b[j - 1]);
            const size_t insert = row[j - 1] + 1;
            diagonal = row[j];
            const size_t delete = row[j] + 1;
            row[j] = replace < insert ? replace : insert;
            row[j] = row[j] < delete ? row[j] : delete;
        }
    }
    return row[n];
}

/* ---- values ---- */

static bool parse_whole(const char *text, int64_t low, int64_t high, int64_t *ret)
{
    char *end;
    errno = 0;
    const long long v = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end || v < low || v > high) {
        return false;
    }
    *ret = v;
    return true;
}

static bool parse_size(const char *text, uint64_t *ret)
{
    char *end;
    errno = 0;
    if (text[0] < '0' || text[0] > '9') {
        return false;
    }
    const unsigned long long v = strtoull(text, &end, 10);
    unsigned shift = 0;
    switch (*end) {
    case 'k': case 'K': shift = 10; end++; break;
    case 'm': case 'M': shift = 20; end++; break;
    case 'g': case 'G': shift = 30; end++; break;
    default: break;
    }
    if (errno != 0 || *end || v > (UINT64_MAX >> shift)) {
        return false;
    }
    *ret = (uint64_t)v << shift;
    return true;
}

static bool store_flag(const char *text, bool *slot)
{
    static const char *const yes[] = { "1", "true", "on", "enabled", "yes" };
    static const char *const no[] = { "0", "false", "off", "disabled", "no" };
    for (size_t i = 0; i < BT_LEN(yes); i++) {
        if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) {
            *slot = strcmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

static void limits(const bt_option *o, double *ret_low, double *ret_high)
{
    const bool any = o->low >= o->high, is_signed = o->kind == BT_OPT_I32;
    *ret_low = !any ? o->low : is_signed ? INT32_MIN : 0;
    *ret_high = !any ? o->high : is_signed ? INT32_MAX : UINT32_MAX;
}

static bool store_whole(const bt_option *o, const char *text, void *slot)
{
    double low, high;
    int64_t whole;
    limits(o, &low, &high);
    if (!parse_whole(text, (int64_t)low, (int64_t)high, &whole)) {
        return false;
    }
    if (o->kind == BT_OPT_I32) {
        *(int32_t *)slot = (int32_t)whole;
    } else {
        *(uint32_t *)slot = (uint32_t)whole;
    }
    return true;
}

static bool within(const bt_option *o, double v)
{
    return o->low >= o->high || (v >= o->low && v <= o->high);
}

static bool store_real(const bt_option *o, const char *text, float *slot)
{
    char *end;
    const float v = strtof(text, &end);
    if (end == text || *end || !isfinite(v) || !within(o, (double)v)) {
        return false;
    }
    *slot = v;
    return true;
}

static bool store_size(const bt_option *o, const char *text, uint64_t *slot)
{
    uint64_t v;
    if (!parse_size(text, &v) || !within(o, (double)v)) {
        return false;
    }
    *slot = v;
    return true;
}

static bool store_choice(const bt_option *o, const char *text, const char **slot)
{
    for (const char *const *c = o->choices; *c; c++) {
        if (strcasecmp(*c, text) == 0) {
            *slot = *c;
            return true;
        }
    }
    return false;
}

bool bt_option_store(const bt_option *o, const char *text, void *group)
{
    void *slot = (char *)group + o->offset;
    switch (o->kind) {
    case BT_OPT_FLAG: return store_flag(text, slot);
    case BT_OPT_U32_AUTO:
        if (strcmp(text, "auto") == 0) {
            *(uint32_t *)slot = BT_OPTION_AUTO;
            return true;
        }
        return store_whole(o, text, slot);
    case BT_OPT_U32:
    case BT_OPT_I32: return store_whole(o, text, slot);
    case BT_OPT_F32: return store_real(o, text, slot);
    case BT_OPT_SIZE: return store_size(o, text, slot);
    case BT_OPT_TEXT: *(const char **)slot = text; return true;
    case BT_OPT_CHOICE: return store_choice(o, text, slot);
    }
    return false;
}

static void describe_choices(const bt_option *o, char *to, size_t capacity)
{
    size_t n = 0;
    for (const char *const *c = o->choices; *c && n < capacity; c++) {
        const char *between = c == o->choices ? "" : c[1] ? ", " : " or ";
        bt_say(to + n, capacity - n, "%s%s", between, *c);
        n += strlen(to + n);
    }
}

void bt_option_describe(const bt_option *o, char *to, size_t capacity)
{
    double low, high;
    limits(o, &low, &high);
    switch (o->kind) {
    case BT_OPT_FLAG: bt_say(to, capacity, "on or off"); break;
    case BT_OPT_CHOICE: describe_choices(o, to, capacity); break;
    case BT_OPT_TEXT: bt_say(to, capacity, "text"); break;
    case BT_OPT_SIZE:
        if (o->low < o->high) {
            bt_say(to, capacity, "a number of bytes such as 512K or 32M, at most %.0fM",
                   o->high / 1048576);
        } else {
            bt_say(to, capacity, "a number of bytes such as 512M or 8G");
        }
        break;
    case BT_OPT_F32:
        if (o->low < o->high) {
            bt_say(to, capacity, "a number from %.10g to %.10g", o->low, o->high);
        } else {
            bt_say(to, capacity, "a number");
        }
        break;
    default:
        bt_say(to, capacity, "a whole number from %.10g to %.10g%s", low, high,
               o->kind == BT_OPT_U32_AUTO ? ", or auto" : "");
        break;
    }
}
