/* Safetensors: the parts of a quantised matrix, recognised by their names and types, become one tensor.
 *
 * docs/spec/quantization.md 2.0: the suffixes beside "weight" tell the format; what config.json declares is for those
 * who read it. A part is taken only together with its codes; one that stands alone stays a tensor of its own, which
 * nobody will ask for and the model's check will name. */
#include "tensor/checkpoint_impl.h"

#include <math.h>
#include <stdio.h>

enum { BLOCK_ROWS = 128, BLOCK_COLUMNS = 128, MAX_NAME = 1024 };

typedef struct Reader {
    TensorList        *list;
    const Safetensors *st;
    Error             *err;
} Reader;

/* base + suffix in the file; NULL: absent. */
static const SafetensorsEntry *find_part(const Reader *r, Str base, const char *suffix)
{
    char name[MAX_NAME];
    int n = snprintf(name, sizeof name, "%.*s%s", (int)base.len, base.data, suffix);
    return n > 0 && n < (int)sizeof name ? safetensors_find(r->st, name) : NULL;
}

/* True when name is base + suffix; sets base. */
static bool cut_suffix(const char *name, const char *suffix, Str *base)
{
    size_t n = strlen(name), m = strlen(suffix);
    if (n <= m || strcmp(name + n - m, suffix) != 0) return false;
    *base = (Str){ name, n - m };
    return true;
}

static CheckpointPart part_of(const SafetensorsEntry *e)
{
    return (CheckpointPart){ e->shard, e->offset, e->bytes };
}

static Status wrong(const Reader *r, const SafetensorsEntry *e, const char *what)
{
    return error_set(r->err, ERR_INPUT, "tensor %.120s %s", e->name, what);
}

static bool has_shape(const SafetensorsEntry *e, int64_t a, int64_t b)
{
    return e->n_dims == 2 && e->shape[0] == a && e->shape[1] == b;
}

