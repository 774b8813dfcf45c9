/* wire/messages.h - one table per message: the struct, the encoder, the decoder, the fuzz
 * generator and the check that docs/wire.md lists the same fields all come from here.
 *
 * A field is F(type, name, doc). Types on the wire, little-endian, without padding:
 *   u32, u64   a number
 *   digest     16 bytes
 *   text       u32 size (at most BT_WIRE_TEXT_BYTES_MAX), then that many bytes of UTF-8
 *   tokens     u32 count (at most BT_WIRE_TOKENS_PER_FRAME_MAX), then that many u32
 *   bytes      u32 size (at most BT_WIRE_BODY_BYTES_MAX), then that many bytes
 *
 * Published fields keep their place for ever; a later minor version may only append, and whoever
 * does not know a field ignores it. A type number, once published, is never reused.
 */
#ifndef BT_WIRE_MESSAGES_H
#define BT_WIRE_MESSAGES_H

enum { BT_WIRE_VERSION_MAJOR = 1, BT_WIRE_VERSION_MINOR = 1 };

/* A bit of PREFILL's tenant: one prompt alone, which neither uses nor fills the worker's cache. A
 * worker that does not know it keeps that prompt from others as those of any tenant. */
#define BT_WIRE_TENANT_ALONE (UINT64_C(1) << 63)

/* What must be equal on both sides for KV rows to mean the same. Compared one by one, in this
 * order; a difference is told by the field's name and both values (wire/identity.h). */
#define BT_WIRE_IDENTITY_FIELDS(F)                                                                 \
    F(u32,    kv_format,    "version of the canonical layout of rows")                             \
    F(digest, geometry,     "digest of the architecture and all of its metadata keys")             \
    F(digest, tokenizer,    "digest of vocabulary, merges and special tokens")                     \
    F(digest, weights,      "digest of the tensor data")                                           \
    F(digest, draft,        "digest of the draft configuration; zero: none")                       \
    F(u32,    type_k,       "element type of K rows, numbered as in GGUF")                         \
    F(u32,    type_v,       "element type of V rows, numbered as in GGUF")                         \
    F(u32,    n_layers,     "layers of the model")                                                 \
    F(u64,    token_bytes,  "K and V of one token, all layers, in bytes")

#define BT_WIRE_HELLO_FIELDS(F)                                                                    \
    F(u32,    version_major, "of this protocol; must be equal")                                    \
    F(u32,    version_minor, "of this protocol; the server's may be lower")                        \
    F(u64,    session,      "random, chosen at each start of the server; for logs")                \
    BT_WIRE_IDENTITY_FIELDS(F)                                                                     \
    F(text,   numerics,     "instruction set tier; rows are bit-equal only when both are equal")   \
    F(text,   model,        "name for messages; not compared")                                     \
    F(text,   program,      "program and version, for logs; not compared")

#define BT_WIRE_WELCOME_FIELDS(F)                                                                  \
    F(u32,    version_major, "the worker's")                                                       \
    F(u32,    version_minor, "the one both will speak: the server's")                              \
    F(u64,    epoch,        "random, chosen at each start of the worker; never zero")              \
    F(u32,    n_ctx,        "positions that one prompt may have at most")                          \
    F(u32,    n_streams,    "open PREFILLs on this connection at most")                            \
    F(u32,    n_prefill,    "prompts computed at once; others wait in line")                       \
    F(u32,    chunk_tokens, "tokens of a prompt in a step, when PREFILL does not say")             \
    F(text,   numerics,     "instruction set tier of the worker")                                  \
    F(text,   program,      "program and version, for logs")

#define BT_WIRE_REJECT_FIELDS(F)                                                                   \
    F(u32,    status,       "code of base/status.h")                                               \
    F(text,   field,        "the field of HELLO that does not fit, or what else was refused")      \
    F(text,   server_value, "as the worker understood it")                                         \
    F(text,   worker_value, "what would have fitted")                                              \
    F(text,   sentence,     "for people")

#define BT_WIRE_PREFILL_FIELDS(F)                                                                  \
    F(u64,    nonce,        "random, chosen for this prompt alone; never zero")                    \
    F(u64,    epoch,        "from WELCOME")                                                        \
    F(u32,    n_tokens,     "ids that TOKENS frames will bring")                                   \
    F(u32,    position_first, "rows before it are not wanted: the server has them")                \
    F(u32,    position_end, "rows wanted end before it; at most n_tokens")                         \
    F(u32,    chunk_tokens, "tokens of this prompt in a step at most; 0: the worker's choice")     \
    F(u64,    credit,       "bytes of ROWS and STATE bodies the worker may send at once")          \
    F(u32,    codec,        "of rows: 0 as stored, 1 f16, 2 q8_0")                                 \
    F(u32,    order,        "what leaves when: 0 layers; others are for comparing")                \
    F(u64,    link_rate,    "bytes per second that the server has seen come in; 0: not known")     \
    F(tokens, borders,      "positions whose states shall follow COMMIT; falling")        \
    F(u64,    tenant,       "prompts with another number never meet in the worker's cache")

