/* Models in several files: PREFIX-00001-of-00003.gguf and so on, in one folder.
 *
 * Keys come from the first part only; each part has its own alignment and data. The others stay
 * open beside the first, which takes over their tensors.
 */
#include "gguf/file.h"

#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/memory.h"

enum { SUFFIX_MAX = 48 };      /* "-NNNNN-of-NNNNN.gguf" with room for ten digits each */

static void suffix_of(char to[SUFFIX_MAX], uint32_t part, uint32_t n_parts)
{
    snprintf(to, SUFFIX_MAX, "-%05u-of-%05u.gguf", part + 1, n_parts);
}

/* Without the suffix of the first part, the path is the prefix of all of them. */
static bt_status prefix_find(const bt_gguf *first, uint32_t n_parts, size_t *ret_size,
                             bt_error *err)
{
    char suffix[SUFFIX_MAX];
    suffix_of(suffix, 0, n_parts);
    const size_t size = strlen(first->path), n = strlen(suffix);
    if (size <= n || strcmp(first->path + size - n, suffix) != 0) {
        return bt_fail(err, BT_E_BADFILE, "'%s' is the first of %u parts, so its name must end in "
                       "'%s' for the others to be found", first->name, n_parts, suffix);
    }
    *ret_size = size - n;
    return BT_OK;
}

/* The number a part says it is, held against where it was found. */
static bt_status part_check(const bt_gguf *file, uint32_t part, uint32_t n_parts, bt_error *err)
{
    uint32_t number, count;
    BT_TRY(bt_gguf_get_u32(file, "split.no", &number, err));
    BT_TRY(bt_gguf_get_u32(file, "split.count", &count, err));
    if (count != n_parts) {
        return bt_fail(err, BT_E_BADFILE, "'%s' says it belongs to %u parts, the first part says "
                       "%u; they are of different models", file->name, count, n_parts);
    }
    if (number == part) {
        return BT_OK;
    }
    if (part == 0) {
        char suffix[SUFFIX_MAX];
        suffix_of(suffix, 0, n_parts);
        return bt_fail(err, BT_E_BADFILE, "'%s' is part %u of %u; open the first, whose name ends "
                       "in '%s'", file->name, number + 1, n_parts, suffix);
    }
    return bt_fail(err, BT_E_BADFILE, "'%s' is part %u, but its name says part %u", file->name,
                   number + 1, part + 1);
}

static bt_status other_open(bt_gguf *first, size_t prefix_size, uint32_t part, uint32_t n_parts,
                            bt_error *err)
{
    const size_t capacity = prefix_size + SUFFIX_MAX;
    char *path = bt_alloc(BT_MEM_gguf, capacity);
    if (!path) {
        return bt_fail_nomem(err, capacity, "the path of a part");
    }
    memcpy(path, first->path, prefix_size);
    suffix_of(path + prefix_size, part, n_parts);
    bt_gguf *other;
    const bt_status status = bt_gguf_part_open(path, &other, err);
    bt_free(path);
    BT_TRY(status);
    first->others[first->n_others++] = other;
    return part_check(other, part, n_parts, err);
}

/* One table for the tensors of all parts. */
static bt_status tensors_join(bt_gguf *first, bt_error *err)
{
    uint64_t n = first->n_tensors;
    for (uint32_t i = 0; i < first->n_others; i++) {
        n += first->others[i]->n_tensors;          /* at most SPLITS_MAX * TENSORS_MAX: 2^30 */
    }
    uint32_t announced;
    BT_TRY(bt_gguf_get_u32(first, "split.tensors.count", &announced, err));
    if (n != announced || n > BT_GGUF_TENSORS_MAX) {
        return bt_fail(err, BT_E_BADFILE, "'%s': its parts hold %u tensors, 'split.tensors.count' "
                       "says %u (at most %u)", first->name, (uint32_t)n, announced,
                       BT_GGUF_TENSORS_MAX);
    }
    bt_gguf_tensor *all = bt_realloc(BT_MEM_gguf, first->tensors, (size_t)n * sizeof *all);
    if (!all) {
        return bt_fail_nomem(err, (size_t)n * sizeof *all, "the tensors of all parts");
    }
    first->tensors = all;
    for (uint32_t i = 0; i < first->n_others; i++) {
        bt_gguf *other = first->others[i];
        for (uint32_t k = 0; k < other->n_tensors; k++) {
            all[first->n_tensors] = other->tensors[k];
            all[first->n_tensors++].part = i + 1;
        }
        bt_free(other->tensors);
        other->tensors = NULL;
        other->n_tensors = 0;
    }
    return BT_OK;
}

bt_status bt_gguf_parts_join(bt_gguf *first, bt_error *err)
{
    uint32_t n_parts;
    BT_TRY(bt_gguf_opt_u32(first, "split.count", 1, &n_parts, err));
    if (n_parts <= 1) {
        return BT_OK;
    }
    if (n_parts > BT_GGUF_SPLITS_MAX) {
        return bt_fail(err, BT_E_BADFILE, "'%s' is one of %u parts; at most %u can be read",
                       first->name, n_parts, BT_GGUF_SPLITS_MAX);
    }
    BT_TRY(part_check(first, 0, n_parts, err));
    if (!first->map.mapped) {
        return bt_fail(err, BT_E_UNSUPPORTED, "'%s' is the first of %u parts; only files can be "
                       "joined, not bytes in memory", first->name, n_parts);
    }
    size_t prefix_size = 0;
    BT_TRY(prefix_find(first, n_parts, &prefix_size, err));
    first->others = bt_alloc_zero(BT_MEM_gguf, n_parts - 1, sizeof(bt_gguf *));
    if (!first->others) {
        return bt_fail_nomem(err, (n_parts - 1) * sizeof(bt_gguf *), "the parts of a model file");
    }
    for (uint32_t part = 1; part < n_parts; part++) {
        BT_TRY(other_open(first, prefix_size, part, n_parts, err));
    }
    return tensors_join(first, err);
}
