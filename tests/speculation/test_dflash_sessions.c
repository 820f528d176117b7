/* What may not change a draft (neighbours, chunks, the slot's past, how long the drafter was idle), what bounds it
 * (limits and rules of the job), and what happens when it breaks. */
#include "sampling/choose.h"
#include "speculation/draft_dflash.h"
#include "speculation/dflash_feed.h"
#include "support/checkpoint.h"
#include "support/draft_rig.h"
#include "support/golden.h"

#include "base/memory.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

enum { N_SLOTS = 8, N_TEXTS = 8, CHAIN = 0, TREE = 1, SPINE = 2 };

static void assert_ok(Status s, const Error *err)
{
    if (s) fail_msg("%s", err->text);
}

/* ---- a rig over the hybrid pair ---- */

static Drafter *open_drafter(const DraftRig *rig, const char *below, const DflashOptions *more)
{
    Error err = { 0 };
    char dir[4096];
    Drafter *drafter = NULL;
    DflashOptions o = *more;
    assert_ok(source_path(dir, sizeof dir, below, &err), &err);
    o.dir = dir;
    o.backend = rig->backend;
    o.target = rig->model;
    if (!o.n_slots) o.n_slots = N_SLOTS;
    assert_ok(drafter_open_dflash(&drafter, &o, &err), &err);
    return drafter;
}

static DraftRig open_rig(DType dtype, const DflashOptions *options)
{
    Error err = { 0 };
    DraftRig rig;
    assert_ok(
        draft_rig_open(&rig, &(DraftRigOptions){ .target = "models/nano", .dtype = dtype, .n_slots = N_SLOTS }, &err),
        &err);
    draft_rig_attach(&rig, open_drafter(&rig, "models/nano-DFlash", options));
    return rig;
}

static const DflashOptions all_methods = { .methods = DFLASH_CHAIN | DFLASH_TREE | DFLASH_SPINE };

static Traces *open_texts(void)
{
    Error err = { 0 };
    Traces *t = NULL;
    assert_ok(traces_open(&t, "nano_traces.json", "hybrid", &err), &err);
    return t;
}

static Status try_draft(DraftRig *rig, DraftJob *jobs, int n)
{
    Error err = { 0 };
    Status s = rig->drafter->draft(rig->drafter, backend_stream(rig->backend), jobs, n, &err);
    assert_int_equal(s != OK, err.text[0] != 0);
    for (int i = 0; i < n; i++) {
        assert_true(tree_check(jobs[i].tree));
        assert_int_equal(jobs[i].tree->token[0], jobs[i].anchor);
    }
    return s;
}

static void draft(DraftRig *rig, DraftJob *jobs, int n)
{
    assert_int_equal(try_draft(rig, jobs, n), OK);
}

/* ---- the same drafts ---- */

typedef struct Draft {
    int32_t n, token[65], parent[65];
    float   score[65];
} Draft;

static void keep(const Tree *t, Draft *out)
{
    memset(out, 0, sizeof *out);
    out->n = t->n_nodes;
    memcpy(out->token, t->token, (size_t)t->n_nodes * sizeof(int32_t));
    memcpy(out->parent, t->parent, (size_t)t->n_nodes * sizeof(int32_t));
    memcpy(out->score, t->score, (size_t)t->n_nodes * sizeof(float));
}

enum { N_ROUNDS = 12 };

/* Tokens that round r of a text commits, and what it is drafted by. */
static int32_t gained(int32_t r)
{
    return 1 + r * 5 % 9;
}
static int32_t method_of(int32_t text, int32_t r)
{
    return (text + r) % 3;
}

static void run_prompt(DraftRig *rig, const Trace *t, int32_t slot, int32_t chunk)
{
    draft_rig_begin(rig, slot);
    for (int32_t at = 0, n; at < t->n_prompt; at += n) {
        n = t->n_prompt - at < chunk ? t->n_prompt - at : chunk;
        draft_rig_run(rig, &(DraftRigLine){ slot, n, t->prompt + at }, 1);
    }
}

