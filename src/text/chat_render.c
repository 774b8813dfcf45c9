/* Renders conversations as the templates of the known families do. What the template writes and
 * what comes from the request stay apart: every put_ function makes or lengthens a span. */
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/memory.h"
#include "text/chat_private.h"
#include "text/unicode.h"

typedef struct { const char *data; size_t size; } text;

typedef struct {
    const bt_chat_format  *format;
    const bt_chat_message *messages;
    size_t                 n;
    const bt_chat_options *options;
    bt_chat_prompt        *to;
} renderer;

/* ---- writing ---- */

static void put(bt_chat_prompt *to, const char *data, size_t size, bool from_user)
{
    if (size == 0) {
        return;
    }
    bt_buf_put(&to->text, data, size);
    if (to->n_spans > 0 && to->spans[to->n_spans - 1].from_user == from_user) {
        to->spans[to->n_spans - 1].size += size;
        return;
    }
    if (to->n_spans == to->spans_capacity) {
        const size_t capacity = to->spans_capacity ? to->spans_capacity * 2 : 16;
        bt_text_span *spans = bt_realloc(BT_MEM_text, to->spans, capacity * sizeof *spans);
        if (!spans) {
            to->text.status = to->text.status == BT_OK ? BT_E_NOMEM : to->text.status;
            return;
        }
        to->spans = spans;
        to->spans_capacity = capacity;
    }
    to->spans[to->n_spans++] = (bt_text_span){ .size = size, .from_user = from_user };
}

static void put_template(bt_chat_prompt *to, const char *s)
{
    put(to, s, strlen(s), false);
}

static void put_user(bt_chat_prompt *to, text t)
{
    put(to, t.data, t.size, true);
}

/* ---- texts ---- */

static text content_of(const bt_chat_message *m)
{
    return m->content ? (text){ m->content, m->content_size } : (text){ "", 0 };
}

/* `developer` is the newer name of the same thing. */
static const char *role_of(const bt_chat_message *m)
{
    return strcmp(m->role, "developer") == 0 ? "system" : m->role;
}

static bool has_role(const bt_chat_message *m, const char *role)
{
    return strcmp(role_of(m), role) == 0;
}

static bool starts_with(text t, const char *s)
{
    const size_t n = strlen(s);
    return t.size >= n && memcmp(t.data, s, n) == 0;
}

static bool ends_with(text t, const char *s)
{
    const size_t n = strlen(s);
    return t.size >= n && memcmp(t.data + t.size - n, s, n) == 0;
}

static text strip_left(text t, char c)
{
    while (t.size > 0 && t.data[0] == c) {
        t.data++;
        t.size--;
    }
    return t;
}

static text strip_right(text t, char c)
{
    while (t.size > 0 && t.data[t.size - 1] == c) {
        t.size--;
    }
    return t;
}

/* What Python's str.isspace says, which templates trim by. */
static bool is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

static text trim(text t)
{
    while (t.size > 0) {
        const bt_utf8_char c = bt_text_utf8_at(t.data, t.size);
        if (c.kind != BT_UTF8_GOOD || !is_space(c.code)) {
            break;
        }
        t.data += c.size;
        t.size -= c.size;
    }
    while (t.size > 0) {
        size_t n = 1;
        while (n < t.size && n < BT_UTF8_MAX && ((uint8_t)t.data[t.size - n] & 0xC0) == 0x80) {
            n++;
        }
        const bt_utf8_char c = bt_text_utf8_at(t.data + t.size - n, n);
        if (c.kind != BT_UTF8_GOOD || c.size != n || !is_space(c.code)) {
            break;
        }
        t.size -= n;
    }
    return t;
}

/* The first or last place of `s` in `t`; NULL: none. */
static const char *find(text t, const char *s, bool last)
{
    const size_t n = strlen(s);
    const char *found = NULL;
    for (size_t i = 0; i + n <= t.size && (last || !found); i++) {
        if (memcmp(t.data + i, s, n) == 0) {
            found = t.data + i;
        }
    }
    return found;
}

/* The final assistant message is left open: nothing is written after its content. */
static bool stays_open(const renderer *r, size_t i)
{
    return r->options->continue_final && i + 1 == r->n;
}

static void put_opening(const renderer *r)
{
    const bt_chat_shape *s = &r->format->shape;
    if (!r->options->continue_final && !s->never_opens &&
        (s->always_opens || r->options->add_generation_prompt)) {
        put_template(r->to, s->opening);
    }
}

static void put_bos(const renderer *r)
{
    if (r->format->shape.writes_bos) {
        put(r->to, r->format->bos, r->format->bos_size, false);
    }
}

/* ---- ChatML ---- */

