/* baton doctor - looks at a worker and the way to it; names the commands that fix what is wrong.
 *
 * Exit code: 0 no problem (there may be advice), 1 there is a problem, 2 usage. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "cli/runtime.h"
#include "cli/verbs.h"
#include "cpu/kernels.h"
#include "doctor/advice.h"
#include "handoff/identity.h"
#include "link/key.h"

enum {
    N_ROUND_TRIPS = 21,
    MIB = 1 << 20,
    HTTP_MS = 1000,
    REST_MS = 1000,                    /* longer than any retransmission timeout of a LAN */
    LARGE_MS = 300                     /* the large probe is to take about as long */
};

typedef struct {
    bt_machine_options machine;
    bt_cache_options   cache;
    bt_link_flags      link;
    uint32_t           timeout_ms;
    bool               json;
} options;

#define AT(field) offsetof(options, field)

static const bt_option checkup_table[] = {
    { "-m, --model", "FILE", "MODEL", BT_OPT_TEXT, AT(machine.model), NULL,
      "GGUF file to compare with the worker's; without it, none is compared" },
    { "--timeout-ms", "N", NULL, BT_OPT_U32, AT(timeout_ms), "3000",
      "for looking up the name, and for each of its addresses", 1, 600000 },
    { "--json", NULL, NULL, BT_OPT_FLAG, AT(json), NULL, "one JSON object instead of text" },
    { 0 }
};

/* ---- looking ---- */

static bool compare(const options *o, bt_checkup *c)
{
    bt_runtime_options with = { .machine = o->machine, .cache = o->cache };
    const bt_engine_options engine = { .n_parallel = 1, .n_ctx = 64, .n_batch = 32,
                                       .n_prefill_chunk = 32, .queue_max = 1 };
    bt_runtime r;
    with.machine.no_repack = true;     /* only the identity is wanted */
    if (!bt_runtime_open(&with.machine, false, &r)) {
        return false;
    }
    const bool made = bt_runtime_start_engine(&r, &with, engine);
    if (made) {
        const bt_wire_hello own = bt_handoff_hello(r.engine, 0, "");
        (void)bt_wire_text_copy(own.model, c->model, sizeof c->model);
        c->compared = true;
        c->fits = bt_handoff_identity_fits(&own, &c->facts.own, &c->misfit);
    }
    bt_runtime_close(&r);
    return made;
}

/* 1 MiB after a rest and at once after another, then as much as takes a while. */
static bt_status measure_goodput(bt_probe *v, bt_checkup *c, bt_error *err)
{
    double ms;
    BT_TRY(bt_doctor_probe_measure(v, MIB, &ms, err));
    BT_TRY(bt_doctor_probe_rest(v, REST_MS, err));
    BT_TRY(bt_doctor_probe_measure(v, MIB, &c->rested_ms, err));
    for (int i = 0; i < 3; i++) {
        BT_TRY(bt_doctor_probe_measure(v, MIB, &ms, err));
        c->warm_ms = i == 0 || ms < c->warm_ms ? ms : c->warm_ms;
    }
    uint32_t n_mib = 4;
    while (n_mib < BT_WIRE_PROBE_BYTES_MAX / MIB && n_mib * c->warm_ms < LARGE_MS) {
        n_mib *= 2;
    }
    for (int i = 0; i < 2; i++) {
        BT_TRY(bt_doctor_probe_measure(v, n_mib * MIB, &ms, err));
        c->large_ms = i == 0 || ms < c->large_ms ? ms : c->large_ms;
    }
    c->large_bytes = (double)n_mib * MIB;
    return BT_OK;
}

static bt_status measure(bt_probe *v, bt_checkup *c, bt_error *err)
{
    bt_status s = BT_OK;
    while (s == BT_OK && c->n_round_trips < N_ROUND_TRIPS) {
        s = bt_doctor_probe_measure(v, 0, &c->round_trip_ms[c->n_round_trips], err);
        c->n_round_trips += s == BT_OK;
    }
    if (s == BT_OK) {
        s = measure_goodput(v, c, err);
    }
    bt_doctor_probe_socket_get(v, &c->socket);
    return s;
}

