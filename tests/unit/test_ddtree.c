/* Draft trees against those of the published builder (tests/data/golden/ddtree), and, with the ties and masks that are
 * not among them, against a sorted list of all prefixes. */
#include "backend/backend.h"
#include "base/memory.h"
#include "random.h"
#include "sampling/softmax.h"
#include "speculation/ddtree.h"
#include "tensor/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { N_GOLDEN = 24, MAX_BUDGET = 256, MAX_ROWS = MAX_DEPTH - 1 };

static DdTree *open_builder(void)
{
    DdTree *b = NULL;
    Error err = { 0 };
    assert_int_equal(ddtree_open(&b, MAX_BUDGET, MAX_ROWS, &err), OK);
    return b;
}

static Tree tree_of(int32_t max_nodes)
{
    Tree t;
    Error err = { 0 };
    assert_int_equal(tree_alloc(&t, max_nodes, &err), OK);
    return t;
}

static void grow(DdTree *b, Tensor logits, DdTreeShape shape, Tree *tree)
{
    Error err = { 0 };
    tree_start(tree, 7);
    assert_int_equal(ddtree_grow(b, logits, shape, tree, &err), OK);
    assert_true(tree_check(tree));
}

/* ---- golden ---- */

static Safetensors *open_golden(void)
{
    char path[4096];
    Safetensors *st = NULL;
    Error err = { 0 };
    const char *root = getenv("TANDEM_SOURCE_ROOT");
    snprintf(path, sizeof path, "%s/tests/data/golden/ddtree/golden.safetensors", root ? root : ".");
    if (safetensors_open(&st, path, &err)) fail_msg("%s", err.text);
    return st;
}

/* Whole tensor `case.name` in memory of its own; *n: its elements. */
static void *read_golden(const Safetensors *st, int number, const char *name, const SafetensorsEntry **entry)
{
    char key[64];
    Error err = { 0 };
    snprintf(key, sizeof key, "%d.%s", number, name);
    const SafetensorsEntry *e = safetensors_find(st, key);
    assert_non_null(e);
    void *data = mem_alloc((size_t)e->bytes + 1);
    assert_int_equal(safetensors_read(st, e, 0, data, (size_t)e->bytes, &err), OK);
    *entry = e;
    return data;
}

static int64_t integer_at(const void *data, DType t, int64_t i)
{
    return t == DT_I64 ? ((const int64_t *)data)[i] : ((const int32_t *)data)[i];
}

static void check_integers(const Safetensors *st, int number, const char *name, const int32_t *got, int32_t n)
{
    const SafetensorsEntry *e;
    void *want = read_golden(st, number, name, &e);
    assert_int_equal(e->shape[0], n);
    for (int32_t i = 0; i < n; i++) {
        if (integer_at(want, e->dtype, i) != got[i]) fail_msg("tree %d: %s differ at %d", number, name, i);
    }
    mem_free(want);
}

static void check_visible(const Safetensors *st, int number, const Tree *tree)
{
    const SafetensorsEntry *e;
    uint8_t *want = read_golden(st, number, "visible", &e);
    int32_t n = tree->n_nodes;
    assert_int_equal(e->shape[0], n);
    for (int32_t i = 0; i < n; i++) {
        int32_t path[MAX_DEPTH];
        uint8_t sees[TREE_MAX_NODES] = { 0 };
        tree_path(tree, i, path);
        for (int32_t d = 0; d <= tree->depth[i]; d++) sees[path[d]] = 1;
        assert_memory_equal(sees, want + (size_t)i * (size_t)n, (size_t)n);
    }
    mem_free(want);
}