static void put_chatml_head(const renderer *r, const char *role)
{
    put_template(r->to, "<|im_start|>");
    put_template(r->to, role);
    put_template(r->to, "\n");
}

static void put_chatml_end(const renderer *r, size_t i)
{
    if (!stays_open(r, i)) {
        put_template(r->to, "<|im_end|>\n");
    }
}

/* Results of one step of calls share a user turn. */
static void put_chatml_tool(const renderer *r, size_t i)
{
    if (i == 0 || !has_role(&r->messages[i - 1], "tool")) {
        put_template(r->to, "<|im_start|>user");
    }
    put_template(r->to, "\n<tool_response>\n");
    put_user(r->to, content_of(&r->messages[i]));
    put_template(r->to, "\n</tool_response>");
    if (i + 1 == r->n || !has_role(&r->messages[i + 1], "tool")) {
        put_template(r->to, "<|im_end|>\n");
    }
}

/* The last message in which a user, not a tool, says something; n - 1 if there is none. */
static size_t last_query(const renderer *r)
{
    for (size_t i = r->n; i-- > 0;) {
        const text t = content_of(&r->messages[i]);
        if (has_role(&r->messages[i], "user") &&
            !(starts_with(t, "<tool_response>") && ends_with(t, "</tool_response>"))) {
            return i;
        }
    }
    return r->n - 1;
}

/* Thoughts of an answer are shown only after the last query. */
static void put_thinking_answer(const renderer *r, size_t i, bool behind_query)
{
    static const char end_mark[] = "</think>", begin_mark[] = "<think>";
    text content = content_of(&r->messages[i]);
    text thought = { "", 0 };
    const char *first_end = find(content, end_mark, false);
    if (first_end) {
        const char *last_end = find(content, end_mark, true) + strlen(end_mark);
        thought = strip_right((text){ content.data, (size_t)(first_end - content.data) }, '\n');
        const char *begin = find(thought, begin_mark, true);
        if (begin) {
            begin += strlen(begin_mark);
            thought = (text){ begin, (size_t)(thought.data + thought.size - begin) };
        }
        thought = strip_left(thought, '\n');
        content = strip_left((text){ last_end, (size_t)(content.data + content.size - last_end) },
                             '\n');
    }
    put_chatml_head(r, "assistant");
    /* A thought that goes on is no thought that was had: nothing may be put before it. */
    const bool unfinished = stays_open(r, i) && !first_end && find(content, begin_mark, false);
    if (behind_query && (i + 1 == r->n || thought.size > 0) && !unfinished) {
        put_template(r->to, "<think>\n");
        put_user(r->to, strip_right(strip_left(thought, '\n'), '\n'));
        put_template(r->to, "\n</think>\n\n");
        content = strip_left(content, '\n');
    }
    put_user(r->to, content);
    put_chatml_end(r, i);
}

static bt_status render_chatml(const renderer *r)
{
    const bt_chat_shape *s = &r->format->shape;
    const size_t query = s->thinks ? last_query(r) : 0;
    put_bos(r);
    if (s->default_system && !has_role(&r->messages[0], "system")) {
        put_chatml_head(r, "system");
        put_template(r->to, s->default_system);
        put_template(r->to, "<|im_end|>\n");
    }
    for (size_t i = 0; i < r->n; i++) {
        const bt_chat_message *m = &r->messages[i];
        if (s->wraps_tools && has_role(m, "tool")) {
            put_chatml_tool(r, i);
        } else if (s->thinks && has_role(m, "assistant")) {
            put_thinking_answer(r, i, i > query);
        } else {
            put_chatml_head(r, role_of(m));
            put_user(r->to, content_of(m));
            put_chatml_end(r, i);
        }
    }
    put_opening(r);
    return BT_OK;
}

/* ---- Llama 3 ---- */

static void put_llama3_head(const renderer *r, const char *role)
{
    put_template(r->to, "<|start_header_id|>");
    put_template(r->to, role);
    put_template(r->to, "<|end_header_id|>\n\n");
}

