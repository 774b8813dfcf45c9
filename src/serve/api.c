#include "serve/api.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/random.h"

void bt_serve_answer_head_init(bt_answer_head *h, const bt_run *run)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    const bt_run_options *o = bt_serve_run_options_of(run);
    uint8_t bytes[24];
    if (bt_random_bytes(bytes, sizeof bytes) != BT_OK) {
        /* Only an identifier: unique enough from the clock. */
        for (size_t i = 0; i < sizeof bytes; i++) {
            bytes[i] = (uint8_t)(bt_clock_ns() >> (i % 8 * 4));
        }
    }
    *h = (bt_answer_head){ .created = bt_clock_unix_seconds(),
                           .serving = o->serving, .body = o->body, .prompts = o->prompts };
    const int n = snprintf(h->id, sizeof h->id, "%s", o->body->api->id_prefix);
    for (size_t i = 0; i < sizeof bytes; i++) {
        h->id[(size_t)n + i] = letters[bytes[i] % (sizeof letters - 1)];
    }
}

bt_json_writer bt_serve_event_open(bt_buf *out)
{
    bt_json_writer w;
    bt_buf_puts(out, "data: ");
    bt_json_writer_init(&w, out);
    return w;
}

void bt_serve_event_close(bt_buf *out)
{
    bt_buf_puts(out, "\n\n");
}

void bt_serve_event_problem(const bt_problem *p, bt_buf *out)
{
    bt_json_writer w = bt_serve_event_open(out);
    bt_serve_problem_write(p, &w);
    bt_serve_event_close(out);
}
