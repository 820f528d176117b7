/* Loading: what may vary in a checkpoint without changing an answer, what may not be there at all, and that every
 * failure is one sentence that names the tensor and leaves nothing behind. */
#include "models/weights.h"
#include "support/batch_builder.h"
#include "support/checkpoint.h"
#include "support/golden.h"

#include "base/memory.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

enum { N_IDS = 24, MAX_VOCAB = 4096 };

static Backend *backend;

static void assert_ok(Status s, const Error *err)
{
    if (s) fail_msg("%s", err->text);
}

static ModelOptions options_of(DType dtype)
{
    return (ModelOptions){ .dtype = dtype, .limits = { .max_rows = N_IDS, .max_outputs = 4, .max_seqs = 2,
                                                       .max_uncertain_rows = 8 } };
}

/* What a model answers: its logits behind a fixed text, and its fingerprint. */
typedef struct Answer {
    int32_t  vocab;
    uint64_t fingerprint;
    float    logits[MAX_VOCAB];
} Answer;

static Answer answer_of(Model *model)
{
    Error err = { 0 };
    Answer a = { .vocab = model->info.vocab_size, .fingerprint = model->info.numerics.fingerprint };
    BatchBuilder *b = NULL;
    int32_t ids[N_IDS];
    for (int i = 0; i < N_IDS; i++) ids[i] = (i * 37 + 11) % a.vocab;
    BuilderOptions sizes = { .n_slots = 2, .max_tokens = 64, .max_rows = N_IDS, .max_outputs = 4 };
    assert_ok(builder_open(&b, model, &sizes, &err), &err);
    builder_begin(b);
    builder_want(b, builder_line(b, 1, ids, N_IDS) + N_IDS - 1, 1);
    builder_forward(b);
    memcpy(a.logits, builder_logits(b, 0), (size_t)a.vocab * sizeof(float));
    builder_close(b);
    for (int32_t i = 0; i < a.vocab; i++) assert_true(isfinite(a.logits[i]));
    return a;
}

