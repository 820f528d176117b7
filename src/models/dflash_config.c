/* What a drafter's config.json and the shapes of its tensors say, and that they say the same.
 *
 * Sizes come from the shapes, because files under one name have been replaced by others (docs/spec/speculation.md,
 * section 7, items 2-4) and a config is easily copied; everything that has no shape comes from config.json. Where both
 * speak they must agree. Keys stand in dflash_config or, in older files, at the top; the inner one wins.
 *
 * What we do not compute is refused by name: a drafter that is run almost right drafts almost nothing, silently. */
#include "models/dflash_impl.h"

#include "base/file.h"
#include "models/config_impl.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_CONFIG_BYTES = 4 << 20,
    MAX_WIDTH = 1 << 20,
    MAX_VOCABULARY = 1 << 24,
    MAX_POSITION = 1 << 28,
    MAX_HEADS = 1024
};
enum { DEFAULT_BLOCK = 16, DEFAULT_CONV_KERNEL = 2, DEFAULT_CONV_GROUP = 16, DEFAULT_RANK = 256, DEFAULT_TOP_K = 16 };

typedef struct Reader {
    ConfigReader       r;
    const json_t      *nested; /* dflash_config; may be NULL */
    DflashFile        *file;
    const ModelInfo   *target;
    const DflashSetup *setup;
    bool               is_second; /* DFlash 2 */
} Reader;

/* The object that has the key. */
static const json_t *place(const Reader *d, const char *key)
{
    return json_has(d->nested, key) ? d->nested : d->r.root;
}

static int32_t read_int(Reader *d, const char *key, int64_t min, int64_t max, int64_t otherwise)
{
    return (int32_t)config_int(&d->r, place(d, key), key, min, max, otherwise);
}

static float read_float(Reader *d, const char *key, double min, double max, double otherwise)
{
    return (float)config_double(&d->r, place(d, key), key, min, max, otherwise);
}

/* ---- shapes ---- */

/* The shape of a tensor, all 0 after a failure. */
static void shape_of(Reader *d, const char *name, int n_dims, int64_t shape[3])
{
    char full[WEIGHT_NAME_BYTES];
    snprintf(full, sizeof full, "%s%s", d->file->prefix, name);
    memset(shape, 0, 3 * sizeof *shape);
    const CheckpointTensor *e = checkpoint_find(d->file->file, full);
    if (!e) {
        if (d->r.status == OK) d->r.status = error_set(d->r.err, ERR_NOT_FOUND, "tensor %s is missing", full);
        return;
    }
    if (e->n_dims != n_dims || e->shape[0] < 1 || e->shape[n_dims - 1] < 1 || e->shape[0] > MAX_VOCABULARY ||
        e->shape[n_dims - 1] > MAX_WIDTH * MAX_TAPS) {
        if (d->r.status == OK)
            d->r.status = error_set(d->r.err, ERR_INPUT,
                                    "tensor %s has %d dimensions or a size that no drafter has; %d are "
                                    "expected",
                                    full, e->n_dims, n_dims);
        return;
    }
    memcpy(shape, e->shape, (size_t)n_dims * sizeof *shape);
}

static int32_t count_layers(const Reader *d)
{
    int32_t n = 0;
    for (; n < DFLASH_MAX_LAYERS; n++) {
        char name[WEIGHT_NAME_BYTES];
        snprintf(name, sizeof name, "%slayers.%d.input_layernorm.weight", d->file->prefix, n);
        if (!checkpoint_find(d->file->file, name)) break;
    }
    return n;
}

/* rows / per, which must be a whole number of heads or taps. */
static int32_t ratio(Reader *d, const char *name, int64_t size, int64_t per, int64_t max)
{
    if (d->r.status != OK || per < 1) return 1;
    if (size % per == 0 && size / per >= 1 && size / per <= max) return (int32_t)(size / per);
    d->r.status = error_set(d->r.err, ERR_INPUT, "tensor %s%s has a side of %lld, which is not 1 to %lld times %lld",
                            d->file->prefix, name, (long long)size, (long long)max, (long long)per);
    return 1;
}

