/* DFlash drafts in the real engine: every method, both pairs, several requests at a time, prompts in chunks, requests
 * that are preempted, at temperature 0 and above with filters and penalties. Tokens and all bits of the logits they
 * were chosen from are those of an engine without a drafter. */
#include "engine/engine.h"
#include "engine/plan.h"
#include "speculation/draft_dflash.h"
#include "support/golden.h"
#include "support/row_hash.h"
#include "support/temp_dir.h"

#include "base/file.h"
#include "base/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

enum { N_REQUESTS = 7, N_TOKENS = 28, N_SLOTS = 4 };

static void assert_ok(Status s, const Error *err)
{
    if (s) fail_msg("%s", err->text);
}

typedef struct Pair {
    const char *key, *target, *drafter;
} Pair;
static const Pair pairs[] = { { "plain", "models/nano-plain", "models/nano-plain-DFlash" },
                              { "hybrid", "models/nano", "models/nano-DFlash" } };

/* ---- what an engine gave ---- */

typedef struct Given {
    int32_t  n, tokens[N_TOKENS];
    uint64_t logits[N_TOKENS]; /* hash of the row each token was chosen from */
} Given;

typedef struct Run {
    Given    given[N_REQUESTS];
    int32_t  n_prompt[N_REQUESTS];
    int64_t  steps; /* of all requests */
    EngineStats stats;
} Run;

static void on_row(void *ctx, uint64_t id, int32_t choice, int32_t index, const float *logits, int32_t vocab,
                   int32_t token)
{
    Run *run = ctx;
    Given *g = &run->given[id - 1];
    int32_t k = index - run->n_prompt[id - 1];
    assert_in_range(k, 0, N_TOKENS - 1);
    g->tokens[k] = token;
    g->logits[k] = row_hash(logits, vocab);
    if (k + 1 > g->n) g->n = k + 1;
}

/* ---- engines ---- */

typedef struct Setting {
    const Pair    *pair;
    DType          dtype;
    SampleParams   params;
    EngineOptions  engine;
    unsigned       method; /* of DflashMethod; 0 = plain */
    int32_t        tree_budget;
    bool           is_uncoupled;
    const char    *drafter_dir; /* instead of the pair's */
} Setting;

static Engine *open_engine(const Setting *s, Backend *backend, Run *run)
{
    Error err = { 0 };
    char dir[4096];
    Model *model = NULL;
    Drafter *drafter = NULL;
    Engine *engine = NULL;
    EngineOptions o = s->engine;
    o.hooks.row = on_row;
    o.hooks.ctx = run;
    o.draft_nodes = s->method == 0 ? 0 : s->method == DFLASH_CHAIN ? 16 : s->tree_budget + 1;
    o.draft_depth = MAX_DEPTH - 1;
    ModelOptions mo = { .dtype = s->dtype, .limits = plan_limits(&o) };
    assert_ok(source_path(dir, sizeof dir, s->pair->target, &err), &err);
    assert_ok(model_open(&model, dir, backend, &mo, &err), &err);
    assert_ok(source_path(dir, sizeof dir, s->pair->drafter, &err), &err);
    DflashOptions d = { .dir = s->drafter_dir ? s->drafter_dir : dir,
                        .backend = backend,
                        .target = model,
                        .n_slots = o.max_num_seqs,
                        .methods = s->method,
                        .tree_budget = s->tree_budget,
                        .is_uncoupled = s->is_uncoupled };
    if (s->method) assert_ok(drafter_open_dflash(&drafter, &d, &err), &err);
    assert_ok(engine_open(&engine, model, backend, drafter, &o, &err), &err);
    return engine;
}

static void run_engine(const Setting *s, const Traces *t, Run *run)
{
    Error err = { 0 };
    Backend *backend = NULL;
    Request *requests[N_REQUESTS];
    memset(run, 0, sizeof *run);
    assert_ok(backend_open_cpu(&backend, &(BackendOptions){ .n_workers = 2 }, &err), &err);
    Engine *engine = open_engine(s, backend, run);
    for (int32_t i = 0; i < N_REQUESTS; i++) {
        run->n_prompt[i] = t->item[i].n_prompt;
        const GenerateRequest g = { .id = (uint64_t)i + 1, .prompt = t->item[i].prompt, .n_prompt = t->item[i].n_prompt,
                                    .n_choices = 1, .max_tokens = N_TOKENS - 2 * i, .params = s->params,
                                    .seed = 40 + (uint64_t)i, .ignore_eos = true };
        assert_ok(engine_submit(engine, &g, NULL, NULL, &requests[i], &err), &err);
        if (i > N_SLOTS) engine_step(engine); /* the last ones come while others decode */
    }
    while (engine_step(engine)) {}
    for (int32_t i = 0; i < N_REQUESTS; i++) {
        assert_int_equal(request_finish(requests[i], 0), FINISH_LENGTH);
        assert_int_equal(request_count(requests[i], 0), N_TOKENS - 2 * i);
        run->steps += request_timings(requests[i]).steps;
        request_close(requests[i]);
    }
    run->stats = engine_stats(engine);
    engine_close(engine);
    backend_close(backend);
}

/* ---- comparing ---- */

