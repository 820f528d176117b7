/* config.json: published and bundled files read as documented, everything else refused by name; rotary frequencies
 * against the numbers of docs/spec/models.md. */
#include "base/error.h"
#include "base/json.h"
#include "models/config.h"
#include "support/starve.h"
#include "support/temp_dir.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* --- files to start from ---------------------------------------------------------------------------------------- */

static const char smollm2[] =
    "{\"model_type\":\"llama\",\"hidden_size\":576,\"intermediate_size\":1536,\"num_hidden_layers\":30,"
    "\"num_attention_heads\":9,\"num_key_value_heads\":3,\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-5,\"rope_theta\":"
    "100000,"
    "\"rope_scaling\":null,\"rope_interleaved\":false,\"max_position_embeddings\":8192,\"vocab_size\":49152,"
    "\"tie_word_embeddings\":true,\"attention_bias\":false,\"mlp_bias\":false,\"is_llama_config\":true,"
    "\"torch_dtype\":\"bfloat16\",\"bos_token_id\":1,\"eos_token_id\":2,\"pad_token_id\":2}";

static const char llama31[] =
    "{\"model_type\":\"llama\",\"hidden_size\":4096,\"intermediate_size\":14336,\"num_hidden_layers\":32,"
    "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"rms_norm_eps\":1e-5,\"rope_theta\":500000.0,"
    "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
    "\"original_max_position_embeddings\":8192},\"max_position_embeddings\":131072,\"vocab_size\":128256,"
    "\"eos_token_id\":[128001,128008,128009],\"bos_token_id\":128000,\"torch_dtype\":\"bfloat16\"}";

static const char qwen3[] =
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"hidden_size\":1024,\"intermediate_size\":"
    "3072,"
    "\"num_hidden_layers\":28,\"num_attention_heads\":16,\"num_key_value_heads\":8,\"head_dim\":128,\"hidden_act\":"
    "\"silu\","
    "\"rms_norm_eps\":1e-06,\"rope_theta\":1000000,\"rope_scaling\":null,\"max_position_embeddings\":40960,"
    "\"vocab_size\":151936,\"tie_word_embeddings\":true,\"attention_bias\":false,\"use_sliding_window\":false,"
    "\"sliding_window\":null,\"max_window_layers\":28,\"bos_token_id\":151643,\"eos_token_id\":151645,"
    "\"torch_dtype\":\"bfloat16\"}";

/* Qwen3.6-27B: nested, partial_rotary_factor in both places, vision beside it. */
static const char qwen35[] =
    "{\"architectures\":[\"Qwen3_5ForConditionalGeneration\"],\"model_type\":\"qwen3_5\",\"image_token_id\":248056,"
    "\"tie_word_embeddings\":false,\"language_model_only\":false,\"vision_config\":{\"depth\":27,\"hidden_size\":1152},"
    "\"text_config\":{\"model_type\":\"qwen3_5_text\",\"hidden_size\":5120,\"intermediate_size\":17408,\"num_hidden_"
    "layers\":64,"
    "\"num_attention_heads\":24,\"num_key_value_heads\":4,\"head_dim\":256,\"attn_output_gate\":true,\"attention_"
    "bias\":false,"
    "\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-06,\"full_attention_interval\":4,\"linear_conv_kernel_dim\":4,"
    "\"linear_key_head_dim\":128,\"linear_value_head_dim\":128,\"linear_num_key_heads\":16,\"linear_num_value_heads\":"
    "48,"
    "\"mamba_ssm_dtype\":\"float32\",\"max_position_embeddings\":262144,\"vocab_size\":248320,\"mtp_num_hidden_"
    "layers\":1,"
    "\"eos_token_id\":248044,\"bos_token_id\":248044,\"pad_token_id\":null,\"dtype\":\"bfloat16\",\"output_gate_type\":"
    "\"swish\","
    "\"partial_rotary_factor\":0.25,\"mlp_only_layers\":[],\"rope_parameters\":{\"rope_type\":\"default\","
    "\"rope_theta\":10000000,\"partial_rotary_factor\":0.25,\"mrope_interleaved\":true,\"mrope_section\":[11,11,10]}}}";

static Status parse(ModelConfig *c, const char *text, Error *err)
{
    return config_parse(c, text, strlen(text), NULL, 0, err);
}

static ModelConfig good(const char *text)
{
    ModelConfig c;
    Error err = { 0 };
    if (parse(&c, text, &err) != OK) fail_msg("%s", err.text);
    return c;
}

/* The file with one key changed. path: "key" or "outer.key"; value: JSON text, NULL removes the key. */
static char *changed(const char *text, const char *path, const char *value)
{
    json_t *root = json_loads(text, 0, NULL), *object = root;
    assert_non_null(root);
    char outer[64];
    const char *dot;
    while ((dot = strchr(path, '.')) != NULL) {
        snprintf(outer, sizeof outer, "%.*s", (int)(dot - path), path);
        if (!json_is_object(json_object_get(object, outer))) json_object_set_new(object, outer, json_object());
        object = json_object_get(object, outer);
        path = dot + 1;
    }
    if (value) {
        json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);
        assert_non_null(v);
        json_object_set_new(object, path, v);
    } else {
        json_object_del(object, path);
    }
    char *out = json_dumps(root, 0);
    json_decref(root);
    return out;
}

static ModelConfig good_with(const char *text, const char *path, const char *value)
{
    char *file = changed(text, path, value);
    ModelConfig c = good(file);
    mem_free(file);
    return c;
}

/* --- files as they are ------------------------------------------------------------------------------------------ */