/* "02 Jan 2025", in English whatever the locale. */
static void put_date(const renderer *r)
{
    static const char *const months[] = { "Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                          "Jul", "Aug", "Sep", "Oct", "Nov", "Dec" };
    const bt_chat_shape *s = &r->format->shape;
    if (s->date) {
        put_template(r->to, s->date);
        return;
    }
    const int64_t given = r->options->now_unix_seconds;
    const time_t now = (time_t)(given ? given : bt_clock_unix_seconds());
    struct tm local = { .tm_mday = 1, .tm_year = 70 };
    localtime_r(&now, &local);
    bt_buf date;
    bt_buf_init(&date, BT_MEM_text, 64);
    bt_buf_printf(&date, "%02d %s %d", local.tm_mday, months[local.tm_mon % 12],
                  local.tm_year + 1900);
    put_template(r->to, bt_buf_text(&date));
    bt_buf_done(&date);
}

/* A tool's result as the template prints it: a JSON string. */
static void put_json_string(const renderer *r, text t)
{
    bt_buf json;
    bt_buf_init(&json, BT_MEM_text, r->to->text.max);
    bt_buf_put(&json, "\"", 1);
    for (size_t i = 0; i < t.size; i++) {
        const char c = t.data[i];
        static const char plain[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
        const char *special = c ? strchr(plain, c) : NULL;
        if (special) {
            bt_buf_printf(&json, "\\%c", letters[special - plain]);
        } else if ((uint8_t)c < 0x20) {
            bt_buf_printf(&json, "\\u%04x", (unsigned)(uint8_t)c);
        } else {
            bt_buf_put(&json, &c, 1);
        }
    }
    bt_buf_put(&json, "\"", 1);
    if (bt_buf_status(&json) != BT_OK) {
        r->to->text.status = bt_buf_status(&json);
    }
    put_user(r->to, (text){ bt_buf_text(&json), json.size });
    bt_buf_done(&json);
}

static text llama3_content(const renderer *r, size_t i)
{
    const text t = content_of(&r->messages[i]);
    return r->format->shape.trims ? trim(t) : t;
}

static bt_status render_llama3(const renderer *r)
{
    const bt_chat_shape *s = &r->format->shape;
    size_t i = 0;
    put_bos(r);
    if (s->knowledge) {
        put_llama3_head(r, "system");
        put_template(r->to, s->knowledge);
        put_template(r->to, "Today Date: ");
        put_date(r);
        put_template(r->to, "\n\n");
        if (has_role(&r->messages[0], "system")) {
            put_user(r->to, llama3_content(r, i++));
        }
        put_template(r->to, "<|eot_id|>");
    }
    for (; i < r->n; i++) {
        const bt_chat_message *m = &r->messages[i];
        if (s->knowledge && has_role(m, "tool")) {
            put_llama3_head(r, "ipython");
            put_json_string(r, content_of(m));
        } else {
            put_llama3_head(r, role_of(m));
            put_user(r->to, llama3_content(r, i));
        }
        if (!stays_open(r, i)) {
            put_template(r->to, "<|eot_id|>");
        }
    }
    put_opening(r);
    return BT_OK;
}

/* ---- Gemma ---- */

static bt_status check_gemma(const renderer *r, size_t first, bt_error *err)
{
    if (first > 0 && r->format->shape.no_system) {
        return bt_fail(err, BT_E_BADINPUT,
                       "messages[0]: this model's template has no role %s; put its "
                       "text into the first user message",
                       r->messages[0].role);
    }
    for (size_t i = first; i < r->n; i++) {
        const bool users_turn = (i - first) % 2 == 0;
        if (has_role(&r->messages[i], "user") != users_turn) {
            return bt_fail(err, BT_E_BADINPUT,
                           "messages[%zu]: roles must alternate between user and "
                           "assistant, beginning with user%s; this one is %s",
                           i,
                           r->format->shape.no_system ? "" : " after at most one system message",
                           r->messages[i].role);
        }
    }
    return BT_OK;
}

static bt_status render_gemma(const renderer *r, bt_error *err)
{
    const size_t first = has_role(&r->messages[0], "system") ? 1 : 0;
    BT_TRY(check_gemma(r, first, err));
    put_bos(r);
    for (size_t i = first; i < r->n; i++) {
        const bt_chat_message *m = &r->messages[i];
        put_template(r->to, "<start_of_turn>");
        put_template(r->to, has_role(m, "assistant") ? "model" : role_of(m));
        put_template(r->to, "\n");
        if (i == first && first > 0) {
            put_user(r->to, content_of(&r->messages[0]));
            put_template(r->to, r->format->shape.system_end);
        }
        put_user(r->to, trim(content_of(m)));
        if (!stays_open(r, i)) {
            put_template(r->to, "<end_of_turn>\n");
        }
    }
    put_opening(r);
    return BT_OK;
}

bt_status bt_text_chat_render_shape(const bt_chat_format *f, const bt_chat_message *messages,
                                    size_t n_messages, const bt_chat_options *o, bt_chat_prompt *to,
                                    bt_error *err)
{
    const renderer r = { f, messages, n_messages, o, to };
    switch (f->shape.family) {
    case BT_CHAT_CHATML:
        return render_chatml(&r);
    case BT_CHAT_LLAMA3:
        return render_llama3(&r);
    case BT_CHAT_GEMMA:
        return render_gemma(&r, err);
    }
    return bt_fail(err, BT_E_UNSUPPORTED, "a chat format without a renderer");
}