/* All rounds of n texts, in slots first_slot ..; drafts only in rounds from `first_draft` on. */
static void run_rounds(DraftRig *rig, const Traces *t, int32_t first_text, int32_t n, int32_t first_slot,
                       int32_t first_draft, Draft (*out)[N_ROUNDS])
{
    int32_t at = 1;
    for (int32_t r = 0; r < N_ROUNDS; at += gained(r++)) {
        DraftJob jobs[N_TEXTS];
        DraftRigLine lines[N_TEXTS];
        for (int32_t i = 0; i < n; i++) {
            const Trace *trace = &t->item[first_text + i];
            jobs[i] = draft_rig_job(rig, first_slot + i, trace->greedy[at - 1]);
            jobs[i].method = method_of(first_text + i, r);
            lines[i] = (DraftRigLine){ first_slot + i, gained(r), trace->greedy + at - 1 };
        }
        if (r >= first_draft) draft(rig, jobs, n);
        for (int32_t i = 0; i < n && r >= first_draft; i++) keep(jobs[i].tree, &out[i][r]);
        draft_rig_run(rig, lines, n);
    }
}

static void assert_same_drafts(const char *what, Draft (*got)[N_ROUNDS], Draft (*want)[N_ROUNDS], int32_t n,
                               int32_t first)
{
    for (int32_t i = 0; i < n; i++)
        for (int32_t r = first; r < N_ROUNDS; r++)
            if (memcmp(&got[i][r], &want[i][r], sizeof(Draft)) != 0)
                fail_msg("%s: text %d, round %d differs", what, i, r);
}

static void check_same_drafts(DType dtype)
{
    static Draft alone[N_TEXTS][N_ROUNDS], got[N_TEXTS][N_ROUNDS];
    Traces *t = open_texts();
    for (int32_t i = 0; i < N_TEXTS; i++) { /* each as the first thing that its drafter sees */
        DraftRig fresh = open_rig(dtype, &all_methods);
        run_prompt(&fresh, &t->item[i], 0, 256);
        run_rounds(&fresh, t, i, 1, 0, 0, &alone[i]);
        draft_rig_close(&fresh);
    }
    DraftRig rig = open_rig(dtype, &all_methods);
    for (int32_t i = 0; i < N_TEXTS; i++) { /* one after another in one slot, prompts in pieces */
        static const int32_t chunks[] = { 1, 5, 16, 63, 64, 65, 7, 200 };
        run_prompt(&rig, &t->item[i], 3, chunks[i]);
        run_rounds(&rig, t, i, 1, 3, 0, &got[i]);
    }
    assert_same_drafts("one slot", got, alone, N_TEXTS, 0);
    for (int32_t i = 0; i < N_TEXTS; i++) run_prompt(&rig, &t->item[i], i, 40); /* all at once */
    run_rounds(&rig, t, 0, N_TEXTS, 0, 0, got);
    assert_same_drafts("all at once", got, alone, N_TEXTS, 0);
    for (int32_t i = 0; i < N_TEXTS; i++) run_prompt(&rig, &t->item[i], i, 11); /* idle, then all at once */
    run_rounds(&rig, t, 0, N_TEXTS, 0, N_ROUNDS - 2, got);
    assert_same_drafts("after a while", got, alone, N_TEXTS, N_ROUNDS - 2);
    draft_rig_close(&rig);
    mem_free(t);
}

static void test_same_drafts(void **state)
{
    check_same_drafts(DT_F32);
    check_same_drafts(DT_BF16);
}

/* ---- what it costs ---- */

static uint64_t linear_calls(const DraftRig *rig)
{
    uint64_t sum = 0;
    const RowCounts *counts = stream_row_counts(backend_stream(rig->backend));
    for (int i = 1; i <= COUNT_ROWS_MAX; i++) sum += counts->linear[i]; /* [0]: calls without rows */
    return sum;
}

