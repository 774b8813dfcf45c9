/* gguf/gguf.h: damaged files. Every truncation, every value of every header byte, every failing
 * allocation: a clear error, or a file of which every pointer can be followed. */
#include "unit/gguf/sample.h"

#include "unit/gguf/walk.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#endif

/* The largest single allocation, where a sanitizer can tell. */
static size_t largest;
#ifdef WITH_ASAN
/* From the sanitizer's runtime; not every compiler ships its header. */
extern int __sanitizer_install_malloc_and_free_hooks(
        void (*on_malloc)(const volatile void *p, size_t size),
        void (*on_free)(const volatile void *p));

static void saw_malloc(const volatile void *p, size_t size)
{
    (void)p;
    largest = size > largest ? size : largest;
}

static void saw_free(const volatile void *p)
{
    (void)p;
}
#endif

/* A record of n bytes at least (14 for a key, 25 for a tensor) has an entry in a table (at most 160
 * bytes) and in an index of less than 4 slots of 8 bytes: no block is larger than 7 times the
 * file, apart from a path and the smallest index. */
static size_t largest_allowed(size_t file_size)
{
    return file_size * 7 + 256;
}

typedef enum { REFUSED, OPENED } outcome;

static outcome try_open(const uint8_t *bytes, size_t size)
{
    bt_gguf *file = NULL;
    bt_error err = { .text = "" };
    largest = 0;
    const bt_status status = bt_gguf_open_memory(bytes, size, "s.gguf", &file, &err);
    assert_true(largest <= largest_allowed(size));
    if (status == BT_OK) {
        walk_file(file);
        bt_gguf_close(file);
        return OPENED;
    }
    assert_null(file);
    assert_int_equal(status, BT_E_BADFILE);
    assert_int_equal(err.status, status);
    assert_true(strlen(err.text) > 20 && strstr(err.text, "s.gguf"));
    for (const char *c = err.text; *c; c++) {
        assert_true(*c >= 0x20 && *c < 0x7f);
    }
    return REFUSED;
}

/* Bytes of the last three keys. */
enum { LAST_KEYS = 140 };

/* Keys only: the last value ends where the file ends. */
static uint8_t *sample_vocabulary(size_t *ret_size)
{
    bt_gguf_writer w;
    bt_gguf_writer_init(&w, 3, 32);
    sample_keys(&w);
    return sample_bytes(&w, ret_size);
}

/* Cut before `end`, where what matters ends. */
static void try_truncations(const uint8_t *bytes, size_t size, size_t end)
{
    for (size_t n = 0; n < size; n++) {
        /* A block of its own, so that one byte too many is seen. */
        uint8_t *cut = malloc(n ? n : 1);
        memcpy(cut, bytes, n);
        assert_int_equal(try_open(cut, n), n < end ? REFUSED : OPENED);
        free(cut);
    }
}

static void every_truncation_is_noticed(void **state)
{
    (void)state;
    size_t size;
    uint8_t *bytes = sample_file(3, 32, &size);
    try_truncations(bytes, size, size - 28);       /* the last payload has 68 bytes, padded to 96 */
    free(bytes);
    bytes = sample_vocabulary(&size);
    try_truncations(bytes, size, size);
    free(bytes);
}

static size_t header_size(const uint8_t *bytes, size_t size)
{
    bt_gguf *file;
    assert_int_equal(bt_gguf_open_memory(bytes, size, "s.gguf", &file, NULL), BT_OK);
    const size_t start = (size_t)((const uint8_t *)bt_gguf_tensor_at(file, 0)->data - bytes);
    bt_gguf_close(file);
    return start;
}

/* Bytes `begin` up to `end`. */
static void try_flips(uint8_t *bytes, size_t size, size_t begin, size_t end)
{
    unsigned counts[2] = { 0, 0 };
    for (size_t i = begin; i < end; i++) {
        const uint8_t right = bytes[i];
        for (unsigned wrong = 0; wrong < 256; wrong++) {
            bytes[i] = (uint8_t)wrong;
            counts[try_open(bytes, size)] += wrong != right;
        }
        bytes[i] = right;
    }
    const size_t n = (end - begin) * 255;
    assert_int_equal(counts[REFUSED] + counts[OPENED], n);
    /* Both happen often: texts may hold anything, structure may not. */
    assert_true(counts[REFUSED] > n / 4 && counts[OPENED] > n / 8);
}

