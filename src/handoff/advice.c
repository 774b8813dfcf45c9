/* handoff/advice.c - see advice.h. */
#include "handoff/advice.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/limits.h"
#include "handoff/identity.h"
#include "base/say.h"

/* A link is called slow below this share of what its card says; TCP over Ethernet reaches 0.94. */
#define SHARE_EXPECTED 0.7
/* A rest is worth a word when 1 MiB after it takes so many times as long, and so many ms more. */
#define REST_FACTOR 1.5
#define REST_MS     0.5
#define LARGE_PACKETS_MBIT 10000u      /* from here on packets of 9000 bytes are worth it */
#define PLAIN_SEGMENT_BYTES 1400u      /* smaller: something on the way takes room */

/* A shell's word, the interface that has an address (%s): only the machine itself knows by which of
 * its cables it was reached. */
#define LINUX_INTERFACE "\"$(ip -o addr show to %s | awk '{print $2; exit}')\""
#define MACOS_INTERFACE "\"$(ifconfig | awk -v a=%s " \
                        "'/^[a-z]/ {i=$1} $2 == a {sub(\":\", \"\", i); print i; exit}')\""

const char *bt_doctor_finding_state_name(bt_finding_state s)
{
    static const char *const names[] = { "ok", "advice", "problem", "skipped" };
    return (unsigned)s < BT_LEN(names) ? names[s] : "unknown";
}

/* ---- writing findings ---- */

static bt_finding *say(bt_findings *f, const char *name, bt_finding_state state,
                       const char *format, ...) __attribute__((format(printf, 4, 5)));
