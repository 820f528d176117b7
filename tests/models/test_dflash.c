/* The DFlash network: two rounds of the published program, all its forms against a plain version in double, the ways in
 * which the same rows can be computed, and checkpoints that are not what they say. */
#include "models/dflash.h"
#include "models/dflash_oracle.h"
#include "support/batch_builder.h"
#include "support/checkpoint.h"
#include "support/golden.h"

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>

enum { MAX_CONTEXT = 64, MAX_BLOCKS = 3, MAX_OUTPUTS = 32, MAX_TOKENS = 160, VOCAB = 320, HIDDEN = 64, BLOCK = 8 };
static const double LIMIT = 3e-6;

static void assert_ok(Status s, const Error *err)
{
    if (s) fail_msg("%s", err->text);
}

/* ---- a target, a network, a cache ---- */

typedef struct Bench {
    Backend     *backend;
    Model       *target;
    Dflash      *net;
    CacheMemory  cache;
    int32_t      block_table[MAX_BLOCKS * MAX_TOKENS / 16];
} Bench;

static DflashSetup setup_of(void)
{
    return (DflashSetup){ .max_context = MAX_CONTEXT, .max_blocks = MAX_BLOCKS, .max_outputs = MAX_OUTPUTS };
}

static void open_target(Bench *b, DType dtype, const char *mask, int n_workers)
{
    Error err = { 0 };
    char dir[4096];
    *b = (Bench){ 0 };
    ModelOptions options = { .dtype = dtype, .limits = { 64, 64, 2, 16 } };
    assert_ok(source_path(dir, sizeof dir, "tests/data/golden/dflash/target", &err), &err);
    assert_ok(backend_open_cpu(&b->backend, &(BackendOptions){ .n_workers = n_workers, .cpu_mask = mask }, &err), &err);
    assert_ok(model_open(&b->target, dir, b->backend, &options, &err), &err);
}

/* Blocks lie in no order, and memory begins as NaN. */
static void bind_cache(Bench *b)
{
    const int32_t n = COUNT(b->block_table);
    CacheGroup g = dflash_group(b->net);
    for (int32_t i = 0; i < n; i++) b->block_table[i] = 1 + (i * 7 + 3) % n;
    b->cache = (CacheMemory){ .block_size = 16, .max_blocks = n / MAX_BLOCKS, .block_table = b->block_table,
                              .layer_bytes = (size_t)(n + 1) * 16 * g.entry_bytes };
    size_t bytes = b->cache.layer_bytes * (size_t)g.n_layers;
    b->cache.data = backend_alloc(b->backend, bytes);
    assert_non_null(b->cache.data);
    memset(b->cache.data, 0xff, bytes);
    dflash_bind(b->net, &b->cache);
}

static void open_net(Bench *b, const char *dir, const DflashSetup *setup)
{
    Error err = { 0 };
    assert_ok(dflash_open(&b->net, dir, b->target, b->backend, setup, &err), &err);
    bind_cache(b);
}

static void close_net(Bench *b)
{
    backend_free(b->backend, b->cache.data);
    dflash_close(b->net);
    b->net = NULL;
}

static void close_target(Bench *b)
{
    model_close(b->target);
    backend_close(b->backend);
}

/* Rows [first, first + n) of `features` and, behind them, a block: logits of all its rows to out[BLOCK][VOCAB]. */
static void run(Bench *b, int32_t slot, const float *features, int32_t first, int32_t n, int32_t anchor, float *out)
{
    DflashContext context[MAX_CONTEXT];
    int32_t rows[DFLASH_MAX_BLOCK], size = dflash_block_size(b->net);
    const DflashConfig *c = dflash_config(b->net);
    Stream *st = backend_stream(b->backend);
    int64_t width = (int64_t)c->n_taps * HIDDEN;
    for (int32_t i = 0; i < n; i++) context[i] = (DflashContext){ slot, first + i, first + i };
    backend_ops(b->backend)->round_rows(st, dflash_features(b->net, n), tensor_2d((void *)features, DT_F32, n, width));
    DflashBlock block = { .slot = slot, .anchor = anchor, .n_committed = first + n, .rope = first + n };
    dflash_pass(b->net, st, context, n, &block, out ? 1 : 0);
    if (!out) return;
    for (int32_t i = 0; i < size; i++) rows[i] = i;
    Tensor logits = dflash_logits(b->net, st, rows, size);
    stream_sync(st);
    memcpy(out, logits.data, (size_t)size * VOCAB * sizeof *out);
}

/* ---- golden ---- */

static void *read_golden(const Safetensors *st, const char *name)
{
    Error err = { 0 };
    const SafetensorsEntry *e = safetensors_find(st, name);
    assert_non_null(e);
    void *data = mem_alloc(e->bytes);
    assert_ok(safetensors_read(st, e, 0, data, e->bytes, &err), &err);
    return data;
}

static const char *draft_dir(void)
{
    static char dir[4096];
    Error err = { 0 };
    assert_ok(source_path(dir, sizeof dir, "tests/data/golden/dflash/draft", &err), &err);
    return dir;
}

enum { N_PROMPT = 41, N_ACCEPTED = 3 };

