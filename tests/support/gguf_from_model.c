/* Model directories to GGUF, for tests. */
#include "support/gguf_from_model.h"

#include "base/file.h"
#include "base/fmath.h"
#include "base/memory.h"
#include "models/config.h"
#include "support/encode.h"
#include "support/gguf_writer.h"
#include "tensor/safetensors.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const arch_of[] = { [FAMILY_LLAMA] = "llama", [FAMILY_QWEN3] = "qwen3", [FAMILY_QWEN3_5] = "qwen35" };

/* ---- metadata ---- */

static void put(GgufWriter *w, const ModelConfig *c, const char *key, int64_t value)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", arch_of[c->family], key);
    gguf_put_u32(w, full, (uint32_t)value);
}

static void put_real(GgufWriter *w, const ModelConfig *c, const char *key, double value)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", arch_of[c->family], key);
    gguf_put_f32(w, full, (float)value);
}

static void put_gated_delta(GgufWriter *w, const ModelConfig *c)
{
    const int32_t *s = c->rope.mrope_section;
    int every = 1;
    while (c->layer_type[every - 1] == LAYER_LINEAR_ATTENTION) every++;
    put(w, c, "full_attention_interval", every);
    put(w, c, "ssm.conv_kernel", c->gdn_conv_kernel);
    put(w, c, "ssm.group_count", c->gdn_key_heads);
    put(w, c, "ssm.time_step_rank", c->gdn_value_heads);
    put(w, c, "ssm.state_size", c->gdn_key_dim);
    put(w, c, "ssm.inner_size", c->gdn_value_heads * c->gdn_value_dim);
    gguf_put_ints(w, "qwen35.rope.dimension_sections", (int32_t[]){ s[0], s[1], s[2], 0 }, 4);
}

static void put_metadata(GgufWriter *w, const ModelConfig *c)
{
    gguf_put_text(w, "general.architecture", arch_of[c->family]);
    put(w, c, "block_count", c->n_layers + c->mtp_layers);
    if (c->mtp_layers) put(w, c, "nextn_predict_layers", c->mtp_layers);
    put(w, c, "context_length", c->max_position);
    put(w, c, "embedding_length", c->hidden_size);
    put(w, c, "feed_forward_length", c->intermediate_size);
    put(w, c, "attention.head_count", c->n_heads);
    put(w, c, "attention.head_count_kv", c->n_kv_heads);
    put(w, c, "attention.key_length", c->head_dim);
    put(w, c, "attention.value_length", c->head_dim);
    put(w, c, "rope.dimension_count", rope_dim(c));
    put_real(w, c, "rope.freq_base", c->rope.theta);
    put_real(w, c, "attention.layer_norm_rms_epsilon", (double)c->rms_norm_eps);
    if (c->family == FAMILY_QWEN3_5) put_gated_delta(w, c);
}

/* ---- names ---- */

static const char *const names[][2] = {
    { "input_layernorm.weight", "attn_norm.weight" },
    { "self_attn.q_proj.", "attn_q." },
    { "self_attn.k_proj.", "attn_k." },
    { "self_attn.v_proj.", "attn_v." },
    { "self_attn.o_proj.", "attn_output." },
    { "self_attn.q_norm.weight", "attn_q_norm.weight" },
    { "self_attn.k_norm.weight", "attn_k_norm.weight" },
    { "mlp.gate_proj.weight", "ffn_gate.weight" },
    { "mlp.up_proj.weight", "ffn_up.weight" },
    { "mlp.down_proj.weight", "ffn_down.weight" },
    { "linear_attn.in_proj_qkv.weight", "attn_qkv.weight" },
    { "linear_attn.in_proj_z.weight", "attn_gate.weight" },
    { "linear_attn.in_proj_b.weight", "ssm_beta.weight" },
    { "linear_attn.in_proj_a.weight", "ssm_alpha.weight" },
    { "linear_attn.conv1d.weight", "ssm_conv1d.weight" },
    { "linear_attn.dt_bias", "ssm_dt.bias" },
    { "linear_attn.A_log", "ssm_a" },
    { "linear_attn.norm.weight", "ssm_norm.weight" },
    { "linear_attn.out_proj.weight", "ssm_out.weight" },
};

static const char *const outer[][2] = {
    { "embed_tokens.weight", "token_embd.weight" },
    { "norm.weight", "output_norm.weight" },
    { "lm_head.weight", "output.weight" },
    { "mtp.fc.weight", "nextn.eh_proj.weight" },
    { "mtp.pre_fc_norm_embedding.weight", "nextn.enorm.weight" },
    { "mtp.pre_fc_norm_hidden.weight", "nextn.hnorm.weight" },
    { "mtp.norm.weight", "nextn.shared_head_norm.weight" },
};

static bool starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Where the layer's own name begins, and its number; NULL for tensors outside. */
static const char *in_layer(const char *name, const ModelConfig *c, int *layer)
{
    const char *at = strstr(name, "layers.");
    if (!at) return NULL;
    *layer = atoi(at + 7) + (starts_with(name, "mtp.") ? c->n_layers : 0);
    return strchr(at + 7, '.') + 1;
}

