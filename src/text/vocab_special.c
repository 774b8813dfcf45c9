/* Special ids, and the set of tokens that end a generation. Many files name only some of them, so
 * the rest is found by the texts that public models use. */
#include <inttypes.h>
#include <string.h>

#include "base/bytes.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/memory.h"
#include "text/vocab.h"

#define NONE UINT32_MAX

/* Bars U+FF5C and blanks U+2581: DeepSeek's. */
#define DEEPSEEK_EOS  "<｜end▁of▁sentence｜>"

static const char *const eog_texts[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", DEEPSEEK_EOS,
    "[e~[", NULL
};
static const char *const eot_texts[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
    "<EOT>", "_<EOT>", "[EOT]", DEEPSEEK_EOS, "<end_of_utterance>", NULL
};
static const char *const eom_texts[] = { "<|eom_id|>", NULL };
static const char *const fim_prefix_texts[] = {
    "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
    "<|code_prefix|>", "<|prefix|>", NULL
};
static const char *const fim_suffix_texts[] = {
    "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
    "<|code_suffix|>", "<|suffix|>", NULL
};
static const char *const fim_middle_texts[] = {
    "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
    "<|code_middle|>", "<|middle|>", NULL
};
static const char *const fim_pad_texts[] = {
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", NULL
};
static const char *const fim_repo_texts[] = {
    "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", NULL
};
static const char *const fim_separator_texts[] = { "<|file_sep|>", NULL };

static uint32_t find(const bt_vocab *v, const char *text)
{
    return bt_text_vocab_find(v, text, strlen(text));
}

/* ---- ids from keys ---- */

/* `*id` keeps its value when the key is missing or names no token. True: the key set it. */
static bt_status read_id(const bt_gguf *file, const char *key, const bt_vocab *v, uint32_t *id,
                         bool *ret_set, bt_error *err)
{
    const bt_gguf_pair *pair = bt_gguf_find(file, key);
    *ret_set = false;
    if (!pair) {
        return BT_OK;
    }
    uint32_t value = NONE;
    const bool negative = (pair->type == BT_GGUF_I32 && (pair->data[3] & 0x80)) ||
                          (pair->type == BT_GGUF_I64 && (pair->data[7] & 0x80));
    if (!negative) {
        BT_TRY(bt_gguf_get_u32(file, key, &value, err));
    }
    if (value >= v->count) {
        bt_log(BT_LOG_WARN, "special_token_ignored", "key=%s id=%" PRId64 " n_vocab=%u", key,
               negative ? INT64_C(-1) : (int64_t)value, v->count);
        return BT_OK;
    }
    *id = value;
    *ret_set = true;
    return BT_OK;
}

typedef struct {
    const char        *keys[2];     /* the second is an older name */
    uint32_t          *id;
    const char *const *texts;       /* to find it by, when no key names it */
} named_id;

/* A token found by its text is a control token. */
static bt_status load_named(const bt_gguf *file, bt_vocab *v, const named_id *n, bt_error *err)
{
    bool set = false;
    for (size_t k = 0; k < BT_LEN(n->keys) && n->keys[k] && !set; k++) {
        BT_TRY(read_id(file, n->keys[k], v, n->id, &set, err));
    }
    for (size_t i = 0; !set && n->texts && n->texts[i]; i++) {
        const uint32_t id = find(v, n->texts[i]);
        if (id != NONE) {
            *n->id = id;
            v->types[id] = BT_TOKEN_CONTROL;
            set = true;
        }
    }
    return BT_OK;
}

static bt_status load_ids(const bt_gguf *file, bt_vocab *v, bt_error *err)
{
    const named_id ids[] = {
        { { "tokenizer.ggml.bos_token_id" }, &v->bos, NULL },
        { { "tokenizer.ggml.eos_token_id" }, &v->eos, NULL },
        { { "tokenizer.ggml.unknown_token_id" }, &v->unk, NULL },
        { { "tokenizer.ggml.eot_token_id" }, &v->eot, eot_texts },
        { { "tokenizer.ggml.eom_token_id" }, &v->eom, eom_texts },
        { { "tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id" }, &v->fim_prefix,
          fim_prefix_texts },
        { { "tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id" }, &v->fim_suffix,
          fim_suffix_texts },
        { { "tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id" }, &v->fim_middle,
          fim_middle_texts },
        { { "tokenizer.ggml.fim_pad_token_id" }, &v->fim_pad, fim_pad_texts },
        { { "tokenizer.ggml.fim_rep_token_id" }, &v->fim_repo, fim_repo_texts },
        { { "tokenizer.ggml.fim_sep_token_id" }, &v->fim_separator, fim_separator_texts },
    };
    for (size_t i = 0; i < BT_LEN(ids); i++) {
        BT_TRY(load_named(file, v, &ids[i], err));
    }
    return BT_OK;
}

/* ---- the end of a generation ---- */

static bt_status fill_eog(bt_vocab *v, bt_error *err)
{
    v->eog = bt_alloc_zero(BT_MEM_text, v->count, 1);
    if (!v->eog) {
        return bt_fail_nomem(err, v->count, "the flags of tokens");
    }
    const uint32_t named[] = { v->eos, v->eot, v->eom, v->fim_pad, v->fim_repo, v->fim_separator };
    for (size_t i = 0; i < BT_LEN(named); i++) {
        if (named[i] != NONE) {
            v->eog[named[i]] = 1;
        }
    }
    for (size_t i = 0; eog_texts[i]; i++) {
        const uint32_t id = find(v, eog_texts[i]);
        if (id != NONE) {
            v->eog[id] = 1;
            v->types[id] = BT_TOKEN_CONTROL;
        }
    }
    return BT_OK;
}

