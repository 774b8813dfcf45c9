#include "unit/text/vocabulary.h"

#include "base/digest.h"
#include "base/limits.h"
#include "text/split.h"

/* Bytes, some merges, and special tokens. */
typedef struct { uint32_t he, hel, lo, hello, sp_w, nl2, end, user, unk; } named;

static bt_tokenizer *small_bpe(vocabulary *v, const char *pre, named *n)
{
    vocabulary_init(v);
    vocabulary_bytes(v);
    n->he = vocabulary_merge(v, "h e");
    n->hel = vocabulary_merge(v, "he l");
    n->lo = vocabulary_merge(v, "l o");
    n->hello = vocabulary_merge(v, "hel lo");
    n->sp_w = vocabulary_merge(v, "\xc4\xa0 w");
    n->nl2 = vocabulary_merge(v, "\xc4\x8a \xc4\x8a");
    n->end = vocabulary_token(v, "<|im_end|>", BT_TOKEN_NORMAL);
    n->user = vocabulary_token(v, "<tab>", BT_TOKEN_USER_DEFINED);
    n->unk = vocabulary_token(v, "<unk>", BT_TOKEN_UNKNOWN);
    vocabulary_keys(v, "gpt2", pre);
    bt_gguf_writer_put_integer(&v->w, "tokenizer.ggml.bos_token_id", BT_GGUF_U32, n->end);
    bt_gguf_writer_put_integer(&v->w, "tokenizer.ggml.eos_token_id", BT_GGUF_U32, n->end);
    return vocabulary_tokenizer(v);
}

static void text_becomes_tokens_and_text_again(void **state)
{
    (void)state;
    vocabulary v;
    named n;
    bt_tokenizer *t = small_bpe(&v, "gpt-2", &n);
    EXPECT(t, "hello hello w", false, n.hello, 0x20, n.hello, n.sp_w);
    const uint32_t ids[] = { n.hello, n.sp_w, n.end, n.user };
    bt_buf text;
    bt_buf_init(&text, BT_MEM_test, 1024);
    bt_text_tokenizer_decode(t, ids, BT_LEN(ids), false, &text);
    assert_string_equal(bt_buf_text(&text), "hello w<tab>");
    bt_buf_clear(&text);
    bt_text_tokenizer_decode(t, ids, BT_LEN(ids), true, &text);
    assert_string_equal(bt_buf_text(&text), "hello w<|im_end|><tab>");
    bt_buf_done(&text);
    bt_text_tokenizer_destroy(t);
    vocabulary_done(&v);
}

static void ranks_decide_and_then_the_left(void **state)
{
    (void)state;
    vocabulary v;
    vocabulary_init(&v);
    vocabulary_bytes(&v);
    const uint32_t bc = vocabulary_merge(&v, "b c");
    const uint32_t ab = vocabulary_merge(&v, "a b");
    const uint32_t aa = vocabulary_merge(&v, "a a");
    vocabulary_keys(&v, "gpt2", "gpt-2");
    bt_tokenizer *t = vocabulary_tokenizer(&v);
    EXPECT(t, "abc", false, 'a', bc);
    EXPECT(t, "ab", false, ab);
    EXPECT(t, "aaa", false, aa, 'a');
    EXPECT(t, "aaaa", false, aa, aa);
    EXPECT(t, "aaab", false, aa, ab);
    bt_text_tokenizer_destroy(t);
    vocabulary_done(&v);
}

static void special_tokens_are_only_parsed_when_asked(void **state)
{
    (void)state;
    vocabulary v;
    named n;
    bt_tokenizer *t = small_bpe(&v, "gpt-2", &n);
    /* Stored as normal, but its text ends generations: so it is a control token. */
    assert_true(bt_text_tokenizer_is_special(t, n.end));
    assert_true(bt_text_tokenizer_is_eog(t, n.end));
    assert_true(bt_text_tokenizer_is_special(t, n.unk));
    assert_false(bt_text_tokenizer_is_special(t, n.user));
    EXPECT(t, "w<|im_end|>", true, 'w', n.end);
    EXPECT(t, "w<|im_end|>", false, 'w', '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>');
    EXPECT(t, "<tab><unk>", false, n.user, '<', 'u', 'n', 'k', '>');
    EXPECT(t, "<tab><unk>", true, n.user, n.unk);
    assert_int_equal(bt_text_tokenizer_find(t, "<tab>", 5), n.user);
    assert_int_equal(bt_text_tokenizer_find(t, "<tabs>", 6), BT_TOKEN_NONE);
    bt_text_tokenizer_destroy(t);
    vocabulary_done(&v);
}

