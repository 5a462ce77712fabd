/* A team of threads that all run one function and share out its loops.

   Work is handed out piece by piece, so a thread whose core is busy with another program takes fewer pieces. Between
   two steps the threads first spin, since the next step usually comes soon, and then sleep. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { SPINS = 4000, STACK_BYTES = 1 << 20, SHARES = 32 };

static struct {
    pthread_mutex_t running, lock;
    pthread_cond_t begins;
    int size;                  /* threads, with the caller's; 0 before the first run */
    void (*work)(void *);
    void *of;
    /* In three cache lines: the next piece; threads that wait at the end of a loop; runs begun and loops ended (after
       2**32 they begin again). */
    _Alignas(64) atomic_int piece;
    _Alignas(64) atomic_int arrived;
    _Alignas(64) atomic_uint run, passed;
} team = {.running = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER, .begins = PTHREAD_COND_INITIALIZER};

static inline void spin(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Wait until all threads are here. Every loop over pieces ends with it. */
static void meet(void) {
    unsigned passed = atomic_load(&team.passed);
    if (atomic_fetch_add(&team.arrived, 1) == team.size - 1) {
        atomic_store(&team.arrived, 0);
        atomic_store(&team.piece, 0);
        atomic_store(&team.passed, passed + 1);
    } else
        for (int i = 0; atomic_load(&team.passed) == passed; i++) i < SPINS ? spin() : (void)sched_yield();
}

/* FOR_PIECES(i, count) { … } meet(); of very many, a thread takes several at once. */
#define FOR_PIECES(i, count) \
    for (int i##_all = (count), i##_some = 1 + i##_all / (SHARES * team.size), i##_first; \
         (i##_first = atomic_fetch_add(&team.piece, i##_some)) < i##_all;) \
        for (int i = i##_first; i < i##_first + i##_some && i < i##_all; i++)

static void *take_part(void *unused) {
    for (unsigned seen = 0;; seen++) {
        for (int i = 0; i < SPINS && atomic_load(&team.run) == seen; i++) spin();
        pthread_mutex_lock(&team.lock);
        while (atomic_load(&team.run) == seen) pthread_cond_wait(&team.begins, &team.lock);
        pthread_mutex_unlock(&team.lock);
        team.work(team.of);
    }
    return unused;
}

/* Run ``work(of)`` in all threads. After its last ``meet`` it must not touch anything shared. The first call decides how
   many threads there are. */
static void run_in_team(int num_threads, void (*work)(void *), void *of) {
    pthread_mutex_lock(&team.running);
    if (!team.size) {
        pthread_attr_t small_stack;
        pthread_t thread;
        pthread_attr_init(&small_stack);
        pthread_attr_setstacksize(&small_stack, STACK_BYTES);
        pthread_attr_setdetachstate(&small_stack, PTHREAD_CREATE_DETACHED);
        for (team.size = 1; team.size < num_threads; team.size++)
            if (pthread_create(&thread, &small_stack, take_part, 0)) break; /* fewer threads do as well */
        pthread_attr_destroy(&small_stack);
    }
    team.work = work;
    team.of = of;
    pthread_mutex_lock(&team.lock);
    atomic_fetch_add(&team.run, 1);
    pthread_cond_broadcast(&team.begins);
    pthread_mutex_unlock(&team.lock);
    work(of);
    pthread_mutex_unlock(&team.running);
}
