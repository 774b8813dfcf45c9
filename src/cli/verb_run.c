/* baton run - one prompt, or a conversation in the terminal.
 *
 *   -p, -f, --tokens   a prompt: one answer to standard output, then exit
 *   none of these      a conversation (chat format of the model)
 *   --chat             -p or -f is what a user says, put into the chat format
 *
 * A prompt is raw text to be continued unless --chat is given; BOS is added as the model asks, and
 * texts of control tokens in it become those tokens. Only the answer is printed.
 *
 * --json prints one object instead; timings and prefill are those of docs/http.md:
 *   {"tokens":[..],"text":"..","finish_reason":"stop"|"length","stopped_by":..,"truncated":..,
 *    "seed":..,"timings":{..},"prefill":{..}}
 *
 * Exit: 0; 1 when it failed; 2 for wrong use; 130 when Ctrl-C stopped the answer. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/memory.h"
#include "cli/run_private.h"
#include "cli/verbs.h"
#include "serve/parts.h"

enum {
    CONNECT_MS = 3000,                 /* for a worker to be ready before the first prompt */
    INTERRUPTED = 130
};

#define AT(field) offsetof(bt_run_verb_options, field)

static const bt_option prompt_table[] = {
    { "-p, --prompt", "TEXT", NULL, BT_OPT_TEXT, AT(prompt), NULL,
      "raw text to continue; without a prompt, a conversation" },
    { "-f, --file", "FILE", NULL, BT_OPT_TEXT, AT(file), NULL,
      "the same from a file; -: from standard input" },
    { "--tokens", "LIST", NULL, BT_OPT_TEXT, AT(tokens), NULL,
      "the same as token ids, separated by commas" },
    { "-cnv, --chat, --conversation", NULL, NULL, BT_OPT_FLAG, AT(chat), NULL,
      "-p or -f is a user's message in the model's chat format" },
    { "-no-cnv, --raw", NULL, NULL, BT_OPT_FLAG, AT(raw), NULL,
      "-p or -f is raw text, as without this option" },
    { "-sys, --system", "TEXT", NULL, BT_OPT_TEXT, AT(system), NULL,
      "system message of the conversation" },
    { 0 }
};

static const bt_option output_table[] = {
    { "-np, --parallel", "N", "N_PARALLEL", BT_OPT_U32, AT(decode.n_parallel), "1",
      "sequences at once", 1, BT_PARALLEL_MAX },
    { "--ignore-eos", NULL, NULL, BT_OPT_FLAG, AT(ignore_eos), NULL,
      "never sample a token that ends the answer" },
    { "--stop", "TEXT", NULL, BT_OPT_TEXT, AT(stop), NULL, "text that ends the answer; not shown" },
    { "-sp, --special", NULL, NULL, BT_OPT_FLAG, AT(special), NULL,
      "show control tokens as text" },
    { "--json", NULL, NULL, BT_OPT_FLAG, AT(json), NULL,
      "one JSON object on standard output at the end" },
    { "-q, --quiet", NULL, NULL, BT_OPT_FLAG, AT(quiet), NULL,
      "no line about speed on standard error" },
    { 0 }
};

/* ---- opening ---- */

static bool open_session(bt_run_session *s)
{
    const bt_decode_how how = { .queue_max = 1 };
    if (!bt_decode_open(&s->o->decode, &how, &s->decode)) {
        return false;
    }
    if (s->decode.prefill) {
        bt_handoff_client_wait_tried(s->decode.prefill, CONNECT_MS);
    }
    return true;
}

static void close_session(bt_run_session *s)
{
    bt_text_chat_format_destroy(s->chat);
    bt_decode_close(&s->decode);
}

/* ---- the prompt ---- */

static bool read_file(const char *path, bt_buf *to)
{
    const bool standard = strcmp(path, "-") == 0;
    FILE *file = standard ? stdin : fopen(path, "rb");
    if (!file) {
        bt_cli_say_error("'%s' cannot be opened: %s", path, strerror(errno));
        return false;
    }
    char part[16384];
    size_t n;
    while (bt_buf_status(to) == BT_OK && (n = fread(part, 1, sizeof part, file)) > 0) {
        bt_buf_put(to, part, n);
    }
    const int failed = ferror(file) ? errno : 0;
    if (!standard) {
        (void)fclose(file);
    }
    if (failed) {
        bt_cli_say_error("'%s' cannot be read: %s", path, strerror(failed));
    } else if (bt_buf_status(to) != BT_OK) {
        bt_cli_say_error("'%s' is longer than %u bytes, or than memory allows", path,
                         BT_RENDERED_BYTES_MAX);
    }
    return !failed && bt_buf_status(to) == BT_OK;
}

