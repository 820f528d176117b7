/* The families we serve, and what opening any of them takes.
 *
 * A new family is a file with a ModelKind and a row in `kinds`. model_needs() and model_open()
 * go the same way as far as the headers lead (prepare), so the plan cannot promise what the loader does not keep. */
#include "models/layers.h"

#include "backend/device.h"

#include "base/memory.h"

#include <stdio.h>

static const ModelKind *const kinds[] = { &llama_kind, &qwen3_kind, &qwen3_5_kind };

static Status find_kind(const ModelKind **out, const ModelConfig *config, Error *err)
{
    for (int i = 0; i < COUNT(kinds); i++) {
        if (kinds[i]->family != config->family) continue;
        *out = kinds[i];
        return OK;
    }
    return error_set(err, ERR_UNSUPPORTED, "model_type %s is not one of llama, qwen3, qwen3_5", config->model_type);
}

/* The arithmetic: what --dtype asks for, else the checkpoint's own, F16 as BF16; numbers that are rounded to fewer bits are not worth float32. */
static Status find_act(DType *out, const ModelConfig *config, const ModelOptions *options, Error *err)
{
    DType asked = options->dtype;
    if (asked == DT_NONE) asked = config->dtype == DT_F32 && !options->quantization ? DT_F32 : DT_BF16;
    if (asked != DT_BF16 && asked != DT_F32)
        return error_set(err, ERR_UNSUPPORTED, "a model cannot compute in %s; bfloat16 and float32 are possible",
                         dtype_name(asked));
    *out = asked;
    return OK;
}

/* The cache of keys and values: what --kv-cache-dtype asks for, else the arithmetic's type. */
static Status find_kv(DType *out, DType act, Backend *backend, const ModelOptions *options, Error *err)
{
    *out = options->kv_dtype == DT_NONE ? act : options->kv_dtype;
    if (*out != act && backend_is_device(backend))
        return error_set_param(err, ERR_UNSUPPORTED, "--kv-cache-dtype",
                               "--kv-cache-dtype: caches on a GPU are of the type that --dtype computes in, here %s, and %s was asked for; "
                               "--device cpu takes it", dtype_name(act), dtype_name(*out));
    return OK;
}

static Status make_rope(Decoder *d, Error *err)
{
    const ModelConfig *c = &d->config;
    const int dim = rope_dim(c);
    float *inv_freq = mem_alloc_array((size_t)dim / 2, sizeof *inv_freq);
    uint8_t *axis = mem_alloc_array((size_t)dim / 2, sizeof *axis);
    d->rope = (RopeParams){ .dim = dim, .inv_freq = inv_freq, .axis = axis };
    if (!inv_freq || !axis) return error_set(err, ERR_NOMEM, "no memory for the rotary frequencies");
    rope_frequencies(c, inv_freq, axis, &d->rope.scale);
    return OK;
}

/* ---- closing ---- */

static void decoder_close(Model *model)
{
    Decoder *d = (Decoder *)model;
    weights_free(&d->weights);
    if (d->memory) backend_free(model->backend, d->memory);
    mem_free((void *)d->rope.inv_freq);
    mem_free((void *)d->rope.axis);
    mem_free(d);
}

void model_close(Model *m)
{
    if (m) m->close(m);
}

/* ---- opening ---- */

/* A device sums a bf16 cache in tiles of its own: other bits, so another fingerprint. */
static int32_t attention_tile(const Backend *backend, DType kv)
{
    return kv == DT_BF16 && backend_is_device(backend) ? DEVICE_ATTENTION_TILE : 1;
}

static Status decoder_new(Decoder **out, const ModelKind *kind, const ModelConfig *config, DType act, DType kv, Backend *backend,
                          const ModelOptions *options, Error *err)
{
    Decoder *d = *out = mem_alloc(kind->bytes);
    if (!d) return error_set(err, ERR_NOMEM, "no memory for a model of %d layers", config->n_layers);
    d->kind = kind;
    d->config = *config;
    d->limits = options->limits;
    d->model = (Model){
        .ops = backend ? backend_ops(backend) : NULL,
        .backend = backend,
        .groups = kind->groups,
        .bind = kind->bind,
        .forward = kind->forward,
        .commit = kind->commit,
        .close = decoder_close,
        .info = { .config = &d->config,
                  .name = kind->name,
                  .vocab_size = config->vocab_size,
                  .hidden_size = config->hidden_size,
                  .n_layers = config->n_layers,
                  .max_context = config->max_position,
                  .act = act },
    };
    d->model.info.numerics = (Numerics){
        .attn_tile = attention_tile(backend, kv),
        .attn_split = ATTN_SPLIT,
        .max_depth = MAX_DEPTH,
        .residual = DT_F32,
        .kv = kv,
        .state = DT_F32,
        .sampler_version = options->sampler_version,
    };
    return make_rope(d, err);
}

/* Everything that config.json tells. */
static Status read_config(Decoder **out, const char *dir, Backend *backend, const ModelOptions *options, Error *err)
{
    ModelConfig config;
    const ModelKind *kind = NULL;
    DType act = DT_NONE, kv = DT_NONE;
    Status s = config_read(&config, dir, err);
    if (!s) s = find_kind(&kind, &config, err);
    if (!s) s = find_act(&act, &config, options, err);
    if (!s) s = find_kv(&kv, act, backend, options, err);
    if (!s) s = decoder_new(out, kind, &config, act, kv, backend, options, err);
    return s;
}

