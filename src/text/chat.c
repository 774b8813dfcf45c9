#include "text/chat.h"

#include <string.h>

#include "base/limits.h"
#include "base/memory.h"
#include "text/chat_private.h"
#include "text/unicode.h"

static const char template_key[] = "tokenizer.chat_template";

/* ---- format ---- */

static bool is_template(const char *text)
{
    return strstr(text, "{{") || strstr(text, "{%");
}

static bt_status shape_of(bt_chat_format *f, const char *text, size_t size, bt_error *err)
{
    if (size > BT_CHAT_TEMPLATE_BYTES_MAX) {
        return bt_fail(err, BT_E_UNSUPPORTED,
                       "the chat template has %zu bytes, at most %u are read", size,
                       BT_CHAT_TEMPLATE_BYTES_MAX);
    }
    f->source = bt_strndup(BT_MEM_text, text, size);
    if (!f->source) {
        return bt_fail_nomem(err, size + 1, "a chat template");
    }
    return bt_text_chat_shape_detect(text, size, &f->shape, err);
}

static bt_status shape_from_name(bt_chat_format *f, const char *name, bt_error *err)
{
    const bt_status status = bt_text_chat_shape_named(name, &f->shape);
    if (status == BT_E_NOTFOUND) {
        char shown[BT_UTF8_SHOWN_MAX];
        bt_text_utf8_show(name, strlen(name), shown, sizeof shown);
        return bt_fail(err, BT_E_UNSUPPORTED, "'%s' is neither a known chat format (chatml, "
                       "llama3, gemma) nor a template", shown);
    }
    f->source = status == BT_OK ? bt_strdup(BT_MEM_text, "") : NULL;
    return f->source ? BT_OK : bt_fail_nomem(err, 1, "a chat format");
}

static bt_status shape_from_file(bt_chat_format *f, const bt_gguf *file, bt_error *err)
{
    if (!bt_gguf_find(file, template_key)) {
        return bt_fail(err, BT_E_UNSUPPORTED,
                       "'%s' has no chat template (%s); name a format to chat "
                       "all the same: chatml, llama3 or gemma",
                       bt_gguf_path(file), template_key);
    }
    bt_gguf_string text;
    BT_TRY(bt_gguf_get_string(file, template_key, &text, err));
    return shape_of(f, text.data, text.size, err);
}

bt_status bt_text_chat_format_create(const bt_gguf *file, const bt_tokenizer *tokenizer,
                                     const char *override, bt_chat_format **ret_format,
                                     bt_error *err)
{
    bt_chat_format *f = bt_alloc_zero(BT_MEM_text, 1, sizeof *f);
    if (!f) {
        return bt_fail_nomem(err, sizeof *f, "a chat format");
    }
    const bt_status status = !override ? shape_from_file(f, file, err)
                             : is_template(override) ? shape_of(f, override, strlen(override), err)
                                                     : shape_from_name(f, override, err);
    if (status != BT_OK) {
        bt_text_chat_format_destroy(f);
        return status;
    }
    f->render = bt_text_chat_render_shape;
    f->bos = "";
    if (f->shape.writes_bos && tokenizer && !bt_text_tokenizer_adds_bos(tokenizer)) {
        f->bos = bt_text_tokenizer_piece(tokenizer, bt_text_tokenizer_bos(tokenizer), true,
                                         &f->bos_size);
    }
    *ret_format = f;
    return BT_OK;
}

void bt_text_chat_format_destroy(bt_chat_format *f)
{
    if (f) {
        bt_text_chat_shape_done(&f->shape);
        bt_free(f->source);
        bt_free(f);
    }
}

const char *bt_text_chat_format_name(const bt_chat_format *f)
{
    return bt_text_chat_family_names[f->shape.family];
}

const char *bt_text_chat_format_source(const bt_chat_format *f)
{
    return f->source;
}

/* ---- prompt ---- */

void bt_text_chat_prompt_init(bt_chat_prompt *p)
{
    *p = (bt_chat_prompt){ 0 };
    bt_buf_init(&p->text, BT_MEM_text, BT_RENDERED_BYTES_MAX);
}

void bt_text_chat_prompt_done(bt_chat_prompt *p)
{
    bt_buf_done(&p->text);
    bt_free(p->spans);
    bt_text_chat_prompt_init(p);
}

/* ---- render ---- */

static bt_status check_messages(const bt_chat_message *messages, size_t n, const bt_chat_options *o,
                                bt_error *err)
{
    static const char *const roles[] = { "system", "user", "assistant", "developer", "tool" };
    if (n == 0) {
        return bt_fail(err, BT_E_BADINPUT, "there are no messages; a chat needs at least one");
    }
    for (size_t i = 0; i < n; i++) {
        size_t r = 0;
        while (r < BT_LEN(roles) &&
               (!messages[i].role || strcmp(messages[i].role, roles[r]) != 0)) {
            r++;
        }
        if (r == BT_LEN(roles)) {
            const char *role = messages[i].role ? messages[i].role : "";
            char shown[BT_UTF8_SHOWN_MAX];
            bt_text_utf8_show(role, strlen(role), shown, sizeof shown);
            return bt_fail(err, BT_E_BADINPUT, "messages[%zu]: the role '%s' is not known; known "
                           "are system, user, assistant, developer, tool", i, shown);
        }
    }
    const bool last = strcmp(messages[n - 1].role, "assistant") == 0;
    if (last && n > 1 && strcmp(messages[n - 2].role, "assistant") == 0) {
        return bt_fail(err, BT_E_BADINPUT,
                       "messages[%zu]: a conversation cannot end with two messages "
                       "of the assistant; join them",
                       n - 1);
    }
    if (o->continue_final && !last) {
        return bt_fail(err, BT_E_BADINPUT,
                       "messages[%zu]: to continue the final message it must be of "
                       "the role assistant, not %s",
                       n - 1, messages[n - 1].role);
    }
    return BT_OK;
}

/* Spans got their sizes while the text grew; now it stays where it is. */
static void place_spans(bt_chat_prompt *p)
{
    const char *at = bt_buf_text(&p->text);
    for (size_t i = 0; i < p->n_spans; i++) {
        p->spans[i].text = at;
        at += p->spans[i].size;
    }
}

bt_status bt_text_chat_render(const bt_chat_format *f, const bt_chat_message *messages,
                              size_t n_messages, const bt_chat_options *o,
                              bt_chat_prompt *ret_prompt, bt_error *err)
{
    bt_buf_clear(&ret_prompt->text);
    ret_prompt->n_spans = 0;
    BT_TRY(check_messages(messages, n_messages, o, err));
    bt_status status = f->render(f, messages, n_messages, o, ret_prompt, err);
    if (status == BT_OK && bt_buf_status(&ret_prompt->text) != BT_OK) {
        status = bt_buf_status(&ret_prompt->text) == BT_E_FULL
                     ? bt_fail(err, BT_E_BADINPUT, "the messages are longer than %u bytes together",
                               BT_RENDERED_BYTES_MAX)
                     : bt_fail(err, BT_E_NOMEM, "out of memory for a prompt of %zu messages",
                               n_messages);
    }
    if (status == BT_OK) {
        place_spans(ret_prompt);
    } else {
        bt_buf_clear(&ret_prompt->text);
        ret_prompt->n_spans = 0;
    }
    return status;
}
