#include "base/buffer.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { FIRST_CAPACITY = 64 };

void bt_buf_init(bt_buf *b, bt_memory_tag tag, size_t max)
{
    *b = (bt_buf){ .max = max, .tag = tag };
}

void bt_buf_done(bt_buf *b)
{
    bt_free(b->data);
    *b = (bt_buf){ .max = b->max, .tag = b->tag };
}

void bt_buf_clear(bt_buf *b)
{
    b->size = 0;
    b->status = BT_OK;
    if (b->data) {
        b->data[0] = '\0';
    }
}

bt_status bt_buf_reserve(bt_buf *b, size_t n)
{
    if (b->status != BT_OK) {
        return b->status;
    }
    if (n > b->max || n >= SIZE_MAX / 2) {
        return b->status = BT_E_FULL;
    }
    if (b->data && n < b->capacity) {
        return BT_OK;
    }
    size_t capacity = b->capacity ? b->capacity : FIRST_CAPACITY;
    while (capacity <= n) {
        capacity *= 2;
    }
    char *data = bt_realloc(b->tag, b->data, capacity);
    if (!data) {
        return b->status = BT_E_NOMEM;
    }
    data[b->size] = '\0';
    b->data = data;
    b->capacity = capacity;
    return BT_OK;
}

void *bt_buf_grow(bt_buf *b, size_t n)
{
    size_t size;
    if (!bt_size_add(b->size, n, &size)) {
        b->status = b->status == BT_OK ? BT_E_FULL : b->status;
        return NULL;
    }
    if (bt_buf_reserve(b, size) != BT_OK) {
        return NULL;
    }
    char *at = b->data + b->size;
    b->size = size;
    b->data[size] = '\0';
    return at;
}

void bt_buf_put(bt_buf *b, const void *bytes, size_t n)
{
    void *to = bt_buf_grow(b, n);
    if (to && n) {
        memcpy(to, bytes, n);
    }
}

void bt_buf_puts(bt_buf *b, const char *text)
{
    bt_buf_put(b, text, strlen(text));
}

void bt_buf_printf(bt_buf *b, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n >= 0) {
        char *to = bt_buf_grow(b, (size_t)n);
        if (to) {
            vsnprintf(to, (size_t)n + 1, format, again);
        }
    }
    va_end(again);
}
