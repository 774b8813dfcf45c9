/* One byte per character: ASCII stands for itself; any other character becomes
 *   0x80 + kind + BT_UNICODE_KINDS * sets
 * where `sets` has a bit for each of the list's own sets that holds the character. Blanks beyond
 * ASCII are in no set, only in \s: models were trained with tokenizers that do it so. */
#include "text/split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "base/buffer.h"
#include "base/log.h"
#include "base/memory.h"
#include "text/unicode.h"

enum {
    FIRST_CLASS = 0x80,
    SET_COMBINATIONS = 1 << BT_SPLIT_SETS_MAX,
    PATTERN_BYTES_MAX = 65536,
    FIRST_PIECES = 256,
};
_Static_assert(FIRST_CLASS + (int)BT_UNICODE_KINDS * SET_COMBINATIONS <= 256, "classes fit a byte");

struct bt_splitter {
    uint8_t              *class_of;      /* [BT_UNICODE_COUNT] */
    pcre2_general_context *memory;
    pcre2_code            *codes[BT_SPLIT_PATTERNS_MAX];
    size_t                n_codes;
};

/* ---- classes ---- */

/* ASCII members of a kind. */
static const char *const ascii_members[BT_UNICODE_KINDS] = {
    [BT_UNICODE_LU] = "A-Z",
    [BT_UNICODE_LL] = "a-z",
    [BT_UNICODE_N] = "0-9",
    [BT_UNICODE_P] = "!\"#%&'()*,\\-./:;?@\\[\\\\\\]_{}",
    [BT_UNICODE_S] = "$+<=>\\^`|~",
    [BT_UNICODE_SPACE] = "\\x09-\\x0d\\x20",
};

static void put_kind(bt_buf *to, int kind)
{
    if (ascii_members[kind]) {
        bt_buf_puts(to, ascii_members[kind]);
    }
    for (int sets = 0; sets < SET_COMBINATIONS; sets++) {
        bt_buf_printf(to, "\\x%02x", (unsigned)(FIRST_CLASS + kind + BT_UNICODE_KINDS * sets));
    }
}

static void put_set(bt_buf *to, const bt_split_range *set, int index)
{
    for (; set->last; set++) {
        if (set->last < FIRST_CLASS) {
            bt_buf_printf(to, "\\x%02x-\\x%02x", (unsigned)set->first, (unsigned)set->last);
        }
    }
    for (int sets = 0; sets < SET_COMBINATIONS; sets++) {
        if (sets >> index & 1) {
            const int first = FIRST_CLASS + BT_UNICODE_KINDS * sets;
            bt_buf_printf(to, "\\x%02x-\\x%02x", (unsigned)first,
                          (unsigned)(first + BT_UNICODE_KINDS - 1));
        }
    }
}

/* The inside of a bracket for \p{`name`}. */
static void put_property(bt_buf *to, const bt_split_list *list, const char *name, size_t size)
{
    static const struct { const char *name; int first, last; } properties[] = {
        { "L", BT_UNICODE_LU, BT_UNICODE_LO }, { "Lu", BT_UNICODE_LU, BT_UNICODE_LU },
        { "Ll", BT_UNICODE_LL, BT_UNICODE_LL }, { "Lt", BT_UNICODE_LT, BT_UNICODE_LT },
        { "Lm", BT_UNICODE_LM, BT_UNICODE_LM }, { "Lo", BT_UNICODE_LO, BT_UNICODE_LO },
        { "M", BT_UNICODE_M, BT_UNICODE_M }, { "N", BT_UNICODE_N, BT_UNICODE_N },
        { "P", BT_UNICODE_P, BT_UNICODE_P }, { "S", BT_UNICODE_S, BT_UNICODE_S },
    };
    if (size == 1 && name[0] >= '1' && name[0] <= '0' + BT_SPLIT_SETS_MAX) {
        put_set(to, list->sets[name[0] - '1'], name[0] - '1');
        return;
    }
    for (size_t i = 0; i < BT_LEN(properties); i++) {
        if (strlen(properties[i].name) == size && memcmp(properties[i].name, name, size) == 0) {
            for (int kind = properties[i].first; kind <= properties[i].last; kind++) {
                put_kind(to, kind);
            }
            return;
        }
    }
}

