/* The MTP module: a Decoder of one gated attention layer, whose stream begins with
 *
 *     fc ( norm(embedding of token t + 1) ++ norm(hidden state of t) )        embedding first
 *
 * and ends in a norm of its own and the target's head. The shapes are the target's, so the parts of a pass are those of
 * layers.h. Always: embed_tokens, lm_head and the rotary table belong to the target, everything else to the module. */
#include "models/mtp.h"

#include "base/memory.h"
#include "models/layers.h"

#include <string.h>

struct Mtp {
    Decoder          decoder;
    AttentionWeights attention;
    MlpWeights       mlp;
    Weight           fc;                            /* [hidden, 2 * hidden] */
    float           *embedding_norm, *hidden_norm;
    Tensor           joined;                        /* scratch [max_rows, 2 * hidden] act: what fc reads */
};

Status mtp_check(const ModelInfo *target, Error *err)
{
    const ModelConfig *c = target->config;
    if (c->family != FAMILY_QWEN3_5)
        return error_set(err, ERR_UNSUPPORTED, "MTP drafts need a qwen3_5 model; model_type %s has no MTP module",
                         c->model_type);
    if (c->mtp_layers == 0)
        return error_set(err, ERR_UNSUPPORTED, "this %s model has no MTP module: its config.json has no "
                         "mtp_num_hidden_layers", c->model_type);
    if (c->mtp_layers != 1)
        return error_set(err, ERR_UNSUPPORTED, "MTP modules of one layer can be run, this one has %d", c->mtp_layers);
    return OK;
}

/* ---- opening ---- */

static void declare(Mtp *m)
{
    Decoder *d = &m->decoder;
    WeightList *list = &d->weights;
    const int64_t hidden = d->config.hidden_size;
    weights_begin(list, d->model.info.act == DT_F32 ? MATH_F32 : MATH_BF16, d->model.backend);
    weights_scope(list, "mtp.");
    weights_matrix(list, &m->fc, hidden, 2 * hidden, "fc.weight");
    weights_vector(list, &m->embedding_norm, decoder_norm_use(d), hidden, "pre_fc_norm_embedding.weight");
    weights_vector(list, &m->hidden_norm, decoder_norm_use(d), hidden, "pre_fc_norm_hidden.weight");
    weights_vector(list, &d->final_norm, decoder_norm_use(d), hidden, "norm.weight");
    weights_scope(list, "mtp.layers.0.");
    decoder_declare_attention(d, &m->attention);
    decoder_declare_mlp(d, &m->mlp);
}

static size_t place(Mtp *m, char *memory)
{
    Decoder *d = &m->decoder;
    Carver at = { memory };
    m->joined = carve(&at, d->model.info.act, d->limits.max_rows, 2 * (int64_t)d->config.hidden_size);
    return at.used + decoder_place_pass(d, memory ? memory + at.used : NULL);
}

/* A module without weights, scratch or a target. */
static Status mtp_new(Mtp **out, const ModelInfo *target, int32_t max_rows, int32_t max_outputs, Error *err)
{
    *out = NULL;
    Status s = mtp_check(target, err);
    if (s) return s;
    Mtp *m = mem_alloc(sizeof *m);
    if (!m) return error_set(err, ERR_NOMEM, "no memory for an MTP module");
    Decoder *d = &m->decoder;
    d->config = *target->config;
    d->config.n_layers = d->n_kv_layers = 1;
    d->config.layer_type[0] = LAYER_FULL_ATTENTION;
    d->config.gdn_key_heads = d->config.gdn_value_heads = 0; /* no scratch for layers that are not there */
    d->limits = (ModelLimits){ .max_rows = max_rows, .max_outputs = max_outputs, .max_seqs = max_rows };
    d->model.info = (ModelInfo){ .config = &d->config, .name = "mtp", .vocab_size = d->config.vocab_size,
                                 .hidden_size = d->config.hidden_size, .n_layers = 1, .act = target->act,
                                 .numerics = { .kv = target->act } };
    declare(m);
    *out = m;
    return OK;
}

Status mtp_needs(const ModelInfo *target, int32_t max_rows, int32_t max_outputs, MtpNeeds *out, Error *err)
{
    Mtp *m;
    Status s = mtp_new(&m, target, max_rows, max_outputs, err);
    if (!s) s = weights_check_part(&m->decoder.weights, "mtp.", &m->decoder.config, NULL, err);
    if (!s) *out = (MtpNeeds){ weights_bytes(&m->decoder.weights), place(m, NULL), mtp_group(m),
                               weights_held(&m->decoder.weights) - weights_bytes(&m->decoder.weights) };
    mtp_close(m);
    return s;
}

/* What the module borrows. The target is one of our decoders: mtp_check and its name say so. */
static void borrow(Mtp *m, const Model *target)
{
    Decoder *d = &m->decoder;
    const Decoder *t = (const Decoder *)target;
    d->model.ops = target->ops;
    d->model.backend = target->backend;
    d->model.info.numerics = target->info.numerics;
    d->model.info.numerics.kv = target->info.act; /* whatever the target's cache is */
    d->weights.decodes = t->weights.decodes;
    d->embed_tokens = t->embed_tokens;
    d->lm_head = t->lm_head;
    d->rope = t->rope;
}

static Status take_scratch(Mtp *m, Error *err)
{
    Decoder *d = &m->decoder;
    size_t bytes = place(m, NULL);
    d->memory = backend_alloc_device(d->model.backend, bytes);
    if (!d->memory) return error_set(err, ERR_NOMEM, "no memory for %zu bytes of MTP scratch", bytes);
    place(m, d->memory);
    return OK;
}