static void translate(char out[64], const char *name, const ModelConfig *c)
{
    int layer = 0;
    const char *inner = in_layer(name, c, &layer);
    out[0] = '\0';
    for (int i = 0; inner && i < COUNT(names); i++)
        if (starts_with(inner, names[i][0]))
            snprintf(out, 64, "blk.%d.%s%s", layer, names[i][1], inner + strlen(names[i][0]));
    if (inner && strcmp(inner, "post_attention_layernorm.weight") == 0)
        snprintf(out, 64, "blk.%d.%s", layer, c->family == FAMILY_QWEN3_5 ? "post_attention_norm.weight" : "ffn_norm.weight");
    const char *bare = starts_with(name, "model.") ? name + 6 : name;
    for (int i = 0; !inner && i < COUNT(outer); i++) {
        if (strcmp(bare, outer[i][0]) != 0) continue;
        if (starts_with(outer[i][1], "nextn.")) snprintf(out, 64, "blk.%d.%s", c->n_layers, outer[i][1]);
        else snprintf(out, 64, "%s", outer[i][1]);
    }
    if (!out[0]) fprintf(stderr, "gguf_from_model: no name for %s\n", name);
    CHECK(out[0]);
}

/* ---- numbers ---- */

typedef struct Matrix {
    float  *x; /* [rows][columns] */
    int64_t rows, columns;
} Matrix;

/* The row that comes to stand at row `to` of the file. */
typedef int64_t RowOf(int64_t to, const ModelConfig *c, int64_t unit);

/* Pairs of a head: rows 2i and 2i + 1 of the file are i and i + D / 2. */
static int64_t row_of_pairs(int64_t to, const ModelConfig *c, int64_t unit)
{
    const int64_t d = c->head_dim, head = to / d, in_head = to % d;
    return head * d + (in_head & 1) * (d / 2) + in_head / 2;
}

/* Value head j * n_k + i of the file is i * r + j. */
static int64_t row_of_tiles(int64_t to, const ModelConfig *c, int64_t unit)
{
    const int64_t n_k = c->gdn_key_heads, r = c->gdn_value_heads / n_k, head = to / unit;
    return (head % n_k * r + head / n_k) * unit + to % unit;
}

static void move_rows(Matrix *m, int64_t first, RowOf *from, const ModelConfig *c, int64_t unit)
{
    float *old = malloc((size_t)(m->rows * m->columns) * sizeof *old);
    memcpy(old, m->x, (size_t)(m->rows * m->columns) * sizeof *old);
    for (int64_t r = first; r < m->rows; r++)
        memcpy(m->x + r * m->columns, old + (first + from(r - first, c, unit)) * m->columns, (size_t)m->columns * sizeof *old);
    free(old);
}

static void move_columns(Matrix *m, RowOf *from, const ModelConfig *c, int64_t unit)
{
    float *old = malloc((size_t)m->columns * sizeof *old);
    for (int64_t r = 0; r < m->rows; r++) {
        float *row = m->x + r * m->columns;
        memcpy(old, row, (size_t)m->columns * sizeof *old);
        for (int64_t k = 0; k < m->columns; k++) row[k] = old[from(k, c, unit)];
    }
    free(old);
}

static void reorder(Matrix *m, const char *name, const ModelConfig *c)
{
    const int64_t keys = 2 * (int64_t)c->gdn_key_heads * c->gdn_key_dim, dv = c->gdn_value_dim;
    if (c->family == FAMILY_LLAMA && (strstr(name, "q_proj") || strstr(name, "k_proj"))) {
        if (m->rows == 1) move_columns(m, row_of_pairs, c, 1);
        else move_rows(m, 0, row_of_pairs, c, 1);
    }
    if (strstr(name, "in_proj_qkv") || strstr(name, "conv1d")) move_rows(m, keys, row_of_tiles, c, dv);
    if (strstr(name, "in_proj_z")) move_rows(m, 0, row_of_tiles, c, dv);
    if (strstr(name, "in_proj_b") || strstr(name, "in_proj_a")) move_rows(m, 0, row_of_tiles, c, 1);
    if (strstr(name, "dt_bias") || strstr(name, "A_log")) move_columns(m, row_of_tiles, c, 1);
    if (strstr(name, "out_proj")) move_columns(m, row_of_tiles, c, dv);
}

static void finish(Matrix *m, const char *name, const ModelConfig *c)
{
    const bool is_norm = strstr(name, "norm") != NULL && !strstr(name, "linear_attn.norm");
    for (int64_t i = 0; i < m->rows * m->columns; i++) {
        if (is_norm && c->zero_centered_norm) m->x[i] += 1.0f;
        if (strstr(name, "A_log")) m->x[i] = -f_exp(m->x[i]);
    }
}

/* ---- the whole ---- */

