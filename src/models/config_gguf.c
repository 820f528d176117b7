/* What config.json would say of a .gguf file, written from its metadata (docs/spec/quantization.md 4.2), so that one reader
 * checks both. */
#include "models/config_impl.h"

#include "tensor/gguf.h"

#include <stdio.h>

typedef struct Writer {
    const Gguf *g;
    char        arch[32];
    json_t     *to;
    Error      *err;
    Status      status;
} Writer;

static void key_of(const Writer *w, char *out, size_t size, const char *name)
{
    snprintf(out, size, "%s.%s", w->arch, name);
}

static int64_t whole(Writer *w, const char *name, int64_t otherwise)
{
    char key[96];
    int64_t value = otherwise;
    key_of(w, key, sizeof key, name);
    if (!w->status) w->status = gguf_get_int(w->g, key, 0, INT64_MAX, &value, w->err);
    return value;
}

static double real(Writer *w, const char *name, double otherwise)
{
    char key[96];
    double value = otherwise;
    key_of(w, key, sizeof key, name);
    if (!w->status) w->status = gguf_get_double(w->g, key, -1e30, 1e30, &value, w->err);
    return value;
}

static void set_whole(Writer *w, const char *key, int64_t value)
{
    if (value >= 0) json_object_set_new(w->to, key, json_integer(value));
}

static void set_real(Writer *w, const char *key, double value)
{
    json_object_set_new(w->to, key, json_real(value));
}

static void set_text(json_t *to, const char *key, const char *value)
{
    json_object_set_new(to, key, json_string(value));
}

/* ---- parts ---- */

static void write_shapes(Writer *w)
{
    int64_t hidden = whole(w, "embedding_length", -1), heads = whole(w, "attention.head_count", -1);
    int64_t head_dim = whole(w, "attention.key_length", heads > 0 ? hidden / heads : -1);
    const GgufTensor *table = gguf_find(w->g, "token_embd.weight");
    set_whole(w, "hidden_size", hidden);
    set_whole(w, "intermediate_size", whole(w, "feed_forward_length", -1));
    set_whole(w, "num_hidden_layers", whole(w, "block_count", -1) - whole(w, "nextn_predict_layers", 0));
    set_whole(w, "mtp_num_hidden_layers", whole(w, "nextn_predict_layers", 0));
    set_whole(w, "num_attention_heads", heads);
    set_whole(w, "num_key_value_heads", whole(w, "attention.head_count_kv", heads));
    set_whole(w, "head_dim", head_dim);
    set_whole(w, "vocab_size", table && table->n_dims == 2 ? table->shape[0] : whole(w, "vocab_size", -1));
    set_whole(w, "max_position_embeddings", whole(w, "context_length", -1));
    set_real(w, "rms_norm_eps", real(w, "attention.layer_norm_rms_epsilon", 1e-5));
    json_object_set_new(w->to, "tie_word_embeddings", json_boolean(!gguf_find(w->g, "output.weight")));
    json_object_set_new(w->to, "attention_bias", json_boolean(gguf_find(w->g, "blk.0.attn_q.bias") != NULL));
}

static void write_mrope(Writer *w, json_t *rope)
{
    char key[96];
    GgufArray sections = { 0 };
    key_of(w, key, sizeof key, "rope.dimension_sections");
    if (!w->status) w->status = gguf_get_array(w->g, key, &sections, w->err);
    json_t *list = json_array();
    for (uint64_t i = 0; i < sections.n && i < 3; i++) {
        int64_t n = 0;
        if (gguf_array_int(&sections, i, &n)) json_array_append_new(list, json_integer(n));
    }
    if (json_array_size(list) == 3) {
        json_object_set(rope, "mrope_section", list);
        json_object_set_new(rope, "mrope_interleaved", json_true());
    }
    json_decref(list);
}

