/* GGUF: tensors under the names of Hugging Face, with the orders that its converter changed.
 *
 * docs/spec/quantization.md 4.2. llama: rows of q and k are interleaved for a rotation of neighbours. qwen35: value
 * heads lie tiled (repeat by repeat) instead of grouped by key head, wherever they are counted: rows of v, z, b, a and
 * the convolution, A and dt, columns of out_proj. Norms have their 1 added, A_log is -exp(A_log): nothing is left to
 * do. */
#include "tensor/checkpoint_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_LAYERS = 1 << 16, MAX_COUNT = 1 << 20 };

typedef enum Arch { ARCH_LLAMA, ARCH_QWEN3, ARCH_QWEN35, N_ARCHS } Arch;

static const char *const arch_names[N_ARCHS] = { "llama", "qwen3", "qwen35" };

/* Which order a tensor is in, for a given architecture. */
typedef enum Turn {
    AS_STORED,
    TURN_Q,           /* llama: rows of n_heads heads */
    TURN_K,           /* llama: rows of n_kv_heads heads */
    TURN_V_OF_QKV,    /* qwen35: rows behind q and k */
    TURN_VALUE_ROWS,  /* qwen35: value_dim rows a head */
    TURN_HEAD_ROWS,   /* qwen35: one row a head */
    TURN_HEADS,       /* qwen35: one number a head, a vector */
    TURN_VALUE_COLUMNS,
} Turn;

typedef struct NameRow {
    const char *gguf, *ours; /* without "blk.N." and "model.layers.N." */
    Turn        turn;
} NameRow;

static const NameRow outer_names[] = {
    { "token_embd.weight", "model.embed_tokens.weight", AS_STORED },
    { "output_norm.weight", "model.norm.weight", AS_STORED },
    { "output.weight", "lm_head.weight", AS_STORED },
};

static const NameRow layer_names[] = {
    { "attn_norm.weight", "input_layernorm.weight", AS_STORED },
    { "attn_q.weight", "self_attn.q_proj.weight", TURN_Q },
    { "attn_k.weight", "self_attn.k_proj.weight", TURN_K },
    { "attn_v.weight", "self_attn.v_proj.weight", AS_STORED },
    { "attn_output.weight", "self_attn.o_proj.weight", AS_STORED },
    { "attn_q.bias", "self_attn.q_proj.bias", TURN_Q },
    { "attn_k.bias", "self_attn.k_proj.bias", TURN_K },
    { "attn_v.bias", "self_attn.v_proj.bias", AS_STORED },
    { "attn_output.bias", "self_attn.o_proj.bias", AS_STORED },
    { "attn_q_norm.weight", "self_attn.q_norm.weight", AS_STORED },
    { "attn_k_norm.weight", "self_attn.k_norm.weight", AS_STORED },
    { "ffn_norm.weight", "post_attention_layernorm.weight", AS_STORED },
    { "post_attention_norm.weight", "post_attention_layernorm.weight", AS_STORED },
    { "ffn_gate.weight", "mlp.gate_proj.weight", AS_STORED },
    { "ffn_up.weight", "mlp.up_proj.weight", AS_STORED },
    { "ffn_down.weight", "mlp.down_proj.weight", AS_STORED },
    { "attn_qkv.weight", "linear_attn.in_proj_qkv.weight", TURN_V_OF_QKV },
    { "attn_gate.weight", "linear_attn.in_proj_z.weight", TURN_VALUE_ROWS },
    { "ssm_beta.weight", "linear_attn.in_proj_b.weight", TURN_HEAD_ROWS },
    { "ssm_alpha.weight", "linear_attn.in_proj_a.weight", TURN_HEAD_ROWS },
    { "ssm_conv1d.weight", "linear_attn.conv1d.weight", TURN_V_OF_QKV },
    { "ssm_dt.bias", "linear_attn.dt_bias", TURN_HEADS },
    { "ssm_a", "linear_attn.A_log", TURN_HEADS },
    { "ssm_norm.weight", "linear_attn.norm.weight", AS_STORED },
    { "ssm_out.weight", "linear_attn.out_proj.weight", TURN_VALUE_COLUMNS },
};

/* In the layers behind the model's own: the MTP module. */
static const NameRow mtp_names[] = {
    { "nextn.eh_proj.weight", "mtp.fc.weight", AS_STORED },
    { "nextn.enorm.weight", "mtp.pre_fc_norm_embedding.weight", AS_STORED },
    { "nextn.hnorm.weight", "mtp.pre_fc_norm_hidden.weight", AS_STORED },
    { "nextn.shared_head_norm.weight", "mtp.norm.weight", AS_STORED },
};

/* What the metadata says that decides about names and orders. */
typedef struct Shapes {
    Arch    arch;
    int64_t n_layers; /* the model's own */
    int64_t n_heads, n_kv_heads;
    int64_t key_heads, value_heads, key_dim, value_dim; /* qwen35: Gated DeltaNet; 0 without */
} Shapes;

typedef struct Reader {
    TensorList *list;
    const Gguf *g;
    Shapes      shapes;
    Error      *err;
} Reader;