static void bundled_and_golden(void **state)
{
    static const struct {
        const char *dir;
        ModelFamily family;
        int32_t     hidden, layers, heads, kv_heads, head_dim, rotary, vocabulary, gdn_value_heads, n_stop, bos;
        bool        tied;
        int64_t     max_position;
    } cases[] = {
        { "models/nano", FAMILY_QWEN3_5, 256, 8, 4, 2, 64, 16, 4096, 8, 2, 4076, true, 4096 },
        { "models/nano-plain", FAMILY_QWEN3, 192, 6, 4, 2, 64, 64, 4096, 0, 2, 4076, true, 4096 },
        { "models/nano-DFlash", FAMILY_QWEN3, 256, 2, 4, 2, 64, 64, 4096, 0, 0, -1, true, 4096 },
        { "models/nano-plain-DFlash", FAMILY_QWEN3, 192, 2, 4, 2, 64, 64, 4096, 0, 0, -1, true, 4096 },
        { "tests/data/golden/llama", FAMILY_LLAMA, 64, 3, 4, 2, 16, 16, 320, 0, 1, 1, true, 512 },
        { "tests/data/golden/llama_yarn", FAMILY_LLAMA, 64, 2, 4, 2, 16, 16, 320, 0, 1, 1, false, 256 },
        { "tests/data/golden/qwen3", FAMILY_QWEN3, 64, 4, 4, 2, 32, 32, 320, 0, 0, -1, true, 512 },
        { "tests/data/golden/qwen3_5", FAMILY_QWEN3_5, 64, 4, 4, 2, 32, 8, 320, 4, 0, -1, false, 1024 },
        { "tests/data/golden/dflash/target", FAMILY_QWEN3, 64, 8, 4, 2, 32, 32, 320, 0, 0, -1, true, 512 },
        { "tests/data/golden/dflash/draft", FAMILY_QWEN3, 64, 3, 4, 2, 32, 32, 320, 0, 0, -1, true, 512 },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        ModelConfig c;
        Error err = { 0 };
        if (config_read(&c, source_tree(cases[i].dir), &err) != OK) fail_msg("%s", err.text);
        assert_int_equal(c.family, cases[i].family);
        assert_int_equal(c.hidden_size, cases[i].hidden);
        assert_int_equal(c.n_layers, cases[i].layers);
        assert_int_equal(c.n_heads, cases[i].heads);
        assert_int_equal(c.n_kv_heads, cases[i].kv_heads);
        assert_int_equal(c.head_dim, cases[i].head_dim);
        assert_int_equal(rope_dim(&c), cases[i].rotary);
        assert_int_equal(c.vocab_size, cases[i].vocabulary);
        assert_int_equal(c.gdn_value_heads, cases[i].gdn_value_heads);
        assert_int_equal(c.n_stop_ids, cases[i].n_stop);
        assert_int_equal(c.bos_id, cases[i].bos);
        assert_int_equal(c.tie_word_embeddings, cases[i].tied);
        assert_int_equal(c.max_position, cases[i].max_position);
        assert_int_equal(c.dtype, DT_BF16);
        assert_string_equal(c.weight_prefix, "");
        bool hybrid = c.family == FAMILY_QWEN3_5;
        assert_int_equal(c.zero_centered_norm, hybrid);
        assert_int_equal(c.attn_output_gate, hybrid);
        assert_int_equal(c.qk_norm, c.family != FAMILY_LLAMA);
        for (int l = 0; l < c.n_layers; l++) {
            assert_int_equal(c.layer_type[l], hybrid && l % 4 != 3 ? LAYER_LINEAR_ATTENTION : LAYER_FULL_ATTENTION);
        }
        assert_false(c.has_temperature || c.has_top_p || c.has_top_k || c.has_min_p || c.has_do_sample);
    }
}

static void nano_in_full(void **state)
{
    ModelConfig c;
    assert_int_equal(config_read(&c, source_tree("models/nano"), NULL), OK);
    assert_string_equal(c.model_type, "qwen3_5_text");
    assert_int_equal(c.intermediate_size, 640);
    assert_int_equal(c.gdn_key_heads, 4);
    assert_int_equal(c.gdn_key_dim, 32);
    assert_int_equal(c.gdn_value_dim, 32);
    assert_int_equal(c.gdn_conv_kernel, 4);
    assert_int_equal(c.mtp_layers, 1);
    assert_int_equal(c.stop_ids[0], 4078);
    assert_int_equal(c.stop_ids[1], 4076);
    assert_true(c.rms_norm_eps == 1e-6f);
    assert_false(c.attention_bias);
    assert_int_equal(c.rope.type, ROPE_DEFAULT);
    assert_true(c.rope.theta == 1e6);
    assert_int_equal(c.rope.mrope_section[0], 4);
}

static void published_files(void **state)
{
    ModelConfig c = good(smollm2);
    assert_int_equal(c.head_dim, 64); /* hidden_size / heads */
    assert_true(c.tie_word_embeddings);
    assert_true(c.rms_norm_eps == 1e-5f);
    assert_int_equal(c.stop_ids[0], 2);
    assert_int_equal(c.gdn_conv_kernel, 0);
    assert_int_equal(c.rope.mrope_section[0], 0);

    c = good(llama31);
    assert_int_equal(c.rope.type, ROPE_LLAMA3);
    assert_int_equal(c.rope.original_max_position, 8192);
    assert_int_equal(c.n_stop_ids, 3);
    assert_false(c.tie_word_embeddings);

    c = good(qwen35);
    assert_string_equal(c.model_type, "qwen3_5");
    assert_int_equal(c.n_layers, 64);
    assert_int_equal(c.layer_type[2], LAYER_LINEAR_ATTENTION); /* by the interval */
    assert_int_equal(c.layer_type[63], LAYER_FULL_ATTENTION);
    assert_int_equal(rope_dim(&c), 64);
    assert_int_equal(c.rope.mrope_section[2], 10);
    assert_int_equal(c.gdn_value_heads, 48);
    assert_int_equal(c.stop_ids[0], 248044);
    assert_int_equal(c.bos_id, 248044);
}

/* --- keys that are missing, and other spellings ---------------------------------------------------------------- */

