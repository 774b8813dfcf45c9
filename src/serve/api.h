/* serve/api.h - an API in which completions are asked for and answered.
 *
 * One table per API, in a file of its own: how its bodies are read, how an answer is written whole,
 * and as the events of a stream. Everything between (prompts, the engine, holding back, pings) is
 * the same for all and knows none of them.
 *
 * A whole answer is written from a run that has ended; events from one event of it. Both take names
 * and numbers from one head, so that all pieces of a stream share id and time.
 * Threads: tables are immutable; the rest is owned by the connection's thread.
 */
#ifndef BT_SERVE_API_H
#define BT_SERVE_API_H

#include "serve/run.h"

typedef struct {
    char     id[40];                   /* "chatcmpl-..." */
    int64_t  created;
    const bt_serving *serving;
    const bt_body    *body;
    const bt_prompts *prompts;
} bt_answer_head;

struct bt_api {
    const char *id_prefix;
    /* The fields that this API has alone; false and a problem. */
    bool (*parse)(bt_body *b, const bt_fields *f);
    /* The whole answer; the run kept texts, and no choice has a problem. */
    void (*whole)(const bt_answer_head *h, bt_run *run, bt_json_writer *w);
    /* Each appends what it has to say to `out`: no event, one, or several. */
    void (*begin)(const bt_answer_head *h, uint32_t index, bt_buf *out);     /* of a choice */
    void (*progress)(const bt_answer_head *h, const bt_choice *c, const bt_event *e, bt_buf *out);
    void (*token)(const bt_answer_head *h, const bt_choice *c, const bt_event *e, bt_buf *out);
    void (*end)(const bt_answer_head *h, bt_run *run, const bt_choice *c, const bt_event *e,
                bool last, bt_buf *out);                 /* `last`: of all choices */
    void (*finish)(const bt_answer_head *h, bt_run *run, bt_buf *out);       /* after all ends */
    void (*problem)(const bt_problem *p, bt_buf *out);   /* instead of what was to come */
};

extern const bt_api bt_serve_api_chat;     /* /v1/chat/completions */
extern const bt_api bt_serve_api_text;     /* /v1/completions */
extern const bt_api bt_serve_api_native;   /* /completion */

void bt_serve_answer_head_init(bt_answer_head *h, const bt_run *run);

/* One event of a stream: "data: ", a JSON object, an empty line. */
bt_json_writer bt_serve_event_open(bt_buf *out);
void bt_serve_event_close(bt_buf *out);
/* {"error": {...}} as an event. */
void bt_serve_event_problem(const bt_problem *p, bt_buf *out);

#endif