static Answer answer_at(const char *dir, const ModelOptions *options)
{
    Error err = { 0 };
    Model *model = NULL;
    assert_ok(model_open(&model, dir, backend, options, &err), &err);
    Answer a = answer_of(model);
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

static Answer answer_written(const TestCheckpoint *c, int n_shards, DType dtype)
{
    Error err = { 0 };
    ModelOptions options = options_of(dtype);
    assert_ok(test_checkpoint_write(c, n_shards, &err), &err);
    return answer_at(c->dir, &options);
}

static void assert_same_logits(const Answer *a, const Answer *b)
{
    assert_int_equal(a->vocab, b->vocab);
    assert_memory_equal(a->logits, b->logits, (size_t)a->vocab * sizeof(float));
}

static const char *const families[] = { "tests/data/golden/llama", "tests/data/golden/qwen3",
                                        "tests/data/golden/qwen3_5" };

/* ---- what may vary ---- */

static void test_shards(void **state)
{
    for (int i = 0; i < COUNT(families); i++) {
        TestCheckpoint *c = open_checkpoint(families[i]);
        Answer whole = answer_written(c, 1, DT_BF16);
        for (int n_shards = 2; n_shards <= 5; n_shards += 3) {
            Answer sharded = answer_written(c, n_shards, DT_BF16);
            assert_same_logits(&whole, &sharded);
            assert_int_equal(whole.fingerprint, sharded.fingerprint);
        }
        test_checkpoint_close(c);
    }
}

/* bf16 numbers stored as float32, or float16, where float16 holds them: the same model. */
static void test_stored_types(void **state)
{
    static const DType types[] = { DT_F16, DT_F32 };
    for (int i = 0; i < COUNT(families); i++) {
        TestCheckpoint *c = open_checkpoint(families[i]);
        for (int t = 0; t < c->n; t++) test_checkpoint_convert(&c->tensor[t], DT_F16);
        for (int t = 0; t < c->n; t++) test_checkpoint_convert(&c->tensor[t], DT_BF16); /* both hold these numbers now */
        Answer narrow = answer_written(c, 1, DT_BF16), wide = answer_written(c, 1, DT_F32);
        for (int k = 0; k < COUNT(types); k++) {
            for (int t = 0; t < c->n; t++) test_checkpoint_convert(&c->tensor[t], types[k]);
            Answer a = answer_written(c, 1, DT_BF16), b = answer_written(c, 1, DT_F32);
            assert_same_logits(&narrow, &a);
            assert_same_logits(&wide, &b);
        }
        assert_int_not_equal(narrow.fingerprint, wide.fingerprint);
        test_checkpoint_close(c);
    }
}

/* Full names of a vision-language checkpoint, with the parts that we do not use. */
static void test_names_of_vl_models(void **state)
{
    TestCheckpoint *c = open_checkpoint("tests/data/golden/qwen3_5");
    Answer plain = answer_written(c, 1, DT_F32);
    for (int i = 0; i < c->n; i++) {
        char name[160];
        if (strncmp(c->tensor[i].name, "model.", 6) != 0) continue;
        snprintf(name, sizeof name, "model.language_model.%.120s", c->tensor[i].name + 6);
        test_checkpoint_rename(c, c->tensor[i].name, name);
    }
    test_checkpoint_add(c, "model.visual.patch_embed.proj.weight", DT_BF16, 2, (int64_t[]){ 4, 8 });
    test_checkpoint_add(c, "mtp.fc.weight", DT_BF16, 2, (int64_t[]){ 64, 128 });
    Answer vl = answer_written(c, 2, DT_F32);
    assert_same_logits(&plain, &vl);
    test_checkpoint_close(c);
}

static void test_left_over_tensors(void **state)
{
    TestCheckpoint *c = open_checkpoint("tests/data/golden/llama");
    Answer plain = answer_written(c, 1, DT_F32);
    test_checkpoint_add(c, "lm_head.weight", DT_BF16, 2, (int64_t[]){ 320, 64 }); /* tied: a copy, here even a wrong one */
    test_checkpoint_add(c, "model.layers.0.self_attn.rotary_emb.inv_freq", DT_F32, 1, (int64_t[]){ 8 });
    test_checkpoint_add(c, "model.layers.0.self_attn.k_scale", DT_F32, 0, (int64_t[]){ 0 }); /* of an FP8 cache, as a number ... */
    test_checkpoint_add(c, "model.layers.0.self_attn.v_scale", DT_BF16, 1, (int64_t[]){ 1 }); /* ... or a list of one */
    Answer more = answer_written(c, 1, DT_F32);
    assert_same_logits(&plain, &more);
    assert_int_equal(plain.fingerprint, more.fingerprint);
    test_checkpoint_close(c);
}

/* A matrix of several tasks, the last panel not full: every number arrives, whichever worker took it. */
static void test_large_matrix(void **state)
{
    enum { ROWS = 5003, COLS = 1024 };
    Error err = { 0 };
    char path[] = "/tmp/tandem-test-XXXXXX.safetensors";
    close(mkstemps(path, 12));
    uint16_t *numbers = mem_alloc_array((size_t)ROWS * COLS, sizeof *numbers);
    assert_non_null(numbers);
    for (int i = 0; i < ROWS * COLS; i++) numbers[i] = (uint16_t)((uint32_t)i * 2654435761u >> 16 & 0xbfff);
    SafetensorsEntry entry = { .name = "big.weight", .dtype = DT_BF16, .n_dims = 2, .shape = { ROWS, COLS } };
    assert_ok(safetensors_write(path, &entry, (const void *[]){ numbers }, 1, &err), &err);

    Checkpoint *file = NULL;
    WeightList list;
    Weight w = { 0 };
    ModelOptions options = { 0 };
    weights_begin(&list, MATH_BF16, NULL);
    weights_scope(&list, "big.");
    weights_matrix(&list, &w, ROWS, COLS, "weight");
    assert_ok(checkpoint_open(&file, path, &err), &err);
    assert_ok(weights_load(&list, file, backend, &options, &err), &err);
    for (int r = 0; r < ROWS; r++) {
        float got[COLS], want[COLS];
        weight_get_row(&w, r, got);
        dtype_to_f32(want, numbers + (size_t)r * COLS, DT_BF16, COLS);
        assert_memory_equal(got, want, sizeof got);
    }
    weights_free(&list);
    checkpoint_close(file);
    mem_free(numbers);
    unlink(path);
}

/* ---- dummy weights ---- */

static void load_declared(WeightList *list, Weight *w, QuantFormat declared, int n_out, int n_in)
{
    Error err = { 0 };
    ModelOptions options = { .dummy_seed = 3 };
    weights_begin(list, MATH_BF16, NULL);
    list->declared = declared;
    weights_scope(list, "model.layers.7.");
    weights_row_parallel(list, w, n_out, n_in, "mlp.down_proj.weight");
    assert_ok(weights_check(list, NULL, NULL, &err), &err);
    assert_ok(weights_load(list, NULL, backend, &options, &err), &err);
}

/* In every format that config.json can declare: the same numbers each time, about 1 / sqrt(n_in) of size, of both signs. */
static void test_dummy_formats(void **state)
{
    static const QuantFormat formats[] = { QUANT_NONE, QUANT_FP8, QUANT_NVFP4, QUANT_MXFP4, QUANT_AWQ, QUANT_GPTQ, QUANT_INT4 };
    enum { ROWS = 2056, COLS = 4096 }; /* several tasks, the last panel not full */
    for (int i = 0; i < COUNT(formats); i++) {
        WeightList list, again;
        Weight w = { 0 }, same = { 0 };
        load_declared(&list, &w, formats[i], ROWS, COLS);
        load_declared(&again, &same, formats[i], ROWS, COLS);
        assert_int_equal(w.contract.format, formats[i]);
        assert_int_equal(list.hash, again.hash);
        double squares = 0, sum = 0;
        for (int r = 0; r < ROWS; r += 5) {
            float row[COLS], other[COLS];
            weight_get_row(&w, r, row);
            weight_get_row(&same, r, other);
            assert_memory_equal(row, other, sizeof row);
            for (int k = 0; k < COLS; k++) squares += (double)row[k] * (double)row[k], sum += (double)row[k];
        }
        const double n = (ROWS + 4) / 5 * (double)COLS, size = sqrt(squares / n) * sqrt(COLS), mean = sum / n * sqrt(COLS);
        if (size < 0.3 || size > 2 || fabs(mean) > 0.2) fail_msg("%s: size %g, mean %g", quant_geometry(formats[i])->name, size, mean);
        weights_free(&list);
        weights_free(&again);
    }
}

/* ---- what must not be there ---- */

typedef struct Fault {
    const char *what;
    const char *below;
    void (*spoil)(TestCheckpoint *c);
    Status      status;
    const char *says[2]; /* parts of the sentence */
} Fault;

static void drop_tensor(TestCheckpoint *c)
{
    test_checkpoint_remove(c, "model.layers.1.mlp.up_proj.weight");
}
static void drop_embedding(TestCheckpoint *c)
{
    test_checkpoint_remove(c, "model.embed_tokens.weight");
}
static void drop_head(TestCheckpoint *c)
{
    test_checkpoint_remove(c, "lm_head.weight");
}
static void add_tensor(TestCheckpoint *c)
{
    test_checkpoint_add(c, "model.layers.3.mlp.up_proj.weight", DT_BF16, 2, (int64_t[]){ 144, 64 });
}
static void add_mtp(TestCheckpoint *c)
{
    test_checkpoint_add(c, "mtp.fc.weight", DT_BF16, 2, (int64_t[]){ 64, 128 });
}
static void add_bias(TestCheckpoint *c) /* with attention_bias false in config.json */
{
    test_checkpoint_add(c, "model.layers.0.self_attn.q_proj.bias", DT_BF16, 1, (int64_t[]){ 64 });
}
static void drop_bias(TestCheckpoint *c)
{
    test_checkpoint_remove(c, "model.layers.1.self_attn.k_proj.bias");
}
static void turn_matrix(TestCheckpoint *c)
{
    SafetensorsEntry *e = &test_checkpoint_find(c, "model.layers.2.mlp.down_proj.weight")->entry;
    int64_t rows = e->shape[0];
    e->shape[0] = e->shape[1];
    e->shape[1] = rows;
}
static void flatten_norm(TestCheckpoint *c)
{
    SafetensorsEntry *e = &test_checkpoint_find(c, "model.norm.weight")->entry;
    e->n_dims = 2;
    e->shape[1] = 1;
}
static void turn_conv(TestCheckpoint *c) /* the layout of MLX conversions */
{
    SafetensorsEntry *e = &test_checkpoint_find(c, "model.layers.1.linear_attn.conv1d.weight")->entry;
    e->shape[1] = 4;
    e->shape[2] = 1;
}
static void quantise(TestCheckpoint *c)
{
    test_checkpoint_remove(c, "model.layers.0.self_attn.q_proj.weight");
    test_checkpoint_add(c, "model.layers.0.self_attn.q_proj.weight", DT_F8_E4M3, 2, (int64_t[]){ 64, 64 });
}
static void put_integers(TestCheckpoint *c)
{
    test_checkpoint_remove(c, "model.layers.0.input_layernorm.weight");
    test_checkpoint_add(c, "model.layers.0.input_layernorm.weight", DT_I64, 1, (int64_t[]){ 64 });
}
static void nan_in_norm(TestCheckpoint *c)
{
    ((uint16_t *)test_checkpoint_find(c, "model.layers.2.post_attention_layernorm.weight")->data)[5] = 0x7fc0;
}
static void minus_inf_in_a_log(TestCheckpoint *c)
{
    ((float *)test_checkpoint_find(c, "model.layers.0.linear_attn.A_log")->data)[2] = -INFINITY;
}
static void huge_a_log(TestCheckpoint *c)
{
    ((float *)test_checkpoint_find(c, "model.layers.2.linear_attn.A_log")->data)[0] = 100;
}

static const Fault faults[] = {
    { "missing tensor", "llama", drop_tensor, ERR_NOT_FOUND, { "model.layers.1.mlp.up_proj.weight", "missing" } },
    { "no embedding", "llama", drop_embedding, ERR_NOT_FOUND, { "model.embed_tokens.weight", "missing" } },
    { "no head, not tied", "qwen3_5", drop_head, ERR_NOT_FOUND, { "lm_head.weight", "missing" } },
    { "one layer too many", "llama", add_tensor, ERR_UNSUPPORTED, { "model.layers.3.mlp.up_proj.weight", "not part" } },
    { "MTP in a llama", "llama", add_mtp, ERR_UNSUPPORTED, { "mtp.fc.weight", "not part" } },
    { "a bias nobody announced", "llama", add_bias, ERR_UNSUPPORTED, { "layers.0.self_attn.q_proj.bias", "not part" } },
    { "an announced bias", "llama3_bias", drop_bias, ERR_NOT_FOUND, { "layers.1.self_attn.k_proj.bias", "missing" } },
    { "turned matrix", "llama", turn_matrix, ERR_INPUT, { "model.layers.2.mlp.down_proj.weight", "[144, 64]" } },
    { "norm of two dimensions", "llama", flatten_norm, ERR_INPUT, { "model.norm.weight", "[64, 1]" } },
    { "turned convolution", "qwen3_5", turn_conv, ERR_INPUT, { "linear_attn.conv1d.weight", "[128, 4, 1]" } },
    { "fp8", "llama", quantise, ERR_UNSUPPORTED, { "model.layers.0.self_attn.q_proj.weight", "F8_E4M3" } },
    { "integers", "llama", put_integers, ERR_UNSUPPORTED, { "model.layers.0.input_layernorm.weight", "I64" } },
    { "NaN in a norm", "llama", nan_in_norm, ERR_INPUT, { "layers.2.post_attention_layernorm.weight", "index 5" } },
    { "A_log of -inf", "qwen3_5", minus_inf_in_a_log, ERR_INPUT, { "layers.0.linear_attn.A_log", "index 2" } },
    { "A_log too large", "qwen3_5", huge_a_log, ERR_INPUT, { "layers.2.linear_attn.A_log", "index 0" } },
};

static void assert_refused(const TestCheckpoint *c, const Fault *fault)
{
    Error err = { 0 };
    Model *model = (Model *)c;
    size_t before = backend_bytes(backend);
    ModelOptions options = options_of(DT_NONE);
    Status s = model_open(&model, c->dir, backend, &options, &err);
    assert_null(model);
    if (s != fault->status) fail_msg("%s: status %d: %s", fault->what, s, err.text);
    for (int i = 0; i < 2; i++)
        if (!strstr(err.text, fault->says[i]))
            fail_msg("%s: \"%s\" does not say \"%s\"", fault->what, err.text, fault->says[i]);
    assert_non_null(strstr(err.text, c->dir));
    assert_null(strchr(err.text, '\n'));
    assert_int_equal(backend_bytes(backend), before);
}

static void test_faults(void **state)
{
    for (int i = 0; i < COUNT(faults); i++) {
        char below[64];
        Error err = { 0 };
        snprintf(below, sizeof below, "tests/data/golden/%s", faults[i].below);
        TestCheckpoint *c = open_checkpoint(below);
        faults[i].spoil(c);
        for (int n_shards = 1; n_shards <= 2; n_shards++) {
            assert_ok(test_checkpoint_write(c, n_shards, &err), &err);
            assert_refused(c, &faults[i]);
        }
        test_checkpoint_close(c);
    }
}

static void test_truncated(void **state)
{
    static const Fault fault = { "cut file", "llama", NULL, ERR_INPUT, { "model.safetensors", "cut short" } };
    Error err = { 0 };
    char path[512];
    TestCheckpoint *c = open_checkpoint("tests/data/golden/llama");
    assert_ok(test_checkpoint_write(c, 1, &err), &err);
    snprintf(path, sizeof path, "%s/model.safetensors", c->dir);
    assert_int_equal(truncate(path, 100000), 0);
    assert_refused(c, &fault);
    test_checkpoint_close(c);
}

static void test_no_model(void **state)
{
    Error err = { 0 };
    Model *model = NULL;
    ModelOptions options = options_of(DT_NONE);
    assert_int_equal(model_open(&model, "/nowhere/at/all", backend, &options, &err), ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "/nowhere/at/all"));
}