static void defaults(void **state)
{
    assert_int_equal(good_with(qwen3, "head_dim", NULL).head_dim, 128);
    assert_int_equal(good_with(qwen3, "head_dim", "null").head_dim, 128);
    assert_int_equal(good_with(qwen35, "text_config.head_dim", NULL).head_dim, 256);
    assert_int_equal(good_with(smollm2, "num_key_value_heads", NULL).n_kv_heads, 9);
    assert_int_equal(good_with(smollm2, "num_key_value_heads", "null").n_kv_heads, 9);
    assert_int_equal(good_with(qwen3, "num_key_value_heads", "null").n_kv_heads, 16);
    assert_false(good_with(smollm2, "tie_word_embeddings", NULL).tie_word_embeddings);
    assert_true(good_with(smollm2, "rope_theta", NULL).rope.theta == 10000);
    assert_int_equal(good_with(smollm2, "torch_dtype", NULL).dtype, DT_BF16);
    assert_int_equal(good_with(smollm2, "hidden_act", NULL).family, FAMILY_LLAMA);
    assert_int_equal(good_with(smollm2, "eos_token_id", "null").n_stop_ids, 0);
    assert_int_equal(good_with(smollm2, "bos_token_id", "null").bos_id, -1);

    char *file = changed(qwen35, "text_config.partial_rotary_factor", NULL);
    ModelConfig c = good_with(file, "text_config.rope_parameters.partial_rotary_factor", NULL);
    assert_int_equal(rope_dim(&c), 64); /* a quarter: the family's own default */
    mem_free(file);
    c = good_with(qwen35, "text_config.rope_parameters.mrope_section", NULL);
    assert_int_equal(c.rope.mrope_section[0], 11);
    c = good_with(qwen35, "text_config.full_attention_interval", NULL);
    assert_int_equal(c.layer_type[3], LAYER_FULL_ATTENTION);
    c = good_with(qwen35, "text_config.full_attention_interval", "2");
    assert_int_equal(c.layer_type[1], LAYER_FULL_ATTENTION);
    c = good_with(qwen35, "text_config.attn_output_gate", NULL);
    assert_true(c.attn_output_gate);
    assert_int_equal(good_with(qwen35, "text_config.mtp_num_hidden_layers", NULL).mtp_layers, 0);
    assert_int_equal(good_with(qwen35, "text_config.full_attention_interval", "1").gdn_key_heads, 0);
}

static void spellings(void **state)
{
    assert_int_equal(good_with(smollm2, "torch_dtype", "\"float32\"").dtype, DT_F32);
    assert_int_equal(good_with(smollm2, "torch_dtype", "\"torch.float16\"").dtype, DT_F16);
    assert_int_equal(good_with(smollm2, "dtype", "\"float16\"").dtype, DT_F16);
    /* the upper level's word counts, in both directions */
    assert_true(good_with(qwen35, "tie_word_embeddings", "true").tie_word_embeddings);
    assert_true(good_with(qwen35, "text_config.dtype", "\"float32\"").dtype == DT_F32);
    char *file = changed(qwen35, "tie_word_embeddings", NULL);
    assert_true(good_with(file, "text_config.tie_word_embeddings", "true").tie_word_embeddings);
    mem_free(file);

    assert_int_equal(good_with(qwen35, "text_config.output_gate_type", "\"silu\"").family, FAMILY_QWEN3_5);
    assert_int_equal(good_with(qwen35, "text_config.rope_parameters.rope_type", "\"mrope\"").rope.type, ROPE_DEFAULT);
    assert_int_equal(good_with(smollm2, "rope_scaling", "{\"type\":\"linear\",\"factor\":2.5}").rope.type, ROPE_LINEAR);
    assert_true(good_with(smollm2, "attention_bias", "true").attention_bias);
    assert_int_equal(good_with(qwen3, "quantization_config", "null").family, FAMILY_QWEN3);
    assert_int_equal(good_with(qwen3, "quantization_config", "{\"quant_method\":\"modelopt\"}").family, FAMILY_QWEN3);
    assert_false(good_with(qwen3, "quantization_config", "{\"quant_method\":\"gptq\"}").is_gptq_v2);
    assert_true(good_with(qwen3, "quantization_config", "{\"quant_method\":\"gptq\",\"checkpoint_format\":\"gptq_v2\"}").is_gptq_v2);

    ModelConfig c = good_with(qwen3, "rope_scaling",
                              "{\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":32768}");
    assert_int_equal(c.rope.type, ROPE_YARN);
    assert_true(c.rope.truncate && c.rope.factor == 4);
    /* the given factor counts; a missing one follows from the two lengths */
    c = good_with(qwen3, "rope_scaling", "{\"type\":\"yarn\",\"original_max_position_embeddings\":8192}");
    assert_true(c.rope.factor == 5);
    c = good_with(qwen3, "rope_scaling", "{\"type\":\"yarn\",\"factor\":2}");
    assert_int_equal(c.rope.original_max_position, 40960);
}

/* A number of sliding_window means nothing while use_sliding_window is false, or when no layer is behind the border. */
static void windows_that_do_not_slide(void **state)
{
    good_with(qwen3, "sliding_window", "4096");
    good_with(qwen3, "use_sliding_window", "true"); /* sliding_window null */
    char *file = changed(qwen3, "use_sliding_window", "true");
    good_with(file, "sliding_window", "4096"); /* max_window_layers 28 of 28 */
    mem_free(file);
}

static void stop_ids_are_united(void **state)
{
    static const char generation[] = "{\"eos_token_id\":[248046,248044],\"bos_token_id\":3}";
    char *file = changed(qwen35, "eos_token_id", "[5,248044]");
    ModelConfig c;
    Error err = { 0 };
    assert_int_equal(config_parse(&c, file, strlen(file), generation, sizeof generation - 1, &err), OK);
    assert_int_equal(c.n_stop_ids, 3);
    assert_int_equal(c.stop_ids[0], 248044);
    assert_int_equal(c.stop_ids[1], 5);
    assert_int_equal(c.stop_ids[2], 248046);
    assert_int_equal(c.bos_id, 248044);
    mem_free(file);
}

static void generation_defaults(void **state)
{
    static const char generation[] = "{\"do_sample\":true,\"temperature\":0.6,\"top_p\":0.95,\"top_k\":20,"
                                     "\"repetition_penalty\":1.05,\"min_p\":0.1}";
    ModelConfig c;
    Error err = { 0 };
    assert_int_equal(config_parse(&c, qwen3, strlen(qwen3), generation, sizeof generation - 1, &err), OK);
    assert_true(c.has_do_sample && c.do_sample && c.has_temperature && c.has_top_p && c.has_top_k && c.has_min_p);
    assert_true(c.temperature == 0.6f && c.top_p == 0.95f && c.top_k == 20 && c.min_p == 0.1f);
    assert_true(c.has_repetition_penalty && c.repetition_penalty == 1.05f);

    static const char nulls[] = "{\"temperature\":null,\"top_k\":-1,\"eos_token_id\":null}";
    assert_int_equal(config_parse(&c, qwen3, strlen(qwen3), nulls, sizeof nulls - 1, &err), OK);
    assert_false(c.has_temperature || c.has_top_p || c.has_do_sample);
    assert_true(c.has_top_k && c.top_k == 0);
    assert_int_equal(c.n_stop_ids, 1);
}

