/* The trained models against what the reference wrote with them.
 *
 * Without an argument: the 12 traces. With "all" (suite slow): the 48 reference continuations, and how far the default
 * bf16 arithmetic is from float32 over 5,000 positions of them. All continuations of a model run beside each other in
 * one batch, which changes no bit (test_golden.c) and reads the weights once. */
#include "support/batch_builder.h"
#include "support/golden.h"

#include "base/memory.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

enum { MAX_ROWS = 256, MAX_SEQS = 48, MAX_TOKENS = 256, TREE_ROWS = 8 };

typedef struct Pair {
    const char *key, *dir;
} Pair;
static const Pair pairs[] = { { "plain", "models/nano-plain" }, { "hybrid", "models/nano" } };

static void assert_ok(Status s, const Error *err)
{
    if (s) fail_msg("%s", err->text);
}

/* A model on a backend with caches for all traces. */
typedef struct Runner {
    Backend      *backend;
    Model        *model;
    BatchBuilder *builder;
} Runner;

static Runner runner_open(const Pair *pair, DType dtype, const char *mask, int32_t n_slots, int32_t max_tokens)
{
    Runner r = { 0 };
    Error err = { 0 };
    char dir[4096];
    assert_ok(source_path(dir, sizeof dir, pair->dir, &err), &err);
    assert_ok(backend_open_cpu(&r.backend, &(BackendOptions){ .n_workers = 2, .cpu_mask = mask }, &err), &err);
    ModelOptions options = { .dtype = dtype, .limits = { MAX_ROWS, MAX_ROWS, n_slots, TREE_ROWS } };
    assert_ok(model_open(&r.model, dir, r.backend, &options, &err), &err);
    BuilderOptions sizes = { .n_slots = n_slots, .max_tokens = max_tokens, .max_rows = MAX_ROWS,
                             .max_outputs = MAX_ROWS };
    assert_ok(builder_open(&r.builder, r.model, &sizes, &err), &err);
    return r;
}

static void runner_close(Runner *r)
{
    builder_close(r->builder);
    model_close(r->model);
    backend_close(r->backend);
}

