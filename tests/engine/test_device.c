/* A stack on a device, which is a fake one (support/cpu_device.c): the answers of a CPU, drafted and plain, under every rule;
 * refusal when its memory is too small; its loss in mid-answer. */
#include "engine/engine_impl.h"
#include "engine/score.h"
#include "engine/stack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_REQUESTS = 12, N_TOKENS = 20, N_PROMPT = 9 };

static const LogitBias biases[] = { { 300, 4.5f }, { 301, -100 }, { 77, 2 } };

static GenerateRequest request_of(uint64_t id, int32_t *prompt)
{
    static const float hot[] = { 0, 0.7f, 1, 1.3f };
    for (int32_t i = 0; i < N_PROMPT; i++) prompt[i] = 200 + (int32_t)((id * 7 + (uint64_t)i * i * 31) % 3800);
    GenerateRequest g = { .id = id, .prompt = prompt, .n_prompt = N_PROMPT, .n_choices = 1, .max_tokens = N_TOKENS, .seed = 5 + id,
                          .params = { .temperature = hot[id % 4], .top_p = id % 3 ? 1 : 0.9f, .top_k = id % 5 == 1 ? 20 : 0,
                                      .min_p = id % 6 == 5 ? 0.05f : 0, .repetition_penalty = id % 4 == 2 ? 1.2f : 1,
                                      .frequency_penalty = id % 5 == 3 ? 0.4f : 0, .n_logprobs = (int32_t)id % 3 * 3 } };
    if (id % 2) { /* ids that stop are banned at first */
        g.min_tokens = 6;
        g.stop_ids[g.n_stop_ids++] = 300;
    }
    if (id % 4 == 3) {
        g.params.bias = biases;
        g.params.n_bias = COUNT(biases);
    }
    g.prompt_logprobs = id == 4;
    return g;
}

typedef struct Answers {
    int32_t      n[N_REQUESTS], tokens[N_REQUESTS][N_TOKENS];
    TokenLogprob logprobs[N_REQUESTS][N_TOKENS], prompt[N_PROMPT];
    uint64_t     accepted;
} Answers;

static void open_stack(Stack *s, const char *model, DeviceChoice device, SpecMethod method)
{
    static char dir[4096];
    Error err = { 0 };
    snprintf(dir, sizeof dir, "%s/models/%s", getenv("TANDEM_SOURCE_ROOT"), model);
    StackOptions o = { .model = dir, .backend = { .n_workers = 1, .device = device }, .speculation = { .method = method }, .max_model_len = 256 };
    if (stack_open(s, &o, NULL, &err)) fail_msg("%s", err.text);
    assert_string_equal(backend_name(s->backend), device == DEVICE_CUDA ? "cuda" : "cpu");
}

static void answer(const char *model, DeviceChoice device, SpecMethod method, Answers *out)
{
    Stack s;
    Request *r[N_REQUESTS];
    int32_t prompt[N_PROMPT];
    Error err = { 0 };
    memset(out, 0, sizeof *out);
    open_stack(&s, model, device, method);
    for (uint64_t i = 0; i < N_REQUESTS; i++) {
        GenerateRequest g = request_of(i, prompt);
        if (engine_submit(s.engine, &g, NULL, NULL, &r[i], &err)) fail_msg("%s", err.text);
    }
    while (engine_step(s.engine)) {
    }
    for (int i = 0; i < N_REQUESTS; i++) {
        assert_true(request_finish(r[i], 0) == FINISH_LENGTH || request_finish(r[i], 0) == FINISH_STOP);
        out->n[i] = request_count(r[i], 0);
        memcpy(out->tokens[i], request_tokens(r[i], 0), (size_t)out->n[i] * sizeof(int32_t));
        memcpy(out->logprobs[i], request_logprobs(r[i], 0), (size_t)out->n[i] * sizeof(TokenLogprob));
        if (i == 4) memcpy(out->prompt, request_prompt_logprobs(r[i]), sizeof out->prompt);
        request_close(r[i]);
    }
    out->accepted = engine_stats(s.engine).accepted_tokens;
    stack_close(&s);
}

