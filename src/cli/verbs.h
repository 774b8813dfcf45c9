/* cli/verbs.h - one entry per verb, and the option tables that parsing, help and environment
 * variables all come from.
 *
 * A verb has a struct of options; each bt_option says where in it a value lands. For every option
 * with an `env` NAME the variables LLAMA_ARG_NAME and BATON_NAME are read (ours wins; the command
 * line wins over both).
 *
 * A usage error names the error and the nearest option on standard error and gives exit code 2.
 */
#ifndef BT_CLI_VERBS_H
#define BT_CLI_VERBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    BT_OPT_FLAG,        /* bool; "--no-x" sets false when `names` has "--x" and negatable */
    BT_OPT_U32, BT_OPT_I32, BT_OPT_F32,
    BT_OPT_TEXT,        /* const char *, borrowed from argv or the environment */
    BT_OPT_SIZE         /* uint64_t bytes; suffix K, M, G (powers of 1024) */
} bt_option_kind;

typedef struct {
    const char    *group;      /* heading in the help */
    const char    *names;      /* "-m, --model" */
    const char    *argument;   /* "FILE"; NULL for flags */
    const char    *env;        /* "MODEL"; NULL: none */
    bt_option_kind kind;
    size_t         offset;     /* into the verb's options struct */
    const char    *help;       /* one sentence with default and unit */
    bool           negatable;
    double         low, high;  /* numbers allowed, both included; 0, 0: all of the kind */
    const char    *secret_env; /* one more variable, "LLAMA_API_KEY". Nothing that is called much
                                * like it may be set without being read: see verbs.c */
} bt_option;

#define BT_OPTION_TABLES_MAX 7

typedef struct {
    const char *name;          /* "inspect" */
    const char *whole_name;    /* "bench handoff", in hints at --help; NULL: name */
    const char *summary;       /* one line */
    const char *usage;         /* "baton inspect FILE [options]" */
    const char *example;
    size_t      options_size;
    const void *defaults;      /* options_size bytes copied before parsing; NULL: zero */
    /* Tables of options; each ends with an entry without names. */
    const bt_option *tables[BT_OPTION_TABLES_MAX];
    /* `rest`: words that are not options. Returns the exit code: 0, 1 (failed), 2 (usage). */
    int (*run)(const void *options, int n_rest, char **rest);
} bt_verb;

extern const bt_verb bt_verb_serve, bt_verb_worker, bt_verb_run, bt_verb_inspect, bt_verb_tokenize,
        bt_verb_logits, bt_verb_doctor, bt_verb_bench;

/* Parses argv (without program and verb), runs the verb, returns the exit code. */
int bt_verb_main(const bt_verb *verb, int argc, char **argv);

/* What a sentence about an option's value is to blame, given any of its names: the name as it was
 * written on the command line, or the variable, "BATON_CACHE_TYPE_K". Not set: the name asked for.
 * Static; of the verb that runs. */
const char *bt_cli_set_by(const char *option);
/* Whether the command line or a variable sets it. */
bool bt_cli_is_set(const char *option);
/* Options on the command line that do nothing, for the lack of another or beside another: a usage
 * error that names the first of `options` (NULL-ended) with `why` ("without -m FILE"), and its exit
 * code; else 0. A variable is meant for whatever verb can use it, so it may lie idle. */
int bt_cli_refuse_idle(const char *const *options, const char *why);

/* "error: SENTENCE" on standard error; returns 1, so that `return bt_cli_say_error(...)` reads
 * well. A quoted value in it that came from a variable is followed by the variable's name. */
int bt_cli_say_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same with exit code 2 and a hint at --help. */
int bt_cli_usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
