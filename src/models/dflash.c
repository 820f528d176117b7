/* A pass of the drafter network: docs/spec/speculation.md 1.2.
 *
 * A layer's keys and values come from two sources that share its k_proj and v_proj: c of the context rows, which is the
 * same for every layer, and the block's own stream. So c lies in front of what enters the block's projections, and the
 * two go through k and v as one matrix, whose weights are then read once a round:
 *
 *     inputs   [ c of context rows | norm(stream) of block rows ]  ──k, v──> norm, rope, cache
 *                                   └──────────────────────────┘  ──q────> attention
 *
 * A block that sees itself whole is a path to attention: every row's path is the block, and its place the block's last.
 * What a window or a causal layer hides is then a matter of index and first_key alone (DflashView). A row's numbers do
 * not depend on what else is in the pass. */
#include "models/dflash_impl.h"

#include "base/memory.h"

#include <math.h>

/* ---- opening ---- */

static void declare_layers(Dflash *n, const char *prefix)
{
    Decoder *d = &n->decoder;
    for (int l = 0; l < d->config.n_layers; l++) {
        weights_scope(&d->weights, "%slayers.%d.", prefix, l);
        decoder_declare_attention(d, &n->layers[l].attention);
        decoder_declare_mlp(d, &n->layers[l].mlp);
        if (dflash_has_conv(n)) dflash2_declare_layer(n, &n->layers[l]);
    }
}

static void declare(Dflash *n, const char *prefix)
{
    Decoder *d = &n->decoder;
    const int64_t hidden = d->config.hidden_size;
    weights_begin(&d->weights, d->model.info.act == DT_F32 ? MATH_F32 : MATH_BF16, d->model.backend);
    weights_scope(&d->weights, "%s", prefix);
    weights_matrix(&d->weights, &n->fc, hidden, n->config.n_taps * hidden, "fc.weight");
    weights_vector(&d->weights, &n->hidden_norm, VECTOR_NORM, hidden, "hidden_norm.weight");
    weights_vector(&d->weights, &d->final_norm, VECTOR_NORM, hidden, "norm.weight");
    if (dflash_has_conv(n)) dflash2_declare_selector(n);
    declare_layers(n, prefix);
}

/* Layers of equal windows share a view. */
static void assign_views(Dflash *n)
{
    for (int l = 0; l < n->decoder.config.n_layers; l++) {
        DflashWindow w = n->config.window[l];
        int32_t v = 0;
        while (v < n->n_views && (n->views[v].window.width != w.width || n->views[v].window.is_causal != w.is_causal))
            v++;
        if (v == n->n_views) n->views[n->n_views++].window = w;
        n->layers[l].view = v;
    }
}

