/* The table of paths, and the routes that need no generation. */
#include <string.h>

#include "serve/http.h"
#include "serve/page.h"
#include "serve/prompt.h"
#include "serve/parts.h"

#define JSON_TYPE "application/json; charset=utf-8"

typedef struct {
    bt_buf         out;
    bt_json_writer w;
} json_answer;

static void begin_json(json_answer *a)
{
    bt_buf_init(&a->out, BT_MEM_serve, 2 * (size_t)BT_RENDERED_BYTES_MAX);
    bt_json_writer_init(&a->w, &a->out);
}

static enum MHD_Result send_json(bt_exchange *x, json_answer *a)
{
    return bt_serve_exchange_answer(x, 200, JSON_TYPE, &a->out);
}

/* ---- state ---- */

static enum MHD_Result run_health(bt_exchange *x)
{
    if (!x->serving) {
        bt_problem problem = { 0 };
        bt_serve_problem_set(&problem, 503, NULL, "Loading model");
        return bt_serve_exchange_fail(x, &problem);
    }
    json_answer a;
    begin_json(&a);
    bt_json_open(&a.w, NULL, '{');
    bt_json_string(&a.w, "status", "ok");
    bt_json_close(&a.w, '}');
    return send_json(x, &a);
}

static enum MHD_Result run_metrics(bt_exchange *x)
{
    bt_buf out;
    bt_buf_init(&out, BT_MEM_serve, 4u << 20);
    const bt_connections_count connections =
            bt_serve_connections_count(&x->server->connections);
    const bt_serving none = { 0 }, *s = x->serving ? x->serving : &none;
    bt_serve_metrics_write(&x->server->metrics, &connections, s->engine, s->prefill, &out);
    return bt_serve_exchange_answer(x, 200, "text/plain; version=0.0.4; charset=utf-8", &out);
}

static void write_model(const bt_exchange *x, const char *key, bt_json_writer *w)
{
    const bt_serving *s = x->serving;
    const bt_engine_options *e = bt_engine_options_of(s->engine);
    bt_json_open(w, key, '{');
    bt_json_string(w, "id", s->alias);
    bt_json_string(w, "object", "model");
    bt_json_integer(w, "created", x->server->started);
    bt_json_string(w, "owned_by", "baton");
    bt_json_open(w, "meta", '{');
    bt_json_string(w, "architecture", s->config->architecture);
    bt_json_string(w, "name", s->config->name);
    bt_json_natural(w, "n_vocab", s->config->n_vocab);
    bt_json_natural(w, "n_ctx", e->n_ctx);
    bt_json_natural(w, "n_ctx_train", s->config->n_ctx_train);
    bt_json_natural(w, "n_embd", s->config->n_embd);
    bt_json_natural(w, "n_layers", s->config->n_layers);
    bt_json_natural(w, "n_params", s->config->n_params);
    bt_json_natural(w, "size", s->config->weight_bytes);
    bt_json_string(w, "ftype", s->file_type ? s->file_type : "");
    bt_json_close(w, '}');
    bt_json_close(w, '}');
}

static enum MHD_Result run_models(bt_exchange *x)
{
    json_answer a;
    begin_json(&a);
    bt_json_open(&a.w, NULL, '{');
    bt_json_string(&a.w, "object", "list");
    bt_json_open(&a.w, "data", '[');
    write_model(x, NULL, &a.w);
    bt_json_close(&a.w, ']');
    bt_json_close(&a.w, '}');
    return send_json(x, &a);
}

static enum MHD_Result run_model(bt_exchange *x)
{
    if (strcmp(x->rest, x->serving->alias) != 0) {
        bt_problem problem = { 0 };
        bt_serve_problem_set(&problem, 404, "model", "model '%.100s' is not here; this is '%.100s'",
                             x->rest, x->serving->alias);
        return bt_serve_exchange_fail(x, &problem);
    }
    json_answer a;
    begin_json(&a);
    write_model(x, NULL, &a.w);
    return send_json(x, &a);
}

static void write_token_text(const bt_exchange *x, const char *key, uint32_t id, bt_json_writer *w)
{
    size_t size = 0;
    const char *piece = id == BT_TOKEN_NONE
            ? "" : bt_text_tokenizer_piece(x->serving->tokenizer, id, true, &size);
    bt_json_text(w, key, piece, size);
}

