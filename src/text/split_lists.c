/* The pre-tokenizers by name: docs/tokenizers.md has them as a table. */
#include <string.h>

#include "text/split.h"

/* English contractions, in both cases where a list says so. */
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"

/* Blanks in front of something else keep their last one for it; at the end they stay together. */
#define BLANKS "\\s+(?!\\S)"

/* GPT-2's. What it leaves, a single blank before something else that takes none, is a gap. */
#define GPT2 \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|" BLANKS

/* Llama 3's; Qwen's differs in how many digits stay together. */
#define WORDS_AND_DIGITS(digits)                                                      \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                             \
                 "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" BLANKS "|\\s+"

/* GPT-4o's words: some capitals, then small letters, or the other way that one of both is missing.
 * Letters without case and marks belong to either. */
#define CAPITALS "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define SMALLS   "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED_WORDS(contractions, digits)                                             \
    "[^\\r\\n\\p{L}\\p{N}]?" CAPITALS "*" SMALLS "+" contractions                     \
    "|[^\\r\\n\\p{L}\\p{N}]?" CAPITALS "+" SMALLS "*" contractions                    \
    "|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|" BLANKS "|\\s+"

/* Chinese, as two of DeepSeek's lists have it (Hangul syllables too), and as the third has it. */
static const bt_split_range east_asian[] = {
    { 0x4E00, 0x9FA5 }, { 0x0800, 0x4E00 }, { 0xAC00, 0xD7FF }, { 0, 0 }
};
static const bt_split_range chinese_and_kana[] = {
    { 0x4E00, 0x9FA5 }, { 0x3040, 0x309F }, { 0x30A0, 0x30FF }, { 0, 0 }
};
static const bt_split_range marks_of_text[] = {
    { 0x21, 0x2F }, { 0x3A, 0x7E }, { 0xFF01, 0xFF0F }, { 0xFF1A, 0xFF5E }, { 0x2018, 0x201F },
    { 0x3000, 0x3002 }, { 0, 0 }
};

/* Letters of alphabets with two cases, as the deepseek-llm list has them. */
static const bt_split_range cased_letters[] = {
    { 0x41, 0x5A }, { 0x61, 0x7A }, { 0xB5, 0xB5 }, { 0xC0, 0xD6 }, { 0xD8, 0xF6 },
    { 0xF8, 0x1BA }, { 0x1BC, 0x1BF }, { 0x1C4, 0x293 }, { 0x295, 0x2AF }, { 0x370, 0x373 },
    { 0x376, 0x377 }, { 0x37B, 0x37D }, { 0x37F, 0x37F }, { 0x386, 0x386 }, { 0x388, 0x38A },
    { 0x38C, 0x38C }, { 0x38E, 0x3A1 }, { 0x3A3, 0x3F5 }, { 0x3F7, 0x481 }, { 0x48A, 0x52F },
    { 0x531, 0x556 }, { 0x10A0, 0x10C5 }, { 0x13A0, 0x13F5 }, { 0x13F8, 0x13FD },
    { 0x1C90, 0x1CBA }, { 0x1CBD, 0x1CBF }, { 0x1D00, 0x1D2B }, { 0x1D6B, 0x1D77 },
    { 0x1D79, 0x1D9A }, { 0x1E00, 0x1F15 }, { 0x1F18, 0x1F1D }, { 0x1F20, 0x1F45 },
    { 0x1F48, 0x1F4D }, { 0x1F50, 0x1F57 }, { 0x1F59, 0x1F59 }, { 0x1F5B, 0x1F5B },
    { 0x1F5D, 0x1F5D }, { 0x1F5F, 0x1F7D }, { 0x1F80, 0x1FB4 }, { 0x1FB6, 0x1FBC },
    { 0x1FBE, 0x1FBE }, { 0x1FC2, 0x1FC4 }, { 0x1FC6, 0x1FCC }, { 0x1FD0, 0x1FD3 },
    { 0x1FD6, 0x1FDB }, { 0x1FE0, 0x1FEC }, { 0x1FF2, 0x1FF4 }, { 0x1FF6, 0x1FFC },
    { 0x2102, 0x2102 }, { 0x2107, 0x2107 }, { 0x210A, 0x2113 }, { 0x2115, 0x2115 },
    { 0x2119, 0x211D }, { 0x2124, 0x2124 }, { 0x2126, 0x2126 }, { 0x2128, 0x2128 },
    { 0x212A, 0x212D }, { 0x212F, 0x2134 }, { 0x2139, 0x2139 }, { 0x213C, 0x213F },
    { 0x2145, 0x2149 }, { 0x214E, 0x214E }, { 0x2183, 0x2184 }, { 0x2C00, 0x2C7B },
    { 0x2C7E, 0x2CE4 }, { 0x2CEB, 0x2CEE }, { 0x2CF2, 0x2CF3 }, { 0xA640, 0xA66D },
    { 0xA680, 0xA69B }, { 0xA722, 0xA76F }, { 0xA771, 0xA787 }, { 0xA78B, 0xA78E },
    { 0xAB70, 0xABBF }, { 0xFB00, 0xFB06 }, { 0xFB13, 0xFB17 }, { 0xFF21, 0xFF3A },
    { 0xFF41, 0xFF5A }, { 0x10400, 0x1044F }, { 0x104B0, 0x104D3 }, { 0x104D8, 0x104FB },
    { 0x10C80, 0x10CB2 }, { 0x10CC0, 0x10CF2 }, { 0x118A0, 0x118DF }, { 0x1E900, 0x1E943 },
    { 0, 0 }
};