static bt_finding *say(bt_findings *f, const char *name, bt_finding_state state,
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
 * not fit is left out: half of one mends nothing. */
static void mend(bt_finding *at, bool worker, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
static void mend(bt_finding *at, bool worker, const char *format, ...)
{
    va_list args;
    if (at->n_mends == BT_MENDS_MAX) {
        return;
    }
    bt_mend *m = &at->mends[at->n_mends];
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
    at->n_mends += fits;
}

/* "512 KiB", "32.0 MiB". */
static const char *size_text(double bytes, char to[24])
{
    if (bytes < 1048576) {
        bt_say(to, 24, "%.0f KiB", bytes / 1024);
    } else {
        bt_say(to, 24, "%.1f MiB", bytes / 1048576);
    }
    return to;
}

static bool is(const char *system, const char *name) { return strcmp(system, name) == 0; }

/* ---- numbers ---- */

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

bt_spread bt_cost_spread_of(const double *values, uint32_t n)
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
    const double round_trip = bt_cost_spread_of(c->round_trip_ms, c->n_round_trips).low;
    const double ms = c->large_ms - round_trip;
    return c->large_bytes > 0 && ms > 0 ? c->large_bytes / ms * 1e3 : 0;
}

/* ---- addresses in commands ---- */

typedef struct {
    char text[BT_LINK_PEER_MAX];
} bare_address;

/* "10.0.0.2" of "10.0.0.2:7070", "fd00::2" of "[fd00::2]:7070". */
static const char *bare_of(const char *peer, bare_address *to)
{
    const bool v6 = peer[0] == '[';
    bt_say(to->text, sizeof to->text, "%s", peer + v6);
    char *end = v6 ? strchr(to->text, ']') : strrchr(to->text, ':');
    if (end) {
        *end = '\0';
    }
    return to->text;
}

static bool is_loopback(const char *bare)
{
    return strncmp(bare, "127.", 4) == 0 || is(bare, "::1");
}

/* The file to the worker's machine, if that is another one. */
static void mend_copy(const bt_checkup *c, const char *file, bt_finding *at)
{
    bare_address bare;
    if (is_loopback(bare_of(c->reach[0].peer, &bare))) {
        return;
    }
    mend(at, false, strchr(c->host, ':') ? "scp %s '['%s']:baton.key'" : "scp %s %s:baton.key",
         file, c->host);
}

/* ---- reachable? ---- */

static void mend_reach(const bt_checkup *c, const bt_reach *r, bt_finding *at)
{
    const bool macos = is(c->here.system, "macos");
    bare_address ip;
    const char *bare = bare_of(r->peer, &ip);
    switch (r->kind) {
    case BT_REACH_REFUSED:
        if (is_loopback(bare)) {
            mend(at, true, "baton worker -m MODEL.gguf --listen %s", r->peer);
            break;
        }
        mend(at, true, r->peer[0] == '['
                               ? "baton worker -m MODEL.gguf --listen '[::]:%u' --key-file KEY"
                               : "baton worker -m MODEL.gguf --listen 0.0.0.0:%u --key-file KEY",
             c->port);
        mend(at, true, "ss -ltn 'sport = :%u'   # 127.0.0.1 there: it listens for itself only",
             c->port);
        break;
    case BT_REACH_NO_ROUTE:
        mend(at, false, macos ? "route -n get %s" : "ip route get %s", bare);
        mend(at, false, "ping -c 3 %s", bare);
        break;
    case BT_REACH_NO_ANSWER:
        mend(at, false, "ping -c 3 %s", bare);
        mend(at, true, "sudo ufw allow %u/tcp   # where ufw is the firewall", c->port);
        mend(at, true, "sudo nft list ruleset   # any other: a rule that drops port %u", c->port);
        break;
    case BT_REACH_NOT_PERMITTED:
        mend(at, false, macos ? "sudo pfctl -sr" : "sudo nft list ruleset; ip route get %s", bare);
        break;
    case BT_REACH_LOCAL_NETWORK:
        mend(at, false, "open 'x-apple.systempreferences:com.apple.preference.security"
                        "?Privacy_LocalNetwork'");
        break;
    default:
        break;
    }
}

static bool look_at_reach(const bt_checkup *c, bt_findings *f)
{
    if (c->name_error.status != BT_OK) {
        bt_finding *at = say(f, "name", BT_FINDING_PROBLEM, "%s", c->name_error.text);
        if (c->name_error.status != BT_E_BADINPUT) {
            mend(at, false, is(c->here.system, "macos") ? "dscacheutil -q host -a name %s"
                                                        : "getent hosts %s", c->host);
            mend(at, true, is(c->here.system, "macos") ? "ipconfig getifaddr en0"
                                                       : "hostname -I");
        }
        return false;
    }
    bool any = false;
    for (uint32_t i = 0; i < c->n_reach; i++) {
        any |= c->reach[i].kind == BT_REACH_CONNECTED;
    }
    for (uint32_t i = 0; i < c->n_reach; i++) {
        const bt_reach *r = &c->reach[i];
        bt_error why = { 0 };
        if (r->kind == BT_REACH_CONNECTED) {
            (void)say(f, "reach", BT_FINDING_OK, "%s: connected in %.2f ms", r->peer, r->ms);
            continue;
        }
        (void)bt_doctor_reach_explain(r->kind, r->error, c->address, r->peer,
                                      (uint32_t)(r->ms + 0.5), &why);
        bt_finding *at = say(f, "reach", any ? BT_FINDING_ADVICE : BT_FINDING_PROBLEM, "%s%s",
                             why.text, any ? " (another address of the name is used)" : "");
        mend_reach(c, r, at);
    }
    return any;
}

/* ---- key and answer ---- */

/* The file alone, which can be looked at whatever becomes of the way; false: it holds no key. */
static bool look_at_key_file(const bt_checkup *c, bt_findings *f, bool reached)
{
    if (!c->key_file) {
        return true;
    }
    if (c->key_error.status != BT_OK) {
        bt_finding *at = say(f, "key", BT_FINDING_PROBLEM, "%s", c->key_error.text);
        if (c->key_short) {
            mend(at, false, "openssl rand -hex 32 > %s && chmod 600 %s", c->key_file, c->key_file);
            mend_copy(c, c->key_file, at);
        } else {
            mend(at, false, "ls -l %s", c->key_file);
        }
        return false;
    }
    if (c->key_open_to_others) {
        bt_finding *at = say(f, "key", BT_FINDING_ADVICE, "'%s' can be used by others on this "
                             "machine", c->key_file);
        mend(at, false, "chmod 600 %s", c->key_file);
    } else if (!reached) {
        (void)say(f, "key", BT_FINDING_OK, "'%s' holds a key, and only its owner can use it; the "
                  "worker's could not be compared", c->key_file);
    }
    return true;
}

static void look_at_key(const bt_checkup *c, bt_findings *f)
{
    if (c->key_file) {
        (void)say(f, "key", BT_FINDING_OK, "both sides have the same key; the link is encrypted");
    } else if (c->socket.loopback) {
        (void)say(f, "key", BT_FINDING_OK, "no key, and none is needed on this machine's loopback");
    } else {
        bt_finding *at = say(f, "key", BT_FINDING_ADVICE, "no key: whoever reaches the port is "
                             "served, and prompts can be read on the way");
        mend(at, false, "head -c 32 /dev/urandom > baton.key && chmod 600 baton.key");
        mend_copy(c, "baton.key", at);
        mend(at, true, "baton worker --key-file baton.key   # and so the server");
    }
}

/* Neither key can be seen from the other side, and equal keys may be unequal files (hexadecimal or
 * not, line ends): one is copied over the other. */
static void say_key_trouble(const bt_checkup *c, bt_findings *f)
{
    bare_address ip;
    const bool same_machine = is_loopback(bare_of(c->reach[0].peer, &ip));
    bt_finding *at = say(f, "key", BT_FINDING_PROBLEM, "%s%s", c->visit_error.text,
                         c->worker_keyless ? ": the worker has no key; restart it with this one, "
                                             "or leave --key-file out on this side" : "");
    if (!c->key_file) {
        mend(at, false, "baton doctor %s --key-file KEY   # the file that the worker has",
             c->address);
        return;
    }
    mend_copy(c, c->key_file, at);
    mend(at, true, "baton worker --key-file %s   # other options as before",
         same_machine ? c->key_file : "baton.key");
    if (c->worker_keyless) {
        mend(at, false, "baton doctor %s   # or without one, as the worker is", c->address);
    }
}

static void mend_listener(const bt_checkup *c, bt_finding *at)
{
    mend(at, true, is(c->here.system, "macos")
                           ? "lsof -nP -iTCP:%u -sTCP:LISTEN   # which program that is"
                           : "ss -ltnp 'sport = :%u'   # which program that is", c->port);
}

static void say_http(const bt_checkup *c, bt_findings *f)
{
    bt_finding *at = say(f, "answer", BT_FINDING_PROBLEM, "'%s': an HTTP server answers there "
                         "(baton serve?); the worker's port is another one, 7070 if not told "
                         "otherwise", c->address);
    if (c->port != 7070) {
        mend(at, false, strchr(c->host, ':') ? "baton doctor '['%s']:7070'"
                                             : "baton doctor %s:7070", c->host);
    }
    mend_listener(c, at);
}

static void say_no_answer(const bt_checkup *c, bt_findings *f)
{
    const bool lost = c->visit_error.status == BT_E_LOST;
    bt_finding *at = say(f, "answer", BT_FINDING_PROBLEM, "%s%s", c->visit_error.text,
                         lost ? ". It could be connected to: either the worker there hangs (it is "
                                "stopped, or out of memory), or what listens is no worker" : "");
    switch (c->visit_error.status) {
    case BT_E_REFUSED:
    case BT_E_TIMEOUT:
        mend(at, false, "baton --version");
        mend(at, true, "baton --version   # the older one is updated");
        break;
    case BT_E_PROTOCOL:
        mend_listener(c, at);
        break;
    case BT_E_LOST:
        mend_listener(c, at);
        mend(at, true, "ps -eo pid,stat,args | grep '[b]aton worker'   # T: stopped, D: waits for "
             "a disk");
        break;
    default:
        break;
    }
}

static bool look_at_visit(const bt_checkup *c, bt_findings *f)
{
    if (c->visit_error.status == BT_OK) {
        look_at_key(c, f);
        return true;
    }
    if (c->http) {
        say_http(c, f);
    } else if (c->visit_error.status == BT_E_AUTH) {
        say_key_trouble(c, f);
    } else {
        say_no_answer(c, f);
    }
    return false;
}

/* ---- who is it ---- */

static void look_at_worker(const bt_checkup *c, bt_findings *f)
{
    const bt_visit_facts *w = &c->facts;
    const bool full = bt_doctor_checkup_full(c);
    const uint32_t more = w->n_servers_max * 2;
    const char *model = w->model[0] ? w->model : "an unnamed model";
    bt_finding *at;
    if (w->draining) {
        at = say(f, "worker", BT_FINDING_PROBLEM, "%s, %s: it is shutting down and takes no more "
                 "prompts", w->program, model);
        mend(at, true, "systemctl restart baton-worker");
    } else if (full) {
        at = say(f, "worker", BT_FINDING_ADVICE, "%s, %s: %u of %u servers connected, as many as "
                 "it takes: if yours is one of them, all is well; another one is refused",
                 w->program, model, w->n_servers, w->n_servers_max);
        if (w->n_servers_max < BT_WORKER_PEERS_MAX) {
            mend(at, true, "baton worker --peers %u   # other options as before",
                 more < BT_WORKER_PEERS_MAX ? more : BT_WORKER_PEERS_MAX);
        }
    } else {
        (void)say(f, "worker", BT_FINDING_OK, "%s, protocol %u.%u, %s; %u of %u servers connected; "
                  "prompts of up to %u tokens, %u at once, %u tokens in a chunk", w->program,
                  w->own.version_major, w->own.version_minor, model, w->n_servers,
                  w->n_servers_max, w->n_ctx, w->n_prefill, w->chunk_tokens);
    }
    if (!is(w->program, BT_HANDOFF_PROGRAM)) {
        (void)say(f, "version", BT_FINDING_ADVICE, "the worker is %s, this program %s; they "
                  "understand each other", w->program, BT_HANDOFF_PROGRAM);
    }
}

/* What differs between two files of a model, in words; NULL: it is not the file. */
static const char *file_difference(const char *field)
{
    static const struct { const char *field, *words; } list[] = {
        { "geometry", "they differ in layers, heads or sizes" },
        { "n_layers", "they differ in layers" },
        { "token_bytes", "their keys and values differ in size" },
        { "tokenizer", "their tokenizers differ" },
        { "weights", "their weights differ, as those of another quantisation or version do" },
    };
    for (size_t i = 0; i < BT_LEN(list); i++) {
        if (is(field, list[i].field)) {
            return list[i].words;
        }
    }
    return NULL;
}

static void say_misfit(const bt_checkup *c, bt_findings *f)
{
    const bt_wire_misfit *m = &c->misfit;
    const bool keys = is(m->field, "type_k");
    const char *words = file_difference(m->field);
    if (keys || is(m->field, "type_v")) {
        const char *option = keys ? "-ctk" : "-ctv";
        bt_finding *at = say(f, "model", BT_FINDING_PROBLEM, "%s are kept as %s here and as %s on "
                             "the worker: give both the same %s", keys ? "keys" : "values",
                             m->server_value, m->worker_value, option);
        mend(at, false, "baton serve %s %s   # other options as before", option, m->worker_value);
        mend(at, true, "baton worker %s %s   # or this one", option, m->server_value);
    } else if (words) {
        bt_finding *at = say(f, "model", BT_FINDING_PROBLEM, "'%s' here, '%s' on the worker: %s; "
                             "both must load the same file", c->model[0] ? c->model : "unnamed",
                             c->facts.model[0] ? c->facts.model : "unnamed", words);
        mend(at, false, "sha256sum %s", c->model_file ? c->model_file : "MODEL.gguf");
        mend(at, true, "sha256sum MODEL.gguf   # must be the same");
    } else {
        bt_finding *at = say(f, "model", BT_FINDING_PROBLEM, "%s", m->sentence);
        mend(at, false, "baton --version");
        mend(at, true, "baton --version   # the older one is updated");
    }
}

static void look_at_identity(const bt_checkup *c, bt_findings *f)
{
    if (!c->compared) {
        (void)say(f, "model", BT_FINDING_SKIPPED, "not compared; give -m FILE (and -ctk, -ctv) as "
                  "to the server");
    } else if (c->fits) {
        (void)say(f, "model", BT_FINDING_OK, "the worker has the same model, tokenizer and types "
                  "of keys and values");
    } else {
        say_misfit(c, f);
        return;                        /* nothing of that model will be prefilled there */
    }
    if (c->numerics[0] && c->facts.numerics[0]) {
        if (is(c->numerics, c->facts.numerics)) {
            (void)say(f, "numerics", BT_FINDING_OK, "both compute with %s: remote and local "
                      "prefill agree bit for bit", c->numerics);
        } else {
            (void)say(f, "numerics", BT_FINDING_OK, "the worker computes with %s, this machine "
                      "with %s: remote and local prefill agree closely, but not bit for bit",
                      c->facts.numerics, c->numerics);
        }
    }
}

/* ---- the way ---- */

static bool look_at_probes(const bt_checkup *c, bt_findings *f)
{
    if (c->n_round_trips > 0) {
        const bt_spread s = bt_cost_spread_of(c->round_trip_ms, c->n_round_trips);
        const bool uneven = s.high > 4 * s.median && s.high > 5;
        (void)say(f, "round trip", uneven ? BT_FINDING_ADVICE : BT_FINDING_OK,
                  "%.2f ms in the median of %u, eight of ten between %.2f and %.2f%s", s.median,
                  c->n_round_trips, s.low, s.high,
                  uneven ? ": very uneven, as over wireless or on a busy machine" : "");
    }
    if (c->probe_error.status == BT_OK) {
        return true;
    }
    bt_finding *at = say(f, "goodput", BT_FINDING_PROBLEM, "%s%s", c->probe_error.text,
                         c->probe_error.status == BT_E_TIMEOUT
                                 ? "; small packets pass and large ones do not, if the two sides "
                                   "differ in MTU" : "");
    if (c->probe_error.status == BT_E_TIMEOUT) {
        bare_address ip;
        const uint32_t mtu = c->socket.interface_mtu ? c->socket.interface_mtu : 1500;
        const bool macos = is(c->here.system, "macos");
        mend(at, false, macos ? "ping -D -s %u -c 3 %s" : "ping -M do -s %u -c 3 %s",
             mtu - 28, c->host);
        mend(at, true, is(c->facts.system, "macos") ? "ifconfig " MACOS_INTERFACE
                                                    : "ip link show dev " LINUX_INTERFACE,
             bare_of(c->facts.peer, &ip));
    }
    return false;
}

static void look_at_goodput(const bt_checkup *c, bt_findings *f)
{
    const double rate = bt_doctor_checkup_goodput(c), line = c->socket.interface_mbit * 125e3;
    const bool known = line > 0 && !c->socket.loopback;
    char of_line[64] = "";
    if (known) {
        bt_say(of_line, sizeof of_line, ", %.0f %% of the %u Mbit/s of %s", rate / line * 100,
               c->socket.interface_mbit, c->socket.interface);
    }
    const bool slow = known && rate < SHARE_EXPECTED * line;
    bt_finding *at = say(f, "goodput", slow ? BT_FINDING_ADVICE : BT_FINDING_OK,
                         "1 MiB in %.2f ms; %.0f MiB at %.1f MB/s%s%s", c->warm_ms,
                         c->large_bytes / 1048576, rate / 1e6, of_line,
                         slow ? ": the way is slower than this end of the cable, or a side is busy"
                              : "");
    if (slow) {
        bare_address ip;
        mend(at, true, is(c->facts.system, "macos") ? "networksetup -getMedia " MACOS_INTERFACE
                                                    : "ethtool " LINUX_INTERFACE,
             bare_of(c->facts.peer, &ip));
        mend(at, true, "iperf3 -s");
        mend(at, false, "iperf3 -R -c %s", c->host);
    }
}

/* ---- the kernels ---- */

/* The setting says what the kernel does, the times what comes of it: neither alone is advice. */
static void look_at_rest(const bt_checkup *c, bt_findings *f)
{
    const bool slower = c->rested_ms > c->warm_ms * REST_FACTOR &&
                        c->rested_ms > c->warm_ms + REST_MS;
    const bool loopback = c->socket.loopback, on = c->facts.idle_restart == 2 && !loopback;
    const char *setting =
            loopback                     ? "of no account on loopback"
            : c->facts.idle_restart == 0 ? "the worker's setting is not known"
            : c->facts.idle_restart == 1 ? (slower ? "off on the worker, yet a side or the way is "
                                                     "slow to wake"
                                                   : "off on the worker")
            : slower ? "on at the worker (tcp_slow_start_after_idle is 1): the first rows of a "
                       "prompt go slowly"
                     : "on at the worker (tcp_slow_start_after_idle is 1), which did not show now, "
                       "and will on a faster or longer link";
    bt_finding *at = say(f, "slow start", on || (slower && !loopback) ? BT_FINDING_ADVICE
                                                                      : BT_FINDING_OK,
                         "after a rest: %s; 1 MiB takes %.2f ms then, and %.2f at once after "
                         "another", setting, c->rested_ms, c->warm_ms);
    if (on) {
        mend(at, true, "sudo sysctl -w net.ipv4.tcp_slow_start_after_idle=0");
    }
}

/* The larger power of two, so that the number in a command is a round one. */
static uint32_t round_up(double bytes)
{
    uint32_t v = 1 << 20;
    while ((double)v < bytes && v < UINT32_C(1) << 31) {
        v *= 2;
    }
    return v;
}

/* Half of a buffer is what TCP offers or keeps of payload; twice the product of rate and round trip
 * keeps the line busy. */
static void look_at_window(const bt_checkup *c, bt_findings *f, bool worker, uint64_t limit,
                           const char *name, double needed)
{
    const char *system = worker ? c->facts.system : c->here.system;
    if (limit == 0) {
        return;
    }
    char up_to[24], wanted[24];
    const bool low = needed > (double)limit;
    bt_finding *at = say(f, name, low ? BT_FINDING_PROBLEM : BT_FINDING_OK,
                         "%s: the kernel's tuning goes up to %s, %s than the %s that this rate and "
                         "round trip need", worker ? "worker" : "here",
                         size_text((double)limit, up_to), low ? "less" : "more",
                         size_text(needed, wanted));
    if (low && is(system, "linux")) {
        mend(at, worker, "sudo sysctl -w net.ipv4.%s='4096 131072 %u'", name, round_up(needed));
    } else if (low && is(system, "macos")) {
        mend(at, worker, "sudo sysctl -w net.inet.tcp.%s=%u",
             worker ? "autosndbufmax" : "autorcvbufmax", round_up(needed));
    }
}

/* An explicit --link-buffer is cut to these without a word. */
static void look_at_buffer(const bt_checkup *c, bt_findings *f, bool worker, uint64_t limit,
                           const char *name)
{
    const char *where = worker ? "worker" : "here";
    char given[24], asked[24];
    if (limit == 0) {
        return;
    }
    if (c->buffer_bytes <= limit) {
        (void)say(f, name, BT_FINDING_OK, "%s: --link-buffer may ask for up to %s", where,
                  size_text((double)limit, given));
        return;
    }
    bt_finding *at = say(f, name, BT_FINDING_PROBLEM, "%s: --link-buffer asks for %s, the kernel "
                         "gives %s", where, size_text(c->buffer_bytes, asked),
                         size_text((double)limit, given));
    if (is(worker ? c->facts.system : c->here.system, "macos")) {
        mend(at, worker, "sudo sysctl -w kern.ipc.maxsockbuf=%u", round_up(c->buffer_bytes));
    } else {
        mend(at, worker, "sudo sysctl -w net.core.%s=%u", name, round_up(c->buffer_bytes));
    }
}

static void look_at_packets(const bt_checkup *c, bt_findings *f)
{
    const bt_link_socket *s = &c->socket;
    const uint32_t mtu = s->path_mtu ? s->path_mtu : s->interface_mtu;
    const bool narrow = s->segment_bytes > 0 && s->segment_bytes < PLAIN_SEGMENT_BYTES;
    const bool large = mtu > 0 && mtu <= 1500 && s->interface_mbit >= LARGE_PACKETS_MBIT;
    bt_finding *at = say(f, "mtu", !s->loopback && (narrow || large) ? BT_FINDING_ADVICE
                                                                     : BT_FINDING_OK,
                         "%u on the way by %s, %u bytes of payload in a packet%s", mtu,
                         s->interface[0] ? s->interface : "an unknown interface",
                         s->segment_bytes,
                         s->loopback ? ""
                         : narrow    ? ": a tunnel or VPN takes room; use the direct address"
                         : large     ? ": 9000 on both ends saves both sides work at this speed"
                                     : "");
    if (!s->loopback && large && !narrow) {
        bare_address ip;
        mend(at, false, is(c->here.system, "macos") ? "sudo networksetup -setMTU %s 9000"
                                                    : "sudo ip link set %s mtu 9000",
             s->interface);
        mend(at, true, is(c->facts.system, "macos")
                               ? "sudo networksetup -setMTU " MACOS_INTERFACE " 9000"
                               : "sudo ip link set " LINUX_INTERFACE " mtu 9000",
             bare_of(c->facts.peer, &ip));
        mend(at, false, is(c->here.system, "macos") ? "ping -D -s 8972 -c 3 %s"
                                                    : "ping -M do -s 8972 -c 3 %s", c->host);
    }
}

static void look_at_kernels(const bt_checkup *c, bt_findings *f)
{
    const double line = c->socket.loopback ? 0 : c->socket.interface_mbit * 125e3;
    const double rate = fmax(bt_doctor_checkup_goodput(c), line);
    const double round_trip = bt_cost_spread_of(c->round_trip_ms, c->n_round_trips).low / 1e3;
    const double needed = 2 * rate * round_trip;
    char in[24], out[24];
    (void)say(f, "buffers", BT_FINDING_OK, "in effect: %s to receive here, %s to send on the "
              "worker%s%s", size_text((double)c->socket.receive_buffer, in),
              size_text((double)c->facts.send_buffer, out),
              c->facts.congestion[0] ? ", congestion control " : "", c->facts.congestion);
    look_at_window(c, f, false, c->here.tcp_rmem_max, "tcp_rmem", needed);
    look_at_window(c, f, true, c->facts.tcp_wmem_max, "tcp_wmem", needed);
    look_at_buffer(c, f, false, c->here.rmem_max, "rmem_max");
    look_at_buffer(c, f, true, c->facts.wmem_max, "wmem_max");
    look_at_rest(c, f);
    look_at_packets(c, f);
}

void bt_doctor_advice_give(const bt_checkup *c, bt_findings *ret_findings)
{
    bt_findings *f = ret_findings;
    f->n = 0;
    const bool reached = look_at_reach(c, f);
    if (!look_at_key_file(c, f, reached) || !reached || !look_at_visit(c, f)) {
        return;
    }
    look_at_worker(c, f);
    look_at_identity(c, f);
    if (look_at_probes(c, f)) {
        look_at_goodput(c, f);
        look_at_kernels(c, f);
    }
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
