/* The parts of docs/spec/models.md sections 1 and 3.3, in the order in which a pass runs through them.
 *
 * Rounding: the residual stream, queries, keys, values and everything else between two linears is float32; what enters
 * a linear is rounded once to its contract's input type, by the op that made it. A row never sees another row except
 * through the caches. */
#include "models/layers.h"

#include <math.h>

/* ---- declaring ---- */

VectorUse decoder_norm_use(const Decoder *d)
{
    return d->config.zero_centered_norm ? VECTOR_NORM_PLUS_ONE : VECTOR_NORM;
}

void decoder_declare_ends(Decoder *d)
{
    const ModelConfig *c = &d->config;
    WeightList *list = &d->weights;
    weights_scope(list, "%s", c->weight_prefix);
    weights_matrix(list, &d->embed_tokens, c->vocab_size, c->hidden_size, "embed_tokens.weight");
    weights_vector(list, &d->final_norm, decoder_norm_use(d), c->hidden_size, "norm.weight");
    weights_scope(list, "%s", "");
    if (!c->tie_word_embeddings) weights_matrix(list, &d->lm_head, c->vocab_size, c->hidden_size, "lm_head.weight");
}

void decoder_declare_attention(Decoder *d, AttentionWeights *w)
{
    const ModelConfig *c = &d->config;
    WeightList *list = &d->weights;
    int64_t hidden = c->hidden_size;
    int64_t n_q = (int64_t)c->n_heads * c->head_dim, n_kv = (int64_t)c->n_kv_heads * c->head_dim;
    int64_t n_q_out = c->attn_output_gate ? 2 * n_q : n_q;

    weights_vector(list, &w->norm, decoder_norm_use(d), hidden, "input_layernorm.weight");
    weights_matrix(list, &w->q_proj, n_q_out, hidden, "self_attn.q_proj.weight");
    weights_matrix(list, &w->k_proj, n_kv, hidden, "self_attn.k_proj.weight");
    weights_matrix(list, &w->v_proj, n_kv, hidden, "self_attn.v_proj.weight");
    weights_row_parallel(list, &w->o_proj, hidden, n_q, "self_attn.o_proj.weight");
    if (c->attention_bias) {
        weights_vector(list, &w->q_bias, VECTOR_PLAIN, n_q_out, "self_attn.q_proj.bias");
        weights_vector(list, &w->k_bias, VECTOR_PLAIN, n_kv, "self_attn.k_proj.bias");
        weights_vector(list, &w->v_bias, VECTOR_PLAIN, n_kv, "self_attn.v_proj.bias");
        weights_vector(list, &w->o_bias, VECTOR_PLAIN, hidden, "self_attn.o_proj.bias");
    }
    if (c->qk_norm) {
        weights_vector(list, &w->q_norm, decoder_norm_use(d), c->head_dim, "self_attn.q_norm.weight");
        weights_vector(list, &w->k_norm, decoder_norm_use(d), c->head_dim, "self_attn.k_norm.weight");
    }
}

void decoder_declare_mlp(Decoder *d, MlpWeights *w)
{
    const ModelConfig *c = &d->config;
    WeightList *list = &d->weights;
    weights_vector(list, &w->norm, decoder_norm_use(d), c->hidden_size, "post_attention_layernorm.weight");
    weights_matrix(list, &w->gate_proj, c->intermediate_size, c->hidden_size, "mlp.gate_proj.weight");
    weights_matrix(list, &w->up_proj, c->intermediate_size, c->hidden_size, "mlp.up_proj.weight");
    weights_row_parallel(list, &w->down_proj, c->hidden_size, c->intermediate_size, "mlp.down_proj.weight");
}

/* ---- scratch ---- */

