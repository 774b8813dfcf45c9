/* gguf/gguf.h - a GGUF model file (version 2 or 3), mapped and checked as hostile input.
 *
 * bt_gguf_open() reads the header, checks every length, count, offset and type before it believes
 * it, and maps the tensor data. A split file is opened by its first part; the others are found
 * beside it. Nothing is copied but the tables; strings and tensor data stay in the mapping.
 *
 * Lifetime: open to close; every pointer given out lives until close. The file must stay as it is
 *           as long (replace files by renaming): see bt_gguf_unchanged and bt_gguf_guard_start.
 * Threads:  immutable after open.
 * Failure:  open says what is wrong, where (file, key or tensor, byte) and what to do.
 *
 *   bt_gguf *file;
 *   BT_TRY(bt_gguf_open("model.gguf", &file, err));
 *   uint32_t n_layers;
 *   BT_TRY(bt_gguf_get_u32(file, "llama.block_count", &n_layers, err));
 */
#ifndef BT_GGUF_GGUF_H
#define BT_GGUF_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "quant/types.h"

typedef struct bt_gguf bt_gguf;

typedef enum {
    BT_GGUF_U8 = 0, BT_GGUF_I8, BT_GGUF_U16, BT_GGUF_I16, BT_GGUF_U32, BT_GGUF_I32, BT_GGUF_F32,
    BT_GGUF_BOOL, BT_GGUF_STRING, BT_GGUF_ARRAY, BT_GGUF_U64, BT_GGUF_I64, BT_GGUF_F64,
    BT_GGUF_VALUE_COUNT
} bt_gguf_value_type;

typedef struct { const char *data; size_t size; } bt_gguf_string;   /* not NUL-terminated */

typedef struct {
    bt_gguf_string     key;       /* no control characters, so no NUL either */
    bt_gguf_value_type type;
    bt_gguf_value_type element;   /* of an array; else equal to type */
    uint64_t           count;     /* of an array; else 1 */
    const uint8_t     *data;      /* little-endian values; for strings: u64 size + bytes, each */
} bt_gguf_pair;

typedef struct {
    char            name[64];     /* NUL-terminated */
    const bt_type_info *type;     /* never NULL; may be one that cannot be decoded */
    uint32_t        n_dims;
    uint64_t        ne[4];        /* ne[0] is contiguous; missing ones are 1 */
    uint64_t        n_elems, size_bytes;
    uint64_t        offset;       /* in its file's data region */
    uint32_t        part;         /* split number, from 0 */
    const void     *data;
} bt_gguf_tensor;

BT_MUST_CHECK bt_status bt_gguf_open(const char *path, bt_gguf **ret_file, bt_error *err);
/* The same from memory (one part; borrowed until close); `name` is for messages. Tensor data is
 * aligned as `bytes` is, at most as bt_gguf_alignment() says. */
BT_MUST_CHECK bt_status bt_gguf_open_memory(const void *bytes, size_t size, const char *name,
                                            bt_gguf **ret_file, bt_error *err);
void bt_gguf_close(bt_gguf *file);                                       /* NULL is fine */

/* BT_E_IO when a part was written to since it was opened (size or time of change). A few
 * microseconds; a file that was replaced by renaming, or removed, is still whole here. */
BT_MUST_CHECK bt_status bt_gguf_unchanged(const bt_gguf *file, bt_error *err);
/* From now on a file that is cut short while it is mapped ends the process with a sentence that
 * names it, and not with SIGBUS alone. For programs; call once, at start. */
void bt_gguf_guard_start(void);

const char *bt_gguf_path(const bt_gguf *file);
uint64_t    bt_gguf_size_bytes(const bt_gguf *file);                     /* all parts */
uint32_t    bt_gguf_version(const bt_gguf *file);
uint32_t    bt_gguf_alignment(const bt_gguf *file);
uint32_t    bt_gguf_part_count(const bt_gguf *file);
/* A hint that a tensor's data is not needed for now (after repacking): its pages are given back to
 * the system and come again from the file if they are read. */
void        bt_gguf_drop_pages(const bt_gguf *file, const bt_gguf_tensor *tensor);

uint32_t              bt_gguf_pair_count(const bt_gguf *file);
const bt_gguf_pair   *bt_gguf_pair_at(const bt_gguf *file, uint32_t index);
const bt_gguf_pair   *bt_gguf_find(const bt_gguf *file, const char *key);     /* NULL: none */
uint32_t              bt_gguf_tensor_count(const bt_gguf *file);
const bt_gguf_tensor *bt_gguf_tensor_at(const bt_gguf *file, uint32_t index);
const bt_gguf_tensor *bt_gguf_tensor_find(const bt_gguf *file, const char *name);

/* Required values: BT_E_BADFILE names the key, the type found and the type wanted. Any integer type
 * whose value fits is accepted for u32; f32 accepts f64 and integers, and is always finite. */
BT_MUST_CHECK bt_status bt_gguf_get_u32(const bt_gguf *f, const char *key, uint32_t *ret,
                                        bt_error *err);
BT_MUST_CHECK bt_status bt_gguf_get_f32(const bt_gguf *f, const char *key, float *ret,
                                        bt_error *err);
BT_MUST_CHECK bt_status bt_gguf_get_bool(const bt_gguf *f, const char *key, bool *ret,
                                         bt_error *err);
BT_MUST_CHECK bt_status bt_gguf_get_string(const bt_gguf *f, const char *key, bt_gguf_string *ret,
                                           bt_error *err);
/* Optional values: `fallback` when the key is missing; a wrong type is still an error. */
BT_MUST_CHECK bt_status bt_gguf_opt_u32(const bt_gguf *f, const char *key, uint32_t fallback,
                                        uint32_t *ret, bt_error *err);
BT_MUST_CHECK bt_status bt_gguf_opt_f32(const bt_gguf *f, const char *key, float fallback,
                                        float *ret, bt_error *err);
BT_MUST_CHECK bt_status bt_gguf_opt_bool(const bt_gguf *f, const char *key, bool fallback,
                                         bool *ret, bt_error *err);
/* A scalar for all `n` entries, or an array of exactly n. Integers (or booleans as 0 and 1). */
BT_MUST_CHECK bt_status bt_gguf_get_u32_per_layer(const bt_gguf *f, const char *key, uint32_t n,
                                                  uint32_t *ret_values, bt_error *err);

/* Elements of an array pair (or the value of a scalar, index 0); index < count and a fitting
 * element type are asserted, so the caller looks at pair->element first. */
uint32_t bt_gguf_array_u32(const bt_gguf_pair *pair, uint64_t index);  /* integers, bool; does not
                                                                          fit: UINT32_MAX */
float    bt_gguf_array_f32(const bt_gguf_pair *pair, uint64_t index);  /* any number, as it is */

/* Strings of an array must be walked in order. */
typedef struct { const uint8_t *at; uint64_t left; } bt_gguf_strings;
bt_gguf_strings bt_gguf_strings_begin(const bt_gguf_pair *pair);         /* element is STRING */
bool            bt_gguf_strings_next(bt_gguf_strings *it, bt_gguf_string *ret);

const char *bt_gguf_value_type_name(bt_gguf_value_type type);

#endif
