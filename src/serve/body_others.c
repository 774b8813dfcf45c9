/* Fields of other servers: samplers and features that are not here. One that would change the
 * answer is refused unless its value does nothing; one that changes nothing is ignored. */
#include <math.h>
#include <string.h>

#include "serve/body.h"

/* ---- the order of samplers ---- */

/* In our order; rank 0: not here, and neutral, because its own fields are refused otherwise. */
static const struct { const char *name; char letter; uint32_t rank; } samplers[] = {
    { "penalties", 'e', 1 },  { "top_k", 'k', 2 },  { "top_p", 'p', 3 },     { "min_p", 'm', 4 },
    { "temperature", 't', 5 }, { "temp", 0, 5 },    { "dry", 'd', 0 },
    { "top_n_sigma", 's', 0 }, { "typ_p", 'y', 0 }, { "typical_p", 0, 0 },   { "xtc", 'x', 0 },
};

static size_t sampler_index(const json_t *name, char letter)
{
    for (size_t i = 0; i < BT_LEN(samplers); i++) {
        if (name ? json_is_string(name) && strcmp(json_string_value(name), samplers[i].name) == 0
                 : letter == samplers[i].letter) {
            return i;
        }
    }
    return BT_LEN(samplers);
}

/* Those that a list leaves out do nothing. */
static void switch_off(bt_sampler_options *s, uint32_t named)
{
    if (!(named & 1u << 1)) {
        s->penalty_repeat = 1;
        s->penalty_presence = s->penalty_frequency = 0;
    }
    s->top_k = named & 1u << 2 ? s->top_k : 0;
    s->top_p = named & 1u << 3 ? s->top_p : 1;
    s->min_p = named & 1u << 4 ? s->min_p : 0;
    s->temperature = named & 1u << 5 ? s->temperature : 1;
}

static void read_samplers(bt_body *b, const bt_fields *f)
{
    const json_t *list = bt_serve_fields_find(f, "samplers");
    const bool letters = json_is_string(list);
    if (!list) {
        return;
    }
    if (!letters && !json_is_array(list)) {
        bt_serve_fields_complain(f, "samplers", list, "an array of names, or a string of letters");
        return;
    }
    const size_t n = letters ? json_string_length(list) : json_array_size(list);
    uint32_t named = 0, last = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t at = letters ? sampler_index(NULL, json_string_value(list)[i])
                                  : sampler_index(json_array_get(list, i), 0);
        const uint32_t rank = at < BT_LEN(samplers) ? samplers[at].rank : 0;
        if (at == BT_LEN(samplers) || (rank > 0 && rank <= last)) {
            bt_serve_problem_set(f->problem, 400, "samplers",
                                 "Field 'samplers': penalties, top_k, top_p, min_p, temperature "
                                 "are supported, each once and in this order (item %zu)", i);
            return;
        }
        named |= 1u << rank;
        last = rank > 0 ? rank : last;
    }
    switch_off(&b->sampling, named);
}

/* ---- what is not here ---- */

/* Refused unless absent, null, false, "", [] or {}. */
static const struct { const char *name, *what; } features[] = {
    { "tools", "tools are" },
    { "functions", "functions are" },
    { "grammar", "grammars are" },
    { "json_schema", "JSON schemas are" },
    { "lora", "LoRA adapters are" },
    { "suffix", "filling in the middle is" },
    { "audio", "audio is" },
    { "image_data", "images are" },
    { "guided_json", "guided decoding is" },
    { "guided_regex", "guided decoding is" },
    { "guided_choice", "guided decoding is" },
    { "guided_grammar", "guided decoding is" },
    { "structured_outputs", "guided decoding is" },
    { "response_fields", "choosing fields of the answer is" },
    { "chat_template_kwargs", "values for the chat template are" },
    { "bad_words", "banned words are" },
    { "stop_token_ids", "stopping at token ids is" },
    { "negative_prompt", "negative prompts are" },
    { "use_beam_search", "beam search is" },
};

/* Numbers that do nothing from `low` to `high`, and are refused elsewhere. */
static const struct { const char *name; double low, high; } numbers[] = {
    { "mirostat", 0, 0 },
    { "dry_multiplier", 0, 0 },
    { "xtc_probability", 0, 0 },
    { "dynatemp_range", 0, 0 },
    { "typical_p", 1, HUGE_VAL },
    { "typ_p", 1, HUGE_VAL },
    { "tfs_z", 1, HUGE_VAL },
    { "top_a", 0, 0 },
    { "top_n_sigma", -HUGE_VAL, 0 },
    { "smoothing_factor", 0, 0 },
    { "epsilon_cutoff", 0, 0 },
    { "eta_cutoff", 0, 0 },
    { "encoder_repetition_penalty", 1, 1 },
    { "no_repeat_ngram_size", 0, 0 },
    { "guidance_scale", 1, 1 },
    { "length_penalty", 1, 1 },
    { "min_tokens", 0, 0 },
    { "n_indent", 0, 0 },
    { "t_max_predict_ms", -HUGE_VAL, 0 },
    { "truncate_prompt_tokens", -HUGE_VAL, -1 },
};

static void check_numbers(const bt_fields *f)
{
    for (size_t i = 0; i < BT_LEN(numbers); i++) {
        double v;
        if (bt_serve_fields_number(f, numbers[i].name, -HUGE_VAL, HUGE_VAL, &v) &&
            !(v >= numbers[i].low && v <= numbers[i].high)) {
            bt_serve_problem_set(f->problem, 400, numbers[i].name,
                                 "Field '%s': %g would change the answer and is not supported; "
                                 "leave it out, or send %g", numbers[i].name, v,
                                 isfinite(numbers[i].high) ? numbers[i].high : numbers[i].low);
        }
    }
}

static void check_format(const bt_fields *f)
{
    const bt_fields format = { .object = bt_serve_fields_object(f, "response_format"),
                               .prefix = "response_format", .problem = f->problem };
    const char *type = "text";
    size_t size = 4;
    bt_serve_fields_text(&format, "type", &type, &size);
    if (size != 4 || memcmp(type, "text", 4) != 0) {
        bt_serve_problem_set(f->problem, 400, "response_format",
                             "Field 'response_format': only 'text' is supported yet, not '%.40s'",
                             type);
    }
}

void bt_serve_body_read_others(bt_body *b, const bt_fields *f)
{
    for (size_t i = 0; i < BT_LEN(features); i++) {
        if (bt_serve_fields_asks(f, features[i].name)) {
            bt_serve_problem_set(f->problem, 400, features[i].name,
                                 "Field '%s': %s not supported yet", features[i].name,
                                 features[i].what);
        }
    }
    bool post_sampling = false;
    if (bt_serve_fields_bool(f, "post_sampling_probs", &post_sampling) && post_sampling &&
        b->want_logprobs) {
        bt_serve_problem_set(f->problem, 400, "post_sampling_probs",
                             "Field 'post_sampling_probs' is not supported: probabilities are "
                             "those of the model, before sampling");
    }
    check_format(f);
    check_numbers(f);
    read_samplers(b, f);
}