/* The greeting failed: whether for our key only, and whether it is a web server that listens. */
static void look_who_else(const bt_link_options *link, bt_checkup *c)
{
    const bt_status s = c->visit_error.status;
    bt_link_options without = *link;
    bt_probe *v = NULL;
    bt_error err;
    without.key_file = NULL;
    if (s == BT_E_AUTH && link->key_file) {
        c->worker_keyless = bt_doctor_probe_open(c->address, &without, &v, &err) == BT_OK;
        bt_doctor_probe_close(v);
    }
    c->http = !c->worker_keyless && s != BT_E_REFUSED && s != BT_E_FULL && s != BT_E_NOMEM &&
              bt_doctor_reach_speaks_http(c->address, HTTP_MS);
}

static void visit(const options *o, bt_checkup *c)
{
    const bt_link_options link = { .key_file = o->link.key_file, .buffer_bytes = c->buffer_bytes,
                                   .connect_timeout_ms = o->timeout_ms };
    bt_probe *v = NULL;
    if (bt_doctor_probe_open(c->address, &link, &v, &c->visit_error) != BT_OK) {
        look_who_else(&link, c);
        return;
    }
    c->visit_error = (bt_error){ 0 };
    c->facts = *bt_doctor_probe_facts_of(v);
    if (measure(v, c, &c->probe_error) == BT_OK) {
        c->probe_error = (bt_error){ 0 };
    }
    bt_doctor_probe_close(v);
}

/* Before the way to the worker, and whatever becomes of that. */
static void look_at_key(const options *o, bt_checkup *c)
{
    struct stat info;
    bt_link_key key;
    if (!o->link.key_file) {
        return;
    }
    if (bt_link_key_load(o->link.key_file, &key, &c->key_error) == BT_OK) {
        bt_link_key_forget(&key);
        c->key_error = (bt_error){ 0 };
    }
    const bool file = stat(o->link.key_file, &info) == 0 && S_ISREG(info.st_mode);
    c->key_open_to_others = file && (info.st_mode & (S_IRWXG | S_IRWXO)) != 0;
    /* Two digits a byte, and the end of a line. */
    c->key_short = file && c->key_error.status != BT_OK &&
                   info.st_size < 2 * BT_LINK_KEY_FILE_BYTES_MIN + 2;
}

static bool look(const options *o, const char *address, const bt_link_address *a, bt_checkup *c)
{
    *c = (bt_checkup){ .address = address, .key_file = o->link.key_file,
                       .model_file = o->machine.model };
    c->buffer_bytes = (uint32_t)o->link.buffer_bytes;
    look_at_key(o, c);
    bt_link_system_get(&c->here);
    snprintf(c->host, sizeof c->host, "%s", a->host);
    c->port = a->port;
    if (bt_doctor_reach_try(address, o->timeout_ms, c->reach, &c->n_reach, &c->name_error) ==
        BT_OK) {
        c->name_error = (bt_error){ 0 };
    }
    bool reached = false;
    for (uint32_t i = 0; i < c->n_reach; i++) {
        reached |= c->reach[i].kind == BT_REACH_CONNECTED;
    }
    if (!reached || c->key_error.status != BT_OK) {
        return true;
    }
    visit(o, c);
    if (c->visit_error.status == BT_OK) {
        snprintf(c->numerics, sizeof c->numerics, "%s",
                 o->machine.isa ? o->machine.isa : bt_cpu_isa_name(bt_cpu_isa_detect()));
        return !o->machine.model || compare(o, c);
    }
    return true;
}

/* ---- telling ---- */

/* ": 1 problem"; nothing where there is none. */
static void print_count(const char *before, uint32_t n, const char *one, const char *many)
{
    if (n > 0) {
        printf("%s%u %s", before, n, n == 1 ? one : many);
    }
}

static void print_text(const bt_checkup *c, const bt_findings *f)
{
    static const char *const marks[] = { "ok      ", "advice  ", "PROBLEM ", "skipped " };
    uint32_t n[4] = { 0 };
    for (uint32_t i = 0; i < f->n; i++) {
        const bt_finding *at = &f->list[i];
        n[at->state]++;
        printf("%s %-11s %s\n", marks[at->state], at->name, at->text);
        for (uint32_t j = 0; j < at->n_fixes; j++) {
            printf("%21s%s$ %s\n", "", at->fixes[j].worker ? "worker" : "here",
                   at->fixes[j].command);
        }
    }
    printf("%s: %s", c->address,
           !bt_doctor_findings_well(f) ? "FAIL"
           : bt_doctor_checkup_full(c) ? "OK if your server is connected there"
                                       : "OK");
    print_count(": ", n[BT_FINDING_PROBLEM], "problem", "problems");
    print_count(n[BT_FINDING_PROBLEM] > 0 ? ", " : ", with ", n[BT_FINDING_ADVICE],
                "piece of advice", "pieces of advice");
    putchar('\n');
}