/* Features of prompt and accepted tokens by our own target; out [N_PROMPT + N_ACCEPTED][3 * HIDDEN]. */
static void features_of_target(const Bench *b, const Safetensors *golden, float *out)
{
    static const int32_t taps[] = { 1, 3, 5 };
    Error err = { 0 };
    BatchBuilder *builder = NULL;
    BuilderOptions sizes = {
        .n_slots = 1, .max_tokens = 64, .max_rows = 64, .max_outputs = 64, .n_taps = 3, .taps = taps
    };
    int32_t *ids = read_golden(golden, "input_ids"), *accepted = read_golden(golden, "accepted");
    float *want = read_golden(golden, "target_hidden");
    assert_ok(builder_open(&builder, b->target, &sizes, &err), &err);
    for (int part = 0; part < 2; part++) {
        int32_t n = part ? N_ACCEPTED : N_PROMPT;
        builder_begin(builder);
        builder_line(builder, 0, part ? accepted : ids, n);
        builder_forward(builder);
        memcpy(out + (part ? N_PROMPT * 3 * HIDDEN : 0), builder->features, (size_t)n * 3 * HIDDEN * sizeof *out);
    }
    assert_true(distance(out, want, (size_t)N_PROMPT * 3 * HIDDEN) <= LIMIT);
    builder_close(builder);
    mem_free(ids);
    mem_free(accepted);
    mem_free(want);
}

static double check_round(Bench *b, const Safetensors *golden, int number, const float *features, int32_t first,
                          int32_t n)
{
    static float got[BLOCK * VOCAB];
    char name[32];
    snprintf(name, sizeof name, "block%d", number);
    int32_t *block = read_golden(golden, name);
    snprintf(name, sizeof name, "draft_logits%d", number);
    float *want = read_golden(golden, name);
    for (int i = 1; i < BLOCK; i++) assert_int_equal(block[i], dflash_config(b->net)->mask_id);
    run(b, 1, features + (size_t)first * 3 * HIDDEN, first, n, block[0], got);
    double far = distance(got, want, COUNT(got));
    mem_free(block);
    mem_free(want);
    return far;
}

static void test_golden(void **state)
{
    static const char *const masks[] = { "scalar", NULL };
    for (int i = 0; i < COUNT(masks); i++) {
        static float features[(N_PROMPT + N_ACCEPTED) * 3 * HIDDEN];
        char path[4096];
        Error err = { 0 };
        Safetensors *golden = NULL;
        Bench b;
        DflashSetup setup = setup_of();
        assert_ok(source_path(path, sizeof path, "tests/data/golden/dflash/golden.safetensors", &err), &err);
        assert_ok(safetensors_open(&golden, path, &err), &err);
        open_target(&b, DT_F32, masks[i], 2);
        open_net(&b, draft_dir(), &setup);
        features_of_target(&b, golden, features);
        double first = check_round(&b, golden, 1, features, 0, N_PROMPT);
        double second = check_round(&b, golden, 2, features, N_PROMPT, N_ACCEPTED);
        print_message("%s: rounds within %.1e and %.1e of the largest logit\n", backend_variant(b.backend), first,
                      second);
        assert_true(first <= LIMIT && second <= LIMIT);
        close_net(&b);
        close_target(&b);
        safetensors_close(golden);
    }
}

/* ---- the same rows computed in other company ---- */

static float random_feature(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)*state * 0x1p-31f;
}

static float *random_features(int32_t n, int32_t n_taps, uint32_t seed)
{
    float *f = mem_alloc_array((size_t)(n * n_taps * HIDDEN), sizeof *f);
    for (int32_t i = 0; i < n * n_taps * HIDDEN; i++) f[i] = random_feature(&seed);
    return f;
}

/* Context rows at once, in pieces without blocks, after rounds that left their blocks behind, and with other numbers of
 * workers: the same bits. */
static void check_company(DType dtype, const char *mask, float *first_bits)
{
    enum { N = 50 };
    static float want[BLOCK * VOCAB], got[BLOCK * VOCAB];
    float *features = random_features(N, 3, 5);
    for (int n_workers = 1; n_workers <= 3; n_workers++) {
        Bench b;
        DflashSetup setup = setup_of();
        open_target(&b, dtype, mask, n_workers);
        open_net(&b, draft_dir(), &setup);
        run(&b, 0, features, 0, N, 17, n_workers == 1 && !first_bits[0] ? want : got);
        if (first_bits[0]) memcpy(want, first_bits, sizeof want);
        if (n_workers == 1) memcpy(first_bits, want, sizeof want);
        else assert_memory_equal(got, want, sizeof want);
        for (int32_t at = 0, n; at < N; at += n) {
            n = at + 7 < N ? 7 : N - at;
            run(&b, 1, features + (size_t)at * 3 * HIDDEN, at, n, 17, at % 2 || at + n == N ? got : NULL);
        }
        assert_memory_equal(got, want, sizeof want);
        close_net(&b);
        close_target(&b);
    }
    mem_free(features);
}

static void test_company(void **state)
{
    static const DType dtypes[] = { DT_F32, DT_BF16 };
    for (int i = 0; i < COUNT(dtypes); i++) {
        static float bits[BLOCK * VOCAB];
        memset(bits, 0, sizeof bits);
        check_company(dtypes[i], "scalar", bits);
        check_company(dtypes[i], NULL, bits); /* all variants write the same */
    }
}