static void bad_generation_defaults(void **state)
{
    static const char *const cases[][2] = {
        { "{\"temperature\":\"hot\"}", "temperature must be a number" },
        { "{\"top_p\":1e39}", "top_p must be" },
        { "{\"top_k\":1.5}", "top_k must be an integer" },
        { "{\"top_k\":-2}", "top_k must be" },
        { "{\"min_p\":\"0.1\"}", "min_p must be a number" },
        { "{\"repetition_penalty\":[]}", "repetition_penalty must be a number" },
        { "{\"do_sample\":1}", "do_sample must be true or false" },
        { "{\"eos_token_id\":151936}", "eos_token_id must be ids in [0, 151935]" },
        { "{\"eos_token_id\":[1,\"x\"]}", "eos_token_id must be ids" },
        { "{\"bos_token_id\":\"x\"}", "" }, /* config.json has one already: not read */
        { "{", "generation_config.json is not valid JSON" },
        { "[]", "" },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        ModelConfig c;
        Error err = { 0 };
        Status status = config_parse(&c, qwen3, strlen(qwen3), cases[i][0], strlen(cases[i][0]), &err);
        assert_int_equal(status, *cases[i][1] ? ERR_INPUT : OK);
        if (!strstr(err.text, cases[i][1])) fail_msg("%s: %s", cases[i][0], err.text);
        if (status != OK) assert_non_null(strstr(err.text, "generation_config.json"));
    }
}

/* --- refused ---------------------------------------------------------------------------------------------------- */