/* ---- memory ---- */

/* Fails the first, second, third ... allocation of opening a model: one sentence each, nothing left behind. */
static void test_no_memory(void **state)
{
    char dir[4096];
    Error path_err = { 0 };
    assert_ok(source_path(dir, sizeof dir, "tests/data/golden/qwen3_5", &path_err), &path_err);
    ModelOptions options = options_of(DT_BF16);
    size_t before = backend_bytes(backend);
    int n_failed = 0;
    for (int nth = 1;; nth++) {
        Error err = { 0 };
        Model *model = NULL;
        mem_fail_at(nth);
        Status s = model_open(&model, dir, backend, &options, &err);
        mem_fail_at(0);
        if (!s) {
            model_close(model);
            break;
        }
        if (s != ERR_NOMEM) fail_msg("allocation %d failed with status %d: %s", nth, s, err.text);
        assert_null(model);
        assert_int_equal(backend_bytes(backend), before);
        n_failed++;
    }
    assert_int_equal(backend_bytes(backend), before);
    print_message("%d allocations failed one by one\n", n_failed);
    assert_true(n_failed > 50);
}

/* The plan is made from headers: it has to be what opening really takes. */
static void test_needs(void **state)
{
    static const char *const models[] = { "tests/data/golden/llama_yarn", "models/nano-plain", "models/nano" };
    for (int i = 0; i < COUNT(models); i++) {
        char dir[4096];
        Error err = { 0 };
        ModelNeeds needs;
        ModelConfig config;
        Model *model = NULL;
        ModelOptions options = options_of(i % 2 ? DT_F32 : DT_NONE);
        assert_ok(source_path(dir, sizeof dir, models[i], &err), &err);
        assert_ok(model_needs(dir, &options, &needs, &config, &err), &err);
        size_t before = backend_bytes(backend);
        assert_ok(model_open(&model, dir, backend, &options, &err), &err);
        assert_int_equal(backend_bytes(backend) - before, needs.weight_bytes + needs.scratch_bytes);
        assert_int_equal(model->info.weight_bytes, needs.weight_bytes);

        CacheGroup groups[MAX_GROUPS] = { 0 };
        int n = model->groups(model, groups);
        assert_int_equal(n, needs.n_groups);
        for (int g = 0; g < n; g++) {
            assert_string_equal(groups[g].name, needs.groups[g].name);
            assert_int_equal(groups[g].entry_bytes, needs.groups[g].entry_bytes);
            assert_int_equal(groups[g].n_layers, needs.groups[g].n_layers);
        }
        model_close(model);
    }
}