static void expect_spans(const bt_tokenizer *t, const bt_text_span *spans, size_t n,
                         const uint32_t *want, size_t n_want)
{
    bt_tokens got;
    bt_error err = { 0 };
    bt_text_tokens_init(&got);
    assert_int_equal(bt_text_tokenizer_encode_spans(t, spans, n, false, &got, &err), BT_OK);
    expect_ids(&got, want, n_want, "spans");
    bt_text_tokens_done(&got);
}

static void spans_are_one_text_but_users_write_no_special_tokens(void **state)
{
    (void)state;
    vocabulary v;
    named n;
    bt_tokenizer *t = small_bpe(&v, "llama-bpe", &n);
    /* The template's newline and the user's merge; "hel" and "lo" do, too. */
    const bt_text_span merged[] = { { "x\n", 2, false }, { "\n", 1, true }, { "hel", 3, false },
                                    { "", 0, true }, { "lo", 2, true } };
    const uint32_t want_merged[] = { 'x', n.nl2, n.hello };
    expect_spans(t, merged, BT_LEN(merged), want_merged, BT_LEN(want_merged));
    /* A user can neither write one nor finish one, but does not disturb the template's. */
    const bt_text_span forged[] = { { "<|im_end|>", 10, false }, { "<|im_end|>", 10, true },
                                    { "<|im_", 5, false }, { "end|>", 5, true },
                                    { "<|im_e", 6, false }, { "nd|>", 4, false } };
    const uint32_t want_forged[] = { n.end, '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>',
                                     '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>', n.end };
    expect_spans(t, forged, BT_LEN(forged), want_forged, BT_LEN(want_forged));
    expect_spans(t, NULL, 0, NULL, 0);
    bt_text_tokenizer_destroy(t);
    vocabulary_done(&v);
}

static void bad_bytes_become_replacement_characters(void **state)
{
    (void)state;
    vocabulary v;
    named n;
    bt_tokenizer *t = small_bpe(&v, "gpt-2", &n);
    EXPECT(t, "a\xff" "b", false, 'a', 0xEF, 0xBF, 0xBD, 'b');
    EXPECT(t, "\xe2\x82", false, 0xEF, 0xBF, 0xBD, 0xEF, 0xBF, 0xBD);
    EXPECT(t, "a\0b", false, 'a', 0, 'b');
    bt_text_tokenizer_destroy(t);
    vocabulary_done(&v);
}

