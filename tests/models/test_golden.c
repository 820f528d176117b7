/* The models against the reference implementation, in float32, on the random checkpoints of tests/data/golden.
 *
 * One prefill pass has to be close to the reference: every position's logits, and every layer's hidden state so that a
 * fault names its layer. All other ways to the same positions (chunks, single tokens, trees with the true path among
 * wrong ones, beside other sequences, with other numbers of workers) have to give the bits of that pass. Each test runs
 * on each variant that this machine has; the variants have to agree in their bits too. */
#include "models/layers.h"
#include "support/batch_builder.h"
#include "support/golden.h"

#include "base/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

enum { MAX_ROWS = 160, TREE_ROWS = 24, N_SLOTS = 3, MAX_TOKENS = 256 };

typedef struct Case {
    const char *name;
    double      limit; /* of the logits: docs/spec/models.md 10.1 */
} Case;

static const Case cases[] = { { "llama", 3e-6 }, { "llama_yarn", 3e-6 }, { "llama3_bias", 3e-6 }, { "qwen3", 3e-6 },
                              { "qwen3_linear_bias", 3e-6 }, { "qwen3_5", 5e-5 } };
static const char *const masks[] = { "scalar", "avx2", "avx512", NULL };
enum { N_CASES = sizeof cases / sizeof cases[0], N_MASKS = sizeof masks / sizeof masks[0] };

/* One checkpoint, opened on one variant, after its prefill. */
typedef struct Fixture {
    const Case   *kind;
    Golden        golden;
    Backend      *backend;
    Model        *model;
    BatchBuilder *builder;
    int32_t       taps[GOLDEN_MAX_STATES];
    float        *first; /* [n][vocab] logits of the prefill pass: what all others must equal */
} Fixture;

static Fixture fixtures[N_MASKS][N_CASES];

static void assert_ok(Status s, const Error *err)
{
    if (s) fail_msg("%s", err->text);
}

static void open_fixture(Fixture *f, const Case *kind, const char *mask, DType dtype)
{
    Error err = { 0 };
    f->kind = kind;
    char below[64];
    snprintf(below, sizeof below, "golden/%s", kind->name);
    assert_ok(golden_open(&f->golden, below, &err), &err);
    assert_ok(backend_open_cpu(&f->backend, &(BackendOptions){ .n_workers = 2, .cpu_mask = mask }, &err), &err);
    ModelOptions options = { .dtype = dtype, .limits = { MAX_ROWS, MAX_ROWS, N_SLOTS, TREE_ROWS } };
    assert_ok(model_open(&f->model, f->golden.model_dir, f->backend, &options, &err), &err);

    for (int l = 0; l < f->model->info.n_layers; l++) f->taps[l] = l;
    BuilderOptions sizes = { .n_slots = N_SLOTS, .max_tokens = MAX_TOKENS, .max_rows = MAX_ROWS,
                             .max_outputs = MAX_ROWS, .n_taps = f->model->info.n_layers, .taps = f->taps,
                             .wants_last_hidden = true };
    assert_ok(builder_open(&f->builder, f->model, &sizes, &err), &err);

    BatchBuilder *b = f->builder;
    size_t n_logits = (size_t)f->golden.n * (size_t)f->golden.vocab;
    f->first = mem_alloc_array(n_logits, sizeof(float));
    assert_non_null(f->first);
    builder_begin(b);
    builder_want(b, builder_line(b, 0, f->golden.ids, f->golden.n), f->golden.n);
    builder_forward(b);
    memcpy(f->first, b->logits, n_logits * sizeof(float));
}

static void close_fixture(Fixture *f)
{
    builder_close(f->builder);
    model_close(f->model);
    backend_close(f->backend);
    golden_free(&f->golden);
    mem_free(f->first);
}

static int open_all(void **state)
{
    numeric_mode_enter();
    for (int m = 0; m < N_MASKS; m++)
        for (int c = 0; c < N_CASES; c++) open_fixture(&fixtures[m][c], &cases[c], masks[m], DT_F32);
    return 0;
}

