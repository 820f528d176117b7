/* MTP drafts on the trained model: the reference's rounds, one by one, and everything that must not change a guess.
 *
 * Each trace decodes in a slot of its own, all side by side; every round drafts, verifies by argmax, commits and
 * observes as the engine does. */
#include "speculation/draft_mtp.h"
#include "support/batch_builder.h"
#include "support/golden.h"

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
    bool    coupled;
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
    mtp.is_uncoupled = !sizes->coupled;
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
        bool is_last = at + n == t->n_prompt;
        if (is_last) run->ids[run->n_ids++] = argmax(builder_logits(b, 0), r->model->info.vocab_size);
        observe(r, &(Accepted){ .slot = run->slot, .first_index = at, .n = n, .tokens = run->ids + at, .rows = rows,
                                .next_anchor = is_last ? run->ids[at + n] : -1 }, 1);
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
    check_file("nano_reference.json"); /* a second of work: no reason to leave it out */
}

/* ---- what must not change a guess ---- */

static void assert_same_runs(const Run *a, const Run *b, const char *what)
{
    if (a->n_rounds != b->n_rounds || memcmp(a->accept, b->accept, sizeof a->accept) ||
        memcmp(a->draft, b->draft, sizeof a->draft))
        fail_msg("%s: the drafts differ", what);
}

/* Traces first .. first + n - 1 from their prompts to the end, side by side. */
static Run *play(const RigSizes *sizes, const Traces *t, int first, int n)
{
    Rig r = rig_open(sizes);
    Run *runs = runs_open(t, first, n);
    for (int i = 0; i < n; i++) read_prompt(&r, &runs[i], sizes->chunk);
    while (play_round(&r, runs, n)) {}
    rig_close(&r);
    return runs;
}

/* Beside others in passes that do not hold all rows, alone, with the prompt in pieces, with a full store at every token,
 * in passes of one row. */
static void test_alone(void **state)
{
    enum { N = 4 };
    static const RigSizes alone[N] = { { .chunk = 1, .max_pending = 1, .max_rows = 1 },
                                       { .chunk = 7, .max_pending = 5 },
                                       { .chunk = 40, .max_pending = 39, .max_rows = 3 },
                                       { .chunk = MAX_ROWS, .max_pending = 100 } };
    Traces *t = open_traces("nano_traces.json");
    Run *together = play(&(RigSizes){ .n_slots = N, .chunk = MAX_ROWS, .max_rows = 5 }, t, 0, N);
    for (int i = 0; i < N; i++) {
        char what[32];
        RigSizes sizes = alone[i];
        sizes.n_slots = 1;
        Run *run = play(&sizes, t, i, 1);
        snprintf(what, sizeof what, "trace %d alone", i);
        assert_same_runs(run, &together[i], what);
        runs_close(run, 1);
    }
    runs_close(together, N);
    traces_free(t);
}

static void test_slot_again(void **state)
{
    Traces *t = open_traces("nano_traces.json");
    const RigSizes sizes = { .n_slots = 1, .chunk = 20 };
    Run *fresh = play(&sizes, t, 1, 1), *runs = runs_open(t, 0, 2);
    Rig r = rig_open(&sizes);
    read_prompt(&r, &runs[0], sizes.chunk);
    for (int i = 0; i < 10; i++) play_round(&r, runs, 1);
    r.drafter->forget(r.drafter, 0);
    runs[1].slot = 0;
    read_prompt(&r, &runs[1], sizes.chunk);
    while (play_round(&r, &runs[1], 1)) {}
    assert_same_runs(&runs[1], fresh, "a slot used before");
    rig_close(&r);
    runs_close(runs, 2);
    runs_close(fresh, 1);
    traces_free(t);
}

/* The module itself, as a model whose rows bring hidden states along. */
typedef struct Module {
    Model  face;
    Mtp   *mtp;
    float *hidden, *out; /* of the rows of the pass, in their order; of its outputs */
} Module;

static int module_groups(const Model *m, CacheGroup out[MAX_GROUPS])
{
    out[0] = mtp_group(((const Module *)m)->mtp);
    return 1;
}

static void module_bind(Model *m, const CacheMemory memory[MAX_GROUPS])
{
    mtp_bind(((Module *)m)->mtp, memory[0]);
}

