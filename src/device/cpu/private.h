/* device/cpu/private.h - what the files of the CPU device share.
 *
 * A plan is made of a tape once (prepare): a list of stages, each a piece of an op with the way its
 * work is split over the team, and whether a barrier comes before it. There are two plans of
 * a tape. The one for few rows (decode) lets each thread compute small ops for itself, in scratch
 * of its own, since a barrier costs more than computing a norm again; the one for many rows splits
 * rows. Which plan, how many threads and who takes which piece never changes a bit of the result.
 */
#ifndef BT_DEVICE_CPU_PRIVATE_H
#define BT_DEVICE_CPU_PRIVATE_H

#include <stdatomic.h>

#include "base/threads.h"
#include "device/cpu/cpu.h"

enum {
    BT_CPU_FEW_ROWS = 4,             /* up to here the few-rows plan, and n_threads */
    BT_CPU_FORMS_MAX = BT_LINEAR_PARTS_MAX,     /* activation buffers */
    BT_CPU_ANGLES_MAX = 8,           /* different rotations on one tape */
    BT_CPU_PLANS_MAX = 8,            /* tapes prepared at a time; the oldest gives way */
    BT_CPU_BUFFERS_MAX = 64,
    BT_CPU_PAGE_TOKENS_MAX = 256,
    BT_CPU_OUT_STEP = 16             /* outputs of a linear are split in multiples of this */
};

/* ---- weights and memory ---- */

typedef enum {
    BT_CPU_MATRIX, BT_CPU_EXPERTS, BT_CPU_VECTOR, BT_CPU_TABLE, BT_CPU_TAPS
} bt_cpu_weight_kind;

typedef struct {
    bt_cpu_weight_kind kind;
    bt_type       type;
    uint32_t      n_in, n_out, n_slices;
    bool          mapped;            /* still read from where it was loaded */
    bt_cpu_matrix matrix;            /* of EXPERTS the first slice */
    size_t        slice_bytes;       /* from one slice to the next */
    float        *vector;            /* [n_in]; of TAPS [n_in][n_out] */
    const void   *rows;              /* of a table: as in the file */
} bt_cpu_weight;

/* Anonymous memory that reads as zero and is real only where it was touched. */
typedef struct { void *base; uint64_t size; } bt_cpu_region;

bt_status bt_device_cpu_region_map(bt_cpu_region *r, uint64_t size, const char *what,
                                   bt_error *err);
void      bt_device_cpu_region_unmap(bt_cpu_region *r);

/* Pieces that live as long as the device. */
typedef struct {
    bt_cpu_region *chunks;
    uint32_t       n_chunks, capacity;
    uint64_t       used;             /* bytes of the last chunk */
} bt_cpu_store;

bt_status bt_device_cpu_store_take(bt_cpu_store *s, uint64_t size, void **ret_at, bt_error *err);
void      bt_device_cpu_store_done(bt_cpu_store *s);

/* ---- plans ---- */

typedef enum {
    BT_STAGE_ANGLES,                 /* cos and sin of all rows of rotation `number` */
    BT_STAGE_CONVERT,                /* activations of an op into buffer `number` */
    BT_STAGE_OP
} bt_cpu_stage_kind;

/* How a stage is split. SAME: each thread does all of it in its own scratch. ONE: thread 0. ROWS:
 * runs of rows. HEADS: runs of key heads with their query heads. CELLS: blocks of columns of each
 * row. TASKS: pieces taken from a counter. Only ROWS after ROWS and HEADS after HEADS touch the
 * same cells from the same thread. */
typedef enum {
    BT_SPLIT_SAME, BT_SPLIT_ONE, BT_SPLIT_ROWS, BT_SPLIT_HEADS, BT_SPLIT_CELLS, BT_SPLIT_TASKS
} bt_cpu_split;

