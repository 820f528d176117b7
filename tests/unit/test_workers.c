/* Workers: every share is done once, by as many as asked, seen by the caller; asleep or awake. */
#include "backend/cpu/cpu_impl.h"
#include "base/memory.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 5 };

typedef struct Job {
    int     calls[MOST]; /* plain: the pool orders the accesses */
    int     n_workers;
    int64_t sum;
} Job;

/* The caller holds share 0 until another thread has taken share 1, for a second at most. */
typedef struct Meeting {
    atomic_bool is_met;
    pthread_t   caller;
} Meeting;

static void meet(void *arg, int worker, int n_workers)
{
    Meeting *m = arg;
    if (worker == 1 && !pthread_equal(pthread_self(), m->caller)) atomic_store(&m->is_met, true);
    for (int i = 0; worker == 0 && i < 1000 && !atomic_load(&m->is_met); i++) usleep(1000);
}

static void count_call(void *arg, int worker, int n_workers)
{
    Job *job = arg;
    job->calls[worker]++;
    if (worker == 0) job->n_workers = n_workers;
}

static Backend *open_backend(int n_workers)
{
    Backend *b;
    Error err = { 0 };
    BackendOptions options = { .n_workers = n_workers };
    if (backend_open_cpu(&b, &options, &err)) fail_msg("%s", err.text);
    return b;
}

static void every_worker_runs_once(void **state)
{
    Backend *b = open_backend(MOST);
    Job job = { { 0 } };
    for (int round = 1; round <= 2000; round++) {
        stream_parallel(backend_stream(b), count_call, &job);
        for (int i = 0; i < MOST; i++) assert_int_equal(job.calls[i], round);
    }
    assert_int_equal(job.n_workers, MOST);
    backend_close(b);
}

/* A worker whose share the caller did may look for it only when the pool is closing. */
static void pools_close_right_behind_a_job(void **state)
{
    for (int round = 0; round < 100; round++) {
        Backend *b = open_backend(MOST);
        Job job = { { 0 } };
        for (int i = 0; i < 3; i++) stream_parallel(backend_stream(b), count_call, &job);
        backend_close(b);
        assert_int_equal(job.calls[MOST - 1], 3);
    }
}

static void threads_really_help(void **state)
{
    Backend *b = open_backend(2);
    for (int round = 0; round < 20; round++) {
        Meeting m = { .caller = pthread_self() };
        stream_parallel(backend_stream(b), meet, &m);
        assert_true(atomic_load(&m.is_met));
    }
    backend_close(b);
}

static void fewer_workers_when_asked(void **state)
{
    Backend *b = open_backend(MOST);
    for (int n = 1; n <= MOST; n++) {
        Job job = { { 0 } };
        stream_use_workers(backend_stream(b), n);
        stream_parallel(backend_stream(b), count_call, &job);
        for (int i = 0; i < MOST; i++) assert_int_equal(job.calls[i], i < n);
        assert_int_equal(job.n_workers, n);
    }
    backend_close(b);
}

/* Pauses around the length of the spin, so that posts meet workers in every state. */
static void sleeping_workers_wake(void **state)
{
    Backend *b = open_backend(3);
    Job job = { { 0 } };
    for (int round = 1; round <= 300; round++) {
        usleep((useconds_t)(round % 30 * 5));
        stream_parallel(backend_stream(b), count_call, &job);
        for (int i = 0; i < 3; i++) assert_int_equal(job.calls[i], round);
    }
    backend_close(b);
}

