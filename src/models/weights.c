/* Declaring and checking the tensors of a model; loading them is load.c.
 *
 * The check is exact in both directions: a tensor that is missing, has another shape, or that nobody asked for is an
 * error with its name, because a checkpoint that is almost the right one gives almost the right answers. Only what is
 * known to be of no use to us may be left over: see is_unused(). */
#include "models/weights.h"

#include "backend/device.h"
#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>

void weights_begin(WeightList *list, MathMode mode, const Backend *backend)
{
    *list = (WeightList){ .mode = mode, .decodes = backend_is_device(backend) };
}

void weights_scope(WeightList *list, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(list->scope, sizeof list->scope, format, args);
    va_end(args);
    CHECK(n >= 0 && n < (int)sizeof list->scope);
}

/* A new item called scope + name; NULL when memory for the list is out. */
static WeightItem *weights_add(WeightList *list, const char *name)
{
    if (list->failed) return NULL;
    if (list->n == list->capacity) {
        int capacity = list->capacity ? 2 * list->capacity : 64;
        WeightItem *items = mem_realloc(list->items, (size_t)capacity * sizeof *items);
        if (!items) {
            list->failed = true;
            return NULL;
        }
        list->items = items;
        list->capacity = capacity;
    }
    WeightItem *item = &list->items[list->n++];
    *item = (WeightItem){ 0 };
    int n = snprintf(item->name, sizeof item->name, "%s%s", list->scope, name);
    CHECK(n >= 0 && n < (int)sizeof item->name);
    return item;
}

static void add_matrix(WeightList *list, Weight *out, int64_t n_out, int64_t n_in, bool row_parallel, const char *name)
{
    WeightItem *item = weights_add(list, name);
    if (!item) return;
    item->matrix = out;
    item->contract = contract_for(list->mode, n_in, row_parallel);
    item->is_row_parallel = row_parallel;
    item->n_dims = 2;
    item->shape[0] = n_out;
    item->shape[1] = n_in;
}

void weights_matrix(WeightList *list, Weight *out, int64_t n_out, int64_t n_in, const char *name)
{
    add_matrix(list, out, n_out, n_in, false, name);
}

void weights_row_parallel(WeightList *list, Weight *out, int64_t n_out, int64_t n_in, const char *name)
{
    add_matrix(list, out, n_out, n_in, true, name);
}

void weights_vector(WeightList *list, float **out, VectorUse use, int64_t n, const char *name)
{
    WeightItem *item = weights_add(list, name);
    if (!item) return;
    item->vector = out;
    item->use = use;
    item->n_dims = 1;
    item->shape[0] = n;
}

void weights_array(WeightList *list, float **out, int64_t a, int64_t b, int64_t c, const char *name)
{
    WeightItem *item = weights_add(list, name);
    if (!item) return;
    item->vector = out;
    item->use = VECTOR_PLAIN;
    item->n_dims = 3;
    item->shape[0] = a;
    item->shape[1] = b;
    item->shape[2] = c;
}

void weights_conv(WeightList *list, float **out, int64_t channels, int64_t taps, const char *name)
{
    weights_array(list, out, channels, 1, taps, name);
}

/* ---- checking ---- */

Status weights_find_prefix(ModelConfig *config, const Checkpoint *file, Error *err)
{
    static const char *const prefixes[] = { "model.", "model.language_model." };
    for (int i = 0; i < COUNT(prefixes); i++) {
        char name[WEIGHT_NAME_BYTES];
        snprintf(name, sizeof name, "%sembed_tokens.weight", prefixes[i]);
        if (!checkpoint_find(file, name)) continue;
        snprintf(config->weight_prefix, sizeof config->weight_prefix, "%s", prefixes[i]);
        return OK;
    }
    return error_set(err, ERR_NOT_FOUND, "tensor model.embed_tokens.weight is missing");
}

static bool starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static bool ends_with(const char *text, const char *suffix)
{
    size_t n = strlen(text), n_suffix = strlen(suffix);
    return n >= n_suffix && strcmp(text + n - n_suffix, suffix) == 0;
}

/* Tensors that checkpoints carry and this model has no use for. */
static bool is_unused(const char *name, const ModelConfig *config)
{
    if (ends_with(name, ".rotary_emb.inv_freq")) return true; /* old exports; the config says the same */
    if (strcmp(name, "rope_freqs.weight") == 0) return true; /* GGUF: the config was read with it */
    if (ends_with(name, ".self_attn.k_scale") || ends_with(name, ".self_attn.v_scale")) return true; /* our caches have their own */
    if (config->tie_word_embeddings && strcmp(name, "lm_head.weight") == 0) return true; /* a copy of the embedding */
    if (config->family != FAMILY_QWEN3_5) return false;
    return starts_with(name, "mtp.") || starts_with(name, "model.visual.");
}

/* "[320, 64]" */
static void shape_text(char *out, size_t size, const int64_t *shape, int n_dims)
{
    size_t at = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < n_dims && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (at < size) snprintf(out + at, size - at, "]");
}

/* Kernels take blocks as they are unless inputs are stored in another order than ours, or in groups that do not lie together.
 * Whoever asks for float32 operands gets them: there the numbers are decoded, and for a device. */
static void keep_blocks(const WeightList *list, WeightItem *item, const CheckpointTensor *t)
{
    if (!item->matrix || list->mode != MATH_BF16 || list->decodes || t->columns.a || t->groups.bytes || !weight_takes_blocks(&t->stored)) return;
    item->contract = weight_blocks_contract(&t->stored, item->is_row_parallel);
}

