/* A conversation: lines in, answers out. All messages are rendered anew for every turn; what they
 * have in common with the turn before is found in the prefix cache. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/memory.h"
#include "cli/run_private.h"
#include "cli/verbs.h"

enum { LINE_BYTES_MAX = 1 << 20 };

typedef struct {
    bt_chat_message *messages;         /* contents are owned */
    size_t           n, capacity;
} history;

static void forget_last(history *h)
{
    bt_free((void *)(uintptr_t)h->messages[--h->n].content);
}

static void forget_from(history *h, size_t n)
{
    while (h->n > n) {
        forget_last(h);
    }
}

static bool remember(history *h, const char *role, const char *text, size_t size)
{
    if (h->n == h->capacity) {
        const size_t more = h->capacity ? 2 * h->capacity : 16;
        bt_chat_message *grown = bt_realloc(BT_MEM_cli, h->messages, more * sizeof *grown);
        if (!grown) {
            return false;
        }
        h->messages = grown;
        h->capacity = more;
    }
    char *copy = bt_strndup(BT_MEM_cli, text, size);
    if (!copy || h->n == BT_MESSAGES_MAX) {
        bt_free(copy);
        return false;
    }
    h->messages[h->n++] = (bt_chat_message){ .role = role, .content = copy, .content_size = size };
    return true;
}

static void forget_all(history *h)
{
    forget_from(h, 0);
    bt_free(h->messages);
    *h = (history){ 0 };
}

/* ---- rendering ---- */

static bool open_format(bt_run_session *s)
{
    bt_error err = { 0 };
    if (!s->chat && bt_text_chat_format_create(s->decode.runtime.file, s->decode.runtime.tokenizer,
                                               s->o->decode.answer.chat_template, &s->chat,
                                               &err) != BT_OK) {
        bt_cli_say_error("%s", err.text);
        return false;
    }
    return true;
}

/* A template may write BOS itself where the tokenizer adds one too: one is enough. */
static void drop_double_bos(const bt_tokenizer *t, bt_tokens *tokens)
{
    const uint32_t bos = bt_text_tokenizer_bos(t);
    if (bos != BT_TOKEN_NONE && tokens->count >= 2 && tokens->ids[0] == bos &&
        tokens->ids[1] == bos) {
        tokens->count--;
        memmove(tokens->ids, tokens->ids + 1, tokens->count * sizeof *tokens->ids);
    }
}

bool bt_run_render(bt_run_session *s, const bt_chat_message *messages, size_t n, bt_tokens *to)
{
    if (!open_format(s)) {
        return false;
    }
    const bt_chat_options o = { .add_generation_prompt = true };
    bt_error err = { 0 };
    bt_chat_prompt prompt;
    bt_text_chat_prompt_init(&prompt);
    bt_status status = bt_text_chat_render(s->chat, messages, n, &o, &prompt, &err);
    if (status == BT_OK) {
        status = bt_text_tokenizer_encode_spans(s->decode.runtime.tokenizer, prompt.spans,
                                                prompt.n_spans, true, to, &err);
    }
    bt_text_chat_prompt_done(&prompt);
    if (status != BT_OK) {
        bt_cli_say_error("%s", err.text);
        return false;
    }
    drop_double_bos(s->decode.runtime.tokenizer, to);
    return true;
}

/* ---- lines ---- */

typedef enum { LINE_TEXT, LINE_INTERRUPTED, LINE_END } line_kind;

/* One message; a backslash at the end of a line continues it on the next. */
static line_kind read_message(bt_buf *to, bool show)
{
    bt_buf_clear(to);
    if (show) {
        fputs("> ", stdout);
        fflush(stdout);
    }
    for (;;) {
        errno = 0;
        const int c = getchar();
        if (c == EOF) {
            const bool interrupted = bt_run_take_interrupt();
            clearerr(stdin);
            return interrupted ? LINE_INTERRUPTED : to->size > 0 ? LINE_TEXT : LINE_END;
        }
        if (c != '\n') {
            const char byte = (char)c;
            bt_buf_put(to, &byte, 1);
        } else if (to->size > 0 && to->data[to->size - 1] == '\\') {
            to->data[to->size - 1] = '\n';
        } else {
            return LINE_TEXT;
        }
    }
}