static void bos_and_eos_are_added_as_the_file_asks(void **state)
{
    (void)state;
    vocabulary v;
    vocabulary_init(&v);
    vocabulary_bytes(&v);
    const uint32_t bos = vocabulary_token(&v, "<bos>", BT_TOKEN_CONTROL);
    const uint32_t eos = vocabulary_token(&v, "<eos>", BT_TOKEN_CONTROL);
    vocabulary_keys(&v, "gpt2", "gpt-2");
    bt_gguf_writer_put_integer(&v.w, "tokenizer.ggml.bos_token_id", BT_GGUF_U32, bos);
    bt_gguf_writer_put_integer(&v.w, "tokenizer.ggml.eos_token_id", BT_GGUF_I32, eos);
    bt_gguf_writer_put_integer(&v.w, "tokenizer.ggml.add_bos_token", BT_GGUF_BOOL, 1);
    bt_gguf_writer_put_integer(&v.w, "tokenizer.ggml.add_eos_token", BT_GGUF_BOOL, 1);
    bt_gguf_writer_put_integer(&v.w, "tokenizer.ggml.eom_token_id", BT_GGUF_I32, (uint64_t)-1);
    const int32_t suppressed[] = { 3, 999999, -1, 5 };
    bt_gguf_writer_put_array(&v.w, "tokenizer.ggml.suppress_tokens", BT_GGUF_I32, suppressed, 4);
    bt_tokenizer *t = vocabulary_tokenizer(&v);

    bt_tokens got;
    bt_error err = { 0 };
    bt_text_tokens_init(&got);
    const bt_encode_options o = { .add_special = true, .parse_special = true };
    assert_int_equal(bt_text_tokenizer_encode(t, "<bos>a", 6, &o, &got, &err), BT_OK);
    const uint32_t want[] = { bos, bos, 'a', eos };
    expect_ids(&got, want, 4, "twice");
    assert_int_equal(bt_text_tokenizer_encode(t, NULL, 0, &o, &got, &err), BT_OK);
    assert_int_equal(got.count, 6);
    bt_text_tokens_done(&got);
    assert_true(bt_text_tokenizer_adds_bos(t));
    assert_int_equal(bt_text_tokenizer_bos(t), bos);
    assert_int_equal(bt_text_tokenizer_eos(t), eos);
    assert_int_equal(bt_text_tokenizer_count(t), 258);
    size_t n;
    const uint32_t *ids = bt_text_tokenizer_suppressed(t, &n);
    assert_int_equal(n, 2);
    assert_int_equal(ids[0], 3);
    assert_int_equal(ids[1], 5);
    bt_text_tokenizer_destroy(t);
    vocabulary_done(&v);
}

static bt_tokenizer *small_spm(vocabulary *v, bool space_prefix)
{
    static const char *const words[] = {"\xe2\x96\x81",
                                        "\xe2\x96\x81h",
                                        "he",
                                        "llo",
                                        "\xe2\x96\x81hello",
                                        "h",
                                        "e",
                                        "l",
                                        "o",
                                        "ll",
                                        "\xe2\x96\x81hell",
                                        "lo"};
    vocabulary_init(v);
    vocabulary_token(v, "<unk>", BT_TOKEN_UNKNOWN);
    vocabulary_token(v, "<s>", BT_TOKEN_CONTROL);
    vocabulary_token(v, "</s>", BT_TOKEN_CONTROL);
    for (int byte = 0; byte < 256; byte++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", byte);
        vocabulary_token(v, text, BT_TOKEN_BYTE);
    }
    for (size_t i = 0; i < BT_LEN(words); i++) {
        vocabulary_add(v, words[i], strlen(words[i]), BT_TOKEN_NORMAL, -(float)i);
    }
    vocabulary_add(v, "<hole>", 6, BT_TOKEN_UNUSED, 0);
    vocabulary_keys(v, "llama", NULL);
    bt_gguf_writer_put_integer(&v->w, "tokenizer.ggml.add_space_prefix", BT_GGUF_BOOL,
                               space_prefix);
    return vocabulary_tokenizer(v);
}

static void spm_merges_by_score(void **state)
{
    (void)state;
    enum { WORDS = 3 + 256 };
    vocabulary v;
    bt_tokenizer *t = small_spm(&v, true);
    /* "_h" is the best pair, so "he" never forms; then "ll", "llo"; "_h" + "e" is no token. */
    EXPECT(t, "hello", false, WORDS + 1, WORDS + 6, WORDS + 3);
    expect_encoding(t, "", 0, false, NULL, 0);
    bt_text_tokenizer_destroy(t);
    vocabulary_done(&v);
}

static void spm_keeps_unknown_bytes(void **state)
{
    (void)state;
    enum { WORDS = 3 + 256, BYTES = 3 };
    vocabulary v;
    bt_tokenizer *t = small_spm(&v, false);
    EXPECT(t, "\xc3\xa4\xff", false, BYTES + 0xC3, BYTES + 0xA4, BYTES + 0xFF);
    EXPECT(t, "x\0", false, BYTES + 'x', BYTES + 0);
    /* A lead byte without its rest at the end of the text. */
    EXPECT(t, "o\xe2\x96", false, WORDS + 8, BYTES + 0xE2, BYTES + 0x96);
    EXPECT(t, "  h", false, WORDS + 0, WORDS + 1);
    size_t size;
    assert_memory_equal(bt_text_tokenizer_piece(t, BYTES + 0xFF, false, &size), "\xff", 1);
    assert_int_equal(size, 1);
    assert_memory_equal(bt_text_tokenizer_piece(t, WORDS + 4, false, &size), " hello", 6);
    assert_int_equal(size, 6);
    bt_text_tokenizer_piece(t, 1, false, &size);
    assert_int_equal(size, 0);
    bt_text_tokenizer_piece(t, WORDS + 12, true, &size);
    assert_int_equal(size, 0);
    bt_text_tokenizer_piece(t, 999999, true, &size);
    assert_int_equal(size, 0);
    assert_int_equal(bt_text_tokenizer_piece_max(t), 6);
    bt_text_tokenizer_destroy(t);
    vocabulary_done(&v);
}

