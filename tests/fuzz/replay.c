/* Runs a fuzz target without libFuzzer: the empty input, every file of a corpus, and mutations.
 *
 *     TARGET CORPUS [MUTATIONS [ONLY | all]]
 *
 * Mutation k depends on k and the corpus alone, so a failure names its number and
 * `TARGET CORPUS 0 k` runs that one again. Stops after five seconds even if some are left, so that
 * a slow target under a sanitizer stays a cheap test; it says how many it ran. `all`: it does not.
 */
#include <dirent.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FILES_MAX = 4096, INPUT_BYTES_MAX = 1 << 20, SECONDS_MAX = 5 };

typedef struct {
    char    *name;
    uint8_t *data;
    size_t   size;
} input;

static input    files[FILES_MAX];
static size_t   n_files;
static char     current[300] = "the empty input";      /* what is being run */
static uint64_t state;

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t draw(void)
{
    uint64_t z = (state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static size_t below(size_t n)
{
    return n ? (size_t)(draw() % n) : 0;
}

/* ---- what went wrong where ---- */

static void tell(void)
{
    static const char intro[] = "\nwhile running ";
    ssize_t n = write(2, intro, sizeof intro - 1);
    n += write(2, current, strlen(current));
    n += write(2, "\n", 1);
    (void)n;
}

static void on_signal(int number)
{
    tell();
    signal(number, SIG_DFL);
    raise(number);
}

/* Sanitizers end the process their own way; this is there only with one of them. */
extern void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static void watch(void)
{
    if (__sanitizer_set_death_callback) {
        __sanitizer_set_death_callback(tell);
    } else {
        signal(SIGSEGV, on_signal);
        signal(SIGBUS, on_signal);
        signal(SIGFPE, on_signal);
        signal(SIGILL, on_signal);
    }
    signal(SIGABRT, on_signal);
}

/* ---- the corpus ---- */

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void read_file(const char *folder, const char *name)
{
    char path[1024];
    struct stat about;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (stat(path, &about) != 0 || !S_ISREG(about.st_mode)) {
        return;
    }
    if (n_files == FILES_MAX || about.st_size > INPUT_BYTES_MAX) {
        fprintf(stderr, "%s: more files or bytes than a corpus for tests should have\n", path);
        exit(1);
    }
    input *in = &files[n_files++];
    FILE *f = fopen(path, "rb");
    in->name = strdup(name);
    in->size = (size_t)about.st_size;
    in->data = malloc(in->size + 1);
    if (!f || !in->name || !in->data || fread(in->data, 1, in->size, f) != in->size) {
        die(path);
    }
    fclose(f);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const input *)a)->name, ((const input *)b)->name);
}

static void read_corpus(const char *folder)
{
    DIR *d = opendir(folder);
    if (!d) {
        die(folder);
    }
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        read_file(folder, e->d_name);
    }
    closedir(d);
    if (n_files == 0) {
        fprintf(stderr, "%s: no corpus\n", folder);
        exit(1);
    }
    qsort(files, n_files, sizeof *files, by_name);       /* the order of a folder is any */
}