static void golden_trees_are_exact(void **state)
{
    Safetensors *st = open_golden();
    DdTree *b = open_builder();
    Tree tree = tree_of(MAX_BUDGET + 1);
    int n_nodes = 0;
    for (int number = 0; number < N_GOLDEN; number++) {
        const SafetensorsEntry *e, *budget_entry;
        float *logits = read_golden(st, number, "logits", &e);
        void *budget = read_golden(st, number, "budget", &budget_entry);
        DdTreeShape shape = { .budget = (int32_t)integer_at(budget, budget_entry->dtype, 0) };
        grow(b, tensor_2d(logits, DT_F32, e->shape[0], e->shape[1]), shape, &tree);
        check_integers(st, number, "tokens", tree.token + 1, tree.n_nodes - 1);
        check_integers(st, number, "depths", tree.depth + 1, tree.n_nodes - 1);
        check_integers(st, number, "parents", tree.parent, tree.n_nodes);
        check_visible(st, number, &tree);
        n_nodes += tree.n_nodes - 1;
        mem_free(logits);
        mem_free(budget);
    }
    print_message("%d trees of %d nodes in all\n", N_GOLDEN, n_nodes);
    tree_free(&tree);
    ddtree_close(b);
    safetensors_close(st);
}

/* ---- by brute force ---- */

enum { FORCE_ROWS = 4, FORCE_VOCAB = 6, FORCE_PREFIXES = 6 + 36 + 216 + 1296 };

typedef struct Force {
    float   score;
    int32_t n, word[FORCE_ROWS], token[FORCE_ROWS]; /* ranks and ids */
} Force;

static int by_score_and_word(const void *a, const void *b)
{
    const Force *p = a, *q = b;
    if (p->score != q->score) return p->score > q->score ? -1 : 1;
    for (int32_t i = 0; i < p->n && i < q->n; i++) {
        if (p->word[i] != q->word[i]) return p->word[i] < q->word[i] ? -1 : 1;
    }
    return p->n < q->n ? -1 : p->n > q->n;
}

/* Every prefix of up to FORCE_ROWS guesses with the score that float32 sums along it give. */
static int list_prefixes(const float *logits, Force *out)
{
    int32_t order[FORCE_ROWS][FORCE_VOCAB];
    float log_p[FORCE_ROWS][FORCE_VOCAB];
    for (int d = 0; d < FORCE_ROWS; d++) {
        const float *row = logits + d * FORCE_VOCAB;
        float max = -INFINITY;
        for (int i = 0; i < FORCE_VOCAB; i++) max = row[i] > max ? row[i] : max;
        float log_sum = softmax_log_sum(row, FORCE_VOCAB, max); /* the same bits, or near ties would fall another way */
        for (int i = 0; i < FORCE_VOCAB; i++) {
            int rank = 0;
            for (int j = 0; j < FORCE_VOCAB; j++) rank += row[j] > row[i] || (row[j] == row[i] && j < i);
            order[d][rank] = i;
            log_p[d][rank] = (row[i] - max) - log_sum;
        }
    }
    int n = 0;
    for (int length = 1, first = 0, end = 0; length <= FORCE_ROWS; length++, first = end, end = n) {
        for (int parent = first; parent < (length == 1 ? 1 : end); parent++) {
            for (int rank = 0; rank < FORCE_VOCAB; rank++) {
                Force p = { 0 };
                if (length > 1) p = out[parent];
                p.word[length - 1] = rank;
                p.token[length - 1] = order[length - 1][rank];
                p.score += log_p[length - 1][rank];
                p.n = length;
                if (p.score > -INFINITY) out[n++] = p;
            }
        }
    }
    return n;
}

static void check_node(const Tree *tree, int32_t node, const Force *want)
{
    int32_t path[MAX_DEPTH];
    tree_path(tree, node, path);
    assert_int_equal(tree->depth[node], want->n);
    for (int32_t d = 0; d < want->n; d++) assert_int_equal(tree->token[path[d + 1]], want->token[d]);
    assert_true(tree->score[node] == want->score);
}