/* Several blocks in one pass, with context rows of some of them. */
static void test_blocks_together(void **state)
{
    enum { N = 20 };
    static float alone[MAX_BLOCKS][BLOCK * VOCAB];
    Bench b;
    DflashSetup setup = setup_of();
    open_target(&b, DT_BF16, NULL, 2);
    open_net(&b, draft_dir(), &setup);
    float *features[MAX_BLOCKS];
    DflashContext context[MAX_CONTEXT];
    DflashBlock blocks[MAX_BLOCKS];
    Stream *st = backend_stream(b.backend);
    int32_t n_context = 0;
    for (int32_t s = 0; s < MAX_BLOCKS; s++) {
        int32_t n = N - 3 * s;
        features[s] = random_features(N, 3, 11 + (uint32_t)s);
        run(&b, s, features[s], 0, n, 30 + s, alone[s]);
        blocks[s] = (DflashBlock){ .slot = s, .anchor = 30 + s, .n_committed = n, .rope = n };
    }
    for (int32_t s = 0; s < MAX_BLOCKS; s++) {
        int32_t n = blocks[s].n_committed;
        for (int32_t i = n - 4 * s; i < n; i++, n_context++) { /* the last rows again, beside one another */
            context[n_context] = (DflashContext){ s, i, i };
            Tensor to = dflash_features(b.net, n_context + 1),
                   from = tensor_2d(features[s] + (size_t)i * 3 * HIDDEN, DT_F32, 1, 3 * HIDDEN);
            to.data = tensor_bf16(to, n_context);
            backend_ops(b.backend)->round_rows(st, tensor_rows(to, 1), from);
        }
    }
    dflash_pass(b.net, st, context, n_context, blocks, MAX_BLOCKS);
    for (int32_t s = 0; s < MAX_BLOCKS; s++) {
        int32_t rows[BLOCK];
        for (int32_t i = 0; i < BLOCK; i++) rows[i] = s * BLOCK + i;
        Tensor logits = dflash_logits(b.net, st, rows, BLOCK);
        assert_memory_equal(logits.data, alone[s], sizeof alone[s]);
        mem_free(features[s]);
    }
    close_net(&b);
    close_target(&b);
}

/* ---- all forms against a plain version in double ---- */

/* The golden drafter with other keys (a JSON object laid over its config.json; null takes a key away) and tensors. */
typedef struct Form {
    const char *what, *keys;
    bool        is_second; /* with convolutions of `kernel` taps, groups of `group`, and a selector */
    int32_t     kernel, group;
    bool        sliding_is_free;
    OracleForm  oracle;
} Form;

static void overlay(json_t *object, const json_t *keys)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)keys, key, value) {
        json_t *old = json_object_get(object, key);
        if (json_is_null(value)) json_object_del(object, key);
        else if (json_is_object(value) && json_is_object(old)) overlay(old, value);
        else json_object_set(object, key, value);
    }
}

static void write_config(const TestCheckpoint *c, const char *keys)
{
    Error err = { 0 };
    char path[4200];
    json_t *config = NULL, *over = NULL;
    snprintf(path, sizeof path, "%s/config.json", c->source_dir);
    assert_ok(json_parse_file(&config, path, 1 << 20, &err), &err);
    assert_ok(json_parse(&over, keys, strlen(keys), "the test's keys", &err), &err);
    overlay(config, over);
    snprintf(path, sizeof path, "%s/config.json", c->dir);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
    json_decref(over);
}

static void fill_random(TestTensor *t, float size, uint32_t seed)
{
    uint16_t *x = t->data;
    for (size_t i = 0; i < t->entry.bytes / 2; i++) x[i] = f32_to_bf16(size * random_feature(&seed));
}

static void add_random(TestCheckpoint *c, const char *name, float size, int n_dims, const int64_t *shape)
{
    fill_random(test_checkpoint_add(c, name, DT_BF16, n_dims, shape), size, (uint32_t)strlen(name) * 77 + (uint32_t)c->n);
}

enum { RANK = 24 };

static void add_second(TestCheckpoint *c, int32_t kernel, int32_t group)
{
    static const char *const sides[] = { "attention_conv", "mlp_conv" };
    for (int l = 0; l < 3; l++)
        for (int s = 0; s < 2; s++) {
            char name[128];
            snprintf(name, sizeof name, "layers.%d.%s.base_kernel", l, sides[s]);
            add_random(c, name, 1, 3, (int64_t[]){ 2, kernel, HIDDEN });
            snprintf(name, sizeof name, "layers.%d.%s.kernel_projection.weight", l, sides[s]);
            add_random(c, name, 0.1f, 2, (int64_t[]){ 2 * kernel * (HIDDEN / group), HIDDEN });
        }
    add_random(c, "candidate_selector.predecessor_codebook", 2, 2, (int64_t[]){ VOCAB, RANK });
    add_random(c, "candidate_selector.successor_codebook", 2, 2, (int64_t[]){ VOCAB, RANK });
    add_random(c, "candidate_selector.hidden_projection.weight", 0.3f, 2, (int64_t[]){ RANK, HIDDEN });
}

static void add_biases(TestCheckpoint *c)
{
    static const struct {
        const char *name;
        int64_t     n;
    } biases[] = { { "q", 128 }, { "k", 64 }, { "v", 64 }, { "o", HIDDEN } };
    for (int l = 0; l < 3; l++)
        for (int i = 0; i < COUNT(biases); i++) {
            char name[128];
            snprintf(name, sizeof name, "layers.%d.self_attn.%s_proj.bias", l, biases[i].name);
            add_random(c, name, 0.5f, 1, &biases[i].n);
        }
}

