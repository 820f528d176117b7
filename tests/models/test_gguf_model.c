/* Models as GGUF files: each golden checkpoint is converted as llama.cpp's converter would (support/gguf_from_model.h);
 * read back, every tensor has its numbers. */
#include "base/fmath.h"
#include "models/config.h"
#include "support/gguf_from_model.h"
#include "support/temp_dir.h"
#include "tensor/checkpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

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
    gguf_from_model(&file, dir);
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
    assert_int_equal(checkpoint_count(a), checkpoint_count(b));
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
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_come_back),
    };
    return cmocka_run_group_tests(tests, open_dir, close_dir);
}
