/* Messages: content is a string, null, or a list of text parts; anything else is refused by name.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "serve/body.h"

typedef struct {
    bt_body    *body;
    size_t      index;
    bt_problem *problem;
} message_reader;

static bool is_text(const json_t *value, const char *text)
{
    return json_is_string(value) && json_string_length(value) == strlen(text) &&
           memcmp(json_string_value(value), text, strlen(text)) == 0;
}

static void read_role(const message_reader *r, const json_t *message, bt_chat_message *to)
{
    static const char *const roles[] = { "system", "user", "assistant", "developer", "tool" };
    const json_t *role = json_object_get(message, "role");
    for (size_t i = 0; i < BT_LEN(roles); i++) {
        if (is_text(role, roles[i])) {
            to->role = roles[i];
            return;
        }
    }
    bt_serve_problem_set(r->problem, 400, "messages",
                         "Field 'messages[%zu].role': one of system, user, "
                         "assistant, developer, tool is expected, not %s%.40s%s",
                         r->index, json_is_string(role) ? "'" : "",
                         json_is_string(role) ? json_string_value(role)
                         : role               ? bt_serve_json_kind_name(role)
                                              : "nothing",
                         json_is_string(role) ? "'" : "");
}

/* The parts' texts, one after the other, in body->joined. */
static void join_parts(const message_reader *r, const json_t *parts, bt_chat_message *to)
{
    bt_buf *joined = &r->body->joined;
    const size_t at = joined->size;
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i);
        const json_t *type = json_object_get(part, "type");
        const json_t *text = json_object_get(part, "text");
        if (!is_text(type, "text")) {
            bt_serve_problem_set(r->problem, 400, "messages",
                                 "Field 'messages[%zu].content[%zu]': parts "
                                 "of type 'text' are supported, not '%.40s'",
                                 r->index, i,
                                 json_is_string(type) ? json_string_value(type) : "(none)");
            return;
        }
        if (!json_is_string(text)) {
            bt_serve_problem_set(r->problem, 400, "messages",
                                 "Field 'messages[%zu].content[%zu].text': a "
                                 "string is expected",
                                 r->index, i);
            return;
        }
        bt_buf_put(joined, json_string_value(text), json_string_length(text));
    }
    if (bt_buf_status(joined) != BT_OK) {
        bt_serve_problem_set_status(r->problem, bt_buf_status(joined), "");
        return;
    }
    r->body->joined_at[r->index] = at;
    to->content_size = joined->size - at;
}

static void read_content(const message_reader *r, const json_t *message, bt_chat_message *to)
{
    const json_t *content = json_object_get(message, "content");
    const bool optional = strcmp(to->role, "assistant") == 0;
    if (json_is_string(content)) {
        to->content = json_string_value(content);
        to->content_size = json_string_length(content);
    } else if (json_is_array(content)) {
        join_parts(r, content, to);
    } else if (content && !json_is_null(content)) {
        bt_serve_problem_set(r->problem, 400, "messages",
                             "Field 'messages[%zu].content': a string, null or "
                             "an array of parts is expected, not %s",
                             r->index, bt_serve_json_kind_name(content));
    } else if (!content && !optional) {
        bt_serve_problem_set(r->problem, 400, "messages",
                             "Field 'messages[%zu].content' is missing", r->index);
    }
}

static void read_message(const message_reader *r, json_t *message, bt_chat_message *to)
{
    *to = (bt_chat_message){ 0 };
    if (!json_is_object(message)) {
        bt_serve_problem_set(r->problem, 400, "messages",
                             "Field 'messages[%zu]': an object is expected, "
                             "not %s",
                             r->index, bt_serve_json_kind_name(message));
        return;
    }
    const bt_fields f = { .object = message, .prefix = "messages", .problem = r->problem };
    if (bt_serve_fields_asks(&f, "tool_calls") || bt_serve_fields_asks(&f, "function_call")) {
        bt_serve_problem_set(r->problem, 400, "messages",
                             "Field 'messages[%zu].tool_calls': tools are not "
                             "supported yet",
                             r->index);
        return;
    }
    read_role(r, message, to);
    if (!bt_serve_problem_is(r->problem)) {
        read_content(r, message, to);
    }
}

/* joined may have moved while it grew, so pointers into it are set at the end. */
static void point_into_joined(bt_body *b)
{
    for (size_t i = 0; i < b->n_messages; i++) {
        if (b->joined_at[i] != SIZE_MAX) {
            b->messages[i].content = bt_buf_text(&b->joined) + b->joined_at[i];
        }
    }
}

static bool take_room(bt_body *b, const json_t *list, bt_problem *problem)
{
    const size_t n = json_array_size(list);
    if (n == 0 || n > BT_MESSAGES_MAX) {
        bt_serve_problem_set(problem, 400, "messages",
                             "Field 'messages': 1 to %u messages are expected, "
                             "not %zu",
                             BT_MESSAGES_MAX, n);
        return false;
    }
    b->messages = bt_alloc_zero(BT_MEM_serve, n, sizeof *b->messages);
    b->joined_at = bt_alloc(BT_MEM_serve, n * sizeof *b->joined_at);
    if (!b->messages || !b->joined_at) {
        bt_serve_problem_set_status(problem, BT_E_NOMEM, "");
        return false;
    }
    b->n_messages = n;
    memset(b->joined_at, 0xFF, n * sizeof *b->joined_at);
    return true;
}

/* Which of "start an answer" and "go on with the last message" is meant. */
static void read_turn(bt_body *b, const bt_fields *f)
{
    const size_t n = b->n_messages;
    const bool assistant_last = strcmp(b->messages[n - 1].role, "assistant") == 0;
    bool generation = false, continues = false;
    const bool said_generation = bt_serve_fields_bool(f, "add_generation_prompt", &generation);
    const bool said_continue = bt_serve_fields_bool(f, "continue_final_message", &continues);
    if (generation && continues) {
        bt_serve_problem_set(f->problem, 400, "continue_final_message",
                             "Field 'continue_final_message' excludes 'add_generation_prompt'");
    } else if (continues && !assistant_last) {
        bt_serve_problem_set(f->problem, 400, "continue_final_message",
                             "Field 'continue_final_message': "
                             "the last message must be the assistant's");
    }
    if (!said_continue) {
        continues = assistant_last && !generation;
    }
    if (!said_generation) {
        generation = !continues;
    }
    if (continues && n >= 2 && strcmp(b->messages[n - 2].role, "assistant") == 0) {
        bt_serve_problem_set(f->problem, 400, "messages",
                             "Field 'messages': two assistant messages at the "
                             "end; only one can be continued");
    }
    b->continue_final = continues;
    b->add_generation_prompt = generation;
}

bool bt_serve_body_read_messages(bt_body *b, const bt_fields *f)
{
    const json_t *list = bt_serve_fields_array(f, "messages");
    if (!list) {
        bt_serve_problem_set(f->problem, 400, "messages", "Field 'messages' is missing");
        return false;
    }
    if (!take_room(b, list, f->problem)) {
        return false;
    }
    for (size_t i = 0; i < b->n_messages && !bt_serve_problem_is(f->problem); i++) {
        const message_reader r = { .body = b, .index = i, .problem = f->problem };
        read_message(&r, json_array_get(list, i), &b->messages[i]);
    }
    if (bt_serve_problem_is(f->problem)) {
        return false;
    }
    point_into_joined(b);
    read_turn(b, f);
    return !bt_serve_problem_is(f->problem);
}
