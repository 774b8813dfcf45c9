/* Verbs: variables and words into their options, the help, and who set what. */
#include "cli/verbs.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/log.h"
#include "base/memory.h"

#if defined(__APPLE__)
extern char **environ;                 /* no header has it */
#endif

enum { SETTINGS_MAX = 160, MESSAGE_BYTES_MAX = 2048 };

/* ---- who set what: of the verb that runs, written while it is parsed ---- */

typedef struct {
    const bt_option *option;
    const char      *text;             /* the value as it was written; NULL: a bare flag */
    bool             environment;
    char             by[BT_OPTION_NAME_MAX];
} setting;

static const char *verb_name = "VERB";
static setting settings[SETTINGS_MAX]; /* the last one of an option counts */
static size_t n_settings;

static const setting *setting_of(const bt_option *o)
{
    for (size_t i = 0; i < n_settings; i++) {
        if (settings[i].option == o) {
            return &settings[i];
        }
    }
    return NULL;
}

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

/* ---- looking back ---- */

static const setting *find_setting(const char *name)
{
    bool negated;
    for (size_t i = 0; i < n_settings; i++) {
        if (bt_option_has_name(settings[i].option, name, &negated)) {
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

/* ---- options of a verb ---- */

typedef void each_option(void *context, const bt_option_group *g, const bt_option *o);

static void for_each_option(const bt_verb *verb, each_option *fn, void *context)
{
    for (const bt_option_group *g = verb->groups; g->title; g++) {
        for (const bt_option *o = g->options; o->names; o++) {
            fn(context, g, o);
        }
    }
}

static const bt_option *find_option(const bt_verb *verb, const char *word, bool *ret_negated,
                                    size_t *ret_offset)
{
    for (const bt_option_group *g = verb->groups; g->title; g++) {
        for (const bt_option *o = g->options; o->names; o++) {
            if (bt_option_has_name(o, word, ret_negated)) {
                *ret_offset = g->offset;
                return o;
            }
        }
    }
    return NULL;
}

typedef struct { const char *word; size_t best; char name[BT_OPTION_NAME_MAX]; } nearest_search;

static void look_nearer(void *context, const bt_option_group *g, const bt_option *o)
{
    nearest_search *s = context;
    (void)g;
    char name[BT_OPTION_NAME_MAX];
    for (size_t i = 0; bt_option_name_at(o, i, name); i++) {
        const size_t d = bt_option_distance(s->word, name);
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

static int bad_value(const bt_option *o, const char *name, const char *text)
{
    char must_be[200];
    bt_option_describe(o, must_be, sizeof must_be);
    return bt_cli_usage_error("%s is '%.60s', but must be %s", name, text, must_be);
}

/* One way to a value, for the command line and variables. Returns an exit code. */
static int set_value(const bt_option *o, void *group, const char *name, const char *text,
                     bool environment)
{
    if (!bt_option_store(o, text, group)) {
        return bad_value(o, name, text);
    }
    remember(o, name, text, environment);
    return 0;
}

static void set_default(void *context, const bt_option_group *g, const bt_option *o)
{
    char *options = context;
    if (o->initial) {
        const bool good = bt_option_store(o, o->initial, options + g->offset);
        BT_ASSERT(good);
    }
}

typedef struct { char *options; int error; } environment_pass;

/* The variable that counts, for an option that is not on the command line: a value that another one
 * overrides need not be right. An empty variable counts as unset. */
static void read_environment(void *context, const bt_option_group *g, const bt_option *o)
{
    environment_pass *p = context;
    char name[BT_OPTION_NAME_MAX], last[BT_OPTION_NAME_MAX] = "";
    for (size_t i = 0; bt_option_variable_at(o, i, name); i++) {
        const char *text = name[0] ? getenv(name) : NULL;
        if (text && text[0]) {
            memcpy(last, name, sizeof last);
        }
    }
    if (p->error == 0 && last[0] && !setting_of(o)) {
        p->error = set_value(o, p->options + g->offset, last, getenv(last), true);
    }
}

typedef struct {
    const char *entry;                 /* "LLAMA_SERVER_API_KEY=..." */
    size_t      size;                  /* of the name */
    bool        wanted, read;          /* the verb has such a secret; an option reads this one */
} secret_search;

static void look_for_secret(void *context, const bt_option_group *g, const bt_option *o)
{
    secret_search *s = context;
    (void)g;
    char name[BT_OPTION_NAME_MAX];
    s->wanted |= o->secret_env != NULL;
    for (size_t i = 0; bt_option_variable_at(o, i, name); i++) {
        s->read |= strlen(name) == s->size && strncmp(name, s->entry, s->size) == 0;
    }
}

/* Whoever sets a key by a name that is almost right must not get a server without one. */
static int refuse_unread_secrets(const bt_verb *verb)
{
    for (char **entry = environ; *entry; entry++) {
        secret_search s = { .entry = *entry, .size = strcspn(*entry, "=") };
        char name[BT_OPTION_NAME_MAX];
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
        char name[BT_OPTION_NAME_MAX];
        char *inline_value = strncmp(word, "--", 2) == 0 ? strchr(word, '=') : NULL;
        const size_t n = inline_value ? (size_t)(inline_value - word) : strlen(word);
        snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name - 1), word);
        bool negated = false;
        size_t offset = 0;
        const bt_option *o = find_option(verb, name, &negated, &offset);
        if (!o) {
            return unknown_option(verb, name);
        }
        if (o->kind == BT_OPT_FLAG && !inline_value) {
            *(bool *)(options + offset + o->offset) = !negated;
            remember(o, name, NULL, false);
            continue;
        }
        if (!inline_value && i + 1 >= argc) {
            return bt_cli_usage_error("%s needs a value: %s", name, o->argument);
        }
        const char *text = inline_value ? inline_value + 1 : argv[++i];
        const int code = set_value(o, options + offset, name, text, false);
        if (code != 0) {
            return code;
        }
    }
    *ret_rest = n_rest;
    return 0;
}

/* ---- help ---- */

typedef struct { const char *title; } help_pass;

static void print_option(void *context, const bt_option_group *g, const bt_option *o)
{
    help_pass *p = context;
    if (!p->title || strcmp(p->title, g->title) != 0) {
        printf("\n%s\n", g->title);
        p->title = g->title;
    }
    char left[128];
    snprintf(left, sizeof left, "%s%s%s", o->names, o->argument ? " " : "",
             o->argument ? o->argument : "");
    printf("  %-34s %s", left, o->help);
    if (o->initial) {
        printf(" (default: %s)", o->initial);
    }
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
        return bt_cli_say_error("out of memory: %zu bytes for options", verb->options_size);
    }
    for_each_option(verb, set_default, options);
    int n_rest = 0;
    int code = parse_words(verb, argc, argv, options, &n_rest);
    if (code == 0) {
        environment_pass p = { .options = options };
        for_each_option(verb, read_environment, &p);
        code = p.error;
    }
    if (code == 0) {
        code = refuse_unread_secrets(verb);
    }
    if (code == 0) {
        code = verb->run(options, n_rest, argv);
    }
    bt_free(options);
    return code;
}
