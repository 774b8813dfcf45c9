/* cli/verbs.h - one entry per verb, and what is said about the options that were given.
 *
 * A verb has a struct of options; its groups (option.h) say where in it a value lands. For every
 * option with an `env` NAME the variables LLAMA_ARG_NAME and BATON_NAME are read (ours wins; the
 * command line wins over both).
 *
 * A usage error names the error and the nearest option on standard error and gives exit code 2.
 */
#ifndef BT_CLI_VERBS_H
#define BT_CLI_VERBS_H

#include "cli/option.h"

typedef struct {
    const char *name;          /* "inspect" */
    const char *whole_name;    /* "bench handoff", in hints at --help; NULL: name */
    const char *summary;       /* one line */
    const char *usage;         /* "baton inspect FILE [options]" */
    const char *example;
    size_t      options_size;
    const bt_option_group *groups;     /* ends with one without a title */
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
/* Whether a variable or the command line has set it. */
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
