/* The same bits, whatever runs beside: the bundled models through the engine alone, in a batch, in chunks, preempted, and
 * drafted by the oracle as chains and trees; greedy and sampled. The plain side is one sequence, one row a pass.
 * (`tandem verify` is the large version of this.) */
#include "base/memory.h"
#include "support/row_hash.h"
#include "engine/engine.h"
#include "engine/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_PROMPTS = 5, N_TOKENS = 24, MAX_PROMPT = 70, VOCAB = 4096 };

typedef struct Answers {
    int32_t n[N_PROMPTS], first[N_PROMPTS];
    int32_t tokens[N_PROMPTS][N_TOKENS];
    uint64_t hashes[N_PROMPTS][N_TOKENS];
} Answers;

typedef struct Run {
    EngineOptions engine;
    bool drafts;
    OracleOptions oracle;
} Run;

static Backend *backend;
static const char *model_name;
static float temperature;
static Answers truth;

static void on_row(void *ctx, uint64_t id, int32_t choice, int32_t index, const float *logits, int32_t vocab,
                   int32_t token)
{
    Answers *a = ctx;
    int32_t at = a->n[id]++;
    if (at == 0) a->first[id] = index;
    assert_true(at < N_TOKENS && index == a->first[id] + at);
    a->tokens[id][at] = token;
    a->hashes[id][at] = row_hash(logits, vocab);
}

static int32_t true_tokens(void *ctx, uint64_t id, int32_t choice, int32_t index, const int32_t **tokens)
{
    int32_t at = index - truth.first[id];
    *tokens = &truth.tokens[id][at];
    return truth.n[id] - at;
}

static GenerateRequest request_of(uint64_t id, int32_t *prompt)
{
    int32_t n = 2 + (int32_t)id * 13;
    uint64_t x = id + 11;
    for (int32_t i = 0; i < n; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        prompt[i] = 200 + (int32_t)(x >> 33) % 3800;
    }
    return (GenerateRequest){
        .id = id,
        .prompt = prompt,
        .n_prompt = n,
        .n_choices = 1,
        .max_tokens = N_TOKENS,
        .seed = 5 + id,
        .ignore_eos = true,
        .params = { .temperature = temperature, .top_p = 1, .n_logprobs = -1, .repetition_penalty = id % 2 ? 1.1f : 1 }
    };
}

static Engine *open_engine(const Run *run, Answers *out)
{
    char dir[4096];
    Error err = { 0 };
    Model *model;
    Engine *engine;
    Drafter *drafter = NULL;
    OracleOptions oracle = run->oracle;
    EngineOptions o = run->engine;
    o.max_model_len = 128;
    o.block_size = 8;
    if (!o.n_blocks) o.n_blocks = N_PROMPTS * 26;
    o.max_waiting = N_PROMPTS;
    o.hooks = (EngineHooks){ on_row, out };
    if (run->drafts) {
        o.draft_nodes = oracle.n_nodes;
        o.draft_depth = oracle.max_depth;
        oracle.vocab_size = VOCAB;
        oracle.truth = true_tokens;
        if (drafter_open_oracle(&drafter, &oracle, &err)) fail_msg("%s", err.text);
    }
    snprintf(dir, sizeof dir, "%s/models/%s", getenv("TANDEM_SOURCE_ROOT"), model_name);
    ModelOptions mo = { .limits = plan_limits(&o) };
    if (model_open(&model, dir, backend, &mo, &err)) fail_msg("%s", err.text);
    if (engine_open(&engine, model, backend, drafter, &o, &err)) fail_msg("%s", err.text);
    return engine;
}

static EngineStats run_all(const Run *run, Answers *out)
{
    Request *r[N_PROMPTS];
    int32_t prompt[MAX_PROMPT];
    Error err = { 0 };
    *out = (Answers){ 0 };
    Engine *engine = open_engine(run, out);
    for (uint64_t id = 0; id < N_PROMPTS; id++) {
        GenerateRequest g = request_of(id, prompt);
        if (engine_submit(engine, &g, NULL, NULL, &r[id], &err)) fail_msg("%s", err.text);
    }
    while (engine_step(engine)) {}
    for (int i = 0; i < N_PROMPTS; i++) {
        assert_int_equal(request_finish(r[i], 0), FINISH_LENGTH);
        request_close(r[i]);
    }
    EngineStats stats = engine_stats(engine);
    engine_close(engine);
    return stats;
}

