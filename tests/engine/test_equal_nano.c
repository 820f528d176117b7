/* The same bits, whatever runs beside: the bundled models through the engine alone, in a batch, in chunks, preempted, and
 * drafted by the oracle as chains and trees; greedy and sampled. The plain side is one sequence, one row a pass.
 * (`tandem verify` is the large version of this.) */
#include "base/memory.h"
#include "support/gguf_writer.h"
#include "support/row_hash.h"
#include "support/temp_dir.h"
#include "engine/engine.h"
#include "engine/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_PROMPTS = 5, N_TOKENS = 24, MAX_PROMPT = 70, VOCAB = 4096 };

typedef struct Answers {
    int32_t n[N_PROMPTS], first[N_PROMPTS];
    int32_t tokens[N_PROMPTS][N_TOKENS];
    uint64_t hashes[N_PROMPTS][N_TOKENS];
} Answers;

typedef struct Run {
    EngineOptions engine;
    bool drafts;
    OracleOptions oracle;
} Run;

static Backend *backend;
static const char *model_name;
static LoadFormat load_format;
static float temperature;
static DType kv_dtype; /* DT_NONE: the model's own */
static Answers truth;

static void on_row(void *ctx, uint64_t id, int32_t choice, int32_t index, const float *logits, int32_t vocab,
                   int32_t token)
{
    Answers *a = ctx;
    int32_t at = a->n[id]++;
    if (at == 0) a->first[id] = index;
    assert_true(at < N_TOKENS && index == a->first[id] + at);
    a->tokens[id][at] = token;
    a->hashes[id][at] = row_hash(logits, vocab);
}

static int32_t true_tokens(void *ctx, uint64_t id, int32_t choice, int32_t index, const int32_t **tokens)
{
    int32_t at = index - truth.first[id];
    *tokens = &truth.tokens[id][at];
    return truth.n[id] - at;
}

static GenerateRequest request_of(uint64_t id, int32_t *prompt)
{
    int32_t n = 2 + (int32_t)id * 13;
    uint64_t x = id + 11;
    for (int32_t i = 0; i < n; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        prompt[i] = 200 + (int32_t)(x >> 33) % 3800;
    }
    return (GenerateRequest){
        .id = id,
        .prompt = prompt,
        .n_prompt = n,
        .n_choices = 1,
        .max_tokens = N_TOKENS,
        .seed = 5 + id,
        .ignore_eos = true,
        .params = { .temperature = temperature, .top_p = 1, .n_logprobs = -1, .repetition_penalty = id % 2 ? 1.1f : 1 }
    };
}

static Engine *open_engine(const Run *run, Answers *out)
{
    char dir[4096];
    Error err = { 0 };
    Model *model;
    Engine *engine;
    Drafter *drafter = NULL;
    OracleOptions oracle = run->oracle;
    EngineOptions o = run->engine;
    o.max_model_len = 128;
    o.block_size = 8;
    if (!o.n_blocks) o.n_blocks = N_PROMPTS * 26;
    o.max_waiting = N_PROMPTS;
    o.hooks = (EngineHooks){ on_row, out };
    if (run->drafts) {
        o.draft_nodes = oracle.n_nodes;
        o.draft_depth = oracle.max_depth;
        oracle.vocab_size = VOCAB;
        oracle.truth = true_tokens;
        if (drafter_open_oracle(&drafter, &oracle, &err)) fail_msg("%s", err.text);
    }
    if (model_name[0] == '/') snprintf(dir, sizeof dir, "%s", model_name);
    else snprintf(dir, sizeof dir, "%s/models/%s", getenv("TANDEM_SOURCE_ROOT"), model_name);
    ModelOptions mo = { .kv_dtype = kv_dtype, .limits = plan_limits(&o), .load_format = load_format };
    if (model_open(&model, dir, backend, &mo, &err)) fail_msg("%s", err.text);
    if (engine_open(&engine, model, backend, drafter, &o, &err)) fail_msg("%s", err.text);
    return engine;
}

