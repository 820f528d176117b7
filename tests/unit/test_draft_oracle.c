/* The oracle: exact widths and depths, proper trees, the promised acceptance, and the same tree every time. */
#include "base/memory.h"
#include "random.h"
#include "speculation/drafter.h"
#include "speculation/verify.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

enum { VOCAB = 300, N_TRUE = 4000 };

/* The truth: one long text for every request; `n_known` may end it early. */
typedef struct Truth {
    int32_t token[N_TRUE], n_known;
} Truth;

static int32_t truth_from(void *ctx, uint64_t request_id, int32_t choice, int32_t index, const int32_t **tokens)
{
    Truth *t = ctx;
    if (index >= t->n_known) return 0;
    *tokens = t->token + index;
    return t->n_known - index;
}

static Truth *truth(void)
{
    static Truth t;
    Random r = { 41 };
    for (int i = 0; i < N_TRUE; i++) t.token[i] = random_below(&r, VOCAB);
    t.n_known = N_TRUE;
    return &t;
}

static OracleOptions options_of(double p, int32_t n_nodes, bool chain)
{
    return (OracleOptions){ .p = p, .n_nodes = n_nodes, .chain = chain, .max_depth = MAX_DEPTH - 1, .seed = 5,
                            .vocab_size = VOCAB, .truth = truth_from, .truth_ctx = truth() };
}

static Drafter *open_oracle(OracleOptions options)
{
    Drafter *d = NULL;
    Error err = { 0 };
    assert_int_equal(drafter_open_oracle(&d, &options, &err), OK);
    return d;
}

static DraftJob job_of(const Truth *t, Tree *tree, int32_t n_committed)
{
    return (DraftJob){ .n_committed = n_committed, .anchor = t->token[n_committed], .request_id = 77, .choice = 1,
                       .max_nodes = TREE_MAX_NODES, .max_depth = MAX_DEPTH - 1, .ids = t->token, .tree = tree };
}

static void draft(Drafter *d, DraftJob *jobs, int n)
{
    Error err = { 0 };
    assert_int_equal(d->draft(d, NULL, jobs, n, &err), OK);
    for (int i = 0; i < n; i++) assert_true(tree_check(jobs[i].tree));
}

static Tree empty_tree(int32_t max_nodes)
{
    Tree t;
    Error err = { 0 };
    assert_int_equal(tree_alloc(&t, max_nodes, &err), OK);
    return t;
}

/* Depth down to which the tree holds the truth. */
static int32_t accepted(const Tree *tree, const Truth *t, int32_t n_committed)
{
    int32_t node = 0, n = 0;
    while (n_committed + 1 + n < t->n_known && (node = tree_child(tree, node, t->token[n_committed + 1 + n])) >= 0) n++;
    return n;
}

static int32_t deepest(const Tree *t)
{
    int32_t depth = 0;
    for (int32_t i = 0; i < t->n_nodes; i++) depth = t->depth[i] > depth ? t->depth[i] : depth;
    return depth;
}

static void every_width_is_exact(void **state)
{
    static const double ps[] = { 0, 0.5, 1 };
    Tree tree = empty_tree(TREE_MAX_NODES);
    for (int32_t n = 1; n <= 130; n++) {
        for (int k = 0; k < COUNT(ps) * 2; k++) {
            bool chain = k % 2;
            if (chain && n > MAX_DEPTH) continue;
            OracleOptions options = options_of(ps[k / 2], n, chain);
            Drafter *d = open_oracle(options);
            for (int32_t at = 0; at < 20; at++) {
                DraftJob job = job_of(options.truth_ctx, &tree, at);
                draft(d, &job, 1);
                assert_int_equal(tree.n_nodes, n);
                assert_int_equal(tree.token[0], job.anchor);
                if (chain) assert_true(tree_is_chain(&tree));
            }
            drafter_close(d);
        }
    }
    tree_free(&tree);
}

static void trees_take_every_shape(void **state)
{
    Tree tree = empty_tree(64);
    bool depth_seen[MAX_DEPTH] = { false }, accepted_seen[MAX_DEPTH] = { false };
    int n_jumps = 0;
    OracleOptions options = options_of(1, 33, false);
    Drafter *d = open_oracle(options);
    for (int32_t at = 0; at < 2000; at++) {
        DraftJob job = job_of(options.truth_ctx, &tree, at);
        draft(d, &job, 1);
        int32_t n = accepted(&tree, options.truth_ctx, at);
        depth_seen[deepest(&tree)] = accepted_seen[n] = true;
        assert_in_range(n, 1, MAX_DEPTH - 1);
        int32_t node = 0; /* does the accepted path leave rows out? */
        for (int32_t i = 0; i < n; i++) node = tree_child(&tree, node, ((Truth *)options.truth_ctx)->token[at + 1 + i]);
        n_jumps += node != n;
    }
    for (int i = 1; i < MAX_DEPTH; i++) assert_true(accepted_seen[i]);
    for (int i = 5; i < MAX_DEPTH; i++) assert_true(depth_seen[i]);
    assert_true(n_jumps > 1000);
    drafter_close(d);
    tree_free(&tree);
}