#define SLIDING "\"sliding_attention\""
#define FULL "\"full_attention\""
#define SECOND "\"architectures\": [\"DFlash2DraftModel\"], \"is_causal\": false, "

static const Form forms[] = {
    { .what = "as it is", .keys = "{}" },
    { "sliding, causal by the rule", "{\"layer_types\": [" SLIDING "," FULL "," SLIDING "], \"sliding_window\": 9}",
      .oracle = { .width = { 9, 0, 9 }, .causal = { 1, 0, 1 } } },
    { "sliding, not causal by the switch",
      "{\"layer_types\": [" SLIDING "," FULL "," SLIDING "], \"sliding_window\": 9}", .sliding_is_free = true,
      .oracle = { .width = { 9, 0, 9 } } },
    { "sliding, is_causal false",
      "{\"layer_types\": [" SLIDING "," SLIDING "," SLIDING "], \"sliding_window\": 12, \"is_causal\": false}",
      .oracle = { .width = { 12, 12, 12 } } },
    { "narrower than the block",
      "{\"layer_types\": [" SLIDING "," FULL "," SLIDING "], \"sliding_window\": 3, \"is_causal\": false}",
      .oracle = { .width = { 3, 0, 3 } } },
    { "a window of one", "{\"layer_types\": [" SLIDING "," FULL "," FULL "], \"sliding_window\": 1}",
      .oracle = { .width = { 1, 0, 0 }, .causal = { 1, 0, 0 } } },
    { "dflash_config.causal", "{\"dflash_config\": {\"causal\": true}}", .oracle = { .causal = { 1, 1, 1 } } },
    { "is_causal beats causal", "{\"is_causal\": false, \"dflash_config\": {\"causal\": true}}" },
    { "use_swa",
      "{\"layer_types\": null, \"sliding_window\": 50, \"dflash_config\": {\"use_swa\": true, \"swa_window_size\": 6}}",
      .oracle = { .width = { 6, 6, 6 } } },
    { "use_swa, all layers full", "{\"sliding_window\": 7, \"dflash_config\": {\"use_swa\": true}}",
      .oracle = { .width = { 7, 7, 7 } } },
    { "yarn",
      "{\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 32}}",
      .oracle = { .yarn_factor = 4, .yarn_original = 32 } },
    { "scales and cap",
      "{\"dflash_config\": {\"input_embedding_scale\": 3.5, \"output_multiplier\": 0.2, \"final_logit_softcapping\": "
      "1.5}}",
      .oracle = { .embedding_scale = 3.5, .logit_scale = 0.2, .softcap = 1.5 } },
    { "biases", "{\"attention_bias\": true}", .oracle = { .has_bias = true } },
    { "nested block, taps and mask at the top",
      "{\"block_size\": 4, \"target_layer_ids\": [5, 3, 1], \"mask_token_id\": 7,"
      " \"dflash_config\": {\"block_size\": 8, \"target_layer_ids\": null, \"mask_token_id\": null}}",
      .oracle = { .mask_id = 7 } },
    { "DFlash 2",
      "{" SECOND "\"layer_types\": [" SLIDING "," SLIDING "," SLIDING "], \"sliding_window\": 20, \"dflash_config\": "
      "{\"conv_kernel_size\": 2, \"conv_group_size\": 16, \"selector_rank\": 24, \"selector_top_k\": 5}}",
      .is_second = true, .kernel = 2, .group = 16, .oracle = { .width = { 20, 20, 20 }, .kernel = 2, .group = 16 } },
    { "DFlash 2, other sizes", "{" SECOND "\"dflash_config\": {\"selector_top_k\": 5}}", .is_second = true, .kernel = 3,
      .group = 8, .oracle = { .kernel = 3, .group = 8 } },
};

static TestCheckpoint *open_form(const Form *form)
{
    Error err = { 0 };
    TestCheckpoint *c = NULL;
    assert_ok(test_checkpoint_open(&c, "tests/data/golden/dflash/draft", &err), &err);
    if (form->is_second) add_second(c, form->kernel, form->group);
    if (form->oracle.has_bias) add_biases(c);
    assert_ok(test_checkpoint_write(c, 1, &err), &err);
    write_config(c, form->keys);
    return c;
}

static Oracle oracle_of(const Form *form, const Bench *b, TestCheckpoint *c)
{
    return (Oracle){ .form = form->oracle,
                     .checkpoint = c,
                     .embed = b->target->info.embed,
                     .head = b->target->info.head,
                     .n_layers = 3,
                     .hidden = HIDDEN,
                     .n_heads = 4,
                     .n_kv_heads = 2,
                     .head_dim = 32,
                     .intermediate = 128,
                     .n_taps = 3,
                     .block = BLOCK,
                     .vocab = VOCAB,
                     .theta = 1e6,
                     .eps = 1e-6,
                     .mask_id = form->oracle.mask_id ? form->oracle.mask_id : 319 };
}