/* ---- metadata ---- */

static Status find_arch(Reader *r)
{
    Str name = { 0 };
    Status s = gguf_get_string(r->g, "general.architecture", &name, r->err);
    if (s) return s;
    for (int i = 0; i < N_ARCHS; i++) {
        if (!str_equal(name, str_of(arch_names[i]))) continue;
        r->shapes.arch = (Arch)i;
        return OK;
    }
    return error_set(r->err, ERR_UNSUPPORTED,
                     "%s: the architecture \"%.*s\" is not supported; llama, qwen3 and qwen35 are", gguf_path(r->g),
                     (int)(name.len < 60 ? name.len : 60), name.data ? name.data : "");
}

static Status get_count(Reader *r, const char *key, int64_t min, int64_t *value)
{
    char name[80];
    snprintf(name, sizeof name, "%s.%s", arch_names[r->shapes.arch], key);
    return gguf_get_int(r->g, name, min, MAX_COUNT, value, r->err);
}

static Status read_value_heads(Reader *r)
{
    Shapes *h = &r->shapes;
    int64_t inner = 0;
    Status s = get_count(r, "ssm.group_count", 1, &h->key_heads);
    if (!s) s = get_count(r, "ssm.time_step_rank", 1, &h->value_heads);
    if (!s) s = get_count(r, "ssm.state_size", 1, &h->key_dim);
    if (!s) s = get_count(r, "ssm.inner_size", 1, &inner);
    if (s) return s;
    if (!h->key_heads || !h->value_heads || !h->key_dim || !inner || h->value_heads % h->key_heads ||
        inner % h->value_heads)
        return error_set(r->err, ERR_INPUT, "%s: its keys ssm.* describe no Gated DeltaNet", gguf_path(r->g));
    h->value_dim = inner / h->value_heads;
    return OK;
}

static Status read_shapes(Reader *r)
{
    Shapes *h = &r->shapes;
    int64_t n_blocks = 0, n_mtp = 0;
    Status s = find_arch(r);
    if (!s) s = get_count(r, "block_count", 1, &n_blocks);
    if (!s) s = get_count(r, "nextn_predict_layers", 0, &n_mtp);
    if (!s) s = get_count(r, "attention.head_count", 1, &h->n_heads);
    h->n_kv_heads = h->n_heads;
    if (!s) s = get_count(r, "attention.head_count_kv", 1, &h->n_kv_heads);
    if (!s && (n_mtp >= n_blocks || !h->n_heads))
        s = error_set(r->err, ERR_INPUT, "%s: its keys block_count and attention.head_count describe no model",
                      gguf_path(r->g));
    h->n_layers = n_blocks - n_mtp;
    if (!s && h->arch == ARCH_QWEN35) s = read_value_heads(r);
    return s;
}

/* ---- names ---- */

static const NameRow *find_row(const NameRow *rows, int n, const char *gguf)
{
    for (int i = 0; i < n; i++)
        if (strcmp(rows[i].gguf, gguf) == 0) return &rows[i];
    return NULL;
}

/* "blk.12.rest" to 12 and rest; false for other names. */
static bool split_layer(const char *name, int64_t *layer, const char **rest)
{
    char *end;
    if (strncmp(name, "blk.", 4) != 0 || name[4] < '0' || name[4] > '9') return false;
    *layer = strtol(name + 4, &end, 10);
    *rest = end + 1;
    return *end == '.' && *layer < MAX_LAYERS;
}

/* Our name of a tensor, in the list's memory, and its turn. A name that is not in the tables stays as it is: if nobody
 * asks for it, the model's check says so. NULL: no memory. */
static const char *translate(Reader *r, const char *name, Turn *turn)
{
    Arena *names = &r->list->names;
    const char *rest;
    int64_t layer;
    const NameRow *row = find_row(outer_names, COUNT(outer_names), name);
    *turn = AS_STORED;
    if (row) return row->ours;
    if (!split_layer(name, &layer, &rest)) return name;
    const bool is_mtp = layer >= r->shapes.n_layers;
    if (is_mtp && (row = find_row(mtp_names, COUNT(mtp_names), rest))) return row->ours;
    if (!(row = find_row(layer_names, COUNT(layer_names), rest))) return name;
    *turn = row->turn;
    if (is_mtp) return arena_printf(names, "mtp.layers.%d.%s", (int)(layer - r->shapes.n_layers), row->ours);
    return arena_printf(names, "model.layers.%d.%s", (int)layer, row->ours);
}

/* ---- orders ---- */

/* Rows of each head: ours in two halves, stored pair by pair. */
static bool set_halves(CheckpointOrder *o, int64_t n, int64_t n_heads)
{
    *o = (CheckpointOrder){ .a = 2, .b = n / n_heads / 2, .unit = 1 };
    return n % (2 * n_heads) == 0;
}