static void say_help(void)
{
    fputs("  /help    this\n"
          "  /reset   forget the conversation\n"
          "  /quit    end; Ctrl-D does the same\n"
          "  Ctrl-C   stops an answer\n"
          "  A backslash at the end of a line continues the message on the next.\n", stdout);
}

/* ---- turns ---- */

/* What was answered stays in the history, also when it was stopped. */
static void take_turn(bt_run_session *s, history *h)
{
    bt_tokens prompt;
    bt_run_answer a;
    bt_text_tokens_init(&prompt);
    bt_run_answer_init(&a);
    bool answered = bt_run_render(s, h->messages, h->n, &prompt);
    if (answered && !bt_run_ask(s, &prompt, true, &a)) {
        const bool full = a.status == BT_E_CONTEXT;
        bt_cli_say_error("%s%s", a.message, full ? " (/reset starts anew)" : "");
        answered = false;
    }
    if (answered) {
        putchar('\n');
        fflush(stdout);
        if (a.finish == BT_FINISH_ERROR) {
            bt_cli_say_error("%s", a.message);
            answered = false;
        } else if (a.finish == BT_FINISH_CONTEXT) {
            fprintf(stderr, "[%s; /reset starts anew]\n", a.message);
        } else if (a.finish == BT_FINISH_CANCELLED) {
            fputs("[stopped]\n", stderr);
        }
        if (!s->o->quiet) {
            bt_run_say_speed(&a);
        }
    }
    const bool kept = answered && remember(h, "assistant", bt_buf_text(&a.text), a.text.size);
    if (!kept) {
        forget_last(h);                /* the question: it may be asked again */
    }
    bt_run_answer_done(&a);
    bt_text_tokens_done(&prompt);
}

static bool begin(bt_run_session *s, history *h)
{
    return !s->o->system || remember(h, "system", s->o->system, strlen(s->o->system));
}

/* false: the conversation ends. */
static bool take_message(bt_run_session *s, history *h, const bt_buf *message)
{
    const char *text = bt_buf_text(message);
    if (message->size == 0) {
        return true;
    }
    if (strcmp(text, "/quit") == 0 || strcmp(text, "/exit") == 0) {
        return false;
    }
    if (strcmp(text, "/reset") == 0) {
        forget_from(h, s->o->system ? 1 : 0);
        fputs("(a new conversation)\n", stdout);
    } else if (text[0] == '/' && strcmp(text, "/help") != 0 && strchr(text, ' ') == NULL) {
        printf("'%s' is no command; /help lists them\n", text);
    } else if (text[0] == '/' && strcmp(text, "/help") == 0) {
        say_help();
    } else if (remember(h, "user", text, message->size)) {
        take_turn(s, h);
    } else {
        bt_cli_say_error("no memory for the message, or more than %u of them", BT_MESSAGES_MAX);
    }
    return true;
}

int bt_run_chat(bt_run_session *s)
{
    const bool show = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    history h = { 0 };
    bt_buf message;
    if (!open_format(s) || !begin(s, &h)) {
        return 1;
    }
    bt_buf_init(&message, BT_MEM_cli, LINE_BYTES_MAX);
    if (show) {
        printf("%s, %s format, %u tokens of context. /help lists commands, Ctrl-D ends.\n",
               bt_model_config_of(s->decode.runtime.model)->name, bt_text_chat_format_name(s->chat),
               bt_engine_options_of(s->decode.runtime.engine)->n_ctx);
    }
    for (bool more = true; more;) {
        const line_kind kind = read_message(&message, show);
        if (kind == LINE_END) {
            more = false;
        } else if (kind == LINE_INTERRUPTED) {
            fputs("\n(Ctrl-D or /quit ends)\n", stdout);
        } else if (bt_buf_status(&message) != BT_OK) {
            bt_cli_say_error("the message is longer than %d bytes", LINE_BYTES_MAX);
        } else {
            more = take_message(s, &h, &message);
        }
    }
    if (show) {
        putchar('\n');
    }
    forget_all(&h);
    bt_buf_done(&message);
    return 0;
}