typedef struct {
    uint32_t op;
    uint8_t  kind, split, number;
    bool     barrier;                /* all threads wait for each other before it */
    uint16_t n_groups;               /* HEADS: key heads */
    uint32_t source_op;              /* CONVERT: op of the first use of what the buffer holds */
    uint8_t  part_buffer[BT_LINEAR_PARTS_MAX];     /* linear: where each part's activations are */
} bt_cpu_stage;

typedef struct {
    uint32_t      n_stages, capacity;
    bt_cpu_stage *stages;
    uint32_t     *first_stage;       /* [n_ops + 1] of each op */
    bool          own[BT_TAPE_SLOTS_MAX + 1];      /* slots that every thread has for itself */
    uint64_t      own_bytes;         /* scratch of one thread */
    uint64_t      own_at[BT_TAPE_SLOTS_MAX + 1], own_acts_at[BT_CPU_FORMS_MAX];
} bt_cpu_list;

typedef struct {
    bt_weight frequencies, long_frequencies;
    float     magnitude;
    uint64_t  at;                    /* [n_rows][2][n_half] in shared scratch */
    uint32_t  n_half, stride;        /* floats */
} bt_cpu_angles;

/* The most that any op of a tape takes: bytes of a converted row, columns of a row in between,
 * and in every thread's own scratch. */
typedef struct {
    uint64_t act_bytes, temp_cols, attention_floats, scan_floats, expert_bytes;
} bt_cpu_needs;

static inline void bt_device_cpu_need(uint64_t *most, uint64_t n)
{
    *most = *most > n ? *most : n;
}

typedef struct {
    const bt_tape *tape;             /* may be gone; compare ids */
    uint64_t    tape_id;
    uint32_t    n_rows_max, n_logit_rows_max;
    uint64_t    slot_at[BT_TAPE_SLOTS_MAX + 1];    /* bytes in shared scratch */
    uint32_t    slot_stride[BT_TAPE_SLOTS_MAX + 1];/* floats, both lists */
    uint64_t    acts_at[BT_CPU_FORMS_MAX];
    uint64_t    act_stride;          /* bytes of a row in every buffer */
    uint64_t    shared_bytes;
    uint64_t    temp_at, attention_at;             /* in every thread's own scratch, after slots */
    uint64_t    own_bytes;           /* of the larger list */
    bt_cpu_angles angles[BT_CPU_ANGLES_MAX];
    uint32_t    n_angles;
    uint32_t    n_vocab;             /* tokens below it have a row in every table */
    uint32_t    n_layers;            /* layers with K and V, highest + 1 */
    uint32_t    k_dim[BT_LAYERS_MAX], v_dim[BT_LAYERS_MAX];
    uint32_t    n_state_layers;      /* layers with a state, highest + 1 */
    bt_state_layer state[BT_LAYERS_MAX];           /* shapes; offsets are the step's */
    uint64_t    scan_at, experts_at; /* in every thread's own scratch */
    bt_cpu_list few, many;
    atomic_uint *next;               /* [n_stages of the longer list] counters of TASKS */
} bt_cpu_plan;

/* ---- the device ---- */

typedef struct {
    bt_device             base;      /* first: bt_device * is cast to this */
    const bt_cpu_kernels *kernels;
    bt_team              *team;
    uint32_t              n_threads, n_threads_batch;
    bool                  repack;
    bt_cpu_weight        *weights;   /* number id - 1 */
    uint32_t              n_weights, weights_capacity;
    bt_cpu_store          store;     /* of packed weights */
    bt_cpu_region         buffers[BT_CPU_BUFFERS_MAX];         /* number id - 1 */
    bt_cpu_plan          *plans[BT_CPU_PLANS_MAX];
    uint32_t              n_plans;
    bt_cpu_region         shared, own;             /* scratch; own: one part per thread */
    uint64_t              own_stride;
    const bt_cpu_plan    *last_plan; /* of the last run, for read_rows */
    bool                  last_few;
} bt_cpu_device;

/* Makes the plan of `t`; scratch offsets for n_rows and n_logit_rows. */
bt_status bt_device_cpu_plan_create(const bt_cpu_device *d, const bt_tape *t,
                                    bt_cpu_plan **ret_plan, bt_error *err);