static void module_forward(Model *model, Stream *st, Batch *batch)
{
    Module *m = (Module *)model;
    const int64_t hidden = model->info.hidden_size;
    mtp_forward(m->mtp, st, batch, tensor_2d(m->hidden, DT_F32, batch->n_rows, hidden),
                tensor_2d(m->out, DT_F32, batch->n_outputs, hidden));
}

enum { N_WHOLE = 40, HIDDEN = 256, VOCAB = 4096 };
typedef struct Answers {
    float logits[N_WHOLE][VOCAB], out[N_WHOLE][HIDDEN];
} Answers;

/* Positions 0 .. N_WHOLE - 1 in pieces; the first n_silent give no outputs. */
static void ask(Module *m, BatchBuilder *b, const int32_t *ids, float *hidden, int32_t piece, int32_t n_silent,
                Answers *a)
{
    builder_clear(b, 1);
    for (int32_t at = 0, n; at < N_WHOLE; at += n) {
        int32_t end = at < n_silent ? n_silent : N_WHOLE;
        n = end - at < piece ? end - at : piece;
        builder_begin(b);
        int32_t row = builder_line(b, 1, ids + at, n);
        if (at >= n_silent) builder_want(b, row, n);
        m->hidden = hidden + at * HIDDEN;
        m->out = a->out[at];
        builder_forward(b);
        for (int32_t i = 0; at >= n_silent && i < n; i++)
            memcpy(a->logits[at + i], builder_logits(b, i), sizeof a->logits[0]);
    }
}

/* Which rows came along, and whether those before them had outputs, changes no bit. */
static void check_bits(DType dtype)
{
    static const int32_t pieces[] = { 1, 3, 17 };
    static Answers whole, got;
    static int32_t ids[N_WHOLE];
    static float hidden[N_WHOLE * HIDDEN];
    Error err = { 0 };
    Model *model = open_model("models/nano", dtype, 2);
    Module m = { .face = *model };
    char dir[4096];
    BatchBuilder *b = NULL;
    assert_ok(source_path(dir, sizeof dir, "models/nano", &err), &err);
    assert_ok(mtp_open(&m.mtp, model, &(MtpLoad){ .dir = dir, .max_rows = 64, .max_outputs = 64 }, &err), &err);
    m.face.groups = module_groups;
    m.face.bind = module_bind;
    m.face.forward = module_forward;
    assert_ok(builder_open(&b, &m.face, &(BuilderOptions){ .n_slots = 2, .max_tokens = 64, .max_rows = 64,
                                                           .max_outputs = 64 }, &err), &err);
    for (int i = 0; i < N_WHOLE; i++) ids[i] = (i * 977 + 13) % VOCAB;
    for (int i = 0; i < N_WHOLE * HIDDEN; i++) hidden[i] = sinf((float)i * 0.37f) * (float)(1 + i % 5);

    ask(&m, b, ids, hidden, N_WHOLE, 0, &whole);
    for (int i = 0; i < N_WHOLE; i++) assert_true(isfinite(whole.logits[i][7]) && isfinite(whole.out[i][7]));
    for (int i = 0; i < COUNT(pieces); i++) {
        ask(&m, b, ids, hidden, pieces[i], 0, &got);
        assert_memory_equal(&got, &whole, sizeof got);
        ask(&m, b, ids, hidden, pieces[i], 25, &got);
        assert_memory_equal(got.logits[25], whole.logits[25], sizeof got.logits - 25 * sizeof got.logits[0]);
        assert_memory_equal(got.out[25], whole.out[25], sizeof got.out - 25 * sizeof got.out[0]);
    }
    builder_close(b);
    mtp_close(m.mtp);
    model_close(model);
}

static void test_bits(void **state)
{
    check_bits(DT_BF16);
    check_bits(DT_F32);
}

/* ---- one prompt, one draft ---- */

/* A rig that has read a prompt, for drafts of it. */
typedef struct Scene {
    Traces *traces;
    Rig     rig;
    Run    *run;
} Scene;

static Scene scene_open(bool coupled)
{
    Scene s = { .traces = open_traces("nano_traces.json"),
                .rig = rig_open(&(RigSizes){ .n_slots = 2, .coupled = coupled }) };
    s.run = runs_open(s.traces, 0, 2);
    return s;
}

