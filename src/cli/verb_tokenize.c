/* baton tokenize - text on standard input to token ids on standard output, as a JSON array.
 *
 * Only the vocabulary of the file is read, so a file without tensors will do. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/buffer.h"
#include "base/limits.h"
#include "cli/verbs.h"
#include "gguf/gguf.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

typedef struct {
    const char *model;
    bool        special, bos, pieces;
} options;

#define AT(field) offsetof(options, field)

static const bt_option model_table[] = {
    { "-m, --model", "FILE", "MODEL", BT_OPT_TEXT, AT(model), NULL,
      "model file, or one with a vocabulary only" },
    { 0 },
};

static const bt_option text_table[] = {
    { "--special", NULL, NULL, BT_OPT_FLAG, AT(special), NULL,
      "turn the text of control tokens into those tokens", .negatable = true },
    { "--bos", NULL, NULL, BT_OPT_FLAG, AT(bos), "on",
      "begin and end tokens as the file asks; --no-bos: none", .negatable = true },
    { "--pieces", NULL, NULL, BT_OPT_FLAG, AT(pieces), NULL,
      "objects with id and piece; a piece that is not UTF-8 is an array of bytes",
      .negatable = true },
    { 0 },
};

static const bt_option_group groups[] = {
    { "Model", model_table, 0 },
    { "Text", text_table, 0 },
    { 0 }
};

static bool read_input(bt_buf *text)
{
    for (;;) {
        char part[65536];
        const size_t n = fread(part, 1, sizeof part, stdin);
        bt_buf_put(text, part, n);
        if (n < sizeof part || bt_buf_status(text) != BT_OK) {
            break;
        }
    }
    if (ferror(stdin)) {
        bt_cli_say_error("standard input cannot be read: %s", strerror(errno));
        return false;
    }
    if (bt_buf_status(text) != BT_OK) {
        bt_cli_say_error("standard input is longer than %u bytes, or than memory allows",
                         BT_RENDERED_BYTES_MAX);
        return false;
    }
    return true;
}

static void print_string(const char *text, size_t size)
{
    putchar('"');
    for (size_t i = 0; i < size; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\') {
            printf("\\%c", c);
        } else if (c < 0x20 || c == 0x7F) {
            printf("\\u%04x", c);
        } else {
            putchar(c);
        }
    }
    putchar('"');
}

static void print_piece(const bt_tokenizer *t, uint32_t id)
{
    size_t size;
    const char *piece = bt_text_tokenizer_piece(t, id, true, &size);
    printf("{\"id\":%" PRIu32 ",\"piece\":", id);
    if (bt_text_utf8_valid(piece, size)) {
        print_string(piece, size);
    } else {
        for (size_t i = 0; i < size; i++) {
            printf("%c%u", i ? ',' : '[', (unsigned)(unsigned char)piece[i]);
        }
        putchar(']');
    }
    putchar('}');
}

static int print_tokens(const bt_tokenizer *t, const bt_tokens *tokens, bool pieces)
{
    putchar('[');
    for (size_t i = 0; i < tokens->count; i++) {
        if (i > 0) {
            putchar(',');
        }
        if (pieces) {
            print_piece(t, tokens->ids[i]);
        } else {
            printf("%" PRIu32, tokens->ids[i]);
        }
    }
    puts("]");
    return fflush(stdout) == 0 ? 0 : bt_cli_say_error("standard output cannot be written: %s",
                                                      strerror(errno));
}

static int tokenize(const bt_tokenizer *t, const options *o)
{
    bt_error err;
    bt_buf text;
    bt_tokens tokens;
    bt_buf_init(&text, BT_MEM_cli, BT_RENDERED_BYTES_MAX);
    bt_text_tokens_init(&tokens);
    const bt_encode_options how = { .add_special = o->bos, .parse_special = o->special };
    int code = 1;
    if (!read_input(&text)) {
        /* It has said why. */
    } else if (bt_text_tokenizer_encode(t, bt_buf_text(&text), text.size, &how, &tokens, &err) !=
               BT_OK) {
        bt_cli_say_error("%s", err.text);
    } else {
        code = print_tokens(t, &tokens, o->pieces);
    }
    bt_text_tokens_done(&tokens);
    bt_buf_done(&text);
    return code;
}

static int run(const void *given, int n_rest, char **rest)
{
    const options *o = given;
    if (n_rest > 0) {
        return bt_cli_usage_error("'%s' is not expected: the text comes from standard input",
                                  rest[0]);
    }
    if (!o->model) {
        return bt_cli_usage_error("-m FILE is missing: tokens depend on the model");
    }
    bt_error err;
    bt_gguf *file;
    if (bt_gguf_open(o->model, &file, &err) != BT_OK) {
        return bt_cli_say_error("%s", err.text);
    }
    bt_tokenizer *t;
    const bt_status status = bt_text_tokenizer_create(file, &t, &err);
    bt_gguf_close(file);
    if (status != BT_OK) {
        return bt_cli_say_error("%s", err.text);
    }
    const int code = tokenize(t, o);
    bt_text_tokenizer_destroy(t);
    return code;
}

const bt_verb bt_verb_tokenize = {
    .name = "tokenize",
    .summary = "text on standard input to token ids",
    .usage = "baton tokenize -m FILE [options] < TEXT",
    .example = "printf 'Hello' | baton tokenize -m model.gguf --no-bos",
    .options_size = sizeof(options),
    .groups = groups,
    .run = run,
};
