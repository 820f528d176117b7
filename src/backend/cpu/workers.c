/* A pool of threads for jobs of a few microseconds.
 *
 * A job is cut into one share a worker. Each worker has a mailbox on a cache line of its own; the caller writes
 * the job and a new number there, so one line travels. Whoever moves the mailbox from `posted` to `claimed` does
 * the share and answers by writing the number to `done`.
 *
 *     worker:  spin on mailbox ──50 us nothing──> sleep on its condition ──posted──> claim, work ──> spin ...
 *     caller:  post, do share 0, claim what nobody has begun, wait for the rest
 *
 * So a worker that another process keeps off its processor costs the job its help, not its progress, and the
 * caller never waits for a thread to wake. The job is read after a claim only, hence never late.
 *
 * A post must not slip between "nothing there" and "asleep": the worker says `is_asleep` before it looks
 * for the last time, the caller looks at `is_asleep` after it posted, both sequentially consistent, so at
 * least one of them sees the other. */
#include "backend/cpu/workers.h"

#include "backend/cpu/processors.h"
#include "base/memory.h"

#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { CACHE_LINE = 64, MAX_WORKERS = 512, SPIN_US = 50, SPINS_PER_LOOK = 64, SPINS_BEFORE_YIELD = 1024 };

typedef struct Worker {
    alignas(2 * CACHE_LINE) atomic_uint mailbox; /* even: the job of this number is posted; odd: claimed */
    atomic_bool     is_asleep;
    int             n_active; /* the job: written before it is posted, read after a claim */
    ParallelFn      fn;
    void           *arg;
    alignas(2 * CACHE_LINE) atomic_uint done; /* number of the newest job whose share is finished */
    alignas(2 * CACHE_LINE) Workers *pool;
    int             idx;
    bool            is_started;
    unsigned        job; /* the newest; the caller's */
    pthread_t       thread;
    pthread_mutex_t mutex;
    pthread_cond_t  wake;
} Worker;

struct Workers {
    int        n_workers, n_cpus;
    int       *cpus;  /* [n_cpus] to pin to; NULL: no pinning */
    atomic_bool is_stopping;
    void      *block;  /* what `worker` was cut from */
    Worker    *worker; /* [n_workers]; 0 is the caller and has no thread */
};

#if defined(__x86_64__) || defined(__i386__)
static inline void relax(void) { __builtin_ia32_pause(); }
#elif defined(__aarch64__)
static inline void relax(void) { __asm__ __volatile__("yield"); }
#else
static inline void relax(void) { }
#endif

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* ---- the worker's side ---- */

static bool is_posted(unsigned mail)
{
    return mail % 2 == 0;
}

/* By the worker or by the caller; one of them gets it. */
static bool claim(Worker *share, unsigned mail)
{
    return is_posted(mail) && atomic_compare_exchange_strong(&share->mailbox, &mail, mail + 1);
}

static void sleep_until_posted(Worker *self)
{
    pthread_mutex_lock(&self->mutex);
    atomic_store(&self->is_asleep, true);
    while (!is_posted(atomic_load(&self->mailbox))) pthread_cond_wait(&self->wake, &self->mutex);
    atomic_store(&self->is_asleep, false);
    pthread_mutex_unlock(&self->mutex);
}

/* Returns when something was posted; the caller may have claimed it by then. */
static void wait_for_post(Worker *self)
{
    int64_t give_up = now_us() + SPIN_US;
    do {
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            if (is_posted(atomic_load_explicit(&self->mailbox, memory_order_acquire))) return;
            relax();
        }
    } while (now_us() < give_up);
    sleep_until_posted(self);
}

static void pin_here(const Workers *w, int idx)
{
    if (!w->cpus) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(w->cpus[idx % w->n_cpus], &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set); /* the list was checked at start */
}

static void do_share(Worker *share, unsigned job)
{
    share->fn(share->arg, share->idx, share->n_active);
    atomic_store_explicit(&share->done, job, memory_order_release);
}

static void *worker_main(void *arg)
{
    Worker *self = arg;
    Workers *w = self->pool;
    numeric_mode_enter();
    pin_here(w, self->idx);
    for (;;) {
        wait_for_post(self);
        /* The mail first: who sees the last post, which has no job, also sees that this is the end. */
        unsigned mail = atomic_load_explicit(&self->mailbox, memory_order_acquire);
        if (atomic_load_explicit(&w->is_stopping, memory_order_relaxed)) return NULL;
        if (claim(self, mail)) do_share(self, mail);
    }
}

/* ---- the caller's side ---- */