static const struct {
    const char *file, *path, *value;
    Status      status;
    const char *says;
} refused[] = {
    /* families */
    { qwen3, "model_type", NULL, ERR_INPUT, "model_type is missing" },
    { qwen3, "model_type", "7", ERR_INPUT, "model_type must be a string" },
    { qwen3, "model_type", "\"qwen3_moe\"", ERR_UNSUPPORTED, "model_type qwen3_moe is not supported" },
    { qwen3, "model_type", "\"qwen3_next\"", ERR_UNSUPPORTED, "model_type qwen3_next is not supported" },
    { qwen3, "model_type", "\"qwen3_5_moe\"", ERR_UNSUPPORTED, "model_type qwen3_5_moe is not supported" },
    { qwen3, "model_type", "\"qwen4_exp\"", ERR_UNSUPPORTED, "model_type qwen4_exp is not supported" },
    { qwen3, "model_type", "\"gpt2\"", ERR_UNSUPPORTED, "model_type gpt2 is not supported" },
    { qwen3, "model_type", "\"\"", ERR_UNSUPPORTED, "is not supported" },
    { qwen35, "text_config.model_type", "\"qwen3_5_moe_text\"", ERR_UNSUPPORTED, "model_type qwen3_5_moe_text" },
    { qwen35, "text_config", "[]", ERR_INPUT, "text_config must be an object" },
    { qwen35, "text_config", NULL, ERR_INPUT, "hidden_size is missing" },
    /* dimensions */
    { qwen3, "hidden_size", NULL, ERR_INPUT, "hidden_size is missing" },
    { qwen3, "hidden_size", "null", ERR_INPUT, "hidden_size is missing" },
    { qwen3, "hidden_size", "0", ERR_INPUT, "hidden_size must be in [1, 1048576], got 0" },
    { qwen3, "hidden_size", "-1024", ERR_INPUT, "hidden_size must be in" },
    { qwen3, "hidden_size", "4294967297", ERR_INPUT, "hidden_size must be in" },
    { qwen3, "hidden_size", "1024.5", ERR_INPUT, "hidden_size must be an integer" },
    { qwen3, "hidden_size", "\"1024\"", ERR_INPUT, "hidden_size must be an integer, got \"1024\"" },
    { qwen3, "intermediate_size", "0", ERR_INPUT, "intermediate_size must be" },
    { qwen3, "num_hidden_layers", "257", ERR_INPUT, "num_hidden_layers must be in [1, 256], got 257" },
    { qwen3, "num_hidden_layers", "0", ERR_INPUT, "num_hidden_layers must be" },
    { qwen3, "num_attention_heads", "0", ERR_INPUT, "num_attention_heads must be" },
    { qwen3, "num_attention_heads", "1000000", ERR_INPUT, "num_attention_heads must be" },
    { qwen3, "num_key_value_heads", NULL, ERR_INPUT, "num_key_value_heads is missing" },
    { qwen3, "num_key_value_heads", "0", ERR_INPUT, "num_key_value_heads must be in [1, 16]" },
    { qwen3, "num_key_value_heads", "17", ERR_INPUT, "num_key_value_heads must be" },
    { qwen3, "num_key_value_heads", "5", ERR_INPUT,
      "num_attention_heads 16 is not a multiple of num_key_value_heads 5" },
    { qwen35, "text_config.num_key_value_heads", "null", ERR_INPUT, "num_key_value_heads is missing" },
    { qwen3, "head_dim", "0", ERR_INPUT, "head_dim must be in [1, 512]" },
    { qwen3, "head_dim", "1024", ERR_INPUT, "head_dim must be" },
    { qwen3, "head_dim", "127", ERR_INPUT, "they must be even" },
    { qwen3, "head_dim", "1", ERR_INPUT, "they must be even" },
    { smollm2, "num_attention_heads", "192", ERR_INPUT, "they must be even" },
    { smollm2, "hidden_size", "577", ERR_INPUT, "hidden_size 577 / num_attention_heads 9 is no head size" },
    { qwen3, "vocab_size", "0", ERR_INPUT, "vocab_size must be" },
    { qwen3, "vocab_size", "2147483648", ERR_INPUT, "vocab_size must be" },
    { qwen3, "max_position_embeddings", NULL, ERR_INPUT, "max_position_embeddings is missing" },
    { qwen3, "max_position_embeddings", "1e300", ERR_INPUT, "max_position_embeddings must be" },
    { qwen3, "rms_norm_eps", NULL, ERR_INPUT, "rms_norm_eps is missing" },
    { qwen3, "rms_norm_eps", "0", ERR_INPUT, "rms_norm_eps must be" },
    { qwen3, "rms_norm_eps", "-1e-6", ERR_INPUT, "rms_norm_eps must be" },
    { qwen3, "rms_norm_eps", "1", ERR_INPUT, "rms_norm_eps must be" },
    { qwen3, "tie_word_embeddings", "1", ERR_INPUT, "tie_word_embeddings must be true or false" },
    { qwen3, "torch_dtype", "\"int8\"", ERR_UNSUPPORTED, "torch_dtype \"int8\" is not one of" },
    { qwen3, "mtp_num_hidden_layers", "99", ERR_INPUT, "mtp_num_hidden_layers must be" },
    /* layers */
    { qwen3, "layer_types", "[\"full_attention\"]", ERR_INPUT,
      "layer_types has 1 entries, but num_hidden_layers is 28" },
    { qwen3, "layer_types", "\"full_attention\"", ERR_INPUT, "layer_types must be an array" },
    { llama31, "num_hidden_layers", "300", ERR_INPUT, "num_hidden_layers must be" },
    { qwen35, "text_config.full_attention_interval", "0", ERR_INPUT, "full_attention_interval must be" },
    { qwen35, "text_config.linear_num_key_heads", NULL, ERR_INPUT, "linear_num_key_heads is missing" },
    { qwen35, "text_config.linear_num_key_heads", "0", ERR_INPUT, "linear_num_key_heads must be" },
    { qwen35, "text_config.linear_num_value_heads", "40", ERR_INPUT, "linear_num_value_heads 40 is not a multiple" },
    { qwen35, "text_config.linear_key_head_dim", "513", ERR_INPUT, "linear_key_head_dim must be" },
    { qwen35, "text_config.linear_value_head_dim", "-1", ERR_INPUT, "linear_value_head_dim must be" },
    { qwen35, "text_config.linear_conv_kernel_dim", "3", ERR_UNSUPPORTED,
      "linear_conv_kernel_dim 3 is not supported, only 4" },
    /* what we would leave out */
    { qwen3, "hidden_act", "\"gelu\"", ERR_UNSUPPORTED, "hidden_act \"gelu\" is not supported" },
    { qwen3, "mlp_bias", "true", ERR_UNSUPPORTED, "mlp_bias true is not supported" },
    { smollm2, "rope_interleaved", "true", ERR_UNSUPPORTED, "rope_interleaved true is not supported" },
    { qwen3, "attn_output_gate", "true", ERR_UNSUPPORTED, "attn_output_gate true is not supported" },
    { qwen35, "text_config.attn_output_gate", "false", ERR_UNSUPPORTED, "attn_output_gate false is not supported" },
    { qwen35, "text_config.output_gate_type", "\"sigmoid\"", ERR_UNSUPPORTED, "output_gate_type \"sigmoid\"" },
    { qwen35, "text_config.num_experts", "256", ERR_UNSUPPORTED, "num_experts: mixtures of experts" },
    { qwen3, "num_local_experts", "8", ERR_UNSUPPORTED, "num_local_experts: mixtures of experts" },
    { qwen3, "quantization_config", "{\"quant_method\":\"bitsandbytes\"}", ERR_UNSUPPORTED, "quant_method bitsandbytes" },
    { qwen3, "quantization_config", "{}", ERR_UNSUPPORTED, "an unnamed method" },
    { qwen3, "compression_config", "{\"quant_method\":\"sparseml\"}", ERR_UNSUPPORTED, "sparseml" },
    { qwen35, "text_config.quantization_config", "{\"quant_method\":\"torchao\"}", ERR_UNSUPPORTED, "quant_method torchao" },
    { qwen35, "quantization_config", "{\"quant_method\":\"exl2\"}", ERR_UNSUPPORTED, "quant_method exl2" },
    { qwen3, "quantization_config", "7", ERR_INPUT, "quantization_config must be an object" },
    /* rope */
    { qwen3, "rope_theta", NULL, ERR_INPUT, "rope_theta is missing" },
    { qwen3, "rope_theta", "1", ERR_INPUT, "rope_theta must be" },
    { qwen3, "rope_theta", "-1e6", ERR_INPUT, "rope_theta must be" },
    { qwen3, "rope_scaling", "{\"rope_type\":\"dynamic\",\"factor\":2}", ERR_UNSUPPORTED,
      "rope_type \"dynamic\" is not supported" },
    { qwen3, "rope_scaling", "{\"type\":\"longrope\",\"factor\":2}", ERR_UNSUPPORTED,
      "type \"longrope\" is not supported" },
    { qwen3, "rope_scaling", "{\"rope_type\":\"axial\"}", ERR_UNSUPPORTED, "rope_type \"axial\"" },
    { qwen3, "rope_scaling", "{\"rope_type\":5}", ERR_INPUT, "rope_type must be a string" },
    { qwen3, "rope_scaling", "\"yarn\"", ERR_INPUT, "rope_scaling must be an object" },
    { qwen3, "rope_scaling", "{\"rope_type\":\"linear\"}", ERR_INPUT, "factor is missing" },
    { qwen3, "rope_scaling", "{\"rope_type\":\"linear\",\"factor\":0}", ERR_INPUT, "factor must be" },
    { qwen3, "rope_scaling", "{\"rope_type\":\"yarn\"}", ERR_INPUT, "factor is missing" },
    { qwen3, "rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":0.5}", ERR_INPUT, "factor must be" },
    { qwen3, "rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":0}", ERR_INPUT,
      "original_max_position_embeddings must be" },
    { qwen3, "rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4,\"beta_fast\":0}", ERR_INPUT, "beta_fast must be" },
    { qwen3, "rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4,\"beta_fast\":1,\"beta_slow\":32}", ERR_INPUT,
      "beta_slow" },
    { qwen3, "rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4,\"attention_factor\":-1}", ERR_INPUT,
      "attention_factor must be" },
    { qwen3, "rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4,\"truncate\":0}", ERR_INPUT, "truncate must be" },
    { llama31, "rope_scaling.original_max_position_embeddings", NULL, ERR_INPUT,
      "original_max_position_embeddings is missing" },
    { llama31, "rope_scaling.low_freq_factor", NULL, ERR_INPUT, "low_freq_factor" },
    { llama31, "rope_scaling.high_freq_factor", "1", ERR_INPUT, "low_freq_factor below high_freq_factor" },
    { qwen35, "text_config.rope_parameters.partial_rotary_factor", "0", ERR_INPUT, "partial_rotary_factor must be" },
    { qwen35, "text_config.rope_parameters.partial_rotary_factor", "1.5", ERR_INPUT, "partial_rotary_factor must be" },
    { qwen35, "text_config.rope_parameters.partial_rotary_factor", "1", ERR_INPUT,
      "does not divide the 128 rotary pairs" },
    { qwen35, "text_config.rope_parameters.mrope_section", "[11,11]", ERR_INPUT, "must have three numbers" },
    { qwen35, "text_config.rope_parameters.mrope_section", "[11,11,11]", ERR_INPUT,
      "does not divide the 32 rotary pairs" },
    { qwen35, "text_config.rope_parameters.mrope_section", "[11,-11,32]", ERR_INPUT, "mrope_section[1] must be" },
    { qwen35, "text_config.rope_parameters.mrope_section", "[8,12,12]", ERR_INPUT, "does not divide" },
    { qwen35, "text_config.rope_parameters.mrope_section", "[11,11.5,10]", ERR_INPUT, "mrope_section[1] must be" },
    { qwen35, "text_config.rope_parameters.mrope_interleaved", "false", ERR_UNSUPPORTED, "mrope_interleaved false" },
    /* ids */
    { qwen3, "eos_token_id", "151936", ERR_INPUT, "eos_token_id must be ids in [0, 151935], or null" },
    { qwen3, "eos_token_id", "-1", ERR_INPUT, "eos_token_id must be ids" },
    { qwen3, "eos_token_id", "\"x\"", ERR_INPUT, "eos_token_id must be ids" },
    { qwen3, "eos_token_id", "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]", ERR_UNSUPPORTED, "more than 16 ids" },
    { qwen3, "bos_token_id", "151936", ERR_INPUT, "bos_token_id must be" },
};