/* A short context, one longer than every window, and one behind a round. */
static void check_form(const Form *form)
{
    static float got[BLOCK * VOCAB], want[BLOCK * VOCAB];
    TestCheckpoint *c = open_form(form);
    Bench b;
    DflashSetup setup = setup_of();
    setup.sliding_is_free = form->sliding_is_free;
    open_target(&b, DT_F32, NULL, 2);
    open_net(&b, c->dir, &setup);
    Oracle oracle = oracle_of(form, &b, c);
    float *features = random_features(60, 3, 99);
    static const int32_t ends[] = { 2, 40, 44 };
    double worst = 0;
    for (int32_t i = 0, at = 0; i < COUNT(ends); at = ends[i++]) {
        run(&b, 2, features + (size_t)at * 3 * HIDDEN, at, ends[i] - at, 100 + i, got);
        oracle_logits(&oracle, features, ends[i], 100 + i, want, NULL);
        worst = fmax(worst, distance(got, want, COUNT(got)));
    }
    print_message("%-40s within %.1e of the largest logit\n", form->what, worst);
    assert_true(worst <= LIMIT);
    mem_free(features);
    close_net(&b);
    close_target(&b);
    test_checkpoint_close(c);
}

static void test_forms(void **state)
{
    for (int i = 0; i < COUNT(forms); i++) check_form(&forms[i]);
}

/* Forms that should differ do: the table above is not one model run many times. */
static void test_forms_differ(void **state)
{
    static float logits[COUNT(forms)][BLOCK * VOCAB];
    float *features = random_features(40, 3, 99);
    for (int i = 0; i < COUNT(forms); i++) {
        TestCheckpoint *c = open_form(&forms[i]);
        Bench b;
        DflashSetup setup = setup_of();
        setup.sliding_is_free = forms[i].sliding_is_free;
        open_target(&b, DT_F32, NULL, 2);
        open_net(&b, c->dir, &setup);
        run(&b, 0, features, 0, 40, 100, logits[i]);
        close_net(&b);
        close_target(&b);
        test_checkpoint_close(c);
        bool is_plain = strcmp(forms[i].what, "is_causal beats causal") == 0;
        assert_int_equal(memcmp(logits[i], logits[0], sizeof logits[0]) == 0, i == 0 || is_plain);
        for (int k = 1; k < i; k++) assert_memory_not_equal(logits[i], logits[k], sizeof logits[0]);
    }
    mem_free(features);
}

/* ---- DFlash 2's selector ---- */

/* Without the mask's id: in a random model the row that holds its embedding likes nothing better. */
static void top_k(const float *x, int32_t k, int32_t *id, float *value)
{
    for (int32_t c = 0; c < k; c++) {
        int32_t best = -1;
        for (int32_t v = 0; v < VOCAB; v++) {
            bool is_taken = v == 319;
            for (int32_t e = 0; e < c; e++) is_taken |= id[e] == v;
            if (!is_taken && (best < 0 || x[v] > x[best])) best = v;
        }
        id[c] = best;
        value[c] = x[best];
    }
}

static void test_selector(void **state)
{
    enum { K = 5, N = 30, L = BLOCK - 1 };
    static float logits[BLOCK * VOCAB];
    const Form *form = &forms[COUNT(forms) - 2];
    TestCheckpoint *c = open_form(form);
    Bench b;
    DflashSetup setup = setup_of();
    open_target(&b, DT_F32, NULL, 2);
    open_net(&b, c->dir, &setup);
    Oracle oracle = oracle_of(form, &b, c);
    float *features = random_features(N, 3, 41);
    int n_other = 0;
    for (int32_t anchor = 0; anchor < 40; anchor++) {
        int32_t rows[L], id[L * K], picked[L];
        float value[L * K], noise[L * K];
        double hidden[BLOCK * HIDDEN];
        uint32_t seed = (uint32_t)anchor;
        for (int i = 0; i < L * K; i++) noise[i] = 2 * random_feature(&seed);
        run(&b, 0, features, 0, N, anchor, logits);
        for (int32_t i = 0; i < L; i++) rows[i] = 1 + i;
        Tensor own = dflash_logits(b.net, backend_stream(b.backend), rows, L);
        for (int32_t i = 0; i < L; i++) top_k(tensor_f32(own, i), K, id + i * K, value + i * K);
        PickLine line = {
            .n_rows = L, .anchor = anchor, .temperature = anchor % 2 ? 0.7f : 0, .noise = anchor % 2 ? noise : NULL
        };
        PickJob job = { .n_lines = 1, .k = K, .lines = &line, .candidate = id, .logit = value, .picked = picked };
        dflash_pick(b.net, backend_stream(b.backend), &job);
        oracle_logits(&oracle, features, N, anchor, logits, hidden);
        for (int32_t i = 0, before = anchor; i < L; before = id[i * K + picked[i]], i++) {
            double score[K];
            oracle_scores(&oracle, hidden + (1 + i) * HIDDEN, before, id + i * K, value + i * K, K, score);
            int32_t best = 0;
            for (int32_t k = 0; k < K; k++) {
                if (line.temperature > 0) score[k] = score[k] / (double)line.temperature + (double)noise[i * K + k];
                if (score[k] > score[best]) best = k;
            }
            assert_int_equal(picked[i], best);
            n_other += best != 0;
        }
    }
    assert_true(n_other > 40); /* the selector does change picks */
    mem_free(features);
    close_net(&b);
    close_target(&b);
    test_checkpoint_close(c);
}

/* ---- what must not be opened ---- */