static Status load_weights(Mtp *m, const MtpLoad *load, Error *err)
{
    Decoder *d = &m->decoder;
    ModelOptions options = { .load_format = load->load_format, .dummy_seed = load->dummy_seed };
    Checkpoint *file = NULL;
    if (load->load_format != LOAD_DUMMY) {
        Status s = checkpoint_open(&file, load->dir, err);
        if (s) return s; /* names the file */
    }
    Status s = weights_check_part(&d->weights, "mtp.", &d->config, file, err);
    if (!s) s = weights_load(&d->weights, file, d->model.backend, &options, err);
    if (s) error_prefix(err, "%s", load->dir);
    checkpoint_close(file);
    return s;
}

Status mtp_open(Mtp **out, const Model *target, const MtpLoad *load, Error *err)
{
    Mtp *m;
    *out = NULL;
    if (strcmp(target->info.name, qwen3_5_kind.name) != 0)
        return error_set(err, ERR_UNSUPPORTED, "MTP drafts need a qwen3_5 model; a %s model has no MTP module",
                         target->info.name);
    Status s = mtp_new(&m, &target->info, load->max_rows, load->max_outputs, err);
    if (s) return s;
    borrow(m, target);
    s = load_weights(m, load, err);
    if (!s) s = take_scratch(m, err);
    if (s) {
        mtp_close(m);
        return s;
    }
    *out = m;
    return OK;
}

void mtp_close(Mtp *m)
{
    if (!m) return;
    weights_free(&m->decoder.weights);
    if (m->decoder.memory) backend_free(m->decoder.model.backend, m->decoder.memory);
    mem_free(m);
}

/* ---- cache ---- */

uint64_t mtp_fingerprint(const Mtp *m)
{
    return m->decoder.weights.hash;
}

CacheGroup mtp_group(const Mtp *m)
{
    CacheGroup group = decoder_kv_group(&m->decoder);
    group.name = "mtp_kv";
    group.spare = 0;
    group.in_prefix = false; /* rows may lag behind the target's: a drafter that was idle has not made them */
    return group;
}

void mtp_bind(Mtp *m, CacheMemory memory)
{
    m->decoder.kv = memory;
}

/* ---- a pass ---- */

/* The residual stream of all rows, from embeddings in it and `hidden`. */
static void join(Mtp *m, Stream *st, Tensor hidden)
{
    Decoder *d = &m->decoder;
    const Ops *op = d->model.ops;
    const int64_t width = d->config.hidden_size;
    const float eps = d->config.rms_norm_eps;
    const Tensor joined = tensor_rows(m->joined, hidden.shape[0]);
    op->rms_norm(st, tensor_cols(joined, 0, width), d->scratch.hidden, m->embedding_norm, eps);
    op->rms_norm(st, tensor_cols(joined, width, width), hidden, m->hidden_norm, eps);
    op->linear(st, joined, &(LinearJob){ d->scratch.hidden, &m->fc }, 1);
}

static Tensor kv_heads(const ModelConfig *c, Tensor x)
{
    return tensor_heads(x.data, x.dtype, x.shape[0], c->n_kv_heads, c->head_dim, x.stride[0], c->head_dim);
}

/* What decoder_attention does to the cache, and no more. */
static void write_keys(Mtp *m, Stream *st, const Batch *batch)
{
    Decoder *d = &m->decoder;
    const Ops *op = d->model.ops;
    const ModelConfig *c = &d->config;
    const AttentionWeights *w = &m->attention;
    const Scratch *s = &d->scratch;
    const Tensor k = kv_heads(c, s->k), v = kv_heads(c, s->v);

    op->rms_norm(st, s->normed, s->hidden, w->norm, c->rms_norm_eps);
    op->linear(st, s->normed, (LinearJob[]){ { s->k, &w->k_proj }, { s->v, &w->v_proj } }, 2);
    if (w->k_bias) op->add(st, s->k, tensor_2d_strided(w->k_bias, DT_F32, s->k.shape[0], s->k.shape[1], 0));
    if (w->v_bias) op->add(st, s->v, tensor_2d_strided(w->v_bias, DT_F32, s->v.shape[0], s->v.shape[1], 0));
    op->rms_norm(st, k, k, w->k_norm, c->rms_norm_eps);
    op->rope(st, k, batch->rope, batch->n_rows, &d->rope);
    op->kv_store(st, decoder_kv_view(d, 0), k, v, batch->store[0]);
}

/* Norm and head of the output rows. */
static void end(Mtp *m, Stream *st, Batch *batch, Tensor out)
{
    Decoder *d = &m->decoder;
    const Ops *op = d->model.ops;
    const Scratch *s = &d->scratch;
    op->gather_rows(st, s->picked, s->hidden, batch->output, batch->n_outputs);
    op->rms_norm(st, out, s->picked, d->final_norm, d->config.rms_norm_eps);
    op->round_rows(st, s->picked_act, out);
    op->linear(st, s->picked_act, &(LinearJob){ batch->logits, &d->lm_head }, 1);
}

void mtp_forward(Mtp *m, Stream *st, Batch *batch, Tensor hidden, Tensor out)
{
    Decoder *d = &m->decoder;
    decoder_begin(d, st, batch);
    join(m, st, hidden);
    if (batch->n_outputs == 0) {
        write_keys(m, st, batch);
        return;
    }
    decoder_attention(d, st, &m->attention, 0, batch);
    decoder_mlp(d, st, &m->mlp);
    end(m, st, batch, out);
}