bt_status bt_device_cpu_plan_size(const bt_cpu_device *d, bt_cpu_plan *p, uint32_t n_rows,
                                  uint32_t n_logit_rows, bt_error *err);
void      bt_device_cpu_plan_destroy(bt_cpu_plan *p);

bt_status bt_device_cpu_weight_make(bt_cpu_device *d, const bt_weight_source *s,
                                    bt_cpu_weight *ret_weight, bt_error *err);
/* One expert's matrix; borrows the weight. */
bt_cpu_matrix bt_device_cpu_weight_slice(const bt_cpu_weight *w, uint32_t slice);

static inline const bt_cpu_weight *bt_device_cpu_weight_of(const bt_cpu_device *d, bt_weight w)
{
    return &d->weights[w.id - 1];
}

/* Bytes up to the next cache line. */
static inline uint64_t bt_device_cpu_line(uint64_t bytes)
{
    return (bytes + 63) & ~(uint64_t)63;
}

/* ---- running ---- */

/* What the threads of one run share, and one thread's view of it. */
typedef struct {
    bt_cpu_device     *device;
    const bt_cpu_plan *plan;
    const bt_cpu_list *list;
    const bt_step     *step;
    uint32_t           op_first, op_last;
    bool               few;
} bt_cpu_walk;

typedef struct {
    const bt_cpu_walk *walk;
    uint32_t           index, n_threads;
    char              *own;          /* this thread's scratch */
} bt_cpu_worker;

typedef struct { uint32_t first, last; } bt_cpu_range;

/* Scratch rows as this thread sees them, and how many there are. */
static inline float *bt_device_cpu_rows(const bt_cpu_worker *w, bt_rows r)
{
    const bt_cpu_plan *p = w->walk->plan;
    char *base = w->walk->few && w->walk->list->own[r.slot]
                 ? w->own + w->walk->list->own_at[r.slot]
                 : (char *)w->walk->device->shared.base + p->slot_at[r.slot];
    return (float *)(void *)base + r.column;
}

static inline size_t bt_device_cpu_stride(const bt_cpu_worker *w, bt_rows r)
{
    return w->walk->plan->slot_stride[r.slot];
}

static inline uint32_t bt_device_cpu_row_count(const bt_cpu_worker *w, bt_rows r)
{
    return r.picked ? w->walk->step->n_logit_rows : w->walk->step->n_rows;
}

/* The step row of scratch row `row`. */
static inline uint32_t bt_device_cpu_step_row(const bt_cpu_worker *w, bool picked, uint32_t row)
{
    return picked ? w->walk->step->logit_rows[row] : row;
}

/* Part `index` of n things in n_parts nearly equal runs. */
static inline bt_cpu_range bt_device_cpu_part(uint32_t n, uint32_t index, uint32_t n_parts)
{
    return (bt_cpu_range){ (uint32_t)((uint64_t)n * index / n_parts),
                           (uint32_t)((uint64_t)n * (index + 1) / n_parts) };
}

/* Stages that are no op: the angles of all rows, and activations in the form that weights want. */
void bt_device_cpu_run_angles(const bt_cpu_worker *w, const bt_cpu_stage *s);
void bt_device_cpu_run_convert(const bt_cpu_worker *w, const bt_cpu_stage *s,
                               const bt_op_linear *o);
/* The rotation's number in the plan; -1: none yet. */
int  bt_device_cpu_angles_of(const bt_cpu_plan *p, const bt_op_rope *o);

/* What the step names exists and fits the plan. */
bt_status bt_device_cpu_check_step(const bt_cpu_device *d, const bt_cpu_plan *p, const bt_step *s,
                                   bt_error *err);
/* Walks ops [op_first, op_last) with the team, after checking the step. */
bt_status bt_device_cpu_run(bt_cpu_device *d, const bt_cpu_plan *p, const bt_step *s,
                            uint32_t op_first, uint32_t op_last, bt_error *err);

#endif