/* What the drafter's observe() does to the count, over plain steps of one slot. */
static void test_idle_reads_no_weights(void **state)
{
    Traces *t = open_texts();
    DraftRig rig = open_rig(DT_BF16, &all_methods), plain = open_rig(DT_BF16, &all_methods);
    const Trace *trace = &t->item[0];
    run_prompt(&rig, trace, 0, 256);
    run_prompt(&plain, trace, 1, 256);
    plain.drafter->forget(plain.drafter, 1); /* this one does not listen */
    uint64_t before = linear_calls(&rig) - linear_calls(&plain);
    int32_t waiting = trace->n_prompt % FEED_ROWS, n_flushes = 0;
    for (int32_t k = 0; k < 90; k++) {
        draft_rig_run(&rig, &(DraftRigLine){ 0, 1, trace->greedy + k }, 1);
        draft_rig_run(&plain, &(DraftRigLine){ 1, 1, trace->greedy + k }, 1);
        bool is_full = ++waiting == FEED_ROWS;
        uint64_t extra = linear_calls(&rig) - linear_calls(&plain) - before;
        if (is_full) {
            assert_int_equal(extra, 1 + 2); /* fc; k and v of two layers */
            waiting = 0;
            n_flushes++;
        } else {
            assert_int_equal(extra, 0);
        }
        before += extra;
    }
    assert_true(n_flushes >= 1);
    draft_rig_close(&rig);
    draft_rig_close(&plain);
    mem_free(t);
}

static void test_no_allocation(void **state)
{
    Traces *t = open_texts();
    DraftRig rig = open_rig(DT_BF16, &all_methods);
    static Draft drafts[N_TEXTS][N_ROUNDS];
    uint64_t before = mem_count();
    for (int32_t i = 0; i < N_TEXTS; i++) run_prompt(&rig, &t->item[i], i, 50);
    run_rounds(&rig, t, 0, N_TEXTS, 0, 0, drafts);
    assert_int_equal(mem_count(), before);
    draft_rig_close(&rig);
    mem_free(t);
}

/* ---- limits and rules ---- */

static DraftRig open_ready(const DflashOptions *options, Traces *t)
{
    DraftRig rig = open_rig(DT_BF16, options);
    for (int32_t i = 0; i < N_SLOTS; i++) run_prompt(&rig, &t->item[i], i, 256);
    return rig;
}

static void test_limits(void **state)
{
    Traces *t = open_texts();
    DraftRig rig = open_ready(&all_methods, t);
    static const int32_t depths[] = { 0, 1, 2, 7, 15, 31 }, nodes[] = { 1, 2, 3, 9, 16, 17, 65 };
    DraftJob whole = draft_rig_job(&rig, 0, t->item[0].greedy[0]);
    Draft chain;
    draft(&rig, &whole, 1);
    keep(whole.tree, &chain);
    assert_int_equal(chain.n, 16);
    for (int d = 0; d < COUNT(depths); d++)
        for (int n = 0; n < COUNT(nodes); n++)
            for (int m = CHAIN; m <= SPINE; m++) {
                DraftJob job = draft_rig_job(&rig, 0, t->item[0].greedy[0]);
                job.max_depth = depths[d];
                job.max_nodes = nodes[n];
                job.method = m;
                draft(&rig, &job, 1);
                int32_t deepest = 0, depth = depths[d] < 15 ? depths[d] : 15;
                for (int32_t i = 0; i < job.tree->n_nodes; i++)
                    if (job.tree->depth[i] > deepest) deepest = job.tree->depth[i];
                assert_true(deepest <= depths[d]);
                assert_int_equal(job.tree->n_nodes, depth == 0                           ? 1
                                                    : m != CHAIN || nodes[n] - 1 < depth ? nodes[n]
                                                                                         : depth + 1);
                for (int32_t i = 0; i < job.tree->n_nodes && m == CHAIN; i++)
                    assert_int_equal(job.tree->token[i], chain.token[i]);
                if (m == SPINE && nodes[n] > depth)
                    for (int32_t i = 0; i <= depth; i++) assert_int_equal(job.tree->token[i], chain.token[i]);
            }
    draft_rig_close(&rig);
    mem_free(t);
}