static int32_t argmax(const float *x, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* Greedy continuations of all traces; tokens[i] gets as many as trace i has. The last pass runs over the last token
 * too, so that its logits, [n][vocab], are left in the builder. */
static void continue_all(Runner *r, const Traces *t, int32_t (*tokens)[TRACE_MAX_TOKENS])
{
    BatchBuilder *b = r->builder;
    const int32_t vocab = r->model->info.vocab_size;
    for (int32_t i = 0; i < t->n; i++) { /* prompts one by one */
        const Trace *trace = &t->item[i];
        builder_clear(b, i);
        builder_begin(b);
        builder_want(b, builder_line(b, i, trace->prompt, trace->n_prompt) + trace->n_prompt - 1, 1);
        builder_forward(b);
        tokens[i][0] = argmax(builder_logits(b, 0), vocab);
    }
    for (int32_t at = 0; at < t->item[0].n_greedy; at++) {
        builder_begin(b);
        for (int32_t i = 0; i < t->n; i++) builder_want(b, builder_line(b, i, &tokens[i][at], 1), 1);
        builder_forward(b);
        if (at + 1 == t->item[0].n_greedy) return;
        for (int32_t i = 0; i < t->n; i++) tokens[i][at + 1] = argmax(builder_logits(b, i), vocab);
    }
}

static void check_tokens(const Pair *pair, const Traces *t, int32_t (*tokens)[TRACE_MAX_TOKENS])
{
    for (int32_t i = 0; i < t->n; i++)
        for (int32_t k = 0; k < t->item[i].n_greedy; k++)
            if (tokens[i][k] != t->item[i].greedy[k])
                fail_msg("%s, trace %d: token %d is %d, the reference wrote %d", pair->key, i, k, tokens[i][k],
                         t->item[i].greedy[k]);
}

/* First logits of each row of the last token, as a share of the row's largest. */
static void check_heads(const Pair *pair, const Runner *r, const Traces *t)
{
    const int32_t vocab = r->model->info.vocab_size;
    double worst = 0;
    if (!t->item[0].n_head) return; /* only the traces have them */
    for (int32_t i = 0; i < t->n; i++) {
        const float *row = builder_logits(r->builder, i);
        double largest = 0;
        for (int32_t v = 0; v < vocab; v++) largest = fmax(largest, fabs((double)row[v]));
        for (int k = 0; k < t->item[i].n_head; k++)
            worst = fmax(worst, fabs((double)row[k] - (double)t->item[i].head[k]) / largest);
    }
    print_message("%s: logits behind the last token are within %.1e of the reference\n", pair->key, worst);
    assert_true(worst <= 3e-6);
}

static void check_continuations(const char *file, const char *mask)
{
    static int32_t tokens[MAX_SEQS][TRACE_MAX_TOKENS];
    for (int i = 0; i < COUNT(pairs); i++) {
        Error err = { 0 };
        Traces *t = NULL;
        assert_ok(traces_open(&t, file, pairs[i].key, &err), &err);
        Runner r = runner_open(&pairs[i], DT_F32, mask, MAX_SEQS, MAX_TOKENS);
        continue_all(&r, t, tokens);
        check_tokens(&pairs[i], t, tokens);
        check_heads(&pairs[i], &r, t);
        runner_close(&r);
        traces_free(t);
    }
}

static void test_traces(void **state)
{
    check_continuations("nano_traces.json", NULL);
}

static void test_reference(void **state)
{
    check_continuations("nano_reference.json", NULL);
}

static void test_traces_scalar(void **state)
{
    check_continuations("nano_traces.json", "scalar");
}

/* Prompt and continuation of trace i as one prefill pass; logits of every position are left in the builder. */
static int32_t score(Runner *r, const Trace *t)
{
    int32_t ids[2 * TRACE_MAX_TOKENS], n = t->n_prompt + t->n_greedy;
    memcpy(ids, t->prompt, (size_t)t->n_prompt * sizeof *ids);
    memcpy(ids + t->n_prompt, t->greedy, (size_t)t->n_greedy * sizeof *ids);
    builder_clear(r->builder, 0);
    builder_begin(r->builder);
    builder_want(r->builder, builder_line(r->builder, 0, ids, n), n);
    builder_forward(r->builder);
    return n;
}

/* The default path: all variants write the same bits. */
static void test_bf16_bits(void **state)
{
    for (int p = 0; p < COUNT(pairs); p++) {
        Error err = { 0 };
        Traces *t = NULL;
        assert_ok(traces_open(&t, "nano_traces.json", pairs[p].key, &err), &err);
        Runner scalar = runner_open(&pairs[p], DT_BF16, "scalar", 1, MAX_TOKENS);
        Runner best = runner_open(&pairs[p], DT_BF16, NULL, 1, MAX_TOKENS);
        for (int i = 0; i < 3; i++) {
            int32_t n = score(&scalar, &t->item[i]);
            score(&best, &t->item[i]);
            size_t bytes = (size_t)n * (size_t)scalar.model->info.vocab_size * sizeof(float);
            if (memcmp(scalar.builder->logits, best.builder->logits, bytes) != 0)
                fail_msg("%s, trace %d: scalar and %s differ", pairs[p].key, i, backend_variant(best.backend));
        }
        runner_close(&scalar);
        runner_close(&best);
        traces_free(t);
    }
}

/* ---- a text longer than one attention split ---- */

enum { LONG = ATTN_SPLIT + 40, WATCHED = 48 }; /* logits of the last WATCHED positions are compared */

/* The first n tokens in chunks; logits of those from `watch` on go to out, [..][vocab]. */
static void read_text(Runner *r, const int32_t *ids, int32_t n, int32_t chunk, int32_t watch, float *out)
{
    const size_t vocab = (size_t)r->model->info.vocab_size;
    builder_clear(r->builder, 0);
    for (int32_t at = 0; at < n; at += chunk) {
        int32_t rows = n - at < chunk ? n - at : chunk, first = watch > at ? watch - at : 0;
        builder_begin(r->builder);
        int32_t row = builder_line(r->builder, 0, ids + at, rows);
        if (first < rows) builder_want(r->builder, row + first, rows - first);
        builder_forward(r->builder);
        if (first >= rows) continue;
        memcpy(out, r->builder->logits, (size_t)(rows - first) * vocab * sizeof *out);
        out += (size_t)(rows - first) * vocab;
    }
}

/* The watched positions again, as trees of a true chain with a wrong child at each node. */
static void read_by_trees(Runner *r, const int32_t *ids, float *out)
{
    const size_t vocab = (size_t)r->model->info.vocab_size;
    static const int32_t parents[TREE_ROWS] = { -1, 0, 0, 1, 1, 3, 3, 5 }, path[] = { 0, 1, 3, 5 };
    read_text(r, ids, LONG - WATCHED, 100, LONG, NULL);
    for (int32_t at = LONG - WATCHED; at < LONG; at += COUNT(path)) {
        int32_t tokens[TREE_ROWS] = { ids[at], ids[at + 1], 7, ids[at + 2], 8, ids[at + 3], 9, 10 };
        builder_begin(r->builder);
        int32_t row = builder_tree(r->builder, 0, tokens, parents, TREE_ROWS);
        for (int i = 0; i < COUNT(path); i++) builder_want(r->builder, row + path[i], 1);
        builder_forward(r->builder);
        builder_commit(r->builder, 0, path, COUNT(path));
        memcpy(out, r->builder->logits, COUNT(path) * vocab * sizeof *out);
        out += COUNT(path) * vocab;
    }
}

static void check_long(const Pair *pair, DType dtype, const int32_t *ids)
{
    Runner r = runner_open(pair, dtype, NULL, 1, LONG + TREE_ROWS);
    size_t n = (size_t)WATCHED * (size_t)r.model->info.vocab_size;
    float *want = mem_alloc_array(n, sizeof *want), *got = mem_alloc_array(n, sizeof *got);
    assert_true(want && got);
    read_text(&r, ids, LONG, MAX_ROWS, LONG - WATCHED, want);
    read_text(&r, ids, LONG, 7, LONG - WATCHED, got);
    assert_memory_equal(got, want, n * sizeof *want);
    read_by_trees(&r, ids, got);
    assert_memory_equal(got, want, n * sizeof *want);
    mem_free(want);
    mem_free(got);
    runner_close(&r);
}

static void test_long(void **state)
{
    for (int p = 0; p < COUNT(pairs); p++) {
        Error err = { 0 };
        Traces *t = NULL;
        int32_t ids[LONG];
        assert_ok(traces_open(&t, "nano_traces.json", pairs[p].key, &err), &err);
        for (int32_t n = 0, i = 0; n < LONG; i = (i + 1) % t->n) /* the greedy texts, one after another */
            for (int32_t k = 0; k < t->item[i].n_greedy && n < LONG; k++) ids[n++] = t->item[i].greedy[k];
        check_long(&pairs[p], DT_BF16, ids);
        check_long(&pairs[p], DT_F32, ids);
        traces_free(t);
    }
}

/* ---- bf16 beside float32 ---- */

typedef struct Difference {
    int32_t n;                  /* positions */
    double  sum_kl, worst_kl;   /* KL(float32 || bf16) in nats */
    double  worst, lowest, highest; /* largest |difference| of a logit; range of the float32 logits */
    int32_t n_same;             /* positions with the same largest logit */
} Difference;

static double log_sum_exp(const float *x, int32_t n)
{
    double largest = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++) largest = fmax(largest, (double)x[i]);
    for (int32_t i = 0; i < n; i++) sum += exp((double)x[i] - largest);
    return largest + log(sum);
}

