/* MTP drafts on the trained model: the reference's rounds, one by one, and everything that must not change a guess.
 *
 * Without an argument: the 12 traces. With "all" (suite slow): all 48 prompts. Each trace decodes in a slot of its own, all
 * side by side; every round drafts, verifies by argmax, commits and observes as the engine does. */
#include "speculation/draft_mtp.h"
#include "support/batch_builder.h"
#include "support/checkpoint.h"
#include "support/golden.h"
#include "support/starve.h"

#include "base/memory.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

enum { MAX_ROWS = 256, MAX_SEQS = 48, MAX_TOKENS = 256, N_STEPS = 3, NEW_TOKENS = 96 };

static Backend *backend;

static void assert_ok(Status s, const Error *err)
{
    if (s) fail_msg("%s", err->text);
}

/* ---- a target with its drafter ---- */

typedef struct Rig {
    Model        *model;
    BatchBuilder *builder;
    Drafter      *drafter;
    void         *cache;
} Rig;

typedef struct RigSizes {
    DType   dtype;
    int32_t n_slots, chunk; /* prompt rows of a pass */
    int32_t max_rows, max_pending; /* of the drafter; 0 = as many as the target's, its default */
} RigSizes;

static Model *open_model(const char *below, DType dtype, int32_t n_slots)
{
    Error err = { 0 };
    Model *model = NULL;
    char dir[4096];
    assert_ok(source_path(dir, sizeof dir, below, &err), &err);
    ModelOptions options = { .dtype = dtype, .limits = { MAX_ROWS, MAX_ROWS, n_slots, MAX_ROWS } };
    assert_ok(model_open(&model, dir, backend, &options, &err), &err);
    return model;
}

static MtpOptions mtp_options(const Model *model, const char *dir, int32_t n_slots)
{
    return (MtpOptions){ .target = model, .dir = dir, .limits = { MAX_ROWS, MAX_ROWS, n_slots, MAX_ROWS } };
}

/* A cache for the drafter beside the builder's, under the same block table, full of NaN. */
static void *give_cache(Drafter *drafter, const BatchBuilder *b)
{
    CacheGroup groups[MAX_GROUPS];
    CacheMemory memory[MAX_GROUPS] = { b->memory[0] };
    assert_int_equal(drafter->groups(drafter, groups), 1);
    assert_int_equal(groups[0].n_layers, 1);
    size_t bytes = b->memory[0].layer_bytes / b->groups[0].entry_bytes * groups[0].entry_bytes;
    memory[0].data = backend_alloc(backend, bytes);
    assert_non_null(memory[0].data);
    memset(memory[0].data, 0xff, bytes);
    memory[0].layer_bytes = bytes;
    drafter->bind(drafter, memory);
    return memory[0].data;
}

static Rig rig_open(const RigSizes *sizes)
{
    Error err = { 0 };
    char dir[4096];
    Rig r = { .model = open_model("models/nano", sizes->dtype, sizes->n_slots) };
    BuilderOptions options = { .n_slots = sizes->n_slots, .max_tokens = MAX_TOKENS, .max_rows = MAX_ROWS,
                               .max_outputs = MAX_ROWS, .wants_last_hidden = true };
    assert_ok(builder_open(&r.builder, r.model, &options, &err), &err);
    assert_ok(source_path(dir, sizeof dir, "models/nano", &err), &err);
    MtpOptions mtp = mtp_options(r.model, dir, sizes->n_slots);
    mtp.max_pending = sizes->max_pending;
    if (sizes->max_rows) mtp.limits.max_rows = sizes->max_rows;
    assert_ok(drafter_open_mtp(&r.drafter, &mtp, &err), &err);
    assert_ok(r.drafter->fits(r.drafter, &r.model->info, &err), &err);
    r.cache = give_cache(r.drafter, r.builder);
    return r;
}

static void rig_close(Rig *r)
{
    builder_close(r->builder);
    model_close(r->model);
    drafter_close(r->drafter); /* the last, as in the engine */
    backend_free(backend, r->cache);
}

/* ---- decoding ---- */

