/* Recognises a template by all of its words. A family is known by its markers; then every name must
 * be one that the family's templates use, and every literal that holds a marker must be one whose
 * meaning is known. A single unknown one means that the template does something else, and it is
 * refused: a prompt that is slightly wrong is worse than none. */
#include <string.h>

#include "base/memory.h"
#include "text/chat_private.h"
#include "text/unicode.h"

const char *const bt_text_chat_family_names[] = { "chatml", "llama3", "gemma", NULL };

#define KNOWN "known are chatml, llama3 and gemma"

/* ---- searching words ---- */

static bool is(const bt_chat_word *w, bt_chat_word_kind kind, const char *text)
{
    return w->kind == kind && w->size == strlen(text) && memcmp(w->text, text, w->size) == 0;
}

static bool has_name(const bt_chat_words *w, const char *name)
{
    for (size_t i = 0; i < w->count; i++) {
        if (is(&w->words[i], BT_CHAT_NAME, name)) {
            return true;
        }
    }
    return false;
}

static bool has_literal(const bt_chat_words *w, const char *text)
{
    for (size_t i = 0; i < w->count; i++) {
        if (is(&w->words[i], BT_CHAT_LITERAL, text)) {
            return true;
        }
    }
    return false;
}

/* Some literal holds `part`. */
static bool mentions(const bt_chat_words *w, const char *part)
{
    for (size_t i = 0; i < w->count; i++) {
        if (w->words[i].kind == BT_CHAT_LITERAL && strstr(w->words[i].text, part)) {
            return true;
        }
    }
    return false;
}

static bool is_listed(const char *const *list, const bt_chat_word *w)
{
    for (; *list; list++) {
        if (is(w, w->kind, *list)) {
            return true;
        }
    }
    return false;
}

static bool starts(const bt_chat_word *w, const char *text)
{
    const size_t n = strlen(text);
    return w->kind == BT_CHAT_LITERAL && w->size >= n && memcmp(w->text, text, n) == 0;
}

static bool ends(const bt_chat_word *w, const char *text)
{
    const size_t n = strlen(text);
    return w->kind == BT_CHAT_LITERAL && w->size >= n &&
           memcmp(w->text + w->size - n, text, n) == 0;
}

/* ---- refusing ---- */

static bt_status refuse(bt_error *err, const char *family, const char *what, const char *word)
{
    char shown[BT_UTF8_SHOWN_MAX];
    bt_text_utf8_show(word, strlen(word), shown, sizeof shown);
    return bt_fail(err, BT_E_UNSUPPORTED, "the chat template looks like %s, but %s '%s'; "
                   KNOWN ", and a template of one of these shapes can be named instead", family,
                   what, shown);
}

/* Names common to all families: Jinja's own, and the variables of every template. */
static const char *const common_names[] = {
    "for", "in", "if", "elif", "else", "endif", "endfor", "set", "not", "and", "or", "is", "none",
    "true", "false", "loop", "first", "last", "index0", "length", "message", "messages", "role",
    "content", "add_generation_prompt", "bos_token", "tools", "tool", "tool_calls", "tool_call",
    "tojson", "function", "name", "arguments", "defined", "string", "iterable", "mapping", NULL
};

typedef struct {
    const char        *family;
    const char *const *names;       /* beyond the common ones */
    const char *const *markers;     /* a literal that holds one must be known */
    const char *const *literals;
} rules;

static bool holds_any(const bt_chat_word *w, const char *const *parts)
{
    for (; *parts; parts++) {
        if (strstr(w->text, *parts)) {
            return true;
        }
    }
    return false;
}

static bt_status check_words(const bt_chat_words *w, const rules *r, bt_error *err)
{
    for (size_t i = 0; i < w->count; i++) {
        const bt_chat_word *word = &w->words[i];
        if (word->kind == BT_CHAT_NAME) {
            if (!is_listed(common_names, word) && !is_listed(r->names, word)) {
                return refuse(err, r->family, "uses", word->text);
            }
        } else if (holds_any(word, r->markers) && !is_listed(r->literals, word)) {
            return refuse(err, r->family, "writes", word->text);
        }
    }
    return BT_OK;
}

static bt_status keep_text(const char *text, size_t size, char **ret_text, bt_error *err)
{
    bt_free(*ret_text);
    *ret_text = bt_strndup(BT_MEM_text, text, size);
    return *ret_text ? BT_OK : bt_fail_nomem(err, size + 1, "a chat template");
}