typedef struct Fault {
    const char *what, *keys;
    void (*spoil)(TestCheckpoint *c);
    const char *says[2];
} Fault;

static void drop_fc(TestCheckpoint *c)
{
    test_checkpoint_remove(c, "fc.weight");
}
static void drop_v(TestCheckpoint *c)
{
    test_checkpoint_remove(c, "layers.2.self_attn.v_proj.weight");
}
static void drop_norm(TestCheckpoint *c)
{
    test_checkpoint_remove(c, "norm.weight");
}
static void drop_layer(TestCheckpoint *c)
{
    for (int i = c->n - 1; i >= 0; i--)
        if (strncmp(c->tensor[i].name, "layers.2.", 9) == 0) test_checkpoint_remove(c, c->tensor[i].name);
}
static void add_embedding(TestCheckpoint *c)
{
    add_random(c, "embed_tokens.weight", 1, 2, (int64_t[]){ VOCAB, HIDDEN });
}
static void add_layer_tensor(TestCheckpoint *c)
{
    add_random(c, "layers.3.mlp.up_proj.weight", 1, 2, (int64_t[]){ 128, HIDDEN });
}
static void swap_shape(TestCheckpoint *c)
{
    TestTensor *t = test_checkpoint_find(c, "layers.1.mlp.down_proj.weight");
    t->entry.shape[0] = 128;
    t->entry.shape[1] = HIDDEN;
}
static void narrow_fc(TestCheckpoint *c)
{
    TestTensor *t = test_checkpoint_find(c, "fc.weight");
    t->entry.shape[1] = 2 * HIDDEN;
    t->entry.bytes = (uint64_t)t->entry.shape[0] * 2 * HIDDEN * 2;
}
static void odd_fc(TestCheckpoint *c)
{
    TestTensor *t = test_checkpoint_find(c, "fc.weight");
    t->entry.shape[1] = 3 * HIDDEN - 1;
    t->entry.bytes = (uint64_t)t->entry.shape[0] * (3 * HIDDEN - 1) * 2;
}
static void flatten_q_norm(TestCheckpoint *c)
{
    TestTensor *t = test_checkpoint_find(c, "layers.0.self_attn.q_norm.weight");
    t->entry.n_dims = 2;
    t->entry.shape[1] = 1;
}
static void infinite_weight(TestCheckpoint *c)
{
    ((uint16_t *)test_checkpoint_find(c, "hidden_norm.weight")->data)[3] = 0x7f80;
}
static void second_without_selector(TestCheckpoint *c)
{
    add_second(c, 2, 16);
    test_checkpoint_remove(c, "candidate_selector.successor_codebook");
}
static void second(TestCheckpoint *c)
{
    add_second(c, 2, 16);
}