/* A number that shapes give: config.json may leave it out, but not contradict. */
static int32_t agree(Reader *d, const char *key, int64_t from_shapes, const char *tensor)
{
    int64_t said = config_int(&d->r, place(d, key), key, 0, INT32_MAX, from_shapes);
    if (d->r.status == OK && said != from_shapes)
        config_fail(&d->r, ERR_INPUT, "%s is %lld, but tensor %s%s means %lld", key, (long long)said, d->file->prefix,
                    tensor, (long long)from_shapes);
    return (int32_t)from_shapes;
}

static void sizes_of_tensors(Reader *d, DflashConfig *c)
{
    int64_t fc[3], q[3], k[3], gate[3], head[3];
    ModelConfig *base = &c->base;
    shape_of(d, "fc.weight", 2, fc);
    shape_of(d, "layers.0.self_attn.q_norm.weight", 1, head);
    shape_of(d, "layers.0.self_attn.q_proj.weight", 2, q);
    shape_of(d, "layers.0.self_attn.k_proj.weight", 2, k);
    shape_of(d, "layers.0.mlp.gate_proj.weight", 2, gate);
    base->hidden_size = agree(d, "hidden_size", fc[0], "fc.weight");
    c->n_taps = ratio(d, "fc.weight", fc[1], fc[0], MAX_TAPS);
    base->n_layers = agree(d, "num_hidden_layers", count_layers(d), "layers.*");
    base->head_dim = agree(d, "head_dim", head[0], "layers.0.self_attn.q_norm.weight");
    base->n_heads =
        agree(d, "num_attention_heads", ratio(d, "layers.0.self_attn.q_proj.weight", q[0], head[0], MAX_HEADS),
              "layers.0.self_attn.q_proj.weight");
    base->n_kv_heads =
        agree(d, "num_key_value_heads", ratio(d, "layers.0.self_attn.k_proj.weight", k[0], head[0], MAX_HEADS),
              "layers.0.self_attn.k_proj.weight");
    base->intermediate_size = agree(d, "intermediate_size", gate[0], "layers.0.mlp.gate_proj.weight");
}

static void sizes_of_config(Reader *d, DflashConfig *c)
{
    ConfigReader *r = &d->r;
    ModelConfig *base = &c->base;
    base->hidden_size = (int32_t)config_need_int(r, r->root, "hidden_size", 1, MAX_WIDTH);
    base->n_layers = (int32_t)config_need_int(r, r->root, "num_hidden_layers", 1, DFLASH_MAX_LAYERS);
    base->n_heads = (int32_t)config_need_int(r, r->root, "num_attention_heads", 1, MAX_HEADS);
    base->n_kv_heads = (int32_t)config_need_int(r, r->root, "num_key_value_heads", 1, MAX_HEADS);
    base->head_dim = (int32_t)config_int(r, r->root, "head_dim", 1, 512, 128);
    base->intermediate_size = (int32_t)config_need_int(r, r->root, "intermediate_size", 1, MAX_WIDTH);
    const json_t *taps = config_array(r, place(d, "target_layer_ids"), "target_layer_ids");
    c->n_taps = taps ? (int32_t)json_array_size(taps) : base->n_layers;
}

static void read_sizes(Reader *d, DflashConfig *c)
{
    ConfigReader *r = &d->r;
    ModelConfig *base = &c->base;
    if (d->file->file) sizes_of_tensors(d, c);
    else sizes_of_config(d, c);
    base->vocab_size = (int32_t)config_need_int(r, r->root, "vocab_size", 1, MAX_VOCABULARY);
    base->max_position = config_int(r, r->root, "max_position_embeddings", 1, MAX_POSITION, d->target->max_context);
    base->rms_norm_eps = (float)config_double(r, r->root, "rms_norm_eps", 1e-20, 0.1, 1e-6);
    base->attention_bias = config_bool(r, r->root, "attention_bias", false);
    if (r->status != OK) return;
    if (base->n_layers < 1) config_fail(r, ERR_INPUT, "the drafter has no layers");
    if (base->head_dim > 512)
        config_fail(r, ERR_UNSUPPORTED, "heads of %d are not supported, only up to 512", base->head_dim);
    if (base->n_heads % base->n_kv_heads)
        config_fail(r, ERR_INPUT, "%d attention heads are not a multiple of %d key and value heads", base->n_heads,
                    base->n_kv_heads);
}

