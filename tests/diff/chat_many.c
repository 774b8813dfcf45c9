/* Renders many conversations with one chat template, for chat_diff.py.
 *
 * argv[1]: file with the template; argv[2]: model file whose tokenizer names BOS, or "-".
 * Standard input: conversations, each u8 flags (1: generation prompt, 2: continue), u32 seconds,
 * u32 messages, and per message two texts (role, content), each u32 size and bytes; the size
 * 0xFFFFFFFF stands for no content. Answer: u8 status (0: rendered), u32 size, the text or the
 * sentence; then u32 spans, each u32 size and u8 from_user. A template that is refused ends the
 * program with 3 and the sentence. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "text/chat.h"

static uint32_t get_u32(void)
{
    uint8_t b[4] = { 0 };
    if (fread(b, 1, 4, stdin) != 4) {
        exit(0);
    }
    return bt_get_le32(b);
}

static void put_u32(uint32_t v)
{
    uint8_t b[4];
    bt_put_le32(b, v);
    fwrite(b, 1, 4, stdout);
}

static char *get_text(uint32_t *size)
{
    *size = get_u32();
    if (*size == UINT32_MAX) {
        return NULL;
    }
    char *text = calloc(1, (size_t)*size + 1);
    if (fread(text, 1, *size, stdin) != *size) {
        exit(0);
    }
    return text;
}

static void answer(const bt_chat_format *f, const bt_chat_message *messages, uint32_t n,
                   const bt_chat_options *o)
{
    bt_error err;
    bt_chat_prompt p;
    bt_text_chat_prompt_init(&p);
    const bt_status status = bt_text_chat_render(f, messages, n, o, &p, &err);
    const char *text = status == BT_OK ? bt_buf_text(&p.text) : err.text;
    const size_t size = status == BT_OK ? p.text.size : strlen(err.text);
    putchar(status == BT_OK ? 0 : 1);
    put_u32((uint32_t)size);
    fwrite(text, 1, size, stdout);
    put_u32((uint32_t)p.n_spans);
    for (size_t i = 0; i < p.n_spans; i++) {
        put_u32((uint32_t)p.spans[i].size);
        putchar(p.spans[i].from_user);
    }
    fflush(stdout);
    bt_text_chat_prompt_done(&p);
}

int main(int argc, char **argv)
{
    static char template_text[1 << 21];
    bt_error err;
    bt_gguf *file = NULL;
    bt_tokenizer *tokenizer = NULL;
    bt_chat_format *format;
    FILE *in = argc == 3 ? fopen(argv[1], "rb") : NULL;
    if (!in) {
        return 2;
    }
    template_text[fread(template_text, 1, sizeof template_text - 1, in)] = '\0';
    fclose(in);
    if (strcmp(argv[2], "-") != 0 && (bt_gguf_open(argv[2], &file, &err) != BT_OK ||
                                      bt_text_tokenizer_create(file, &tokenizer, &err) != BT_OK)) {
        fprintf(stderr, "%s\n", err.text);
        return 2;
    }
    const bt_status status =
            bt_text_chat_format_create(NULL, tokenizer, template_text, &format, &err);
    bt_gguf_close(file);
    if (status != BT_OK) {
        bt_text_tokenizer_destroy(tokenizer);
        fprintf(stderr, "%s\n", err.text);
        return 3;
    }
    for (int flags; (flags = getchar()) != EOF;) {
        const uint32_t seconds = get_u32(), n = get_u32();
        bt_chat_message *messages = calloc(n + 1, sizeof *messages);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t size;
            messages[i].role = get_text(&size);
            messages[i].content = get_text(&size);
            messages[i].content_size = messages[i].content ? size : 0;
        }
        const bt_chat_options o = { .add_generation_prompt = flags & 1, .continue_final = flags & 2,
                                    .now_unix_seconds = seconds };
        answer(format, messages, n, &o);
        for (uint32_t i = 0; i < n; i++) {
            free((void *)messages[i].role);
            free((void *)messages[i].content);
        }
        free(messages);
    }
    bt_text_chat_format_destroy(format);
    bt_text_tokenizer_destroy(tokenizer);
    return 0;
}
