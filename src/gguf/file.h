/* gguf/file.h - the inside of an open file, for the .c files of this room only. */
#ifndef BT_GGUF_FILE_H
#define BT_GGUF_FILE_H

#include <time.h>

#include "base/bytes.h"
#include "gguf/gguf.h"

/* Bytes of the file, mapped (unmapped by done) or borrowed. */
typedef struct {
    const uint8_t *data;
    size_t         size;
    bool           mapped;
    int            fd;                 /* open while mapped: a path may name another file by then */
    time_t         time_s;             /* of the last change, when it was mapped */
    long           time_ns;
} bt_gguf_map;

#ifdef __APPLE__
#define BT_GGUF_STAT_NS(about) ((about).st_mtimespec.tv_nsec)
#else
#define BT_GGUF_STAT_NS(about) ((about).st_mtim.tv_nsec)
#endif

/* Text -> position in a table, by open addressing. The seed is random, so that nobody can write a
 * file whose names all meet in one slot. */
typedef struct {
    struct { uint32_t hash, number; } *slots;     /* number: position + 1; 0: free */
    uint32_t mask;
    uint64_t seed;
} bt_gguf_index;

/* The text of entry `i` of `table`. */
typedef bt_gguf_string bt_gguf_index_text(const void *table, uint32_t i);

struct bt_gguf {
    char           *path;
    const char     *name;          /* for messages: the end of path */
    bt_gguf_map     map;
    uint32_t        version, alignment;
    bt_gguf_pair   *pairs;
    uint32_t        n_pairs;
    bt_gguf_index   keys;
    bt_gguf_tensor *tensors;       /* in the first part: those of all parts */
    uint32_t        n_tensors;
    bt_gguf_index   names;
    bt_gguf       **others;        /* parts 1.. of a split file */
    uint32_t        n_others;
};

BT_MUST_CHECK bt_status bt_gguf_map_open(const char *path, bt_gguf_map *ret_map, bt_error *err);
void bt_gguf_map_done(bt_gguf_map *map);

/* Mappings that the handler of bt_gguf_guard_start knows by name; `path` is borrowed until
 * removed. Beyond 64 they have none. */
void bt_gguf_guard_add(const bt_gguf_map *map, const char *path);
void bt_gguf_guard_remove(const bt_gguf_map *map);

/* Room for n entries; `table` is passed to text_of with every call. */
BT_MUST_CHECK bt_status bt_gguf_index_init(bt_gguf_index *x, uint32_t n);
void bt_gguf_index_done(bt_gguf_index *x);
/* Adds entry `i`; false if its text is there already. */
bool bt_gguf_index_add(bt_gguf_index *x, bt_gguf_index_text *text_of, const void *table,
                       uint32_t i);
/* The position of `text`, or UINT32_MAX. */
uint32_t bt_gguf_index_find(const bt_gguf_index *x, bt_gguf_index_text *text_of, const void *table,
                            bt_gguf_string text);

/* One file without its other parts, tensors not yet indexed; from a path, or from a map, which it
 * takes also on failure. */
BT_MUST_CHECK bt_status bt_gguf_part_open(const char *path, bt_gguf **ret_file, bt_error *err);
BT_MUST_CHECK bt_status bt_gguf_part_read(const char *path, bt_gguf_map map, bt_gguf **ret_file,
                                          bt_error *err);
/* Opens and adds the other parts of `first`, if it is part of a split file. */
BT_MUST_CHECK bt_status bt_gguf_parts_join(bt_gguf *first, bt_error *err);

/* Reads the counts, the keys and, with alignment known, the tensor records at `r`. */
BT_MUST_CHECK bt_status bt_gguf_header_read(bt_gguf *file, bt_error *err);
BT_MUST_CHECK bt_status bt_gguf_infos_read(bt_gguf *file, bt_reader *r, uint32_t n, bt_error *err);
BT_MUST_CHECK bt_status bt_gguf_names_index(bt_gguf *file, bt_error *err);

/* Takes one string of 1 .. max bytes without control characters, called `what` in messages. */
BT_MUST_CHECK bt_status bt_gguf_name_read(const bt_gguf *file, bt_reader *r, const char *what,
                                          uint32_t max, bt_gguf_string *ret, bt_error *err);

/* Fails: the file ends inside of what is being read. */
bt_status bt_gguf_cut_short(const bt_gguf *file, const bt_reader *r, const char *what,
                            bt_error *err);

/* The string of a value that is one (pair->type or pair->element, first element). */
bt_gguf_string bt_gguf_string_at(const uint8_t *data);

enum { BT_GGUF_SHOWN_MAX = 72 };
/* `text` fit for a message: short, everything unprintable escaped. Returns `to`. */
const char *bt_gguf_show(bt_gguf_string text, char to[BT_GGUF_SHOWN_MAX]);

/* Bytes of a scalar; 0 for strings and arrays. */
uint32_t bt_gguf_value_bytes(bt_gguf_value_type type);

#endif