/* BOS is written first of all, or by nobody. */
static bt_status check_bos(const bt_chat_words *w, const char *family, bt_chat_shape *shape,
                           bt_error *err)
{
    shape->writes_bos = has_name(w, "bos_token");
    for (size_t i = 1; i < w->count; i++) {
        if (is(&w->words[i], BT_CHAT_NAME, "bos_token")) {
            return refuse(err, family, "does not begin with", "bos_token");
        }
    }
    return BT_OK;
}

static void check_opening(const bt_chat_words *w, bt_chat_shape *shape)
{
    if (!shape->opening) {
        shape->never_opens = true;
    } else {
        shape->always_opens = !has_name(w, "add_generation_prompt");
    }
}

/* ---- ChatML ---- */

static const char *const chatml_names[] = {
    "namespace", "ns", "multi_step_tool", "last_query_index", "index",
    "reasoning_content", "enable_thinking", "split", "rstrip", "lstrip", "strip", "startswith",
    "endswith", "generation", "endgeneration", NULL
};
static const char *const chatml_markers[] = { "<|", "|>", "<think", "</think", NULL };
static const char *const chatml_literals[] = {
    "<|im_start|>", "<|im_end|>", "<|im_end|>\n", "<|im_start|>system\n", "<|im_start|>user",
    "<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_start|>assistant", "<think>", "</think>",
    "<think>\n", "\n<think>\n", "\n</think>\n\n", "<think>\n\n</think>\n\n",
    "<|im_start|>assistant\n<think>\n", NULL
};

/* "<|im_start|>system\n" DEFAULT "<|im_end|>\n" as one literal. */
static bool is_default_system(const bt_chat_word *w)
{
    return starts(w, "<|im_start|>system\n") && ends(w, "<|im_end|>\n") &&
           !strstr(w->text + 12, "<|im_start|>");
}

/* Instructions for tools stand where there are tools, which is not here. */
static bool is_about_tools(const bt_chat_word *w)
{
    return w->kind == BT_CHAT_LITERAL &&
           (strstr(w->text, "<tools>") || strstr(w->text, "</tools>") ||
            strstr(w->text, "<tool_call>") || strstr(w->text, "</tool_call>"));
}

/* Text for people that is neither the default system message nor about tools. */
static bool is_prose(const bt_chat_word *w, const char *default_system)
{
    return w->kind == BT_CHAT_LITERAL && strchr(w->text, ' ') && !strstr(w->text, "\"name\"") &&
           !strstr(w->text, "\"arguments\"") &&
           !(default_system && is(w, BT_CHAT_LITERAL, default_system));
}

static bt_status refuse_prose(const bt_chat_words *w, const char *family, const char *except,
                              bt_error *err)
{
    for (size_t i = 0; i < w->count; i++) {
        if (is_prose(&w->words[i], except)) {
            return refuse(err, family, "writes", w->words[i].text);
        }
    }
    return BT_OK;
}

static bt_status check_chatml_words(bt_chat_words *w, bt_chat_shape *shape, bt_error *err)
{
    const rules r = { "chatml", chatml_names, chatml_markers, chatml_literals };
    for (size_t i = 0; i < w->count; i++) {
        bt_chat_word *word = &w->words[i];
        if (is_default_system(word)) {
            const size_t before = strlen("<|im_start|>system\n"), behind = strlen("<|im_end|>\n");
            const char *text = word->text + before;
            const size_t size = word->size - before - behind;
            if (shape->default_system && (strlen(shape->default_system) != size ||
                                          memcmp(shape->default_system, text, size) != 0)) {
                return refuse(err, r.family, "has two default system messages, one of them", text);
            }
            BT_TRY(keep_text(text, size, &shape->default_system, err));
            *word = (bt_chat_word){ BT_CHAT_LITERAL, "", 0 };
        } else if (is_about_tools(word)) {
            *word = (bt_chat_word){ BT_CHAT_LITERAL, "", 0 };
        } else if (is(word, BT_CHAT_LITERAL, "<|im_end|>") &&
                   (i + 1 == w->count || !starts(word + 1, "\n"))) {
            return refuse(err, r.family, "has no newline after", "<|im_end|>");
        }
    }
    BT_TRY(refuse_prose(w, r.family, shape->default_system, err));
    return check_words(w, &r, err);
}