static void the_space_of_spm_goes_as_it_came(void **state)
{
    (void)state;
    vocabulary v;
    bt_tokenizer *t = small_spm(&v, true);
    static const char *const texts[] = { "hello", " hello", "hello hello", "x", "a\n b", "" };
    const bt_encode_options o = { 0 };
    for (size_t i = 0; i < BT_LEN(texts); i++) {
        bt_tokens ids;
        bt_buf text;
        bt_error err = { 0 };
        bt_text_tokens_init(&ids);
        bt_buf_init(&text, BT_MEM_test, 1024);
        assert_int_equal(bt_text_tokenizer_encode(t, texts[i], strlen(texts[i]), &o, &ids, &err),
                         BT_OK);
        bt_text_tokenizer_decode(t, ids.ids, ids.count, false, &text);
        assert_string_equal(bt_buf_text(&text), texts[i]);
        bt_buf_done(&text);
        bt_text_tokens_done(&ids);
    }
    bt_text_tokenizer_destroy(t);
    vocabulary_done(&v);
}

/* ---- merges without tokens, bytes without tokens ---- */

static void what_has_no_token_falls_apart_into_bytes(void **state)
{
    (void)state;
    vocabulary v;
    vocabulary_init(&v);
    const uint32_t a = vocabulary_token(&v, "a", BT_TOKEN_NORMAL);
    const uint32_t b = vocabulary_token(&v, "b", BT_TOKEN_NORMAL);
    v.merges[v.n_merges++] = "a b";          /* no token "ab" */
    v.merges[v.n_merges++] = "ab b";
    v.merges[v.n_merges++] = "";             /* and some that say nothing */
    v.merges[v.n_merges++] = " ";
    v.merges[v.n_merges++] = "ab";
    v.merges[v.n_merges++] = "a ";
    vocabulary_keys(&v, "gpt2", "gpt-2");
    bt_tokenizer *t = vocabulary_tokenizer(&v);
    EXPECT(t, "abbxa", false, a, b, b, a);
    bt_text_tokenizer_destroy(t);
    vocabulary_done(&v);
}

/* ---- hostile files ---- */

static void expect_refusal(vocabulary *v, bt_status want, const char *part)
{
    bt_error err = { 0 };
    bt_tokenizer *t = NULL;
    assert_int_equal(vocabulary_load(v, &t, &err), want);
    assert_null(t);
    if (!strstr(err.text, part)) {
        fail_msg("'%s' does not say '%s'", err.text, part);
    }
    vocabulary_done(v);
}

static void begin_hostile(vocabulary *v, const char *model)
{
    vocabulary_init(v);
    bt_gguf_writer_put_string(&v->w, "tokenizer.ggml.model", model);
    vocabulary_token(v, "a", BT_TOKEN_NORMAL);
    vocabulary_token(v, "b", BT_TOKEN_NORMAL);
}

static void unknown_kinds_are_refused_by_name(void **state)
{
    (void)state;
    vocabulary v;
    vocabulary_init(&v);
    vocabulary_token(&v, "a", BT_TOKEN_NORMAL);
    vocabulary_keys(&v, "wordpieces", NULL);
    expect_refusal(&v, BT_E_UNSUPPORTED, "'wordpieces'; known are 'gpt2'");
    vocabulary_init(&v);
    vocabulary_token(&v, "a", BT_TOKEN_NORMAL);
    vocabulary_keys(&v, "gpt2", "no-such");
    expect_refusal(&v, BT_E_UNSUPPORTED, "'no-such'; known are default, gpt-2");
    vocabulary_init(&v);
    expect_refusal(&v, BT_E_BADFILE, "tokenizer.ggml.model");
}