static void refused_files(void **state)
{
    for (int i = 0; i < COUNT(refused); i++) {
        char *file = changed(refused[i].file, refused[i].path, refused[i].value);
        ModelConfig c;
        Error err = { 0 };
        Status status = parse(&c, file, &err);
        if (status != refused[i].status || !strstr(err.text, refused[i].says)) {
            fail_msg("%s = %s: status %d \"%s\", want %d \"%s\"", refused[i].path, refused[i].value, status, err.text,
                     refused[i].status, refused[i].says);
        }
        assert_int_equal(err.status, status);
        assert_int_equal(strncmp(err.text, "config.json: ", 13), 0);
        mem_free(file);
    }
}

static void layer_types_are_known(void **state)
{
    static const struct {
        const char *file, *path, *type;
        Status      status;
    } cases[] = {
        { qwen3, "layer_types", "\"full_attention\"", OK },
        { qwen3, "layer_types", "\"sliding_attention\"", ERR_UNSUPPORTED },
        { qwen3, "layer_types", "\"linear_attention\"", ERR_UNSUPPORTED },
        { qwen3, "layer_types", "\"chunked_attention\"", ERR_UNSUPPORTED },
        { qwen3, "layer_types", "5", ERR_INPUT },
        { smollm2, "layer_types", "\"sliding_attention\"", ERR_UNSUPPORTED },
        { qwen35, "text_config.layer_types", "\"linear_attention\"", OK },
        { qwen35, "text_config.layer_types", "\"sliding_attention\"", ERR_UNSUPPORTED },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        int n = good(cases[i].file).n_layers;
        char list[4096] = "[", *file;
        for (int l = 0; l < n; l++) {
            strcat(list, l == n - 2 ? cases[i].type : "\"full_attention\"");
            strcat(list, l == n - 1 ? "]" : ",");
        }
        file = changed(cases[i].file, cases[i].path, list);
        ModelConfig c;
        Error err = { 0 };
        assert_int_equal(parse(&c, file, &err), cases[i].status);
        char place[32];
        snprintf(place, sizeof place, "layer_types[%d]", n - 2);
        if (cases[i].status != OK) assert_non_null(strstr(err.text, place));
        mem_free(file);
    }
    char *file = changed(qwen3, "use_sliding_window", "true"), *more = changed(file, "sliding_window", "4096");
    char *border = changed(more, "max_window_layers", "20");
    ModelConfig c;
    Error err = { 0 };
    assert_int_equal(parse(&c, border, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "use_sliding_window is true"));
    mem_free(file);
    mem_free(more);
    mem_free(border);
}

static void not_json(void **state)
{
    static const char *const texts[] = { "", "[", "[]", "{}", "\xff", "{\"model_type\":\"llama\"}", "[[[[" };
    for (int i = 0; i < COUNT(texts); i++) {
        ModelConfig c;
        Error err = { 0 };
        assert_int_equal(parse(&c, texts[i], &err), ERR_INPUT);
        assert_non_null(strstr(err.text, "config.json"));
    }
}