/* ---- --quantization ---- */

/* Small or sensitive ones stay as they are: they save little, and decide about much. */
static bool is_layer_linear(const WeightItem *item)
{
    static const char *const kept[] = { "in_proj_a.weight", "in_proj_b.weight", "in_proj_ba.weight", "mlp.gate.weight",
                                        "shared_expert_gate.weight" };
    if (!item->matrix || !strstr(item->name, "layers.")) return false;
    for (int i = 0; i < COUNT(kept); i++)
        if (ends_with(item->name, kept[i])) return false;
    return true;
}

QuantMatrix weights_quantized(QuantFormat format, int64_t n_out, int64_t n_in)
{
    QuantMatrix m = { .format = format, .n_out = n_out, .n_in = n_in, .group_out = 1, .global = 1, .zero_offset = format == QUANT_GPTQ };
    m.scale_type = format == QUANT_FP8 ? DT_F32 : format == QUANT_NVFP4 ? DT_F8_E4M3 : format == QUANT_MXFP4 ? DT_U8 : DT_BF16;
    m.group_in = format == QUANT_FP8 ? n_in : format == QUANT_NVFP4 ? 16 : format == QUANT_MXFP4 ? 32 : 128;
    return m;
}

/* t: what the checkpoint has of it; NULL: dummy weights. */
static Status quantize_item(const WeightList *list, WeightItem *item, const CheckpointTensor *t, Error *err)
{
    if (!list->quantize || !is_layer_linear(item)) return OK;
    if (t && !quant_is_plain(t->stored.format))
        return error_set_param(err, ERR_UNSUPPORTED, "--quantization",
                               "--quantization: this checkpoint is quantised already, tensor %s is %s; it needs no flag", item->name, t->type);
    const QuantMatrix m = weights_quantized(list->quantize, item->shape[0], item->shape[1]);
    if (!weight_takes_blocks(&m)) return OK;
    item->quantize = list->quantize;
    if (list->mode == MATH_BF16) item->contract = weight_blocks_contract(&m, item->is_row_parallel);
    return OK;
}

/* Dummy weights of a quantised model, where kernels know its format. */
static void declare_item(const WeightList *list, WeightItem *item)
{
    if (!list->declared || list->quantize || list->decodes || list->mode != MATH_BF16 || !is_layer_linear(item)) return;
    const QuantMatrix m = weights_quantized(list->declared, item->shape[0], item->shape[1]);
    if (weight_takes_blocks(&m)) item->contract = weight_blocks_contract(&m, item->is_row_parallel);
}

static Status check_item(const WeightList *list, WeightItem *item, const Checkpoint *file, Error *err)
{
    const CheckpointTensor *t = checkpoint_find(file, item->name);
    if (!t) return error_set(err, ERR_NOT_FOUND, "tensor %s is missing", item->name);
    if (t->stored.format == QUANT_NONE)
        return error_set(err, ERR_UNSUPPORTED, "tensor %s has type %s, which is not supported", item->name, t->type);
    if (t->n_dims != item->n_dims || memcmp(t->shape, item->shape, sizeof(int64_t) * (size_t)item->n_dims) != 0) {
        char has[160], wants[160];
        shape_text(has, sizeof has, t->shape, t->n_dims);
        shape_text(wants, sizeof wants, item->shape, item->n_dims);
        return error_set(err, ERR_INPUT, "tensor %s has shape %s, but config.json means %s", item->name, has, wants);
    }
    keep_blocks(list, item, t);
    return quantize_item(list, item, t, err);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Every tensor of the file whose name begins with `prefix` was declared, or is one that may be left over. */
static Status check_nothing_else(const WeightList *list, const char *prefix, const ModelConfig *config,
                                 const Checkpoint *file, Error *err)
{
    const char **names = mem_alloc_array((size_t)list->n, sizeof *names);
    if (!names) return error_set(err, ERR_NOMEM, "no memory to check the %d tensors of a model", list->n);
    for (int i = 0; i < list->n; i++) names[i] = list->items[i].name;
    qsort(names, (size_t)list->n, sizeof *names, compare_names);

    Status s = OK;
    for (int i = 0; i < checkpoint_count(file) && !s; i++) {
        const char *name = checkpoint_at(file, i)->name;
        if (!starts_with(name, prefix) || (!*prefix && is_unused(name, config))) continue;
        if (!bsearch(&name, names, (size_t)list->n, sizeof *names, compare_names))
            s = error_set(err, ERR_UNSUPPORTED, "tensor %.120s is not part of a %s model of this config.json", name,
                          config->model_type);
    }
    mem_free(names);
    return s;
}

Status weights_check_part(WeightList *list, const char *prefix, const ModelConfig *config,
                          const Checkpoint *file, Error *err)
{
    if (list->failed) return error_set(err, ERR_NOMEM, "no memory for the list of a model's tensors");
    for (int i = 0; i < list->n; i++) {
        WeightItem *item = &list->items[i];
        Status s = file ? check_item(list, item, file, err) : quantize_item(list, item, NULL, err);
        if (s) return s;
        if (!file) declare_item(list, item);
    }
    if (!file) return OK;
    return check_nothing_else(list, prefix, config, file, err);
}

Status weights_check(WeightList *list, const ModelConfig *config, const Checkpoint *file, Error *err)
{
    return weights_check_part(list, "", config, file, err);
}