static bool parse_tokens(const char *list, bt_tokens *to)
{
    for (const char *at = list; *at;) {
        char *end;
        errno = 0;
        const unsigned long v = strtoul(at, &end, 10);
        const char *after = end + strspn(end, " \n");
        if (*at == '-' || end == at || errno != 0 || v > UINT32_MAX || (*after && *after != ',')) {
            bt_cli_usage_error("--tokens: '%.20s' is not a list of token ids separated by commas",
                               at);
            return false;
        }
        if (bt_text_tokens_push(to, (uint32_t)v) != BT_OK) {
            bt_cli_say_error("out of memory for the prompt");
            return false;
        }
        at = *after ? after + 1 : after;
    }
    return true;
}

static bool encode_chat(bt_run_session *s, const char *text, size_t size, bt_tokens *to)
{
    const char *system = s->o->system;
    const bt_chat_message messages[2] = {
        { .role = "system", .content = system, .content_size = system ? strlen(system) : 0 },
        { .role = "user", .content = text, .content_size = size },
    };
    return bt_run_render(s, system ? messages : messages + 1, system ? 2 : 1, to);
}

static bool make_prompt(bt_run_session *s, bt_tokens *to)
{
    const bt_run_verb_options *o = s->o;
    bt_buf text;
    bt_buf_init(&text, BT_MEM_cli, BT_RENDERED_BYTES_MAX);
    bool ok = true;
    if (o->file) {
        ok = read_file(o->file, &text);
    } else {
        bt_buf_puts(&text, o->prompt);
    }
    if (ok && o->chat) {
        ok = encode_chat(s, bt_buf_text(&text), text.size, to);
    } else if (ok) {
        const bt_encode_options how = { .add_special = true, .parse_special = true };
        bt_error err = { 0 };
        ok = bt_text_tokenizer_encode(s->decode.runtime.tokenizer, bt_buf_text(&text), text.size,
                                      &how, to, &err) == BT_OK;
        if (!ok) {
            bt_cli_say_error("%s", err.text);
        }
    }
    bt_buf_done(&text);
    return ok;
}

/* ---- one answer ---- */

static const char *stopped_by(bt_finish finish)
{
    switch (finish) {
    case BT_FINISH_EOG: return "eos";
    case BT_FINISH_STOP: return "word";
    case BT_FINISH_CONTEXT: return "context";
    case BT_FINISH_LENGTH: return "limit";
    default: return "none";
    }
}

static bool print_json(const bt_run_answer *a)
{
    bt_buf text;
    bt_json_writer w;
    bt_buf_init(&text, BT_MEM_cli, BT_RENDERED_BYTES_MAX);
    bt_json_writer_init(&w, &text);
    bt_json_open(&w, NULL, '{');
    bt_json_open(&w, "tokens", '[');
    for (size_t i = 0; i < a->tokens.count; i++) {
        bt_json_natural(&w, NULL, a->tokens.ids[i]);
    }
    bt_json_close(&w, ']');
    bt_json_text(&w, "text", bt_buf_text(&a->text), a->text.size);
    bt_json_string(&w, "finish_reason", bt_serve_parts_finish(a->finish));
    bt_json_string(&w, "stopped_by", stopped_by(a->finish));
    bt_json_bool(&w, "truncated", a->finish == BT_FINISH_CONTEXT);
    bt_json_natural(&w, "seed", a->seed);
    bt_serve_parts_timings(&w, "timings", &a->stats);
    bt_serve_parts_prefill(&w, "prefill", &a->prefill);
    bt_json_close(&w, '}');
    const bool ok = bt_buf_status(&text) == BT_OK;
    if (ok) {
        puts(bt_buf_text(&text));
    }
    bt_buf_done(&text);
    return ok;
}