static Status make_rope(Dflash *n, Error *err)
{
    Decoder *d = &n->decoder;
    const size_t n_pairs = (size_t)rope_dim(&d->config) / 2;
    float *inv_freq = mem_alloc_array(n_pairs, sizeof *inv_freq);
    uint8_t *axis = mem_alloc_array(n_pairs, sizeof *axis);
    d->rope = (RopeParams){ .dim = rope_dim(&d->config), .inv_freq = inv_freq };
    if (!inv_freq || !axis) {
        mem_free(axis);
        return error_set(err, ERR_NOMEM, "no memory for the rotary frequencies");
    }
    rope_frequencies(&d->config, inv_freq, axis, &d->rope.scale);
    mem_free(axis); /* drafters turn by one coordinate, whatever the target does */
    return OK;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static Tensor carve_ints(Carver *c, int64_t n)
{
    return carve(c, DT_I32, 1, n);
}

static void carve_arrays(Dflash *n, Carver *c, int64_t context, int64_t rows)
{
    n->store = carve_ints(c, context + rows).data;
    n->rope = carve_ints(c, context + rows).data;
    n->token = carve_ints(c, rows).data;
    n->seq = carve_ints(c, rows).data;
    n->path = carve_ints(c, rows * MAX_DEPTH).data;
    n->seqs = carve(c, DT_U8, 1, n->setup.max_blocks * (int64_t)sizeof(BatchSeq)).data;
    for (int v = 0; v < n->n_views; v++) {
        n->views[v].index = carve_ints(c, rows).data;
        n->views[v].first_key = carve_ints(c, rows).data;
    }
}

/* What a pass needs: arrays that the host fills, and what only kernels touch. */
typedef struct DflashBytes {
    size_t arrays, tensors;
} DflashBytes;

/* Lays it out in the two memories; NULL only measures. */
static DflashBytes place(Dflash *n, char *arrays, char *tensors)
{
    const ModelConfig *c = &n->decoder.config;
    const DType act = n->decoder.model.info.act;
    const int64_t context = n->setup.max_context, rows = dflash_max_block_rows(n), outputs = n->setup.max_outputs;
    const int64_t n_q = (int64_t)c->n_heads * c->head_dim, n_kv = (int64_t)c->n_kv_heads * c->head_dim;
    DflashScratch *s = &n->scratch;

    Carver host = { arrays }, common = { tensors };
    carve_arrays(n, &host, context, rows);
    s->features = carve(&common, act, context, (int64_t)n->config.n_taps * c->hidden_size);
    s->fused = carve(&common, DT_F32, context, c->hidden_size);
    s->inputs = carve(&common, act, context + rows, c->hidden_size);
    s->hidden = carve(&common, DT_F32, rows, c->hidden_size);
    s->delta = carve(&common, DT_F32, rows, c->hidden_size);
    s->picked = carve(&common, DT_F32, outputs, c->hidden_size);
    s->picked_act = carve(&common, act, outputs, c->hidden_size);
    s->logits = carve(&common, DT_F32, outputs, c->vocab_size);
    s->mlp_input = carve(&common, act, rows, c->hidden_size);
    if (dflash_has_conv(n)) {
        s->normed = carve(&common, DT_F32, rows, c->hidden_size);
        s->normed_act = carve(&common, act, rows, c->hidden_size);
        s->dynamic =
            carve(&common, DT_F32, rows, 2 * (int64_t)n->config.conv_kernel * c->hidden_size / n->config.conv_group);
        s->mixed = carve(&common, DT_F32, rows, c->hidden_size);
        s->edge = carve(&common, DT_F32, outputs, n->config.selector_rank);
    }
    Carver attention = common;
    s->q = carve(&attention, DT_F32, rows, n_q);
    s->k = carve(&attention, DT_F32, context + rows, n_kv);
    s->v = carve(&attention, DT_F32, context + rows, n_kv);
    s->attended = carve(&attention, DT_F32, rows, n_q);
    s->attended_act = carve(&attention, act, rows, n_q);
    Carver mlp = common;
    s->gate = carve(&mlp, DT_F32, rows, c->intermediate_size);
    s->up = carve(&mlp, DT_F32, rows, c->intermediate_size);
    s->product = carve(&mlp, act, rows, c->intermediate_size);
    return (DflashBytes){ host.used, larger(attention.used, mlp.used) };
}

static Status take_scratch(Dflash *n, Error *err)
{
    DflashBytes bytes = place(n, NULL, NULL);
    n->arrays = backend_alloc(n->decoder.model.backend, bytes.arrays);
    n->memory = backend_alloc_device(n->decoder.model.backend, bytes.tensors);
    if (!n->arrays || !n->memory)
        return error_set(err, ERR_NOMEM, "no memory for %zu bytes of scratch of a drafter", bytes.arrays + bytes.tensors);
    place(n, n->arrays, n->memory);
    return OK;
}

/* Everything that headers tell. backend may be NULL. */
static Status prepare(Dflash *n, DflashFile *file, const ModelInfo *target, Backend *backend, const DflashSetup *setup,
                      Error *err)
{
    Decoder *d = &n->decoder;
    Status s = dflash_read_config(&n->config, file, target, setup, err);
    if (!s) s = dflash_fits(&n->config, target, err);
    if (s) return s;
    d->config = n->config.base;
    d->limits = (ModelLimits){ .max_uncertain_rows = setup->block_size ? setup->block_size : n->config.block_size };
    d->n_kv_layers = d->config.n_layers;
    d->model = (Model){ .ops = backend ? backend_ops(backend) : NULL, .backend = backend,
                        .info = { .act = target->act, .numerics = { .kv = target->act } } };
    n->setup = *setup;
    n->block_size = d->limits.max_uncertain_rows;
    assign_views(n);
    declare(n, file->prefix);
    return weights_check(&d->weights, &d->config, file->file, err);
}

static Status borrow_ends(Dflash *n, const ModelInfo *target, Error *err)
{
    if (!target->embed || !target->head)
        return error_set(err, ERR_UNSUPPORTED, "the target %s shares no embedding and head with drafters",
                         target->name);
    n->decoder.embed_tokens = *target->embed;
    n->decoder.lm_head = *target->head;
    return OK;
}

static Status open_file(DflashFile *file, const char *dir, const DflashSetup *setup, Checkpoint **owned, Error *err)
{
    *owned = NULL;
    *file = (DflashFile){ .dir = dir };
    Status s = setup->load_format == LOAD_DUMMY ? OK : checkpoint_open(owned, dir, err);
    file->file = *owned;
    return s;
}

Status dflash_open(Dflash **out, const char *dir, const Model *target, Backend *backend, const DflashSetup *setup,
                   Error *err)
{
    *out = NULL;
    Dflash *n = mem_alloc(sizeof *n);
    if (!n) return error_set(err, ERR_NOMEM, "no memory for a drafter");
    ModelOptions options = { .load_format = setup->load_format, .dummy_seed = setup->dummy_seed };
    DflashFile file;
    Checkpoint *owned;
    Status s = open_file(&file, dir, setup, &owned, err);
    if (!s && (s = prepare(n, &file, &target->info, backend, setup, err)) != OK) error_prefix(err, "%s", dir);
    if (!s) s = borrow_ends(n, &target->info, err);
    if (!s) s = make_rope(n, err);
    if (!s && (s = weights_load(&n->decoder.weights, file.file, backend, &options, err)) != OK)
        error_prefix(err, "%s", dir);
    if (!s) s = take_scratch(n, err);
    checkpoint_close(owned);
    if (s) dflash_close(n);
    else *out = n;
    return s;
}

void dflash_close(Dflash *n)
{
    if (!n) return;
    weights_free(&n->decoder.weights);
    backend_free(n->decoder.model.backend, n->arrays);
    backend_free(n->decoder.model.backend, n->memory);
    mem_free((void *)n->decoder.rope.inv_freq);
    mem_free(n);
}

Status dflash_needs(const char *dir, const ModelInfo *target, const DflashSetup *setup, DflashNeeds *out, Error *err)
{
    Dflash *n = mem_alloc(sizeof *n);
    if (!n) return error_set(err, ERR_NOMEM, "no memory for a drafter");
    DflashFile file;
    Checkpoint *owned;
    Status s = open_file(&file, dir, setup, &owned, err);
    if (!s && (s = prepare(n, &file, target, NULL, setup, err)) != OK) error_prefix(err, "%s", dir);
    if (!s) {
        DflashBytes bytes = place(n, NULL, NULL);
        *out = (DflashNeeds){ .weight_bytes = weights_bytes(&n->decoder.weights),
                              .page_bytes = weights_held(&n->decoder.weights) - weights_bytes(&n->decoder.weights),
                              .scratch_bytes = bytes.arrays + bytes.tensors,
                              .group = dflash_group(n), .n_taps = n->config.n_taps,
                              .is_second = n->config.conv_kernel > 0 };
    }
    checkpoint_close(owned);
    dflash_close(n);
    return s;
}

/* ---- what it is ---- */

const DflashConfig *dflash_config(const Dflash *n)
{
    return &n->config;
}

int32_t dflash_block_size(const Dflash *n)
{
    return n->block_size;
}

uint64_t dflash_fingerprint(const Dflash *n)
{
    return n->decoder.weights.hash;
}

/* Not kept with prefixes: rows that are still waiting to be computed when a sequence ends would be missing. */
CacheGroup dflash_group(const Dflash *n)
{
    CacheGroup g = decoder_kv_group(&n->decoder);
    g.name = "dflash_kv";
    g.in_prefix = false;
    return g;
}

void dflash_bind(Dflash *n, const CacheMemory *memory)
{
    n->decoder.kv = *memory;
}

/* ---- laying a pass out ---- */

/* Row j of a block whose anchor sits at `anchor`: the first and last place it sees. */
static void lay_view(DflashView *v, const DflashBlock *block, int32_t row, int32_t j, int32_t block_size)
{
    int32_t place = block->n_committed + j, last = block->n_committed + block_size - 1, width = v->window.width;
    int32_t first = width > 0 && place - width + 1 > block->first_context ? place - width + 1 : block->first_context;
    if (v->window.is_causal) last = place;
    if (width > 0 && last > place + width - 1) last = place + width - 1;
    v->first_key[row] = first;
    v->index[row] = last;
}

static void lay_block(Dflash *n, const DflashBlock *block, int32_t b)
{
    const int32_t size = n->block_size, first = b * size;
    n->seqs[b] = (BatchSeq){ .first_row = first, .n_rows = size, .phase = SEQ_VERIFY, .n_committed = block->n_committed,
                             .slot = block->slot };
    for (int32_t j = 0; j < size; j++) {
        int32_t row = first + j, *path = n->path + (int64_t)row * MAX_DEPTH;
        n->token[row] = j ? n->config.mask_id : block->anchor;
        n->seq[row] = b;
        n->store[n->n_context + row] = cache_store(&n->decoder.kv, block->slot, block->n_committed + j);
        n->rope[n->n_context + row] = block->rope + j;
        for (int32_t i = 0; i < MAX_DEPTH; i++) path[i] = i < size ? first + i : -1;
        for (int v = 0; v < n->n_views; v++) lay_view(&n->views[v], block, row, j, size);
    }
}

static void lay_out(Dflash *n, const DflashContext *context, int32_t n_context, const DflashBlock *blocks,
                    int32_t n_blocks)
{
    CHECK(n_context <= n->setup.max_context && n_blocks <= n->setup.max_blocks);
    n->n_context = n_context;
    n->n_rows = n_blocks * n->block_size;
    for (int32_t i = 0; i < n_context; i++) {
        n->store[i] = cache_store(&n->decoder.kv, context[i].slot, context[i].index);
        n->rope[i] = context[i].rope;
    }
    for (int32_t b = 0; b < n_blocks; b++) lay_block(n, &blocks[b], b);
    n->batch = (Batch){ .n_rows = n->n_rows, .n_seqs = n_blocks, .n_uncertain_rows = n->n_rows, .seqs = n->seqs,
                        .token = n->token, .seq = n->seq, .path = n->path };
}

/* ---- running ---- */

/* Rows of a scratch tensor from `first` on. */
static Tensor rows_of(Tensor x, int64_t first, int64_t n)
{
    x.data = (char *)x.data + (size_t)(first * x.stride[0]) * dtype_bytes(x.dtype);
    return tensor_rows(x, n);
}

static Tensor heads_of(Tensor x, int64_t n_heads, int64_t dim)
{
    return tensor_heads(x.data, x.dtype, x.shape[0], n_heads, dim, x.stride[0], dim);
}

static void add_bias(const Ops *op, Stream *st, Tensor x, float *bias)
{
    if (bias) op->add(st, x, tensor_2d_strided(bias, DT_F32, x.shape[0], x.shape[1], 0));
}

/* c of the context rows, where k_proj and v_proj of every layer find it. */
static void fuse(Dflash *n, Stream *st)
{
    const Ops *op = n->decoder.model.ops;
    const Tensor fused = tensor_rows(n->scratch.fused, n->n_context);
    op->linear(st, tensor_rows(n->scratch.features, n->n_context), &(LinearJob){ fused, &n->fc }, 1);
    op->rms_norm(st, tensor_rows(n->scratch.inputs, n->n_context), fused, n->hidden_norm,
                 n->decoder.config.rms_norm_eps);
}

/* Keys and values of the context's rows and the block's, into the cache. */
static void store_keys(Dflash *n, Stream *st, const AttentionWeights *w, KvView kv)
{
    const Ops *op = n->decoder.model.ops;
    const ModelConfig *c = &n->decoder.config;
    const int64_t rows = n->n_context + n->n_rows;
    const Tensor k = tensor_rows(n->scratch.k, rows), v = tensor_rows(n->scratch.v, rows);
    const Tensor k_heads = heads_of(k, c->n_kv_heads, c->head_dim), v_heads = heads_of(v, c->n_kv_heads, c->head_dim);
    op->linear(st, tensor_rows(n->scratch.inputs, rows), (LinearJob[]){ { k, &w->k_proj }, { v, &w->v_proj } }, 2);
    add_bias(op, st, k, w->k_bias);
    add_bias(op, st, v, w->v_bias);
    op->rms_norm(st, k_heads, k_heads, w->k_norm, c->rms_norm_eps);
    op->rope(st, k_heads, n->rope, (int32_t)rows, &n->decoder.rope);
    op->kv_store(st, kv, k_heads, v_heads, n->store);
}

static Tensor block_inputs(const Dflash *n)
{
    return rows_of(n->scratch.inputs, n->n_context, n->n_rows);
}

/* delta = attention of the block's rows, whose inputs are in place. */
static void attend(Dflash *n, Stream *st, const DflashLayer *layer, KvView kv)
{
    const Ops *op = n->decoder.model.ops;
    const ModelConfig *c = &n->decoder.config;
    const AttentionWeights *w = &layer->attention;
    const DflashView *view = &n->views[layer->view];
    const Tensor q = tensor_rows(n->scratch.q, n->n_rows), q_heads = heads_of(q, c->n_heads, c->head_dim);
    const Tensor attended = tensor_rows(n->scratch.attended, n->n_rows);
    const Tensor attended_act = tensor_rows(n->scratch.attended_act, n->n_rows),
                 delta = tensor_rows(n->scratch.delta, n->n_rows);

    op->linear(st, block_inputs(n), &(LinearJob){ q, &w->q_proj }, 1);
    add_bias(op, st, q, w->q_bias);
    op->rms_norm(st, q_heads, q_heads, w->q_norm, c->rms_norm_eps);
    op->rope(st, q_heads, n->rope + n->n_context, n->n_rows, &n->decoder.rope);
    n->batch.index = view->index;
    n->batch.first_key = view->first_key;
    op->attention(st, heads_of(attended, c->n_heads, c->head_dim), q_heads, kv, &n->batch, n->store + n->n_context,
                  1.0f / sqrtf((float)c->head_dim));
    op->round_rows(st, attended_act, attended);
    op->linear(st, attended_act, &(LinearJob){ delta, &w->o_proj }, 1);
    add_bias(op, st, delta, w->o_bias);
}

/* What a sublayer reads: norm(hidden), in DFlash 2 convolved. */
static void enter(Dflash *n, Stream *st, const DflashConv *conv, const float *norm, Tensor out)
{
    if (dflash_has_conv(n)) dflash2_enter(n, st, conv, norm, out);
    else
        n->decoder.model.ops->rms_norm(st, out, tensor_rows(n->scratch.hidden, n->n_rows), norm,
                                       n->decoder.config.rms_norm_eps);
}

/* hidden += delta, in DFlash 2 convolved. */
static void leave(Dflash *n, Stream *st, const DflashConv *conv)
{
    Tensor delta = dflash_has_conv(n) ? dflash2_leave(n, st, conv) : tensor_rows(n->scratch.delta, n->n_rows);
    n->decoder.model.ops->add(st, tensor_rows(n->scratch.hidden, n->n_rows), delta);
}

static void run_mlp(Dflash *n, Stream *st, const DflashLayer *layer)
{
    const Ops *op = n->decoder.model.ops;
    const MlpWeights *w = &layer->mlp;
    const Tensor x = tensor_rows(n->scratch.mlp_input, n->n_rows), product = tensor_rows(n->scratch.product, n->n_rows);
    const Tensor gate = tensor_rows(n->scratch.gate, n->n_rows), up = tensor_rows(n->scratch.up, n->n_rows);
    enter(n, st, &layer->mlp_conv, w->norm, x);
    op->linear(st, x, (LinearJob[]){ { gate, &w->gate_proj }, { up, &w->up_proj } }, 2);
    op->silu_mul(st, product, gate, up);
    op->linear(st, product, &(LinearJob){ tensor_rows(n->scratch.delta, n->n_rows), &w->down_proj }, 1);
    leave(n, st, &layer->mlp_conv);
}

Tensor dflash_features(Dflash *n, int32_t n_context)
{
    CHECK(n_context <= n->setup.max_context);
    return tensor_rows(n->scratch.features, n_context);
}

static void embed(Dflash *n, Stream *st)
{
    const Ops *op = n->decoder.model.ops;
    const Tensor hidden = tensor_rows(n->scratch.hidden, n->n_rows);
    op->embed(st, hidden, &n->decoder.embed_tokens, &n->batch);
    if (n->config.embedding_scale != 1) op->scale_cap(st, hidden, n->config.embedding_scale, 0);
}

void dflash_pass(Dflash *n, Stream *st, const DflashContext *context, int32_t n_context, const DflashBlock *blocks,
                 int32_t n_blocks)
{
    lay_out(n, context, n_context, blocks, n_blocks);
    if (n_context) fuse(n, st);
    if (n_blocks) embed(n, st);
    for (int l = 0; l < n->decoder.config.n_layers; l++) {
        const DflashLayer *layer = &n->layers[l];
        const KvView kv = decoder_kv_view(&n->decoder, l);
        if (n_blocks) enter(n, st, &layer->attention_conv, layer->attention.norm, block_inputs(n));
        store_keys(n, st, &layer->attention, kv);
        if (!n_blocks) continue;
        attend(n, st, layer, kv);
        leave(n, st, &layer->attention_conv);
        run_mlp(n, st, layer);
    }
}

Tensor dflash_logits(Dflash *n, Stream *st, const int32_t *rows, int32_t n_rows)
{
    const Decoder *d = &n->decoder;
    const Ops *op = d->model.ops;
    const Tensor picked = tensor_rows(n->scratch.picked, n_rows), act = tensor_rows(n->scratch.picked_act, n_rows);
    const Tensor logits = tensor_rows(n->scratch.logits, n_rows);
    CHECK(n_rows <= n->setup.max_outputs);
    op->gather_rows(st, picked, tensor_rows(n->scratch.hidden, n->n_rows), rows, n_rows);
    op->rms_norm(st, act, picked, d->final_norm, d->config.rms_norm_eps);
    op->linear(st, act, &(LinearJob){ logits, &d->lm_head }, 1);
    if (n->config.logit_scale != 1 || n->config.softcap > 0)
        op->scale_cap(st, logits, n->config.logit_scale, n->config.softcap);
    return logits;
}