/* The formulas of docs/spec/models.md 3.10 at nano's shape. */
static void test_groups(void **state)
{
    char dir[4096];
    Error err = { 0 };
    ModelNeeds needs;
    ModelOptions options = options_of(DT_NONE);
    assert_ok(source_path(dir, sizeof dir, "models/nano", &err), &err);
    assert_ok(model_needs(dir, &options, &needs, NULL, &err), &err);
    assert_int_equal(needs.n_groups, 3);
    assert_int_equal(needs.groups[0].entry_bytes, 2 * 2 * 64 * 2);       /* k and v, 2 heads of 64, bf16 */
    assert_int_equal(needs.groups[0].n_layers, 2);
    assert_int_equal(needs.groups[0].spare, 8);
    assert_int_equal(needs.groups[1].entry_bytes, 8 * 32 * 32 * 4);      /* 8 value heads of 32 x 32 */
    assert_int_equal(needs.groups[1].n_layers, 6);
    assert_int_equal(needs.groups[2].entry_bytes, 3 * (2 * 4 * 32 + 8 * 32) * 4); /* 3 rows of 512 channels */

    options.kv_dtype = DT_F8_E4M3;
    assert_ok(model_needs(dir, &options, &needs, NULL, &err), &err);
    assert_int_equal(needs.groups[0].entry_bytes, 2 * 2 * (64 + 4)); /* a code a number, a scale a row */
}