#define BT_WIRE_TOKENS_FIELDS(F)                                                                   \
    F(u32,    offset,       "index of the first id; parts come in order and without gaps")         \
    F(tokens, ids,          "token ids, at least one")

#define BT_WIRE_ROWS_FIELDS(F)                                                                     \
    F(u32,    layer,        "0 to n_layers - 1")                                                   \
    F(u32,    position,     "of the first row")                                                    \
    F(u32,    n,            "rows, at least one")                                                  \
    F(bytes,  k,            "n rows of K, or nothing where the layer has none")                    \
    F(bytes,  v,            "n rows of V, or nothing where the layer has none")

#define BT_WIRE_STATE_FIELDS(F)                                                                    \
    F(u32,    layer,        "0 to n_layers - 1")                                                   \
    F(u32,    kind,         "0: all that the layer keeps")                                         \
    F(u32,    position,     "tokens that the state has taken in")                                  \
    F(u32,    offset,       "of this part in the state, in bytes")                                 \
    F(u32,    total,        "bytes of the whole state")                                            \
    F(bytes,  data,         "this part, at least one byte")

#define BT_WIRE_CHUNK_FIELDS(F)                                                                    \
    F(u32,    position_end, "all layers are sent for the positions before it")                     \
    F(u64,    n_frames,     "ROWS and STATE frames sent so far")                                   \
    F(digest, digest,       "running digest so far")                                               \
    F(u64,    compute_us,   "time spent computing so far")

#define BT_WIRE_COMMIT_FIELDS(F)                                                                   \
    F(u64,    nonce,        "from PREFILL")                                                        \
    F(u64,    epoch,        "of the worker, again")                                                \
    F(u32,    position_first, "from PREFILL")                                                      \
    F(u32,    position_end, "from PREFILL")                                                        \
    F(u64,    n_frames,     "ROWS and STATE frames of this stream")                                \
    F(u64,    n_bytes,      "their bodies together, in bytes")                                     \
    F(digest, digest,       "running digest over all of them")                                     \
    F(u32,    n_cached,     "tokens that the worker did not have to compute")                      \
    F(u64,    queue_us,     "time in line, by the worker's clock")                                 \
    F(u64,    compute_us,   "time computing, by the worker's clock")

#define BT_WIRE_CANCEL_FIELDS(F)                                                                   \
    F(u32,    status,       "why, a code of base/status.h; for counters only")

#define BT_WIRE_CANCELLED_FIELDS(F)                                                                \
    F(u32,    position_end, "tokens computed until then; for counters only")

#define BT_WIRE_ERROR_FIELDS(F)                                                                    \
    F(u32,    status,       "code of base/status.h")                                               \
    F(u32,    retry_ms,     "a new try makes sense after so long; 0: not said")                    \
    F(text,   sentence,     "for people")

#define BT_WIRE_CREDIT_FIELDS(F)                                                                   \
    F(u64,    bytes,        "added to what the worker may send on this stream; at least one")

#define BT_WIRE_LOAD_FIELDS(F)                                                                     \
    F(u64,    time,         "clock of the sender of PING; only it gives the number a meaning")     \
    F(u32,    running,      "prompts being computed")                                              \
    F(u32,    waiting,      "prompts in line")                                                     \
    F(u64,    queued_tokens, "tokens not yet computed, of all of them")                            \
    F(u64,    token_ns,     "time to prefill one token, smoothed; 0: not yet known")

#define BT_WIRE_DRAIN_FIELDS(F)                                                                    \
    F(u32,    grace_ms,     "the connection closes after so long at the latest; 0: not said")      \
    F(text,   sentence,     "for people")

#define BT_WIRE_VISIT_FIELDS(F)                                                                    \
    F(u32,    version_major, "of this protocol; must be equal")                                    \
    F(u32,    version_minor, "of this protocol; the visitor's may be lower")                       \
    F(text,   program,      "program and version, for logs")