static void compare_rows(Difference *d, const float *p, const float *q, int32_t vocab)
{
    double log_p = log_sum_exp(p, vocab), log_q = log_sum_exp(q, vocab), kl = 0;
    for (int32_t i = 0; i < vocab; i++) {
        kl += exp((double)p[i] - log_p) * (((double)p[i] - log_p) - ((double)q[i] - log_q));
        d->worst = fmax(d->worst, fabs((double)p[i] - (double)q[i]));
        d->lowest = fmin(d->lowest, (double)p[i]);
        d->highest = fmax(d->highest, (double)p[i]);
    }
    d->sum_kl += kl;
    d->worst_kl = fmax(d->worst_kl, kl);
    d->n_same += argmax(p, vocab) == argmax(q, vocab);
    d->n++;
}

static void test_bf16_quality(void **state)
{
    for (int p = 0; p < COUNT(pairs); p++) {
        Error err = { 0 };
        Traces *t = NULL;
        Difference d = { 0 };
        assert_ok(traces_open(&t, "nano_reference.json", pairs[p].key, &err), &err);
        Runner wide = runner_open(&pairs[p], DT_F32, NULL, 1, MAX_TOKENS);
        Runner narrow = runner_open(&pairs[p], DT_BF16, NULL, 1, MAX_TOKENS);
        for (int32_t i = 0; i < t->n && d.n < 5000; i++) {
            int32_t n = score(&wide, &t->item[i]);
            score(&narrow, &t->item[i]);
            for (int32_t k = 0; k < n; k++)
                compare_rows(&d, builder_logits(wide.builder, k), builder_logits(narrow.builder, k),
                             wide.model->info.vocab_size);
        }
        double range = d.highest - d.lowest;
        print_message("%s, %d positions: bf16 logits within %.2f %% of the range, mean KL %.1e, worst %.1e, same first "
                      "choice at %.1f %%\n", pairs[p].key, d.n, 100 * d.worst / range, d.sum_kl / d.n, d.worst_kl,
                      100.0 * d.n_same / d.n);
        assert_true(d.n >= 5000);
        assert_true(d.worst <= 0.03 * range);
        assert_true(d.sum_kl / d.n < 1e-3);
        runner_close(&wide);
        runner_close(&narrow);
        traces_free(t);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest quick[] = { cmocka_unit_test(test_traces), cmocka_unit_test(test_bf16_bits),
                                        cmocka_unit_test(test_long) };
    const struct CMUnitTest all[] = { cmocka_unit_test(test_reference), cmocka_unit_test(test_traces_scalar),
                                      cmocka_unit_test(test_bf16_quality) };
    numeric_mode_enter();
    if (argc > 1 && strcmp(argv[1], "all") == 0) return cmocka_run_group_tests_name("nano, all", all, NULL, NULL);
    return cmocka_run_group_tests_name("nano", quick, NULL, NULL);
}
