/* Tokenises many texts with one vocabulary, for tokenizer_diff.py.
 *
 * argv[1]: model file. Standard input: requests, each u8 kind, u32 size, bytes. Kinds:
 *   'e' encode as user text, 's' with special tokens, 'b' with special tokens and BOS/EOS:
 *       answer u32 count, then u32 ids;
 *   'p' the piece of the token u32, 'P' with special ones shown: answer u32 size, then bytes;
 *   'd' the text of u32 ids: answer u32 size, then bytes;
 *   'g' flags of the token u32: answer u32 (1: ends a generation, 2: special). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "gguf/gguf.h"
#include "text/tokenizer.h"

static bool read_all(void *to, size_t n)
{
    return fread(to, 1, n, stdin) == n;
}

static void put_u32(uint32_t v)
{
    uint8_t b[4];
    bt_put_le32(b, v);
    fwrite(b, 1, 4, stdout);
}

static void put_bytes(const char *bytes, size_t size)
{
    put_u32((uint32_t)size);
    fwrite(bytes, 1, size, stdout);
}

static void die(const bt_error *err)
{
    fprintf(stderr, "%s\n", err->text);
    exit(1);
}

static void encode(const bt_tokenizer *t, char kind, const char *text, size_t size)
{
    bt_error err;
    bt_tokens ids;
    bt_text_tokens_init(&ids);
    const bt_encode_options o = { .add_special = kind == 'b', .parse_special = kind != 'e' };
    if (bt_text_tokenizer_encode(t, text, size, &o, &ids, &err) != BT_OK) {
        die(&err);
    }
    put_u32((uint32_t)ids.count);
    for (size_t i = 0; i < ids.count; i++) {
        put_u32(ids.ids[i]);
    }
    bt_text_tokens_done(&ids);
}

static void decode(const bt_tokenizer *t, const char *bytes, size_t size)
{
    bt_buf text;
    bt_buf_init(&text, BT_MEM_test, 1u << 30);
    uint32_t *ids = malloc(size + 1);
    for (size_t i = 0; i < size / 4; i++) {
        ids[i] = bt_get_le32(bytes + 4 * i);
    }
    bt_text_tokenizer_decode(t, ids, size / 4, false, &text);
    put_bytes(bt_buf_text(&text), text.size);
    free(ids);
    bt_buf_done(&text);
}

int main(int argc, char **argv)
{
    bt_error err;
    bt_gguf *file;
    bt_tokenizer *t;
    if (argc != 2 || bt_gguf_open(argv[1], &file, &err) != BT_OK ||
        bt_text_tokenizer_create(file, &t, &err) != BT_OK) {
        die(&err);
    }
    uint8_t head[5];
    while (read_all(head, 5)) {
        const size_t size = bt_get_le32(head + 1);
        char *text = malloc(size + 4);
        if (!text || !read_all(text, size)) {
            return 1;
        }
        const uint32_t id = bt_get_le32(text);
        size_t n;
        switch (head[0]) {
        case 'p':
        case 'P': {
            const char *piece = bt_text_tokenizer_piece(t, id, head[0] == 'P', &n);
            put_bytes(piece, n);
            break;
        }
        case 'd':
            decode(t, text, size);
            break;
        case 'g':
            put_u32((uint32_t)bt_text_tokenizer_is_eog(t, id) |
                    (uint32_t)bt_text_tokenizer_is_special(t, id) << 1);
            break;
        default:
            encode(t, (char)head[0], text, size);
        }
        fflush(stdout);
        free(text);
    }
    bt_text_tokenizer_destroy(t);
    bt_gguf_close(file);
    return 0;
}
