/* What the engine takes, and when: nothing between open and close, everything or nothing at open and submit. */
#include "rig.h"

#include "base/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const RigOptions drafted = { .engine = { .max_num_seqs = 6,
                                                .n_blocks = 60,
                                                .draft_nodes = 20,
                                                .draft_depth = 10,
                                                .max_num_batched_tokens = 100,
                                                .prefill_chunk = 9 },
                                    .drafts = true,
                                    .drafter = { .seed = 3, .p_true = 0.7, .p_broken = 0.1, .wants_features = true } };

static RigOptions adaptive(void)
{
    RigOptions o = drafted;
    o.engine.adapts_drafts = true;
    return o;
}

static void run_steps(const RigOptions *options)
{
    enum { N = 12 };
    Rig rig;
    int32_t prompts[N][60];
    Request *r[N];
    rig_open(&rig, options);
    for (uint64_t i = 0; i < N; i++) {
        GenerateRequest g = rig_request(i, prompts[i], 5 + 4 * (int32_t)i, 60);
        g.n_choices = 1 + (int32_t)i % 2;
        g.prompt_logprobs = i % 3 == 0;
        g.params.n_logprobs = i % 2 ? 4 : -1;
        g.params.temperature = (float)(i % 2);
        r[i] = rig_submit(&rig, &g);
    }
    uint64_t before = mem_count();
    size_t bytes = backend_bytes(rig.backend);
    for (int step = 0; engine_step(rig.engine); step++) {
        if (step == 10) request_cancel(r[2]);
        if (step == 12) request_stop_choice(r[3], 1);
        if (step == 14) request_cancel(r[N - 1]);
    }
    assert_int_equal(mem_count(), before);
    assert_int_equal(backend_bytes(rig.backend), bytes);
    EngineStats s = engine_stats(rig.engine);
    assert_true(s.preemptions > 0 && s.requests_done == N);
    assert_true(options->engine.adapts_drafts || (s.accepted_tokens > 0 && s.failed_drafts > 0)); /* else the clock decides */
    for (int i = 0; i < N; i++) request_close(r[i]);
    rig_close(&rig);
}

/* Prefill in chunks, decode, growing trees, preemption, scoring, cancel, stop and the end: not one allocation in a step. */
static void test_steps_allocate_nothing(void **state)
{
    RigOptions o = adaptive();
    run_steps(&drafted);
    run_steps(&o);
}

/* The first, second, third ... allocation fails: a clear sentence, and nothing is left (AddressSanitizer looks). */
static void test_open_without_memory(void **state)
{
    int n_failures = 0;
    RigOptions o = adaptive();
    for (int64_t nth = 1;; nth++) {
        Rig rig;
        Error err = { 0 };
        mem_fail_at(nth);
        Status s = rig_open_raw(&rig, &o, &err);
        mem_fail_at(0);
        if (!s) {
            rig_close(&rig);
            break;
        }
        assert_int_equal(s, ERR_NOMEM);
        assert_true(strlen(err.text) > 10);
        n_failures++;
    }
    assert_true(n_failures > 30);
}

static void test_submit_without_memory(void **state)
{
    Rig rig;
    Error err = { 0 };
    int32_t prompt[8];
    rig_open(&rig, &drafted);
    GenerateRequest g = rig_request(1, prompt, 8, 10);
    Request *r;
    mem_fail_at(1);
    assert_int_equal(engine_submit(rig.engine, &g, NULL, NULL, &r, &err), ERR_NOMEM);
    mem_fail_at(0);
    assert_null(r);
    assert_int_equal(engine_stats(rig.engine).waiting, 0);
    assert_int_equal(atomic_load(&rig.engine->budget->bytes), 0);
    r = rig_submit(&rig, &g);
    rig_finish(&rig, r);
    request_close(r);
    assert_int_equal(atomic_load(&rig.engine->budget->bytes), 0);
    rig_close(&rig);
}

/* A submit costs one allocation, however many choices and logprobs. */
static void test_submit_is_one_piece(void **state)
{
    Rig rig;
    int32_t prompt[8];
    LogitBias bias[3] = { { 1, 2 }, { 3, -4 }, { 5, 6 } };
    rig_open(&rig, &drafted);
    GenerateRequest g = rig_request(1, prompt, 8, 10);
    g.n_choices = 5;
    g.prompt_logprobs = true;
    g.params.n_logprobs = 2;
    g.params.bias = bias;
    g.params.n_bias = 3;
    uint64_t before = mem_count();
    Request *r = rig_submit(&rig, &g);
    assert_int_equal(mem_count(), before + 1);
    memset(bias, 0xff, sizeof bias); /* it was copied, and so was the prompt */
    memset(prompt, 0xff, sizeof prompt);
    rig_finish(&rig, r);
    assert_int_equal(request_finish(r, 4), FINISH_LENGTH);
    request_close(r);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_allocate_nothing),
        cmocka_unit_test(test_open_without_memory),
        cmocka_unit_test(test_submit_without_memory),
        cmocka_unit_test(test_submit_is_one_piece),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