/* In a block of exactly `size` bytes, so that a sanitizer sees one byte too many. */
static void run(const uint8_t *data, size_t size)
{
    uint8_t *exact = malloc(size ? size : 1);
    if (!exact) {
        die("malloc");
    }
    if (size) {
        memcpy(exact, data, size);
    }
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

/* ---- mutations, in place: `in` has room for INPUT_BYTES_MAX ---- */

static void put_number(input *in)
{
    static const uint64_t telling[] = {
        0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256, 1023, 1024, 32767, 32768,
        65535, 65536, INT32_MAX, UINT64_C(1) << 31, UINT32_MAX, UINT64_C(1) << 32, INT64_MAX,
        UINT64_C(1) << 63, UINT64_MAX - 7, UINT64_MAX,
    };
    const size_t width = (size_t)1 << below(4);
    if (in->size < width) {
        return;
    }
    const uint64_t value = below(4) ? telling[below(sizeof telling / sizeof *telling)] : draw();
    uint8_t *at = in->data + below(in->size - width + 1);
    for (size_t i = 0; i < width; i++) {
        at[i] = (uint8_t)(value >> (8 * i));
    }
}

static void insert(input *in, const uint8_t *from, size_t n)
{
    if (n > INPUT_BYTES_MAX - in->size) {
        return;
    }
    const size_t at = below(in->size + 1);
    memmove(in->data + at + n, in->data + at, in->size - at);
    memcpy(in->data + at, from, n);
    in->size += n;
}

static void cut(input *in)
{
    if (in->size == 0) {
        return;
    }
    const size_t at = below(in->size);
    const size_t n = below(4) ? 1 + below(8) : 1 + below(in->size);
    const size_t gone = n < in->size - at ? n : in->size - at;
    memmove(in->data + at, in->data + at + gone, in->size - at - gone);
    in->size -= gone;
}

/* A piece of itself or of another file, moved somewhere else. */
static void splice(input *in)
{
    static uint8_t piece[4096];
    const bool itself = below(2);
    const uint8_t *data = itself ? in->data : files[below(n_files)].data;
    size_t size = in->size;
    if (!itself) {
        const input *other = &files[below(n_files)];
        data = other->data;
        size = other->size;
    }
    if (size == 0) {
        return;
    }
    const size_t at = below(size);
    size_t n = 1 + below(size - at);
    n = n < sizeof piece ? n : sizeof piece;
    memcpy(piece, data + at, n);
    insert(in, piece, n);
}

static void mutate(input *in)
{
    uint8_t bytes[8];
    const uint64_t noise = draw();
    switch (below(8)) {
    case 0:
    case 1:
        if (in->size) {
            in->data[below(in->size)] ^= (uint8_t)(1u << below(8));
        }
        break;
    case 2:
        if (in->size) {
            in->data[below(in->size)] = (uint8_t)draw();
        }
        break;
    case 3:
    case 4:
        put_number(in);
        break;
    case 5:
        cut(in);
        break;
    case 6:
        memcpy(bytes, &noise, sizeof bytes);
        insert(in, bytes, 1 + below(sizeof bytes));
        break;
    default:
        splice(in);
        break;
    }
}

static void run_mutation(uint64_t k, uint8_t *room)
{
    state = k * UINT64_C(0x2545f4914f6cdd1d);
    const input *from = &files[below(n_files)];
    input in = { .data = room, .size = from->size };
    memcpy(room, from->data, from->size);
    for (size_t n = 1 + below(4); n > 0; n--) {
        mutate(&in);
    }
    snprintf(current, sizeof current, "mutation %" PRIu64 " (of %s, %zu bytes)", k, from->name,
             in.size);
    run(in.data, in.size);
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 4) {
        fprintf(stderr, "usage: %s CORPUS [MUTATIONS [ONLY | all]]\n", argv[0]);
        return 2;
    }
    watch();
    read_corpus(argv[1]);
    const uint64_t n = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000;
    uint8_t *room = malloc(INPUT_BYTES_MAX);
    if (!room) {
        die("malloc");
    }
    const bool all = argc > 3 && strcmp(argv[3], "all") == 0;
    if (argc > 3 && !all) {
        run_mutation(strtoull(argv[3], NULL, 10), room);
        free(room);
        return 0;
    }
    run(NULL, 0);
    for (size_t i = 0; i < n_files; i++) {
        snprintf(current, sizeof current, "file %s", files[i].name);
        run(files[i].data, files[i].size);
    }
    const time_t start = time(NULL);
    uint64_t k = 0;
    while (k < n && (all || time(NULL) - start < SECONDS_MAX)) {
        run_mutation(k++, room);
    }
    printf("%zu files, %" PRIu64 " of %" PRIu64 " mutations\n", n_files, k, n);
    free(room);
    for (size_t i = 0; i < n_files; i++) {
        free(files[i].name);
        free(files[i].data);
    }
    return 0;
}
