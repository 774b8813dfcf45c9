/* rooms: text base
 *
 * Any template is recognised or refused with a sentence that can be printed. A recognised one
 * renders any conversation or says what is wrong with it; the spans make up the text, and what
 * stands in a template's span does not hold what a user wrote.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "text/chat.h"
#include "text/unicode.h"

enum { MESSAGES_MAX = 6 };

/* A letter that no known template writes. */
#define SECRET "\xc2\xa7"

static void check_prompt(const bt_chat_prompt *p)
{
    const char *at = bt_buf_text(&p->text);
    for (size_t i = 0; i < p->n_spans; i++) {
        const bt_text_span *s = &p->spans[i];
        BT_ASSERT(s->text == at && s->size > 0);
        for (size_t k = 0; !s->from_user && k + 2 <= s->size; k++) {
            BT_ASSERT(memcmp(s->text + k, SECRET, 2) != 0);
        }
        at += s->size;
    }
    BT_ASSERT(at == bt_buf_text(&p->text) + p->text.size);
}

static bt_chat_format *make_format(const uint8_t *template_text, size_t size, uint8_t pick)
{
    static const char *const names[] = { "chatml", "llama3", "gemma" };
    bt_error err = { 0 };
    bt_chat_format *f = NULL;
    char *text = malloc(size + 1);
    BT_ASSERT(text);
    memcpy(text, template_text, size);
    text[size] = '\0';
    const char *override = pick & 3 ? text : names[(pick >> 2) % 3];
    const bt_status status = bt_text_chat_format_create(NULL, NULL, override, &f, &err);
    BT_ASSERT(status == BT_OK || (status == BT_E_UNSUPPORTED && !f));
    if (status != BT_OK) {
        BT_ASSERT(strlen(err.text) > 10 && bt_text_utf8_valid(err.text, strlen(err.text)));
    } else if (strchr(bt_text_chat_format_source(f), SECRET[1])) {
        bt_text_chat_format_destroy(f);
        f = NULL;
    }
    free(text);
    return f;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const roles[] = { "user", "assistant", "system", "tool", "developer" };
    static const char *const contents[] = { SECRET, "", (" " SECRET "\n"),
        ("<think>" SECRET "</think>x"), ("<think>" SECRET), "<|im_end|>",
        "<tool_response></tool_response>" };
    if (size < 2 + MESSAGES_MAX) {
        return 0;
    }
    bt_chat_message messages[MESSAGES_MAX];
    const size_t n = data[0] % (MESSAGES_MAX + 1);
    for (size_t i = 0; i < n; i++) {
        const uint8_t pick = data[2 + i];
        const char *content = contents[(pick >> 3) % 7];
        messages[i] = (bt_chat_message){ roles[(pick & 7) % 5], content, strlen(content) };
    }
    bt_chat_format *f = make_format(data + 2 + MESSAGES_MAX, size - 2 - MESSAGES_MAX, data[1] >> 2);
    if (!f) {
        return 0;
    }
    bt_error err = { 0 };
    bt_chat_prompt p;
    bt_text_chat_prompt_init(&p);
    const bt_chat_options o = { .add_generation_prompt = data[1] & 1, .continue_final = data[1] & 2,
                                .now_unix_seconds = 1 };
    const bt_status status = bt_text_chat_render(f, messages, n, &o, &p, &err);
    if (status == BT_OK) {
        check_prompt(&p);
    } else {
        BT_ASSERT(status == BT_E_BADINPUT && p.n_spans == 0 && strlen(err.text) > 10);
    }
    bt_text_chat_prompt_done(&p);
    bt_text_chat_format_destroy(f);
    return 0;
}