/* Any value anywhere: an error or a config whose invariants hold. */
static void random_values(void **state)
{
    static const char *const values[] = {
        "0",     "1",  "-1", "3",    "64",   "1e300", "-1e300",  "1e-300",     "9223372036854775807",
        "\"x\"", "[]", "{}", "null", "true", "0.5",   "[1,2,3]", "2147483648", "\"yarn\""
    };
    static const char *const files[] = { smollm2, llama31, qwen3, qwen35 };
    unsigned seed = 20260803;
    print_message("seed %u\n", seed);
    srand(seed);
    int n_good = 0;
    for (int round = 0; round < 4000; round++) {
        json_t *root = json_loads(files[rand() % COUNT(files)], 0, NULL), *value, *object = root;
        const char *key;
        if (json_object_get(root, "text_config") && rand() % 8) object = json_object_get(root, "text_config");
        if (rand() % 3 == 0 && json_object_get(object, "rope_parameters"))
            object = json_object_get(object, "rope_parameters");
        if (rand() % 3 == 0 && json_is_object(json_object_get(object, "rope_scaling")))
            object = json_object_get(object, "rope_scaling");
        int at = rand() % (int)json_object_size(object);
        json_object_foreach(object, key, value) {
            if (at-- == 0) break;
        }
        json_object_set_new(object, key, json_loads(values[rand() % COUNT(values)], JSON_DECODE_ANY, NULL));
        char *file = json_dumps(root, 0);
        ModelConfig c;
        Error err = { 0 };
        Status status = parse(&c, file, &err);
        assert_int_equal(status, err.status);
        if (status == OK) {
            float inv[256], scale;
            uint8_t axis[256];
            n_good++;
            assert_true(c.n_heads % c.n_kv_heads == 0 && c.head_dim <= 512 && c.n_layers <= CONFIG_MAX_LAYERS);
            assert_true(rope_dim(&c) >= 2 && rope_dim(&c) % 2 == 0 && rope_dim(&c) <= c.head_dim);
            rope_frequencies(&c, inv, axis, &scale);
            for (int i = 0; i < rope_dim(&c) / 2; i++) assert_true(isfinite(inv[i]) && inv[i] >= 0 && axis[i] <= 2);
            assert_true(isfinite(scale) && scale > 0);
        } else {
            assert_string_not_equal(err.text, "");
        }
        mem_free(file);
        json_decref(root);
    }
    assert_true(n_good > 200 && n_good < 3800);
}

/* --- rotary frequencies ------------------------------------------------------------------------------------------ */

typedef struct Wave {
    int    i;
    double inv;
} Wave;

static void expect_waves(const ModelConfig *c, const Wave *waves, int n, double scale)
{
    float inv[256], got_scale;
    uint8_t axis[256];
    rope_frequencies(c, inv, axis, &got_scale);
    assert_true(fabs(got_scale - scale) <= 1e-7 * scale);
    for (int i = 0; i < n; i++) {
        double off = fabs(inv[waves[i].i] / waves[i].inv - 1);
        if (off > 4e-7) fail_msg("inv[%d] = %.9g, want %.7g", waves[i].i, (double)inv[waves[i].i], waves[i].inv);
    }
}

static void plain_frequencies(void **state)
{
    ModelConfig c = good(qwen3);
    static const Wave q3[] = { { 0, 1 }, { 1, 0.8058422 }, { 63, 1.240938e-6 } };
    expect_waves(&c, q3, COUNT(q3), 1);
    c = good(smollm2);
    static const Wave smol[] = { { 0, 1 }, { 1, 0.6978306 }, { 31, 1.433013e-5 } };
    expect_waves(&c, smol, COUNT(smol), 1);
    c = good(qwen35);
    static const Wave q35[] = { { 0, 1 }, { 1, 0.6042964 }, { 31, 1.654817e-7 } };
    expect_waves(&c, q35, COUNT(q35), 1);
    c = good_with(smollm2, "rope_scaling", "{\"type\":\"linear\",\"factor\":4}");
    static const Wave linear[] = { { 0, 0.25 }, { 1, 0.6978306 / 4 }, { 31, 1.433013e-5 / 4 } };
    expect_waves(&c, linear, COUNT(linear), 1);
}

static void llama3_frequencies(void **state)
{
    ModelConfig c = good(llama31);
    static const Wave waves[] = { { 28, 3.211446e-3 }, { 29, 2.166571e-3 }, { 30, 1.371894e-3 }, { 34, 1.785078e-4 },
                                  { 36, 7.784655e-5 }, { 63, 3.068926e-7 } };
    expect_waves(&c, waves, COUNT(waves), 1);
}

static void yarn_frequencies(void **state)
{
    ModelConfig c = good_with(
        qwen35, "text_config.rope_parameters",
        "{\"rope_type\":\"yarn\",\"rope_theta\":10000000,\"partial_rotary_factor\":0.25,\"factor\":4.0,"
        "\"original_max_position_embeddings\":262144,\"mrope_interleaved\":true,\"mrope_section\":[11,11,10]}");
    static const Wave q35[] = {
        { 0, 1 },           { 14, 8.659643e-4 }, { 15, 4.742398e-4 }, { 18, 7.217387e-5 }, { 22, 3.849816e-6 },
        { 31, 4.137043e-8 }
    };
    expect_waves(&c, q35, COUNT(q35), 1.138629436);

    c = good_with(qwen3, "rope_scaling",
                  "{\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":32768}");
    static const Wave q3[] = { { 24, 5.375321e-3 }, { 31, 8.029597e-4 }, { 40, 4.445699e-5 }, { 63, 3.102344e-7 } };
    expect_waves(&c, q3, COUNT(q3), 1.138629436);
}

/* Both ends of the ramp outside the table: the golden checkpoint's (from -1, cut to 0), and one that ends behind it. */
static void yarn_ramps_are_cut(void **state)
{
    char *file = changed(smollm2, "head_dim", "16"), *low = changed(file, "rope_theta", "10000"),
         *high = changed(file, "rope_theta", "100");
    ModelConfig c = good_with(low, "rope_scaling",
                              "{\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":64}");
    Wave waves[8];
    for (int i = 0; i < 8; i++) {
        double ramp = i < 3 ? i / 3.0 : 1;
        waves[i] = (Wave){ i, pow(1e4, -i / 8.0) * (ramp / 4 + 1 - ramp) };
    }
    expect_waves(&c, waves, 8, 1.138629436);

    c = good_with(
        high, "rope_scaling",
        "{\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":1000000,\"beta_fast\":3000}");
    for (int i = 0; i < 8; i++) { /* raw ends 6.9 and 20.8: 6 and, cut, 15 */
        double ramp = i < 6 ? 0 : (i - 6) / 9.0;
        waves[i] = (Wave){ i, pow(100, -i / 8.0) * (ramp / 4 + 1 - ramp) };
    }
    expect_waves(&c, waves, 8, 1.138629436);
    mem_free(file);
    mem_free(low);
    mem_free(high);
}