/* ---- taps, mask, block ---- */

/* The publisher's rule for files that name none: from layer 1 to the third from the end, evenly. */
static int32_t default_tap(int32_t i, int32_t n, int32_t n_target)
{
    if (n == 1) return n_target / 2;
    return (int32_t)nearbyint(1 + (double)i * (n_target - 4) / (n - 1)); /* ties to even */
}

static void read_taps(Reader *d, DflashConfig *c)
{
    const char *key = "target_layer_ids";
    const json_t *list = config_array(&d->r, place(d, key), key);
    if (d->r.status != OK) return;
    if (c->n_taps > MAX_TAPS || (list && json_array_size(list) != (size_t)c->n_taps)) {
        config_fail(&d->r, ERR_INPUT, "target_layer_ids names %zu layers, but tensor fc.weight reads %d",
                    json_array_size(list), c->n_taps);
        return;
    }
    for (int32_t i = 0; i < c->n_taps; i++) {
        const json_t *item = list ? json_array_get(list, (size_t)i) : NULL;
        json_int_t tap = list ? json_integer_value(item) : default_tap(i, c->n_taps, d->target->n_layers);
        if ((list && !json_is_integer(item)) || tap < 0 || tap >= d->target->n_layers) {
            config_fail(&d->r, ERR_INPUT, "target_layer_ids[%d] must be one of the target's layers, 0 to %d", i,
                        d->target->n_layers - 1);
            return;
        }
        c->taps[i] = (int32_t)tap;
    }
}

static void read_block(Reader *d, DflashConfig *c)
{
    c->block_size = read_int(d, "block_size", 2, DFLASH_MAX_BLOCK, DEFAULT_BLOCK);
    if (!json_has(place(d, "mask_token_id"), "mask_token_id"))
        config_fail(&d->r, ERR_INPUT, "mask_token_id is missing");
    c->mask_id =
        read_int(d, "mask_token_id", 0, c->base.vocab_size - 1, 0); /* also ids that the tokenizer does not know */
    c->embedding_scale = read_float(d, "input_embedding_scale", -1e6, 1e6, 1);
    c->logit_scale = read_float(d, "output_multiplier", -1e6, 1e6, 1) * read_float(d, "logit_scale", -1e6, 1e6, 1);
    c->softcap = read_float(d, "final_logit_softcapping", 0, 1e6, 0);
    int32_t n_target = read_int(d, "num_target_layers", 1, CONFIG_MAX_LAYERS, d->target->n_layers);
    if (d->r.status == OK && n_target != d->target->n_layers)
        config_fail(&d->r, ERR_INPUT, "num_target_layers is %d, but the target has %d layers", n_target,
                    d->target->n_layers);
    if (d->setup->block_size > c->block_size || d->setup->block_size == 1)
        config_fail(&d->r, ERR_UNSUPPORTED, "a block of %d rows was asked for; 2 to %d, as trained, are possible",
                    d->setup->block_size, c->block_size);
}

/* ---- windows ---- */

/* Layer i's type: is it a sliding one? */
static bool is_sliding(Reader *d, const json_t *types, int32_t i)
{
    const char *type = types ? json_string_value(json_array_get(types, (size_t)i)) : "full_attention";
    if (type && strcmp(type, "sliding_attention") == 0) return true;
    if (!type || strcmp(type, "full_attention") != 0)
        config_fail(&d->r, ERR_UNSUPPORTED, "layer_types[%d] is neither \"full_attention\" nor \"sliding_attention\"",
                    i);
    return false;
}

static int32_t read_width(Reader *d, bool is_forced)
{
    const char *key = is_forced && json_has(d->nested, "swa_window_size") ? "swa_window_size" : "sliding_window";
    if (!json_has(place(d, key), key)) config_fail(&d->r, ERR_INPUT, "%s is missing, and layers slide", key);
    return read_int(d, key, 1, MAX_POSITION, 1);
}

/* Who sees whom. is_causal, and behind it dflash_config.causal, decide for all layers; else sliding layers are causal
 * and full ones are not. use_swa makes every layer slide where no layer is said to. */