static void every_value_of_every_header_byte_is_survived(void **state)
{
    (void)state;
    size_t size;
    uint8_t *bytes = sample_file(3, 32, &size);
    try_flips(bytes, size, 0, header_size(bytes, size));
    free(bytes);
    bytes = sample_vocabulary(&size);
    try_flips(bytes, size, size - LAST_KEYS, size);
    free(bytes);
}

/* The same for numbers that take several bytes: extreme values at every place. */
static void try_extremes(uint8_t *bytes, size_t size, size_t begin, size_t end)
{
    static const uint64_t values[] = {
        0, 1, UINT32_MAX, UINT64_C(1) << 32, INT64_MAX, UINT64_C(1) << 63, UINT64_MAX,
        UINT64_MAX - 31, UINT64_C(1) << 26, UINT64_C(1) << 61,
    };
    for (size_t i = begin; i + 8 <= end; i++) {
        uint8_t kept[8];
        memcpy(kept, bytes + i, sizeof kept);
        for (size_t k = 0; k < BT_LEN(values); k++) {
            for (size_t width = 4; width <= 8; width += 4) {
                for (size_t b = 0; b < width; b++) {
                    bytes[i + b] = (uint8_t)(values[k] >> (8 * b));
                }
                try_open(bytes, size);
                memcpy(bytes + i, kept, sizeof kept);
            }
        }
    }
}

static void extreme_numbers_anywhere_are_survived(void **state)
{
    (void)state;
    size_t size;
    uint8_t *bytes = sample_file(3, 32, &size);
    try_extremes(bytes, size, 4, header_size(bytes, size));
    free(bytes);
    bytes = sample_vocabulary(&size);
    try_extremes(bytes, size, size - LAST_KEYS, size);
    free(bytes);
}

static void running_out_of_memory_leaves_nothing_behind(void **state)
{
    (void)state;
    size_t size;
    uint8_t *bytes = sample_file(3, 32, &size);
    uint64_t n = 1;
    for (;; n++) {
        bt_gguf *file = NULL;
        bt_error err = { .text = "" };
        bt_memory_fail_after(n);
        const bt_status status = bt_gguf_open_memory(bytes, size, "s.gguf", &file, &err);
        bt_memory_fail_after(0);
        if (status == BT_OK) {
            bt_gguf_close(file);
            break;
        }
        assert_int_equal(status, BT_E_NOMEM);
        assert_null(file);
        assert_non_null(strstr(err.text, "out of memory"));
    }
    /* File, path, keys and their index, tensors and theirs; no more. */
    assert_int_equal(n, 7);
    free(bytes);
}

/* 65,536 keys and as many tensors: with comparisons of all with all this would take minutes. */
static void many_names_take_little_time(void **state)
{
    (void)state;
    enum { MANY = 65536 };
    bt_gguf_writer w;
    bt_gguf_writer_init(&w, 3, 8);                 /* one key already: the alignment */
    char name[16];
    for (uint32_t i = 1; i < MANY; i++) {
        snprintf(name, sizeof name, "k%u", i);
        bt_gguf_writer_put_integer(&w, name, BT_GGUF_U8, i);
        bt_gguf_writer_put_tensor(&w, &(bt_gguf_writer_tensor){
                .name = name, .type = BT_TYPE_I8, .n_dims = 1, .ne = { 1 },
                .data = "x", .size = 1 });
    }
    size_t size;
    uint8_t *bytes = sample_bytes(&w, &size);
    bt_gguf *file;
    assert_int_equal(bt_gguf_open_memory(bytes, size, "s.gguf", &file, NULL), BT_OK);
    for (uint32_t i = 1; i < MANY; i++) {
        snprintf(name, sizeof name, "k%u", i);
        assert_ptr_equal(bt_gguf_find(file, name), bt_gguf_pair_at(file, i));
        assert_ptr_equal(bt_gguf_tensor_find(file, name), bt_gguf_tensor_at(file, i - 1));
    }
    bt_gguf_close(file);
    free(bytes);
}

int main(void)
{
#ifdef WITH_ASAN
    __sanitizer_install_malloc_and_free_hooks(saw_malloc, saw_free);
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_truncation_is_noticed),
        cmocka_unit_test(every_value_of_every_header_byte_is_survived),
        cmocka_unit_test(extreme_numbers_anywhere_are_survived),
        cmocka_unit_test(running_out_of_memory_leaves_nothing_behind),
        cmocka_unit_test(many_names_take_little_time),
    };
    return cmocka_run_group_tests_name("gguf/damage", tests, NULL, NULL);
}
