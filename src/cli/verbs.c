/* Options: one table per verb feeds parsing, environment variables and the help. */
#include "cli/verbs.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/status.h"

#if defined(__APPLE__)
extern char **environ;                 /* no header has it */
#endif

enum { NAME_MAX_BYTES = 64, SETTINGS_MAX = 160, MESSAGE_BYTES_MAX = 2048 };

/* ---- who set what: of the verb that runs, written while it is parsed ---- */

typedef struct {
    const bt_option *option;
    const char      *text;             /* the value as it was written; NULL: a bare flag */
    bool             environment;
    char             by[NAME_MAX_BYTES + 16];
} setting;

static const char *verb_name = "VERB";
static setting settings[SETTINGS_MAX]; /* the last one of an option counts */
static size_t n_settings;

static void remember(const bt_option *o, const char *by, const char *text, bool environment)
{
    size_t i = 0;
    while (i < n_settings && settings[i].option != o) {
        i++;
    }
    if (i == SETTINGS_MAX) {
        return;                        /* more options than any verb has */
    }
    n_settings += i == n_settings;
    settings[i] = (setting){ .option = o, .text = text, .environment = environment };
    snprintf(settings[i].by, sizeof settings[i].by, "%s", by);
}

/* ---- errors ---- */

/* " (BATON_KEY_FILE)" for a sentence about '/the/key', which stands in that variable. */
static void say_variable(const char *message)
{
    for (size_t i = 0; i < n_settings; i++) {
        const setting *s = &settings[i];
        const size_t n = s->text ? strlen(s->text) : 0;
        if (!s->environment || s->option->kind != BT_OPT_TEXT || strstr(message, s->by)) {
            continue;
        }
        for (const char *at = strchr(message, '\''); at; at = strchr(at + 1, '\'')) {
            if (strncmp(at + 1, s->text, n) == 0 && at[1 + n] == '\'') {
                fprintf(stderr, " (%s)", s->by);
                return;
            }
        }
    }
}

static void __attribute__((format(printf, 1, 0))) say(const char *format, va_list args)
{
    char message[MESSAGE_BYTES_MAX];
    vsnprintf(message, sizeof message, format, args);
    fprintf(stderr, "error: %s", message);
    say_variable(message);
}

int bt_cli_say_error(const char *format, ...)
{
    va_list args;
    (void)bt_log_flush(BT_LOG_EXIT_MS);          /* in order: what led to it comes first */
    va_start(args, format);
    say(format, args);
    fputc('\n', stderr);
    va_end(args);
    return 1;
}

int bt_cli_usage_error(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(format, args);
    fprintf(stderr, "; baton %s --help lists the options\n", verb_name);
    va_end(args);
    return 2;
}

/* ---- names ---- */

/* The `index`-th name of "-m, --model"; false when there are no more. */
static bool name_at(const char *names, size_t index, char to[NAME_MAX_BYTES])
{
    const char *at = names;
    for (size_t i = 0;; i++) {
        at += strspn(at, ", ");
        const size_t n = strcspn(at, ", ");
        if (n == 0) {
            return false;
        }
        if (i == index) {
            snprintf(to, NAME_MAX_BYTES, "%.*s", (int)n, at);
            return true;
        }
        at += n;
    }
}