static const bt_split_list gpt2 = { { GPT2 }, { 0 } };
static const bt_split_list plain = {
    { "[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]" }, { 0 }
};
static const bt_split_list falcon = {
    { "[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]" }, { 0 }
};
static const bt_split_list llama3 = { { WORDS_AND_DIGITS("\\p{N}{1,3}") }, { 0 } };
static const bt_split_list qwen2 = { { WORDS_AND_DIGITS("\\p{N}") }, { 0 } };
static const bt_split_list qwen35 = {
    { CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
                   "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" BLANKS "|\\s+" },
    { 0 }
};
static const bt_split_list digits_apart = { { "\\p{N}", GPT2 }, { 0 } };
static const bt_split_list deepseek_coder = {
    { "[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[\\p{1}]+", "\\p{N}" }, { east_asian }
};
/* Blanks at the end: the look-behind changes no match, since the first one begins where its run
 * begins; without it a long run of blanks before something else is tried from each of them. */
static const bt_split_list deepseek_llm = {
    { "[\\r\\n]", "\\s?[\\p{2}]+", "\\s?[\\p{3}]+", "(?<![\\s])\\s+$", "[\\p{1}]+", "\\p{N}+" },
    { east_asian, cased_letters, marks_of_text }
};
static const bt_split_list deepseek_v3 = {
    { "\\p{N}{1,3}", "[\\p{1}]+",
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
      "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*"
      "|\\s*[\\r\\n]+|" BLANKS "|\\s+" },
    { chinese_and_kana }
};
static const bt_split_list gpt4o = {
    { CASED_WORDS(CONTRACTIONS "?", "\\p{N}{1,3}") }, { 0 }
};
static const bt_split_list tekken = { { CASED_WORDS("", "\\p{N}") }, { 0 } };

#define LLAMA3(n) { .name = n, .list = &llama3, .ignore_merges = true, .add_bos = true }