static void scene_close(Scene *s)
{
    runs_close(s->run, 2);
    rig_close(&s->rig);
    traces_free(s->traces);
}

/* Reads the prompt again and drafts. Changes to the job: what `job` has set already. */
static const Tree *draft_anew(Scene *s, const DraftJob *changes)
{
    read_prompt(&s->rig, &s->run[0], MAX_ROWS);
    DraftJob job = job_of(&s->run[0]);
    job.rule = changes->rule;
    job.draw = changes->draw;
    job.temperature = changes->temperature;
    if (changes->max_nodes) job.max_nodes = changes->max_nodes;
    if (changes->max_depth) job.max_depth = changes->max_depth;
    draft(&s->rig, &job, 1);
    return job.tree;
}

static void test_limits(void **state)
{
    Scene s = scene_open(false);
    assert_int_equal(draft_anew(&s, &(DraftJob){ 0 })->n_nodes, N_STEPS + 1);
    assert_int_equal(draft_anew(&s, &(DraftJob){ .max_nodes = 1 })->n_nodes, 1);
    assert_int_equal(draft_anew(&s, &(DraftJob){ .max_nodes = 3 })->n_nodes, 3);
    assert_int_equal(draft_anew(&s, &(DraftJob){ .max_depth = 1 })->n_nodes, 2);

    DraftJob again = job_of(&s.run[0]), unknown = job_of(&s.run[0]);
    draft(&s.rig, &again, 1); /* nothing new to draft from */
    assert_int_equal(again.tree->n_nodes, 1);
    unknown.slot = 1; /* never shown anything */
    draft(&s.rig, &unknown, 1);
    assert_int_equal(unknown.tree->n_nodes, 1);
    scene_close(&s);
}

static void test_rules(void **state)
{
    static const uint32_t mask[VOCAB / 32] = { [2] = 1u << 6 };
    Scene s = scene_open(false);
    int32_t first = draft_anew(&s, &(DraftJob){ 0 })->token[1];
    SampleParams params = { .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1 };
    const Tree *tree = draft_anew(&s, &(DraftJob){ .rule = &(RowRule){ .forced = 17, .params = &params } });
    assert_int_equal(tree->token[1], 17);
    assert_int_not_equal(tree->token[2], 17);
    assert_int_equal(tree->n_nodes, N_STEPS + 1);
    tree = draft_anew(&s, &(DraftJob){ .rule = &(RowRule){ .forced = -1, .mask = mask, .params = &params } });
    assert_int_equal(tree->token[1], 2 * 32 + 6);
    assert_int_not_equal(tree->token[2], 2 * 32 + 6);
    tree = draft_anew(&s, &(DraftJob){ .rule = &(RowRule){ .forced = -1, .banned = &first, .n_banned = 1,
                                                           .params = &params } });
    assert_int_not_equal(tree->token[1], first);
    tree = draft_anew(&s, &(DraftJob){ .rule = &(RowRule){ .forced = -1, .n_valid = 4, .params = &params } });
    for (int i = 1; i <= N_STEPS; i++) assert_in_range(tree->token[i], 0, 3);
    scene_close(&s);
}

/* A penalty counts the guesses before it: the biased token comes once. */
static void test_penalties(void **state)
{
    Scene s = scene_open(false);
    const LogitBias bias = { 99, 60 };
    History history = { 0 };
    SampleParams params = { .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, .bias = &bias, .n_bias = 1 };
    const RowRule rule = { .forced = -1, .params = &params, .history = &history };
    const Tree *tree = draft_anew(&s, &(DraftJob){ .rule = &rule });
    for (int i = 1; i <= N_STEPS; i++) assert_int_equal(tree->token[i], 99);
    params.repetition_penalty = 1000;
    tree = draft_anew(&s, &(DraftJob){ .rule = &rule });
    assert_int_equal(tree->token[1], 99);
    for (int i = 2; i <= N_STEPS; i++) assert_int_not_equal(tree->token[i], 99);
    scene_close(&s);
}

static int32_t loudest(DrawKey key, uint32_t index)
{
    int32_t best = 0;
    for (int32_t id = 1; id < VOCAB; id++)
        if (gumbel_noise(key, index, (uint32_t)id) > gumbel_noise(key, index, (uint32_t)best)) best = id;
    return best;
}