/* Rules of the request: what it bans, biases, forces or masks is drafted accordingly. */
static void test_rules(void **state)
{
    Traces *t = open_texts();
    DraftRig rig = open_ready(&all_methods, t);
    for (int m = CHAIN; m <= SPINE; m++) {
        DraftJob job = draft_rig_job(&rig, 0, t->item[0].greedy[0]);
        job.method = m;
        draft(&rig, &job, 1);
        Draft free_draft;
        keep(job.tree, &free_draft);
        int32_t first = free_draft.token[1];

        LogitBias bias = { first, -100 };
        SampleParams params = { .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1 };
        RowRule rule = { .forced = -1, .params = &params };
        job.rule = &rule;
        draft(&rig, &job, 1); /* a rule that rules nothing */
        assert_int_equal(job.tree->token[1], first);

        rule.banned = &first;
        rule.n_banned = 1;
        draft(&rig, &job, 1);
        for (int32_t i = 1; i < job.tree->n_nodes; i++) assert_int_not_equal(job.tree->token[i], first);
        rule.n_banned = 0;

        params.bias = &bias;
        params.n_bias = 1;
        draft(&rig, &job, 1);
        for (int32_t i = 1; i < job.tree->n_nodes; i++) assert_int_not_equal(job.tree->token[i], first);
        params.n_bias = 0;

        rule.forced = 77;
        draft(&rig, &job, 1);
        int32_t n_free = 0;
        for (int32_t i = 1; i < job.tree->n_nodes; i++)
            if (job.tree->depth[i] == 1) assert_int_equal(job.tree->token[i], 77);
            else n_free += job.tree->token[i] != 77;
        assert_true(n_free > 0); /* only the first token is forced */
        rule.forced = -1;

        rule.n_valid = 500;
        draft(&rig, &job, 1);
        for (int32_t i = 1; i < job.tree->n_nodes; i++) assert_true(job.tree->token[i] < 500);
        rule.n_valid = 0;

        uint32_t mask[4096 / 32] = { 0 };
        mask[1234 / 32] |= 1u << 1234 % 32;
        rule.mask = mask;
        draft(&rig, &job, 1);
        int32_t n_others = 0;
        for (int32_t i = 1; i < job.tree->n_nodes; i++)
            if (job.tree->depth[i] == 1) assert_int_equal(job.tree->token[i], 1234);
            else n_others += job.tree->token[i] != 1234;
        assert_true(n_others > 0); /* what a grammar allows later is not known here */
        rule.mask = NULL;

        params.repetition_penalty = 5; /* nothing twice in a chain, nothing of the prompt if it can be helped */
        History history = { .prompt = rig.ids, .n_prompt = job.n_committed, .path = &job.anchor, .n_path = 1 };
        rule.history = &history;
        draft(&rig, &job, 1);
        Draft penalised;
        keep(job.tree, &penalised);
        assert_memory_not_equal(&penalised, &free_draft, sizeof penalised);
        for (int32_t i = 1; i < penalised.n && m == CHAIN; i++)
            for (int32_t k = 1; k < i; k++) assert_int_not_equal(penalised.token[i], penalised.token[k]);
    }
    draft_rig_close(&rig);
    mem_free(t);
}

/* At temperature the seed decides what is drafted; uncoupled drafts do not know it. */
static void test_temperature(void **state)
{
    Traces *t = open_texts();
    DflashOptions options = all_methods;
    for (int u = 0; u < 2; u++) {
        options.is_uncoupled = u;
        DraftRig rig = open_ready(&options, t);
        for (int m = CHAIN; m <= SPINE; m++) {
            Draft cold, seen[6];
            DraftJob job = draft_rig_job(&rig, 2, t->item[2].greedy[0]);
            job.method = m;
            draft(&rig, &job, 1);
            keep(job.tree, &cold);
            int n_other = 0;
            for (int i = 0; i < COUNT(seen); i++) {
                job.temperature = 1.5f;
                job.draw.seed = 100 + (uint64_t)(i / 2); /* twice each */
                draft(&rig, &job, 1);
                keep(job.tree, &seen[i]);
                n_other += memcmp(&seen[i], &cold, sizeof cold) != 0;
                if (i % 2) assert_memory_equal(&seen[i], &seen[i - 1], sizeof cold);
            }
            assert_int_equal(n_other, u ? 0 : COUNT(seen));
        }
        draft_rig_close(&rig);
    }
    mem_free(t);
}

/* ---- gaps and faults ---- */

static void run_unseen(DraftRig *rig, int32_t slot, const int32_t *tokens, int32_t n)
{
    builder_begin(rig->builder);
    builder_line(rig->builder, slot, tokens, n);
    builder_forward(rig->builder);
}

