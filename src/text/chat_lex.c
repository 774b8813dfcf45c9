/* Reads a Jinja template as far as recognising it needs: which names and string literals its tags
 * hold, and whether anything between tags would be printed. Blanks are treated as model templates
 * are run: the first newline after a statement goes, and so do blanks between the beginning of a
 * line and a statement. */
#include <string.h>

#include "base/memory.h"
#include "text/chat_private.h"

typedef struct {
    const char    *at, *end;
    bt_chat_words *words;
    char          *to;             /* next free byte of words->text */
    bool           line_start;     /* what was read last ended with a newline */
    bool           strip_left;     /* the last tag ended with '-' */
    bt_status      status;
} lexer;

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static void add_word(lexer *x, bt_chat_word_kind kind, const char *text, size_t size)
{
    bt_chat_words *w = x->words;
    if (w->count == w->capacity) {
        const size_t capacity = w->capacity ? w->capacity * 2 : 256;
        bt_chat_word *words = bt_realloc(BT_MEM_text, w->words, capacity * sizeof *words);
        if (!words) {
            x->status = BT_E_NOMEM;
            return;
        }
        w->words = words;
        w->capacity = capacity;
    }
    w->words[w->count++] = (bt_chat_word){ kind, text, size };
}

static void read_literal(lexer *x)
{
    const char quote = *x->at++;
    char *begin = x->to;
    while (x->at < x->end && *x->at != quote) {
        char c = *x->at++;
        if (c == '\\' && x->at < x->end) {
            c = *x->at++;
            c = c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
        } else if (c == '\r') {
            x->at += x->at < x->end && *x->at == '\n';
            c = '\n';
        }
        *x->to++ = c;
    }
    if (x->at == x->end) {
        x->words->broken = true;
        return;
    }
    x->at++;
    add_word(x, BT_CHAT_LITERAL, begin, (size_t)(x->to - begin));
    *x->to++ = '\0';
}

static void read_name(lexer *x)
{
    char *begin = x->to;
    while (x->at < x->end && is_name(*x->at)) {
        *x->to++ = *x->at++;
    }
    if (begin[0] < '0' || begin[0] > '9') {
        add_word(x, BT_CHAT_NAME, begin, (size_t)(x->to - begin));
    }
    *x->to++ = '\0';
}

static bool ends_here(const lexer *x, char mark)
{
    return x->end - x->at >= 2 && x->at[0] == mark && x->at[1] == '}';
}

/* After the tag's end mark: a statement's newline goes with it. */
static void leave_tag(lexer *x, char mark, bool strip, bool keep)
{
    x->at += 2;
    x->strip_left = strip;
    x->line_start = false;
    if (mark != '}' && !strip && !keep && x->at < x->end) {
        const size_t left = (size_t)(x->end - x->at);
        const size_t n = x->at[0] == '\n' ? 1 : left >= 2 && x->at[0] == '\r' && x->at[1] == '\n'
                                                        ? 2 : 0;
        x->at += n;
        x->line_start = n > 0;
    }
}

/* From after the opening mark to after the closing one. */
static void read_tag(lexer *x, char mark)
{
    while (x->at < x->end && !x->words->broken) {
        const bool strip = *x->at == '-', keep = *x->at == '+';
        if ((strip || keep) && x->at + 1 < x->end) {
            x->at++;
            if (ends_here(x, mark)) {
                leave_tag(x, mark, strip, keep);
                return;
            }
            x->at--;
        }
        if (ends_here(x, mark)) {
            leave_tag(x, mark, false, false);
            return;
        }
        if (mark != '#' && (*x->at == '\'' || *x->at == '"')) {
            read_literal(x);
        } else if (mark != '#' && is_name(*x->at)) {
            read_name(x);
        } else {
            x->at++;
        }
    }
    x->words->broken = true;
}

/* What of text[begin .. end) before a tag would be printed. */
static bool prints(const lexer *x, const char *begin, const char *end, char mark, char sign)
{
    const bool at_begin = x->line_start;
    if (x->strip_left) {
        while (begin < end && is_blank(*begin)) {
            begin++;
        }
    }
    if (sign == '-') {
        while (end > begin && is_blank(end[-1])) {
            end--;
        }
    } else if (mark != '{' && sign != '+') {
        const char *line = end;
        while (line > begin && (line[-1] == ' ' || line[-1] == '\t')) {
            line--;
        }
        if (line == begin ? at_begin : line[-1] == '\n') {
            end = line;
        }
    }
    return begin < end;
}

bt_status bt_text_chat_words_read(const char *template_text, size_t size, bt_chat_words *ret_words)
{
    *ret_words = (bt_chat_words){ 0 };
    size_t room;
    /* No word is longer than its text and one NUL. */
    char *text = bt_size_mul(size + 1, 2, &room) ? bt_alloc(BT_MEM_text, room) : NULL;
    if (!text) {
        return BT_E_NOMEM;
    }
    ret_words->text = text;
    if (size > 0 && template_text[size - 1] == '\n') {
        size--;
    }
    lexer x = { .at = template_text, .end = template_text + size, .words = ret_words, .to = text,
                .line_start = true };
    const char *begin = x.at;
    while (x.at < x.end && !ret_words->broken && x.status == BT_OK) {
        const char mark = x.end - x.at >= 2 && x.at[0] == '{' ? x.at[1] : 0;
        if (mark != '{' && mark != '%' && mark != '#') {
            x.at++;
            continue;
        }
        const char sign = x.end - x.at >= 3 ? x.at[2] : 0;
        ret_words->loose_text = ret_words->loose_text || prints(&x, begin, x.at, mark, sign);
        x.at += 2;
        x.at += sign == '-' || sign == '+';
        read_tag(&x, mark == '{' ? '}' : mark);
        begin = x.at;
    }
    if (!ret_words->broken) {
        ret_words->loose_text = ret_words->loose_text || prints(&x, begin, x.end, '{', 0);
    }
    if (x.status != BT_OK) {
        bt_text_chat_words_done(ret_words);
    }
    return x.status;
}

void bt_text_chat_words_done(bt_chat_words *w)
{
    bt_free(w->words);
    bt_free(w->text);
    *w = (bt_chat_words){ 0 };
}