static void check_logprob(const TokenLogprob *got, const TokenLogprob *want)
{
    assert_memory_equal(&got->logprob, &want->logprob, sizeof got->logprob);
    assert_int_equal(got->n_top, want->n_top);
    assert_memory_equal(got->top_id, want->top_id, (size_t)want->n_top * sizeof *want->top_id);
    assert_memory_equal(got->top_logprob, want->top_logprob, (size_t)want->n_top * sizeof *want->top_logprob);
}

static void check_answers(const Answers *got, const Answers *want)
{
    for (int i = 0; i < N_REQUESTS; i++) {
        assert_int_equal(got->n[i], want->n[i]);
        assert_memory_equal(got->tokens[i], want->tokens[i], sizeof got->tokens[i]);
        for (int32_t k = 0; k < want->n[i]; k++) check_logprob(&got->logprobs[i][k], &want->logprobs[i][k]);
    }
    for (int i = 1; i < N_PROMPT; i++) check_logprob(&got->prompt[i], &want->prompt[i]);
}

static void check_methods(const char *model, const SpecMethod *methods, int n)
{
    static Answers cpu, device;
    answer(model, DEVICE_CPU, SPEC_NONE, &cpu);
    for (int i = 0; i < n; i++) {
        answer(model, DEVICE_CUDA, methods[i], &device);
        check_answers(&device, &cpu);
        if (methods[i] != SPEC_NONE) assert_true(device.accepted > 0);
    }
}

static void test_nano(void **state)
{
    check_methods("nano", (const SpecMethod[]){ SPEC_NONE, SPEC_MTP }, 2);
}

static void test_nano_plain(void **state)
{
    check_methods("nano-plain", (const SpecMethod[]){ SPEC_NONE, SPEC_DFLASH, SPEC_DDTREE }, 3);
}

/* ---- what a device cannot do ---- */

static Status try_stack(Error *err)
{
    Stack s;
    char dir[4096];
    snprintf(dir, sizeof dir, "%s/models/nano-plain", getenv("TANDEM_SOURCE_ROOT"));
    StackOptions o = { .model = dir, .backend = { .n_workers = 1, .device = DEVICE_CUDA }, .max_model_len = 4096 };
    Status status = stack_open(&s, &o, NULL, err);
    if (!status) stack_close(&s);
    return status;
}

static void test_small_memory_is_refused(void **state)
{
    Error err = { 0 };
    setenv("FAKE_DEVICE_MB", "24", 1);
    assert_int_equal(try_stack(&err), ERR_PLAN);
    unsetenv("FAKE_DEVICE_MB");
    assert_non_null(strstr(err.text, "of the device's memory"));
    assert_non_null(strstr(err.text, "90 % of the 24 MB available; --max-model-len "));
    error_clear(&err);
    assert_int_equal(try_stack(&err), OK);
}

static void test_device_that_does_not_open(void **state)
{
    Error err = { 0 };
    setenv("FAKE_DEVICE_FAILS", "no CUDA device was found", 1);
    assert_int_equal(try_stack(&err), ERR_UNSUPPORTED);
    unsetenv("FAKE_DEVICE_FAILS");
    assert_string_equal(err.text, "--device cuda: no CUDA device was found");
}

/* ---- loss ---- */

