/* doctor/advice.c - reach, key, worker and model; see advice.h. */
#include "doctor/advice.h"

#include "base/limits.h"
#include "base/say.h"
#include "doctor/finding.h"

/* The file to the worker's machine, if that is another one. */
static void fix_copy(const bt_checkup *c, const char *file, bt_finding *at)
{
    bare_address bare;
    if (is_loopback(bare_of(c->reach[0].peer, &bare))) {
        return;
    }
    fix(at, false, strchr(c->host, ':') ? "scp %s '['%s']:baton.key'" : "scp %s %s:baton.key",
        file, c->host);
}

/* ---- reachable? ---- */

static void fix_reach(const bt_checkup *c, const bt_reach *r, bt_finding *at)
{
    const bool macos = is(c->here.system, "macos");
    bare_address ip;
    const char *bare = bare_of(r->peer, &ip);
    switch (r->kind) {
    case BT_REACH_REFUSED:
        if (is_loopback(bare)) {
            fix(at, true, "baton worker -m MODEL.gguf --listen %s", r->peer);
            break;
        }
        fix(at, true, r->peer[0] == '['
                              ? "baton worker -m MODEL.gguf --listen '[::]:%u' --key-file KEY"
                              : "baton worker -m MODEL.gguf --listen 0.0.0.0:%u --key-file KEY",
            c->port);
        fix(at, true, "ss -ltn 'sport = :%u'   # 127.0.0.1 there: it listens for itself only",
            c->port);
        break;
    case BT_REACH_NO_ROUTE:
        fix(at, false, macos ? "route -n get %s" : "ip route get %s", bare);
        fix(at, false, "ping -c 3 %s", bare);
        break;
    case BT_REACH_NO_ANSWER:
        fix(at, false, "ping -c 3 %s", bare);
        fix(at, true, "sudo ufw allow %u/tcp   # where ufw is the firewall", c->port);
        fix(at, true, "sudo nft list ruleset   # any other: a rule that drops port %u", c->port);
        break;
    case BT_REACH_NOT_PERMITTED:
        fix(at, false, macos ? "sudo pfctl -sr" : "sudo nft list ruleset; ip route get %s", bare);
        break;
    case BT_REACH_LOCAL_NETWORK:
        fix(at, false, "open 'x-apple.systempreferences:com.apple.preference.security"
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
            fix(at, false, is(c->here.system, "macos") ? "dscacheutil -q host -a name %s"
                                                       : "getent hosts %s", c->host);
            fix(at, true, is(c->here.system, "macos") ? "ipconfig getifaddr en0"
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
        (void)bt_link_reach_explain(r->kind, r->error, c->address, r->peer,
                                      (uint32_t)(r->ms + 0.5), &why);
        bt_finding *at = say(f, "reach", any ? BT_FINDING_ADVICE : BT_FINDING_PROBLEM, "%s%s",
                             why.text, any ? " (another address of the name is used)" : "");
        fix_reach(c, r, at);
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
            fix(at, false, "openssl rand -hex 32 > %s && chmod 600 %s", c->key_file, c->key_file);
            fix_copy(c, c->key_file, at);
        } else {
            fix(at, false, "ls -l %s", c->key_file);
        }
        return false;
    }
    if (c->key_open_to_others) {
        bt_finding *at = say(f, "key", BT_FINDING_ADVICE, "'%s' can be used by others on this "
                             "machine", c->key_file);
        fix(at, false, "chmod 600 %s", c->key_file);
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
        fix(at, false, "head -c 32 /dev/urandom > baton.key && chmod 600 baton.key");
        fix_copy(c, "baton.key", at);
        fix(at, true, "baton worker --key-file baton.key   # and so the server");
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
        fix(at, false, "baton doctor %s --key-file KEY   # the file that the worker has",
            c->address);
        return;
    }
    fix_copy(c, c->key_file, at);
    fix(at, true, "baton worker --key-file %s   # other options as before",
        same_machine ? c->key_file : "baton.key");
    if (c->worker_keyless) {
        fix(at, false, "baton doctor %s   # or without one, as the worker is", c->address);
    }
}

static void fix_listener(const bt_checkup *c, bt_finding *at)
{
    fix(at, true, is(c->here.system, "macos")
                          ? "lsof -nP -iTCP:%u -sTCP:LISTEN   # which program that is"
                          : "ss -ltnp 'sport = :%u'   # which program that is", c->port);
}

static void say_http(const bt_checkup *c, bt_findings *f)
{
    bt_finding *at = say(f, "answer", BT_FINDING_PROBLEM, "'%s': an HTTP server answers there "
                         "(baton serve?); the worker's port is another one, 7070 if not told "
                         "otherwise", c->address);
    if (c->port != 7070) {
        fix(at, false, strchr(c->host, ':') ? "baton doctor '['%s']:7070'"
                                            : "baton doctor %s:7070", c->host);
    }
    fix_listener(c, at);
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
        fix(at, false, "baton --version");
        fix(at, true, "baton --version   # the older one is updated");
        break;
    case BT_E_PROTOCOL:
        fix_listener(c, at);
        break;
    case BT_E_LOST:
        fix_listener(c, at);
        fix(at, true, "ps -eo pid,stat,args | grep '[b]aton worker'   # T: stopped, D: waits for "
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
    const bt_probe_facts *w = &c->facts;
    const bool full = bt_doctor_checkup_full(c);
    const uint32_t more = w->n_servers_max * 2;
    const char *model = w->model[0] ? w->model : "an unnamed model";
    bt_finding *at;
    if (w->draining) {
        at = say(f, "worker", BT_FINDING_PROBLEM, "%s, %s: it is shutting down and takes no more "
                 "prompts", w->program, model);
        fix(at, true, "systemctl restart baton-worker");
    } else if (full) {
        at = say(f, "worker", BT_FINDING_ADVICE, "%s, %s: %u of %u servers connected, as many as "
                 "it takes: if yours is one of them, all is well; another one is refused",
                 w->program, model, w->n_servers, w->n_servers_max);
        if (w->n_servers_max < BT_WORKER_PEERS_MAX) {
            fix(at, true, "baton worker --peers %u   # other options as before",
                more < BT_WORKER_PEERS_MAX ? more : BT_WORKER_PEERS_MAX);
        }
    } else {
        (void)say(f, "worker", BT_FINDING_OK, "%s, protocol %u.%u, %s; %u of %u servers connected; "
                  "prompts of up to %u tokens, %u at once, %u tokens in a chunk", w->program,
                  w->own.version_major, w->own.version_minor, model, w->n_servers,
                  w->n_servers_max, w->n_ctx, w->n_prefill, w->chunk_tokens);
    }
    if (!is(w->program, BT_WIRE_PROGRAM)) {
        (void)say(f, "version", BT_FINDING_ADVICE, "the worker is %s, this program %s; they "
                  "understand each other", w->program, BT_WIRE_PROGRAM);
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
        fix(at, false, "baton serve %s %s   # other options as before", option, m->worker_value);
        fix(at, true, "baton worker %s %s   # or this one", option, m->server_value);
    } else if (words) {
        bt_finding *at = say(f, "model", BT_FINDING_PROBLEM, "'%s' here, '%s' on the worker: %s; "
                             "both must load the same file", c->model[0] ? c->model : "unnamed",
                             c->facts.model[0] ? c->facts.model : "unnamed", words);
        fix(at, false, "sha256sum %s", c->model_file ? c->model_file : "MODEL.gguf");
        fix(at, true, "sha256sum MODEL.gguf   # must be the same");
    } else {
        bt_finding *at = say(f, "model", BT_FINDING_PROBLEM, "%s", m->sentence);
        fix(at, false, "baton --version");
        fix(at, true, "baton --version   # the older one is updated");
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
    bt_doctor_look_at_link(c, f);
}
