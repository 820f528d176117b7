/* --quantization: rounding while loading gives the bits of a checkpoint that stores what the public encoders make; what it
 * leaves alone; what it refuses. */
#include "support/batch_builder.h"
#include "support/checkpoint.h"

#include "base/memory.h"
#include "tensor/quant.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

enum { N_IDS = 24, MAX_VOCAB = 4096 };

static Backend *backend;

static void assert_ok(Status s, const Error *err)
{
    if (s) fail_msg("%s", err->text);
}

typedef struct Answer {
    int32_t  vocab;
    uint64_t fingerprint;
    size_t   weight_bytes;
    float    logits[MAX_VOCAB];
} Answer;

static ModelOptions options_of(DType dtype, QuantFormat format)
{
    return (ModelOptions){ .dtype = dtype, .quantization = format,
                           .limits = { .max_rows = N_IDS, .max_outputs = 4, .max_seqs = 2, .max_uncertain_rows = 8 } };
}

static Answer answer_at(const char *dir, DType dtype, QuantFormat format)
{
    Error err = { 0 };
    Model *model = NULL;
    BatchBuilder *b = NULL;
    int32_t ids[N_IDS];
    ModelOptions options = options_of(dtype, format);
    assert_ok(model_open(&model, dir, backend, &options, &err), &err);
    Answer a = { model->info.vocab_size, model->info.numerics.fingerprint, model->info.weight_bytes };
    for (int i = 0; i < N_IDS; i++) ids[i] = (i * 37 + 11) % a.vocab;
    BuilderOptions sizes = { .n_slots = 2, .max_tokens = 64, .max_rows = N_IDS, .max_outputs = 4 };
    assert_ok(builder_open(&b, model, &sizes, &err), &err);
    builder_begin(b);
    builder_want(b, builder_line(b, 1, ids, N_IDS) + N_IDS - 1, 1);
    builder_forward(b);
    memcpy(a.logits, builder_logits(b, 0), (size_t)a.vocab * sizeof(float));
    builder_close(b);
    model_close(model);
    return a;
}

static TestCheckpoint *open_checkpoint(const char *below)
{
    Error err = { 0 };
    TestCheckpoint *c = NULL;
    assert_ok(test_checkpoint_open(&c, below, &err), &err);
    return c;
}

static void write_checkpoint(const TestCheckpoint *c, int n_shards)
{
    Error err = { 0 };
    assert_ok(test_checkpoint_write(c, n_shards, &err), &err);
}

/* ---- the same by hand ---- */

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* What the help says: the linears of the layers, but for in_proj_a and in_proj_b; and whole blocks. */
static bool is_rounded(const TestTensor *t, QuantFormat format)
{
    if (t->entry.n_dims != 2 || strncmp(t->name, "model.layers.", 13) != 0 || !ends_with(t->name, ".weight")) return false;
    if (ends_with(t->name, "in_proj_a.weight") || ends_with(t->name, "in_proj_b.weight")) return false;
    return t->entry.shape[1] % (format == QUANT_NVFP4 ? 32 : 4) == 0;
}

static TestTensor *add_part(TestCheckpoint *c, const char *base, const char *suffix, DType dtype, int n_dims, int64_t a, int64_t b)
{
    char name[160];
    snprintf(name, sizeof name, "%.100s%s", base, suffix);
    return test_checkpoint_add(c, name, dtype, n_dims, (int64_t[]){ a, b });
}

/* ModelOpt's names: weight U8, weight_scale F8_E4M3, weight_scale_2. */
static void add_nvfp4(TestCheckpoint *c, const char *base, const float *x, int64_t n, int64_t k)
{
    uint8_t *codes = add_part(c, base, ".weight", DT_U8, 2, n, k / 2)->data;
    uint8_t *scales = add_part(c, base, ".weight_scale", DT_F8_E4M3, 2, n, k / 16)->data;
    float *global = add_part(c, base, ".weight_scale_2", DT_F32, 0, 0, 0)->data;
    *global = nvfp4_global(quant_amax(x, n * k));
    nvfp4_encode(codes, scales, x, n * k, *global);
}