static enum MHD_Result run_props(bt_exchange *x)
{
    const bt_serving *s = x->serving;
    const bt_engine_options *e = bt_engine_options_of(s->engine);
    const bt_server_options *o = &x->server->o;
    const bt_body defaults = { .sampling = s->sampling ? *s->sampling : o->sampling,
                               .n_predict = o->n_predict };
    json_answer a;
    begin_json(&a);
    bt_json_writer *w = &a.w;
    bt_json_open(w, NULL, '{');
    bt_json_open(w, "default_generation_settings", '{');
    bt_json_natural(w, "n_ctx", e->n_ctx);
    bt_serve_parts_settings(w, "params", &defaults, NULL);
    bt_json_close(w, '}');
    bt_json_natural(w, "total_slots", e->n_parallel);
    bt_json_string(w, "model_alias", s->alias);
    bt_json_string(w, "model_path", s->model_path);
    bt_json_string(w, "model_ftype", s->file_type ? s->file_type : "");
    bt_json_open(w, "modalities", '{');
    bt_json_bool(w, "vision", false);
    bt_json_bool(w, "audio", false);
    bt_json_bool(w, "video", false);
    bt_json_close(w, '}');
    bt_json_string(w, "chat_template", s->chat ? bt_text_chat_format_source(s->chat) : "");
    bt_json_string(w, "chat_format", s->chat ? bt_text_chat_format_name(s->chat) : NULL);
    write_token_text(x, "bos_token", bt_text_tokenizer_bos(s->tokenizer), w);
    write_token_text(x, "eos_token", bt_text_tokenizer_eos(s->tokenizer), w);
    bt_json_string(w, "build_info", "baton " BATON_VERSION);
    bt_json_bool(w, "is_sleeping", false);
    bt_json_bool(w, "endpoint_slots", false);
    bt_json_bool(w, "endpoint_props", false);
    bt_json_bool(w, "endpoint_metrics", true);
    bt_json_bool(w, "endpoint_prefill", true);
    bt_json_close(w, '}');
    return send_json(x, &a);
}

/* ---- workers ---- */

static void write_worker(const bt_prefill *prefill, uint32_t index, bt_json_writer *w)
{
    bt_prefill_worker_status s;
    if (!bt_handoff_client_worker_status_get(prefill, index, &s)) {
        return;                              /* it has just left */
    }
    const bt_metric_list list = bt_handoff_client_worker_metrics();
    bt_json_open(w, NULL, '{');
    bt_metric_put_json(w, &list, &s);
    bt_json_close(w, '}');
}

static void write_decisions(const bt_prefill *prefill, bt_json_writer *w)
{
    bt_prefill_decision list[BT_PREFILL_DECISIONS_MAX];
    const uint32_t n = prefill ? bt_handoff_client_decisions_get(prefill, list) : 0;
    bt_json_open(w, "decisions", '[');
    for (uint32_t i = 0; i < n; i++) {
        const bt_prefill_decision *d = &list[i];
        bt_json_open(w, NULL, '{');
        bt_json_number(w, "age_seconds", d->age_seconds);
        bt_json_natural(w, "position_first", d->position_first);
        bt_json_natural(w, "n_tokens", d->n_tokens);
        bt_json_string(w, "worker", d->worker[0] ? d->worker : NULL);
        bt_json_string(w, "reason", d->reason);
        bt_json_number(w, "local_ms", d->local_ms);
        bt_json_number(w, "remote_ms", d->remote_ms);
        bt_json_bool(w, "probe", d->probe);
        bt_json_string(w, "outcome", bt_handoff_client_outcome_name(d->outcome));
        bt_json_number(w, "took_ms", d->took_ms);
        bt_json_close(w, '}');
    }
    bt_json_close(w, ']');
}

static enum MHD_Result run_prefill(bt_exchange *x)
{
    bt_prefill_status s = { 0 };
    const bt_prefill *prefill = x->serving->prefill;
    if (prefill) {
        bt_handoff_client_status_get(prefill, &s);
    }
    json_answer a;
    begin_json(&a);
    bt_json_writer *w = &a.w;
    bt_json_open(w, NULL, '{');
    const bt_metric_list list = bt_handoff_client_metrics();
    bt_metric_put_json(w, &list, &s);
    bt_json_open(w, "workers", '[');
    for (uint32_t i = 0; i < s.n_workers; i++) {
        write_worker(prefill, i, w);
    }
    bt_json_close(w, ']');
    write_decisions(prefill, w);
    bt_json_close(w, '}');
    return send_json(x, &a);
}

/* ---- text and tokens ---- */

static void write_piece(const bt_tokenizer *tokenizer, uint32_t id, bt_json_writer *w)
{
    size_t size;
    const char *piece = bt_text_tokenizer_piece(tokenizer, id, true, &size);
    bt_json_open(w, NULL, '{');
    bt_json_natural(w, "id", id);
    if (bt_json_utf8_valid(piece, size)) {
        bt_json_text(w, "piece", piece, size);
    } else {
        bt_json_open(w, "piece", '[');
        for (size_t i = 0; i < size; i++) {
            bt_json_natural(w, NULL, (unsigned char)piece[i]);
        }
        bt_json_close(w, ']');
    }
    bt_json_close(w, '}');
}