Tensor carve(Carver *c, DType dtype, int64_t rows, int64_t cols)
{
    Tensor t = tensor_2d(c->base ? c->base + c->used : NULL, dtype, rows, cols);
    c->used += ((size_t)(rows * cols) * dtype_bytes(dtype) + 63) / 64 * 64;
    return t;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Lays *s out for a pass of `rows` rows and returns its bytes; more rows never take less. */
static size_t scratch_layout(Scratch *s, const Decoder *d, char *memory, int64_t rows, int64_t outputs)
{
    const ModelConfig *c = &d->config;
    DType act = d->model.info.act;
    int64_t n_q = (int64_t)c->n_heads * c->head_dim, n_kv = (int64_t)c->n_kv_heads * c->head_dim;

    Carver common = { memory };
    s->hidden = carve(&common, DT_F32, rows, c->hidden_size);
    s->normed = carve(&common, act, rows, c->hidden_size);
    s->delta = carve(&common, DT_F32, rows, c->hidden_size);
    s->picked = carve(&common, DT_F32, outputs, c->hidden_size);
    s->picked_act = carve(&common, act, outputs, c->hidden_size);

    Carver attention = common;
    s->q = carve(&attention, DT_F32, rows, c->attn_output_gate ? 2 * n_q : n_q);
    s->k = carve(&attention, DT_F32, rows, n_kv);
    s->v = carve(&attention, DT_F32, rows, n_kv);
    s->attended = carve(&attention, DT_F32, rows, n_q);
    s->attended_act = carve(&attention, act, rows, n_q);

    Carver mlp = common;
    s->gate = carve(&mlp, DT_F32, rows, c->intermediate_size);
    s->up = carve(&mlp, DT_F32, rows, c->intermediate_size);
    s->product = carve(&mlp, act, rows, c->intermediate_size);

    Carver gdn = common;
    int64_t values = (int64_t)c->gdn_value_heads * c->gdn_value_dim;
    int64_t channels = 2 * (int64_t)c->gdn_key_heads * c->gdn_key_dim + values;
    s->mix = carve(&gdn, DT_F32, rows, channels);
    s->z = carve(&gdn, DT_F32, rows, values);
    s->a = carve(&gdn, DT_F32, rows, c->gdn_value_heads);
    s->b = carve(&gdn, DT_F32, rows, c->gdn_value_heads);
    s->conv = carve(&gdn, DT_F32, rows, channels);
    s->read = carve(&gdn, DT_F32, rows, values);
    s->read_act = carve(&gdn, act, rows, values);

    return larger(attention.used, larger(mlp.used, gdn.used));
}

size_t decoder_place_pass(Decoder *d, char *memory)
{
    d->pass_memory = memory;
    return scratch_layout(&d->scratch, d, memory, d->limits.max_rows, d->limits.max_outputs);
}

/* ---- caches ---- */

CacheGroup decoder_kv_group(const Decoder *d)
{
    const ModelConfig *c = &d->config;
    return (CacheGroup){
        .name = "kv",
        .kind = CACHE_PER_TOKEN,
        .tokens_per_entry = 1,
        .spare = d->limits.max_uncertain_rows,
        .n_layers = d->n_kv_layers,
        .entry_bytes = kv_entry_bytes(d->model.info.numerics.kv, c->n_kv_heads, c->head_dim),
        .in_prefix = true,
    };
}

KvView decoder_kv_view(const Decoder *d, int kv_layer)
{
    return (KvView){
        .data = (char *)d->kv.data + (size_t)kv_layer * d->kv.layer_bytes,
        .dtype = d->model.info.numerics.kv,
        .n_heads = d->config.n_kv_heads,
        .head_dim = d->config.head_dim,
        .block_size = d->kv.block_size,
        .max_blocks = d->kv.max_blocks,
        .block_table = d->kv.block_table,
    };
}

/* A tentative row's entry lies behind the committed ones in row order; its token's position is its depth behind them.
 * Paths ascend, so from >= to and a forward copy in place is right. */
void decoder_commit_kv(Decoder *d, Stream *st, const Batch *batch, const Commit *commits, int n)
{
    const Ops *op = d->model.ops;
    for (int i = 0; i < n; i++) {
        const Commit *c = &commits[i];
        const BatchSeq *seq = &batch->seqs[c->seq];
        CHECK(!seq->certain && c->n_path <= MAX_DEPTH);

        int32_t from[MAX_DEPTH], to[MAX_DEPTH], n_moves = 0;
        for (int depth = 0; depth < c->n_path; depth++) {
            int32_t node = c->path_rows[depth] - seq->first_row;
            if (node == depth) continue;
            from[n_moves] = seq->n_committed + node;
            to[n_moves++] = seq->n_committed + depth;
        }
        for (int layer = 0; layer < d->n_kv_layers && n_moves; layer++)
            op->kv_move(st, decoder_kv_view(d, layer), seq->slot, from, to, n_moves);
    }
}

/* ---- a pass ---- */

void decoder_begin(Decoder *d, Stream *st, const Batch *batch)
{
    CHECK(batch->n_rows <= d->limits.max_rows && batch->n_outputs <= d->limits.max_outputs);
    CHECK(batch->n_uncertain_rows <= d->limits.max_uncertain_rows);
    scratch_layout(&d->scratch, d, d->pass_memory, batch->n_rows, batch->n_outputs);
    d->model.ops->embed(st, d->scratch.hidden, &d->embed_tokens, batch);
}

/* x += bias, the same row for every row of x. */
static void add_bias(const Ops *op, Stream *st, Tensor x, float *bias)
{
    if (bias) op->add(st, x, tensor_2d_strided(bias, DT_F32, x.shape[0], x.shape[1], 0));
}

/* Heads [first, first + n) of width `dim` inside rows of x: a view. */
static Tensor heads_of(Tensor x, int64_t first_value, int64_t n_heads, int64_t dim, int64_t head_stride)
{
    return tensor_heads((float *)x.data + first_value, x.dtype, x.shape[0], n_heads, dim, x.stride[0], head_stride);
}

void decoder_attention(Decoder *d, Stream *st, const AttentionWeights *w, int kv_layer, const Batch *batch)
{
    const Ops *op = d->model.ops;
    const ModelConfig *c = &d->config;
    Scratch *s = &d->scratch;
    const KvView kv = decoder_kv_view(d, kv_layer);
    const int64_t dim = c->head_dim, q_stride = c->attn_output_gate ? 2 * dim : dim;
    const Tensor q = heads_of(s->q, 0, c->n_heads, dim, q_stride);
    const Tensor k = heads_of(s->k, 0, c->n_kv_heads, dim, dim);
    const Tensor v = heads_of(s->v, 0, c->n_kv_heads, dim, dim);
    const Tensor attended = heads_of(s->attended, 0, c->n_heads, dim, dim);

    op->rms_norm(st, s->normed, s->hidden, w->norm, c->rms_norm_eps);
    op->linear(st, s->normed, (LinearJob[]){ { s->q, &w->q_proj }, { s->k, &w->k_proj }, { s->v, &w->v_proj } }, 3);
    add_bias(op, st, s->q, w->q_bias);
    add_bias(op, st, s->k, w->k_bias);
    add_bias(op, st, s->v, w->v_bias);
    if (c->qk_norm) {
        op->rms_norm(st, q, q, w->q_norm, c->rms_norm_eps);
        op->rms_norm(st, k, k, w->k_norm, c->rms_norm_eps);
    }
    op->rope(st, q, batch->rope, batch->n_rows, &d->rope);
    op->rope(st, k, batch->rope, batch->n_rows, &d->rope);
    op->kv_store(st, kv, k, v, batch->store[0]);
    op->attention(st, attended, q, kv, batch, batch->store[0], 1.0f / sqrtf((float)dim));

    if (c->attn_output_gate) { /* each head's gate lies behind its query */
        const Tensor gate = heads_of(s->q, dim, c->n_heads, dim, q_stride);
        Tensor out = s->attended_act;
        out = tensor_heads(out.data, out.dtype, out.shape[0], c->n_heads, dim, out.stride[0], dim);
        op->sigmoid_mul(st, out, attended, gate);
    } else {
        op->round_rows(st, s->attended_act, s->attended);
    }
    op->linear(st, s->attended_act, &(LinearJob){ s->delta, &w->o_proj }, 1);
    add_bias(op, st, s->delta, w->o_bias);
    op->add(st, s->hidden, s->delta);
}

void decoder_mlp(Decoder *d, Stream *st, const MlpWeights *w)
{
    const Ops *op = d->model.ops;
    Scratch *s = &d->scratch;
    op->rms_norm(st, s->normed, s->hidden, w->norm, d->config.rms_norm_eps);
    bool is_dense = !contract_is_stored(&w->gate_proj.contract) && !contract_is_stored(&w->up_proj.contract);
    if (op->linear_silu_mul && is_dense) {
        op->linear_silu_mul(st, s->product, s->normed, &w->gate_proj, &w->up_proj);
    } else {
        op->linear(st, s->normed, (LinearJob[]){ { s->gate, &w->gate_proj }, { s->up, &w->up_proj } }, 2);
        op->silu_mul(st, s->product, s->gate, s->up);
    }
    op->linear(st, s->product, &(LinearJob){ s->delta, &w->down_proj }, 1);
    op->add(st, s->hidden, s->delta);
}

void decoder_tap(Decoder *d, Stream *st, const Batch *batch, int layer)
{
    const int64_t hidden = d->config.hidden_size;
    for (int i = 0; i < batch->n_taps; i++)
        if (batch->taps[i] == layer)
            d->model.ops->round_rows(st, tensor_cols(batch->features, i * hidden, hidden), d->scratch.hidden);
}

/* Only wanted rows go through the norm and lm_head. Rounding a float32 norm gives the bits of a norm that rounds, so
 * the logits do not depend on whether somebody wanted last_hidden. */
void decoder_end(Decoder *d, Stream *st, Batch *batch)
{
    const Ops *op = d->model.ops;
    const float eps = d->config.rms_norm_eps;
    Scratch *s = &d->scratch;
    const bool wants_hidden = batch->last_hidden.data != NULL;

    if (wants_hidden) op->rms_norm(st, batch->last_hidden, s->hidden, d->final_norm, eps);
    if (batch->n_outputs == 0) return;
    op->gather_rows(st, s->picked, wants_hidden ? batch->last_hidden : s->hidden, batch->output, batch->n_outputs);
    if (wants_hidden) op->round_rows(st, s->picked_act, s->picked);
    else op->rms_norm(st, s->picked_act, s->picked, d->final_norm, eps);
    op->linear(st, s->picked_act, &(LinearJob){ batch->logits, &d->lm_head }, 1);
}