/* Accepting d tokens has chance p^d in a chain; in a tree with a spine of random length s as well, up to s. */
static void acceptance_is_as_promised(void **state)
{
    static const double ps[] = { 0, 0.3, 0.5, 0.8, 1 };
    enum { N = 3900, ROWS = 9 };
    Tree tree = empty_tree(ROWS);
    for (int k = 0; k < COUNT(ps) * 2; k++) {
        bool chain = k % 2;
        double p = ps[k / 2];
        OracleOptions options = options_of(p, ROWS, chain);
        Drafter *d = open_oracle(options);
        int n_at_least[ROWS + 1] = { 0 };
        for (int32_t at = 0; at < N; at++) {
            DraftJob job = job_of(options.truth_ctx, &tree, at);
            draft(d, &job, 1);
            for (int32_t i = accepted(&tree, options.truth_ctx, at); i >= 0; i--) n_at_least[i]++;
        }
        for (int i = 1; i < ROWS; i++) {
            double has_depth =
                chain ? 1 : (double)(ROWS - i) / (ROWS - 1); /* spine lengths 1 .. 8 are equally likely */
            double want = pow(p, i) * has_depth, sigma = sqrt(want * (1 - want) / N);
            double got = (double)n_at_least[i] / N;
            assert_true(fabs(got - want) <= 4.5 * sigma + 1e-12);
        }
        assert_int_equal(n_at_least[ROWS], 0);
        print_message("%s p %.1f: depth 1 accepted %.3f, depth 4 %.3f\n", chain ? "chain" : "tree", p,
                      n_at_least[1] / (double)N, n_at_least[4] / (double)N);
        drafter_close(d);
    }
    tree_free(&tree);
}

static void acceptance_by_depth_is_as_promised(void **state)
{
    static const double by_depth[] = { 0.9, 0.5, 0.8 }; /* the last holds for every depth below */
    enum { N = 3900, ROWS = 6 };
    Tree tree = empty_tree(ROWS);
    OracleOptions options = options_of(0, ROWS, true);
    options.n_by_depth = COUNT(by_depth);
    options.by_depth = by_depth;
    Drafter *d = open_oracle(options);
    int n_at_least[ROWS + 1] = { 0 };
    for (int32_t at = 0; at < N; at++) {
        DraftJob job = job_of(options.truth_ctx, &tree, at);
        draft(d, &job, 1);
        for (int32_t i = accepted(&tree, options.truth_ctx, at); i >= 0; i--) n_at_least[i]++;
    }
    double want = 1;
    for (int i = 1; i < ROWS; i++) {
        want *= by_depth[i <= COUNT(by_depth) ? i - 1 : COUNT(by_depth) - 1];
        assert_true(fabs((double)n_at_least[i] / N - want) <= 4.5 * sqrt(want * (1 - want) / N));
    }
    drafter_close(d);
    tree_free(&tree);
}

static void limits_of_the_job_hold(void **state)
{
    Random r = { 42 };
    Tree tree = empty_tree(60);
    OracleOptions options = options_of(0.7, 64, false);
    options.max_depth = 20;
    Drafter *d = open_oracle(options);
    for (int k = 0; k < 2000; k++) {
        DraftJob job = job_of(options.truth_ctx, &tree, random_below(&r, 3000));
        job.max_nodes = 1 + random_below(&r, 80);
        job.max_depth = random_below(&r, MAX_DEPTH);
        draft(d, &job, 1);
        int32_t want = job.max_nodes < 60 ? job.max_nodes : 60, depth = job.max_depth < 20 ? job.max_depth : 20;
        assert_int_equal(tree.n_nodes, depth > 0 ? want : 1);
        assert_true(deepest(&tree) <= depth);
    }
    drafter_close(d);
    tree_free(&tree);
}

static void check_same_tree(const Tree *a, const Tree *b)
{
    assert_int_equal(a->n_nodes, b->n_nodes);
    assert_memory_equal(a->token, b->token, (size_t)a->n_nodes * sizeof *a->token);
    assert_memory_equal(a->parent, b->parent, (size_t)a->n_nodes * sizeof *a->parent);
}