static void check_loss(SpecMethod method, const char *syncs)
{
    enum { RUNNING = 10 }; /* more than there are slots: some wait */
    static Answers cpu;
    Stack s;
    Request *r[RUNNING], *late;
    int32_t prompt[N_PROMPT];
    Error err = { 0 };
    if (cpu.n[0] == 0) answer("nano-plain", DEVICE_CPU, SPEC_NONE, &cpu);
    setenv("FAKE_DEVICE_SYNCS", syncs, 1);
    open_stack(&s, "nano-plain", DEVICE_CUDA, method);
    unsetenv("FAKE_DEVICE_SYNCS");
    for (uint64_t i = 0; i < RUNNING; i++) {
        GenerateRequest g = request_of(i, prompt);
        assert_int_equal(engine_submit(s.engine, &g, NULL, NULL, &r[i], &err), OK);
    }
    while (engine_step(s.engine)) {
    }
    assert_true(engine_stats(s.engine).is_lost);
    assert_int_equal(engine_stats(s.engine).requests_failed, RUNNING);
    for (int i = 0; i < RUNNING; i++) {
        assert_int_equal(request_finish(r[i], 0), FINISH_ERROR);
        assert_int_equal(request_error(r[i], &err), ERR_LOST);
        assert_non_null(strstr(err.text, "fake device failed"));
        assert_true(request_count(r[i], 0) < cpu.n[i]);
        assert_memory_equal(request_tokens(r[i], 0), cpu.tokens[i], (size_t)request_count(r[i], 0) * sizeof(int32_t));
        if (method == SPEC_NONE) assert_true(request_count(r[i], 0) < atoi(syncs)); /* nothing of the step that failed */
        error_clear(&err);
        request_close(r[i]);
    }
    GenerateRequest g = request_of(99, prompt);
    assert_int_equal(engine_submit(s.engine, &g, NULL, NULL, &late, &err), OK);
    while (engine_step(s.engine)) {
    }
    assert_int_equal(request_error(late, &err), ERR_LOST);
    request_close(late);
    BlockPool *pool = s.engine->scheduler.table.pool;
    assert_int_equal(block_pool_free_count(pool), block_pool_total(pool));
    stack_close(&s);
}

static void test_lost_device_ends_everything(void **state)
{
    check_loss(SPEC_NONE, "1");
    check_loss(SPEC_NONE, "5");
    check_loss(SPEC_DDTREE, "4"); /* in a draft or in the pass behind it */
    check_loss(SPEC_DDTREE, "5");
}

static void count_scored(void *ctx, int32_t first, Tensor logits)
{
    *(int32_t *)ctx += (int32_t)logits.shape[0];
}

static void test_lost_device_scores_nothing(void **state)
{
    enum { N = 40, CHUNK = 8, WORKS_FOR = 3 }; /* as FAKE_DEVICE_SYNCS says: the third wait is the one that fails */
    char dir[4096];
    int32_t ids[N], n_scored = 0;
    Error err = { 0 };
    Backend *backend;
    Model *model;
    Scorer *scorer;
    for (int32_t i = 0; i < N; i++) ids[i] = 200 + i;
    snprintf(dir, sizeof dir, "%s/models/nano-plain", getenv("TANDEM_SOURCE_ROOT"));
    setenv("FAKE_DEVICE_SYNCS", "3", 1);
    assert_int_equal(backend_open(&backend, &(BackendOptions){ .n_workers = 1, .device = DEVICE_CUDA }, &err), OK);
    unsetenv("FAKE_DEVICE_SYNCS");
    assert_int_equal(model_open(&model, dir, backend, &(ModelOptions){ .limits = { CHUNK, CHUNK, 1, 1 } }, &err), OK);
    assert_int_equal(score_open(&scorer, model, backend, N, CHUNK, &err), OK);
    assert_int_equal(score_run(scorer, ids, N, count_scored, &n_scored, &err), ERR_LOST);
    assert_non_null(strstr(err.text, "fake device failed"));
    assert_int_equal(n_scored, (WORKS_FOR - 1) * CHUNK);
    score_close(scorer);
    model_close(model);
    backend_close(backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nano),
        cmocka_unit_test(test_nano_plain),
        cmocka_unit_test(test_small_memory_is_refused),
        cmocka_unit_test(test_device_that_does_not_open),
        cmocka_unit_test(test_lost_device_ends_everything),
        cmocka_unit_test(test_lost_device_scores_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