static int close_all(void **state)
{
    for (int m = 0; m < N_MASKS; m++)
        for (int c = 0; c < N_CASES; c++) close_fixture(&fixtures[m][c]);
    return 0;
}

/* Runs `check` on every checkpoint and variant, from an empty slot 0. */
static void on_all(void (*check)(Fixture *f))
{
    for (int m = 0; m < N_MASKS; m++) {
        for (int c = 0; c < N_CASES; c++) {
            builder_clear(fixtures[m][c].builder, 0);
            check(&fixtures[m][c]);
        }
    }
}

/* ---- close to the reference ---- */

static void check_states(const Fixture *f)
{
    const Golden *g = &f->golden;
    const BatchBuilder *b = f->builder;
    const int32_t n_layers = f->model->info.n_layers;
    assert_int_equal(g->n_states, n_layers + 1);
    for (int i = 0; i < g->n_states; i++) {
        double worst = 0;
        for (int32_t r = 0; r < g->n_tail; r++) {
            size_t row = (size_t)(g->n - g->n_tail + r), hidden = (size_t)g->hidden;
            float embedding[GOLDEN_MAX_STATES * 64];
            const float *got = i == n_layers ? b->last_hidden + row * hidden
                                             : b->features + (row * (size_t)n_layers + (size_t)i - 1) * hidden;
            if (i == 0) {
                assert_true(hidden <= COUNT(embedding));
                weight_get_row(&((const Decoder *)f->model)->embed_tokens, g->ids[row], embedding);
                got = embedding;
            }
            double d = distance(got, g->tail[i] + (size_t)r * hidden, hidden);
            if (!(d <= worst)) worst = d;
        }
        if (!(worst <= 1e-4))
            fail_msg("%s, %s: hidden state %d (%s layer %d) is off by %.1e of its largest value", f->kind->name,
                     backend_variant(f->backend), i, i == n_layers ? "final norm behind" : "output of", i - 1, worst);
    }
}

static void check_prefill(Fixture *f)
{
    const Golden *g = &f->golden;
    BatchBuilder *b = f->builder;
    builder_begin(b);
    builder_want(b, builder_line(b, 0, g->ids, g->n), g->n);
    builder_forward(b);
    check_states(f);
    double d = distance(b->logits, g->logits, (size_t)g->n * (size_t)g->vocab);
    print_message("%-18s %-12s prefill is within %.1e of the reference (limit %.0e)\n", f->kind->name,
                  backend_variant(f->backend), d, f->kind->limit);
    if (!(d <= f->kind->limit)) fail_msg("logits of %s are off by %.1e of the largest one", f->kind->name, d);
}

static void test_prefill(void **state)
{
    on_all(check_prefill);
}