static const uint32_t type_of[QUANT_FORMATS] = {
    [QUANT_F32] = 0,  [QUANT_BF16] = 30, [QUANT_Q4_0] = 2,  [QUANT_Q4_1] = 3,    [QUANT_Q5_0] = 6,           [QUANT_Q5_1] = 7,
    [QUANT_Q8_0] = 8, [QUANT_Q4_K] = 12, [QUANT_Q5_K] = 13, [QUANT_Q6_K] = 14, [QUANT_IQ4_NL] = 20, [QUANT_MXFP4_BLOCKS] = 39,
    [QUANT_NVFP4_BLOCKS] = 40,
};

/* The second scale of an NVFP4 matrix is a tensor of its own. */
static float put_global(GgufWriter *w, const char *name, const Matrix *m)
{
    char scale[64];
    float global = nvfp4_global(quant_amax(m->x, m->rows * m->columns));
    snprintf(scale, sizeof scale, "%.*s.scale", (int)(strlen(name) - strlen(".weight")), name);
    gguf_put_tensor(w, scale, 0, 1, (int64_t[]){ 1 }, &global, sizeof global);
    return global;
}

/* Encodes into `room`, which is as large as the float32 numbers; returns the bytes. */
static size_t encode(void *room, const Matrix *m, QuantFormat f, float global)
{
    const int64_t n = m->rows * m->columns;
    uint16_t *half = room;
    if (quant_is_blocks(f)) return encode_blocks(f, room, m->x, n, global);
    if (f == QUANT_F32) memcpy(room, m->x, (size_t)n * sizeof *m->x);
    for (int64_t i = 0; f == QUANT_BF16 && i < n; i++) half[i] = f32_to_bf16(m->x[i]);
    return (size_t)n * (f == QUANT_F32 ? sizeof(float) : sizeof *half);
}

static void put_tensor(GgufWriter *w, const Safetensors *st, const SafetensorsEntry *e, const ModelConfig *c, QuantFormat wanted)
{
    char name[64];
    Error err = { 0 };
    Matrix m = { .rows = e->n_dims > 1 ? e->shape[0] : 1, .columns = e->shape[e->n_dims - 1] };
    const size_t n = (size_t)(m.rows * m.columns);
    QuantFormat f = e->n_dims == 2 && e->dtype == DT_BF16 ? QUANT_BF16 : QUANT_F32;
    if (f == QUANT_BF16 && wanted && m.columns % quant_geometry(wanted)->block == 0) f = wanted;
    void *room = malloc(n * sizeof *m.x);
    m.x = malloc(n * sizeof *m.x);
    CHECK(safetensors_read(st, e, 0, room, e->bytes, &err) == OK);
    dtype_to_f32(m.x, room, e->dtype, n);
    translate(name, e->name, c);
    reorder(&m, e->name, c);
    finish(&m, e->name, c);
    float global = f == QUANT_NVFP4_BLOCKS ? put_global(w, name, &m) : 1;
    size_t bytes = encode(room, &m, f, global);
    gguf_put_tensor(w, name, type_of[f], e->n_dims == 1 ? 1 : 2, (int64_t[]){ m.columns, m.rows }, room, bytes);
    CHECK(e->n_dims != 3 || m.rows == e->shape[0]);
    free(m.x);
    free(room);
}

static void put_tokenizer(GgufWriter *w, const char *dir)
{
    char path[4200], *json = NULL;
    size_t n = 0;
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    if (file_read(path, 64 << 20, &json, &n, NULL) == OK) gguf_put_text(w, "tokenizer.huggingface.json", json);
    mem_free(json);
}

/* llama3: what each frequency is divided by. */
static void put_rope_factors(GgufWriter *w, const ModelConfig *c)
{
    float plain[256], scaled[256], scale;
    uint8_t axis[256];
    const int64_t n = rope_dim(c) / 2;
    ModelConfig unscaled = *c;
    if (c->rope.type != ROPE_LLAMA3) return;
    unscaled.rope.type = ROPE_DEFAULT;
    rope_frequencies(&unscaled, plain, axis, &scale);
    rope_frequencies(c, scaled, axis, &scale);
    for (int64_t i = 0; i < n; i++) plain[i] /= scaled[i];
    gguf_put_tensor(w, "rope_freqs.weight", 0, 1, &n, plain, (size_t)n * sizeof *plain);
}

void gguf_from_model(Buf *out, const char *dir, QuantFormat matrices)
{
    ModelConfig c;
    Safetensors *st;
    GgufWriter w;
    Error err = { 0 };
    CHECK(config_read(&c, dir, &err) == OK && safetensors_open(&st, dir, &err) == OK);
    gguf_writer_open(&w);
    put_metadata(&w, &c);
    put_tokenizer(&w, dir);
    put_rope_factors(&w, &c);
    for (int i = 0; i < safetensors_count(st); i++) put_tensor(&w, st, safetensors_at(st, i), &c, matrices);
    gguf_writer_finish(&w, out);
    gguf_writer_close(&w);
    safetensors_close(st);
}