static bt_status detect_chatml(bt_chat_words *w, bt_chat_shape *shape, bt_error *err)
{
    shape->family = BT_CHAT_CHATML;
    BT_TRY(check_chatml_words(w, shape, err));
    BT_TRY(check_bos(w, "chatml", shape, err));
    static const char *const openings[] = { "<|im_start|>assistant\n<think>\n",
                                            "<|im_start|>assistant\n" };
    for (size_t i = 0; i < BT_LEN(openings) && !shape->opening; i++) {
        if (has_literal(w, openings[i])) {
            BT_TRY(keep_text(openings[i], strlen(openings[i]), &shape->opening, err));
        }
    }
    check_opening(w, shape);
    shape->wraps_tools = mentions(w, "<tool_response>");
    shape->thinks = has_name(w, "last_query_index");
    if ((has_literal(w, "<think>") || has_literal(w, "</think>")) && !shape->thinks) {
        return refuse(err, "chatml", "treats thoughts in a way of its own:", "<think>");
    }
    return BT_OK;
}

/* ---- Llama 3 ---- */

static const char *const llama3_names[] = {
    "loop_messages", "trim", "custom_tools", "tools_in_user_message", "date_string", "strftime_now",
    "system_message", "builtin_tools", "first_user_message", "raise_exception", "reject", "join",
    "items", "arg_name", "arg_val", "ipython", "indent", "t", NULL
};
static const char *const llama3_markers[] = { "<|", "|>", NULL };
static const char *const llama3_literals[] = {
    "<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>",
    "<|start_header_id|>system<|end_header_id|>\n\n",
    "<|start_header_id|>user<|end_header_id|>\n\n",
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "<|start_header_id|>ipython<|end_header_id|>\n\n", "<|end_header_id|>\n\n<|python_tag|>", NULL
};

/* The preamble of Llama 3.1 and later. */
static bt_status read_preamble(const bt_chat_words *w, bt_chat_shape *shape, bt_error *err)
{
    for (size_t i = 0; i < w->count; i++) {
        const bt_chat_word *word = &w->words[i];
        if (starts(word, "Cutting Knowledge Date: ")) {
            BT_TRY(keep_text(word->text, word->size, &shape->knowledge, err));
        }
        /* {% set date_string = "26 Jul 2024" %} */
        if (i > 0 && is(word - 1, BT_CHAT_NAME, "date_string") && word->kind == BT_CHAT_LITERAL &&
            !has_name(w, "strftime_now") && word->text[0] >= '0' && word->text[0] <= '9') {
            BT_TRY(keep_text(word->text, word->size, &shape->date, err));
        }
    }
    const bool dated = has_literal(w, "Today Date: ") && has_name(w, "date_string") &&
                       (shape->date || has_literal(w, "%d %b %Y"));
    if ((shape->knowledge && !dated) || (!shape->knowledge && has_name(w, "date_string"))) {
        return refuse(err, "llama3", "has a preamble of its own with", "date_string");
    }
    return BT_OK;
}

static bt_status detect_llama3(const bt_chat_words *w, bt_chat_shape *shape, bt_error *err)
{
    static const char opening[] = "<|start_header_id|>assistant<|end_header_id|>\n\n";
    static const char end_header[] = "<|end_header_id|>\n\n";
    const rules r = { "llama3", llama3_names, llama3_markers, llama3_literals };
    shape->family = BT_CHAT_LLAMA3;
    BT_TRY(check_words(w, &r, err));
    if (!has_literal(w, "<|eot_id|>") || !has_literal(w, end_header)) {
        return refuse(err, r.family, "does not write", has_literal(w, "<|eot_id|>") ? end_header
                                                                                    : "<|eot_id|>");
    }
    shape->writes_bos = has_name(w, "bos_token");
    shape->trims = has_name(w, "trim");
    if (has_literal(w, opening)) {
        BT_TRY(keep_text(opening, strlen(opening), &shape->opening, err));
    }
    check_opening(w, shape);
    BT_TRY(read_preamble(w, shape, err));
    return shape->knowledge ? BT_OK : refuse_prose(w, r.family, NULL, err);
}

/* ---- Gemma ---- */

static const char *const gemma_names[] = {
    "first_user_prefix", "loop_messages", "raise_exception", "trim", "item", "type", NULL
};
static const char *const gemma_markers[] = { "<", ">", NULL };
static const char *const gemma_literals[] = {
    "<start_of_turn>", "<end_of_turn>\n", "<start_of_turn>model\n", "<start_of_image>", NULL
};

/* {% set first_user_prefix = messages[0]['content'] + END %} */
static bt_status read_system_end(const bt_chat_words *w, bt_chat_shape *shape, bt_error *err)
{
    static const char *const before[] = { "first_user_prefix", "messages", "content" };
    for (size_t i = 0; i + 3 < w->count; i++) {
        const bt_chat_word *word = &w->words[i];
        if (is(&word[0], BT_CHAT_NAME, before[0]) && is(&word[1], BT_CHAT_NAME, before[1]) &&
            is(&word[2], BT_CHAT_LITERAL, before[2]) && word[3].kind == BT_CHAT_LITERAL) {
            return keep_text(word[3].text, word[3].size, &shape->system_end, err);
        }
    }
    return refuse(err, "gemma", "does not put the system message before the first user's with",
                  before[0]);
}