/* Where nothing but noise is left, each guess is the id with most of it at the guess's own place. */
static void test_noise(void **state)
{
    Scene s = scene_open(true);
    const DraftJob job = { .draw = { 12345, 2 }, .temperature = 1e9f };
    const Tree *tree = draft_anew(&s, &job);
    for (int i = 1; i <= N_STEPS; i++) {
        uint32_t index = (uint32_t)(s.run[0].trace->n_prompt + i); /* the anchor stands right behind the prompt */
        assert_int_equal(tree->token[i], loudest(job.draw, index));
    }
    scene_close(&s);
}

/* Coupled guesses feel the noise of the draw, by its seed and nothing else; at temperature 0 there is none. */
static void test_coupling(void **state)
{
    enum { N_SEEDS = 8 };
    Scene plain = scene_open(false), coupled = scene_open(true);
    int32_t greedy[N_STEPS], n_different = 0;
    memcpy(greedy, draft_anew(&plain, &(DraftJob){ 0 })->token + 1, sizeof greedy);
    assert_memory_equal(draft_anew(&coupled, &(DraftJob){ .draw = { 5, 0 } })->token + 1, greedy, sizeof greedy);
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
        const DraftJob job = { .draw = { seed, 0 }, .temperature = 2 };
        int32_t drawn[N_STEPS];
        assert_memory_equal(draft_anew(&plain, &job)->token + 1, greedy, sizeof greedy);
        memcpy(drawn, draft_anew(&coupled, &job)->token + 1, sizeof drawn);
        assert_memory_equal(draft_anew(&coupled, &job)->token + 1, drawn, sizeof drawn);
        n_different += memcmp(drawn, greedy, sizeof drawn) != 0;
    }
    assert_in_range(n_different, 1, N_SEEDS);
    scene_close(&plain);
    scene_close(&coupled);
}

/* Tokens that were never shown: their rows are NaN here and nobody looks at them. Nor at what an earlier request left to
 * wait in the slot, just as many tokens. */
static void test_gap(void **state)
{
    enum { UNSEEN = 10 };
    Scene s = scene_open(false);
    BatchBuilder *b = s.rig.builder;
    Run *run = &s.run[0];
    const Trace *t = run->trace;
    int32_t rows[MAX_ROWS], n = t->n_prompt - UNSEEN;
    builder_begin(b);
    builder_line(b, 0, t->prompt, UNSEEN);
    builder_forward(b);
    for (int32_t i = 0; i < MAX_ROWS; i++) rows[i] = i;
    for (int32_t i = 0; i < UNSEEN * HIDDEN; i++) b->last_hidden[i] = NAN;
    observe(&s.rig, &(Accepted){ .slot = 0, .n = UNSEEN, .next_anchor = -1, .tokens = t->prompt, .rows = rows }, 1);
    builder_begin(b);
    int32_t first = builder_line(b, 0, t->prompt + UNSEEN, n);
    builder_forward(b);
    for (int32_t i = 0; i < n; i++) rows[i] = first + i;
    s.rig.drafter->begin(s.rig.drafter, 0, 1, 0);
    observe(&s.rig, &(Accepted){ .slot = 0, .first_index = UNSEEN, .n = n, .next_anchor = -1,
                                 .tokens = t->prompt + UNSEEN, .rows = rows }, 1);
    memcpy(run->ids, t->prompt, (size_t)t->n_prompt * sizeof *run->ids);
    run->ids[t->n_prompt] = t->greedy[0];
    run->n_ids = t->n_prompt + 1;
    DraftJob job = job_of(run);
    draft(&s.rig, &job, 1);
    assert_int_equal(run->tree.n_nodes, N_STEPS + 1);
    assert_int_equal(run->tree.token[1], t->greedy[1]);
    assert_int_equal(drafter_mtp_counts(s.rig.drafter).not_finite, 0);
    scene_close(&s);
}