/* What one trace does in its slot. */
typedef struct Run {
    const Trace *trace;
    int32_t slot, n_ids, ids[2 * TRACE_MAX_TOKENS]; /* prompt, new tokens, the anchor last */
    int32_t n_rounds, accept[NEW_TOKENS], draft[NEW_TOKENS][N_STEPS];
    Tree    tree;
} Run;

static int32_t argmax(const float *x, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static int32_t n_new(const Run *run)
{
    return run->n_ids - run->trace->n_prompt;
}

static void observe(Rig *r, const Accepted *accepted, int n)
{
    r->drafter->observe(r->drafter, backend_stream(backend), &r->builder->batch, accepted, n);
}

/* The prompt in chunks; the next token is the first new one. */
static void read_prompt(Rig *r, Run *run, int32_t chunk)
{
    BatchBuilder *b = r->builder;
    const Trace *t = run->trace;
    int32_t rows[MAX_ROWS];
    builder_clear(b, run->slot);
    r->drafter->begin(r->drafter, run->slot, 1, 0);
    memcpy(run->ids, t->prompt, (size_t)t->n_prompt * sizeof *run->ids);
    run->n_ids = t->n_prompt;
    for (int32_t at = 0, n; at < t->n_prompt; at += n) {
        n = t->n_prompt - at < chunk ? t->n_prompt - at : chunk;
        builder_begin(b);
        int32_t first = builder_line(b, run->slot, run->ids + at, n);
        builder_want(b, first + n - 1, 1);
        builder_forward(b);
        for (int32_t i = 0; i < n; i++) rows[i] = first + i;
        if (at + n == t->n_prompt) run->ids[run->n_ids++] = argmax(builder_logits(b, 0), r->model->info.vocab_size);
        observe(r, &(Accepted){ .slot = run->slot, .first_index = at, .n = n, .next_anchor = run->ids[at + n],
                                .tokens = run->ids + at, .rows = rows }, 1);
    }
}

static DraftJob job_of(Run *run)
{
    return (DraftJob){ .slot = run->slot, .n_committed = run->n_ids - 1, .anchor = run->ids[run->n_ids - 1],
                       .max_nodes = N_STEPS + 1, .max_depth = MAX_DEPTH - 1, .ids = run->ids, .tree = &run->tree };
}

static void draft(Rig *r, DraftJob *jobs, int n)
{
    Error err = { 0 };
    assert_ok(r->drafter->draft(r->drafter, backend_stream(backend), jobs, n, &err), &err);
    for (int i = 0; i < n; i++) {
        assert_true(tree_check(jobs[i].tree) && tree_is_chain(jobs[i].tree));
        assert_int_equal(jobs[i].tree->token[0], jobs[i].anchor);
    }
}

/* Takes the tokens that were chosen at the rows of a chain: logits from `output` on. Returns how many became known. */
static int32_t take_tokens(const Rig *r, Run *run, int32_t output)
{
    int32_t n = 0, left = NEW_TOKENS - n_new(run), token;
    do {
        token = argmax(builder_logits(r->builder, output + n), r->model->info.vocab_size);
        run->ids[run->n_ids++] = token;
        n++;
    } while (n < left && n < run->tree.n_nodes && run->tree.token[n] == token);
    for (int i = 1; i < run->tree.n_nodes; i++) run->draft[run->n_rounds][i - 1] = run->tree.token[i];
    run->accept[run->n_rounds++] = n;
    return n;
}

/* One round of all runs that are not at their end; false when none is. */
static bool play_round(Rig *r, Run *runs, int n)
{
    static const int32_t line[] = { -1, 0, 1, 2, 3 };
    DraftJob jobs[MAX_SEQS];
    Run *live[MAX_SEQS];
    Accepted accepted[MAX_SEQS];
    int32_t rows[MAX_SEQS][N_STEPS + 1], nodes[] = { 0, 1, 2, 3 }, first[MAX_SEQS], n_live = 0;
    BatchBuilder *b = r->builder;
    for (int i = 0; i < n; i++) {
        if (n_new(&runs[i]) >= NEW_TOKENS) continue;
        jobs[n_live] = job_of(&runs[i]);
        live[n_live++] = &runs[i];
    }
    if (n_live == 0) return false;
    draft(r, jobs, n_live);
    builder_begin(b);
    for (int i = 0; i < n_live; i++) {
        const Tree *t = &live[i]->tree;
        first[i] = builder_tree(b, live[i]->slot, t->token, line, t->n_nodes);
        builder_want(b, first[i], t->n_nodes);
    }
    builder_forward(b);
    for (int i = 0; i < n_live; i++) {
        int32_t committed = live[i]->n_ids - 1, n_path = take_tokens(r, live[i], first[i]);
        for (int k = 0; k < n_path; k++) rows[i][k] = first[i] + k;
        builder_commit(b, live[i]->slot, nodes, n_path);
        accepted[i] = (Accepted){ .slot = live[i]->slot, .first_index = committed, .n = n_path, .rows = rows[i],
                                  .tokens = live[i]->ids + committed, .next_anchor = live[i]->ids[live[i]->n_ids - 1] };
    }
    observe(r, accepted, n_live);
    return true;
}

static Run *runs_open(const Traces *t, int first, int n)
{
    Error err = { 0 };
    Run *runs = mem_alloc_array((size_t)n, sizeof *runs);
    assert_non_null(runs);
    for (int i = 0; i < n; i++) {
        runs[i].trace = &t->item[first + i];
        runs[i].slot = i;
        assert_ok(tree_alloc(&runs[i].tree, N_STEPS + 1, &err), &err);
    }
    return runs;
}

static void runs_close(Run *runs, int n)
{
    for (int i = 0; i < n; i++) tree_free(&runs[i].tree);
    mem_free(runs);
}

static Traces *open_traces(const char *file)
{
    Error err = { 0 };
    Traces *t = NULL;
    assert_ok(traces_open(&t, file, "hybrid", &err), &err);
    return t;
}

/* ---- the reference's rounds ---- */

static void check_rounds(const Run *run, int trace)
{
    const Trace *t = run->trace;
    for (int k = 0; k < NEW_TOKENS; k++)
        if (run->ids[t->n_prompt + k] != t->greedy[k]) fail_msg("trace %d: token %d differs", trace, k);
    for (int k = 0; k < t->n_mtp && k < run->n_rounds; k++)
        if (run->accept[k] != t->mtp[k])
            fail_msg("trace %d: round %d commits %d tokens, the reference's %d", trace, k, run->accept[k], t->mtp[k]);
    assert_int_equal(run->n_rounds, t->n_mtp);
}

static void check_file(const char *file)
{
    Traces *t = open_traces(file);
    Rig r = rig_open(&(RigSizes){ .dtype = DT_F32, .n_slots = MAX_SEQS });
    Run *runs = runs_open(t, 0, t->n);
    int rounds = 0;
    for (int i = 0; i < t->n; i++) read_prompt(&r, &runs[i], MAX_ROWS);
    while (play_round(&r, runs, t->n)) {}
    for (int i = 0; i < t->n; i++) check_rounds(&runs[i], i);
    for (int i = 0; i < t->n; i++) rounds += runs[i].n_rounds;
    print_message("%s: %d rounds of %d prompts equal the reference's, %.3f tokens a round\n", file, rounds, t->n,
                  (NEW_TOKENS - 1.0) * t->n / rounds);
    runs_close(runs, t->n);
    rig_close(&r);
    traces_free(t);
}

static void test_traces(void **state)
{
    check_file("nano_traces.json");
}

static void test_reference(void **state)
{
    check_file("nano_reference.json");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest quick[] = { cmocka_unit_test(test_traces) };
    const struct CMUnitTest all[] = { cmocka_unit_test(test_reference) };
    Error err = { 0 };
    numeric_mode_enter();
    if (backend_open_cpu(&backend, &(BackendOptions){ .n_workers = 2 }, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    int failed = argc > 1 && strcmp(argv[1], "all") == 0 ? cmocka_run_group_tests_name("mtp, all", all, NULL, NULL)
                                                         : cmocka_run_group_tests_name("mtp", quick, NULL, NULL);
    backend_close(backend);
    return failed;
}