static bool option_has_name(const bt_option *o, const char *word, bool *ret_negated)
{
    char name[NAME_MAX_BYTES];
    for (size_t i = 0; name_at(o->names, i, name); i++) {
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

static const setting *find_setting(const char *name)
{
    bool negated;
    for (size_t i = 0; i < n_settings; i++) {
        if (option_has_name(settings[i].option, name, &negated)) {
            return &settings[i];
        }
    }
    return NULL;
}

const char *bt_cli_set_by(const char *option)
{
    const setting *s = find_setting(option);
    return s ? s->by : option;
}

bool bt_cli_is_set(const char *option)
{
    return find_setting(option) != NULL;
}

int bt_cli_refuse_idle(const char *const *options, const char *why)
{
    for (; *options; options++) {
        const setting *s = find_setting(*options);
        if (s && !s->environment) {
            return bt_cli_usage_error("%s does nothing %s", s->by, why);
        }
    }
    return 0;
}

typedef void each_option(void *context, const bt_option *o);

static void for_each_option(const bt_verb *verb, each_option *fn, void *context)
{
    for (size_t t = 0; t < BT_OPTION_TABLES_MAX && verb->tables[t]; t++) {
        for (const bt_option *o = verb->tables[t]; o->names; o++) {
            fn(context, o);
        }
    }
}

static const bt_option *find_option(const bt_verb *verb, const char *word, bool *ret_negated)
{
    for (size_t t = 0; t < BT_OPTION_TABLES_MAX && verb->tables[t]; t++) {
        for (const bt_option *o = verb->tables[t]; o->names; o++) {
            if (option_has_name(o, word, ret_negated)) {
                return o;
            }
        }
    }
    return NULL;
}

/* Levenshtein distance; words are short. */
static size_t distance(const char *a, const char *b)
{
    size_t row[NAME_MAX_BYTES + 1];
    const size_t n = strnlen(b, NAME_MAX_BYTES);
    for (size_t j = 0; j <= n; j++) {
        row[j] = j;
    }
    for (size_t i = 1; a[i - 1] && i < NAME_MAX_BYTES; i++) {
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

typedef struct { const char *word; size_t best; char name[NAME_MAX_BYTES]; } nearest_search;

static void look_nearer(void *context, const bt_option *o)
{
    nearest_search *s = context;
    char name[NAME_MAX_BYTES];
    for (size_t i = 0; name_at(o->names, i, name); i++) {
        const size_t d = distance(s->word, name);
        if (d < s->best) {
            s->best = d;
            memcpy(s->name, name, sizeof name);
        }
    }
}

static int unknown_option(const bt_verb *verb, const char *word)
{
    nearest_search s = { .word = word, .best = SIZE_MAX };
    for_each_option(verb, look_nearer, &s);
    if (s.best <= 1 + strlen(word) / 5) {
        return bt_cli_usage_error("'%s' is not an option of 'baton %s'; did you mean %s?", word,
                                  verb->name, s.name);
    }
    return bt_cli_usage_error("'%s' is not an option of 'baton %s'", word, verb->name);
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

static bool parse_bool(const char *text, bool *ret)
{
    static const char *const yes[] = { "1", "true", "on", "enabled", "yes" };
    static const char *const no[] = { "0", "false", "off", "disabled", "no" };
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
        if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) {
            *ret = strcmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

static bool store_whole(const bt_option *o, const char *text, void *slot)
{
    const bool any = o->low >= o->high, is_signed = o->kind == BT_OPT_I32;
    const int64_t low = !any ? (int64_t)o->low : is_signed ? INT32_MIN : 0;
    const int64_t high = !any ? (int64_t)o->high : is_signed ? INT32_MAX : UINT32_MAX;
    int64_t whole;
    if (!parse_whole(text, low, high, &whole)) {
        return false;
    }
    if (is_signed) {
        *(int32_t *)slot = (int32_t)whole;
    } else {
        *(uint32_t *)slot = (uint32_t)whole;
    }
    return true;
}

static bool store_real(const bt_option *o, const char *text, float *slot)
{
    char *end;
    const float v = strtof(text, &end);
    if (end == text || *end || !isfinite(v)) {
        return false;
    }
    if (o->low < o->high && ((double)v < o->low || (double)v > o->high)) {
        return false;
    }
    *slot = v;
    return true;
}

static bool store_size(const bt_option *o, const char *text, uint64_t *slot)
{
    uint64_t v;
    if (!parse_size(text, &v) ||
        (o->low < o->high && ((double)v < o->low || (double)v > o->high))) {
        return false;
    }
    *slot = v;
    return true;
}

static bool store_value(const bt_option *o, const char *text, void *slot)
{
    switch (o->kind) {
    case BT_OPT_FLAG: return parse_bool(text, slot);
    case BT_OPT_U32:
    case BT_OPT_I32: return store_whole(o, text, slot);
    case BT_OPT_F32: return store_real(o, text, slot);
    case BT_OPT_SIZE: return store_size(o, text, slot);
    case BT_OPT_TEXT: *(const char **)slot = text; return true;
    }
    return false;
}

/* Says what `name` was and what a person may write instead. */
static int bad_value(const bt_option *o, const char *name, const char *text)
{
    const char *kind = o->kind == BT_OPT_F32 ? "a number" : "a whole number";
    if (o->kind == BT_OPT_FLAG) {
        return bt_cli_usage_error("%s is '%.60s', but must be on or off", name, text);
    }
    if (o->kind == BT_OPT_SIZE && o->low < o->high) {
        return bt_cli_usage_error("%s is '%.60s', but must be a number of bytes such as 512K or "
                                  "32M, at most %.0fM", name, text, o->high / 1048576);
    }
    if (o->kind == BT_OPT_SIZE) {
        return bt_cli_usage_error("%s is '%.60s', but must be a number of bytes such as 512M or "
                                  "8G", name, text);
    }
    if (o->low < o->high) {
        return bt_cli_usage_error("%s is '%.60s', but must be %s from %.10g to %.10g", name, text,
                                  kind, o->low, o->high);
    }
    const double low = o->kind == BT_OPT_U32 ? 0 : INT32_MIN;
    const double high = o->kind == BT_OPT_U32 ? UINT32_MAX : INT32_MAX;
    if (o->kind == BT_OPT_F32) {
        return bt_cli_usage_error("%s is '%.60s', but must be a number", name, text);
    }
    return bt_cli_usage_error("%s is '%.60s', but must be a whole number from %.10g to %.10g", name,
                              text, low, high);
}

/* The `index`-th variable that is read for an option, the last one wins; false: no more. */
static bool variable_at(const bt_option *o, size_t index, char to[NAME_MAX_BYTES + 16])
{
    static const char *const prefixes[] = { "", "LLAMA_ARG_", "BATON_" };
    const char *name = index == 0 ? o->secret_env : o->env;
    if (index >= BT_LEN(prefixes)) {
        return false;
    }
    snprintf(to, NAME_MAX_BYTES + 16, "%s%s", prefixes[index], name ? name : "");
    if (!name) {
        to[0] = '\0';
    }
    return true;
}

typedef struct { char *options; int error; } environment_pass;

/* LLAMA_ARG_X first, BATON_X over it; an empty variable counts as unset. */
static void read_environment(void *context, const bt_option *o)
{
    environment_pass *p = context;
    char name[NAME_MAX_BYTES + 16];
    for (size_t i = 0; p->error == 0 && variable_at(o, i, name); i++) {
        const char *text = name[0] ? getenv(name) : NULL;
        if (text && text[0]) {
            if (!store_value(o, text, p->options + o->offset)) {
                p->error = bad_value(o, name, text);
            }
            remember(o, name, text, true);
        }
    }
}

typedef struct {
    const char *entry;                 /* "LLAMA_SERVER_API_KEY=..." */
    size_t      size;                  /* of the name */
    bool        wanted, read;          /* the verb has such a secret; an option reads this one */
} secret_search;

static void look_for_secret(void *context, const bt_option *o)
{
    secret_search *s = context;
    char name[NAME_MAX_BYTES + 16];
    s->wanted |= o->secret_env != NULL;
    for (size_t i = 0; variable_at(o, i, name); i++) {
        s->read |= strlen(name) == s->size && strncmp(name, s->entry, s->size) == 0;
    }
}

/* Whoever sets a key by a name that is almost right must not get a server without one. */
static int refuse_unread_secrets(const bt_verb *verb)
{
    for (char **entry = environ; *entry; entry++) {
        secret_search s = { .entry = *entry, .size = strcspn(*entry, "=") };
        char name[NAME_MAX_BYTES + 16];
        snprintf(name, sizeof name, "%.*s", (int)s.size, *entry);
        const bool ours = strncmp(name, "LLAMA_", 6) == 0 || strncmp(name, "BATON_", 6) == 0;
        if (!ours || (!strstr(name, "API_KEY") && !strstr(name, "APIKEY"))) {
            continue;
        }
        for_each_option(verb, look_for_secret, &s);
        if (s.wanted && !s.read && (*entry)[s.size] && (*entry)[s.size + 1]) {
            return bt_cli_usage_error("the variable %s is set, but nothing reads it: the key is "
                                      "BATON_API_KEY or LLAMA_API_KEY, or a file named by "
                                      "BATON_API_KEY_FILE", name);
        }
    }
    return 0;
}

static int parse_words(const bt_verb *verb, int argc, char **argv, char *options, int *ret_rest)
{
    int n_rest = 0;
    bool only_rest = false;
    for (int i = 0; i < argc; i++) {
        char *word = argv[i];
        if (only_rest || word[0] != '-' || word[1] == '\0') {
            argv[n_rest++] = word;
            continue;
        }
        if (strcmp(word, "--") == 0) {
            only_rest = true;
            continue;
        }
        char name[NAME_MAX_BYTES];
        char *inline_value = strncmp(word, "--", 2) == 0 ? strchr(word, '=') : NULL;
        const size_t n = inline_value ? (size_t)(inline_value - word) : strlen(word);
        snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name - 1), word);
        bool negated = false;
        const bt_option *o = find_option(verb, name, &negated);
        if (!o) {
            return unknown_option(verb, name);
        }
        if (o->kind == BT_OPT_FLAG && !inline_value) {
            *(bool *)(options + o->offset) = !negated;
            remember(o, name, NULL, false);
            continue;
        }
        if (!inline_value && i + 1 >= argc) {
            return bt_cli_usage_error("%s needs a value: %s", name, o->argument);
        }
        const char *text = inline_value ? inline_value + 1 : argv[++i];
        if (!store_value(o, text, options + o->offset)) {
            return bad_value(o, name, text);
        }
        remember(o, name, text, false);
    }
    *ret_rest = n_rest;
    return 0;
}

/* ---- help ---- */

typedef struct { const char *group; } help_pass;

static void print_option(void *context, const bt_option *o)
{
    help_pass *p = context;
    if (!p->group || strcmp(p->group, o->group) != 0) {
        printf("\n%s\n", o->group);
        p->group = o->group;
    }
    char left[128];
    snprintf(left, sizeof left, "%s%s%s", o->names, o->argument ? " " : "",
             o->argument ? o->argument : "");
    printf("  %-34s %s", left, o->help);
    if (o->env) {
        printf(" [env BATON_%s]", o->env);
    }
    putchar('\n');
}

static int print_help(const bt_verb *verb)
{
    printf("%s\n\nusage: %s\n", verb->summary, verb->usage);
    if (verb->example) {
        printf("\nexample:\n  %s\n", verb->example);
    }
    help_pass p = { 0 };
    for_each_option(verb, print_option, &p);
    return 0;
}

static bool wants_help(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return true;
        }
    }
    return false;
}

int bt_verb_main(const bt_verb *verb, int argc, char **argv)
{
    verb_name = verb->whole_name ? verb->whole_name : verb->name;
    if (wants_help(argc, argv)) {
        return print_help(verb);
    }
    char *options = bt_alloc_zero(BT_MEM_cli, 1, verb->options_size);
    if (!options) {
        return bt_cli_say_error("out of memory");
    }
    if (verb->defaults) {
        memcpy(options, verb->defaults, verb->options_size);
    }
    environment_pass p = { .options = options };
    for_each_option(verb, read_environment, &p);
    int n_rest = 0;
    int code = p.error != 0 ? p.error : refuse_unread_secrets(verb);
    if (code == 0) {
        code = parse_words(verb, argc, argv, options, &n_rest);
    }
    if (code == 0) {
        code = verb->run(options, n_rest, argv);
    }
    bt_free(options);
    return code;
}
