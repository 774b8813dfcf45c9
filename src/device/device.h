/* device/device.h - memory, and a way to run tapes.
 *
 * Every device implements bt_device_ops; callers use the functions below. The own kernels are
 * device/cpu/cpu.h; the wrappers trace.h, check.h and throttle.h pass calls on to other devices.
 *
 * Lifetime: open to close; buffers and weights die with the device at the latest.
 * Threads:  a device belongs to one thread (the engine's), except that others may read and write
 *           buffers under the rules of kv/pages.h and kv/states.h, where nobody else does.
 * Memory:   no pointer into a buffer leaves a device, so that it may be anywhere.
 * Failure:  run and wait report BT_E_DEVICE; a failed step's rows mean nothing.
 */
#ifndef BT_DEVICE_DEVICE_H
#define BT_DEVICE_DEVICE_H

#include "ops/tape.h"

typedef struct bt_device bt_device;

/* A tensor as it lies in the file. `rows` stays mapped while the device is open. */
typedef struct {
    const char *name;          /* for messages */
    bt_type     type;
    uint32_t    n_in, n_out;   /* a vector has n_out 1 */
    uint32_t    n_slices;      /* experts, n_out rows each; 0: a plain weight */
    const void *rows;
    size_t      size_bytes;    /* of all rows there are */
    bool        as_table;      /* rows are looked up (embedding), not multiplied */
    bool        as_taps;       /* of short_conv */
    bool        as_matrix;     /* multiplied, though n_out may be 1 */
    /* Some rows only: row_run of them from row_first on, then again row_step farther, and so on
     * until there are n_out for each slice. row_run 0: all. */
    uint32_t    row_first, row_run, row_step;
} bt_weight_source;

typedef struct {
    const char *name;
    void      (*close)(bt_device *d);
    bt_status (*buffer_alloc)(bt_device *d, uint64_t size_bytes, bt_buffer *ret, bt_error *err);
    void      (*buffer_free)(bt_device *d, bt_buffer b);
    /* Bytes [at, at + size) of a buffer to and from the host, within it (copy: apart, within
     * one buffer), and filled with one byte. */
    void      (*buffer_read)(const bt_device *d, bt_buffer b, uint64_t at, void *to, uint64_t size);
    void      (*buffer_write)(bt_device *d, bt_buffer b, uint64_t at, const void *from,
                              uint64_t size);
    void      (*buffer_copy)(bt_device *d, bt_buffer b, uint64_t to, uint64_t from, uint64_t size);
    void      (*buffer_fill)(bt_device *d, bt_buffer b, uint64_t at, uint8_t byte, uint64_t size);
    bt_status (*weight_load)(bt_device *d, const bt_weight_source *s, bt_weight *ret,
                             bt_error *err);
    bt_status (*weight_shape)(const bt_device *d, bt_weight w, bt_weight_shape *ret);
    /* Scratch for tapes of up to n_rows rows and n_logit_rows picked rows. */
    bt_status (*prepare)(bt_device *d, const bt_tape *t, uint32_t n_rows, uint32_t n_logit_rows,
                         bt_error *err);
    /* Runs ops [op_first, op_last) of the tape and returns; wait() says how it ended. */
    bt_status (*run)(bt_device *d, const bt_tape *t, const bt_step *s, uint32_t op_first,
                     uint32_t op_last, bt_error *err);
    bt_status (*wait)(bt_device *d, bt_error *err);
    /* Host view of scratch rows after wait(): row r at [r * *ret_stride]. */
    const float *(*read_rows)(bt_device *d, bt_rows rows, uint64_t *ret_stride);
    /* Overwrites the first n of these scratch rows between two runs of one step (for checking). */
    void (*write_rows)(bt_device *d, bt_rows rows, uint32_t n, const float *from, uint64_t stride);
} bt_device_ops;

struct bt_device {
    const bt_device_ops *ops;
};

void  bt_device_close(bt_device *d);                             /* NULL is fine */
const char *bt_device_name(const bt_device *d);
/* A tape of ops on weights of this device, which must outlive it. */
BT_MUST_CHECK bt_status bt_device_tape_create(const bt_device *d, bt_tape **ret_tape,
                                              bt_error *err);
BT_MUST_CHECK bt_status bt_device_buffer_alloc(bt_device *d, uint64_t size_bytes, bt_buffer *ret,
                                               bt_error *err);
void  bt_device_buffer_free(bt_device *d, bt_buffer b);
void  bt_device_buffer_read(const bt_device *d, bt_buffer b, uint64_t at, void *to, uint64_t size);
void  bt_device_buffer_write(bt_device *d, bt_buffer b, uint64_t at, const void *from,
                             uint64_t size);
void  bt_device_buffer_copy(bt_device *d, bt_buffer b, uint64_t to, uint64_t from, uint64_t size);
void  bt_device_buffer_fill(bt_device *d, bt_buffer b, uint64_t at, uint8_t byte, uint64_t size);
BT_MUST_CHECK bt_status bt_device_weight_load(bt_device *d, const bt_weight_source *s,
                                              bt_weight *ret, bt_error *err);
BT_MUST_CHECK bt_status bt_device_weight_shape(const bt_device *d, bt_weight w,
                                               bt_weight_shape *ret);
BT_MUST_CHECK bt_status bt_device_prepare(bt_device *d, const bt_tape *t, uint32_t n_rows,
                                          uint32_t n_logit_rows, bt_error *err);
/* The whole tape, to its end. */
BT_MUST_CHECK bt_status bt_device_run(bt_device *d, const bt_tape *t, const bt_step *s,
                                      bt_error *err);
const float *bt_device_read_rows(bt_device *d, bt_rows rows, uint64_t *ret_stride);

#endif
