#include "unit/text/vocabulary.h"

#include "text/special.h"

static void longer_tokens_are_cut_first(void **state)
{
    (void)state;
    vocabulary v;
    vocabulary_init(&v);
    vocabulary_bytes(&v);
    const uint32_t a = vocabulary_token(&v, "<a>", BT_TOKEN_CONTROL);
    const uint32_t ab = vocabulary_token(&v, "<a><b>", BT_TOKEN_CONTROL);
    vocabulary_keys(&v, "gpt2", "gpt-2");
    bt_tokenizer *t = vocabulary_tokenizer(&v);
    EXPECT(t, "<a><a><b>x", true, a, ab, 'x');
    EXPECT(t, "<a>", false, '<', 'a', '>');
    bt_text_tokenizer_destroy(t);
    vocabulary_done(&v);
}

/* ---- the rule itself, as simply as it can be written ---- */

typedef struct { size_t begin, end; uint32_t id; bool raw; } part;
typedef struct { part at[512]; size_t n; } parts;

static bool blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool marked(const uint8_t *user, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        if (user[i]) {
            return true;
        }
    }
    return false;
}

/* Cuts one candidate out of every raw part, left to right. */
static void cut_one(const bt_vocab *v, uint32_t id, const char *text, const uint8_t *user, parts *p)
{
    static parts out;
    const bt_vocab_text t = bt_text_vocab_text_of(v, id);
    out.n = 0;
    for (size_t i = 0; i < p->n; i++) {
        if (!p->at[i].raw) {
            out.at[out.n++] = p->at[i];
            continue;
        }
        size_t from = p->at[i].begin, end = p->at[i].end;
        for (size_t at = from; at + t.size <= end; at++) {
            if (memcmp(text + at, t.data, t.size) != 0 ||
                (bt_text_vocab_is_special(v, id) && marked(user, at, at + t.size))) {
                continue;
            }
            if (at > from) {
                out.at[out.n++] = (part){ from, at, 0, true };
            }
            out.at[out.n++] = (part){ at, at + t.size, id, false };
            from = at + t.size;
            while (v->strip_right && from < end && blank(text[from])) {
                from++;
            }
            at = from - 1;
        }
        if (from < end) {
            out.at[out.n++] = (part){ from, end, 0, true };
        }
    }
    *p = out;
}

static void cut_naively(const bt_vocab *v, const char *text, size_t size, const uint8_t *user,
                        parts *p)
{
    p->n = 0;
    if (size > 0) {
        p->at[p->n++] = (part){ 0, size, 0, true };
    }
    for (size_t length = v->text_max; length > 0; length--) {
        for (uint32_t id = 0; id < v->count; id++) {
            if (bt_text_vocab_text_of(v, id).size == length &&
                (bt_text_vocab_is_special(v, id) || v->types[id] == BT_TOKEN_USER_DEFINED)) {
                cut_one(v, id, text, user, p);
            }
        }
    }
}

/* ---- property ---- */

static void compare(const bt_vocab *v, const bt_special *s, dice *d)
{
    static const char letters[] = "ab<>| \n";
    char text[64];
    uint8_t user[64] = { 0 };
    bt_user_range users[64];
    size_t n_users = 0;
    const size_t size = roll(d, sizeof text);
    for (size_t i = 0; i < size; i++) {
        text[i] = letters[roll(d, sizeof letters - 1)];
    }
    for (size_t at = 0; at < size;) {
        const size_t end = at + 1 + roll(d, 12);
        if (roll(d, 3) == 0 && (n_users == 0 || users[n_users - 1].end < at)) {
            users[n_users++] = (bt_user_range){ at, end < size ? end : size };
            memset(user + at, 1, users[n_users - 1].end - at);
        }
        at = end;
    }
    parts want;
    bt_cuts got = { 0 };
    bt_error err = { 0 };
    cut_naively(v, text, size, user, &want);
    assert_int_equal(bt_text_special_cut(s, text, size, users, n_users, &got, &err), BT_OK);
    size_t k = 0;
    for (size_t i = 0; i < want.n; i++) {
        if (!want.at[i].raw) {
            assert_true(k < got.count);
            assert_int_equal(got.at[k].begin, want.at[i].begin);
            assert_int_equal(got.at[k].id, want.at[i].id);
            /* What was stripped lies between this part's end and the next part. */
            const size_t next = i + 1 < want.n ? want.at[i + 1].begin : size;
            assert_int_equal(got.at[k].end, next);
            k++;
        }
    }
    assert_int_equal(k, got.count);
    bt_text_cuts_done(&got);
}

