/* A small file with a key of every type and some tensors. */
#ifndef BT_TESTS_GGUF_SAMPLE_H
#define BT_TESTS_GGUF_SAMPLE_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "gguf/gguf.h"
#include "gguf/writer.h"

#define SAMPLE_TEXT(text) { .data = (text), .size = sizeof(text) - 1 }

static inline void sample_keys(bt_gguf_writer *w)
{
    static const int32_t types[] = { 1, -3, 6, 2147483647 };
    static const float scores[] = { 0.0f, -1.5f, 3.0e38f };
    static const uint8_t slides[] = { 1, 0, 1 };
    static const uint32_t widths[] = { 16, 32, 64 };
    static const bt_gguf_string tokens[] = { SAMPLE_TEXT("<s>"), SAMPLE_TEXT(""),
                                             SAMPLE_TEXT("\xff\x00z") };
    bt_gguf_writer_put_string(w, "general.architecture", "llama");
    bt_gguf_writer_put_integer(w, "a.u8", BT_GGUF_U8, 200);
    bt_gguf_writer_put_integer(w, "a.i8", BT_GGUF_I8, (uint64_t)-100);
    bt_gguf_writer_put_integer(w, "a.u16", BT_GGUF_U16, 60000);
    bt_gguf_writer_put_integer(w, "a.i16", BT_GGUF_I16, (uint64_t)-30000);
    bt_gguf_writer_put_integer(w, "a.u32", BT_GGUF_U32, 4000000000u);
    bt_gguf_writer_put_integer(w, "a.i32", BT_GGUF_I32, (uint64_t)-2000000000);
    bt_gguf_writer_put_real(w, "a.f32", BT_GGUF_F32, 1.5);
    bt_gguf_writer_put_integer(w, "a.bool", BT_GGUF_BOOL, 1);
    bt_gguf_writer_put_string(w, "a.empty", "");
    bt_gguf_writer_put_integer(w, "a.u64", BT_GGUF_U64, UINT64_MAX);
    bt_gguf_writer_put_integer(w, "a.i64", BT_GGUF_I64, (uint64_t)INT64_MIN);
    bt_gguf_writer_put_real(w, "a.f64", BT_GGUF_F64, -0.25);
    bt_gguf_writer_put_array(w, "b.i32", BT_GGUF_I32, types, BT_LEN(types));
    bt_gguf_writer_put_array(w, "b.f32", BT_GGUF_F32, scores, BT_LEN(scores));
    bt_gguf_writer_put_array(w, "b.bool", BT_GGUF_BOOL, slides, BT_LEN(slides));
    bt_gguf_writer_put_array(w, "b.u32", BT_GGUF_U32, widths, BT_LEN(widths));
    bt_gguf_writer_put_array(w, "b.none", BT_GGUF_U8, NULL, 0);
    bt_gguf_writer_put_strings(w, "b.strings", tokens, BT_LEN(tokens));
}

static inline void sample_tensors(bt_gguf_writer *w)
{
    static const float norm[5] = { 1, 2, 3, 4, 5 };
    static const uint16_t half[4 * 3 * 2] = { 0x3c00, 0xc000 };
    static const uint8_t blocks[2][34] = { { 0x00, 0x3c, 1, 2, 255 }, { 0x00, 0x40, 128 } };
    bt_gguf_writer_put_tensor(w, &(bt_gguf_writer_tensor){
            .name = "norm.weight", .type = BT_TYPE_F32, .n_dims = 1, .ne = { 5 },
            .data = norm, .size = sizeof norm });
    bt_gguf_writer_put_tensor(w, &(bt_gguf_writer_tensor){
            .name = "experts.weight", .type = BT_TYPE_F16, .n_dims = 3, .ne = { 4, 3, 2 },
            .data = half, .size = sizeof half });
    bt_gguf_writer_put_tensor(w, &(bt_gguf_writer_tensor){
            .name = "scalar", .type = BT_TYPE_F32, .n_dims = 0, .data = norm, .size = 4 });
    bt_gguf_writer_put_tensor(w, &(bt_gguf_writer_tensor){
            .name = "empty", .type = BT_TYPE_F32, .n_dims = 2, .ne = { 8, 0 } });
    bt_gguf_writer_put_tensor(w, &(bt_gguf_writer_tensor){
            .name = "blocks.weight", .type = BT_TYPE_Q8_0, .n_dims = 2, .ne = { 32, 2 },
            .data = blocks, .size = sizeof blocks });
}

/* The bytes of what `w` holds, in a block of exactly that size (freed by the caller), so that
 * AddressSanitizer sees every byte read past the end. */
static inline uint8_t *sample_bytes(bt_gguf_writer *w, size_t *ret_size)
{
    bt_buf out;
    bt_buf_init(&out, BT_MEM_test, 1 << 24);
    assert_int_equal(bt_gguf_writer_write(w, &out, NULL), BT_OK);
    uint8_t *bytes = malloc(out.size);
    assert_non_null(bytes);
    memcpy(bytes, out.data, out.size);
    *ret_size = out.size;
    bt_buf_done(&out);
    bt_gguf_writer_done(w);
    return bytes;
}

static inline uint8_t *sample_file(uint32_t version, uint32_t alignment, size_t *ret_size)
{
    bt_gguf_writer w;
    bt_gguf_writer_init(&w, version, alignment);
    sample_keys(&w);
    sample_tensors(&w);
    return sample_bytes(&w, ret_size);
}

/* What opening these bytes says. */
static inline const char *sample_complaint(const void *bytes, size_t size, bt_error *err)
{
    bt_gguf *file = NULL;
    *err = (bt_error){ .text = "" };
    const bt_status status = bt_gguf_open_memory(bytes, size, "dir/s.gguf", &file, err);
    if (status == BT_OK) {
        bt_gguf_close(file);
        return "opened";
    }
    assert_null(file);
    assert_int_equal(status, err->status);
    return err->text;
}

#endif