static const Fault faults[] = {
    { "no fc", "{}", drop_fc, { "tensor fc.weight is missing" } },
    { "no v_proj", "{}", drop_v, { "tensor layers.2.self_attn.v_proj.weight is missing" } },
    { "no norm", "{}", drop_norm, { "tensor norm.weight is missing" } },
    { "a layer short", "{}", drop_layer, { "num_hidden_layers is 3", "means 2" } },
    { "an embedding", "{}", add_embedding, { "embed_tokens.weight is not part of" } },
    { "more of a layer", "{}", add_layer_tensor, { "layers.3.mlp.up_proj.weight is not part of" } },
    { "sides swapped", "{}", swap_shape, { "layers.1.mlp.down_proj.weight has shape [128, 64]", "[64, 128]" } },
    { "a tap less", "{}", narrow_fc, { "target_layer_ids names 3 layers", "fc.weight reads 2" } },
    { "part of a tap", "{}", odd_fc, { "fc.weight has a side of 191" } },
    { "a norm of two dimensions", "{}", flatten_q_norm, { "q_norm.weight has 2 dimensions" } },
    { "an infinite norm", "{}", infinite_weight, { "hidden_norm.weight holds inf" } },
    { "tap behind the last layer",
      "{\"dflash_config\": {\"target_layer_ids\": [1, 3, 8]}}",
      NULL,
      { "target_layer_ids[2] must be one of the target's layers, 0 to 7" } },
    { "negative tap", "{\"dflash_config\": {\"target_layer_ids\": [-1, 3, 5]}}", NULL, { "target_layer_ids[0]" } },
    { "tap that is no number",
      "{\"dflash_config\": {\"target_layer_ids\": [1, \"3\", 5]}}",
      NULL,
      { "target_layer_ids[1]" } },
    { "taps that are no list", "{\"dflash_config\": {\"target_layer_ids\": 3}}", NULL, { "target_layer_ids" } },
    { "another target", "{\"num_target_layers\": 36}", NULL, { "num_target_layers is 36", "has 8 layers" } },
    { "another vocabulary", "{\"vocab_size\": 321}", NULL, { "vocabulary of 321", "has 320" } },
    { "hidden size of config", "{\"hidden_size\": 128}", NULL, { "hidden_size is 128", "means 64" } },
    { "heads of config", "{\"num_attention_heads\": 8}", NULL, { "num_attention_heads is 8", "means 4" } },
    { "no mask", "{\"dflash_config\": {\"mask_token_id\": null}}", NULL, { "mask_token_id is missing" } },
    { "mask behind the vocabulary", "{\"dflash_config\": {\"mask_token_id\": 320}}", NULL, { "mask_token_id" } },
    { "block of one", "{\"block_size\": 1}", NULL, { "block_size" } },
    { "block too large", "{\"block_size\": 33}", NULL, { "block_size" } },
    { "no theta",
      "{\"rope_parameters\": null, \"rope_theta\": null, \"rope_scaling\": null}",
      NULL,
      { "rope_theta is missing" } },
    { "unknown rope", "{\"rope_parameters\": {\"rope_type\": \"spiral\"}}", NULL, { "spiral" } },
    { "sliding without a window",
      "{\"layer_types\": [" SLIDING "," FULL "," FULL "]}",
      NULL,
      { "sliding_window is missing" } },
    { "a window of nothing",
      "{\"layer_types\": [" SLIDING "," FULL "," FULL "], \"sliding_window\": 0}",
      NULL,
      { "sliding_window" } },
    { "types of two layers",
      "{\"layer_types\": [" FULL "," FULL "]}",
      NULL,
      { "layer_types has 2 entries for 3 layers" } },
    { "a linear layer", "{\"layer_types\": [" FULL ",\"linear_attention\"," FULL "]}", NULL, { "layer_types[1]" } },
    { "DSpark", "{\"architectures\": [\"Qwen3DSparkModel\"]}", NULL, { "Qwen3DSparkModel is not supported" } },
    { "no architecture", "{\"architectures\": null}", NULL, { "architectures is missing" } },
    { "projector", "{\"dflash_config\": {\"projector_type\": \"domino\"}}", NULL, { "projector_type" } },
    { "from the anchor", "{\"sample_from_anchor\": true}", NULL, { "sample_from_anchor" } },
    { "reduced vocabulary", "{\"draft_vocab_size\": 100}", NULL, { "vocabulary is a reduced one" } },
    { "quantized", "{\"quantization_config\": {\"quant_method\": \"awq\"}}", NULL, { "quantized" } },
    { "gelu", "{\"hidden_act\": \"gelu\"}", NULL, { "hidden_act" } },
    { "DFlash 2 without its tensors",
      "{\"architectures\": [\"DFlash2DraftModel\"]}",
      NULL,
      { "attention_conv.base_kernel is missing" } },
    { "DFlash 2 called DFlash", "{}", second, { "is not part of" } },
    { "DFlash 2 without a codebook",
      "{\"architectures\": [\"DFlash2DraftModel\"]}",
      second_without_selector,
      { "successor_codebook is missing" } },
    { "DFlash 2 of another rank",
      "{\"architectures\": [\"DFlash2DraftModel\"], \"dflash_config\": {\"selector_rank\": 256}}",
      second,
      { "selector_rank is 256", "means 24" } },
};

static void check_fault(Bench *b, const Fault *f)
{
    Error err = { 0 };
    TestCheckpoint *c = NULL;
    DflashSetup setup = setup_of();
    DflashNeeds needs;
    assert_ok(test_checkpoint_open(&c, "tests/data/golden/dflash/draft", &err), &err);
    if (f->spoil) f->spoil(c);
    assert_ok(test_checkpoint_write(c, 1, &err), &err);
    write_config(c, f->keys);
    size_t before = backend_bytes(b->backend);
    Status s = dflash_open(&b->net, c->dir, b->target, b->backend, &setup, &err);
    if (!s) fail_msg("%s: was opened", f->what);
    assert_null(b->net);
    assert_int_equal(backend_bytes(b->backend), before);
    for (int i = 0; i < COUNT(f->says) && f->says[i]; i++)
        if (!strstr(err.text, f->says[i])) fail_msg("%s: \"%s\" does not say \"%s\"", f->what, err.text, f->says[i]);
    if (f->spoil != infinite_weight) assert_int_equal(dflash_needs(c->dir, &b->target->info, &setup, &needs, NULL), s);
    test_checkpoint_close(c);
}

static void test_faults(void **state)
{
    Bench b;
    open_target(&b, DT_F32, NULL, 1);
    for (int i = 0; i < COUNT(faults); i++) check_fault(&b, &faults[i]);
    close_target(&b);
}

static void test_wrong_target(void **state)
{
    Error err = { 0 };
    char dir[4096];
    Bench b;
    Dflash *net = NULL;
    DflashSetup setup = setup_of();
    open_target(&b, DT_F32, NULL, 1);
    assert_ok(source_path(dir, sizeof dir, "models/nano-DFlash", &err), &err);
    assert_int_equal(dflash_open(&net, dir, b.target, b.backend, &setup, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "the drafter was made for"));
    error_clear(&err);
    setup.block_size = 9;
    assert_int_equal(dflash_open(&net, draft_dir(), b.target, b.backend, &setup, &err), ERR_UNSUPPORTED);
    error_clear(&err);
    setup.block_size = 0;
    b.target->info.embed = NULL;
    assert_int_equal(dflash_open(&net, draft_dir(), b.target, b.backend, &setup, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "shares no embedding"));
    error_clear(&err);
    assert_int_equal(dflash_open(&net, "/nonexistent", b.target, b.backend, &setup, &err), ERR_NOT_FOUND);
    close_target(&b);
}

/* ---- names, plan, dummy weights ---- */