static enum MHD_Result run_tokenize(bt_exchange *x)
{
    bt_problem problem = { 0 };
    bt_tokens tokens;
    bt_text_tokens_init(&tokens);
    json_t *root = bt_serve_json_parse_object(bt_buf_text(&x->body), x->body.size, &problem);
    const bt_fields f = { .object = root, .prefix = "", .problem = &problem };
    bt_encode_options options = { .add_special = false, .parse_special = true };
    bool pieces = false;
    bt_serve_fields_bool(&f, "add_special", &options.add_special);
    bt_serve_fields_bool(&f, "parse_special", &options.parse_special);
    bt_serve_fields_bool(&f, "with_pieces", &pieces);
    const json_t *content = bt_serve_fields_find(&f, "content");
    if (!content) {
        bt_serve_problem_set(&problem, 400, "content", "Field 'content' is missing");
    } else if (bt_serve_body_prompt_check(&f, "content", content)) {
        bt_serve_prompt_encode(x->serving, content, &options, "content", &tokens, &problem);
    }
    enum MHD_Result result;
    if (bt_serve_problem_is(&problem)) {
        result = bt_serve_exchange_fail(x, &problem);
    } else {
        json_answer a;
        begin_json(&a);
        bt_json_open(&a.w, NULL, '{');
        bt_json_open(&a.w, "tokens", '[');
        for (size_t i = 0; i < tokens.count; i++) {
            if (pieces) {
                write_piece(x->serving->tokenizer, tokens.ids[i], &a.w);
            } else {
                bt_json_natural(&a.w, NULL, tokens.ids[i]);
            }
        }
        bt_json_close(&a.w, ']');
        bt_json_close(&a.w, '}');
        result = send_json(x, &a);
    }
    bt_serve_json_release(root);
    bt_text_tokens_done(&tokens);
    return result;
}

static void read_ids(const bt_exchange *x, const bt_fields *f, bt_tokens *to)
{
    const json_t *list = bt_serve_fields_array(f, "tokens");
    const uint32_t n_vocab = bt_text_tokenizer_count(x->serving->tokenizer);
    if (!list) {
        bt_serve_problem_set(f->problem, 400, "tokens", "Field 'tokens' is missing");
    }
    for (size_t i = 0; i < json_array_size(list) && !bt_serve_problem_is(f->problem); i++) {
        int64_t id = -1;
        if (!bt_serve_json_whole(json_array_get(list, i), &id) || id < 0 ||
            id >= (int64_t)n_vocab) {
            bt_serve_problem_set(f->problem, 400, "tokens",
                                 "Field 'tokens[%zu]': a token id from 0 to %u is "
                                 "expected",
                                 i, n_vocab - 1);
        } else if (bt_text_tokens_push(to, (uint32_t)id) != BT_OK) {
            bt_serve_problem_set_status(f->problem, BT_E_NOMEM, "");
        }
    }
}

static enum MHD_Result run_detokenize(bt_exchange *x)
{
    bt_problem problem = { 0 };
    bt_tokens tokens;
    bt_text_tokens_init(&tokens);
    json_t *root = bt_serve_json_parse_object(bt_buf_text(&x->body), x->body.size, &problem);
    const bt_fields f = { .object = root, .prefix = "", .problem = &problem };
    read_ids(x, &f, &tokens);
    enum MHD_Result result;
    if (bt_serve_problem_is(&problem)) {
        result = bt_serve_exchange_fail(x, &problem);
    } else {
        bt_buf text;
        json_answer a;
        bt_buf_init(&text, BT_MEM_serve, BT_RENDERED_BYTES_MAX);
        bt_text_tokenizer_decode(x->serving->tokenizer, tokens.ids, tokens.count, true, &text);
        begin_json(&a);
        bt_json_open(&a.w, NULL, '{');
        bt_json_text(&a.w, "content", bt_buf_text(&text), text.size);
        bt_json_close(&a.w, '}');
        if (bt_buf_status(&text) != BT_OK) {
            a.out.status = bt_buf_status(&text);
        }
        bt_buf_done(&text);
        result = send_json(x, &a);
    }
    bt_serve_json_release(root);
    bt_text_tokens_done(&tokens);
    return result;
}

