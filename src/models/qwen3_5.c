/* Qwen3.5, 3.6, 3.8 (text): docs/spec/models.md section 3.
 *
 * Three of four layers mix tokens by a Gated DeltaNet, every fourth by gated attention; the MLP is the usual one. A
 * DeltaNet layer keeps two things per sequence: its recurrent state and the last three rows before its convolution.
 * Neither can go back, so a tentative pass leaves them alone and logs what each row would do; commit does it. The
 * logs belong to the last pass: commit comes before the next forward. */
#include "models/layers.h"

typedef struct GdnWeights {
    float *norm;
    Weight in_proj_qkv, in_proj_z, in_proj_b, in_proj_a;
    float *conv1d, *neg_exp_a, *dt_bias; /* [channels][4], [nv], [nv] */
    float *read_norm;                    /* linear_attn.norm: [dv], plain */
    Weight out_proj;
} GdnWeights;

typedef struct Qwen35Layer {
    LayerType        type;
    int32_t          place; /* among the layers of its type: which layer of the caches */
    AttentionWeights attention;
    GdnWeights       gdn;
    MlpWeights       mlp;
} Qwen35Layer;

typedef struct Qwen35 {
    Decoder     decoder;
    Qwen35Layer layers[CONFIG_MAX_LAYERS];
    int32_t     n_gdn_layers;
    CacheMemory states, conv_states;      /* groups 1 and 2 */
    GdnLog      logs[CONFIG_MAX_LAYERS];  /* [n_gdn_layers] */
} Qwen35;

enum { CONV_TAPS = 4, CONV_STATE_ROWS = CONV_TAPS - 1 };

static int64_t gdn_keys(const ModelConfig *c)
{
    return (int64_t)c->gdn_key_heads * c->gdn_key_dim;
}

static int64_t gdn_values(const ModelConfig *c)
{
    return (int64_t)c->gdn_value_heads * c->gdn_value_dim;
}

/* q, k and v side by side. */
static int64_t gdn_channels(const ModelConfig *c)
{
    return 2 * gdn_keys(c) + gdn_values(c);
}

/* ---- opening ---- */

static void declare_gdn(Decoder *d, GdnWeights *w)
{
    const ModelConfig *c = &d->config;
    WeightList *list = &d->weights;
    weights_vector(list, &w->norm, decoder_norm_use(d), c->hidden_size, "input_layernorm.weight");
    weights_matrix(list, &w->in_proj_qkv, gdn_channels(c), c->hidden_size, "linear_attn.in_proj_qkv.weight");
    weights_matrix(list, &w->in_proj_z, gdn_values(c), c->hidden_size, "linear_attn.in_proj_z.weight");
    weights_matrix(list, &w->in_proj_b, c->gdn_value_heads, c->hidden_size, "linear_attn.in_proj_b.weight");
    weights_matrix(list, &w->in_proj_a, c->gdn_value_heads, c->hidden_size, "linear_attn.in_proj_a.weight");
    weights_conv(list, &w->conv1d, gdn_channels(c), CONV_TAPS, "linear_attn.conv1d.weight");
    weights_vector(list, &w->neg_exp_a, VECTOR_NEG_EXP, c->gdn_value_heads, "linear_attn.A_log");
    weights_vector(list, &w->dt_bias, VECTOR_PLAIN, c->gdn_value_heads, "linear_attn.dt_bias");
    weights_vector(list, &w->read_norm, VECTOR_NORM, c->gdn_value_dim, "linear_attn.norm.weight");
    weights_row_parallel(list, &w->out_proj, c->hidden_size, gdn_values(c), "linear_attn.out_proj.weight");
}

static void qwen3_5_declare(Decoder *d)
{
    Qwen35 *m = (Qwen35 *)d;
    decoder_declare_ends(d);
    for (int l = 0; l < d->config.n_layers; l++) {
        Qwen35Layer *layer = &m->layers[l];
        layer->type = d->config.layer_type[l];
        weights_scope(&d->weights, "%slayers.%d.", d->config.weight_prefix, l);
        if (layer->type == LAYER_FULL_ATTENTION) {
            layer->place = d->n_kv_layers++;
            decoder_declare_attention(d, &layer->attention);
        } else {
            layer->place = m->n_gdn_layers++;
            declare_gdn(d, &layer->gdn);
        }
        decoder_declare_mlp(d, &layer->mlp);
    }
}

/* Logs outlive the pass, so they come first and the pass is laid out behind them. */
static size_t qwen3_5_place(Decoder *d, char *memory)
{
    Qwen35 *m = (Qwen35 *)d;
    const ModelConfig *c = &d->config;
    const int64_t rows = d->limits.max_uncertain_rows;
    Carver at = { memory };
    for (int i = 0; i < m->n_gdn_layers; i++) {
        GdnLog *log = &m->logs[i];
        log->k = carve(&at, DT_F32, rows, gdn_keys(c)).data;
        log->u = carve(&at, DT_F32, rows, gdn_values(c)).data;
        log->decay = carve(&at, DT_F32, rows, c->gdn_value_heads).data;
        log->mix = carve(&at, DT_F32, rows, gdn_channels(c));
    }
    return at.used + decoder_place_pass(d, memory ? memory + at.used : NULL);
}

/* ---- caches ---- */

static CacheGroup state_group(const Qwen35 *m, const char *name, size_t n_floats)
{
    return (CacheGroup){ .name = name, .kind = CACHE_PER_SEQ, .tokens_per_entry = 1, .n_layers = m->n_gdn_layers,
                         .entry_bytes = n_floats * sizeof(float), .in_prefix = true };
}