static int32_t argmax(const float *x, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static void check_greedy(Fixture *f)
{
    const Golden *g = &f->golden;
    BatchBuilder *b = f->builder;
    const int32_t *tokens = g->ids;
    int32_t n = g->n, next = 0;
    for (int32_t i = 0; i < g->n_greedy; i++) {
        builder_begin(b);
        builder_want(b, builder_line(b, 0, tokens, n) + n - 1, 1);
        builder_forward(b);
        next = argmax(builder_logits(b, 0), g->vocab);
        assert_int_equal(next, g->greedy[i]);
        tokens = &next;
        n = 1;
    }
}

static void test_greedy(void **state)
{
    on_all(check_greedy);
}

/* ---- the same bits whatever the way ---- */

/* Logits `output` of the last pass are those of position `index` of the prefill. */
static void assert_bits(const Fixture *f, int32_t output, int32_t index, const char *way)
{
    const size_t vocab = (size_t)f->golden.vocab;
    const float *got = builder_logits(f->builder, output), *want = f->first + (size_t)index * vocab;
    if (memcmp(got, want, vocab * sizeof(float)) != 0)
        fail_msg("%s, %s: logits of position %d differ from those of the prefill pass by %.1e (%s)", f->kind->name,
                 backend_variant(f->backend), index, distance(got, want, vocab), way);
}

static void check_chunks_of(Fixture *f, int32_t size)
{
    const Golden *g = &f->golden;
    BatchBuilder *b = f->builder;
    char way[32];
    snprintf(way, sizeof way, "chunks of %d", size);
    builder_clear(b, 0);
    for (int32_t at = 0; at < g->n; at += size) {
        int32_t n = g->n - at < size ? g->n - at : size;
        builder_begin(b);
        builder_want(b, builder_line(b, 0, g->ids + at, n), n);
        builder_forward(b);
        for (int32_t i = 0; i < n; i++) assert_bits(f, i, at + i, way);
    }
}

static void check_chunks(Fixture *f)
{
    static const int32_t sizes[] = { 1, 2, 3, 63, 64, 65 };
    for (int i = 0; i < COUNT(sizes); i++) check_chunks_of(f, sizes[i]);
}

static void test_chunks(void **state)
{
    on_all(check_chunks);
}

static uint32_t dice_state;
static int32_t dice(int32_t n) /* 0 .. n - 1 */
{
    dice_state = dice_state * 1664525u + 1013904223u;
    return (int32_t)((uint64_t)dice_state * (uint64_t)n >> 32);
}

/* A tree that holds the next true tokens among wrong ones: siblings, cousins, and true tokens at wrong places. */
typedef struct TestTree {
    int32_t n, token[TREE_ROWS], parent[TREE_ROWS];
    int32_t n_path, path[MAX_DEPTH]; /* the true one, anchor first */
} TestTree;

static void grow_tree(TestTree *t, const int32_t *truth, int32_t n_true, int32_t n_nodes, int32_t vocab)
{
    *t = (TestTree){ .n = 1, .n_path = 1, .token = { truth[0] }, .parent = { -1 } };
    while (t->n < n_nodes) {
        int32_t node = t->n++;
        if (t->n_path < n_true && dice(2)) {
            t->parent[node] = t->path[t->n_path - 1];
            t->token[node] = truth[t->n_path];
            t->path[t->n_path++] = node;
            continue;
        }
        t->parent[node] = dice(node);
        t->token[node] = dice(3) ? dice(vocab) : truth[dice(n_true)];
        bool is_true = false; /* a second copy of a true node would be a sibling of equal token */
        for (int32_t i = 1; i < n_true; i++)
            is_true |= i <= t->n_path && t->parent[node] == t->path[i - 1] && t->token[node] == truth[i];
        if (is_true) t->token[node] = (t->token[node] + 1) % vocab;
    }
}

/* The whole text in verify passes: each proposes a tree, every true node's logits are compared, and some of the true
 * path is committed; what is left comes again in the next tree. */
static void check_trees_of(Fixture *f, int32_t max_nodes, int32_t max_path)
{
    const Golden *g = &f->golden;
    BatchBuilder *b = f->builder;
    char way[48];
    snprintf(way, sizeof way, "trees of up to %d rows", max_nodes);
    builder_clear(b, 0);
    for (int32_t at = 0; at < g->n;) {
        int32_t left = g->n - at;
        TestTree t;
        grow_tree(&t, g->ids + at, left < max_path ? left : max_path, 1 + dice(max_nodes), g->vocab);
        builder_begin(b);
        int32_t row = builder_tree(b, 0, t.token, t.parent, t.n);
        for (int32_t i = 0; i < t.n_path; i++) builder_want(b, row + t.path[i], 1);
        builder_forward(b);
        for (int32_t i = 0; i < t.n_path; i++) assert_bits(f, i, at + i, way);

        int32_t n_commit = dice(4) ? t.n_path : 1 + dice(t.n_path); /* a stop may cut a path */
        builder_commit(b, 0, t.path, n_commit);
        at += n_commit;
    }
}

static void check_trees(Fixture *f)
{
    dice_state = 20;
    check_trees_of(f, TREE_ROWS, MAX_DEPTH - 1);
    check_trees_of(f, 6, 4);
    check_trees_of(f, 2, 2);
}

static void test_trees(void **state)
{
    on_all(check_trees);
}

/* The text in chunks of 5 in slot 2 while slot 0 verifies a tree of another text and slot 1 decodes a third. */
static void check_company(Fixture *f)
{
    const Golden *g = &f->golden;
    BatchBuilder *b = f->builder;
    dice_state = 21;
    for (int32_t slot = 0; slot < N_SLOTS; slot++) builder_clear(b, slot);
    for (int32_t at = 0; at < g->n; at += 5) {
        int32_t n = g->n - at < 5 ? g->n - at : 5;
        int32_t other[8], stranger = dice(g->vocab);
        for (int i = 0; i < COUNT(other); i++) other[i] = dice(g->vocab);
        TestTree t;
        grow_tree(&t, other, COUNT(other), 1 + dice(TREE_ROWS), g->vocab);

        builder_begin(b);
        builder_want(b, builder_tree(b, 0, t.token, t.parent, t.n) + t.n - 1, 1);
        builder_want(b, builder_line(b, 1, &stranger, 1), 1);
        builder_want(b, builder_line(b, 2, g->ids + at, n), n);
        builder_forward(b);
        for (int32_t i = 0; i < n; i++) assert_bits(f, 2 + i, at + i, "beside two strangers");
        builder_commit(b, 0, t.path, t.n_path);
        if (b->n_committed[0] > MAX_TOKENS - TREE_ROWS) builder_clear(b, 0);
    }
}

static void test_company(void **state)
{
    on_all(check_company);
}

static void check_workers(Fixture *f)
{
    stream_use_workers(backend_stream(f->backend), 1);
    check_chunks_of(f, 64);
    stream_use_workers(backend_stream(f->backend), backend_workers(f->backend));
}

static void test_workers(void **state)
{
    on_all(check_workers);
}

static void test_variants_agree(void **state)
{
    for (int c = 0; c < N_CASES; c++) {
        const Fixture *scalar = &fixtures[0][c];
        size_t bytes = (size_t)scalar->golden.n * (size_t)scalar->golden.vocab * sizeof(float);
        for (int m = 1; m < N_MASKS; m++)
            if (memcmp(scalar->first, fixtures[m][c].first, bytes) != 0)
                fail_msg("%s: %s and scalar differ", cases[c].name, backend_variant(fixtures[m][c].backend));
    }
}

/* The default arithmetic has no reference; its variants have to agree in every bit, and all ways with each other. */
static void test_bf16(void **state)
{
    for (int c = 0; c < N_CASES; c++) {
        Fixture f[N_MASKS] = { 0 };
        for (int m = 0; m < N_MASKS; m++) {
            open_fixture(&f[m], &cases[c], masks[m], DT_BF16);
            size_t n = (size_t)f[0].golden.n * (size_t)f[0].golden.vocab;
            if (memcmp(f[0].first, f[m].first, n * sizeof(float)) != 0)
                fail_msg("%s in bf16: %s and scalar differ", cases[c].name, backend_variant(f[m].backend));
            check_chunks_of(&f[m], 3);
            check_trees(&f[m]);
            double d = distance(f[m].first, f[m].golden.logits, n);
            if (!(d <= 0.1)) fail_msg("%s in bf16 is off by %.1e of the largest logit", cases[c].name, d);
        }
        for (int m = 0; m < N_MASKS; m++) close_fixture(&f[m]);
    }
}

/* Rows that nobody asked for cost no logits and change nothing. */
static void check_last_row_only(Fixture *f)
{
    const Golden *g = &f->golden;
    BatchBuilder *b = f->builder;
    builder_begin(b);
    builder_want(b, builder_line(b, 0, g->ids, g->n) + g->n - 1, 1);
    b->options.wants_last_hidden = false; /* the norm then sees the wanted row only */
    builder_forward(b);
    b->options.wants_last_hidden = true;
    assert_bits(f, 0, g->n - 1, "last row only");

    builder_clear(b, 0);
    builder_begin(b);
    builder_line(b, 0, g->ids, g->n);
    builder_forward(b); /* no output at all */
    assert_int_equal(b->batch.n_outputs, 0);
}

static void test_last_row_only(void **state)
{
    on_all(check_last_row_only);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefill),  cmocka_unit_test(test_greedy),  cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_trees),    cmocka_unit_test(test_company), cmocka_unit_test(test_workers),
        cmocka_unit_test(test_variants_agree), cmocka_unit_test(test_last_row_only), cmocka_unit_test(test_bf16),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