static void same_key_same_tree(void **state)
{
    Tree alone = empty_tree(17), beside[3] = { empty_tree(17), empty_tree(17), empty_tree(17) };
    OracleOptions options = options_of(0.5, 17, false);
    Drafter *d = open_oracle(options), *again = open_oracle(options);
    options.seed++;
    Drafter *other = open_oracle(options);
    int n_equal = 0;
    for (int32_t at = 0; at < 100; at++) {
        DraftJob job = job_of(options.truth_ctx, &alone, at), jobs[3];
        for (int i = 0; i < 3; i++) jobs[i] = job_of(options.truth_ctx, &beside[i], at);
        jobs[0].request_id += 1ull << 32; /* strangers beside it */
        jobs[2].choice++;
        draft(d, &job, 1);
        draft(again, jobs, 3);
        check_same_tree(&alone, &beside[1]);
        for (int i = 0; i < 3; i += 2) n_equal += !memcmp(alone.token, beside[i].token, 17 * sizeof *alone.token);
        DraftJob with_other_seed = job_of(options.truth_ctx, &beside[0], at);
        draft(other, &with_other_seed, 1);
        n_equal += !memcmp(alone.token, beside[0].token, 17 * sizeof *alone.token);
    }
    assert_int_equal(n_equal, 0);
    drafter_close(d);
    drafter_close(again);
    drafter_close(other);
    tree_free(&alone);
    for (int i = 0; i < 3; i++) tree_free(&beside[i]);
}

/* Where the truth ends, the width does not. */
static void unknown_truth_keeps_the_width(void **state)
{
    Tree tree = empty_tree(32);
    for (int chain = 0; chain < 2; chain++) {
        OracleOptions options = options_of(1, 32, chain);
        Truth *t = options.truth_ctx;
        Drafter *d = open_oracle(options);
        for (int32_t known = 0; known < 5; known++) {
            DraftJob job = job_of(t, &tree, 10);
            t->n_known = 11 + known;
            draft(d, &job, 1);
            assert_int_equal(tree.n_nodes, 32);
            if (chain) assert_int_equal(accepted(&tree, t, 10), known);
        }
        drafter_close(d);
    }
    tree_free(&tree);
}

static void two_ids_are_enough(void **state)
{
    Tree tree = empty_tree(20);
    for (int p = 0; p <= 1; p++) {
        OracleOptions options = options_of(p, 20, false);
        Truth *t = options.truth_ctx;
        options.vocab_size = 2;
        for (int i = 0; i < N_TRUE; i++) t->token[i] %= 2;
        Drafter *d = open_oracle(options);
        for (int32_t at = 0; at < 500; at++) {
            DraftJob job = job_of(t, &tree, at);
            draft(d, &job, 1);
            if (p == 0) assert_int_equal(accepted(&tree, t, at), 0);
        }
        drafter_close(d);
    }
    tree_free(&tree);
}

static void bad_options_are_refused(void **state)
{
    OracleOptions bad[8];
    for (int i = 0; i < COUNT(bad); i++) bad[i] = options_of(0.5, 10, i % 2);
    bad[0].p = 1.5;
    bad[1].p = NAN;
    bad[2].vocab_size = 1;
    bad[3].max_depth = 0;
    bad[4].max_depth = MAX_DEPTH;
    bad[5].n_nodes = MAX_DEPTH + 1;
    bad[6].n_nodes = 0;
    bad[7].n_nodes = TREE_MAX_NODES + 1;
    for (int i = 0; i < COUNT(bad); i++) {
        Drafter *d = NULL;
        Error err = { 0 };
        assert_int_equal(drafter_open_oracle(&d, &bad[i], &err), ERR_INPUT);
        assert_null(d);
        assert_true(strlen(err.text) > 0);
    }
}

static void other_methods_do_no_harm(void **state)
{
    OracleOptions options = options_of(0.5, 5, true);
    Drafter *d = open_oracle(options);
    ModelInfo fitting = { .vocab_size = VOCAB }, other = { .vocab_size = VOCAB + 1 };
    CacheGroup groups[MAX_GROUPS];
    Error err = { 0 };
    assert_string_equal(d->name, "oracle");
    assert_int_equal(d->fits(d, &fitting, &err), OK);
    assert_int_equal(d->fits(d, &other, &err), ERR_INPUT);
    assert_int_equal(d->groups(d, groups), 0);
    d->bind(d, NULL);
    d->begin(d, 0, 77, 1);
    d->observe(d, NULL, NULL, NULL, 0);
    d->forget(d, 0);
    drafter_close(d);
    drafter_close(NULL);
}

static void drafting_allocates_nothing(void **state)
{
    Tree tree = empty_tree(64);
    OracleOptions options = options_of(0.5, 64, false);
    Drafter *d = open_oracle(options);
    uint64_t before = mem_count();
    for (int32_t at = 0; at < 50; at++) {
        DraftJob job = job_of(options.truth_ctx, &tree, at);
        draft(d, &job, 1);
    }
    assert_int_equal(mem_count() - before, 0);
    drafter_close(d);
    tree_free(&tree);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_width_is_exact),
        cmocka_unit_test(trees_take_every_shape),
        cmocka_unit_test(acceptance_is_as_promised),
        cmocka_unit_test(acceptance_by_depth_is_as_promised),
        cmocka_unit_test(limits_of_the_job_hold),
        cmocka_unit_test(same_key_same_tree),
        cmocka_unit_test(unknown_truth_keeps_the_width),
        cmocka_unit_test(two_ids_are_enough),
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(other_methods_do_no_harm),
        cmocka_unit_test(drafting_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
