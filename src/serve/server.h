/* serve/server.h - the HTTP server in front of one engine.
 *
 * It listens as soon as it is started and answers 503 "Loading model" until it is given something
 * to serve. Routes and shapes: docs/http.md.
 *
 * Lifetime: start, set_ready once, stop, destroy. What set_ready is given is borrowed and must stay
 *           until stop has returned; destroy the engine only after that.
 * Threads:  one per connection, and one that closes connections that are too slow. start, stop and
 *           destroy: the owner's thread; set_ready: any.
 * Failure:  start only (address in use, key file unreadable), with a sentence.
 */
#ifndef BT_SERVE_SERVER_H
#define BT_SERVE_SERVER_H

#include "engine/engine.h"
#include "handoff/client.h"
#include "text/chat.h"

typedef struct bt_server bt_server;

typedef struct {
    const char *host;              /* name or address; "[::1]" and "::1" are the same */
    uint32_t    port;              /* 0: any free one */
    const char *api_keys;          /* "a,b"; NULL and no file: no key is asked for */
    const char *api_key_file;      /* one key a line, # starts a comment */
    const char *allowed_hosts;     /* Host names that a loopback server answers to beside its own:
                                      a comma list, or "*"; NULL: none */
    const char *cors_origins;      /* NULL: same origin and this machine; "*", or a comma list */
    uint32_t    n_connections;     /* at once; 0: 256 */
    uint32_t    timeout_s;         /* for a client to send or take something; 0: 60 */
    int32_t     ping_interval_s;   /* comment lines in silent streams; <= 0: none */
    bool        no_ui;             /* no page at / */
    bt_sampler_options sampling;   /* what requests do not say; bias unused */
    int64_t     n_predict;         /* -1: until the context is full */
    bt_prefill_policy policy;
    uint32_t    queue_wait_s;      /* longer estimated waits are 429; 0: no limit */
} bt_server_options;

typedef struct {
    bt_engine              *engine;
    bt_prefill             *prefill;       /* NULL: no workers */
    const bt_tokenizer     *tokenizer;
    const bt_chat_format   *chat;          /* NULL: chat is refused with chat_reason */
    const char             *chat_reason;
    const bt_model_config  *config;
    const char             *alias;         /* the name that answers carry */
    const char             *model_path;
    const char             *file_type;     /* "Q4_K_M"; "" if not known */
    const bt_sampler_options *sampling;    /* of this model, in place of the options'; or NULL */
} bt_serving;

bt_server_options bt_serve_defaults(void);
BT_MUST_CHECK bt_status bt_serve_start(const bt_server_options *o, bt_server **ret_server,
                                       bt_error *err);
/* "127.0.0.1:8080", "[::1]:8080": with the real port. Until destroy. */
const char *bt_serve_address(const bt_server *s);
uint32_t    bt_serve_port(const bt_server *s);
/* The struct is copied, what it points to is borrowed. */
void bt_serve_set_ready(bt_server *s, const bt_serving *serving);
/* Takes no new connections or requests, gives those in flight `grace_ms` to finish, cancels the
 * rest, and returns when no thread is left. May be called twice. */
void bt_serve_stop(bt_server *s, uint32_t grace_ms);
/* While another thread is in stop: no more grace. Any thread. */
void bt_serve_hurry(bt_server *s);
void bt_serve_destroy(bt_server *s);                      /* NULL is fine; stops first */

#endif
