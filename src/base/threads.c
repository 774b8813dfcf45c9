/* Two meeting points make a team: the start of a run (workers wait for a new generation) and the
 * barrier (all wait for the last to arrive). Waiting spins first, because ops of a small model
 * are microseconds apart, then sleeps on a condition variable, because two processes may share
 * cores. */
#include "base/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/check.h"
#include "base/memory.h"

enum {
    SPIN_ROUNDS = 2000,       /* about 20 us of pause instructions */
    CACHE_LINE = 64
};

typedef struct {
    bt_team  *team;
    uint32_t  index;
    pthread_t thread;
} worker;

struct bt_team {
    uint32_t size;
    worker  *workers;                       /* [size], number 0 unused */
    /* What the current run does; written by the owner before `generation` is released. */
    bt_team_fn *fn;
    void       *context;
    uint32_t    n_active;
    _Alignas(CACHE_LINE) atomic_uint generation;   /* a run or a quit; releases the fields above */
    _Alignas(CACHE_LINE) atomic_uint arrived;      /* at the barrier of this phase */
    _Alignas(CACHE_LINE) atomic_uint phase;        /* of the barrier */
    _Alignas(CACHE_LINE) atomic_uint sleepers;     /* threads asleep on `wake` */
    pthread_mutex_t lock;                   /* guards only the sleep on `wake` */
    pthread_cond_t  wake;
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Returns once *word is no longer `old`. Sequentially consistent on the sleeping path: the waiter
 * announces itself before it looks again, the waker changes the word before it looks for sleepers,
 * so one of the two sees the other. */
static void wait_while(bt_team *team, atomic_uint *word, unsigned old)
{
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != old) {
            return;
        }
        relax();
    }
    pthread_mutex_lock(&team->lock);
    atomic_fetch_add(&team->sleepers, 1);
    while (atomic_load(word) == old) {
        pthread_cond_wait(&team->wake, &team->lock);
    }
    atomic_fetch_sub(&team->sleepers, 1);
    pthread_mutex_unlock(&team->lock);
}

static void change(bt_team *team, atomic_uint *word, unsigned value)
{
    /* An exchange, not a store: the language orders either before the load below, but QEMU 7.2 (on
     * x86-64) lets aarch64's load-acquire overtake its store-release, and a sleeper was missed. */
    (void)atomic_exchange(word, value);
    if (atomic_load(&team->sleepers) != 0) {
        pthread_mutex_lock(&team->lock);
        pthread_cond_broadcast(&team->wake);
        pthread_mutex_unlock(&team->lock);
    }
}

void bt_team_barrier(bt_team *team)
{
    const unsigned n = team->n_active;
    if (n == 1) {
        return;
    }
    const unsigned phase = atomic_load_explicit(&team->phase, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) + 1 == n) {
        atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
        change(team, &team->phase, phase + 1);
    } else {
        wait_while(team, &team->phase, phase);
    }
}

/* The generation word carries the number of active threads in its low bits, so that a worker that
 * sits out a run reads nothing else of it; 0 active threads means quit. Fields of a run are read
 * by active workers only, and the owner cannot change them before these have met at its end. */
enum { ACTIVE_BITS = 12, ACTIVE_MASK = (1 << ACTIVE_BITS) - 1 };

static unsigned next_generation(unsigned generation, uint32_t n_active)
{
    return (((generation >> ACTIVE_BITS) + 1) << ACTIVE_BITS) | n_active;
}

static void *work(void *argument)
{
    const worker *self = argument;
    bt_team *team = self->team;
    unsigned seen = 0;
    for (;;) {
        wait_while(team, &team->generation, seen);
        seen = atomic_load_explicit(&team->generation, memory_order_acquire);
        const uint32_t n_active = seen & ACTIVE_MASK;
        if (n_active == 0) {
            return NULL;
        }
        if (self->index < n_active) {
            team->fn(team->context, self->index, n_active);
            bt_team_barrier(team);
        }
    }
}

static void start_generation(bt_team *team, uint32_t n_active)
{
    const unsigned now = atomic_load_explicit(&team->generation, memory_order_relaxed);
    change(team, &team->generation, next_generation(now, n_active));
}

static void stop_workers(bt_team *team, uint32_t n_started)
{
    start_generation(team, 0);
    for (uint32_t i = 1; i < n_started; i++) {
        pthread_join(team->workers[i].thread, NULL);
    }
}

static void release(bt_team *team)
{
    pthread_mutex_destroy(&team->lock);
    pthread_cond_destroy(&team->wake);
    bt_free(team->workers);
    bt_free_aligned(team);
}

bt_status bt_team_create(uint32_t n_threads_max, bt_team **ret_team, bt_error *err)
{
    BT_ASSERT(n_threads_max >= 1);
    if (n_threads_max > ACTIVE_MASK) {
        return bt_fail(err, BT_E_BADINPUT, "%u threads asked for, at most %d are supported",
                       n_threads_max, ACTIVE_MASK);
    }
    bt_team *team = bt_alloc_aligned(BT_MEM_base, CACHE_LINE, sizeof *team);
    worker *workers = bt_alloc_zero(BT_MEM_base, n_threads_max, sizeof *workers);
    if (!team || !workers) {
        bt_free_aligned(team);
        bt_free(workers);
        return bt_fail_nomem(err, n_threads_max * sizeof *workers, "a team of threads");
    }
    *team = (bt_team){ .size = n_threads_max, .workers = workers, .n_active = 1 };
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->wake, NULL);
    for (uint32_t i = 1; i < n_threads_max; i++) {
        workers[i] = (worker){ .team = team, .index = i };
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) {
            stop_workers(team, i);
            release(team);
            return bt_fail(err, BT_E_NOMEM, "could not start thread %u of %u", i + 1,
                           n_threads_max);
        }
    }
    *ret_team = team;
    return BT_OK;
}

void bt_team_destroy(bt_team *team)
{
    if (team) {
        stop_workers(team, team->size);
        release(team);
    }
}

uint32_t bt_team_size(const bt_team *team)
{
    return team->size;
}

void bt_team_run(bt_team *team, uint32_t n_threads, bt_team_fn *fn, void *context)
{
    const uint32_t n = n_threads < 1 ? 1 : n_threads > team->size ? team->size : n_threads;
    team->n_active = n;
    if (n == 1) {
        fn(context, 0, 1);
        return;
    }
    team->fn = fn;
    team->context = context;
    start_generation(team, n);
    fn(context, 0, n);
    bt_team_barrier(team);
}

uint32_t bt_cpu_count(void)
{
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        return (uint32_t)CPU_COUNT(&set);
    }
#endif
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 1;
}