/* A prefix of all names, and taps that the file leaves out, change nothing. */
static void test_other_layouts(void **state)
{
    static float want[BLOCK * VOCAB], got[BLOCK * VOCAB];
    static const struct {
        const char *keys;
        bool        has_prefix;
        int32_t     taps[3];
    } cases[] = { { "{}", true, { 1, 3, 5 } },
                  { "{\"rope_parameters\": null, \"rope_theta\": 1000000.0}", false, { 1, 3, 5 } },
                  { "{\"dflash_config\": {\"target_layer_ids\": null}}", false, { 1, 3, 5 } } }; /* 1 + i * 4 / 2 */
    float *features = random_features(30, 3, 3);
    Bench b;
    DflashSetup setup = setup_of();
    open_target(&b, DT_F32, NULL, 2);
    open_net(&b, draft_dir(), &setup);
    run(&b, 0, features, 0, 30, 9, want);
    close_net(&b);
    for (int i = 0; i < COUNT(cases); i++) {
        Error err = { 0 };
        TestCheckpoint *c = NULL;
        assert_ok(test_checkpoint_open(&c, "tests/data/golden/dflash/draft", &err), &err);
        for (int t = 0; t < c->n && cases[i].has_prefix; t++) {
            char name[160];
            snprintf(name, sizeof name, "model.%.120s", c->tensor[t].name);
            test_checkpoint_rename(c, c->tensor[t].name, name);
        }
        assert_ok(test_checkpoint_write(c, 2, &err), &err);
        write_config(c, cases[i].keys);
        open_net(&b, c->dir, &setup);
        assert_memory_equal(dflash_config(b.net)->taps, cases[i].taps, sizeof cases[i].taps);
        run(&b, 0, features, 0, 30, 9, got);
        assert_memory_equal(got, want, sizeof want);
        close_net(&b);
        test_checkpoint_close(c);
    }
    mem_free(features);
    close_target(&b);
}

/* Fewer rows than trained: another result, but of the right shape; and the plan's numbers. */
static void test_needs_and_block(void **state)
{
    Error err = { 0 };
    Bench b;
    DflashNeeds needs;
    DflashSetup setup = setup_of();
    setup.block_size = 4;
    open_target(&b, DT_BF16, NULL, 1);
    size_t before = backend_bytes(b.backend);
    assert_ok(dflash_needs(draft_dir(), &b.target->info, &setup, &needs, &err), &err);
    assert_ok(dflash_open(&b.net, draft_dir(), b.target, b.backend, &setup, &err), &err);
    size_t took = backend_bytes(b.backend) - before;
    assert_true(took >= needs.weight_bytes + needs.scratch_bytes);
    assert_true(took <= needs.weight_bytes + needs.scratch_bytes + 64 * 64); /* each piece is rounded up to a line */
    assert_int_equal(dflash_block_size(b.net), 4);
    assert_int_equal(needs.n_taps, 3);
    assert_string_equal(needs.group.name, "dflash_kv");
    assert_int_equal(needs.group.n_layers, 3);
    assert_int_equal(needs.group.spare, 4);
    assert_int_equal(needs.group.entry_bytes, 2 * 2 * 32 * 2);
    dflash_close(b.net);
    assert_int_equal(backend_bytes(b.backend), before);
    close_target(&b);
}

static void test_dummy(void **state)
{
    static float a[BLOCK * VOCAB], other[BLOCK * VOCAB], zeros[BLOCK * VOCAB];
    Bench b;
    DflashSetup setup = setup_of();
    setup.load_format = LOAD_DUMMY;
    float *features = random_features(20, 3, 8);
    open_target(&b, DT_BF16, NULL, 2);
    for (uint64_t seed = 1; seed <= 2; seed++) {
        setup.dummy_seed = seed;
        open_net(&b, draft_dir(), &setup);
        run(&b, 0, features, 0, 20, 9, seed == 1 ? a : other);
        close_net(&b);
    }
    assert_memory_not_equal(a, other, sizeof a);
    assert_memory_not_equal(a, zeros, sizeof a);
    for (int i = 0; i < COUNT(a); i++) assert_true(isfinite(a[i]));
    mem_free(features);
    close_target(&b);
}

/* Every allocation of opening fails in turn. */
static void test_no_memory(void **state)
{
    Bench b;
    DflashSetup setup = setup_of();
    open_target(&b, DT_F32, NULL, 1);
    size_t before = backend_bytes(b.backend);
    int n_failed = 0;
    for (int64_t nth = 1;; nth++) {
        Error err = { 0 };
        mem_fail_at(nth);
        Status s = dflash_open(&b.net, draft_dir(), b.target, b.backend, &setup, &err);
        mem_fail_at(0);
        if (!s) break;
        assert_null(b.net);
        assert_true(err.text[0]);
        assert_int_equal(backend_bytes(b.backend), before);
        n_failed++;
    }
    assert_true(n_failed > 10);
    dflash_close(b.net);
    close_target(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),          cmocka_unit_test(test_company),
        cmocka_unit_test(test_blocks_together), cmocka_unit_test(test_forms),
        cmocka_unit_test(test_forms_differ),    cmocka_unit_test(test_selector),
        cmocka_unit_test(test_faults),          cmocka_unit_test(test_wrong_target),
        cmocka_unit_test(test_other_layouts),   cmocka_unit_test(test_needs_and_block),
        cmocka_unit_test(test_dummy),           cmocka_unit_test(test_no_memory),
    };
    numeric_mode_enter();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