static void write_rope(Writer *w)
{
    json_t *rope = json_object();
    Str type = { 0 };
    char key[96];
    int64_t head_dim = json_integer_value(json_object_get(w->to, "head_dim")), turned = whole(w, "rope.dimension_count", head_dim);
    key_of(w, key, sizeof key, "rope.scaling.type");
    if (!w->status) w->status = gguf_get_string(w->g, key, &type, w->err);
    bool is_scaled = type.len > 0 && !(type.len == 4 && !memcmp(type.data, "none", 4));
    json_object_set_new(rope, "rope_type", is_scaled ? json_stringn(type.data, type.len) : json_string("default"));
    json_object_set_new(rope, "rope_theta", json_real(real(w, "rope.freq_base", 10000)));
    if (head_dim > 0 && turned != head_dim)
        json_object_set_new(rope, "partial_rotary_factor", json_real((double)turned / (double)head_dim));
    if (is_scaled) {
        json_object_set_new(rope, "factor", json_real(real(w, "rope.scaling.factor", 1)));
        json_object_set_new(rope, "original_max_position_embeddings", json_integer(whole(w, "rope.scaling.original_context_length", 0)));
    }
    write_mrope(w, rope);
    json_object_set_new(w->to, "rope_parameters", rope);
}

/* qwen35: Gated DeltaNet, with a layer of attention at the end of each interval. */
static void write_gated_delta(Writer *w)
{
    int64_t value_heads = whole(w, "ssm.time_step_rank", -1), inner = whole(w, "ssm.inner_size", -1);
    set_whole(w, "full_attention_interval", whole(w, "full_attention_interval", 4));
    set_whole(w, "linear_num_key_heads", whole(w, "ssm.group_count", -1));
    set_whole(w, "linear_num_value_heads", value_heads);
    set_whole(w, "linear_key_head_dim", whole(w, "ssm.state_size", -1));
    set_whole(w, "linear_value_head_dim", value_heads > 0 ? inner / value_heads : -1);
    set_whole(w, "linear_conv_kernel_dim", whole(w, "ssm.conv_kernel", -1));
}

static void write_token(Writer *w, json_t *root, const char *gguf_key, const char *key)
{
    int64_t id = -1;
    if (!w->status) w->status = gguf_get_int(w->g, gguf_key, 0, INT32_MAX, &id, w->err);
    if (id >= 0) json_object_set_new(root, key, json_integer(id));
}

/* End of a text and, where it is another one, end of a turn. */
static void write_ends(Writer *w, json_t *root)
{
    int64_t turn = -1, text = json_integer_value(json_object_get(root, "eos_token_id"));
    if (!w->status) w->status = gguf_get_int(w->g, "tokenizer.ggml.eot_token_id", 0, INT32_MAX, &turn, w->err);
    if (turn < 0 || turn == text || !json_object_get(root, "eos_token_id")) return;
    json_object_set_new(root, "eos_token_id", json_pack("[I, I]", (json_int_t)text, (json_int_t)turn));
}

static json_t *write_config(Writer *w, const char *model_type, bool has_gated_delta)
{
    json_t *root = json_object();
    w->to = root;
    set_text(root, "model_type", model_type);
    set_text(root, "dtype", "bfloat16");
    if (has_gated_delta) {
        w->to = json_object();
        set_text(w->to, "model_type", "qwen3_5_text");
        json_object_set_new(root, "text_config", w->to);
    }
    write_shapes(w);
    write_rope(w);
    if (has_gated_delta) write_gated_delta(w);
    write_token(w, root, "tokenizer.ggml.bos_token_id", "bos_token_id");
    write_token(w, root, "tokenizer.ggml.eos_token_id", "eos_token_id");
    write_ends(w, root);
    return root;
}

Status config_of_gguf(json_t **out, const char *path, Error *err)
{
    static const struct {
        const char *arch, *model_type;
    } known[] = { { "llama", "llama" }, { "qwen3", "qwen3" }, { "qwen35", "qwen3_5" } };
    Writer w = { .err = err };
    Gguf *g = NULL;
    Str arch = { 0 };
    Status s = gguf_open(&g, path, err);
    if (!s) s = gguf_get_string(g, "general.architecture", &arch, err);
    int i = 0;
    while (!s && i < COUNT(known) && !(arch.len == strlen(known[i].arch) && !memcmp(arch.data, known[i].arch, arch.len))) i++;
    if (!s && i == COUNT(known))
        s = error_set(err, ERR_UNSUPPORTED, "%s: the architecture \"%.*s\" is not supported; llama, qwen3 and qwen35 are", path,
                      (int)(arch.len < 40 ? arch.len : 40), arch.data);
    if (!s && i < COUNT(known)) {
        w.g = g;
        snprintf(w.arch, sizeof w.arch, "%s", known[i].arch);
        *out = write_config(&w, known[i].model_type, i == 2);
        s = w.status;
    }
    gguf_close(g);
    return s;
}
