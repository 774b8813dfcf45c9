/* cli/run_private.h - what the files of `baton run` share.
 *
 * verb_run.c  options, opening and closing, one prompt
 * run_ask.c   one request: text as it comes, what was collected, how fast it was
 * run_chat.c  the conversation in a terminal
 */
#ifndef BT_CLI_RUN_PRIVATE_H
#define BT_CLI_RUN_PRIVATE_H

#include "cli/decode.h"
#include "text/chat.h"

typedef struct {
    bt_decode_options decode;
    const char *prompt, *tokens, *file, *system, *stop;
    bool        chat, raw, special, json, quiet, ignore_eos;
} bt_run_verb_options;

typedef struct {
    const bt_run_verb_options *o;
    bt_decode       decode;
    bt_chat_format *chat;              /* NULL until somebody chats */
} bt_run_session;

/* What came of a request. */
typedef struct {
    bt_tokens tokens;
    bt_buf    text;
    uint32_t  seed;
    bt_finish finish;
    bt_status status;
    char      message[BT_ERROR_TEXT_MAX];
    bt_request_stats stats;
    bt_prefill_report prefill;
} bt_run_answer;

void bt_run_answer_init(bt_run_answer *a);
void bt_run_answer_done(bt_run_answer *a);

/* From now on SIGINT only sets a flag; take says whether it was set, and clears it. */
void bt_run_catch_interrupts(void);
bool bt_run_take_interrupt(void);

/* Asks and waits; an interrupt cancels. With `stream` the text goes to standard output as it comes.
 * false: refused, with the sentence in a->message. */
bool bt_run_ask(bt_run_session *s, const bt_tokens *prompt, bool stream, bt_run_answer *a);
/* One line on standard error: tokens, speed, where the prompt was prefilled. */
void bt_run_say_speed(const bt_run_answer *a);

/* The tokens of a conversation, ready for an answer. false: said on standard error. */
bool bt_run_render(bt_run_session *s, const bt_chat_message *messages, size_t n, bt_tokens *to);
int  bt_run_chat(bt_run_session *s);   /* exit code */

#endif