static void test_no_allocation_in_a_pass(void **state)
{
    char dir[4096];
    Error err = { 0 };
    Model *model = NULL;
    BatchBuilder *b = NULL;
    ModelOptions options = options_of(DT_NONE);
    assert_ok(source_path(dir, sizeof dir, "models/nano", &err), &err);
    assert_ok(model_open(&model, dir, backend, &options, &err), &err);
    BuilderOptions sizes = { .n_slots = 2, .max_tokens = 64, .max_rows = N_IDS, .max_outputs = 4 };
    assert_ok(builder_open(&b, model, &sizes, &err), &err);

    static const int32_t text[] = { 5, 6, 7, 8 }, parents[] = { -1, 0, 0, 2 }, path[] = { 0, 2, 3 };
    uint64_t before = mem_count();
    for (int round = 0; round < 3; round++) {
        builder_begin(b);
        builder_want(b, builder_tree(b, 0, text, parents, 4), 4);
        builder_line(b, 1, text, 4);
        builder_forward(b);
        builder_commit(b, 0, path, 3);
    }
    assert_int_equal(mem_count(), before);
    builder_close(b);
    model_close(model);
}

/* ---- dummy weights ---- */

static Answer dummy_answer(const char *below, DType dtype, uint64_t seed)
{
    char dir[4096];
    Error err = { 0 };
    ModelOptions options = options_of(dtype);
    options.load_format = LOAD_DUMMY;
    options.dummy_seed = seed;
    assert_ok(source_path(dir, sizeof dir, below, &err), &err);
    return answer_at(dir, &options);
}