/* Rewrites one expression from properties of characters to classes of bytes. */
static void translate(bt_buf *to, const bt_split_list *list, const char *pattern)
{
    bool in_bracket = false;
    for (const char *p = pattern; *p; p++) {
        if (*p == '[' || *p == ']') {
            in_bracket = *p == '[';
            bt_buf_put(to, p, 1);
        } else if (*p != '\\') {
            bt_buf_put(to, p, 1);
        } else if (p[1] == 'p' || p[1] == 's') {
            bt_buf_puts(to, in_bracket ? "" : "[");
            if (p[1] == 'p') {
                const size_t size = strcspn(p + 3, "}");
                put_property(to, list, p + 3, size);
                p += 3 + size;
            } else {
                put_kind(to, BT_UNICODE_SPACE);
                p++;
            }
            bt_buf_puts(to, in_bracket ? "" : "]");
        } else if (p[1] == 'S') {
            bt_buf_puts(to, "[^");
            put_kind(to, BT_UNICODE_SPACE);
            bt_buf_puts(to, "]");
            p++;
        } else {
            bt_buf_put(to, p, 2);
            p++;
        }
    }
}

static void fill_classes(uint8_t *class_of, const bt_split_list *list)
{
    for (size_t i = 0; i < bt_text_unicode_run_count; i++) {
        const uint32_t first = bt_text_unicode_runs[i] >> 4;
        const uint32_t end = i + 1 < bt_text_unicode_run_count ? bt_text_unicode_runs[i + 1] >> 4
                                                          : BT_UNICODE_COUNT;
        memset(class_of + first, (int)(FIRST_CLASS + (bt_text_unicode_runs[i] & 15)), end - first);
    }
    for (int s = 0; s < BT_SPLIT_SETS_MAX && list->sets[s]; s++) {
        /* Ranges of one set may touch the same character twice. */
        const int first = FIRST_CLASS, step = BT_UNICODE_KINDS << s;
        for (const bt_split_range *r = list->sets[s]; r->last; r++) {
            for (uint32_t c = r->first; c <= r->last; c++) {
                const int kind = (class_of[c] - first) % BT_UNICODE_KINDS;
                const int sets = (class_of[c] - first) / BT_UNICODE_KINDS;
                if (kind != BT_UNICODE_SPACE && !(sets >> s & 1)) {
                    class_of[c] = (uint8_t)(class_of[c] + step);
                }
            }
        }
    }
    for (int c = 0; c < FIRST_CLASS; c++) {
        class_of[c] = (uint8_t)c;
    }
}

/* ---- create ---- */

static void *take_memory(size_t size, void *context)
{
    (void)context;
    return bt_alloc(BT_MEM_text, size);
}

static void give_memory(void *p, void *context)
{
    (void)context;
    bt_free(p);
}