static void add_fp8(TestCheckpoint *c, const char *base, const float *x, int64_t n, int64_t k)
{
    uint8_t *codes = add_part(c, base, ".weight", DT_F8_E4M3, 2, n, k)->data;
    float *scales = add_part(c, base, ".weight_scale", DT_F32, 2, n, 1)->data;
    for (int64_t i = 0; i < n; i++) {
        scales[i] = fp8_scale(quant_amax(x + i * k, k));
        fp8_encode(codes + i * k, x + i * k, k, scales[i]);
    }
}

static void round_tensor(TestCheckpoint *c, const char *name, QuantFormat format)
{
    char base[160];
    TestTensor *t = test_checkpoint_find(c, name);
    const int64_t n = t->entry.shape[0], k = t->entry.shape[1];
    float *x = mem_alloc_array((size_t)(n * k), sizeof *x);
    assert_non_null(x);
    dtype_to_f32(x, t->data, t->entry.dtype, (size_t)(n * k));
    snprintf(base, sizeof base, "%.*s", (int)(strlen(name) - strlen(".weight")), name);
    test_checkpoint_remove(c, name);
    if (format == QUANT_NVFP4) add_nvfp4(c, base, x, n, k);
    else add_fp8(c, base, x, n, k);
    mem_free(x);
}

/* How many there were. */
static int round_all(TestCheckpoint *c, QuantFormat format)
{
    int n = 0;
    char names[CHECKPOINT_MAX_TENSORS][160];
    for (int i = 0; i < c->n; i++)
        if (is_rounded(&c->tensor[i], format)) snprintf(names[n++], sizeof names[0], "%s", c->tensor[i].name);
    for (int i = 0; i < n; i++) round_tensor(c, names[i], format);
    return n;
}

/* ---- tests ---- */

static const QuantFormat formats[] = { QUANT_FP8, QUANT_NVFP4 };
static const char *const models[] = { "models/nano-plain", "tests/data/golden/llama", "tests/data/golden/qwen3_5",
                                      "tests/data/golden/llama3_bias" };

static void assert_same(const char *what, const Answer *a, const Answer *b)
{
    if (memcmp(a->logits, b->logits, (size_t)a->vocab * sizeof(float)) != 0) fail_msg("%s: other logits", what);
    if (a->fingerprint != b->fingerprint) fail_msg("%s: other fingerprint", what);
    assert_int_equal(a->weight_bytes, b->weight_bytes);
}

/* Logits, fingerprint and size, in both arithmetics; and other ones than those of the checkpoint as it is. */
static void like_a_stored_one(void **state)
{
    static const DType types[] = { DT_BF16, DT_F32 };
    for (int i = 0; i < COUNT(models); i++) {
        for (int f = 0; f < COUNT(formats); f++) {
            Answer rounded[2], plain[2];
            TestCheckpoint *c = open_checkpoint(models[i]);
            write_checkpoint(c, 2);
            for (int t = 0; t < 2; t++) rounded[t] = answer_at(c->dir, types[t], formats[f]);
            for (int t = 0; t < 2; t++) plain[t] = answer_at(c->dir, types[t], QUANT_NONE);
            test_checkpoint_close(c);

            c = open_checkpoint(models[i]); /* another directory: the index of the first stays out of it */
            assert_true(round_all(c, formats[f]) > 5);
            write_checkpoint(c, 1);
            for (int t = 0; t < 2; t++) {
                Answer stored = answer_at(c->dir, types[t], QUANT_NONE);
                assert_same(models[i], &rounded[t], &stored);
                assert_int_not_equal(plain[t].fingerprint, stored.fingerprint);
            }
            assert_true(rounded[0].weight_bytes < plain[0].weight_bytes);
            test_checkpoint_close(c);
        }
    }
}