static void test_dummy(void **state)
{
    static const char *const models[] = { "tests/data/golden/llama_yarn", "models/nano" };
    for (int i = 0; i < COUNT(models); i++) {
        Answer a = dummy_answer(models[i], DT_BF16, 1), other = dummy_answer(models[i], DT_BF16, 2);
        stream_use_workers(backend_stream(backend), 1);
        Answer again = dummy_answer(models[i], DT_BF16, 1);
        stream_use_workers(backend_stream(backend), backend_workers(backend));
        assert_same_logits(&a, &again);
        assert_int_equal(a.fingerprint, again.fingerprint);
        assert_int_not_equal(a.fingerprint, other.fingerprint);
        assert_memory_not_equal(a.logits, other.logits, (size_t)a.vocab * sizeof(float));

        Answer wide = dummy_answer(models[i], DT_F32, 1); /* the same numbers in the other arithmetic */
        assert_true(distance(a.logits, wide.logits, (size_t)a.vocab) < 0.2);
        float largest = 0;
        for (int32_t v = 0; v < a.vocab; v++) largest = fmaxf(largest, fabsf(wide.logits[v]));
        assert_true(largest > 0.1f && largest < 100);
    }
}

/* ---- fingerprint ---- */

static void test_fingerprint(void **state)
{
    TestCheckpoint *c = open_checkpoint("tests/data/golden/llama");
    Answer before = answer_written(c, 1, DT_BF16);
    uint16_t *w = test_checkpoint_find(c, "model.layers.1.mlp.gate_proj.weight")->data;
    w[77] ^= 1; /* one bit of one weight */
    Answer after = answer_written(c, 1, DT_BF16);
    assert_int_not_equal(before.fingerprint, after.fingerprint);
    w[77] ^= 1;

    Error err = { 0 };
    ModelOptions options = options_of(DT_BF16);
    options.sampler_version = 2;
    assert_ok(test_checkpoint_write(c, 1, &err), &err);
    Answer sampler = answer_at(c->dir, &options);
    assert_int_not_equal(before.fingerprint, sampler.fingerprint);
    ModelOptions cached = options_of(DT_BF16);
    cached.kv_dtype = DT_F8_E4M3;
    Answer codes = answer_at(c->dir, &cached);
    assert_int_not_equal(before.fingerprint, codes.fingerprint); /* caches of two types never mix */
    assert_memory_not_equal(before.logits, codes.logits, sizeof before.logits[0] * (size_t)before.vocab);
    cached.kv_dtype = DT_BF16;
    Answer own = answer_at(c->dir, &cached);
    assert_int_equal(before.fingerprint, own.fingerprint); /* said or not */
    stream_use_workers(backend_stream(backend), 1);
    Answer same = answer_written(c, 1, DT_BF16);
    stream_use_workers(backend_stream(backend), backend_workers(backend));
    assert_int_equal(before.fingerprint, same.fingerprint);
    test_checkpoint_close(c);
}

