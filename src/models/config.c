/* config.json and generation_config.json into one ModelConfig, checked key by key.
 *
 * After a success every number is in the range that loaders and kernels rely on, heads divide evenly, every layer
 * has a type we compute, and nothing in the file asks for arithmetic that we would silently leave out: what we do not
 * do is refused by name (docs/spec/models.md 1.2 - 1.9). Rotary settings are read in config_rope.c.
 *
 * The reader keeps its first failure, as Error does, and returns a value inside the range all the same; so the
 * functions below read as lists of keys, and one look at the end decides. */
#include "models/config.h"
#include "base/file.h"
#include "base/memory.h"
#include "models/config_impl.h"
#include "tensor/gguf.h"

#include <float.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_CONFIG_BYTES = 4 << 20,
    MAX_HEADS = 1024,
    MAX_HEAD_DIM = 512,      /* the attention kernels' limit */
    MAX_GDN_DIM = 512,       /* the Gated DeltaNet kernels' limit */
    CONV_KERNEL = 4,
    MAX_WIDTH = 1 << 20,
    MAX_VOCABULARY = 1 << 24,
    MAX_POSITION = 1 << 28,
};

/* --- reading single keys -------------------------------------------------------------------------------------- */

Status config_fail(ConfigReader *r, Status status, const char *format, ...)
{
    char sentence[ERROR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    if (r->status == OK) r->status = error_set(r->err, status, "%s: %s", r->file, sentence);
    return r->status;
}

/* Takes over the outcome of a getter. */
static bool ok(ConfigReader *r, Status status)
{
    if (status == OK) return true;
    if (r->status == OK) {
        error_prefix(r->err, "%s", r->file);
        r->status = status;
    }
    return false;
}

int64_t config_int(ConfigReader *r, const json_t *object, const char *key, int64_t min, int64_t max, int64_t otherwise)
{
    int64_t value = otherwise;
    return ok(r, json_get_int(object, key, min, max, &value, r->err)) ? value : min;
}

int64_t config_need_int(ConfigReader *r, const json_t *object, const char *key, int64_t min, int64_t max)
{
    if (json_has(object, key)) return config_int(r, object, key, min, max, min);
    config_fail(r, ERR_INPUT, "%s is missing", key);
    return min;
}

double config_double(ConfigReader *r, const json_t *object, const char *key, double min, double max, double otherwise)
{
    double value = otherwise;
    return ok(r, json_get_double(object, key, min, max, &value, r->err)) ? value : min;
}

bool config_bool(ConfigReader *r, const json_t *object, const char *key, bool otherwise)
{
    bool value = otherwise;
    return ok(r, json_get_bool(object, key, &value, r->err)) ? value : otherwise;
}

const char *config_string(ConfigReader *r, const json_t *object, const char *key, const char *otherwise)
{
    const char *value = otherwise;
    return ok(r, json_get_string(object, key, &value, r->err)) ? value : otherwise;
}

json_t *config_array(ConfigReader *r, const json_t *object, const char *key)
{
    json_t *value = NULL;
    ok(r, json_get_array(object, key, &value, r->err));
    return value;
}

json_t *config_object(ConfigReader *r, const json_t *object, const char *key)
{
    json_t *value = NULL;
    ok(r, json_get_object(object, key, &value, r->err));
    return value;
}

/* The object that has the key: the text part, else the whole file. */
static const json_t *holder(const ConfigReader *r, const char *key)
{
    return json_has(r->text, key) ? r->text : r->root;
}

/* --- family --------------------------------------------------------------------------------------------------- */

typedef struct FamilyRow {
    const char *model_type;
    ModelFamily family;
    int         head_dim; /* when the file has none; 0 = hidden_size / num_attention_heads */
    bool        zero_centered_norm, qk_norm, attn_output_gate;
} FamilyRow;

static const FamilyRow families[] = {
    { "llama", FAMILY_LLAMA, 0, false, false, false },
    { "qwen3", FAMILY_QWEN3, 128, false, true, false },
    { "qwen3_5", FAMILY_QWEN3_5, 256, true, true, true },
    { "qwen3_5_text", FAMILY_QWEN3_5, 256, true, true, true },
};

static const FamilyRow *find_family(const char *model_type)
{
    for (int i = 0; i < COUNT(families); i++) {
        if (strcmp(families[i].model_type, model_type) == 0) return &families[i];
    }
    return NULL;
}

/* NULL: refused. Sets r->text, the object that describes the language model. */
static const FamilyRow *read_family(ConfigReader *r, ModelConfig *c)
{
    const char *type = config_string(r, r->root, "model_type", NULL);
    if (!type) {
        config_fail(r, ERR_INPUT, "model_type is missing: this does not describe a model");
        return NULL;
    }
    const FamilyRow *row = find_family(type);
    r->text = row && row->family == FAMILY_QWEN3_5 ? config_object(r, r->root, "text_config") : NULL;
    if (!r->text) r->text = r->root;
    const char *inner = config_string(r, r->text, "model_type", type);
    const FamilyRow *inner_row = find_family(inner);
    if (!row || !inner_row || row->family != inner_row->family) {
        config_fail(r, ERR_UNSUPPORTED, "model_type %.40s is not supported; llama, qwen3 and qwen3_5 are",
                    row ? inner : type);
        return NULL;
    }
    snprintf(c->model_type, sizeof c->model_type, "%s", type);
    c->family = row->family;
    c->zero_centered_norm = row->zero_centered_norm;
    c->qk_norm = row->qk_norm;
    c->attn_output_gate = row->attn_output_gate;
    return row;
}

/* --- what we would leave out silently --------------------------------------------------------------------------- */

/* What a method and its further words mean, "" = whatever they are. */
static QuantFormat declared_format(const char *method, const char *words)
{
    static const struct {
        const char *method, *words;
        QuantFormat format;
    } rows[] = { { "fp8", "", QUANT_FP8 }, { "awq", "", QUANT_AWQ }, { "gptq", "", QUANT_GPTQ }, { "mxfp4", "", QUANT_MXFP4 },
                 { "modelopt", "NVFP4", QUANT_NVFP4 }, { "modelopt_fp4", "", QUANT_NVFP4 }, { "modelopt", "FP8", QUANT_FP8 },
                 { "compressed-tensors", "nvfp4-pack-quantized", QUANT_NVFP4 }, { "compressed-tensors", "mxfp4-pack-quantized", QUANT_MXFP4 },
                 { "compressed-tensors", "pack-quantized", QUANT_INT4 }, { "compressed-tensors", "float-quantized", QUANT_FP8 } };
    for (int i = 0; i < COUNT(rows); i++)
        if (strcmp(rows[i].method, method) == 0 && strncmp(words, rows[i].words, strlen(rows[i].words)) == 0) return rows[i].format;
    return QUANT_NONE;
}

/* Which format each tensor has is decided by the tensors (tensor/checkpoint.h); a method that nobody knows is refused. */
static void read_quantized(ConfigReader *r, ModelConfig *c)
{
    static const char *const keys[] = { "quantization_config", "compression_config" };
    static const char *const methods[] = { "modelopt", "modelopt_fp4", "modelopt_mixed", "compressed-tensors", "fp8", "mxfp4", "awq", "gptq" };
    for (int i = 0; i < COUNT(keys); i++) {
        const json_t *q = config_object(r, holder(r, keys[i]), keys[i]);
        if (!q) continue;
        const char *method = config_string(r, q, "quant_method", "an unnamed method");
        int m = 0;
        while (m < COUNT(methods) && strcmp(methods[m], method) != 0) m++;
        if (m == COUNT(methods))
            config_fail(r, ERR_UNSUPPORTED, "the weights are quantized (%s: quant_method %.40s), which is not supported", keys[i], method);
        c->declared = declared_format(method, config_string(r, q, strcmp(method, "modelopt") == 0 ? "quant_algo" : "format", ""));
        c->is_gptq_v2 |= strcmp(config_string(r, q, "checkpoint_format", ""), "gptq_v2") == 0;
    }
}

static void refuse_flag(ConfigReader *r, const char *key, bool refused)
{
    if (!json_has(r->text, key) || config_bool(r, r->text, key, !refused) != refused) return;
    config_fail(r, ERR_UNSUPPORTED, "%s %s is not supported with this model_type", key, refused ? "true" : "false");
}

static void refuse_word(ConfigReader *r, const char *key, const char *accepted, const char *also)
{
    const char *got = config_string(r, r->text, key, accepted);
    if (strcmp(got, accepted) == 0 || (also && strcmp(got, also) == 0)) return;
    config_fail(r, ERR_UNSUPPORTED, "%s \"%.40s\" is not supported, only \"%s\"", key, got, accepted);
}

static void refuse_unsupported(ConfigReader *r, const ModelConfig *c)
{
    refuse_word(r, "hidden_act", "silu", NULL);
    refuse_flag(r, "mlp_bias", true);
    refuse_flag(r, "rope_interleaved", true);
    refuse_flag(r, "attn_output_gate", !c->attn_output_gate);
    if (c->family == FAMILY_QWEN3_5) refuse_word(r, "output_gate_type", "swish", "silu");
    static const char *const expert_keys[] = { "num_experts", "num_local_experts" };
    for (int i = 0; i < COUNT(expert_keys); i++) {
        if (config_int(r, r->text, expert_keys[i], 0, INT32_MAX, 0) == 0) continue;
        config_fail(r, ERR_UNSUPPORTED, "%s: mixtures of experts are not supported", expert_keys[i]);
    }
}

/* --- shapes --------------------------------------------------------------------------------------------------- */

static int32_t read_head_dim(ConfigReader *r, const ModelConfig *c, const FamilyRow *row)
{
    if (json_has(r->text, "head_dim")) return (int32_t)config_int(r, r->text, "head_dim", 1, MAX_HEAD_DIM, 1);
    if (row->head_dim) return row->head_dim;
    if (c->hidden_size % c->n_heads != 0 || c->hidden_size / c->n_heads > MAX_HEAD_DIM) {
        config_fail(r, ERR_INPUT, "head_dim is missing, and hidden_size %d / num_attention_heads %d is no head size",
                    c->hidden_size, c->n_heads);
    }
    return c->hidden_size / c->n_heads;
}

static int32_t read_kv_heads(ConfigReader *r, const ModelConfig *c)
{
    static const char key[] = "num_key_value_heads";
    bool is_null = json_is_null(json_object_get(r->text, key));
    bool may_lack = c->family == FAMILY_LLAMA || (c->family == FAMILY_QWEN3 && is_null);
    if (may_lack && !json_has(r->text, key)) return c->n_heads;
    int32_t n = (int32_t)config_need_int(r, r->text, key, 1, c->n_heads);
    if (c->n_heads % n != 0) {
        config_fail(r, ERR_INPUT, "num_attention_heads %d is not a multiple of num_key_value_heads %d", c->n_heads, n);
    }
    return n;
}

static void read_shapes(ConfigReader *r, ModelConfig *c, const FamilyRow *row)
{
    c->hidden_size = (int32_t)config_need_int(r, r->text, "hidden_size", 1, MAX_WIDTH);
    c->intermediate_size = (int32_t)config_need_int(r, r->text, "intermediate_size", 1, MAX_WIDTH);
    c->n_layers = (int32_t)config_need_int(r, r->text, "num_hidden_layers", 1, CONFIG_MAX_LAYERS);
    c->n_heads = (int32_t)config_need_int(r, r->text, "num_attention_heads", 1, MAX_HEADS);
    c->n_kv_heads = read_kv_heads(r, c);
    c->head_dim = read_head_dim(r, c, row);
    c->vocab_size = (int32_t)config_need_int(r, r->text, "vocab_size", 1, MAX_VOCABULARY);
    c->max_position = config_need_int(r, r->text, "max_position_embeddings", 1, MAX_POSITION);
    if (!json_has(r->text, "rms_norm_eps")) config_fail(r, ERR_INPUT, "rms_norm_eps is missing");
    c->rms_norm_eps = (float)config_double(r, r->text, "rms_norm_eps", 1e-20, 0.1, 1e-6);
    c->attention_bias = config_bool(r, r->text, "attention_bias", false);
    c->mtp_layers = (int32_t)config_int(r, r->text, "mtp_num_hidden_layers", 0, 16, 0);
    /* Both levels have it in Qwen3.5; the upper one decides. */
    const json_t *ties = json_has(r->root, "tie_word_embeddings") ? r->root : r->text;
    c->tie_word_embeddings = config_bool(r, ties, "tie_word_embeddings", false);
}

static DType read_dtype(ConfigReader *r)
{
    static const struct {
        const char *name;
        DType       type;
    } names[] = { { "bfloat16", DT_BF16 }, { "float16", DT_F16 }, { "float32", DT_F32 } };
    static const char *const keys[] = { "dtype", "torch_dtype" };
    for (int i = 0; i < COUNT(keys); i++) {
        const char *name = config_string(r, holder(r, keys[i]), keys[i], NULL);
        if (!name) continue;
        if (strncmp(name, "torch.", 6) == 0) name += 6;
        for (int k = 0; k < COUNT(names); k++) {
            if (strcmp(name, names[k].name) == 0) return names[k].type;
        }
        config_fail(r, ERR_UNSUPPORTED, "%s \"%.40s\" is not one of bfloat16, float16, float32", keys[i], name);
    }
    return DT_BF16; /* not said: how we compute unless asked otherwise */
}

/* --- layers --------------------------------------------------------------------------------------------------- */

static LayerType read_layer_type(ConfigReader *r, const ModelConfig *c, const json_t *item, int layer)
{
    const char *name = json_string_value(item);
    if (!name) {
        config_fail(r, ERR_INPUT, "layer_types[%d] must be a string", layer);
        return LAYER_FULL_ATTENTION;
    }
    if (strcmp(name, "full_attention") == 0) return LAYER_FULL_ATTENTION;
    if (strcmp(name, "linear_attention") == 0 && c->family == FAMILY_QWEN3_5) return LAYER_LINEAR_ATTENTION;
    config_fail(r, ERR_UNSUPPORTED, "layer_types[%d] \"%.40s\" is not supported with model_type %s", layer, name,
                c->model_type);
    return LAYER_FULL_ATTENTION;
}

/* Files without layer_types: hybrids say how often a full layer comes, Qwen3 from where on the window slides. */
static void guess_layer_types(ConfigReader *r, ModelConfig *c)
{
    if (c->family == FAMILY_QWEN3_5) {
        int every = (int)config_int(r, r->text, "full_attention_interval", 1, CONFIG_MAX_LAYERS, 4);
        for (int i = 0; i < c->n_layers; i++) {
            c->layer_type[i] = (i + 1) % every == 0 ? LAYER_FULL_ATTENTION : LAYER_LINEAR_ATTENTION;
        }
        return;
    }
    bool slides = config_bool(r, r->text, "use_sliding_window", false) && json_has(r->text, "sliding_window");
    if (slides && config_int(r, r->text, "max_window_layers", 0, INT32_MAX, 0) < c->n_layers) {
        config_fail(r, ERR_UNSUPPORTED, "use_sliding_window is true, and sliding windows are not supported");
    }
}

static void read_layer_types(ConfigReader *r, ModelConfig *c)
{
    const json_t *types = config_array(r, r->text, "layer_types");
    if (!types) {
        guess_layer_types(r, c);
        return;
    }
    if (json_array_size(types) != (size_t)c->n_layers) {
        config_fail(r, ERR_INPUT, "layer_types has %zu entries, but num_hidden_layers is %d", json_array_size(types),
                    c->n_layers);
        return;
    }
    for (int i = 0; i < c->n_layers; i++) c->layer_type[i] = read_layer_type(r, c, json_array_get(types, (size_t)i), i);
}

static bool has_linear_layers(const ModelConfig *c)
{
    for (int i = 0; i < c->n_layers; i++) {
        if (c->layer_type[i] == LAYER_LINEAR_ATTENTION) return true;
    }
    return false;
}

static void read_gated_delta(ConfigReader *r, ModelConfig *c)
{
    if (!has_linear_layers(c)) return;
    c->gdn_key_heads = (int32_t)config_need_int(r, r->text, "linear_num_key_heads", 1, MAX_HEADS);
    c->gdn_value_heads = (int32_t)config_need_int(r, r->text, "linear_num_value_heads", 1, MAX_HEADS);
    c->gdn_key_dim = (int32_t)config_need_int(r, r->text, "linear_key_head_dim", 1, MAX_GDN_DIM);
    c->gdn_value_dim = (int32_t)config_need_int(r, r->text, "linear_value_head_dim", 1, MAX_GDN_DIM);
    c->gdn_conv_kernel = (int32_t)config_need_int(r, r->text, "linear_conv_kernel_dim", 1, 64);
    if (c->gdn_value_heads % c->gdn_key_heads != 0) {
        config_fail(r, ERR_INPUT, "linear_num_value_heads %d is not a multiple of linear_num_key_heads %d",
                    c->gdn_value_heads, c->gdn_key_heads);
    }
    if (c->gdn_conv_kernel != CONV_KERNEL) {
        config_fail(r, ERR_UNSUPPORTED, "linear_conv_kernel_dim %d is not supported, only %d", c->gdn_conv_kernel,
                    CONV_KERNEL);
    }
}

/* --- ids and sampling defaults ---------------------------------------------------------------------------------- */

static void add_stop_id(ConfigReader *r, ModelConfig *c, const json_t *id)
{
    json_int_t value = json_integer_value(id);
    if (!json_is_integer(id) || value < 0 || value >= c->vocab_size) {
        config_fail(r, ERR_INPUT, "eos_token_id must be ids in [0, %d], or null", c->vocab_size - 1);
        return;
    }
    for (int i = 0; i < c->n_stop_ids; i++) {
        if (c->stop_ids[i] == value) return;
    }
    if (c->n_stop_ids == CONFIG_MAX_STOP_IDS) {
        config_fail(r, ERR_UNSUPPORTED, "eos_token_id names more than %d ids", CONFIG_MAX_STOP_IDS);
        return;
    }
    c->stop_ids[c->n_stop_ids++] = (int32_t)value;
}

/* A number, a list or null. */
static void add_stop_ids(ConfigReader *r, ModelConfig *c, const json_t *object)
{
    const json_t *eos = json_object_get(object, "eos_token_id");
    if (!eos || json_is_null(eos)) return;
    if (!json_is_array(eos)) {
        add_stop_id(r, c, eos);
        return;
    }
    size_t i;
    json_t *id;
    json_array_foreach(eos, i, id) add_stop_id(r, c, id);
}

static void read_ids(ConfigReader *r, ModelConfig *c)
{
    add_stop_ids(r, c, r->text);
    if (r->root != r->text) add_stop_ids(r, c, r->root);
    c->bos_id = (int32_t)config_int(r, holder(r, "bos_token_id"), "bos_token_id", 0, c->vocab_size - 1, -1);
}

/* Any number: the sampler, whose ranges these are, takes the nearest value that it knows (sampling/choose.h). */
static float read_default(ConfigReader *r, const char *key, bool *has)
{
    *has = json_has(r->root, key);
    return (float)config_double(r, r->root, key, -FLT_MAX, FLT_MAX, 0);
}

static void read_generation(ConfigReader *r, ModelConfig *c)
{
    c->temperature = read_default(r, "temperature", &c->has_temperature);
    c->top_p = read_default(r, "top_p", &c->has_top_p);
    c->min_p = read_default(r, "min_p", &c->has_min_p);
    c->repetition_penalty = read_default(r, "repetition_penalty", &c->has_repetition_penalty);
    c->has_top_k = json_has(r->root, "top_k");
    c->top_k = (int32_t)config_int(r, r->root, "top_k", -1, INT32_MAX, 0);
    if (c->top_k < 0) c->top_k = 0; /* both spellings of "all" */
    c->has_do_sample = json_has(r->root, "do_sample");
    c->do_sample = config_bool(r, r->root, "do_sample", false);
    add_stop_ids(r, c, r->root);
    if (c->bos_id < 0) c->bos_id = (int32_t)config_int(r, r->root, "bos_token_id", 0, c->vocab_size - 1, -1);
}

/* --- the whole ------------------------------------------------------------------------------------------------ */

static Status read_model(ModelConfig *c, const json_t *root, Error *err)
{
    ConfigReader r = { .root = root, .file = "config.json", .err = err };
    *c = (ModelConfig){ .bos_id = -1 };
    const FamilyRow *row = read_family(&r, c);
    if (!row) return r.status;
    refuse_unsupported(&r, c);
    read_quantized(&r, c);
    read_shapes(&r, c, row);
    c->dtype = read_dtype(&r);
    config_read_rope(&r, c);
    read_layer_types(&r, c);
    read_gated_delta(&r, c);
    read_ids(&r, c);
    return r.status;
}

static Status read_both(ModelConfig *c, const json_t *config, const json_t *generation, Error *err)
{
    Status status = read_model(c, config, err);
    if (status != OK || !generation) return status;
    ConfigReader r = { .root = generation, .text = generation, .file = "generation_config.json", .err = err };
    read_generation(&r, c);
    return r.status;
}

Status config_parse(ModelConfig *out, const char *config, size_t n, const char *generation, size_t n_generation,
                    Error *err)
{
    json_t *c = NULL, *g = NULL;
    Status status = json_parse(&c, config, n, "config.json", err);
    if (status == OK && generation) status = json_parse(&g, generation, n_generation, "generation_config.json", err);
    if (status == OK) status = read_both(out, c, g, err);
    json_decref(c);
    json_decref(g);
    return status;
}

/* *out stays NULL when an optional file is not there. */
static Status parse_in(json_t **out, const char *dir, const char *name, bool optional, Error *err)
{
    char path[PATH_MAX];
    Status status = path_join(path, sizeof path, dir, name, err);
    if (status != OK || (optional && !file_exists(path))) return status;
    return json_parse_file(out, path, MAX_CONFIG_BYTES, err);
}

Status config_read(ModelConfig *out, const char *dir, Error *err)
{
    json_t *c = NULL, *g = NULL;
    bool is_gguf = gguf_is_path(dir);
    Status status = is_gguf ? config_of_gguf(&c, dir, err) : parse_in(&c, dir, "config.json", false, err);
    if (status == OK && !is_gguf) status = parse_in(&g, dir, "generation_config.json", true, err);
    if (status == OK && (status = read_both(out, c, g, err)) != OK) error_prefix(err, "%s", dir);
    if (status == OK && is_gguf) status = config_fit_rope_factors(out, dir, err);
    json_decref(c);
    json_decref(g);
    return status;
}