static int qwen3_5_groups(const Model *model, CacheGroup out[MAX_GROUPS])
{
    const Qwen35 *m = (const Qwen35 *)model;
    const ModelConfig *c = &m->decoder.config;
    out[0] = decoder_kv_group(&m->decoder);
    out[1] = state_group(m, "gdn_state", (size_t)(gdn_values(c) * c->gdn_key_dim));
    out[2] = state_group(m, "conv_state", (size_t)(CONV_STATE_ROWS * gdn_channels(c)));
    return 3;
}

static void qwen3_5_bind(Model *model, const CacheMemory memory[MAX_GROUPS])
{
    Qwen35 *m = (Qwen35 *)model;
    m->decoder.kv = memory[0];
    m->states = memory[1];
    m->conv_states = memory[2];
}

static StateView state_view(const CacheMemory *memory, int layer, int64_t n_floats)
{
    return (StateView){ (char *)memory->data + (size_t)layer * memory->layer_bytes, (size_t)n_floats * sizeof(float) };
}

static StateView gdn_state(const Qwen35 *m, const Qwen35Layer *layer)
{
    const ModelConfig *c = &m->decoder.config;
    return state_view(&m->states, layer->place, gdn_values(c) * c->gdn_key_dim);
}

static StateView conv_state(const Qwen35 *m, const Qwen35Layer *layer)
{
    return state_view(&m->conv_states, layer->place, CONV_STATE_ROWS * gdn_channels(&m->decoder.config));
}

static GatedDelta gated_delta_of(const Qwen35 *m, const Qwen35Layer *layer)
{
    const ModelConfig *c = &m->decoder.config;
    return (GatedDelta){ .nk = c->gdn_key_heads, .nv = c->gdn_value_heads, .dk = c->gdn_key_dim, .dv = c->gdn_value_dim,
                         .neg_exp_a = layer->gdn.neg_exp_a, .dt_bias = layer->gdn.dt_bias };
}

/* ---- a pass ---- */

static Tensor value_heads(const ModelConfig *c, Tensor x)
{
    const int64_t dim = c->gdn_value_dim;
    return tensor_heads(x.data, x.dtype, x.shape[0], c->gdn_value_heads, dim, x.stride[0], dim);
}

static void gdn_forward(Qwen35 *m, Stream *st, const Qwen35Layer *layer, const Batch *batch)
{
    Decoder *d = &m->decoder;
    const Ops *op = d->model.ops;
    const ModelConfig *c = &d->config;
    const GdnWeights *w = &layer->gdn;
    const GdnLog log = m->logs[layer->place];
    const GatedDelta delta = gated_delta_of(m, layer);
    Scratch *s = &d->scratch;

    op->rms_norm(st, s->normed, s->hidden, w->norm, c->rms_norm_eps);
    op->linear(st, s->normed, (LinearJob[]){ { s->mix, &w->in_proj_qkv }, { s->z, &w->in_proj_z },
                                             { s->b, &w->in_proj_b }, { s->a, &w->in_proj_a } }, 4);
    op->conv_silu(st, s->conv, s->mix, w->conv1d, conv_state(m, layer), batch, log.mix);
    op->gated_delta(st, s->read, s->conv, s->a, s->b, &delta, gdn_state(m, layer), batch, log);
    op->rms_norm_gated(st, value_heads(c, s->read_act), value_heads(c, s->read), value_heads(c, s->z), w->read_norm,
                       c->rms_norm_eps);
    op->linear(st, s->read_act, &(LinearJob){ s->delta, &w->out_proj }, 1);
    op->add(st, s->hidden, s->delta);
}

static void qwen3_5_forward(Model *model, Stream *st, Batch *batch)
{
    Qwen35 *m = (Qwen35 *)model;
    Decoder *d = &m->decoder;

    decoder_begin(d, st, batch);
    for (int l = 0; l < d->config.n_layers; l++) {
        Qwen35Layer *layer = &m->layers[l];
        if (layer->type == LAYER_FULL_ATTENTION) decoder_attention(d, st, &layer->attention, layer->place, batch);
        else gdn_forward(m, st, layer, batch);
        decoder_mlp(d, st, &layer->mlp);
        decoder_tap(d, st, batch, l);
    }
    decoder_end(d, st, batch);
}

static void qwen3_5_commit(Model *model, Stream *st, const Batch *batch, const Commit *commits, int n)
{
    Qwen35 *m = (Qwen35 *)model;
    Decoder *d = &m->decoder;
    const int32_t channels = (int32_t)gdn_channels(&d->config);

    decoder_commit_kv(d, st, batch, commits, n);
    for (int l = 0; l < d->config.n_layers; l++) {
        const Qwen35Layer *layer = &m->layers[l];
        if (layer->type != LAYER_LINEAR_ATTENTION) continue;
        const GatedDelta delta = gated_delta_of(m, layer);
        d->model.ops->gated_delta_commit(st, &delta, gdn_state(m, layer), conv_state(m, layer), channels, batch,
                                         m->logs[layer->place], commits, n);
    }
}

const ModelKind qwen3_5_kind = {
    .family = FAMILY_QWEN3_5,
    .name = "qwen3_5",
    .bytes = sizeof(Qwen35),
    .declare = qwen3_5_declare,
    .place = qwen3_5_place,
    .groups = qwen3_5_groups,
    .bind = qwen3_5_bind,
    .forward = qwen3_5_forward,
    .commit = qwen3_5_commit,
};
