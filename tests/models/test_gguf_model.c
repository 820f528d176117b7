/* Models as GGUF files: each golden checkpoint is converted as llama.cpp's converter would (support/gguf_from_model.h);
 * read back, every tensor has its numbers and every logit its bits. */
#include "base/fmath.h"
#include "models/layers.h"
#include "support/batch_builder.h"
#include "support/gguf_from_model.h"
#include "support/golden.h"
#include "support/temp_dir.h"
#include "tensor/checkpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

enum { MAX_ROWS = 160 };

static const char *const models[] = { "llama", "llama3_bias", "qwen3", "qwen3_5" };

static void assert_ok(Status s, const Error *err)
{
    if (s) fail_msg("%s", err->text);
}

static int open_dir(void **state)
{
    static TempDir t;
    temp_dir_open(&t);
    *state = &t;
    return 0;
}

static int close_dir(void **state)
{
    temp_dir_close(*state);
    return 0;
}

static const char *convert(const TempDir *t, const char *dir)
{
    Buf file;
    gguf_from_model(&file, dir, QUANT_NONE);
    const char *path = temp_write(t, "model.gguf", file.data, file.len);
    buf_free(&file);
    return path;
}

static float *decode(const Checkpoint *c, const CheckpointTensor *t)
{
    Error err = { 0 };
    float *out = calloc((size_t)(t->stored.n_out * t->stored.n_in), sizeof *out);
    assert_non_null(out);
    assert_ok(checkpoint_decode_rows(c, t, 0, t->stored.n_out, out, &err), &err);
    return out;
}

/* What a model makes of the stored number. */
static float finished(float x, const CheckpointTensor *t, bool zero_centered)
{
    const bool is_norm = strstr(t->name, "norm") && !strstr(t->name, "linear_attn.norm");
    if (is_norm && zero_centered) return 1.0f + x;
    return strstr(t->name, "A_log") ? -f_exp(x) : x;
}

static void check_tensors(const TempDir *t, const char *dir)
{
    Checkpoint *a, *b;
    ModelConfig config;
    Error err = { 0 };
    assert_ok(config_read(&config, dir, &err), &err);
    assert_ok(checkpoint_open(&a, dir, &err), &err);
    assert_ok(checkpoint_open(&b, convert(t, dir), &err), &err);
    assert_int_equal(checkpoint_count(a), checkpoint_count(b) - (checkpoint_find(b, "rope_freqs.weight") != NULL));
    for (int i = 0; i < checkpoint_count(a); i++) {
        const CheckpointTensor *x = checkpoint_at(a, i), *y = checkpoint_find(b, x->name);
        if (!y) fail_msg("%s is missing", x->name);
        assert_int_equal(x->n_dims, y->n_dims);
        assert_memory_equal(x->shape, y->shape, sizeof x->shape);
        float *want = decode(a, x), *got = decode(b, y);
        for (int64_t k = 0; k < x->stored.n_out * x->stored.n_in; k++) {
            float stored = finished(want[k], x, config.zero_centered_norm);
            if (got[k] != stored) fail_msg("%s: number %d is %a, want %a", x->name, (int)k, got[k], stored);
        }
        free(want);
        free(got);
    }
    checkpoint_close(a);
    checkpoint_close(b);
}

static void tensors_come_back(void **state)
{
    for (int i = 0; i < COUNT(models); i++) {
        char below[64];
        snprintf(below, sizeof below, "tests/data/golden/%s", models[i]);
        check_tensors(*state, source_tree(below));
    }
    check_tensors(*state, source_tree("models/nano")); /* with an MTP module */
    ModelConfig config;
    Error err = { 0 };
    assert_ok(config_read(&config, temp_path(*state, "model.gguf"), &err), &err);
    assert_true(config.mtp_layers == 1 && config.n_layers == 8);
}

static float *logits_of(const char *path, const Golden *g, DType dtype)
{
    Backend *backend;
    Model *model;
    BatchBuilder *builder;
    Error err = { 0 };
    assert_ok(backend_open_cpu(&backend, &(BackendOptions){ .n_workers = 2 }, &err), &err);
    ModelOptions options = { .dtype = dtype, .limits = { MAX_ROWS, MAX_ROWS, 1, 1 } };
    assert_ok(model_open(&model, path, backend, &options, &err), &err);
    BuilderOptions sizes = { .n_slots = 1, .max_tokens = MAX_ROWS, .max_rows = MAX_ROWS, .max_outputs = MAX_ROWS };
    assert_ok(builder_open(&builder, model, &sizes, &err), &err);
    builder_begin(builder);
    builder_want(builder, builder_line(builder, 0, g->ids, g->n), g->n);
    builder_forward(builder);
    const size_t n = (size_t)g->n * (size_t)g->vocab;
    float *out = malloc(n * sizeof *out);
    assert_non_null(out);
    memcpy(out, builder->logits, n * sizeof *out);
    builder_close(builder);
    model_close(model);
    backend_close(backend);
    return out;
}

static void logits_have_the_same_bits(void **state)
{
    static const DType types[] = { DT_F32, DT_BF16 };
    for (int i = 0; i < COUNT(models); i++) {
        Golden g;
        Error err = { 0 };
        char below[64];
        snprintf(below, sizeof below, "golden/%s", models[i]);
        assert_ok(golden_open(&g, below, &err), &err);
        const char *path = convert(*state, g.model_dir);
        for (int k = 0; k < COUNT(types); k++) {
            float *want = logits_of(g.model_dir, &g, types[k]), *got = logits_of(path, &g, types[k]);
            if (memcmp(got, want, (size_t)g.n * (size_t)g.vocab * sizeof *got) != 0)
                fail_msg("%s in %s: other logits than from safetensors", models[i], dtype_name(types[k]));
            free(want);
            free(got);
        }
        golden_free(&g);
    }
}

/* The scaling is found from the factors, and factors that nothing gives are refused. */
static void rotary_factors(void **state)
{
    ModelConfig config, found;
    Error err = { 0 };
    const char *dir = source_tree("tests/data/golden/llama3_bias");
    assert_ok(config_read(&config, dir, &err), &err);
    const char *path = convert(*state, dir);
    assert_ok(config_read(&found, path, &err), &err);
    assert_int_equal(found.rope.type, ROPE_LLAMA3);
    assert_true(found.rope.factor == config.rope.factor);
    assert_int_equal(found.rope.original_max_position, config.rope.original_max_position);

    Gguf *g;
    float first = 1.01f;
    assert_ok(gguf_open(&g, path, &err), &err);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, (long)gguf_find(g, "rope_freqs.weight")->offset, SEEK_SET);
    assert_int_equal(fwrite(&first, sizeof first, 1, f), 1);
    fclose(f);
    gguf_close(g);
    assert_int_equal(config_read(&found, path, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "rope_freqs.weight"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_come_back),
        cmocka_unit_test(rotary_factors),
        cmocka_unit_test(logits_have_the_same_bits),
    };
    return cmocka_run_group_tests(tests, open_dir, close_dir);
}