static EngineStats run_all(const Run *run, Answers *out)
{
    Request *r[N_PROMPTS];
    int32_t prompt[MAX_PROMPT];
    Error err = { 0 };
    *out = (Answers){ 0 };
    Engine *engine = open_engine(run, out);
    for (uint64_t id = 0; id < N_PROMPTS; id++) {
        GenerateRequest g = request_of(id, prompt);
        if (engine_submit(engine, &g, NULL, NULL, &r[id], &err)) fail_msg("%s", err.text);
    }
    uint64_t before = mem_count();
    while (engine_step(engine)) {}
    assert_int_equal(mem_count(), before); /* whatever a step does, it allocates nothing */
    for (int i = 0; i < N_PROMPTS; i++) {
        assert_int_equal(request_finish(r[i], 0), FINISH_LENGTH);
        request_close(r[i]);
    }
    EngineStats stats = engine_stats(engine);
    engine_close(engine);
    return stats;
}

static EngineStats check(const Run *run)
{
    static Answers got;
    EngineStats stats = run_all(run, &got);
    for (int i = 0; i < N_PROMPTS; i++) {
        assert_int_equal(got.n[i], N_TOKENS);
        assert_memory_equal(got.tokens[i], truth.tokens[i], sizeof got.tokens[i]);
        assert_memory_equal(got.hashes[i], truth.hashes[i], sizeof got.hashes[i]);
    }
    return stats;
}

static void check_drafted(int32_t nodes, bool chain, double p, int32_t n_seqs, int32_t n_blocks)
{
    Run run = {
        .engine = { .max_num_seqs = n_seqs, .max_num_batched_tokens = 300, .prefill_chunk = 17, .n_blocks = n_blocks },
        .drafts = true,
        .oracle = { .p = p, .n_nodes = nodes, .chain = chain, .max_depth = chain ? nodes - 1 : 12, .seed = 3 }
    };
    EngineStats s = check(&run);
    assert_true(s.draft_tokens > 0 && s.failed_drafts == 0);
    if (p == 1 && chain && n_seqs == 1) assert_int_equal(s.accepted_tokens, s.draft_tokens);
    if (p == 0) assert_int_equal(s.accepted_tokens, 0);
    if (n_blocks) assert_true(s.preemptions > 0);
}

static void find_truth(const char *name, float t)
{
    model_name = name;
    temperature = t;
    stream_use_workers(backend_stream(backend), 1);
    run_all(&(Run){ .engine = { .max_num_seqs = 1, .max_num_batched_tokens = 1 } }, &truth);
}

static void check_company(void)
{
    check(&(Run){ .engine = { .max_num_seqs = 1, .max_num_batched_tokens = 128 } });
    check(&(Run){ .engine = { .max_num_seqs = 5, .max_num_batched_tokens = 20, .prefill_chunk = 7 } });
    stream_use_workers(backend_stream(backend), 2);
    check(&(Run){ .engine = { .max_num_seqs = 6, .max_num_batched_tokens = 256 } });
    stream_use_workers(backend_stream(backend), 1);
    EngineStats s = check(&(Run){ .engine = { .max_num_seqs = 6, .max_num_batched_tokens = 100, .n_blocks = 17 } });
    assert_true(s.preemptions > 0);
}

static void check_greedy(const char *name)
{
    find_truth(name, 0);
    check_company();
    check_drafted(4, true, 0, 1, 0);
    check_drafted(8, true, 1, 1, 0);
    check_drafted(32, true, 0.9, 6, 0);
    check_drafted(33, false, 0.7, 6, 0);
    check_drafted(12, false, 0.8, 6, 17);
}

static void check_sampled(const char *name, float t)
{
    find_truth(name, t);
    check(&(Run){ .engine = { .max_num_seqs = 6, .max_num_batched_tokens = 100, .prefill_chunk = 9 } });
    check_drafted(9, true, 0.9, 6, 0);
    check_drafted(7, false, 1, 1, 0);
    check_drafted(12, false, 0.8, 6, 17);
}

static void test_nano_greedy(void **state)
{
    check_greedy("nano");
}

static void test_nano_sampled(void **state)
{
    check_sampled("nano", 1.3f);
}

static void test_nano_plain_greedy(void **state)
{
    check_greedy("nano-plain");
}

static void test_nano_plain_sampled(void **state)
{
    check_sampled("nano-plain", 0.7f);
}