static void assert_same(const Run *got, const Run *want)
{
    for (int32_t i = 0; i < N_REQUESTS; i++) {
        assert_int_equal(got->given[i].n, want->given[i].n);
        for (int32_t k = 0; k < want->given[i].n; k++)
            if (got->given[i].tokens[k] != want->given[i].tokens[k] ||
                got->given[i].logits[k] != want->given[i].logits[k])
                fail_msg("request %d: token %d is %d from logits %016llx, plain gave %d from %016llx", i, k,
                         got->given[i].tokens[k], (unsigned long long)got->given[i].logits[k], want->given[i].tokens[k],
                         (unsigned long long)want->given[i].logits[k]);
    }
}

static const SampleParams greedy = { .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1 };
static const EngineOptions roomy = { .max_num_seqs = N_SLOTS, .max_num_batched_tokens = 70, .prefill_chunk = 24,
                                     .max_model_len = 160, .block_size = 16, .n_blocks = 100, .max_waiting = 16 };

typedef struct Way {
    unsigned method;
    int32_t  budget;
} Way;
static const Way ways[] = { { DFLASH_CHAIN, 0 }, { DFLASH_TREE, 15 }, { DFLASH_TREE, 64 }, { DFLASH_SPINE, 24 } };

/* A plain run, then every method. */
static void check(Setting s, int64_t least_preemptions)
{
    static Run want, got;
    Error err = { 0 };
    Traces *t = NULL;
    assert_ok(traces_open(&t, "nano_traces.json", s.pair->key, &err), &err);
    run_engine(&s, t, &want);
    for (int w = 0; w < COUNT(ways); w++) {
        s.method = ways[w].method;
        s.tree_budget = ways[w].budget;
        run_engine(&s, t, &got);
        assert_same(&got, &want);
        assert_int_equal(got.stats.failed_drafts, 0);
        assert_true(got.stats.preemptions >= least_preemptions);
        assert_true(got.steps < want.steps * 9 / 10); /* the drafts were worth something */
    }
    traces_free(t);
}

static void test_greedy(void **state)
{
    for (int p = 0; p < COUNT(pairs); p++)
        check((Setting){ .pair = &pairs[p], .dtype = DT_BF16, .params = greedy, .engine = roomy }, 0);
}

static void test_sampled(void **state)
{
    SampleParams params = greedy;
    params.temperature = 0.7f;
    for (int p = 0; p < COUNT(pairs); p++)
        check((Setting){ .pair = &pairs[p], .dtype = DT_BF16, .params = params, .engine = roomy }, 0);
}

static void test_filtered(void **state)
{
    SampleParams params = { .temperature = 0.9f, .top_p = 0.9f, .top_k = 50, .min_p = 0.02f, .repetition_penalty = 1.1f,
                            .presence_penalty = 0.2f, .frequency_penalty = 0.1f, .n_logprobs = -1 };
    check((Setting){ .pair = &pairs[1], .dtype = DT_BF16, .params = params, .engine = roomy, .is_uncoupled = true }, 0);
    check((Setting){ .pair = &pairs[0], .dtype = DT_F32, .params = params, .engine = roomy }, 0);
}

static void test_preempted(void **state)
{
    EngineOptions tight = roomy;
    tight.n_blocks = 12;
    SampleParams params = greedy;
    params.temperature = 0.7f;
    check((Setting){ .pair = &pairs[1], .dtype = DT_BF16, .params = params, .engine = tight }, 1);
}

/* The drafter in a directory of the test's own, its last weights so large that products overflow. (NaN itself is refused when it is
 * loaded.) */
static void copy_broken(const TempDir *to, const char *drafter)
{
    static const char *const names[] = { "config.json", "model.safetensors" };
    char path[256];
    for (int i = 0; i < COUNT(names); i++) {
        char *data;
        size_t n;
        Error err = { 0 };
        snprintf(path, sizeof path, "%s/%s", drafter, names[i]);
        assert_ok(file_read(source_tree(path), 16 << 20, &data, &n, &err), &err);
        for (size_t at = n - (i ? 4096 : 0); at < n; at += 2) memcpy(data + at, "\x7f\x7f", 2); /* 3.4e38 in bf16 */
        temp_write(to, names[i], data, n);
        mem_free(data);
    }
}

/* A network that gives no numbers: what is answered stays the same, it is switched off, and it is said why. */
static void test_broken_weights(void **state)
{
    static Run want, got;
    Error err = { 0 };
    Traces *t = NULL;
    TempDir dir;
    temp_dir_open(&dir);
    copy_broken(&dir, pairs[1].drafter);
    assert_ok(traces_open(&t, "nano_traces.json", pairs[1].key, &err), &err);
    for (int adapts = 0; adapts < 2; adapts++) {
        Setting s = { .pair = &pairs[1], .dtype = DT_BF16, .params = greedy, .engine = roomy };
        s.engine.adapts_drafts = adapts;
        run_engine(&s, t, &want);
        s.method = DFLASH_TREE;
        s.tree_budget = 15;
        s.drafter_dir = dir.path;
        run_engine(&s, t, &got);
        assert_same(&got, &want);
        assert_int_equal(got.steps, want.steps);
        assert_true(got.stats.failed_drafts > 0);
        if (!adapts) assert_non_null(strstr(got.stats.methods[0].off, "not finite")); /* else it may not be asked so often */
    }
    traces_free(t);
    temp_dir_close(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_greedy), cmocka_unit_test(test_sampled),
                                        cmocka_unit_test(test_filtered), cmocka_unit_test(test_preempted),
                                        cmocka_unit_test(test_broken_weights) };
    numeric_mode_enter();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