/* Value heads from `first` on, `unit` things each: ours key head by key head, stored repeat by repeat. */
static bool set_tiled(CheckpointOrder *o, const Shapes *h, int64_t first, int64_t unit, int64_t n)
{
    *o = (CheckpointOrder){ .first = first, .a = h->key_heads, .b = h->value_heads / h->key_heads, .unit = unit };
    return n == first + h->value_heads * unit;
}

/* False when the tensor does not have the size that the metadata means. */
static bool set_order(CheckpointTensor *t, const Shapes *h, Turn turn)
{
    const bool is_vector = t->n_dims == 1;
    const int64_t n = is_vector ? t->stored.n_in : t->stored.n_out;
    CheckpointOrder *order = is_vector ? &t->columns : &t->rows;
    if (h->arch == ARCH_LLAMA && turn == TURN_Q) return set_halves(order, n, h->n_heads);
    if (h->arch == ARCH_LLAMA && turn == TURN_K) return set_halves(order, n, h->n_kv_heads);
    if (h->arch != ARCH_QWEN35) return true;
    switch (turn) {
    case TURN_V_OF_QKV: return set_tiled(order, h, 2 * h->key_heads * h->key_dim, h->value_dim, n);
    case TURN_VALUE_ROWS: return set_tiled(order, h, 0, h->value_dim, n);
    case TURN_HEAD_ROWS:
    case TURN_HEADS: return set_tiled(order, h, 0, 1, n);
    case TURN_VALUE_COLUMNS: return set_tiled(&t->columns, h, 0, h->value_dim, t->stored.n_in);
    default: return true;
    }
}

/* ---- tensors ---- */

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* "blk.0.attn_q.scale" and "blk.0.attn_q.weight.scale" are both the second-level scale of "blk.0.attn_q.weight". True
 * for such a name, when that tensor is there. */
static bool is_scale(const Reader *r, const char *name, const char *suffix)
{
    char weight[2 * GGUF_NAME_BYTES];
    if (!ends_with(name, suffix)) return false;
    const int n = (int)(strlen(name) - strlen(suffix));
    snprintf(weight, sizeof weight, "%.*s", n, name);
    if (!ends_with(weight, ".weight")) snprintf(weight, sizeof weight, "%.*s.weight", n, name);
    return gguf_find(r->g, weight) != NULL;
}

static const GgufTensor *find_scale(const Reader *r, const char *weight)
{
    char name[2 * GGUF_NAME_BYTES];
    snprintf(name, sizeof name, "%s.scale", weight);
    const GgufTensor *t = gguf_find(r->g, name);
    if (t || !ends_with(weight, ".weight")) return t;
    snprintf(name, sizeof name, "%.*s.scale", (int)(strlen(weight) - strlen(".weight")), weight);
    return gguf_find(r->g, name);
}

/* The second-level scale of a tensor into *global, if it has one. */
static Status read_global(Reader *r, const char *weight, float *global)
{
    const GgufTensor *t = find_scale(r, weight);
    if (!t) return OK;
    if (t->format != QUANT_F32 || t->bytes != sizeof *global)
        return error_set(r->err, ERR_UNSUPPORTED, "%s: tensor %s is not a single F32 scale", gguf_path(r->g), t->name);
    Status s = gguf_read(r->g, t->part, t->offset, global, sizeof *global, r->err);
    if (!s && !isfinite(*global))
        s = error_set(r->err, ERR_INPUT, "%s: tensor %s is not finite", gguf_path(r->g), t->name);
    return s;
}

/* A depthwise convolution is [channels, 1, taps] with us. */
static void set_shape(CheckpointTensor *t, const GgufTensor *from)
{
    if (ends_with(from->name, ".ssm_conv1d.weight") && from->n_dims == 2)
        tensor_set_shape(t, (int64_t[]){ from->shape[0], 1, from->shape[1] }, 3);
    else tensor_set_shape(t, from->shape, from->n_dims);
}

static Status add_tensor(Reader *r, const GgufTensor *from)
{
    Turn turn;
    if (is_scale(r, from->name, ".scale") || is_scale(r, from->name, ".input_scale")) return OK; /* see read_global */
    CheckpointTensor *t = tensor_list_add(r->list);
    if (t) t->name = translate(r, from->name, &turn);
    if (!t || !t->name) return error_set(r->err, ERR_NOMEM, "no memory for the list of tensors");
    set_shape(t, from);
    t->type = from->type_name;
    t->codes = (CheckpointPart){ from->part, from->offset, from->bytes };
    t->stored.format = from->format;
    t->is_final = true;
    if (!set_order(t, &r->shapes, turn))
        return error_set(r->err, ERR_INPUT, "%s: tensor %s does not have the size that the metadata means",
                         gguf_path(r->g), from->name);
    return from->format == QUANT_NVFP4_BLOCKS ? read_global(r, from->name, &t->stored.global) : OK;
}

Status checkpoint_list_gguf(TensorList *list, const Gguf *g, Error *err)
{
    Reader r = { .list = list, .g = g, .err = err };
    Status s = read_shapes(&r);
    for (int i = 0; !s && i < gguf_count(g); i++) s = add_tensor(&r, gguf_at(g, i));
    return s;
}