/* Tokens that the drafter was not told of: no draft until it sees a pass again, then drafts from what it has. */
static void test_gap(void **state)
{
    Traces *t = open_texts();
    DraftRig rig = open_ready(&all_methods, t);
    const Trace *trace = &t->item[1];
    run_prompt(&rig, &t->item[5], 1, 256); /* so that rows of somebody else lie where nobody will write */
    draft_rig_run(&rig, &(DraftRigLine){ 1, 90, t->item[5].greedy }, 1);
    DraftJob flush = draft_rig_job(&rig, 1, 7);
    draft(&rig, &flush, 1);
    run_prompt(&rig, trace, 1, 256);
    run_unseen(&rig, 1, trace->greedy, 4);
    DraftJob jobs[2] = { draft_rig_job(&rig, 1, trace->greedy[4]), draft_rig_job(&rig, 2, t->item[2].greedy[0]) };
    draft(&rig, jobs, 2);
    assert_int_equal(jobs[0].tree->n_nodes, 1);
    assert_int_equal(jobs[1].tree->n_nodes, 16);
    draft_rig_run(&rig, &(DraftRigLine){ 1, 6, trace->greedy + 4 }, 1);
    jobs[0] = draft_rig_job(&rig, 1, trace->greedy[10]);
    draft(&rig, jobs, 1);
    assert_int_equal(jobs[0].tree->n_nodes, 16);

    /* What lies before the gap is not looked at: garbage there changes nothing. */
    Draft before, after;
    keep(jobs[0].tree, &before);
    int32_t n_prompt = trace->n_prompt / 16 * 16;
    const CacheMemory *m = &rig.memory[0];
    for (int32_t b = 0; b < n_prompt / 16; b++)
        for (int layer = 0; layer < 2; layer++) {
            size_t block_bytes = m->layer_bytes / ((size_t)N_SLOTS * (size_t)m->max_blocks + 1);
            memset((char *)m->data + (size_t)layer * m->layer_bytes +
                       (size_t)m->block_table[m->max_blocks + b] * block_bytes,
                   0xff, block_bytes);
        }
    jobs[0] = draft_rig_job(&rig, 1, trace->greedy[10]);
    draft(&rig, jobs, 1);
    keep(jobs[0].tree, &after);
    assert_memory_equal(&before, &after, sizeof before);
    draft_rig_close(&rig);
    mem_free(t);
}

/* Accepted paths of trees: rows that do not follow one another. */
static void test_tree_rows(void **state)
{
    static const int32_t parents[] = { -1, 0, 0, 1, 1, 4, 4, 6, 5, 7 }, path[] = { 0, 1, 4, 6, 7, 9 };
    Traces *t = open_texts();
    DraftRig rig = open_ready(&all_methods, t);
    const Trace *trace = &t->item[3];
    Draft want, got;
    draft_rig_run(&rig, &(DraftRigLine){ 3, COUNT(path), trace->greedy }, 1);
    DraftJob job = draft_rig_job(&rig, 3, trace->greedy[COUNT(path)]);
    job.method = TREE;
    draft(&rig, &job, 1);
    keep(job.tree, &want);

    int32_t tokens[COUNT(parents)], rows[COUNT(path)];
    run_prompt(&rig, trace, 3, 256);
    for (int i = 0; i < COUNT(parents); i++) tokens[i] = 4000 - i;
    for (int i = 0; i < COUNT(path); i++) tokens[path[i]] = trace->greedy[i];
    builder_begin(rig.builder);
    int32_t first = builder_tree(rig.builder, 3, tokens, parents, COUNT(parents));
    builder_forward(rig.builder);
    builder_commit(rig.builder, 3, path, COUNT(path));
    for (int i = 0; i < COUNT(path); i++) rows[i] = first + path[i];
    Accepted accepted = { .slot = 3, .first_index = trace->n_prompt, .n = COUNT(path), .next_anchor = -1,
                          .tokens = trace->greedy, .rows = rows };
    rig.drafter->observe(rig.drafter, backend_stream(rig.backend), &rig.builder->batch, &accepted, 1);
    job = draft_rig_job(&rig, 3, trace->greedy[COUNT(path)]);
    job.method = TREE;
    draft(&rig, &job, 1);
    keep(job.tree, &got);
    assert_memory_equal(&got, &want, sizeof want);
    draft_rig_close(&rig);
    mem_free(t);
}