/* ---- a cache that a device does not know ---- */

static void test_device_refuses_caches(void **state)
{
    static const DType refused[] = { DT_F8_E4M3, DT_F32 };
    Backend *device;
    Error err = { 0 };
    assert_ok(backend_open(&device, &(BackendOptions){ .n_workers = 1, .device = DEVICE_CUDA }, &err), &err);
    size_t before = backend_bytes(device);
    for (int i = 0; i < COUNT(refused); i++) {
        char dir[4096];
        Model *model;
        ModelOptions options = options_of(DT_BF16);
        options.kv_dtype = refused[i];
        assert_ok(source_path(dir, sizeof dir, "models/nano-plain", &err), &err);
        assert_int_equal(model_open(&model, dir, device, &options, &err), ERR_UNSUPPORTED);
        assert_null(model);
        assert_string_equal(err.param, "--kv-cache-dtype");
        assert_non_null(strstr(err.text, "here BF16"));
        assert_non_null(strstr(err.text, "--device cpu takes it"));
        error_clear(&err);
    }
    assert_int_equal(backend_bytes(device), before);
    backend_close(device);
}

/* Its kernels know plain numbers only. */
static void test_device_refuses_rounding(void **state)
{
    static const QuantFormat formats[] = { QUANT_FP8, QUANT_NVFP4 };
    Backend *device;
    Error err = { 0 };
    assert_ok(backend_open(&device, &(BackendOptions){ .n_workers = 1, .device = DEVICE_CUDA }, &err), &err);
    for (int i = 0; i < COUNT(formats); i++) {
        char dir[4096];
        Model *model;
        ModelOptions options = options_of(DT_BF16);
        options.quantization = formats[i];
        assert_ok(source_path(dir, sizeof dir, "models/nano-plain", &err), &err);
        assert_int_equal(model_open(&model, dir, device, &options, &err), ERR_UNSUPPORTED);
        assert_null(model);
        assert_string_equal(err.param, "--quantization");
        assert_non_null(strstr(err.text, "add --device cpu"));
        error_clear(&err);
    }
    backend_close(device);
}

