/* MTP drafts in the real engine, on the trained model: the tokens are those of plain decoding, at temperature 0 and
 * above, with several requests at a time, prompts in chunks and requests that are preempted.
 *
 * With "all" (suite slow): what coupling to the noise of the draw is worth, in tokens a round. */
#include "engine/engine.h"
#include "engine/plan.h"
#include "speculation/draft_mtp.h"
#include "support/golden.h"

#include "base/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

enum { N_SLOTS = 4, MAX_REQUESTS = 48, NEW_TOKENS = 96 };

typedef enum Drafts { PLAIN, UNCOUPLED, COUPLED } Drafts;

static void assert_ok(Status s, const Error *err)
{
    if (s) fail_msg("%s", err->text);
}

static const EngineOptions roomy = { .max_num_seqs = N_SLOTS, .max_num_batched_tokens = 48, .max_model_len = 192,
                                              .block_size = 16, .n_blocks = 64, .max_waiting = MAX_REQUESTS,
                                              .draft_nodes = 4, .draft_depth = 31 };

typedef struct Rig {
    Backend *backend;
    Engine  *engine;
} Rig;

static Rig rig_open(Drafts drafts, DType dtype, const EngineOptions *options)
{
    Rig r = { 0 };
    Error err = { 0 };
    Model *model = NULL;
    Drafter *drafter = NULL;
    char dir[4096];
    ModelLimits limits = plan_limits(options);
    assert_ok(source_path(dir, sizeof dir, "models/nano", &err), &err);
    assert_ok(backend_open_cpu(&r.backend, &(BackendOptions){ .n_workers = 2 }, &err), &err);
    assert_ok(model_open(&model, dir, r.backend, &(ModelOptions){ .dtype = dtype, .limits = limits }, &err), &err);
    MtpOptions mtp = { .target = model, .dir = dir, .limits = limits, .is_uncoupled = drafts == UNCOUPLED };
    if (drafts != PLAIN) assert_ok(drafter_open_mtp(&drafter, &mtp, &err), &err);
    if (drafter) assert_true(drafter->methods[0].fingerprint != 0);
    assert_ok(engine_open(&r.engine, model, r.backend, drafter, options, &err), &err);
    return r;
}

static void rig_close(Rig *r)
{
    engine_close(r->engine);
    backend_close(r->backend);
}

typedef struct Answer {
    int32_t n, tokens[NEW_TOKENS];
} Answer;

/* All traces as requests at once; returns the rounds that they took after their first tokens. */
static int64_t answer_all(Rig *r, const Traces *t, const SampleParams *params, int32_t max_tokens, Answer *answers)
{
    Error err = { 0 };
    Request *requests[MAX_REQUESTS];
    int64_t rounds = 0;
    for (int32_t i = 0; i < t->n; i++) {
        const GenerateRequest g = { .id = (uint64_t)i + 1, .prompt = t->item[i].prompt, .n_prompt = t->item[i].n_prompt,
                                    .n_choices = 1, .max_tokens = max_tokens - i % 3, .params = *params,
                                    .seed = (uint64_t)i * 77, .ignore_eos = true };
        assert_ok(engine_submit(r->engine, &g, NULL, NULL, &requests[i], &err), &err);
    }
    while (engine_step(r->engine)) {}
    for (int32_t i = 0; i < t->n; i++) {
        assert_int_equal(request_finish(requests[i], 0), FINISH_LENGTH);
        answers[i].n = request_count(requests[i], 0);
        memcpy(answers[i].tokens, request_tokens(requests[i], 0), (size_t)answers[i].n * sizeof(int32_t));
        rounds += request_timings(requests[i]).steps;
        request_close(requests[i]);
    }
    return rounds;
}

static Traces *open_traces(const char *file)
{
    Error err = { 0 };
    Traces *t = NULL;
    assert_ok(traces_open(&t, file, "hybrid", &err), &err);
    return t;
}

static const SampleParams greedy = { .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1 };