/* A slot that nobody began, and one that was forgotten. */
static void test_no_session(void **state)
{
    Traces *t = open_texts();
    DraftRig rig = open_rig(DT_BF16, &all_methods);
    draft_rig_run(&rig, &(DraftRigLine){ 0, 20, t->item[0].prompt }, 1);
    DraftJob job = draft_rig_job(&rig, 0, 5);
    draft(&rig, &job, 1);
    assert_int_equal(job.tree->n_nodes, 1);
    run_prompt(&rig, &t->item[1], 0, 256);
    rig.drafter->forget(rig.drafter, 0);
    job = draft_rig_job(&rig, 0, 5);
    draft(&rig, &job, 1);
    assert_int_equal(job.tree->n_nodes, 1);
    draft_rig_close(&rig);
    mem_free(t);
}

/* NaN in what one slot's drafts are made from: no draft there, the others' as ever; everywhere: an error. */
static void test_broken_numbers(void **state)
{
    Traces *t = open_texts();
    for (int m = CHAIN; m <= SPINE; m++) {
        DraftRig rig = open_ready(&all_methods, t);
        DraftJob jobs[3];
        Draft whole[3], got;
        for (int32_t i = 0; i < 3; i++) {
            jobs[i] = draft_rig_job(&rig, i, t->item[i].greedy[0]);
            jobs[i].method = m;
        }
        draft(&rig, jobs, 3);
        for (int32_t i = 0; i < 3; i++) keep(jobs[i].tree, &whole[i]);
        const CacheMemory *mem = &rig.memory[0];
        size_t block_bytes = mem->layer_bytes / ((size_t)N_SLOTS * (size_t)mem->max_blocks + 1);
        memset((char *)mem->data + (size_t)mem->block_table[mem->max_blocks] * block_bytes, 0xff,
               block_bytes); /* slot 1 */
        draft(&rig, jobs, 3);
        for (int32_t i = 0; i < 3; i++) {
            keep(jobs[i].tree, &got);
            if (i == 1) assert_int_equal(got.n, 1);
            else assert_memory_equal(&got, &whole[i], sizeof got);
        }
        assert_int_equal(try_draft(&rig, &jobs[1], 1), ERR_NUMERIC);
        assert_int_equal(jobs[1].tree->n_nodes, 1);
        draft_rig_close(&rig);
    }
    mem_free(t);
}

/* ---- opening ---- */

static void refuse(const DraftRig *rig, const char *below, DflashOptions o, const char *says)
{
    Error err = { 0 };
    char dir[4096];
    Drafter *drafter = NULL;
    size_t before = backend_bytes(rig->backend);
    assert_ok(source_path(dir, sizeof dir, below, &err), &err);
    o.dir = below[0] == '/' ? below : dir;
    o.backend = rig->backend;
    o.target = rig->model;
    assert_int_not_equal(drafter_open_dflash(&drafter, &o, &err), OK);
    assert_null(drafter);
    assert_int_equal(backend_bytes(rig->backend), before);
    if (!strstr(err.text, says)) fail_msg("\"%s\" does not say \"%s\"", err.text, says);
}

static void test_refused(void **state)
{
    DraftRig rig = open_rig(DT_BF16, &all_methods);
    refuse(&rig, "models/nano-plain-DFlash", (DflashOptions){ .n_slots = 1 },
           "num_target_layers is 6, but the target has 8");
    refuse(&rig, "tests/data/golden/dflash/draft", (DflashOptions){ .n_slots = 1 }, "made for hidden states of 64");
    refuse(&rig, "models/nano", (DflashOptions){ .n_slots = 1 }, "Qwen3_5");
    refuse(&rig, "models/nano-DFlash", (DflashOptions){ .n_slots = 0 }, "0 sequences");
    refuse(&rig, "models/nano-DFlash", (DflashOptions){ .n_slots = 1, .methods = 16 }, "no such method");
    refuse(&rig, "models/nano-DFlash", (DflashOptions){ .n_slots = 1, .tree_budget = 5000 }, "5000 nodes");
    refuse(&rig, "models/nano-DFlash", (DflashOptions){ .n_slots = 1, .block_size = 17 }, "block of 17 rows");
    draft_rig_close(&rig);
}