/* Processor time, not time: a worker that spins uses one tenth of a second in one tenth of a second. */
static void idle_workers_use_no_processor(void **state)
{
    Backend *b = open_backend(MOST);
    Job job = { { 0 } };
    struct timespec before, after;
    stream_parallel(backend_stream(b), count_call, &job);
    usleep(20 * 1000); /* they look for more work for a while */
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    usleep(100 * 1000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    int64_t us = (after.tv_sec - before.tv_sec) * 1000000 + (after.tv_nsec - before.tv_nsec) / 1000;
    if (us > 20 * 1000) fail_msg("%d idle workers used %d us of processor time in 100 ms", MOST - 1, (int)us);
    backend_close(b);
}

static void add_range(void *arg, int64_t first, int64_t end, int worker)
{
    int64_t *marks = arg;
    for (int64_t i = first; i < end; i++) marks[i]++;
}

static void shares_cover_all_items_once(void **state)
{
    enum { N = 1000 };
    Backend *b = open_backend(3);
    static const int64_t sizes[] = { 0, 1, 2, 3, 4, 7, 64, N }, least[] = { 0, 1, 2, 100, 5000 };
    for (int s = 0; s < COUNT(sizes); s++) {
        for (int m = 0; m < COUNT(least); m++) {
            int64_t marks[N] = { 0 };
            stream_for(backend_stream(b), sizes[s], least[m], add_range, marks);
            for (int i = 0; i < N; i++) assert_int_equal(marks[i], i < sizes[s]);
        }
    }
    backend_close(b);
}

static void note_worker(void *arg, int64_t first, int64_t end, int worker)
{
    *(int *)arg += worker == 0 && first == 0 && end == 10 ? 1 : 100;
}

static void little_work_stays_here(void **state)
{
    Backend *b = open_backend(3);
    int here = 0;
    stream_for(backend_stream(b), 10, 10, note_worker, &here);
    assert_int_equal(here, 1);
    backend_close(b);
}

static void scratch_of(void *arg, int worker, int n_workers)
{
    memset(worker_scratch(arg, worker), worker, WORKER_SCRATCH_BYTES);
}

static void scratch_is_apart(void **state)
{
    Backend *b = open_backend(2);
    Stream *st = backend_stream(b);
    stream_parallel(st, scratch_of, st);
    for (int i = 0; i < 2; i++) {
        const char *mine = worker_scratch(st, i);
        assert_int_equal((uintptr_t)mine % 64, 0);
        assert_int_equal(mine[0], i);
        assert_int_equal(mine[WORKER_SCRATCH_BYTES - 1], i);
    }
    backend_close(b);
}

static void denormal_is_zero(void *arg, int worker, int n_workers)
{
    volatile float tiny = 1e-39f;
    ((int *)arg)[worker] = tiny * 1.0f == 0.0f;
}

static void workers_are_in_numeric_mode(void **state)
{
    Backend *b = open_backend(3);
    int flushed[3] = { 0 };
    stream_parallel(backend_stream(b), denormal_is_zero, flushed);
    for (int i = 0; i < 3; i++) assert_true(flushed[i]);
    backend_close(b);
}

static void note_cpu(void *arg, int worker, int n_workers)
{
    ((int *)arg)[worker] = sched_getcpu();
}

static void *run_pinned(void *arg)
{
    int *cpu = arg;
    char cpuset[16];
    Backend *b;
    Error err = { 0 };
    snprintf(cpuset, sizeof cpuset, "%d", cpu[3]);
    BackendOptions options = { .n_workers = 3, .cpuset = cpuset };
    if (backend_open_cpu(&b, &options, &err)) return NULL;
    stream_parallel(backend_stream(b), note_cpu, cpu);
    backend_close(b);
    return NULL;
}

static void cpuset_pins_all_workers(void **state)
{
    int cpu[4] = { -1, -1, -1, sched_getcpu() };
    pthread_t thread; /* worker 0 is pinned too, and the other tests should not be */
    assert_int_equal(pthread_create(&thread, NULL, run_pinned, cpu), 0);
    pthread_join(thread, NULL);
    for (int i = 0; i < 3; i++) assert_int_equal(cpu[i], cpu[3]);
}

static void wrong_options_are_refused(void **state)
{
    static const char *const cpusets[] = { "", "x", "1-", "3-1", "0,", "0-1x", "99999", "-1", "1000" };
    for (int i = 0; i < COUNT(cpusets); i++) {
        Backend *b;
        Error err = { 0 };
        BackendOptions options = { .cpuset = cpusets[i] };
        assert_int_equal(backend_open_cpu(&b, &options, &err), ERR_USAGE);
        assert_null(b);
        assert_string_equal(err.param, "cpuset");
    }
    Backend *b;
    Error err = { 0 };
    BackendOptions options = { .n_workers = -1 };
    assert_int_equal(backend_open_cpu(&b, &options, &err), ERR_USAGE);
    options = (BackendOptions){ .cpu_mask = "sse9" };
    error_clear(&err);
    assert_int_equal(backend_open_cpu(&b, &options, &err), ERR_USAGE);
    assert_non_null(strstr(err.text, "sse9"));
}

/* A mask leaves what is below it: of names in ascending order, each gives its own variant or the one before. */
static void mask_chooses_the_variant(void **state)
{
    const char *masks[] = { "scalar", "avx2", "avx-vnni", "avx512", "avx512-vnni", "avx512-bf16" }, *before = "scalar";
    for (int i = 0; i < COUNT(masks); i++) {
        Backend *b;
        BackendOptions options = { .n_workers = 1, .cpu_mask = masks[i] };
        assert_int_equal(backend_open_cpu(&b, &options, NULL), OK);
        if (strcmp(backend_variant(b), masks[i]) != 0) assert_string_equal(backend_variant(b), before);
        before = masks[i] = backend_variant(b);
        assert_string_equal(backend_name(b), "cpu");
        backend_close(b);
    }
    bool ok;
    assert_int_equal(cpu_mask_features("neon", CPU_FMA | CPU_AVX2, &ok), CPU_FMA);
    assert_int_equal(cpu_mask_features("avx2", CPU_FMA | CPU_AVX2 | CPU_AVX512, &ok), CPU_FMA | CPU_AVX2);
    assert_int_equal(cpu_mask_features("avx512", CPU_FMA | CPU_AVX2 | CPU_AVX512 | CPU_AVX512_VNNI, &ok), CPU_FMA | CPU_AVX2 | CPU_AVX512);
    assert_string_equal(cpu_variant_name(CPU_FMA | CPU_NEON), "neon");
    assert_string_equal(cpu_variant_name(CPU_FMA | CPU_NEON | CPU_NEON_DOT), "neon-dot");
    assert_string_equal(cpu_variant_name(CPU_FMA | CPU_AVX512), "scalar"); /* AVX-512 takes AVX2 for granted */
}

/* Every allocation of opening fails in turn: an error each time, nothing left behind (leak checkers look). */
static void opening_survives_no_memory(void **state)
{
    for (int nth = 1;; nth++) {
        Backend *b;
        Error err = { 0 };
        BackendOptions options = { .n_workers = 3, .cpuset = NULL };
        mem_fail_at(nth);
        Status s = backend_open_cpu(&b, &options, &err);
        mem_fail_at(0);
        if (!s) {
            assert_true(nth > 2);
            backend_close(b);
            return;
        }
        assert_int_equal(s, ERR_NOMEM);
        assert_null(b);
        assert_true(err.text[0] != 0);
    }
}

static void running_allocates_nothing(void **state)
{
    Backend *b = open_backend(3);
    Job job = { { 0 } };
    stream_parallel(backend_stream(b), count_call, &job);
    uint64_t before = mem_count();
    for (int i = 0; i < 100; i++) stream_parallel(backend_stream(b), count_call, &job);
    assert_int_equal(mem_count(), before);
    backend_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_worker_runs_once),
        cmocka_unit_test(pools_close_right_behind_a_job),
        cmocka_unit_test(threads_really_help),
        cmocka_unit_test(fewer_workers_when_asked),
        cmocka_unit_test(sleeping_workers_wake),
        cmocka_unit_test(idle_workers_use_no_processor),
        cmocka_unit_test(shares_cover_all_items_once),
        cmocka_unit_test(little_work_stays_here),
        cmocka_unit_test(scratch_is_apart),
        cmocka_unit_test(workers_are_in_numeric_mode),
        cmocka_unit_test(cpuset_pins_all_workers),
        cmocka_unit_test(wrong_options_are_refused),
        cmocka_unit_test(mask_chooses_the_variant),
        cmocka_unit_test(opening_survives_no_memory),
        cmocka_unit_test(running_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
