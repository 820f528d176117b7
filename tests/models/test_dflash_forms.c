/* The DFlash network in all its published forms against an independent reference: checkpoints and outputs of
 * tests/data/dflash_forms, computed by a numpy program that was written from the specification by somebody who had not seen
 * this network. Two rounds each: context of 50 tokens, then 4 more after the first round, block rows forgotten in between. */
#include "models/dflash.h"
#include "support/golden.h"

#include "base/memory.h"
#include "tensor/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

enum { HIDDEN = 64, VOCAB = 320, MAX_BLOCK = 8, N_CONTEXT = 50, N_NEW = 4, N_BLOCKS = 8, K = 8 };
static const double LIMIT = 3e-6;

static const char *const cases[] = { "v1_full_yarn",   "v1_sliding", "v1_sliding_bidirectional", "v1_full_causal",
                                     "v1_both_flags",  "v1_use_swa", "dflash2",                  "v1_short_block" };

typedef struct Form {
    Backend     *backend;
    Model       *target;
    Dflash      *net;
    Safetensors *golden;
    CacheMemory  cache;
    int32_t      table[N_BLOCKS];
} Form;

static void assert_ok(Status s, const Error *err)
{
    if (s) fail_msg("%s", err->text);
}

static void *read_golden(const Form *f, const char *key, int round, size_t *n_bytes)
{
    char name[64];
    Error err = { 0 };
    snprintf(name, sizeof name, round ? "%s%d" : "%s", key, round);
    const SafetensorsEntry *e = safetensors_find(f->golden, name);
    assert_non_null(e);
    void *data = mem_alloc(e->bytes);
    assert_ok(safetensors_read(f->golden, e, 0, data, e->bytes, &err), &err);
    if (n_bytes) *n_bytes = e->bytes;
    return data;
}

static void open_form(Form *f, const char *name, const char *mask)
{
    char dir[4096], below[256], target[4096];
    Error err = { 0 };
    *f = (Form){ 0 };
    ModelOptions options = { .dtype = DT_F32, .limits = { 64, 64, 2, 16 } };
    DflashSetup setup = { .block_size = strcmp(name, "v1_short_block") ? 0 : 5, .max_context = 64, .max_blocks = 1, .max_outputs = 16 };
    snprintf(below, sizeof below, "tests/data/dflash_forms/%s", name);
    assert_ok(source_path(dir, sizeof dir, below, &err), &err);
    assert_ok(source_path(target, sizeof target, "tests/data/dflash_forms/target", &err), &err);
    assert_ok(backend_open_cpu(&f->backend, &(BackendOptions){ .n_workers = 2, .cpu_mask = mask }, &err), &err);
    assert_ok(model_open(&f->target, target, f->backend, &options, &err), &err);
    assert_ok(dflash_open(&f->net, dir, f->target, f->backend, &setup, &err), &err);
    strncat(dir, "/golden.safetensors", sizeof dir - strlen(dir) - 1);
    assert_ok(safetensors_open(&f->golden, dir, &err), &err);
    CacheGroup g = dflash_group(f->net);
    for (int32_t i = 0; i < N_BLOCKS; i++) f->table[i] = 1 + (i * 5 + 3) % N_BLOCKS;
    f->cache = (CacheMemory){ .block_size = 16, .max_blocks = N_BLOCKS, .block_table = f->table,
                              .layer_bytes = (size_t)(N_BLOCKS + 1) * 16 * g.entry_bytes };
    f->cache.data = backend_alloc(f->backend, f->cache.layer_bytes * (size_t)g.n_layers);
    assert_non_null(f->cache.data);
    memset(f->cache.data, 0xff, f->cache.layer_bytes * (size_t)g.n_layers);
    dflash_bind(f->net, &f->cache);
}

static void close_form(Form *f)
{
    backend_free(f->backend, f->cache.data);
    safetensors_close(f->golden);
    dflash_close(f->net);
    model_close(f->target);
    backend_close(f->backend);
}

static void pass(Form *f, const float *features, int32_t first, int32_t n, int32_t anchor)
{
    DflashContext context[N_CONTEXT];
    int64_t width = (int64_t)dflash_config(f->net)->n_taps * HIDDEN;
    Stream *st = backend_stream(f->backend);
    for (int32_t i = 0; i < n; i++) context[i] = (DflashContext){ 0, first + i, first + i };
    backend_ops(f->backend)->round_rows(st, dflash_features(f->net, n), tensor_2d((void *)(features + first * width), DT_F32, n, width));
    DflashBlock block = { .slot = 0, .anchor = anchor, .n_committed = first + n, .rope = first + n };
    dflash_pass(f->net, st, context, n, &block, 1);
}

/* The walk of DFlash 2 from the reference's candidates, which our own logits must rank the same way. */
static void check_walk(Form *f, int round, int32_t anchor, int32_t n)
{
    int32_t rows[MAX_BLOCK], picked[MAX_BLOCK];
    int32_t *candidates = read_golden(f, "candidates", round, NULL), *draft = read_golden(f, "draft", round, NULL);
    float value[MAX_BLOCK * K];
    for (int32_t i = 0; i < n; i++) rows[i] = 1 + i;
    Tensor own = dflash_logits(f->net, backend_stream(f->backend), rows, n);
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = 0; k < K; k++) value[i * K + k] = tensor_f32(own, i)[candidates[i * K + k]];
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = 1; k < K; k++) assert_true(value[i * K + k - 1] >= value[i * K + k]);
    PickLine line = { .n_rows = n, .anchor = anchor };
    PickJob job = { .n_lines = 1, .k = K, .lines = &line, .candidate = candidates, .logit = value, .picked = picked };
    dflash_pick(f->net, backend_stream(f->backend), &job);
    for (int32_t i = 0; i < n; i++) assert_int_equal(candidates[i * K + picked[i]], draft[i]);
    mem_free(candidates);
    mem_free(draft);
}

static double check_round(Form *f, int round, const float *features, int32_t first, int32_t n)
{
    int32_t rows[MAX_BLOCK], size = dflash_block_size(f->net);
    size_t bytes;
    int32_t *block = read_golden(f, "block", round, &bytes);
    float *want = read_golden(f, "draft_logits", round, NULL);
    assert_int_equal(bytes, (size_t)size * sizeof *block);
    for (int32_t i = 1; i < size; i++) assert_int_equal(block[i], dflash_config(f->net)->mask_id);
    for (int32_t i = 0; i < size; i++) rows[i] = i;
    pass(f, features, first, n, block[0]);
    Tensor got = dflash_logits(f->net, backend_stream(f->backend), rows, size);
    double far = distance(got.data, want, (size_t)size * VOCAB);
    if (dflash_config(f->net)->selector_rank) check_walk(f, round, block[0], size - 1);
    mem_free(block);
    mem_free(want);
    return far;
}

static void check_form(const char *name, const char *mask)
{
    Form f;
    open_form(&f, name, mask);
    float *features = read_golden(&f, "features", 0, NULL);
    double first = check_round(&f, 1, features, 0, N_CONTEXT), second = check_round(&f, 2, features, N_CONTEXT, N_NEW);
    print_message("%-26s %-12s rounds within %.1e and %.1e of the largest logit\n", name, backend_variant(f.backend), first, second);
    assert_true(first <= LIMIT && second <= LIMIT);
    mem_free(features);
    close_form(&f);
}

static void test_every_form(void **state)
{
    numeric_mode_enter();
    for (int i = 0; i < COUNT(cases); i++) {
        check_form(cases[i], "scalar");
        check_form(cases[i], NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_every_form) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