static void test_methods(void **state)
{
    DraftRig rig = open_rig(DT_BF16, &all_methods);
    const Drafter *d = rig.drafter;
    static const char *const names[] = { "dflash", "ddtree", "ddtree-spine" };
    assert_int_equal(d->n_methods, 3);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(d->methods[i].name, names[i]);
        assert_int_equal(d->methods[i].is_tree, i > 0);
        assert_int_equal(d->methods[i].max_nodes, i > 0 ? 65 : 16);
        assert_int_equal(d->methods[i].max_depth, 15);
    }
    draft_rig_detach(&rig);
    draft_rig_attach(
        &rig, open_drafter(&rig, "models/nano-DFlash", &(DflashOptions){ .methods = DFLASH_TREE, .tree_budget = 20 }));
    assert_int_equal(rig.drafter->n_methods, 1);
    assert_string_equal(rig.drafter->methods[0].name, "ddtree");
    assert_int_equal(rig.drafter->methods[0].max_nodes, 21);
    draft_rig_close(&rig);
}

static void test_no_memory(void **state)
{
    Error err = { 0 };
    char dir[4096];
    DraftRig rig = open_rig(DT_BF16, &all_methods);
    size_t before = backend_bytes(rig.backend);
    int n_failed = 0;
    assert_ok(source_path(dir, sizeof dir, "models/nano-DFlash", &err), &err);
    DflashOptions o = {
        .dir = dir, .backend = rig.backend, .target = rig.model, .n_slots = 2, .methods = DFLASH_CHAIN | DFLASH_TREE
    };
    for (int64_t nth = 1;; nth++, n_failed++) {
        Drafter *drafter = NULL;
        error_clear(&err);
        mem_fail_at(nth);
        Status s = drafter_open_dflash(&drafter, &o, &err);
        mem_fail_at(0);
        if (!s) {
            drafter_close(drafter);
            break;
        }
        assert_null(drafter);
        assert_true(err.text[0]);
        assert_int_equal(backend_bytes(rig.backend), before);
    }
    assert_true(n_failed > 20);
    draft_rig_close(&rig);
}

static void test_needs(void **state)
{
    Error err = { 0 };
    char dir[4096];
    DflashNeeds needs;
    DraftRig rig = open_rig(DT_BF16, &all_methods);
    assert_ok(source_path(dir, sizeof dir, "models/nano-DFlash", &err), &err);
    DflashOptions o = { .dir = dir, .n_slots = N_SLOTS, .methods = all_methods.methods };
    assert_ok(drafter_dflash_needs(&o, &rig.model->info, &needs, &err), &err);
    assert_int_equal(needs.group.entry_bytes, 2 * 2 * 64 * 2);
    assert_int_equal(needs.group.n_layers, 2);
    assert_int_equal(needs.group.spare, 16);
    assert_int_equal(needs.n_taps, 3);
    CacheGroup groups[MAX_GROUPS];
    assert_int_equal(rig.drafter->groups(rig.drafter, groups), 1);
    assert_int_equal(groups[0].entry_bytes, needs.group.entry_bytes);
    size_t before = backend_bytes(rig.backend);
    Drafter *other = open_drafter(&rig, "models/nano-DFlash", &all_methods);
    size_t took = backend_bytes(rig.backend) - before;
    assert_true(took >= needs.weight_bytes && took <= needs.weight_bytes + needs.scratch_bytes + 64 * 64);
    drafter_close(other);
    assert_int_equal(backend_bytes(rig.backend), before);
    draft_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_drafts), cmocka_unit_test(test_idle_reads_no_weights),
        cmocka_unit_test(test_no_allocation), cmocka_unit_test(test_limits),
        cmocka_unit_test(test_rules),       cmocka_unit_test(test_temperature),
        cmocka_unit_test(test_gap),         cmocka_unit_test(test_tree_rows),
        cmocka_unit_test(test_no_session),  cmocka_unit_test(test_broken_numbers),
        cmocka_unit_test(test_refused),     cmocka_unit_test(test_methods),
        cmocka_unit_test(test_no_memory),   cmocka_unit_test(test_needs),
    };
    numeric_mode_enter();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