/* Rows move with their scales, whoever moves them; other bits than over a bf16 cache. */
static void test_fp8_cache(void **state)
{
    find_truth("nano-plain", 0);
    uint64_t plain = truth.hashes[1][0];
    kv_dtype = DT_F8_E4M3;
    check_greedy("nano-plain");
    assert_true(truth.hashes[1][0] != plain);
    check_sampled("nano", 0.7f);
    kv_dtype = DT_NONE;
}

/* ---- weights in stored blocks: a small qwen3 of random blocks, one format at a time ---- */

typedef struct BlockFormat {
    QuantFormat format;
    uint32_t    type; /* GGUF's number */
    int         half[2]; /* where halves stand in a block, -1 = none */
} BlockFormat;

static const BlockFormat block_formats[] = {
    { QUANT_Q4_0, 2, { 0, -1 } },    { QUANT_Q4_1, 3, { 0, 2 } },          { QUANT_Q5_0, 6, { 0, -1 } },         { QUANT_Q5_1, 7, { 0, 2 } },
    { QUANT_Q8_0, 8, { 0, -1 } },    { QUANT_Q4_K, 12, { 0, 2 } },         { QUANT_Q5_K, 13, { 0, 2 } },         { QUANT_Q6_K, 14, { 208, -1 } },
    { QUANT_IQ4_NL, 20, { 0, -1 } }, { QUANT_MXFP4_BLOCKS, 39, { -1, -1 } }, { QUANT_NVFP4_BLOCKS, 40, { -1, -1 } },
};

/* Scales of a block so that weights are small: halves of 2^-10, powers of two below one, E4M3 below one. */
static void mend_block(const BlockFormat *f, uint8_t *block)
{
    for (int i = 0; i < 2; i++) {
        if (f->half[i] < 0) continue;
        block[f->half[i]] &= 3;
        block[f->half[i] + 1] = 0x14 | (block[f->half[i] + 1] & 3);
    }
    if (f->format == QUANT_MXFP4_BLOCKS) block[0] = 118 + block[0] % 4;
    for (int i = 0; f->format == QUANT_NVFP4_BLOCKS && i < 4; i++) block[i] %= 0x20;
}

static void put_matrix(GgufWriter *w, const BlockFormat *f, const char *name, int64_t n_out, int64_t n_in)
{
    static uint64_t x = 1;
    const QuantGeometry *g = quant_geometry(f->format);
    size_t n = (size_t)(n_out * (n_in / g->block)) * (size_t)g->block_bytes;
    uint8_t *bytes = mem_alloc(n);
    assert_non_null(bytes);
    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)((x = x * 6364136223846793005u + 1442695040888963407u) >> 56);
    for (size_t at = 0; at < n; at += (size_t)g->block_bytes) mend_block(f, bytes + at);
    gguf_put_tensor(w, name, f->type, 2, (const int64_t[]){ n_in, n_out }, bytes, n);
    mem_free(bytes);
}

static void put_norm(GgufWriter *w, const char *name, int64_t n)
{
    float ones[512];
    for (int64_t i = 0; i < n; i++) ones[i] = 1;
    gguf_put_tensor(w, name, 0, 1, &n, ones, (size_t)n * sizeof(float));
}

static void put_layer(GgufWriter *w, const BlockFormat *f, int layer)
{
    static const struct {
        const char *name;
        int64_t     n_out, n_in; /* n_in 0: a norm */
    } parts[] = { { "attn_norm", 256, 0 }, { "attn_q", 256, 256 },   { "attn_k", 128, 256 },  { "attn_v", 128, 256 },
                  { "attn_output", 256, 256 }, { "attn_q_norm", 64, 0 }, { "attn_k_norm", 64, 0 }, { "ffn_norm", 256, 0 },
                  { "ffn_gate", 512, 256 }, { "ffn_up", 512, 256 },   { "ffn_down", 256, 512 } };
    for (int i = 0; i < COUNT(parts); i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s.weight", layer, parts[i].name);
        if (parts[i].n_in) put_matrix(w, f, name, parts[i].n_out, parts[i].n_in);
        else put_norm(w, name, parts[i].n_out);
    }
}