static void read_windows(Reader *d, DflashConfig *c)
{
    const json_t *types = config_array(&d->r, d->r.root, "layer_types");
    if (types && json_array_size(types) != (size_t)c->base.n_layers)
        config_fail(&d->r, ERR_INPUT, "layer_types has %zu entries for %d layers", json_array_size(types),
                    c->base.n_layers);
    if (d->r.status != OK) return;

    int32_t n_sliding = 0;
    for (int32_t i = 0; i < c->base.n_layers; i++) n_sliding += is_sliding(d, types, i);
    bool is_forced = n_sliding == 0 && config_bool(&d->r, d->nested, "use_swa", false);
    bool is_said = json_has(d->r.root, "is_causal") || json_has(d->nested, "causal");
    bool said = json_has(d->r.root, "is_causal") ? config_bool(&d->r, d->r.root, "is_causal", false)
                                                 : config_bool(&d->r, d->nested, "causal", false);
    int32_t width = n_sliding || is_forced ? read_width(d, is_forced) : 0;
    for (int32_t i = 0; i < c->base.n_layers; i++) {
        bool slides = is_forced || is_sliding(d, types, i),
             by_type = slides && !is_forced && !d->setup->sliding_is_free;
        c->window[i] = (DflashWindow){ .width = slides ? width : 0, .is_causal = is_said ? said : by_type };
    }
}

/* ---- DFlash 2 ---- */

static void read_second(Reader *d, DflashConfig *c)
{
    if (!d->is_second) return;
    const char *projection_name = "layers.0.attention_conv.kernel_projection.weight";
    int64_t base[3], projection[3], codebook[3], hidden = c->base.hidden_size;
    c->conv_kernel = read_int(d, "conv_kernel_size", 1, 16, DEFAULT_CONV_KERNEL);
    c->conv_group = read_int(d, "conv_group_size", 1, MAX_WIDTH, DEFAULT_CONV_GROUP);
    c->selector_rank = read_int(d, "selector_rank", 1, MAX_WIDTH, DEFAULT_RANK);
    c->selector_top_k = read_int(d, "selector_top_k", 1, 256, DEFAULT_TOP_K);
    c->selector_vocab = read_int(d, "selector_vocab_size", 1, c->base.vocab_size, c->base.vocab_size);
    if (d->file->file && d->r.status == OK) {
        shape_of(d, "layers.0.attention_conv.base_kernel", 3, base);
        shape_of(d, projection_name, 2, projection);
        shape_of(d, "candidate_selector.predecessor_codebook", 2, codebook);
        if (d->r.status != OK) return;
        c->conv_kernel = agree(d, "conv_kernel_size", base[1], "layers.0.attention_conv.base_kernel");
        int32_t n_groups = ratio(d, projection_name, projection[0], 2 * base[1], MAX_WIDTH);
        c->conv_group = agree(d, "conv_group_size", hidden / n_groups, projection_name);
        c->selector_rank = agree(d, "selector_rank", codebook[1], "candidate_selector.predecessor_codebook");
    }
    if (d->r.status == OK && (c->conv_kernel < 1 || c->conv_kernel > 16 || c->conv_group < 1 || hidden % c->conv_group))
        config_fail(&d->r, ERR_INPUT, "a convolution of %d taps over groups of %d does not divide hidden_size %lld",
                    c->conv_kernel, c->conv_group, (long long)hidden);
}

/* ---- what is refused ---- */

static void refuse_if(Reader *d, bool is_so, const char *what)
{
    if (is_so) config_fail(&d->r, ERR_UNSUPPORTED, "%s, which is not supported", what);
}