static void damaged_vocabularies_are_refused_with_a_reason(void **state)
{
    (void)state;
    static const int32_t types[] = { 1, 1, 1 };
    static const float scores[] = { 0 };
    vocabulary v;
    begin_hostile(&v, "gpt2");
    expect_refusal(&v, BT_E_BADFILE, "tokenizer.ggml.tokens is missing");
    begin_hostile(&v, "gpt2");
    bt_gguf_writer_put_array(&v.w, "tokenizer.ggml.tokens", BT_GGUF_I32, types, 3);
    expect_refusal(&v, BT_E_BADFILE, "is not an array of strings");
    begin_hostile(&v, "gpt2");
    bt_gguf_writer_put_strings(&v.w, "tokenizer.ggml.tokens", v.texts, 0);
    expect_refusal(&v, BT_E_BADFILE, "has 0 entries");
    begin_hostile(&v, "gpt2");
    bt_gguf_writer_put_strings(&v.w, "tokenizer.ggml.tokens", v.texts, v.n);
    expect_refusal(&v, BT_E_BADFILE, "tokenizer.ggml.merges is missing");
    begin_hostile(&v, "gpt2");
    bt_gguf_writer_put_strings(&v.w, "tokenizer.ggml.tokens", v.texts, v.n);
    bt_gguf_writer_put_array(&v.w, "tokenizer.ggml.token_type", BT_GGUF_I32, types, 3);
    expect_refusal(&v, BT_E_BADFILE, "token_type has 3 entries, but there are 2 tokens");
    begin_hostile(&v, "llama");
    bt_gguf_writer_put_strings(&v.w, "tokenizer.ggml.tokens", v.texts, v.n);
    expect_refusal(&v, BT_E_BADFILE, "tokenizer.ggml.scores is missing");
    begin_hostile(&v, "llama");
    bt_gguf_writer_put_strings(&v.w, "tokenizer.ggml.tokens", v.texts, v.n);
    bt_gguf_writer_put_array(&v.w, "tokenizer.ggml.scores", BT_GGUF_F32, scores, 1);
    expect_refusal(&v, BT_E_BADFILE, "scores has 1 entries");
    vocabulary_init(&v);
    vocabulary_token(&v, "a", BT_TOKEN_NORMAL);
    vocabulary_keys(&v, "gpt2", NULL);
    bt_gguf_writer_put_string(&v.w, "tokenizer.ggml.eos_token_id", "two");
    expect_refusal(&v, BT_E_BADFILE, "tokenizer.ggml.eos_token_id");
}

static void strange_vocabularies_still_work(void **state)
{
    (void)state;
    vocabulary v;
    vocabulary_init(&v);
    vocabulary_bytes(&v);
    vocabulary_token(&v, "", BT_TOKEN_NORMAL);
    vocabulary_token(&v, "twice", BT_TOKEN_USER_DEFINED);
    const uint32_t last = vocabulary_token(&v, "twice", BT_TOKEN_USER_DEFINED);
    const uint32_t odd = vocabulary_token(&v, "\xff\xfe", 77);
    vocabulary_token(&v, "<0xZZ>", BT_TOKEN_BYTE);
    vocabulary_keys(&v, "gpt2", NULL);
    bt_gguf_writer_put_integer(&v.w, "tokenizer.ggml.bos_token_id", BT_GGUF_U32, 4000000000u);
    bt_tokenizer *t = vocabulary_tokenizer(&v);
    assert_int_equal(bt_text_tokenizer_bos(t), 11);
    assert_int_equal(bt_text_tokenizer_find(t, "[EMPTY_256]", 11), 256);
    EXPECT(t, "twice", false, last);
    size_t size;
    bt_text_tokenizer_piece(t, odd, true, &size);
    assert_int_equal(size, 0);
    bt_text_tokenizer_destroy(t);
    vocabulary_done(&v);
}

