/* config.json and generation_config.json into one checked struct; defaults of docs/spec/models.md 1.9.
 * Everything that a loader or kernel relies on is range-checked here, once. */
#pragma once

#include "base/error.h"
#include "tensor/dtype.h"
#include "tensor/quant.h"

enum { CONFIG_MAX_LAYERS = 256, CONFIG_MAX_STOP_IDS = 16 };

typedef enum ModelFamily { FAMILY_LLAMA, FAMILY_QWEN3, FAMILY_QWEN3_5 } ModelFamily;
typedef enum LayerType { LAYER_FULL_ATTENTION, LAYER_LINEAR_ATTENTION } LayerType;
typedef enum RopeType { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN } RopeType;

typedef struct RopeConfig {
    RopeType type;
    double   theta, partial_factor; /* rotary dims = (int)(head_dim * partial_factor) */
    double   factor, low_freq_factor, high_freq_factor;
    double   beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim; /* 0 = not given */
    bool     truncate;
    int64_t  original_max_position;
    int32_t  mrope_section[3];      /* all 0 = one coordinate */
} RopeConfig;

typedef struct ModelConfig {
    ModelFamily family;
    char        model_type[48];
    int32_t     hidden_size, intermediate_size, n_layers;
    int32_t     n_heads, n_kv_heads, head_dim;
    int32_t     vocab_size;
    int64_t     max_position;
    float       rms_norm_eps;
    bool        tie_word_embeddings, attention_bias;
    bool        zero_centered_norm, qk_norm, attn_output_gate; /* by family, docs/spec/models.md section 0 */
    RopeConfig  rope;
    LayerType   layer_type[CONFIG_MAX_LAYERS];
    int32_t     gdn_key_heads, gdn_value_heads, gdn_key_dim, gdn_value_dim, gdn_conv_kernel; /* 0 without GDN layers */
    int32_t     mtp_layers;         /* mtp_num_hidden_layers; recognised, used by the MTP drafter */
    DType       dtype;              /* of the file: BF16, F16 or F32 */
    QuantFormat declared;           /* how quantization_config stores the layers; QUANT_NONE: it does not, or in several ways.
                                     * Tensors decide; this is for dummy ones */
    bool        is_gptq_v2;         /* zero points of GPTQ weights are stored as they are */
    char        weight_prefix[32];  /* "model." or "model.language_model." (found from tensor names by weights) */

    /* generation_config.json, when there: defaults of requests, as written there. has_* says which were given. */
    bool    has_temperature, has_top_p, has_top_k, has_min_p, has_repetition_penalty, has_do_sample;
    bool    do_sample;
    float   temperature, top_p, min_p, repetition_penalty;
    int32_t top_k;
    int32_t n_stop_ids, stop_ids[CONFIG_MAX_STOP_IDS]; /* union of both files' eos_token_id */
    int32_t bos_id;                 /* -1 = none */
} ModelConfig;

/* Reads dir/config.json (at most 4 MB) and, when present, dir/generation_config.json; or the metadata of a .gguf file. */
Status config_read(ModelConfig *out, const char *dir, Error *err);

/* The same from text already in memory (tests, fuzzing); generation may be NULL. */
Status config_parse(ModelConfig *out, const char *config, size_t n, const char *generation, size_t n_generation,
                    Error *err);

/* inv_freq[dim / 2] with scaling applied, the factor on cos and sin, and the axis of each pair (docs/spec/models.md
 * 1.2-1.4). dim = rotary dims. All float32 steps as the reference does them. */
void rope_frequencies(const ModelConfig *c, float *inv_freq, uint8_t *axis, float *scale);
int  rope_dim(const ModelConfig *c);

/* MODEL of the command line to a directory, or to itself where it is a .gguf file: "nano" / "nano-plain" (TANDEM_MODELS, ../share/tandem/models beside the
 * program, models/ of the source tree), a directory, or a Hugging Face id "owner/name" in the local cache
 * (HF_HUB_CACHE, HF_HOME/hub, ~/.cache/huggingface/hub; refs/main -> snapshots/COMMIT). Nothing is downloaded. */
Status model_find(const char *name, char *dir, size_t size, Error *err);