static void write_model(const TempDir *t, const BlockFormat *f)
{
    static const struct {
        const char *key;
        uint32_t    value;
    } sizes[] = { { "qwen3.block_count", 2 }, { "qwen3.context_length", 512 }, { "qwen3.embedding_length", 256 },
                  { "qwen3.feed_forward_length", 512 }, { "qwen3.attention.head_count", 4 }, { "qwen3.attention.head_count_kv", 2 },
                  { "qwen3.attention.key_length", 64 }, { "qwen3.attention.value_length", 64 } };
    GgufWriter w;
    Buf file;
    buf_init(&file, 64 << 20);
    gguf_writer_open(&w);
    gguf_put_text(&w, "general.architecture", "qwen3");
    for (int i = 0; i < COUNT(sizes); i++) gguf_put_u32(&w, sizes[i].key, sizes[i].value);
    gguf_put_f32(&w, "qwen3.attention.layer_norm_rms_epsilon", 1e-6f);
    put_matrix(&w, f, "token_embd.weight", VOCAB, 256); /* the head, too */
    for (int layer = 0; layer < 2; layer++) put_layer(&w, f, layer);
    put_norm(&w, "output_norm.weight", 256);
    gguf_writer_finish(&w, &file);
    assert_false(file.failed);
    temp_write(t, "m.gguf", file.data, file.len);
    gguf_writer_close(&w);
    buf_free(&file);
}

static void test_stored_blocks(void **state)
{
    TempDir t;
    temp_dir_open(&t);
    for (int i = 0; i < COUNT(block_formats); i++) {
        write_model(&t, &block_formats[i]);
        find_truth(temp_path(&t, "m.gguf"), 0.7f);
        assert_int_not_equal(truth.tokens[0][0], truth.tokens[1][1]); /* something is going on */
        check(&(Run){ .engine = { .max_num_seqs = 6, .max_num_batched_tokens = 100, .prefill_chunk = 9 } });
        check_drafted(9, true, 0.9, 6, 0);
        check_drafted(33, false, 0.8, 6, 0);
    }
    temp_dir_close(&t);
}

/* ---- weights in the formats of safetensors: a small qwen3 of dummy weights, as config.json declares them ---- */

static void test_declared_formats(void **state)
{
    static const char *const declared[] = {
        "\"quant_method\": \"fp8\"", "\"quant_method\": \"awq\"", "\"quant_method\": \"gptq\"", "\"quant_method\": \"mxfp4\"",
        "\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\"", "\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\"",
    };
    TempDir t;
    temp_dir_open(&t);
    load_format = LOAD_DUMMY;
    for (int i = 0; i < COUNT(declared); i++) {
        char config[1024];
        int n = snprintf(config, sizeof config,
                         "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"hidden_act\": \"silu\", \"head_dim\": 64,"
                         " \"hidden_size\": 256, \"intermediate_size\": 512, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
                         " \"num_hidden_layers\": 2, \"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000,"
                         " \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\", \"vocab_size\": %d, \"quantization_config\": {%s}}",
                         VOCAB, declared[i]);
        temp_write(&t, "config.json", config, (size_t)n);
        find_truth(temp_path(&t, ""), 0.7f);
        assert_int_not_equal(truth.tokens[0][0], truth.tokens[1][1]); /* something is going on */
        check(&(Run){ .engine = { .max_num_seqs = 6, .max_num_batched_tokens = 100, .prefill_chunk = 9 } });
        check_drafted(9, true, 0.9, 6, 0);
        check_drafted(33, false, 0.8, 6, 0);
    }
    load_format = LOAD_AUTO;
    temp_dir_close(&t);
}

static int open_backend(void **state)
{
    return backend_open_cpu(&backend, &(BackendOptions){ .n_workers = 2 }, NULL);
}

static int close_backend(void **state)
{
    backend_close(backend);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nano_greedy),
        cmocka_unit_test(test_nano_sampled),
        cmocka_unit_test(test_nano_plain_greedy),
        cmocka_unit_test(test_nano_plain_sampled),
        cmocka_unit_test(test_fp8_cache),
        cmocka_unit_test(test_stored_blocks),
        cmocka_unit_test(test_declared_formats),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
