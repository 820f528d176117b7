/* The engine on its own thread, many fronts at once: submit, wait, read, cancel, stop, close, and the end of the engine
 * while requests run. Worth most under ThreadSanitizer (make tsan). */
#include "rig.h"

#include "base/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_FRONTS = 4, N_EACH = 40 };

static const RigOptions drafted = { .engine = { .max_num_seqs = 4,
                                                .n_blocks = 50,
                                                .draft_nodes = 8,
                                                .draft_depth = 6,
                                                .max_waiting = 5,
                                                .max_num_batched_tokens = 60,
                                                .prefill_chunk = 9 },
                                    .drafts = true,
                                    .drafter = { .seed = 3, .p_true = 0.6 } };

typedef struct Front {
    Rig *rig;
    int number;
    const char *fault; /* what went wrong; cmocka's asserts belong to the main thread */
    int n_full, n_done;
} Front;

static void count_up(void *ctx)
{
    ++*(int *)ctx; /* under the request's mutex: see engine_submit */
}

static Request *submit_until_taken(Front *f, const GenerateRequest *g, int *n_notified)
{
    for (;;) {
        Request *r;
        Error err = { 0 };
        Status s = engine_submit(f->rig->engine, g, count_up, n_notified, &r, &err);
        if (!s) return r;
        if (s != ERR_FULL) {
            f->fault = "submit failed";
            return NULL;
        }
        f->n_full++;
        usleep(200);
    }
}

/* Follows a request to its end; what == 1 cancels, 2 stops a choice on the way. */
static void follow(Front *f, Request *r, const GenerateRequest *g, int what)
{
    int32_t seen = 0;
    while (!request_done(r)) {
        request_wait(r, 1000);
        int32_t n = request_count(r, 0);
        if (n < seen) f->fault = "the count went back";
        if (n > 3 && what == 1) request_cancel(r);
        if (n > 3 && what == 2) request_stop_choice(r, g->n_choices - 1);
        seen = n;
    }
}

static void check_answer(Front *f, Request *r, const GenerateRequest *g, int what)
{
    RigRecord truth;
    for (int32_t c = 0; c < g->n_choices; c++) {
        rig_truth(f->rig, g, c, &truth);
        int32_t n = request_count(r, c);
        if (n > truth.n || (what == 0 && n < truth.n))
            f->fault = "wrong number of tokens";
        else if (memcmp(request_tokens(r, c), truth.tokens, (size_t)n * sizeof truth.tokens[0]))
            f->fault = "wrong tokens";
    }
    RequestTimings t = request_timings(r);
    if (t.queue_ms < 0 || t.decode_ms < 0) f->fault = "wrong times";
}

static void *front_main(void *arg)
{
    Front *f = arg;
    for (int i = 0; i < N_EACH && !f->fault; i++) {
        int32_t prompt[30];
        int n_notified = 0, what = (i + f->number) % 5;
        GenerateRequest g = rig_request((uint64_t)(f->number * N_EACH + i), prompt, 1 + (i * 7) % 30, 5 + i);
        g.n_choices = 1 + i % 2;
        g.params.temperature = (float)(i % 3) * 0.5f;
        Request *r = submit_until_taken(f, &g, &n_notified);
        if (!r) break;
        if (what != 3) { /* 3: lets go at once */
            follow(f, r, &g, what);
            check_answer(f, r, &g, what == 4 ? 0 : what);
        }
        request_close(r);
        int after_close = n_notified;
        usleep(what == 3 ? 300 : 0);
        if (n_notified != after_close) f->fault = "notified after close";
        f->n_done++;
    }
    return NULL;
}

static void test_many_fronts(void **state)
{
    Rig rig;
    Front fronts[N_FRONTS];
    pthread_t threads[N_FRONTS];
    rig_open(&rig, &drafted);
    assert_int_equal(engine_start(rig.engine, NULL), OK);
    for (int i = 0; i < N_FRONTS; i++) {
        fronts[i] = (Front){ .rig = &rig, .number = i };
        assert_int_equal(pthread_create(&threads[i], NULL, front_main, &fronts[i]), 0);
    }
    for (int i = 0; i < 50; i++) {
        EngineStats s = engine_stats(rig.engine);
        assert_in_range(s.waiting, 0, 5);
        assert_in_range(s.running, 0, 4);
        usleep(500);
    }
    for (int i = 0; i < N_FRONTS; i++) {
        pthread_join(threads[i], NULL);
        if (fronts[i].fault) fail_msg("front %d, request %d: %s", i, fronts[i].n_done, fronts[i].fault);
        assert_int_equal(fronts[i].n_done, N_EACH);
    }
    rig_close(&rig);
}

static void *wait_to_end(void *arg)
{
    Request *r = arg;
    while (!request_done(r)) request_wait(r, -1);
    return NULL;
}

static void test_close_while_running(void **state)
{
    for (int round = 0; round < 20; round++) {
        enum { N = 5 };
        Rig rig;
        int32_t prompt[N][20];
        Request *r[N];
        pthread_t waiters[N];
        rig_open(&rig, &drafted);
        for (uint64_t i = 0; i < N; i++) {
            GenerateRequest g = rig_request(i, prompt[i], 20, 100);
            r[i] = rig_submit(&rig, &g);
            pthread_create(&waiters[i], NULL, wait_to_end, r[i]);
        }
        assert_int_equal(engine_start(rig.engine, NULL), OK);
        usleep((useconds_t)(round * 100));
        rig_close(&rig);
        for (int i = 0; i < N; i++) {
            pthread_join(waiters[i], NULL);
            FinishReason why = request_finish(r[i], 0);
            assert_true(why == FINISH_LENGTH ||
                        (why == FINISH_CANCELLED && request_error(r[i], NULL) == ERR_CANCELLED));
            request_close(r[i]);
        }
    }
}

static double cpu_ms_of(pthread_t thread)
{
    clockid_t id;
    struct timespec t;
    pthread_getcpuclockid(thread, &id);
    clock_gettime(id, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* An idle engine sleeps, and wakes up for the next request. */
static void test_idle_engine_sleeps(void **state)
{
    Rig rig;
    int32_t prompt[8];
    rig_open(&rig, &drafted);
    assert_int_equal(engine_start(rig.engine, NULL), OK);
    GenerateRequest g = rig_request(1, prompt, 8, 10);
    for (int i = 0; i < 2; i++) {
        Request *r = rig_submit(&rig, &g);
        wait_to_end(r);
        assert_int_equal(request_count(r, 0), 10);
        request_close(r);
        double before = cpu_ms_of(rig.engine->thread);
        usleep(100000);
        assert_true(cpu_ms_of(rig.engine->thread) - before < 50); /* spinning would take all of the 100 */
    }
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_fronts),
        cmocka_unit_test(test_close_while_running),
        cmocka_unit_test(test_idle_engine_sleeps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