static bt_status compile(bt_splitter *s, const bt_split_list *list, const char *pattern,
                         bt_error *err)
{
    bt_buf text;
    bt_buf_init(&text, BT_MEM_text, PATTERN_BYTES_MAX);
    translate(&text, list, pattern);
    bt_status status = bt_buf_status(&text);
    if (status != BT_OK) {
        bt_buf_done(&text);
        return bt_fail(err, status, "out of memory to compile a pre-tokenizer");
    }

    int code = 0;
    PCRE2_SIZE at = 0;
    pcre2_compile_context *context = pcre2_compile_context_create(s->memory);
    pcre2_code *made = context ? pcre2_compile((PCRE2_SPTR)bt_buf_text(&text), text.size,
            PCRE2_NEVER_UTF | PCRE2_NEVER_UCP | PCRE2_DOLLAR_ENDONLY, &code, &at, context) : NULL;
    pcre2_compile_context_free(context);
    bt_buf_done(&text);
    if (!made) {
        const bool no_memory = !context || code == PCRE2_ERROR_NOMEMORY ||
                               code == PCRE2_ERROR_HEAP_FAILED;
        status = no_memory ? BT_E_NOMEM : BT_E_UNSUPPORTED;
        return bt_fail(err, status, "the expression '%.80s' of a pre-tokenizer does not compile: "
                       "error %d of PCRE2 at %zu", pattern, code, (size_t)at);
    }
    /* Without its compiler PCRE2 interprets: the same matches, slower. */
    const int jit = pcre2_jit_compile(made, PCRE2_JIT_COMPLETE);
    if (jit != 0) {
        bt_log(BT_LOG_DEBUG, "pretokenizer_interpreted", "pcre2_jit_compile=%d", jit);
    }
    s->codes[s->n_codes++] = made;
    return BT_OK;
}

bt_status bt_text_splitter_create(const bt_split_list *list, bt_splitter **ret_splitter,
                                  bt_error *err)
{
    bt_splitter *s = bt_alloc_zero(BT_MEM_text, 1, sizeof *s);
    if (s) {
        s->class_of = bt_alloc(BT_MEM_text, BT_UNICODE_COUNT);
        s->memory = pcre2_general_context_create(take_memory, give_memory, NULL);
    }
    bt_status status = BT_OK;
    if (!s || !s->class_of || !s->memory) {
        status = bt_fail(err, BT_E_NOMEM, "out of memory for a pre-tokenizer");
    } else {
        fill_classes(s->class_of, list);
    }
    for (size_t i = 0; status == BT_OK && i < BT_SPLIT_PATTERNS_MAX && list->patterns[i]; i++) {
        status = compile(s, list, list->patterns[i], err);
    }
    if (status != BT_OK) {
        bt_text_splitter_destroy(s);
        return status;
    }
    *ret_splitter = s;
    return BT_OK;
}

void bt_text_splitter_destroy(bt_splitter *s)
{
    if (!s) {
        return;
    }
    for (size_t i = 0; i < s->n_codes; i++) {
        pcre2_code_free(s->codes[i]);
    }
    if (s->memory) {
        pcre2_general_context_free(s->memory);
    }
    bt_free(s->class_of);
    bt_free(s);
}

/* ---- run ---- */

static bt_status push(bt_split_pieces *p, uint32_t end)
{
    if (p->count == p->capacity) {
        const size_t capacity = p->capacity ? p->capacity * 2 : FIRST_PIECES;
        size_t size;
        uint32_t *ends = bt_size_mul(capacity, sizeof *ends, &size)
                                 ? bt_realloc(BT_MEM_text, p->ends, size) : NULL;
        if (!ends) {
            return BT_E_NOMEM;
        }
        p->ends = ends;
        p->capacity = capacity;
    }
    p->ends[p->count++] = end;
    return BT_OK;
}

void bt_text_split_pieces_done(bt_split_pieces *p)
{
    bt_free(p->ends);
    *p = (bt_split_pieces){ 0 };
}

typedef struct {
    const pcre2_code    *code;
    pcre2_match_data    *data;
    pcre2_match_context *context;
} matcher;

/* The first match at or after `from`; PCRE2's result. */
static int match(const matcher *m, const uint8_t *text, size_t size, size_t from)
{
    int n = pcre2_match(m->code, text, size, from, 0, m->data, m->context);
    if (n == PCRE2_ERROR_JIT_STACKLIMIT) {
        n = pcre2_match(m->code, text, size, from, PCRE2_NO_JIT, m->data, m->context);
    }
    return n;
}