/* Equal guesses in a row, and equal rows (x + y = y + x), make equal scores. */
static void trees_are_the_best_prefixes(void **state)
{
    static Force all[FORCE_PREFIXES];
    static const int32_t budgets[] = { 1, 5, 17, 100, 256 };
    Random r = { 51 };
    DdTree *b = open_builder();
    Tree tree = tree_of(MAX_BUDGET + 1);
    int n_ties = 0;
    for (int k = 0; k < 300; k++) {
        float logits[FORCE_ROWS * FORCE_VOCAB];
        for (int i = 0; i < COUNT(logits); i++) {
            logits[i] = 2 * random_normal(&r);
            if (k % 3 == 1) logits[i] = (float)random_below(&r, 3); /* equal guesses in a row */
            if (k % 3 == 2 && i >= FORCE_VOCAB) logits[i] = logits[i - FORCE_VOCAB]; /* equal rows */
            if (k % 5 == 4 && i % FORCE_VOCAB && !random_below(&r, 3)) logits[i] = -INFINITY;
        }
        int n = list_prefixes(logits, all);
        qsort(all, (size_t)n, sizeof *all, by_score_and_word);
        for (int i = 1; i < n; i++) n_ties += all[i].score == all[i - 1].score;
        DdTreeShape shape = { .budget = budgets[k % COUNT(budgets)] };
        grow(b, tensor_2d(logits, DT_F32, FORCE_ROWS, FORCE_VOCAB), shape, &tree);
        assert_int_equal(tree.n_nodes - 1, n < shape.budget ? n : shape.budget);
        for (int32_t i = 1; i < tree.n_nodes; i++) check_node(&tree, i, &all[i - 1]);
    }
    print_message("%d equal scores met\n", n_ties);
    assert_true(n_ties > 1000);
    tree_free(&tree);
    ddtree_close(b);
}

/* ---- shapes ---- */

enum { ROWS = 15, VOCAB = 500 };

static float *random_logits(Random *r)
{
    static float logits[ROWS * VOCAB];
    for (int i = 0; i < COUNT(logits); i++) logits[i] = 3 * random_normal(r);
    return logits;
}

static void spine_comes_first(void **state)
{
    Random r = { 52 };
    DdTree *b = open_builder();
    Tree tree = tree_of(MAX_BUDGET + 1);
    for (int32_t budget = 1; budget <= 64; budget++) {
        float *logits = random_logits(&r);
        grow(b, tensor_2d(logits, DT_F32, ROWS, VOCAB), (DdTreeShape){ .budget = budget, .spine_first = true }, &tree);
        assert_int_equal(tree.n_nodes, budget + 1);
        for (int32_t i = 1; i <= budget && i <= ROWS; i++) {
            const float *row = logits + (i - 1) * VOCAB;
            assert_int_equal(tree.parent[i], i - 1);
            for (int j = 0; j < VOCAB; j++) assert_true(row[j] <= row[tree.token[i]]);
        }
        for (int32_t i = ROWS + 2; i <= budget; i++)
            assert_true(tree.score[i] <= tree.score[i - 1]); /* then best-first */
    }
    tree_free(&tree);
    ddtree_close(b);
}

static void limits_hold(void **state)
{
    Random r = { 53 };
    DdTree *b = open_builder();
    Tree small = tree_of(10), tree = tree_of(TREE_MAX_NODES);
    Tensor logits = tensor_2d(random_logits(&r), DT_F32, ROWS, VOCAB);
    grow(b, logits, (DdTreeShape){ .budget = 100 }, &small);
    assert_int_equal(small.n_nodes, 10); /* room of the tree */
    grow(b, logits, (DdTreeShape){ .budget = 1000 }, &tree);
    assert_int_equal(tree.n_nodes, MAX_BUDGET + 1); /* room of the builder */
    grow(b, logits, (DdTreeShape){ .budget = 0 }, &tree);
    assert_int_equal(tree.n_nodes, 1);
    grow(b, tensor_rows(logits, 0), (DdTreeShape){ .budget = 20 }, &tree);
    assert_int_equal(tree.n_nodes, 1);
    grow(b, tensor_rows(logits, 3), (DdTreeShape){ .budget = 200, .top_k = 2 }, &tree);
    assert_int_equal(tree.n_nodes, 1 + 2 + 4 + 8); /* two guesses a row are a binary tree */
    grow(b, tensor_cols(logits, 0, 10), (DdTreeShape){ .budget = 30 }, &tree); /* a view whose rows are wider */
    for (int32_t i = 1; i < tree.n_nodes; i++) assert_in_range(tree.token[i], 0, 9);
    tree_free(&small);
    tree_free(&tree);
    ddtree_close(b);
}