/* ---- digest ---- */

static void the_digest_tells_vocabularies_apart(void **state)
{
    (void)state;
    vocabulary v;
    named n;
    bt_tokenizer *t = small_bpe(&v, "gpt-2", &n);
    const bt_digest first = bt_text_tokenizer_digest(t);
    bt_text_tokenizer_destroy(t);
    vocabulary_done(&v);
    t = small_bpe(&v, "gpt-2", &n);
    const bt_digest again = bt_text_tokenizer_digest(t);
    bt_text_tokenizer_destroy(t);
    vocabulary_done(&v);
    assert_true(bt_digest_equal(&first, &again));
    t = small_bpe(&v, "qwen2", &n);
    const bt_digest other = bt_text_tokenizer_digest(t);
    bt_text_tokenizer_destroy(t);
    vocabulary_done(&v);
    assert_false(bt_digest_equal(&first, &other));
}

/* ---- memory ---- */

static bt_status encode_once(const bt_tokenizer *t, bt_tokens *ids)
{
    bt_error err = { 0 };
    const bt_text_span spans[] = {{"<|im_end|>hello hello w\n\n", 25, false},
                                  {"<tab>\xff who wins, the one of the longer breath?", 46, true}};
    return bt_text_tokenizer_encode_spans(t, spans, 2, true, ids, &err);
}

/* Every allocation fails once: a clear status, nothing lost, nothing half done. */
static void every_failing_allocation_is_survived(void **state)
{
    (void)state;
    vocabulary v;
    named n;
    bt_tokenizer *t = small_bpe(&v, "llama-bpe", &n);
    bt_tokens ids;
    bt_text_tokens_init(&ids);
    assert_int_equal(bt_text_tokens_push(&ids, 7), BT_OK);
    uint64_t at = 1;
    for (; at < 1000; at++) {
        bt_memory_fail_after(at);
        const bt_status status = encode_once(t, &ids);
        bt_memory_fail_after(0);
        if (status == BT_OK) {
            break;
        }
        assert_int_equal(status, BT_E_NOMEM);
        assert_int_equal(ids.count, 1);
    }
    assert_true(at > 5 && at < 1000);
    bt_text_tokens_done(&ids);

    bt_gguf *file = vocabulary_open(&v);
    for (at = 1; at < 1000; at++) {
        bt_tokenizer *made = NULL;
        bt_error err = { 0 };
        bt_memory_fail_after(at);
        const bt_status status = bt_text_tokenizer_create(file, &made, &err);
        bt_memory_fail_after(0);
        if (status == BT_OK) {
            bt_text_tokenizer_destroy(made);
            break;
        }
        assert_int_equal(status, BT_E_NOMEM);
        assert_null(made);
        assert_true(err.text[0] != '\0');
    }
    assert_true(at > 10 && at < 1000);
    bt_gguf_close(file);
    bt_text_tokenizer_destroy(t);
    vocabulary_done(&v);
}

int main(void)
{
    bt_log_set_sink(quiet, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_becomes_tokens_and_text_again),
        cmocka_unit_test(ranks_decide_and_then_the_left),
        cmocka_unit_test(special_tokens_are_only_parsed_when_asked),
        cmocka_unit_test(spans_are_one_text_but_users_write_no_special_tokens),
        cmocka_unit_test(bad_bytes_become_replacement_characters),
        cmocka_unit_test(bos_and_eos_are_added_as_the_file_asks),
        cmocka_unit_test(spm_merges_by_score),
        cmocka_unit_test(spm_keeps_unknown_bytes),
        cmocka_unit_test(the_space_of_spm_goes_as_it_came),
        cmocka_unit_test(what_has_no_token_falls_apart_into_bytes),
        cmocka_unit_test(unknown_kinds_are_refused_by_name),
        cmocka_unit_test(damaged_vocabularies_are_refused_with_a_reason),
        cmocka_unit_test(strange_vocabularies_still_work),
        cmocka_unit_test(the_digest_tells_vocabularies_apart),
        cmocka_unit_test(every_failing_allocation_is_survived),
    };
    return cmocka_run_group_tests_name("text/tokenizer", tests, NULL, NULL);
}