static bool is_type(const SafetensorsEntry *e, const char *type)
{
    return strcmp(e->dtype_text, type) == 0;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* ---- what all have ---- */

static Status no_memory(const Reader *r)
{
    return error_set(r->err, ERR_NOMEM, "no memory for the list of tensors");
}

/* A matrix [n_out, n_in] called base + ".weight"; NULL: no memory. */
static CheckpointTensor *add_matrix(Reader *r, Str base, QuantFormat format, int64_t n_out, int64_t n_in)
{
    CheckpointTensor *t = tensor_list_add(r->list);
    if (!t) return NULL;
    t->name = arena_printf(&r->list->names, "%.*s.weight", (int)base.len, base.data);
    t->type = quant_geometry(format)->name;
    tensor_set_shape(t, (int64_t[]){ n_out, n_in }, 2);
    t->stored.format = format;
    t->stored.group_out = 1;
    return t->name ? t : NULL;
}

/* A single float32, finite and not 0. */
static Status read_number(const Reader *r, const SafetensorsEntry *e, float *value)
{
    if (!is_type(e, "F32") || e->bytes != sizeof *value) return wrong(r, e, "must be a single F32 number");
    Status s = safetensors_read(r->st, e, 0, value, sizeof *value, r->err);
    if (!s && (!isfinite(*value) || *value == 0)) s = wrong(r, e, "is not finite or 0, which leaves no weights");
    return s;
}

/* A type that scales can have; false for others. */
static bool scale_type(const SafetensorsEntry *e, DType *type)
{
    *type = is_type(e, "F8_E8M0") ? DT_U8 : e->dtype;
    return *type == DT_F32 || *type == DT_BF16 || *type == DT_F16 || *type == DT_U8;
}

/* ---- FP4 ---- */

/* Codes [n_out, n_in / 2] U8; a scale for each `group` inputs. */
static Status add_fp4(Reader *r, Str base, const SafetensorsEntry *codes, const SafetensorsEntry *scales,
                      QuantFormat format, int group, float global)
{
    if (!is_type(codes, "U8") || codes->n_dims != 2 || codes->shape[1] < 1 || codes->shape[1] % (group / 2) != 0)
        return wrong(r, codes, "is no matrix of FP4 pairs in whole groups");
    const int64_t n_out = codes->shape[0], n_in = 2 * codes->shape[1];
    if (!has_shape(scales, n_out, n_in / group))
        return wrong(r, scales, "does not have one scale for each group of its weight");
    CheckpointTensor *t = add_matrix(r, base, format, n_out, n_in);
    if (!t) return no_memory(r);
    t->codes = part_of(codes);
    t->scales = part_of(scales);
    t->stored.scale_type = format == QUANT_NVFP4 ? DT_F8_E4M3 : DT_U8;
    t->stored.group_in = group;
    t->stored.global = global;
    return OK;
}

static Status add_modelopt(Reader *r, Str base, const SafetensorsEntry *codes)
{
    const SafetensorsEntry *scales = find_part(r, base, ".weight_scale");
    float global = 1;
    Status s = read_number(r, find_part(r, base, ".weight_scale_2"), &global);
    return s ? s : add_fp4(r, base, codes, scales, QUANT_NVFP4, 16, global);
}

/* compressed-tensors: the global scale is a divisor; without one, and with bytes as scales, it is MXFP4. */
static Status add_packed(Reader *r, Str base, const SafetensorsEntry *codes)
{
    const SafetensorsEntry *scales = find_part(r, base, ".weight_scale");
    const SafetensorsEntry *global = find_part(r, base, ".weight_global_scale");
    float divisor = 1;
    if (is_type(scales, "U8")) return add_fp4(r, base, codes, scales, QUANT_MXFP4, 32, 1);
    if (!is_type(scales, "F8_E4M3") || !global)
        return wrong(r, scales, "belongs to packed weights that are neither NVFP4 nor MXFP4");
    Status s = read_number(r, global, &divisor);
    if (!s && !isnormal(1.0f / divisor)) s = wrong(r, global, "is so large that nothing is left of its weights");
    return s ? s : add_fp4(r, base, codes, scales, QUANT_NVFP4, 16, 1.0f / divisor);
}

/* ---- FP8 ---- */

/* How many outputs and inputs share one of these scales; false when the shape fits none of the three ways. */
static bool fp8_groups(const SafetensorsEntry *codes, const SafetensorsEntry *scales, QuantMatrix *m)
{
    const int64_t n_out = codes->shape[0], n_in = codes->shape[1];
    m->group_out = n_out;
    m->group_in = n_in;
    if (scales->n_dims == 0 || (scales->n_dims == 1 && scales->shape[0] == 1)) return true;
    m->group_out = 1;
    if ((scales->n_dims == 1 && scales->shape[0] == n_out) || has_shape(scales, n_out, 1)) return true;
    m->group_out = BLOCK_ROWS;
    m->group_in = BLOCK_COLUMNS;
    const int64_t rows = ceil_div(n_out, BLOCK_ROWS), columns = ceil_div(n_in, BLOCK_COLUMNS), *shape = scales->shape;
    if (scales->n_dims == 4) return shape[0] == rows && shape[1] == 1 && shape[2] == columns && shape[3] == 1; /* ModelOpt */
    return has_shape(scales, rows, columns);
}

static Status add_fp8(Reader *r, Str base, const SafetensorsEntry *codes, const SafetensorsEntry *scales)
{
    DType type;
    QuantMatrix groups = { 0 };
    if (codes->n_dims != 2 || codes->shape[0] < 1 || codes->shape[1] < 1)
        return wrong(r, codes, "is FP8, but no matrix");
    if (!scale_type(scales, &type)) return wrong(r, scales, "has a type that scales do not have");
    if (!fp8_groups(codes, scales, &groups))
        return wrong(r, scales, "has neither one scale, nor one for each output, nor one for each 128 x 128 block");
    CheckpointTensor *t = add_matrix(r, base, QUANT_FP8, codes->shape[0], codes->shape[1]);
    if (!t) return no_memory(r);
    t->codes = part_of(codes);
    t->scales = part_of(scales);
    t->stored.scale_type = type;
    t->stored.group_out = groups.group_out;
    t->stored.group_in = groups.group_in;
    return OK;
}

/* ---- AWQ, GPTQ, pack-quantized ---- */

/* The group of each input, where a file names it; no part where that is what an input's place says, as without act-order. */
static Status add_groups(const Reader *r, CheckpointTensor *t, const SafetensorsEntry *groups)
{
    int32_t piece[1024];
    bool in_order = true;
    Status s = OK;
    if (!groups) return OK;
    if (!is_type(groups, "I32") || groups->n_dims != 1 || groups->shape[0] != t->stored.n_in)
        return wrong(r, groups, "does not name a group for each input");
    for (int64_t k = 0, n; in_order && !s && k < t->stored.n_in; k += n) {
        n = t->stored.n_in - k < COUNT(piece) ? t->stored.n_in - k : COUNT(piece);
        s = safetensors_read(r->st, groups, (uint64_t)k * sizeof *piece, piece, (size_t)n * sizeof *piece, r->err);
        for (int64_t i = 0; !s && i < n; i++) in_order &= piece[i] == (k + i) / t->stored.group_in;
    }
    if (!s && !in_order) t->groups = part_of(groups);
    return s;
}

/* Inputs of each of n_groups groups, the last one perhaps shorter where a list says which input is in which; 0: there are no
 * such groups. Their size itself stands in config.json only. */
static int64_t group_of(int64_t n_in, int64_t n_groups, const SafetensorsEntry *list)
{
    const int64_t group = ceil_div(n_in, n_groups);
    return ceil_div(n_in, group) == n_groups && (list || n_in % n_groups == 0) ? group : 0;
}

/* scales [n_groups, n_out]; codes [n_in, n_out / 8] in AWQ, [n_in / 8, n_out] in GPTQ. */
static Status add_int4(Reader *r, Str base, const SafetensorsEntry *codes)
{
    const SafetensorsEntry *zeros = find_part(r, base, ".qzeros"), *scales = find_part(r, base, ".scales");
    const SafetensorsEntry *groups = find_part(r, base, ".g_idx");
    DType type;
    if (scales->n_dims != 2 || scales->shape[0] < 1 || scales->shape[1] < 8 || scales->shape[1] % 8 != 0 ||
        !scale_type(scales, &type) || type == DT_U8)
        return wrong(r, scales, "are no scales of 4-bit groups");
    const int64_t n_groups = scales->shape[0], n_out = scales->shape[1];
    if (!is_type(zeros, "I32") || !has_shape(zeros, n_groups, n_out / 8))
        return wrong(r, zeros, "does not have a 4-bit zero point for each scale");
    if (!is_type(codes, "I32") || codes->n_dims != 2 || codes->shape[0] < 1 ||
        (codes->shape[1] != n_out && codes->shape[1] != n_out / 8))
        return wrong(r, codes, "has a shape that 4-bit weights with these scales do not have");

    const bool is_awq = codes->shape[1] != n_out;
    const int64_t n_in = is_awq ? codes->shape[0] : 8 * codes->shape[0], group = group_of(n_in, n_groups, groups);
    if (!group) return wrong(r, scales, "has a number of groups that the inputs of its weight do not make");
    CheckpointTensor *t = add_matrix(r, base, is_awq ? QUANT_AWQ : QUANT_GPTQ, n_out, n_in);
    if (!t) return no_memory(r);
    t->codes = part_of(codes);
    t->zeros = part_of(zeros);
    t->scales = part_of(scales);
    t->stored.scale_type = type;
    t->stored.group_in = group;
    t->stored.zero_offset = is_awq ? 0 : 1;
    return add_groups(r, t, groups);
}

/* The shape that a file states, where it does: two integers. */
static Status check_shape_part(const Reader *r, const SafetensorsEntry *shape, int64_t n_out, int64_t n_in)
{
    int64_t wide[2] = { 0 };
    int32_t narrow[2];
    if (!shape) return OK;
    const bool is_wide = is_type(shape, "I64");
    if ((!is_wide && !is_type(shape, "I32")) || shape->bytes != (is_wide ? sizeof wide : sizeof narrow))
        return wrong(r, shape, "does not state a shape of two integers");
    Status s = safetensors_read(r->st, shape, 0, is_wide ? (void *)wide : narrow, shape->bytes, r->err);
    for (int i = 0; !is_wide && !s && i < 2; i++) wide[i] = narrow[i];
    if (!s && (wide[0] != n_out || wide[1] != n_in)) s = wrong(r, shape, "states another shape than its packed 4-bit weights have");
    return s;
}

/* compressed-tensors: codes [n_out, n_in / 8], scales [n_out, n_groups], zero points packed by outputs, if any. */
static Status add_pack_quantized(Reader *r, Str base, const SafetensorsEntry *codes)
{
    const SafetensorsEntry *scales = find_part(r, base, ".weight_scale");
    const SafetensorsEntry *zeros = find_part(r, base, ".weight_zero_point"), *shape = find_part(r, base, ".weight_shape");
    const SafetensorsEntry *groups = find_part(r, base, ".weight_g_idx");
    DType type;
    if (codes->n_dims != 2 || codes->shape[0] < 1 || codes->shape[1] < 1 || codes->shape[1] > INT64_MAX / 8)
        return wrong(r, codes, "is no matrix of packed 4-bit weights");
    const int64_t n_out = codes->shape[0], n_in = 8 * codes->shape[1];
    if (scales->n_dims != 2 || scales->shape[0] != n_out || scales->shape[1] < 1 || scales->shape[1] > n_in || !scale_type(scales, &type) || type == DT_U8)
        return wrong(r, scales, "are no scales of 4-bit groups");
    const int64_t n_groups = scales->shape[1], group = group_of(n_in, n_groups, groups);
    if (!group) return wrong(r, scales, "has a number of groups that the inputs of its weight do not make");
    if (zeros && (!is_type(zeros, "I32") || !has_shape(zeros, ceil_div(n_out, 8), n_groups)))
        return wrong(r, zeros, "does not have a 4-bit zero point for each scale");
    Status s = check_shape_part(r, shape, n_out, n_in);
    if (s) return s;
    CheckpointTensor *t = add_matrix(r, base, QUANT_INT4, n_out, n_in);
    if (!t) return no_memory(r);
    t->codes = part_of(codes);
    t->scales = part_of(scales);
    if (zeros) t->zeros = part_of(zeros);
    t->stored.scale_type = type;
    t->stored.group_in = group;
    return add_groups(r, t, groups);
}

/* ---- which is which ---- */

static QuantFormat plain_format(const SafetensorsEntry *e)
{
    switch (e->dtype) {
    case DT_F32: return QUANT_F32;
    case DT_F16: return QUANT_F16;
    case DT_BF16: return QUANT_BF16;
    default: return QUANT_NONE;
    }
}

static Status add_plain(Reader *r, const SafetensorsEntry *e)
{
    CheckpointTensor *t = tensor_list_add(r->list);
    if (!t) return no_memory(r);
    t->name = e->name;
    t->type = e->dtype_text;
    tensor_set_shape(t, e->shape, e->n_dims);
    t->codes = part_of(e);
    t->stored.format = plain_format(e);
    return OK;
}

/* Suffixes of parts, and of the codes that they belong to. */
static const struct {
    const char *part, *codes[2];
} parts[] = {
    { ".weight_scale", { ".weight", ".weight_packed" } },
    { ".weight_scale_2", { ".weight", NULL } },
    { ".weight_scale_inv", { ".weight", NULL } },
    { ".weight_global_scale", { ".weight_packed", NULL } },
    { ".weight_zero_point", { ".weight_packed", NULL } },
    { ".weight_shape", { ".weight_packed", NULL } },
    { ".weight_g_idx", { ".weight_packed", NULL } },
    { ".input_scale", { ".weight", NULL } }, /* activations stay as they are: nobody needs these two ... */
    { ".input_global_scale", { ".weight_packed", NULL } },
    { ".k_scale", { ".weight", NULL } }, /* ... nor scales for a cache that keeps its own */
    { ".v_scale", { ".weight", NULL } },
    { ".qzeros", { ".qweight", NULL } },
    { ".scales", { ".qweight", NULL } },
    { ".g_idx", { ".qweight", NULL } },
};

/* Codes of a quantised matrix, by their type and what stands beside them. */
static bool is_codes(const Reader *r, const SafetensorsEntry *e, Str base, const char *suffix)
{
    const bool scaled = find_part(r, base, ".weight_scale") != NULL;
    if (strcmp(suffix, ".weight_packed") == 0) return scaled;
    if (strcmp(suffix, ".qweight") == 0) return find_part(r, base, ".qzeros") && find_part(r, base, ".scales");
    if (is_type(e, "U8")) return scaled && find_part(r, base, ".weight_scale_2");
    return is_type(e, "F8_E4M3") && (scaled || find_part(r, base, ".weight_scale_inv"));
}

static bool is_part(const Reader *r, const SafetensorsEntry *e)
{
    Str base;
    for (int i = 0; i < COUNT(parts); i++) {
        if (!cut_suffix(e->name, parts[i].part, &base)) continue;
        for (int k = 0; k < 2 && parts[i].codes[k]; k++) {
            const SafetensorsEntry *codes = find_part(r, base, parts[i].codes[k]);
            if (codes && is_codes(r, codes, base, parts[i].codes[k])) return true;
        }
    }
    return false;
}

static Status add_entry(Reader *r, const SafetensorsEntry *e)
{
    Str base;
    if (is_part(r, e)) return OK;
    if (cut_suffix(e->name, ".weight_packed", &base) && is_codes(r, e, base, ".weight_packed"))
        return is_type(e, "I32") ? add_pack_quantized(r, base, e) : add_packed(r, base, e);
    if (cut_suffix(e->name, ".qweight", &base) && is_codes(r, e, base, ".qweight")) return add_int4(r, base, e);
    if (cut_suffix(e->name, ".weight", &base) && is_codes(r, e, base, ".weight")) {
        if (is_type(e, "U8")) return add_modelopt(r, base, e);
        const SafetensorsEntry *inverse = find_part(r, base, ".weight_scale_inv"); /* a multiplier all the same */
        return add_fp8(r, base, e, inverse ? inverse : find_part(r, base, ".weight_scale"));
    }
    return add_plain(r, e);
}

Status checkpoint_list_safetensors(TensorList *list, const Safetensors *st, Error *err)
{
    Reader r = { list, st, err };
    Status s = OK;
    for (int i = 0; !s && i < safetensors_count(st); i++) s = add_entry(&r, safetensors_at(st, i));
    return s;
}
