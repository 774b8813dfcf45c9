/* base/limits.h - every limit on what comes from outside, with the reason for each number.
 *
 * Sizes from files, sockets and requests are held against these before anything is allocated.
 */
#ifndef BT_BASE_LIMITS_H
#define BT_BASE_LIMITS_H

#include <stdint.h>

/* Model files. Real files: about 50 keys, up to 2,000 tensors (a MoE of old split experts: 30,000),
 * 260,000 tokens and 520,000 merges. */
#define BT_GGUF_KEYS_MAX          65536u
#define BT_GGUF_TENSORS_MAX       1048576u
#define BT_GGUF_KEY_BYTES_MAX     65535u
#define BT_GGUF_STRING_BYTES_MAX  (64u << 20)   /* a large tokenizer.json: 30 MB */
#define BT_GGUF_ARRAY_MAX         (1u << 26)
#define BT_GGUF_NAME_BYTES_MAX    63u
#define BT_GGUF_SPLITS_MAX        1024u

/* Models. The largest public ones: 160 layers, 262,144 tokens, width 20,480. */
#define BT_LAYERS_MAX             512u
#define BT_VOCAB_MAX              (1u << 22)
#define BT_WIDTH_MAX              (1u << 20)
#define BT_HEADS_MAX              1024u
#define BT_CONTEXT_MAX            (1u << 24)
#define BT_EXPERTS_MAX            8192u          /* a share's sum cannot vanish; known: 512 */
#define BT_EXPERTS_USED_MAX       64u            /* known: 10 */
#define BT_CONV_TAPS_MAX          16u            /* known: 4 */
#define BT_TOKEN_BYTES_MAX        65536u         /* one token's text */

/* Requests. A context of 256k tokens is about 1 MB of text; images come later. */
#define BT_HTTP_BODY_BYTES_MAX    (64u << 20)
#define BT_HTTP_BODIES_BYTES_MAX  (256u << 20)   /* of all requests being received together */
#define BT_JSON_DEPTH_MAX         128u           /* jansson's own ceiling is 2,048 */
#define BT_JSON_BYTES_MAX         (256u << 20)   /* parsed values of all requests together */
#define BT_JSON_VALUES_MAX        (1u << 21)     /* a prompt of 1M token ids; about 200 MB parsed */
#define BT_PROMPTS_MAX            64u            /* prompts in one completion request */
#define BT_MESSAGES_MAX           16384u
#define BT_STOPS_MAX              64u
#define BT_STOP_BYTES_MAX         1024u
#define BT_LOGIT_BIAS_MAX         4096u
#define BT_TOP_LOGPROBS_MAX       100u
#define BT_BORDERS_MAX            1024u          /* of messages, in one prompt */
#define BT_PARALLEL_MAX           256u           /* sequences at once */
#define BT_STEP_ROWS_MAX          16384u
#define BT_CHAT_TEMPLATE_BYTES_MAX (1u << 20)    /* the largest known is 35 KB */
#define BT_RENDERED_BYTES_MAX     (128u << 20)

/* The wire (docs/wire.md). */
#define BT_WIRE_BODY_BYTES_MAX    (1u << 20)     /* a control frame waits for one at most */
#define BT_WIRE_TEXT_BYTES_MAX    4096u
#define BT_WIRE_TOKENS_PER_FRAME_MAX 131072u     /* 512 KiB of ids; longer prompts come in parts */
#define BT_WIRE_BORDERS_MAX       32u            /* states of one prompt beside its last */
#define BT_WIRE_PROBE_BYTES_MAX   (32u << 20)    /* a quarter of a second of 1 GbE */
#define BT_WORKERS_MAX            64u
#define BT_LINK_BUFFER_MAX        (1u << 30)     /* a socket's buffers, as asked for */
#define BT_WORKER_PEERS_MAX       64u            /* servers connected to one worker */
#define BT_STREAMS_PER_PEER_MAX   256u

#endif