/* The factor on cos and sin: given, from two mscales, or from the factor. */
static void yarn_scales(void **state)
{
#define YARN(more) "{\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":32768" more "}"
    static const struct {
        const char *rope;
        double      scale;
    } cases[] = {
        { YARN(""), 1.138629436 },
        { YARN(",\"attention_factor\":1.5"), 1.5 },
        { YARN(",\"attention_factor\":1.5,\"mscale\":2,\"mscale_all_dim\":1"), 1.5 },
        { YARN(",\"mscale\":2,\"mscale_all_dim\":1"), 1.277258872 / 1.138629436 },
        { YARN(",\"mscale\":2"), 1.138629436 },
        { YARN(",\"mscale\":2,\"mscale_all_dim\":0"), 1.138629436 },
        { "{\"rope_type\":\"yarn\",\"factor\":1.0,\"original_max_position_embeddings\":40960}", 1 },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        ModelConfig c = good_with(qwen3, "rope_scaling", cases[i].rope);
        expect_waves(&c, NULL, 0, cases[i].scale);
    }
    /* Without truncation the ramp begins at 23.596, not 23. */
    ModelConfig c = good_with(qwen3, "rope_scaling", YARN(",\"truncate\":false"));
    double t = (24 - 23.596) / (39.651 - 23.596), inv = pow(1e6, -24.0 / 64);
    float got[64], scale;
    uint8_t axis[64];
    rope_frequencies(&c, got, axis, &scale);
    assert_true(fabs(got[24] / (inv / 4 * t + inv * (1 - t)) - 1) < 1e-4);
}

static void axes(void **state)
{
    static const struct {
        const char *section, *head_dim, *axes;
    } cases[] = {
        { "[11,11,10]", "256", "01201201201201201201201201201201" },
        { "[2,1,1]", "32", "0120" },
        { "[4,2,2]", "64", "01201200" },
        { "[24,20,20]", "512", "0120120120120120120120120120120120120120120120120120120120120000" },
        { "[4,0,0]", "32", "0000" },
        { "[3,0,1]", "32", "0020" },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        char *file = changed(qwen35, "text_config.rope_parameters.mrope_section", cases[i].section);
        ModelConfig c = good_with(file, "text_config.head_dim", cases[i].head_dim);
        float inv[64], scale;
        uint8_t axis[64];
        rope_frequencies(&c, inv, axis, &scale);
        assert_int_equal(rope_dim(&c) / 2, strlen(cases[i].axes));
        for (int k = 0; cases[i].axes[k]; k++) assert_int_equal(axis[k], cases[i].axes[k] - '0');
        mem_free(file);
    }
    ModelConfig c = good(qwen3);
    float inv[64], scale;
    uint8_t axis[64];
    rope_frequencies(&c, inv, axis, &scale);
    for (int k = 0; k < 64; k++) assert_int_equal(axis[k], 0);
}

/* --- directories ------------------------------------------------------------------------------------------------- */

static int open_dir(void **state)
{
    static TempDir t;
    temp_dir_open(&t);
    *state = &t;
    return 0;
}

static int close_dir(void **state)
{
    temp_dir_close(*state);
    return 0;
}

static void expect_read(const TempDir *t, Status status, const char *says)
{
    ModelConfig c;
    Error err = { 0 };
    Status got = config_read(&c, t->path, &err);
    if (got != status || !strstr(err.text, says)) fail_msg("%d \"%s\", want %d \"%s\"", got, err.text, status, says);
    if (status != OK) assert_non_null(strstr(err.text, t->path));
}

static void reading_a_directory(void **state)
{
    const TempDir *t = *state;
    expect_read(t, ERR_NOT_FOUND, "there is no file");
    temp_write(t, "config.json", "{", 1);
    expect_read(t, ERR_INPUT, "config.json is not valid JSON");
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\n";
    temp_write(t, "config.json", pointer, sizeof pointer - 1);
    expect_read(t, ERR_INPUT, "run git lfs pull");
    temp_write(t, "config.json", qwen3, strlen(qwen3));
    expect_read(t, OK, "");
    temp_write(t, "generation_config.json", "{\"top_k\":-7}", 12);
    expect_read(t, ERR_INPUT, "generation_config.json: top_k must be");
    temp_write(t, "generation_config.json", "{\"top_p\":7}", 11);
    expect_read(t, OK, ""); /* the sampler's business */
    temp_write(t, "generation_config.json", "{}", 2);
    expect_read(t, OK, "");

    char *large = calloc(1, 5 << 20);
    memset(large, ' ', 5 << 20);
    memcpy(large, qwen3, strlen(qwen3));
    temp_write(t, "config.json", large, 5 << 20);
    expect_read(t, ERR_INPUT, "is larger than 4194304 bytes");
    free(large);
}

static void no_memory(void **state)
{
    const TempDir *t = *state;
    ModelConfig c;
    Error err = { 0 };
    Status status;
    temp_write(t, "config.json", llama31, strlen(llama31));
    temp_write(t, "generation_config.json", "{\"top_p\":0.5}", 13);
    STARVE(status, status = config_read(&c, t->path, &err), (void)0);
    STARVE(status, status = config_parse(&c, qwen35, strlen(qwen35), "{}", 2, &err), (void)0);
}

int main(void)
{
#define IN_DIR(name) cmocka_unit_test_setup_teardown(name, open_dir, close_dir)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bundled_and_golden),
        cmocka_unit_test(nano_in_full),
        cmocka_unit_test(published_files),
        cmocka_unit_test(defaults),
        cmocka_unit_test(spellings),
        cmocka_unit_test(windows_that_do_not_slide),
        cmocka_unit_test(stop_ids_are_united),
        cmocka_unit_test(generation_defaults),
        cmocka_unit_test(bad_generation_defaults),
        cmocka_unit_test(refused_files),
        cmocka_unit_test(layer_types_are_known),
        cmocka_unit_test(not_json),
        cmocka_unit_test(random_values),
        cmocka_unit_test(plain_frequencies),
        cmocka_unit_test(llama3_frequencies),
        cmocka_unit_test(yarn_frequencies),
        cmocka_unit_test(yarn_ramps_are_cut),
        cmocka_unit_test(yarn_scales),
        cmocka_unit_test(axes),
        IN_DIR(reading_a_directory),
        IN_DIR(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