static void post(Worker *to, int n, ParallelFn fn, void *arg)
{
    to->n_active = n;
    to->fn = fn;
    to->arg = arg;
    to->job = atomic_fetch_add(&to->mailbox, 1) + 1; /* from the claimed job to the next posted one */
    if (!atomic_load(&to->is_asleep)) return;
    pthread_mutex_lock(&to->mutex);
    pthread_cond_signal(&to->wake);
    pthread_mutex_unlock(&to->mutex);
}

static bool is_done(const Worker *share)
{
    return atomic_load_explicit(&share->done, memory_order_acquire) == share->job;
}

/* With more workers than processors spinning would keep the very thread from running that we wait for. */
static void finish_share(Worker *share)
{
    if (is_done(share)) return;
    if (claim(share, atomic_load_explicit(&share->mailbox, memory_order_relaxed))) {
        do_share(share, share->job);
        return;
    }
    for (int spins = 0; !is_done(share); spins++) {
        if (spins < SPINS_BEFORE_YIELD) relax();
        else sched_yield();
    }
}

/* The caller is worker 0, whichever thread it is today. */
static void pin_caller(const Workers *w)
{
    static _Thread_local const Workers *pinned_for;
    if (!w->cpus || pinned_for == w) return;
    pin_here(w, 0);
    pinned_for = w;
}

void workers_run(Workers *w, int n, ParallelFn fn, void *arg)
{
    pin_caller(w);
    for (int i = 1; i < n; i++) post(&w->worker[i], n, fn, arg);
    fn(arg, 0, n);
    for (int i = 1; i < n; i++) finish_share(&w->worker[i]);
}

int workers_count(const Workers *w)
{
    return w->n_workers;
}

/* ---- start and end ---- */

static Status choose_cpus(Workers *w, int n_workers, const char *cpuset, Error *err)
{
    Processors p;
    Status s = processors_find(&p, cpuset, err);
    if (s) return s;
    w->n_workers = n_workers ? n_workers : p.n_granted < MAX_WORKERS ? p.n_granted : MAX_WORKERS;
    if (w->n_workers < 1 || w->n_workers > MAX_WORKERS) {
        return error_set(err, ERR_USAGE, "the number of workers must be 1 to %d, got %d", MAX_WORKERS, n_workers);
    }
    if (!cpuset) return OK;
    w->n_cpus = p.n;
    w->cpus = mem_alloc_array((size_t)p.n, sizeof *w->cpus);
    if (!w->cpus) return error_set(err, ERR_NOMEM, "no memory for the list of processors");
    memcpy(w->cpus, p.cpu, (size_t)p.n * sizeof *w->cpus);
    return OK;
}

static Status start(Worker *self, Error *err)
{
    pthread_mutex_init(&self->mutex, NULL);
    pthread_cond_init(&self->wake, NULL);
    int e = pthread_create(&self->thread, NULL, worker_main, self);
    if (e) return error_set(err, ERR_NOMEM, "cannot start worker thread %d: %s", self->idx, strerror(e));
    self->is_started = true;
    return OK;
}

Status workers_open(Workers **out, int n_workers, const char *cpuset, Error *err)
{
    *out = NULL;
    Workers *w = mem_alloc(sizeof *w);
    if (!w) return error_set(err, ERR_NOMEM, "no memory for the worker threads");
    Status s = choose_cpus(w, n_workers, cpuset, err);
    if (!s) {
        size_t alignment = alignof(Worker);
        w->block = mem_alloc((size_t)w->n_workers * sizeof(Worker) + alignment);
        if (!w->block) s = error_set(err, ERR_NOMEM, "no memory for the worker threads");
        else w->worker = (Worker *)(((uintptr_t)w->block + alignment - 1) & ~(uintptr_t)(alignment - 1));
    }
    for (int i = 1; !s && i < w->n_workers; i++) {
        w->worker[i].pool = w;
        w->worker[i].idx = i;
        atomic_init(&w->worker[i].mailbox, 1);
        s = start(&w->worker[i], err);
    }
    if (s) {
        workers_close(w);
        return s;
    }
    *out = w;
    return OK;
}

void workers_close(Workers *w)
{
    if (!w) return;
    atomic_store(&w->is_stopping, true);
    for (int i = 1; w->worker && i < w->n_workers; i++) {
        Worker *it = &w->worker[i];
        if (!it->pool) break;
        if (it->is_started) {
            post(it, 0, NULL, NULL);
            pthread_join(it->thread, NULL);
        }
        pthread_cond_destroy(&it->wake);
        pthread_mutex_destroy(&it->mutex);
    }
    mem_free(w->block);
    mem_free(w->cpus);
    mem_free(w);
}