/* The same numbers stored in other types round to the same codes; without --dtype float32 is no reason to compute in it. */
static void from_any_plain_type(void **state)
{
    for (int f = 0; f < COUNT(formats); f++) {
        TestCheckpoint *c = open_checkpoint("tests/data/golden/qwen3");
        for (int t = 0; t < c->n; t++) test_checkpoint_convert(&c->tensor[t], DT_F16);
        for (int t = 0; t < c->n; t++) test_checkpoint_convert(&c->tensor[t], DT_BF16);
        write_checkpoint(c, 1);
        Answer want = answer_at(c->dir, DT_BF16, formats[f]);
        static const DType types[] = { DT_F16, DT_F32 };
        for (int k = 0; k < COUNT(types); k++) {
            for (int t = 0; t < c->n; t++) test_checkpoint_convert(&c->tensor[t], types[k]);
            write_checkpoint(c, 1);
            Answer got = answer_at(c->dir, DT_NONE, formats[f]);
            assert_memory_equal(want.logits, got.logits, (size_t)want.vocab * sizeof(float));
        }
        test_checkpoint_close(c);
    }
}

static void plan_sees_it(void **state)
{
    size_t bytes[3];
    for (int f = 0; f < 3; f++) {
        Error err = { 0 };
        ModelNeeds needs;
        TestCheckpoint *c = open_checkpoint("models/nano-plain");
        write_checkpoint(c, 1);
        ModelOptions options = options_of(DT_NONE, f ? formats[f - 1] : QUANT_NONE);
        assert_ok(model_needs(c->dir, &options, &needs, NULL, &err), &err);
        Answer a = answer_at(c->dir, DT_NONE, options.quantization);
        assert_int_equal(needs.weight_bytes, a.weight_bytes);
        bytes[f] = needs.weight_bytes;
        options.load_format = LOAD_DUMMY;
        assert_ok(model_needs(c->dir, &options, &needs, NULL, &err), &err);
        assert_int_equal(needs.weight_bytes, a.weight_bytes);
        test_checkpoint_close(c);
    }
    assert_true(bytes[1] < bytes[0] && bytes[2] < bytes[1]);
}

/* Made-up weights are rounded, too. */
static void dummies(void **state)
{
    Error err = { 0 };
    TestCheckpoint *c = open_checkpoint("models/nano-plain");
    write_checkpoint(c, 1);
    for (int f = 0; f < COUNT(formats); f++) {
        Model *model = NULL;
        ModelOptions options = options_of(DT_NONE, formats[f]);
        options.load_format = LOAD_DUMMY;
        assert_ok(model_open(&model, c->dir, backend, &options, &err), &err);
        model_close(model);
    }
    test_checkpoint_close(c);
}

static void refusals(void **state)
{
    static const struct {
        const char *says;
        uint32_t    bits; /* what the first number of a linear becomes; 0: the checkpoint is rounded by hand */
    } cases[] = { { "quantised already, tensor model.layers.", 0 }, { "holds nan at row 0, column 0", 0x7fc0 },
                  { "holds -inf at row 0, column 0", 0xff80 } };
    for (int i = 0; i < COUNT(cases); i++) {
        for (int f = 0; f < COUNT(formats); f++) {
            Error err = { 0 };
            Model *model = NULL;
            ModelOptions options = options_of(DT_NONE, formats[f]);
            TestCheckpoint *c = open_checkpoint("tests/data/golden/llama");
            if (!cases[i].bits) round_tensor(c, "model.layers.1.mlp.up_proj.weight", QUANT_FP8);
            else *(uint16_t *)test_checkpoint_find(c, "model.layers.1.self_attn.o_proj.weight")->data = (uint16_t)cases[i].bits;
            write_checkpoint(c, 1);
            Status s = model_open(&model, c->dir, backend, &options, &err);
            if (s == OK || model || !strstr(err.text, cases[i].says)) fail_msg("case %d: %d, \"%s\"", i, s, err.text);
            if (!cases[i].bits) assert_string_equal(err.param, "--quantization");
            test_checkpoint_close(c);
        }
    }
}

static int open_backend(void **state)
{
    Error err = { 0 };
    return backend_open_cpu(&backend, &(BackendOptions){ .n_workers = 3 }, &err);
}

static int close_backend(void **state)
{
    backend_close(backend);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(like_a_stored_one), cmocka_unit_test(from_any_plain_type), cmocka_unit_test(plan_sees_it),
        cmocka_unit_test(dummies),           cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
