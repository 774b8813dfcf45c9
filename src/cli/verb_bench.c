/* baton bench handoff - how much of a handoff hides behind computing, on links of known speed.
 *
 * Namespaces, shaped links, processes, HTTP and plots are the work of a script, and of the same rig
 * that the tests stand on: bench/handoff.py. This verb finds it, tells it which program to measure
 * and hands over the options, so that there is one door and one help. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/runtime.h"
#include "cli/verbs.h"

#ifndef BATON_BENCH_DIR
#define BATON_BENCH_DIR "bench"
#endif
#ifndef BATON_PYTHON
#define BATON_PYTHON "python3"
#endif

typedef struct {
    const char *folder, *python, *out, *server, *api_key;
    const char *model, *parts, *ratios, *round_trips, *prompts, *repeat, *rate;
    bool        full;
} options;

#define AT(field) offsetof(options, field)

static const bt_option what_table[] = {
    { "--full", NULL, NULL, BT_OPT_FLAG, AT(full), NULL,
      "the whole table, about 40 minutes; without it, a subset, about three minutes" },
    { "--part", "NAME[,...]", NULL, BT_OPT_TEXT, AT(parts), NULL,
      "table, hybrid, goodput, cpu, gap; without it, all of them" },
    { "-m, --model", "FILE", "MODEL", BT_OPT_TEXT, AT(model), NULL,
      "dense model; without it, the one that `make demo` has cached, or a random one" },
    { 0 }
};

static const bt_option table_table[] = {
    { "--r", "X[,...]", NULL, BT_OPT_TEXT, AT(ratios), NULL,
      "load ratios: bytes computed in a second over what the link carries" },
    { "--round-trips", "MS[,...]", NULL, BT_OPT_TEXT, AT(round_trips), NULL, "round trips" },
    { "--prompts", "N[,...]", NULL, BT_OPT_TEXT, AT(prompts), NULL,
      "tokens that are handed over" },
    { "--repeat", "N", NULL, BT_OPT_TEXT, AT(repeat), NULL,
      "prompts per cell, half as many of long ones" },
    { "--rate", "N", NULL, BT_OPT_TEXT, AT(rate), NULL,
      "limit of the worker in tokens a second; without it, as fast as it computes" },
    { 0 }
};

static const bt_option where_table[] = {
    { "--server", "HOST:PORT", NULL, BT_OPT_TEXT, AT(server), NULL,
      "measure this server and its workers as they are; nothing is started or shaped" },
    { "--api-key", "KEY", NULL, BT_OPT_TEXT, AT(api_key), NULL,
      "of that server; without it, what BATON_API_KEY says" },
    { "--out", "DIR", NULL, BT_OPT_TEXT, AT(out), NULL,
      "for handoff.md, handoff.json, handoff.svg; without it, bench-handoff-DATE" },
    { "--bench-dir", "DIR", "BENCH_DIR", BT_OPT_TEXT, AT(folder), BATON_BENCH_DIR,
      "where handoff.py is" },
    { "--python", "FILE", "PYTHON", BT_OPT_TEXT, AT(python), BATON_PYTHON, "Python 3 with numpy" },
    { 0 }
};

static const bt_option_group groups[] = {
    { "What", what_table, 0 },
    { "Table", table_table, 0 },
    { "Where", where_table, 0 },
    { 0 }
};

enum { WORDS_MAX = 32 };

typedef struct {
    const char *words[WORDS_MAX];
    size_t      n;
} command;

static void add(command *c, const char *name, const char *value)
{
    if (value) {
        c->words[c->n++] = name;
        c->words[c->n++] = value;
    }
}

/* What each way of measuring cannot use. */
static int refuse_idle(const options *o)
{
    static const char *const of_a_pair[] = { "-m", "--part", "--r", "--round-trips", "--rate",
                                             NULL };
    static const char *const of_a_server[] = { "--api-key", NULL };
    return o->server ? bt_cli_refuse_idle(of_a_pair, "with --server: that pair is as it is")
                     : bt_cli_refuse_idle(of_a_server, "without --server HOST:PORT");
}

static int run(const void *given, int n_rest, char **rest)
{
    const options *o = given;
    char script[1024], self[1024];
    if (n_rest != 1 || strcmp(rest[0], "handoff") != 0) {
        return bt_cli_usage_error("baton bench measures one thing so far: baton bench handoff");
    }
    const int idle = refuse_idle(o);
    if (idle != 0) {
        return idle;
    }
    const bt_machine_options machine = { .model = o->model };
    if (o->model && !o->server && !bt_runtime_check_model(&machine)) {
        return 1;
    }
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) {
        return bt_cli_say_error("this measurement needs Linux: network namespaces and /proc");
    }
    self[n] = '\0';
    if (snprintf(script, sizeof script, "%s/handoff.py", o->folder) >= (int)sizeof script ||
        access(script, R_OK) != 0) {
        return bt_cli_say_error("'%s' has no handoff.py that can be read (%s): name the folder "
                                "bench of the source tree by --bench-dir", o->folder,
                                strerror(errno));
    }
    command c = { .words = { o->python, script }, .n = 2 };
    add(&c, "--baton", self);
    add(&c, "--model", o->model);
    add(&c, "--part", o->parts);
    add(&c, "--r", o->ratios);
    add(&c, "--round-trips", o->round_trips);
    add(&c, "--prompts", o->prompts);
    add(&c, "--repeat", o->repeat);
    add(&c, "--rate", o->rate);
    add(&c, "--out", o->out);
    add(&c, "--server", o->server);
    add(&c, "--api-key", o->api_key);
    if (o->full) {
        c.words[c.n++] = "--full";
    }
    char *argv[WORDS_MAX + 1];
    memcpy(argv, c.words, c.n * sizeof *argv);     /* exec does not write to them */
    argv[c.n] = NULL;
    execvp(argv[0], argv);
    return bt_cli_say_error("'%s' cannot be started: %s", o->python, strerror(errno));
}

const bt_verb bt_verb_bench = {
    .name = "bench",
    .whole_name = "bench handoff",
    .summary = "measures the handoff on shaped links (Linux, root)",
    .usage = "baton bench handoff [--full] [options]",
    .example = "baton bench handoff --part table --r 0.5,2 --prompts 2048",
    .options_size = sizeof(options),
    .groups = groups,
    .run = run,
};