static void cuts_are_those_of_searching_each_token_in_turn(void **state)
{
    (void)state;
    dice d = { 99 };
    for (int round = 0; round < 300; round++) {
        vocabulary file;
        vocabulary_init(&file);
        vocabulary_bytes(&file);
        for (uint32_t n = 1 + roll(&d, 12); n > 0; n--) {
            static const char letters[] = "ab<>| \n";
            static const int types[] = {BT_TOKEN_CONTROL, BT_TOKEN_USER_DEFINED, BT_TOKEN_UNKNOWN};
            char text[8];
            const size_t size = 1 + roll(&d, 5);
            for (size_t i = 0; i < size; i++) {
                text[i] = letters[roll(&d, sizeof letters - 1)];
            }
            bool known = false;
            for (uint32_t id = 0; id < file.n; id++) {
                known = known || (file.texts[id].size == size &&
                                  memcmp(file.texts[id].data, text, size) == 0);
            }
            if (!known) {
                vocabulary_add(&file, text, size, types[roll(&d, 3)], 0);
            }
        }
        if (roll(&d, 3) == 0) {
            bt_gguf_writer_put_string(&file.w, "general.name", "A PHI-3 kind");
        }
        vocabulary_keys(&file, "gpt2", "gpt-2");
        bt_gguf *opened = vocabulary_open(&file);
        bt_vocab v = { 0 };
        bt_special *s;
        bt_error err = { 0 };
        assert_int_equal(bt_text_vocab_load(opened, &v, &err), BT_OK);
        assert_int_equal(bt_text_special_create(&v, &s, &err), BT_OK);
        for (int i = 0; i < 100; i++) {
            compare(&v, s, &d);
        }
        bt_text_special_destroy(s);
        bt_text_vocab_done(&v);
        bt_gguf_close(opened);
        vocabulary_done(&file);
    }
}

/* Thousands of special tokens and a text full of beginnings of them. */
static void many_tokens_cost_no_search_each(void **state)
{
    (void)state;
    vocabulary *v = malloc(sizeof *v);
    vocabulary_init(v);
    vocabulary_bytes(v);
    for (int i = 0; i < 1700; i++) {
        char text[32];
        snprintf(text, sizeof text, "<unused%d>", i);
        vocabulary_token(v, text, BT_TOKEN_USER_DEFINED);
    }
    vocabulary_keys(v, "gpt2", "gpt-2");
    bt_tokenizer *t = vocabulary_tokenizer(v);
    bt_buf text;
    bt_buf_init(&text, BT_MEM_test, 1u << 24);
    for (int i = 0; i < 200000; i++) {
        bt_buf_printf(&text, "<unused%d%s", i % 1800, i % 2 ? ">" : "");
    }
    bt_tokens ids;
    bt_text_tokens_init(&ids);
    bt_error err = { 0 };
    const bt_encode_options o = { 0 };
    assert_int_equal(bt_text_tokenizer_encode(t, text.data, text.size, &o, &ids, &err), BT_OK);
    size_t cut = 0;
    for (size_t i = 0; i < ids.count; i++) {
        cut += ids.ids[i] >= 256;
    }
    size_t want = 0;
    for (int i = 1; i < 200000; i += 2) {
        want += i % 1800 < 1700;
    }
    assert_int_equal(cut, want);
    bt_text_tokens_done(&ids);
    bt_buf_done(&text);
    bt_text_tokenizer_destroy(t);
    vocabulary_done(v);
    free(v);
}

int main(void)
{
    bt_log_set_sink(quiet, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(longer_tokens_are_cut_first),
        cmocka_unit_test(cuts_are_those_of_searching_each_token_in_turn),
        cmocka_unit_test(many_tokens_cost_no_search_each),
    };
    return cmocka_run_group_tests_name("text/special", tests, NULL, NULL);
}