/* Families that use such a text inside of an answer. */
static void make_exceptions(bt_vocab *v)
{
    static const char *const shown[] = { "<|channel|>", "<|message|>", "<|start|>",
                                         "<|constrain|>" };
    for (size_t i = 0; i < BT_LEN(shown); i++) {
        const uint32_t id = find(v, shown[i]);
        if (id != NONE) {
            v->types[id] = BT_TOKEN_USER_DEFINED;
        }
    }
    const uint32_t end = find(v, "<|end|>");
    const bool channels = (find(v, "<|return|>") != NONE && find(v, "<|call|>") != NONE) ||
                          (find(v, "<|calls|>") != NONE && find(v, "<|flush|>") != NONE);
    if (end != NONE && channels) {
        v->eog[end] = 0;
        v->types[end] = BT_TOKEN_USER_DEFINED;
    }
    const uint32_t eos_text = find(v, "</s>");
    if (eos_text != NONE && find(v, "<|tool_response>") != NONE) {
        v->eog[eos_text] = 0;
        v->types[eos_text] = BT_TOKEN_NORMAL;
    }
}

/* ---- the rest ---- */

static bt_status load_suppressed(const bt_gguf *file, bt_vocab *v, bt_error *err)
{
    static const char key[] = "tokenizer.ggml.suppress_tokens";
    const bt_gguf_pair *pair = bt_gguf_find(file, key);
    if (!pair) {
        return BT_OK;
    }
    if (pair->type != BT_GGUF_ARRAY ||
        (pair->element != BT_GGUF_I32 && pair->element != BT_GGUF_U32)) {
        return bt_fail(err, BT_E_BADFILE, "%s is not an array of 32-bit integers", key);
    }
    if (pair->count > BT_VOCAB_MAX) {
        return bt_fail(err, BT_E_BADFILE, "%s has %" PRIu64 " entries, at most %u can be read", key,
                       pair->count, BT_VOCAB_MAX);
    }
    v->suppressed = bt_alloc(BT_MEM_text, (size_t)pair->count * sizeof *v->suppressed);
    if (!v->suppressed) {
        return bt_fail_nomem(err, (size_t)pair->count * sizeof *v->suppressed, "suppressed tokens");
    }
    for (uint64_t i = 0; i < pair->count; i++) {
        const uint32_t id = bt_get_le32(pair->data + i * 4);
        if (id < v->count) {
            v->suppressed[v->n_suppressed++] = id;
        }
    }
    if (v->n_suppressed < pair->count) {
        bt_log(BT_LOG_WARN, "suppressed_tokens_ignored", "key=%s n=%" PRIu64 " n_vocab=%u", key,
               pair->count - v->n_suppressed, v->count);
    }
    return BT_OK;
}

static bool name_has(bt_gguf_string name, const char *lower)
{
    const size_t n = strlen(lower);
    for (size_t at = 0; at + n <= name.size; at++) {
        size_t i = 0;
        while (i < n) {
            const char c = name.data[at + i];
            if ((c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c) != lower[i]) {
                break;
            }
            i++;
        }
        if (i == n) {
            return true;
        }
    }
    return false;
}

bt_status bt_text_vocab_load_special(const bt_gguf *file, bt_vocab *v, bt_error *err)
{
    const bool spm = v->model == BT_VOCAB_SPM;
    v->bos = spm ? 1 : 11;
    v->eos = spm ? 2 : 11;
    v->unk = spm ? 0 : NONE;
    v->eot = v->eom = NONE;
    v->fim_prefix = v->fim_suffix = v->fim_middle = NONE;
    v->fim_pad = v->fim_repo = v->fim_separator = NONE;
    v->bos = v->bos < v->count ? v->bos : NONE;
    v->eos = v->eos < v->count ? v->eos : NONE;
    BT_TRY(load_ids(file, v, err));
    if (v->pre && v->pre->no_bos) {
        v->bos = NONE;
    }
    BT_TRY(fill_eog(v, err));
    make_exceptions(v);

    const bool add_bos = spm || (v->pre && v->pre->add_bos);
    BT_TRY(bt_gguf_opt_bool(file, "tokenizer.ggml.add_bos_token", add_bos, &v->add_bos, err));
    BT_TRY(bt_gguf_opt_bool(file, "tokenizer.ggml.add_eos_token", false, &v->add_eos, err));
    BT_TRY(bt_gguf_opt_bool(file, "tokenizer.ggml.add_space_prefix", spm, &v->add_space_prefix,
                            err));
    v->add_bos = v->add_bos && v->bos != NONE;
    v->add_eos = v->add_eos && v->eos != NONE;

    const bt_gguf_pair *name = bt_gguf_find(file, "general.name");
    if (name && name->type == BT_GGUF_STRING) {
        bt_gguf_string text;
        BT_TRY(bt_gguf_get_string(file, "general.name", &text, err));
        v->strip_right = name_has(text, "phi-3") || name_has(text, "phi3");
    }
    return load_suppressed(file, v, err);
}