/* Hidden states that are no numbers: that request has no draft, its neighbour has one, the next in the slot too. */
static void test_not_finite(void **state)
{
    Scene s = scene_open(false);
    Rig *r = &s.rig;
    int32_t want[2][N_STEPS];
    for (int i = 0; i < 2; i++) read_prompt(r, &s.run[i], MAX_ROWS);
    DraftJob jobs[2] = { job_of(&s.run[0]), job_of(&s.run[1]) };
    draft(r, jobs, 2);
    for (int i = 0; i < 2; i++) memcpy(want[i], s.run[i].tree.token + 1, sizeof want[i]);

    for (int bad = 1; bad >= 0; bad--) {
        uint64_t before = drafter_mtp_counts(r->drafter).not_finite;
        for (int i = 0; i < 2; i++) read_prompt(r, &s.run[i], MAX_ROWS);
        if (bad) {
            Run *run = &s.run[0];
            int32_t n = run->trace->n_prompt, last = n - 1;
            builder_begin(r->builder); /* the neighbour's batch is in the way */
            builder_clear(r->builder, 0);
            builder_line(r->builder, 0, run->ids, n);
            builder_forward(r->builder);
            for (int i = 0; i < HIDDEN; i++) r->builder->last_hidden[last * HIDDEN + i] = NAN;
            r->drafter->begin(r->drafter, 0, 2, 0);
            int32_t rows[MAX_ROWS];
            for (int32_t i = 0; i < n; i++) rows[i] = i;
            observe(r, &(Accepted){ .slot = 0, .n = n, .next_anchor = -1, .tokens = run->ids, .rows = rows }, 1);
        }
        jobs[0] = job_of(&s.run[0]);
        jobs[1] = job_of(&s.run[1]);
        draft(r, jobs, 2);
        assert_int_equal(s.run[0].tree.n_nodes, bad ? 1 : N_STEPS + 1);
        assert_int_equal(drafter_mtp_counts(r->drafter).not_finite - before, bad);
        if (!bad) assert_memory_equal(s.run[0].tree.token + 1, want[0], sizeof want[0]);
        assert_memory_equal(s.run[1].tree.token + 1, want[1], sizeof want[1]);
    }
    scene_close(&s);
}

/* Nobody asks for drafts: nothing runs while the store has room, then only now and then; and nothing is allocated. */
static void test_idle(void **state)
{
    enum { PENDING = 64 };
    Scene s = scene_open(false);
    Run *run = &s.run[0];
    uint64_t allocations = mem_count();
    read_prompt(&s.rig, run, 1);
    assert_true(run->trace->n_prompt <= PENDING);
    assert_int_equal(drafter_mtp_counts(s.rig.drafter).passes, 0);
    for (int i = 0; i < NEW_TOKENS; i++) {
        int32_t at = run->n_ids - 1;
        builder_begin(s.rig.builder);
        builder_want(s.rig.builder, builder_line(s.rig.builder, 0, &run->ids[at], 1), 1);
        builder_forward(s.rig.builder);
        run->ids[run->n_ids++] = argmax(builder_logits(s.rig.builder, 0), VOCAB);
        observe(&s.rig, &(Accepted){ .slot = 0, .first_index = at, .n = 1, .next_anchor = run->ids[at + 1],
                                     .tokens = &run->ids[at], .rows = (int32_t[]){ 0 } }, 1);
    }
    assert_int_equal(drafter_mtp_counts(s.rig.drafter).passes, (run->n_ids - 2) / PENDING);
    DraftJob job = job_of(run);
    draft(&s.rig, &job, 1);
    assert_int_equal(run->tree.n_nodes, N_STEPS + 1);
    assert_int_equal(mem_count(), allocations);
    scene_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_traces),    cmocka_unit_test(test_reference),  cmocka_unit_test(test_alone),
        cmocka_unit_test(test_slot_again), cmocka_unit_test(test_bits),      cmocka_unit_test(test_limits),
        cmocka_unit_test(test_rules),     cmocka_unit_test(test_penalties),  cmocka_unit_test(test_noise),
        cmocka_unit_test(test_coupling),  cmocka_unit_test(test_gap),        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_idle),
    };
    Error err = { 0 };
    numeric_mode_enter();
    if (backend_open_cpu(&backend, &(BackendOptions){ .n_workers = 2 }, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    int failed = cmocka_run_group_tests_name("mtp", tests, NULL, NULL);
    backend_close(backend);
    return failed;
}