static void read_architecture(Reader *d)
{
    const json_t *list = config_array(&d->r, d->r.root, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    refuse_if(d, json_has(d->r.root, "speculators_model_type"), "this is a drafter in the layout of speculators");
    if (!name) config_fail(&d->r, ERR_INPUT, "architectures is missing: this does not describe a drafter");
    else if (strcmp(name, "DFlash2DraftModel") == 0) d->is_second = true;
    else if (strcmp(name, "DFlashDraftModel") != 0)
        config_fail(&d->r, ERR_UNSUPPORTED,
                    "architecture %.60s is not supported; DFlashDraftModel and DFlash2DraftModel are", name);
}

static void refuse_unsupported(Reader *d)
{
    ConfigReader *r = &d->r;
    const json_t *n = d->nested;
    const char *act = config_string(r, r->root, "hidden_act", "silu");
    refuse_if(d, strcmp(act, "silu") != 0, "hidden_act is not silu");
    refuse_if(d, json_has(r->root, "quantization_config"), "the weights are quantized");
    refuse_if(d, config_bool(r, n, "attention_sink_bias", false), "attention_sink_bias is true");
    refuse_if(d, config_double(r, n, "attention_value_scale", -1e6, 1e6, 1) != 1, "attention_value_scale is not 1");
    refuse_if(d, config_bool(r, place(d, "sample_from_anchor"), "sample_from_anchor", false),
              "sample_from_anchor is true");
    refuse_if(d, !config_bool(r, n, "use_aux_hidden_state", true), "use_aux_hidden_state is false");
    refuse_if(d, json_has(n, "projector_type"), "projector_type is set");
    refuse_if(d, !config_bool(r, place(d, "is_neox_style"), "is_neox_style", true), "is_neox_style is false");
    if (json_has(place(d, "draft_vocab_size"), "draft_vocab_size"))
        refuse_if(d, read_int(d, "draft_vocab_size", 1, MAX_VOCABULARY, 1) !=
                     config_int(r, r->root, "vocab_size", 1, MAX_VOCABULARY, 0), "the vocabulary is a reduced one");
}

static void refuse_mask_file(Reader *d)
{
    char path[PATH_MAX];
    Status s = path_join(path, sizeof path, d->file->dir, "mask_embedding.pt", d->r.err);
    if (s != OK) d->r.status = s;
    else refuse_if(d, file_exists(path), "a mask embedding of its own (mask_embedding.pt) lies beside the drafter");
}

/* ---- the whole ---- */

static void find_prefix(DflashFile *file)
{
    bool has_prefix =
        file->file && !checkpoint_find(file->file, "fc.weight") && checkpoint_find(file->file, "model.fc.weight");
    snprintf(file->prefix, sizeof file->prefix, "%s", has_prefix ? "model." : "");
}

static Status read_all(Reader *d, DflashConfig *c)
{
    void (*const parts[])(Reader *, DflashConfig *) = { read_sizes, read_taps, read_block, read_windows, read_second };
    read_architecture(d);
    if (d->r.status == OK) refuse_unsupported(d);
    refuse_mask_file(d);
    for (int i = 0; i < COUNT(parts) && d->r.status == OK; i++) parts[i](d, c);
    if (d->r.status == OK) config_read_rope(&d->r, &c->base);
    return d->r.status;
}

Status dflash_read_config(DflashConfig *out, DflashFile *file, const ModelInfo *target, const DflashSetup *setup,
                          Error *err)
{
    char path[PATH_MAX];
    json_t *root = NULL;
    *out = (DflashConfig){ .base = { .family = FAMILY_QWEN3, .model_type = "DFlash", .qk_norm = true, .bos_id = -1 } };
    Status s = path_join(path, sizeof path, file->dir, "config.json", err);
    if (!s) s = json_parse_file(&root, path, MAX_CONFIG_BYTES, err);
    if (s) return s;
    find_prefix(file);
    Reader d = { .r = { .root = root, .text = root, .file = "config.json", .err = err }, .file = file, .target = target,
                 .setup = setup };
    d.nested = config_object(&d.r, root, "dflash_config");
    s = d.r.status ? d.r.status : read_all(&d, out);
    json_decref(root);
    return s;
}

Status dflash_fits(const DflashConfig *c, const ModelInfo *target, Error *err)
{
    if (c->base.hidden_size != target->hidden_size)
        return error_set(err, ERR_INPUT, "the drafter was made for hidden states of %d, but the target's have %d",
                         c->base.hidden_size, target->hidden_size);
    if (c->base.vocab_size != target->vocab_size)
        return error_set(err, ERR_INPUT, "the drafter was made for a vocabulary of %d, but the target's has %d",
                         c->base.vocab_size, target->vocab_size);
    for (int32_t i = 0; i < c->n_taps; i++) {
        if (c->taps[i] < target->n_layers) continue;
        return error_set(err, ERR_INPUT, "the drafter reads layer %d, but the target's last one is %d", c->taps[i],
                         target->n_layers - 1);
    }
    return OK;
}