/* ---- progress ---- */

typedef struct Seen {
    uint64_t last, total;
    int      n;
    bool     is_monotone;
} Seen;

static void see(void *ctx, uint64_t done, uint64_t total)
{
    Seen *seen = ctx;
    seen->is_monotone &= done >= seen->last && done <= total;
    seen->last = done;
    seen->total = total;
    seen->n++;
}

static void test_progress(void **state)
{
    char dir[4096];
    Error err = { 0 };
    Seen seen = { .is_monotone = true };
    ModelOptions options = options_of(DT_NONE);
    options.progress = see;
    options.progress_ctx = &seen;
    assert_ok(source_path(dir, sizeof dir, "models/nano-plain", &err), &err);
    answer_at(dir, &options);
    assert_true(seen.n > 1 && seen.is_monotone);
    assert_int_equal(seen.last, seen.total);
}

static int open_backend(void **state)
{
    Error err = { 0 };
    numeric_mode_enter();
    return backend_open_cpu(&backend, &(BackendOptions){ .n_workers = 2 }, &err);
}

static int close_backend(void **state)
{
    backend_close(backend);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards),         cmocka_unit_test(test_stored_types),
        cmocka_unit_test(test_names_of_vl_models), cmocka_unit_test(test_left_over_tensors),
        cmocka_unit_test(test_large_matrix),   cmocka_unit_test(test_dummy_formats),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_truncated),      cmocka_unit_test(test_no_model),
        cmocka_unit_test(test_no_memory),      cmocka_unit_test(test_needs),
        cmocka_unit_test(test_groups),         cmocka_unit_test(test_no_allocation_in_a_pass),
        cmocka_unit_test(test_dummy),          cmocka_unit_test(test_fingerprint),
        cmocka_unit_test(test_device_refuses_caches),
        cmocka_unit_test(test_device_refuses_rounding),
        cmocka_unit_test(test_progress),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