static json_t *finding_json(const bt_finding *at)
{
    json_t *fixes = json_array();
    for (uint32_t j = 0; j < at->n_fixes; j++) {
        json_array_append_new(fixes, json_pack("{s:s,s:s}", "on",
                                               at->fixes[j].worker ? "worker" : "here",
                                               "command", at->fixes[j].command));
    }
    return json_pack("{s:s,s:s,s:s,s:o}", "name", at->name, "state",
                     bt_doctor_finding_state_name(at->state), "text", at->text, "fix", fixes);
}

static json_t *figures_json(const bt_checkup *c)
{
    const bt_spread s = bt_doctor_spread_of(c->round_trip_ms, c->n_round_trips);
    return json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:I,s:I,s:i,s:i,s:b}",
                     "round_trip_ms", s.median, "round_trip_ms_low", s.low,
                     "round_trip_ms_high", s.high, "mib_after_rest_ms", c->rested_ms,
                     "mib_ms", c->warm_ms, "probe_bytes", c->large_bytes,
                     "goodput_bytes_per_second", bt_doctor_checkup_goodput(c),
                     "receive_buffer_bytes", (json_int_t)c->socket.receive_buffer,
                     "send_buffer_bytes", (json_int_t)c->facts.send_buffer,
                     "path_mtu", (int)c->socket.path_mtu,
                     "segment_bytes", (int)c->socket.segment_bytes,
                     "encrypted", (int)c->facts.encrypted);
}

static int print_json(const bt_checkup *c, const bt_findings *f)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < f->n; i++) {
        json_array_append_new(list, finding_json(&f->list[i]));
    }
    json_t *reach = json_array();
    for (uint32_t i = 0; i < c->n_reach; i++) {
        json_array_append_new(reach, json_pack("{s:s,s:s,s:f}", "address", c->reach[i].peer,
                                               "kind", bt_link_reach_kind_name(c->reach[i].kind),
                                               "ms", c->reach[i].ms));
    }
    json_t *all = json_pack("{s:s,s:b,s:o,s:o,s:o}", "worker", c->address, "ok",
                            (int)bt_doctor_findings_well(f), "reach", reach, "figures",
                            figures_json(c), "findings", list);
    const bool told = all && json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) == 0;
    json_decref(all);
    putchar('\n');
    return told ? 0 : bt_cli_say_error("the findings could not be written");
}

static int run(const void *given, int n_rest, char **rest)
{
    const options *o = given;
    static bt_checkup c;               /* too large for a stack to be sure of */
    static bt_findings f;
    if (n_rest != 1) {
        return bt_cli_usage_error("baton doctor takes one worker, HOST:PORT");
    }
    bt_link_address a;
    bt_error err;
    if (bt_link_address_parse(rest[0], &a, &err) != BT_OK) {
        return bt_cli_usage_error("%s", err.text);
    }
    static const char *const of_model[] = { "-ctk", "-ctv", "-t", "-tb", "--no-repack",
                                            "--trace-ops", "--check-ops", NULL };
    const int idle = o->machine.model ? 0 : bt_cli_refuse_idle(of_model, "without -m FILE");
    if (idle != 0) {
        return idle;
    }
    if (o->machine.model && !bt_runtime_check_model(&o->machine)) {
        return 1;
    }
    bt_log_set_level(BT_LOG_ERROR);
    if (!look(o, rest[0], &a, &c)) {
        return 1;
    }
    bt_doctor_advice_give(&c, &f);
    if (!o->json) {
        print_text(&c, &f);
    } else if (print_json(&c, &f) != 0) {
        return 1;
    }
    return bt_doctor_findings_well(&f) ? 0 : 1;
}

static const bt_option_group groups[] = {
    { "Checkup", checkup_table, 0 },
    { "Checkup", bt_link_table + 1, AT(link) },        /* without a timeline */
    { "With -m", bt_cache_table, AT(cache) },
    { "Machine", bt_machine_table, AT(machine) },
    { "Diagnosis", bt_diagnosis_table, AT(machine) },
    { 0 }
};

const bt_verb bt_verb_doctor = {
    .name = "doctor",
    .summary = "check a worker and the way to it, and print the commands that fix it",
    .usage = "baton doctor HOST:PORT [--key-file FILE] [-m FILE] [options]",
    .example = "baton doctor spark:7070 --key-file key -m model.gguf",
    .options_size = sizeof(options),
    .groups = groups,
    .run = run,
};