#define BT_WIRE_FACTS_FIELDS(F)                                                                    \
    F(u32,    version_major, "the worker's")                                                       \
    F(u32,    version_minor, "the worker's")                                                       \
    BT_WIRE_IDENTITY_FIELDS(F)                                                                     \
    F(u32,    n_ctx,        "positions that one prompt may have at most")                          \
    F(u32,    n_prefill,    "prompts computed at once")                                            \
    F(u32,    chunk_tokens, "tokens of a prompt in a step")                                        \
    F(u32,    n_servers,    "connected now")                                                       \
    F(u32,    n_servers_max, "that it takes")                                                      \
    F(u32,    draining,     "1: it takes no more prompts")                                         \
    F(u64,    send_buffer,  "of this connection's socket there, in bytes")                         \
    F(u64,    wmem_max,     "largest send buffer that can be asked for there; 0: not known")       \
    F(u64,    tcp_wmem_max, "largest that the kernel there takes by itself; 0: not known")         \
    F(u32,    idle_restart, "a connection that rests begins slowly; 0: not known, 1: no, 2: yes")  \
    F(text,   congestion,   "congestion control there; empty: not known")                          \
    F(text,   system,       "operating system there")                                              \
    F(text,   numerics,     "instruction set tier there")                                          \
    F(text,   model,        "name for messages")                                                   \
    F(text,   program,      "program and version")

#define BT_WIRE_PROBE_FIELDS(F)                                                                    \
    F(u32,    n_bytes,      "that the worker is to send; 0: only an answer")

#define BT_WIRE_SAMPLE_FIELDS(F)                                                                   \
    F(u32,    offset,       "of these bytes among all of the answer")                              \
    F(u32,    total,        "of the answer, in bytes: as asked for")                               \
    F(bytes,  data,         "of no meaning, and not compressible")

/* X(NAME, name, type number, FIELDS, who sends, doc) */
#define BT_WIRE_MESSAGE_LIST(X)                                                                    \
    X(HELLO,     hello,     1,  BT_WIRE_HELLO_FIELDS,     "server", "opens the connection")        \
    X(WELCOME,   welcome,   2,  BT_WIRE_WELCOME_FIELDS,   "worker", "HELLO fits")                  \
    X(REJECT,    reject,    3,  BT_WIRE_REJECT_FIELDS,    "worker", "HELLO does not fit")          \
    X(PREFILL,   prefill,   4,  BT_WIRE_PREFILL_FIELDS,   "server", "asks for the rows")           \
    X(TOKENS,    tokens,    5,  BT_WIRE_TOKENS_FIELDS,    "server", "a part of the prompt")        \
    X(ROWS,      rows,      6,  BT_WIRE_ROWS_FIELDS,      "worker", "K and V rows of one layer")   \
    X(STATE,     state,     7,  BT_WIRE_STATE_FIELDS,     "worker", "a part of a recurrent state") \
    X(CHUNK,     chunk,     8,  BT_WIRE_CHUNK_FIELDS,     "worker", "a chunk is complete")         \
    X(COMMIT,    commit,    9,  BT_WIRE_COMMIT_FIELDS,    "worker", "all is sent")                 \
    X(CANCEL,    cancel,    10, BT_WIRE_CANCEL_FIELDS,    "server", "the rows are not wanted")     \
    X(CANCELLED, cancelled, 11, BT_WIRE_CANCELLED_FIELDS, "worker", "the stream is over")          \
    X(ERROR,     error,     12, BT_WIRE_ERROR_FIELDS,     "both",   "something has failed")        \
    X(CREDIT,    credit,    13, BT_WIRE_CREDIT_FIELDS,    "server", "the worker may send more")    \
    X(PING,      ping,      14, BT_WIRE_LOAD_FIELDS,      "both",   "are you there")               \
    X(PONG,      pong,      15, BT_WIRE_LOAD_FIELDS,      "both",   "yes")                         \
    X(DRAIN,     drain,     16, BT_WIRE_DRAIN_FIELDS,     "both",   "no new streams, please")      \
    X(VISIT,     visit,     17, BT_WIRE_VISIT_FIELDS,     "visitor", "opens it, to look")          \
    X(FACTS,     facts,     18, BT_WIRE_FACTS_FIELDS,     "worker", "what there is to see")        \
    X(PROBE,     probe,     19, BT_WIRE_PROBE_FIELDS,     "visitor", "asks for bytes to be timed") \
    X(SAMPLE,    sample,    20, BT_WIRE_SAMPLE_FIELDS,    "worker", "a part of such bytes")

typedef enum {
#define X(NAME, name, number, FIELDS, sender, doc) BT_WIRE_##NAME = (number),
    BT_WIRE_MESSAGE_LIST(X)
#undef X
} bt_wire_type;

#endif