static bt_status detect_gemma(const bt_chat_words *w, bt_chat_shape *shape, bt_error *err)
{
    static const char opening[] = "<start_of_turn>model\n";
    const rules r = { "gemma", gemma_names, gemma_markers, gemma_literals };
    shape->family = BT_CHAT_GEMMA;
    BT_TRY(check_words(w, &r, err));
    BT_TRY(check_bos(w, r.family, shape, err));
    const char *missing = !has_name(w, "trim") ? "trim"
                          : !has_literal(w, "model") ? "model"
                          : !has_literal(w, opening) ? "<start_of_turn>model"
                          : !has_literal(w, "<end_of_turn>\n") ? "<end_of_turn>" : NULL;
    if (missing) {
        return refuse(err, r.family, "lacks", missing);
    }
    BT_TRY(keep_text(opening, strlen(opening), &shape->opening, err));
    check_opening(w, shape);
    if (has_name(w, "first_user_prefix")) {
        return read_system_end(w, shape, err);
    }
    shape->no_system = true;
    return has_literal(w, "system") ? BT_OK
                                    : refuse(err, r.family, "says nothing about", "system");
}

/* ---- all ---- */

static bt_status detect(bt_chat_words *w, bt_chat_shape *shape, bt_error *err)
{
    if (w->broken) {
        return bt_fail(err, BT_E_UNSUPPORTED, "the chat template has a tag that does not end; "
                       KNOWN);
    }
    if (w->loose_text) {
        return bt_fail(err, BT_E_UNSUPPORTED,
                       "the chat template writes text between its tags, which "
                       "no known format does; " KNOWN);
    }
    if (mentions(w, "<|im_start|>")) {
        return detect_chatml(w, shape, err);
    }
    if (mentions(w, "<|start_header_id|>")) {
        return detect_llama3(w, shape, err);
    }
    if (mentions(w, "<start_of_turn>")) {
        return detect_gemma(w, shape, err);
    }
    return bt_fail(err, BT_E_UNSUPPORTED, "the chat template is of a format that is not known; "
                   KNOWN);
}

bt_status bt_text_chat_shape_detect(const char *template_text, size_t size, bt_chat_shape *shape,
                                    bt_error *err)
{
    *shape = (bt_chat_shape){ 0 };
    bt_chat_words words;
    if (bt_text_chat_words_read(template_text, size, &words) != BT_OK) {
        return bt_fail(err, BT_E_NOMEM, "out of memory to read a chat template");
    }
    const bt_status status = detect(&words, shape, err);
    bt_text_chat_words_done(&words);
    if (status != BT_OK) {
        bt_text_chat_shape_done(shape);
    }
    return status;
}

bt_status bt_text_chat_shape_named(const char *name, bt_chat_shape *shape)
{
    static const struct { bt_chat_shape shape; const char *opening, *system_end; } plain[] = {
        { { .family = BT_CHAT_CHATML }, "<|im_start|>assistant\n", NULL },
        { { .family = BT_CHAT_LLAMA3, .writes_bos = true, .trims = true },
          "<|start_header_id|>assistant<|end_header_id|>\n\n", NULL },
        { { .family = BT_CHAT_GEMMA, .writes_bos = true }, "<start_of_turn>model\n", "\n\n" },
    };
    for (size_t i = 0; bt_text_chat_family_names[i]; i++) {
        if (strcmp(name, bt_text_chat_family_names[i]) != 0) {
            continue;
        }
        *shape = plain[i].shape;
        shape->opening = bt_strdup(BT_MEM_text, plain[i].opening);
        const bool wants_end = plain[i].system_end != NULL;
        shape->system_end = wants_end ? bt_strdup(BT_MEM_text, plain[i].system_end) : NULL;
        if (shape->opening && (shape->system_end || !wants_end)) {
            return BT_OK;
        }
        bt_text_chat_shape_done(shape);
        return BT_E_NOMEM;
    }
    return BT_E_NOTFOUND;
}

void bt_text_chat_shape_done(bt_chat_shape *s)
{
    bt_free(s->opening);
    bt_free(s->default_system);
    bt_free(s->knowledge);
    bt_free(s->date);
    bt_free(s->system_end);
    *s = (bt_chat_shape){ 0 };
}