Status model_info(const char *dir, const ModelOptions *options, ModelConfig *config, ModelInfo *info, Error *err)
{
    Decoder *d = NULL;
    Status s = read_config(&d, dir, NULL, options, err);
    if (!s) {
        *config = d->config;
        *info = d->model.info;
        info->config = config;
    }
    if (d) model_close(&d->model);
    return s;
}

/* The list of tensors, checked against the headers of the checkpoint if there is one. */
static Status list_weights(Decoder *d, const Checkpoint *file, QuantFormat quantize, Error *err)
{
    snprintf(d->config.weight_prefix, sizeof d->config.weight_prefix, "model.");
    if (file) {
        Status s = weights_find_prefix(&d->config, file, err);
        if (s) return s;
    }
    weights_begin(&d->weights, d->model.info.act == DT_F32 ? MATH_F32 : MATH_BF16, d->model.backend);
    d->weights.quantize = quantize;
    d->weights.declared = d->config.declared;
    d->kind->declare(d);
    return weights_check(&d->weights, &d->config, file, err);
}

static Status check_quantization(QuantFormat format, const Backend *backend, Error *err)
{
    if (!format || !backend_is_device(backend)) return OK;
    return error_set_param(err, ERR_UNSUPPORTED, "--quantization",
                           "--quantization: quantised weights are computed with on CPUs only; add --device cpu");
}

/* What model_needs and model_open share. *file stays NULL for dummy weights. After an error the caller closes what is
 * in *out and *file. */
static Status prepare(Decoder **out, Checkpoint **file, const char *dir, Backend *backend, const ModelOptions *options,
                      Error *err)
{
    *out = NULL;
    *file = NULL;
    Status s = check_quantization(options->quantization, backend, err);
    if (!s) s = read_config(out, dir, backend, options, err);
    if (!s && options->load_format != LOAD_DUMMY) s = checkpoint_open(file, dir, err);
    if (!s && *file && (*out)->config.is_gptq_v2) checkpoint_set_gptq_v2(*file);
    if (s) return s; /* names the file */
    s = list_weights(*out, *file, options->quantization, err);
    if (s) error_prefix(err, "%s", dir);
    return s;
}

static Status take_scratch(Decoder *d, Error *err)
{
    size_t bytes = d->kind->place(d, NULL);
    d->memory = backend_alloc_device(d->model.backend, bytes);
    if (!d->memory) return error_set(err, ERR_NOMEM, "no memory for %zu bytes of scratch", bytes);
    d->kind->place(d, d->memory);
    return OK;
}

/* Weights that a pass of one row reads: all but the embedding table, of which it reads a row. */
static size_t bytes_per_pass(const Decoder *d)
{
    size_t bytes = weights_bytes(&d->weights);
    const Weight *table = &d->embed_tokens;
    if (!d->config.tie_word_embeddings) bytes -= weight_bytes(table->n_out, table->n_in, &table->contract);
    return bytes;
}

static int64_t numbers_per_pass(const Decoder *d)
{
    int64_t n = d->config.tie_word_embeddings ? 0 : -d->embed_tokens.n_out * d->embed_tokens.n_in;
    for (int i = 0; i < d->weights.n; i++)
        if (d->weights.items[i].matrix) n += d->weights.items[i].shape[0] * d->weights.items[i].shape[1];
    return n;
}

static Status load(Decoder *d, const Checkpoint *file, const ModelOptions *options, Error *err)
{
    Status s = weights_load(&d->weights, file, d->model.backend, options, err);
    if (!s) s = take_scratch(d, err);
    if (s) return s;
    if (d->config.tie_word_embeddings) d->lm_head = d->embed_tokens;
    ModelInfo *info = &d->model.info;
    info->weight_bytes = weights_bytes(&d->weights);
    info->read_bytes_per_pass = bytes_per_pass(d);
    info->numbers_per_pass = numbers_per_pass(d);
    info->embed = &d->embed_tokens;
    info->head = &d->lm_head;
    info->numerics.fingerprint = decoder_fingerprint(d);
    return OK;
}

Status model_open(Model **out, const char *dir, Backend *backend, const ModelOptions *options, Error *err)
{
    Decoder *d;
    Checkpoint *file;
    Status s = prepare(&d, &file, dir, backend, options, err);
    if (!s) {
        s = load(d, file, options, err);
        if (s) error_prefix(err, "%s", dir);
    }
    checkpoint_close(file);
    *out = s ? NULL : &d->model;
    if (s && d) decoder_close(&d->model);
    return s;
}

Status model_needs(const char *dir, const ModelOptions *options, ModelNeeds *out, ModelConfig *config, Error *err)
{
    Decoder *d;
    Checkpoint *file;
    Status s = prepare(&d, &file, dir, NULL, options, err);
    if (!s) {
        *out = (ModelNeeds){ .weight_bytes = weights_bytes(&d->weights), .scratch_bytes = d->kind->place(d, NULL),
                              .page_bytes = weights_held(&d->weights) - weights_bytes(&d->weights) };
        out->n_groups = d->kind->groups(&d->model, out->groups);
        if (config) *config = d->config;
    }
    checkpoint_close(file);
    if (d) decoder_close(&d->model);
    return s;
}