static void broken_rows_propose_nothing(void **state)
{
    static const float broken[] = { NAN, INFINITY };
    Random r = { 54 };
    DdTree *b = open_builder();
    Tree tree = tree_of(33);
    for (int k = 0; k < ROWS * COUNT(broken); k++) {
        float *logits = random_logits(&r);
        logits[k / COUNT(broken) * VOCAB + random_below(&r, VOCAB)] = broken[k % COUNT(broken)];
        Error err = { 0 };
        tree_start(&tree, 7);
        assert_int_equal(
            ddtree_grow(b, tensor_2d(logits, DT_F32, ROWS, VOCAB), (DdTreeShape){ .budget = 32 }, &tree, &err),
            ERR_NUMERIC);
        assert_int_equal(tree.n_nodes, 1);
    }
    float *logits = random_logits(&r);
    for (int i = 0; i < VOCAB; i++)
        logits[2 * VOCAB + i] = -INFINITY; /* nothing allowed in row 2: no deeper than that */
    grow(b, tensor_2d(logits, DT_F32, ROWS, VOCAB), (DdTreeShape){ .budget = 32 }, &tree);
    assert_int_equal(tree.n_nodes, 33);
    for (int32_t i = 0; i < tree.n_nodes; i++) assert_true(tree.depth[i] <= 2);
    tree_free(&tree);
    ddtree_close(b);
}

static void growing_allocates_nothing(void **state)
{
    Random r = { 55 };
    DdTree *b = open_builder();
    Tree tree = tree_of(MAX_BUDGET + 1);
    Tensor logits = tensor_2d(random_logits(&r), DT_F32, ROWS, VOCAB);
    uint64_t before = mem_count();
    grow(b, logits, (DdTreeShape){ .budget = 256 }, &tree);
    grow(b, logits, (DdTreeShape){ .budget = 60, .spine_first = true }, &tree);
    assert_int_equal(mem_count() - before, 0);
    tree_free(&tree);
    ddtree_close(b);
    ddtree_close(NULL);
    for (int nth = 1;; nth++) {
        Error err = { 0 };
        mem_fail_at(nth);
        Status s = ddtree_open(&b, 64, 15, &err);
        mem_fail_at(0);
        if (!s) break;
        assert_int_equal(s, ERR_NOMEM);
        assert_null(b);
    }
    ddtree_close(b);
}

static void impossible_sizes_are_refused(void **state)
{
    static const int32_t sizes[][2] = { { 0, 5 }, { TREE_MAX_NODES, 5 }, { 5, 0 }, { 5, MAX_DEPTH } };
    for (int i = 0; i < COUNT(sizes); i++) {
        DdTree *b = NULL;
        Error err = { 0 };
        assert_int_equal(ddtree_open(&b, sizes[i][0], sizes[i][1], &err), ERR_UNSUPPORTED);
        assert_null(b);
    }
}

int main(void)
{
    numeric_mode_enter();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_trees_are_exact),
        cmocka_unit_test(trees_are_the_best_prefixes),
        cmocka_unit_test(spine_comes_first),
        cmocka_unit_test(limits_hold),
        cmocka_unit_test(broken_rows_propose_nothing),
        cmocka_unit_test(growing_allocates_nothing),
        cmocka_unit_test(impossible_sizes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
