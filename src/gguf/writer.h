/* gguf/writer.h - makes GGUF files in memory: for tests, fuzz corpora and small tools.
 *
 * Keys and tensors appear in the order of the calls. Everything is copied, so nothing has to
 * outlive its call. The writer checks little on purpose: tests need files that are wrong.
 *
 * Lifetime: bt_gguf_writer_init to bt_gguf_writer_done. Threads: owned by one thread.
 * Failure:  sticky; bt_gguf_writer_save says once, at the end, what went wrong.
 *
 *   bt_gguf_writer w;
 *   bt_gguf_writer_init(&w, 3, 32);
 *   bt_gguf_writer_put_string(&w, "general.architecture", "llama");
 *   bt_gguf_writer_put_integer(&w, "llama.block_count", BT_GGUF_U32, 2);
 *   bt_gguf_writer_put_tensor(&w, &(bt_gguf_writer_tensor){
 *       .name = "output_norm.weight", .type = BT_TYPE_F32, .n_dims = 1, .ne = { 64 },
 *       .data = norm, .size = sizeof norm });
 *   BT_TRY(bt_gguf_writer_save(&w, "small.gguf", err));
 *   bt_gguf_writer_done(&w);
 */
#ifndef BT_GGUF_WRITER_H
#define BT_GGUF_WRITER_H

#include "base/buffer.h"
#include "gguf/gguf.h"

typedef struct {
    uint32_t version, alignment;
    uint32_t n_pairs, n_tensors;
    bt_buf   pairs, infos, data;
    bool     failed;              /* the calls made no sense, e.g. an integer of type string */
} bt_gguf_writer;

typedef struct {
    const char *name;
    uint32_t    type;             /* a bt_type, or any number */
    uint32_t    n_dims;           /* at most 4 */
    uint64_t    ne[4];            /* ne[0] is contiguous */
    const void *data;
    size_t      size;             /* bytes, whatever type and shape say */
} bt_gguf_writer_tensor;

/* An alignment other than 32 is written as a key. */
void bt_gguf_writer_init(bt_gguf_writer *w, uint32_t version, uint32_t alignment);
void bt_gguf_writer_done(bt_gguf_writer *w);

/* Integers and bool; the low bytes of `value` are taken, so negative numbers may be cast. */
void bt_gguf_writer_put_integer(bt_gguf_writer *w, const char *key, bt_gguf_value_type type,
                                uint64_t value);
/* F32 or F64. */
void bt_gguf_writer_put_real(bt_gguf_writer *w, const char *key, bt_gguf_value_type type,
                             double value);
void bt_gguf_writer_put_string(bt_gguf_writer *w, const char *key, const char *text);
/* `values`: C values of the element's type (bool: one byte), in the machine's byte order. */
void bt_gguf_writer_put_array(bt_gguf_writer *w, const char *key, bt_gguf_value_type element,
                              const void *values, uint64_t count);
void bt_gguf_writer_put_strings(bt_gguf_writer *w, const char *key, const bt_gguf_string *texts,
                                uint64_t count);
/* As it stands in another file. */
void bt_gguf_writer_put_pair(bt_gguf_writer *w, const bt_gguf_pair *pair);
void bt_gguf_writer_put_tensor(bt_gguf_writer *w, const bt_gguf_writer_tensor *tensor);

/* The whole file, appended to `to`; may be called again after more calls. */
BT_MUST_CHECK bt_status bt_gguf_writer_write(const bt_gguf_writer *w, bt_buf *to, bt_error *err);
BT_MUST_CHECK bt_status bt_gguf_writer_save(const bt_gguf_writer *w, const char *path,
                                            bt_error *err);

#endif