const bt_split_name bt_text_split_names[] = {
    { .name = "default", .list = &plain },

    { .name = "gpt-2", .list = &gpt2 },
    { .name = "phi-2", .list = &gpt2 },
    { .name = "mpt", .list = &gpt2 },
    { .name = "olmo", .list = &gpt2 },
    { .name = "jais", .list = &gpt2 },
    { .name = "jina-es", .list = &gpt2, .strip_left_mask = true },
    { .name = "jina-de", .list = &gpt2, .strip_left_mask = true },
    { .name = "jina-v1-en", .list = &gpt2, .strip_left_mask = true },
    { .name = "jina-v2-es", .list = &gpt2, .strip_left_mask = true },
    { .name = "jina-v2-de", .list = &gpt2, .strip_left_mask = true },
    { .name = "jina-v2-code", .list = &gpt2, .strip_left_mask = true },
    { .name = "roberta-bpe", .list = &gpt2 },
    { .name = "exaone4", .list = &gpt2 },
    { .name = "mellum", .list = &gpt2 },
    { .name = "gigachat", .list = &gpt2 },
    { .name = "modern-bert", .list = &gpt2, .strip_left_mask = true },
    { .name = "a.x-4.0", .list = &gpt2 },
    { .name = "trillion", .list = &gpt2 },
    { .name = "granite-docling", .list = &gpt2 },

    { .name = "falcon", .list = &falcon },

    LLAMA3("llama3"), LLAMA3("llama-v3"), LLAMA3("llama-bpe"), LLAMA3("falcon3"),
    LLAMA3("falcon-h1"), LLAMA3("pixtral"), LLAMA3("midm-2.0"), LLAMA3("lfm2"),
    LLAMA3("jina-v5-nano"),
    { .name = "dbrx", .list = &llama3 },
    { .name = "smaug-bpe", .list = &llama3 },
    { .name = "glm4", .list = &llama3, .no_bos = true },
    { .name = "chatglm-bpe", .list = &llama3, .no_bos = true },

    { .name = "qwen2", .list = &qwen2 },
    { .name = "deepseek-r1-qwen", .list = &qwen2 },
    { .name = "kormo", .list = &qwen2 },
    { .name = "f2llmv2", .list = &qwen2 },
    { .name = "megrez", .list = &qwen2 },
    { .name = "stablelm2", .list = &qwen2 },
    { .name = "hunyuan", .list = &qwen2 },
    { .name = "grok-2", .list = &qwen2 },
    { .name = "solar-open", .list = &qwen2 },
    { .name = "qwen35", .list = &qwen35 },

    { .name = "smollm", .list = &digits_apart },
    { .name = "starcoder", .list = &digits_apart },
    { .name = "refact", .list = &digits_apart },
    { .name = "command-r", .list = &digits_apart },
    { .name = "codeshell", .list = &digits_apart },
    { .name = "exaone", .list = &digits_apart },
    { .name = "minerva-7b", .list = &digits_apart },
    { .name = "mellum2", .list = &digits_apart },

    { .name = "deepseek-coder", .list = &deepseek_coder },
    { .name = "deepseek-llm", .list = &deepseek_llm },
    { .name = "deepseek-v3", .list = &deepseek_v3 },
    { .name = "hunyuan-dense", .list = &deepseek_v3 },
    { .name = "joyai-llm", .list = &deepseek_v3 },

    { .name = "gpt-4o", .list = &gpt4o },
    { .name = "llama4", .list = &gpt4o },
    { .name = "kanana2", .list = &gpt4o },
    { .name = "talkie", .list = &gpt4o },
    { .name = "minimax-m2", .list = &gpt4o },
    { .name = "tekken", .list = &tekken, .ignore_merges = true, .add_bos = true },
};
const size_t bt_text_split_name_count = BT_LEN(bt_text_split_names);

const bt_split_name *bt_text_split_name_find(const char *name, size_t size)
{
    for (size_t i = 0; i < bt_text_split_name_count; i++) {
        if (strlen(bt_text_split_names[i].name) == size &&
            memcmp(bt_text_split_names[i].name, name, size) == 0) {
            return &bt_text_split_names[i];
        }
    }
    return NULL;
}