static int show_answer(const bt_run_session *s, const bt_run_answer *a)
{
    if (!s->o->json && a->tokens.count > 0) {
        putchar('\n');
        (void)fflush(stdout);          /* before what goes to standard error */
    }
    if (a->finish == BT_FINISH_ERROR || a->status == BT_E_NOMEM) {
        return bt_cli_say_error("%s", a->message[0] ? a->message : "out of memory");
    }
    if (a->finish == BT_FINISH_CANCELLED) {
        return INTERRUPTED;
    }
    if (s->o->json) {
        return print_json(a) ? 0 : bt_cli_say_error("out of memory");
    }
    if (a->finish == BT_FINISH_CONTEXT) {
        fprintf(stderr, "[%s]\n", a->message);
    }
    if (!s->o->quiet) {
        bt_run_say_speed(a);
    }
    return 0;
}

static int run_once(bt_run_session *s, bt_tokens *prompt)
{
    bt_run_answer a;
    int code = 1;
    bt_run_answer_init(&a);
    if (s->o->tokens || make_prompt(s, prompt)) {
        code = bt_run_ask(s, prompt, !s->o->json, &a) ? show_answer(s, &a)
                                                      : bt_cli_say_error("%s", a.message);
    }
    bt_run_answer_done(&a);
    return code;
}

static int run_session(bt_run_session *s, bt_tokens *prompt)
{
    const bt_run_verb_options *o = s->o;
    int code = 1;
    if (open_session(s)) {
        bt_run_catch_interrupts();
        code = o->prompt || o->file || o->tokens ? run_once(s, prompt) : bt_run_chat(s);
    }
    close_session(s);
    return code;
}

/* ---- options ---- */

/* 0, or the exit code of a usage error. */
static int check_options(const bt_run_verb_options *o, int n_rest, char **rest)
{
    const int n_prompts = (o->prompt != NULL) + (o->file != NULL) + (o->tokens != NULL);
    if (n_rest > 0) {
        return bt_cli_usage_error("'%s': a prompt is given with -p TEXT", rest[0]);
    }
    if (n_prompts > 1) {
        return bt_cli_usage_error("-p, -f and --tokens exclude each other");
    }
    if (o->chat && (o->raw || o->tokens)) {
        return bt_cli_usage_error("--chat excludes --raw and --tokens");
    }
    static const char *const of_chat[] = { "--system", "--chat-template", NULL };
    const int idle = n_prompts > 0 && !o->chat ? bt_cli_refuse_idle(of_chat, "without --chat") : 0;
    if (idle != 0) {
        return idle;
    }
    if (n_prompts == 0 && (o->json || o->raw)) {
        return bt_cli_usage_error("%s needs a prompt: -p TEXT, -f FILE or --tokens LIST",
                                  o->json ? "--json" : "--raw");
    }
    return 0;
}

static int run(const void *given, int n_rest, char **rest)
{
    bt_run_verb_options o = *(const bt_run_verb_options *)given;
    bt_run_session s = { .o = &o };
    int code = check_options(&o, n_rest, rest);
    if (code != 0) {
        return code;
    }
    code = bt_decode_check(&o.decode, false, false);
    if (code != 0) {
        return code;
    }
    bt_tokens prompt;
    bt_text_tokens_init(&prompt);
    code = o.tokens && !parse_tokens(o.tokens, &prompt) ? 2 : run_session(&s, &prompt);
    bt_text_tokens_done(&prompt);
    return code;
}

static const bt_option_group groups[] = {
    { "Prompt", prompt_table, 0 },
    { "Answer", bt_answer_table, AT(decode.answer) },
    { "Answer", output_table, 0 },
    { "Sampling", bt_sampling_table, AT(decode.sampling) },
    { "Context", bt_context_table, AT(decode.context) },
    { "Context", bt_cache_table, AT(decode.runtime.cache) },
    { "Context", bt_snapshot_table, AT(decode.runtime.snapshot) },
    { "Remote prefill", bt_remote_table, AT(decode.remote) },
    { "Remote prefill", bt_link_table, AT(decode.runtime.link) },
    { "Model", bt_model_table, AT(decode.runtime.machine) },
    { "Machine", bt_machine_table, AT(decode.runtime.machine) },
    { "Diagnosis", bt_diagnosis_table, AT(decode.runtime.machine) },
    { 0 }
};

const bt_verb bt_verb_run = {
    .name = "run",
    .summary = "one prompt, or a conversation in the terminal",
    .usage = "baton run [-m FILE] [-p TEXT | -f FILE | --tokens LIST] [options]",
    .example = "baton run -m model.gguf -p \"Once upon a time\" -n 64 --temp 0",
    .options_size = sizeof(bt_run_verb_options),
    .groups = groups,
    .run = run,
};
