/* cli/option.h - one option of a verb: its names, its default and its value.
 *
 * Options that verbs share stand in one table per group (option_groups.h), with offsets into the
 * struct of that group; a verb says where in its own struct the group's lies. Parsing, environment
 * variables, defaults and the help all come from the tables.
 *
 * Threads: any. Failure: false, and nothing stored.
 */
#ifndef BT_CLI_OPTION_H
#define BT_CLI_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BT_OPTION_NAME_MAX = 64 };
#define BT_OPTION_AUTO UINT32_MAX

typedef enum {
    BT_OPT_FLAG,        /* bool; "--no-x" sets false when `names` has "--x" and negatable */
    BT_OPT_U32, BT_OPT_I32, BT_OPT_F32,
    BT_OPT_U32_AUTO,    /* uint32_t; "auto" is BT_OPTION_AUTO */
    BT_OPT_TEXT,        /* const char *, borrowed from argv or the environment */
    BT_OPT_CHOICE,      /* const char *, one of `choices`, as it is written there */
    BT_OPT_SIZE         /* uint64_t bytes; suffix K, M, G (powers of 1024) */
} bt_option_kind;

typedef struct {
    const char    *names;      /* "-m, --model" */
    const char    *argument;   /* "FILE"; NULL for flags */
    const char    *env;        /* "MODEL": LLAMA_ARG_MODEL and BATON_MODEL; NULL: none */
    bt_option_kind kind;
    size_t         offset;     /* into the struct of the group */
    const char    *initial;    /* the default, as a person would write it; NULL: zero */
    const char    *help;       /* one sentence with the unit */
    double         low, high;  /* numbers allowed, both included; 0, 0: all of the kind */
    const char *const *choices;        /* NULL-ended; capitals do not matter */
    bool           negatable;
    const char    *secret_env; /* one more variable, "LLAMA_API_KEY". Nothing that is called much
                                * like it may be set without being read: see verbs.c */
} bt_option;

typedef struct {
    const char      *title;    /* heading in the help */
    const bt_option *options;  /* ends with an entry without names */
    size_t           offset;   /* of the group's struct in the verb's */
} bt_option_group;

/* The `index`-th name; false when there are no more. */
bool bt_option_name_at(const bt_option *o, size_t index, char to[BT_OPTION_NAME_MAX]);
bool bt_option_has_name(const bt_option *o, const char *word, bool *ret_negated);
/* The `index`-th variable that is read, "" for one that is not; later ones win. False: no more. */
bool bt_option_variable_at(const bt_option *o, size_t index, char to[BT_OPTION_NAME_MAX]);

/* `group` is the struct of the option's group. */
bool bt_option_store(const bt_option *o, const char *text, void *group);
/* What a value has to be: "a whole number from 0 to 5". */
void bt_option_describe(const bt_option *o, char *to, size_t capacity);

/* How many letters have to change to make `b` of `a`. */
size_t bt_option_distance(const char *a, const char *b);

#endif