/* Cuts text[begin .. end) into matches and gaps. An expression sees only its piece. */
static bt_status cut_piece(const matcher *m, const uint8_t *text, size_t begin, size_t end,
                           bt_split_pieces *to, bt_error *err)
{
    const size_t size = end - begin;
    size_t done = 0;
    while (done < size) {
        const int n = match(m, text + begin, size, done);
        if (n == PCRE2_ERROR_NOMATCH) {
            break;
        }
        if (n < 0) {
            const bt_status status = n == PCRE2_ERROR_NOMEMORY ? BT_E_NOMEM : BT_E_BADINPUT;
            return bt_fail(err, status, "a piece of %zu characters of the text is beyond what the "
                           "pre-tokenizer can match (error %d of PCRE2)", size, n);
        }
        const PCRE2_SIZE *at = pcre2_get_ovector_pointer(m->data);
        if (at[1] <= at[0]) {
            break;
        }
        if (at[0] > done) {
            BT_TRY(push(to, (uint32_t)(begin + at[0])));
        }
        BT_TRY(push(to, (uint32_t)(begin + at[1])));
        done = at[1];
    }
    return done < size ? push(to, (uint32_t)end) : BT_OK;
}

/* Writes one class per character, returns how many. */
static size_t classify(const bt_splitter *s, const char *text, size_t size, uint8_t *to)
{
    size_t n = 0;
    for (size_t at = 0; at < size;) {
        const bt_utf8_char c = bt_text_utf8_at(text + at, size - at);
        to[n++] = s->class_of[c.code];
        at += c.size;
    }
    return n;
}

/* From ends counted in characters to ends counted in bytes. */
static void to_bytes(bt_split_pieces *p, const char *text)
{
    size_t at = 0, n = 0;
    for (size_t i = 0; i < p->count; i++) {
        for (; n < p->ends[i]; n++) {
            const uint8_t lead = (uint8_t)text[at];
            at += lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
        }
        p->ends[i] = (uint32_t)at;
    }
}

static bt_status cut_all(const bt_splitter *s, const uint8_t *text, size_t n, matcher *m,
                         bt_split_pieces *pieces, bt_error *err)
{
    bt_split_pieces old = { 0 };
    bt_status status = push(pieces, (uint32_t)n);
    for (size_t i = 0; status == BT_OK && i < s->n_codes; i++) {
        const bt_split_pieces swap = old;
        old = *pieces;
        *pieces = swap;
        pieces->count = 0;
        m->code = s->codes[i];
        size_t begin = 0;
        for (size_t k = 0; status == BT_OK && k < old.count; k++) {
            status = cut_piece(m, text, begin, old.ends[k], pieces, err);
            begin = old.ends[k];
        }
    }
    bt_text_split_pieces_done(&old);
    return status;
}

bt_status bt_text_splitter_run(const bt_splitter *s, const char *text, size_t size,
                               bt_split_pieces *pieces, bt_error *err)
{
    pieces->count = 0;
    if (size == 0) {
        return BT_OK;
    }
    uint8_t *classes = bt_alloc(BT_MEM_text, size);
    matcher m = { .data = pcre2_match_data_create(1, s->memory),
                  .context = pcre2_match_context_create(s->memory) };
    bt_status status = BT_E_NOMEM;
    if (classes && m.data && m.context) {
        const size_t n = classify(s, text, size, classes);
        /* Every expression takes a few steps per character; more would be our own mistake, and must
         * not hang a server. */
        const uint64_t limit = 100000 + 64 * (uint64_t)n;
        pcre2_set_match_limit(m.context, limit > UINT32_MAX ? UINT32_MAX : (uint32_t)limit);
        status = cut_all(s, classes, n, &m, pieces, err);
        if (status == BT_OK && n != size) {
            to_bytes(pieces, text);
        }
    }
    pcre2_match_context_free(m.context);
    pcre2_match_data_free(m.data);
    bt_free(classes);
    return status == BT_E_NOMEM ? bt_fail(err, status, "out of memory to split %zu bytes "
                                                       "of text", size)
                                : status;
}