static void assert_same_answers(const Answer *got, const Answer *want, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        assert_int_equal(got[i].n, want[i].n);
        assert_memory_equal(got[i].tokens, want[i].tokens, (size_t)want[i].n * sizeof(int32_t));
    }
}

static void check_equal(DType dtype, const SampleParams *params, const EngineOptions *options)
{
    enum { N_TOKENS = 40 };
    static Answer want[MAX_REQUESTS], got[MAX_REQUESTS];
    Traces *t = open_traces("nano_traces.json");
    t->n = 8;
    for (Drafts drafts = PLAIN; drafts <= COUPLED; drafts++) {
        Rig r = rig_open(drafts, dtype, options);
        int64_t rounds = answer_all(&r, t, params, N_TOKENS, drafts == PLAIN ? want : got);
        EngineStats stats = engine_stats(r.engine);
        assert_int_equal(stats.failed_drafts, 0);
        if (options->n_blocks < roomy.n_blocks) assert_true(stats.preemptions > 0);
        if (drafts != PLAIN) {
            assert_same_answers(got, want, t->n);
            assert_true(rounds < t->n * N_TOKENS * 3 / 4); /* the drafts were worth something */
        }
        rig_close(&r);
    }
    traces_free(t);
}

static void test_greedy(void **state)
{
    check_equal(DT_BF16, &greedy, &roomy);
    check_equal(DT_F32, &greedy, &roomy);
}

static void test_sampled(void **state)
{
    SampleParams params = greedy;
    params.temperature = 0.7f;
    check_equal(DT_BF16, &params, &roomy);
    params.top_p = 0.95f;
    params.top_k = 20;
    params.repetition_penalty = 1.05f;
    params.presence_penalty = 0.2f;
    check_equal(DT_BF16, &params, &roomy);
}

static void test_preempted(void **state)
{
    EngineOptions options = roomy;
    options.max_model_len = 128;
    options.n_blocks = 9; /* too few for three that grow */
    SampleParams params = greedy;
    params.temperature = 0.7f;
    check_equal(DT_BF16, &greedy, &options);
    check_equal(DT_BF16, &params, &options);
}

static double tokens_a_round(const Traces *t, Drafts drafts, const SampleParams *params)
{
    static Answer answers[MAX_REQUESTS];
    int64_t tokens = 0;
    Rig r = rig_open(drafts, DT_BF16, &roomy);
    int64_t rounds = answer_all(&r, t, params, NEW_TOKENS, answers);
    for (int32_t i = 0; i < t->n; i++) tokens += answers[i].n - 1;
    rig_close(&r);
    return (double)tokens / (double)rounds;
}

static void test_coupling(void **state)
{
    static const float temperatures[] = { 0, 0.7f, 1 };
    Traces *t = open_traces("nano_reference.json");
    for (int i = 0; i < 2 * COUNT(temperatures); i++) {
        SampleParams params = greedy;
        params.temperature = temperatures[i / 2];
        if (i % 2) params.top_p = 0.9f;
        double uncoupled = tokens_a_round(t, UNCOUPLED, &params), coupled = tokens_a_round(t, COUPLED, &params);
        print_message("%d prompts, temperature %.1f, top-p %.2f: %.3f tokens a round, coupled %.3f\n", t->n,
                      (double)params.temperature, (double)params.top_p, uncoupled, coupled);
        assert_true(params.temperature > 0 ? coupled > uncoupled : coupled == uncoupled);
    }
    traces_free(t);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest quick[] = { cmocka_unit_test(test_greedy), cmocka_unit_test(test_sampled),
                                        cmocka_unit_test(test_preempted) };
    const struct CMUnitTest all[] = { cmocka_unit_test(test_coupling) };
    if (argc > 1 && strcmp(argv[1], "all") == 0) return cmocka_run_group_tests_name("mtp engine, all", all, NULL, NULL);
    return cmocka_run_group_tests_name("mtp engine", quick, NULL, NULL);
}