static enum MHD_Result run_apply_template(bt_exchange *x)
{
    bt_problem problem = { 0 };
    bt_body body;
    bt_chat_prompt prompt;
    bt_serve_body_init(&body);
    bt_text_chat_prompt_init(&prompt);
    body.root = bt_serve_json_parse_object(bt_buf_text(&x->body), x->body.size, &problem);
    const bt_fields f = { .object = body.root, .prefix = "", .problem = &problem };
    enum MHD_Result result;
    if (bt_serve_body_read_messages(&body, &f) &&
        bt_serve_prompt_render(x->serving, &body, &prompt, &problem)) {
        json_answer a;
        begin_json(&a);
        bt_json_open(&a.w, NULL, '{');
        bt_json_text(&a.w, "prompt", bt_buf_text(&prompt.text), prompt.text.size);
        bt_json_close(&a.w, '}');
        result = send_json(x, &a);
    } else {
        result = bt_serve_exchange_fail(x, &problem);
    }
    bt_text_chat_prompt_done(&prompt);
    bt_serve_body_done(&body);
    return result;
}

/* ---- completions, the page, the table ---- */

static enum MHD_Result run_chat(bt_exchange *x)
{
    return bt_serve_complete_run(x, &bt_serve_api_chat);
}

static enum MHD_Result run_text(bt_exchange *x)
{
    return bt_serve_complete_run(x, &bt_serve_api_text);
}

static enum MHD_Result run_native(bt_exchange *x)
{
    return bt_serve_complete_run(x, &bt_serve_api_native);
}

static enum MHD_Result run_page(bt_exchange *x)
{
    for (size_t i = 0; i < bt_serve_page_count && !x->server->o.no_ui; i++) {
        const bt_page_file *file = &bt_serve_page_files[i];
        if (strcmp(x->path + 1, file->name) == 0 ||
            (x->path[1] == '\0' && strcmp(file->name, "index.html") == 0)) {
            return bt_serve_exchange_file(x, file->type, file->bytes, file->size, file->tag);
        }
    }
    bt_problem problem = { 0 };
    bt_serve_problem_set(&problem, 404, NULL, "no such path: %.200s", x->path);
    return bt_serve_exchange_fail(x, &problem);
}

static const bt_route routes[] = {
    /* path                    methods   public loading run */
    { "/health",               "GET",    true,  true,   run_health },
    { "/v1/health",            "GET",    true,  true,   run_health },
    { "/metrics",              "GET",    false, true,   run_metrics },
    { "/models",               "GET",    false, false,  run_models },
    { "/v1/models",            "GET",    false, false,  run_models },
    { "/models/",              "GET",    false, false,  run_model },
    { "/v1/models/",           "GET",    false, false,  run_model },
    { "/props",                "GET",    false, false,  run_props },
    { "/v1/prefill",           "GET",    false, false,  run_prefill },
    { "/prefill",              "GET",    false, false,  run_prefill },
    { "/v1/chat/completions",  "POST",   false, false,  run_chat },
    { "/chat/completions",     "POST",   false, false,  run_chat },
    { "/v1/completions",       "POST",   false, false,  run_text },
    { "/completion",           "POST",   false, false,  run_native },
    { "/completions",          "POST",   false, false,  run_native },
    { "/v1/completion",        "POST",   false, false,  run_native },
    { "/tokenize",             "POST",   false, false,  run_tokenize },
    { "/v1/tokenize",          "POST",   false, false,  run_tokenize },
    { "/detokenize",           "POST",   false, false,  run_detokenize },
    { "/v1/detokenize",        "POST",   false, false,  run_detokenize },
    { "/apply-template",       "POST",   false, false,  run_apply_template },
    { "/v1/apply-template",    "POST",   false, false,  run_apply_template },
};

static const bt_route page_route = { "/", "GET", true, true, run_page };

bool bt_serve_route_takes(const bt_route *route, const char *method)
{
    const size_t n = strlen(method);
    for (const char *at = route->methods; *at;) {
        at += strspn(at, ", ");
        const size_t size = strcspn(at, ", ");
        if (size == n && memcmp(at, method, n) == 0) {
            return true;
        }
        at += size;
    }
    return false;
}

const bt_route *bt_serve_routes_find(const char *path, const char **ret_rest)
{
    *ret_rest = "";
    for (size_t i = 0; i < BT_LEN(routes); i++) {
        const size_t n = strlen(routes[i].path);
        const bool has_rest = routes[i].path[n - 1] == '/';
        if (has_rest ? strncmp(path, routes[i].path, n) == 0 && path[n] != '\0'
                     : strcmp(path, routes[i].path) == 0) {
            *ret_rest = has_rest ? path + n : "";
            return &routes[i];
        }
    }
    if (strcmp(path, "/") == 0) {
        return &page_route;
    }
    for (size_t i = 0; path[0] == '/' && i < bt_serve_page_count; i++) {
        if (strcmp(path + 1, bt_serve_page_files[i].name) == 0) {
            return &page_route;
        }
    }
    return NULL;
}