static EngineStats check(const Run *run)
{
    static Answers got;
    EngineStats stats = run_all(run, &got);
    for (int i = 0; i < N_PROMPTS; i++) {
        assert_int_equal(got.n[i], N_TOKENS);
        assert_memory_equal(got.tokens[i], truth.tokens[i], sizeof got.tokens[i]);
        assert_memory_equal(got.hashes[i], truth.hashes[i], sizeof got.hashes[i]);
    }
    return stats;
}

static void check_drafted(int32_t nodes, bool chain, double p, int32_t n_seqs, int32_t n_blocks)
{
    Run run = {
        .engine = { .max_num_seqs = n_seqs, .max_num_batched_tokens = 300, .prefill_chunk = 17, .n_blocks = n_blocks },
        .drafts = true,
        .oracle = { .p = p, .n_nodes = nodes, .chain = chain, .max_depth = chain ? nodes - 1 : 12, .seed = 3 }
    };
    EngineStats s = check(&run);
    assert_true(s.draft_tokens > 0 && s.failed_drafts == 0);
    if (p == 1 && chain && n_seqs == 1) assert_int_equal(s.accepted_tokens, s.draft_tokens);
    if (p == 0) assert_int_equal(s.accepted_tokens, 0);
    if (n_blocks) assert_true(s.preemptions > 0);
}

static void find_truth(const char *name, float t)
{
    model_name = name;
    temperature = t;
    stream_use_workers(backend_stream(backend), 1);
    run_all(&(Run){ .engine = { .max_num_seqs = 1, .max_num_batched_tokens = 1 } }, &truth);
}

static void check_company(void)
{
    check(&(Run){ .engine = { .max_num_seqs = 1, .max_num_batched_tokens = 128 } });
    check(&(Run){ .engine = { .max_num_seqs = 5, .max_num_batched_tokens = 20, .prefill_chunk = 7 } });
    stream_use_workers(backend_stream(backend), 2);
    check(&(Run){ .engine = { .max_num_seqs = 6, .max_num_batched_tokens = 256 } });
    stream_use_workers(backend_stream(backend), 1);
    EngineStats s = check(&(Run){ .engine = { .max_num_seqs = 6, .max_num_batched_tokens = 100, .n_blocks = 17 } });
    assert_true(s.preemptions > 0);
}

static void check_greedy(const char *name)
{
    find_truth(name, 0);
    check_company();
    check_drafted(4, true, 0, 1, 0);
    check_drafted(8, true, 1, 1, 0);
    check_drafted(32, true, 0.9, 6, 0);
    check_drafted(33, false, 0.7, 6, 0);
    check_drafted(12, false, 0.8, 6, 17);
}

static void check_sampled(const char *name, float t)
{
    find_truth(name, t);
    check(&(Run){ .engine = { .max_num_seqs = 6, .max_num_batched_tokens = 100, .prefill_chunk = 9 } });
    check_drafted(9, true, 0.9, 6, 0);
    check_drafted(7, false, 1, 1, 0);
    check_drafted(12, false, 0.8, 6, 17);
}

static void test_nano_greedy(void **state)
{
    check_greedy("nano");
}

static void test_nano_sampled(void **state)
{
    check_sampled("nano", 1.3f);
}

static void test_nano_plain_greedy(void **state)
{
    check_greedy("nano-plain");
}

static void test_nano_plain_sampled(void **state)
{
    check_sampled("nano-plain", 0.7f);
}

static int open_backend(void **state)
{
    return backend_open_cpu(&backend, &(BackendOptions){ .n_workers = 2 }, NULL);
}

static int close_backend(void **state)
{
    backend_close(backend);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nano_greedy),
        cmocka_unit_test(test_nano_sampled),
        cmocka_unit_test(test_nano_plain_greedy),
        cmocka_unit_test(test_nano_plain_sampled),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
