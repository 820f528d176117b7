/* The table of stored formats, and what holds for all of them: geometry, one door to decoding, what is refused.
 *
 * A format is a row in `geometry`, a decoder (quant_blocks.c, quant_fp8.c, quant_fp4.c, quant_int4.c) and a line in
 * quant_check(). After quant_check() succeeded every decoded number is finite. */
#include "tensor/quant_impl.h"
#include "tensor/small_float.h"

#include <inttypes.h>
#include <math.h>

static const QuantGeometry geometry[QUANT_FORMATS] = {
    [QUANT_NONE] = { "none", 0, 0, false },
    [QUANT_F32] = { "F32", 1, 4, true },
    [QUANT_F16] = { "F16", 1, 2, true },
    [QUANT_BF16] = { "BF16", 1, 2, true },
    [QUANT_Q4_0] = { "Q4_0", 32, 18, true },
    [QUANT_Q4_1] = { "Q4_1", 32, 20, true },
    [QUANT_Q5_0] = { "Q5_0", 32, 22, true },
    [QUANT_Q5_1] = { "Q5_1", 32, 24, true },
    [QUANT_Q8_0] = { "Q8_0", 32, 34, true },
    [QUANT_Q4_K] = { "Q4_K", 256, 144, true },
    [QUANT_Q5_K] = { "Q5_K", 256, 176, true },
    [QUANT_Q6_K] = { "Q6_K", 256, 210, true },
    [QUANT_IQ4_NL] = { "IQ4_NL", 32, 18, true },
    [QUANT_MXFP4_BLOCKS] = { "MXFP4 blocks", 32, 17, true },
    [QUANT_NVFP4_BLOCKS] = { "NVFP4 blocks", 64, 36, true },
    [QUANT_FP8] = { "FP8", 1, 1, true },
    [QUANT_NVFP4] = { "NVFP4", 16, 8, true },
    [QUANT_MXFP4] = { "MXFP4", 32, 16, true },
    [QUANT_AWQ] = { "AWQ", 8, 4, false },
    [QUANT_GPTQ] = { "GPTQ", 8, 4, false },
    [QUANT_INT4] = { "INT4", 8, 4, true },
};

const QuantGeometry *quant_geometry(QuantFormat f)
{
    CHECK(f >= QUANT_NONE && f < QUANT_FORMATS);
    return &geometry[f];
}

size_t quant_row_bytes(QuantFormat f, int64_t n_in)
{
    const QuantGeometry *g = quant_geometry(f);
    if (!g->block || n_in < 0 || n_in % g->block != 0 || n_in / g->block > INT64_MAX / g->block_bytes) return 0;
    return (size_t)(n_in / g->block) * (size_t)g->block_bytes;
}

/* ---- decoding ---- */

static float scale_of(const void *scales, DType t, int64_t i)
{
    float f;
    if (t == DT_F8_E4M3) return e4m3_to_f32(((const uint8_t *)scales)[i]);
    if (t == DT_U8) return e8m0_to_f32(((const uint8_t *)scales)[i]);
    dtype_to_f32(&f, (const char *)scales + (size_t)i * dtype_bytes(t), t, 1);
    return f;
}

float quant_scale_at(const QuantMatrix *m, int64_t i)
{
    return scale_of(m->scales, m->scale_type, i);
}

static DType plain_type(QuantFormat f)
{
    return f == QUANT_F32 ? DT_F32 : f == QUANT_F16 ? DT_F16 : DT_BF16;
}

void quant_decode_row(const QuantMatrix *m, int64_t row, float *out)
{
    const char *codes = (const char *)m->codes + (size_t)row * quant_row_bytes(m->format, m->n_in);
    if (quant_is_plain(m->format)) {
        dtype_to_f32(out, codes, plain_type(m->format), (size_t)m->n_in);
        return;
    }
    if (quant_is_blocks(m->format)) {
        quant_decode_blocks(m->format, codes, m->n_in / geometry[m->format].block, out);
        for (int64_t i = 0; m->global != 1.0f && i < m->n_in; i++) out[i] *= m->global;
        return;
    }
    switch (m->format) {
    case QUANT_FP8: fp8_decode_row(m, row, out); return;
    case QUANT_NVFP4: nvfp4_decode_row(m, row, out); return;
    case QUANT_MXFP4: mxfp4_decode_row(m, row, out); return;
    case QUANT_AWQ:
    case QUANT_GPTQ:
    case QUANT_INT4: int4_decode_row(m, row, out); return;
    default: CHECK(!"a format that can be decoded");
    }
}

/* ---- parts ---- */

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

QuantMatrix quant_rows(const QuantMatrix *m, int64_t first, int64_t n)
{
    QuantMatrix part = *m;
    part.n_out = n;
    part.codes = (const char *)m->codes + (size_t)first * quant_row_bytes(m->format, m->n_in);
    if (m->group_out < 1) return part; /* scales are among the codes */
    const int64_t per_row = ceil_div(m->n_in, m->group_in);
    part.scales = (const char *)m->scales + (size_t)(first / m->group_out * per_row) * dtype_bytes(m->scale_type);
    if (m->zeros) part.zeros = (const char *)m->zeros + (size_t)(first / QUANT_ZEROS_IN_WORD * per_row) * sizeof(uint32_t);
    return part;
}

/* ---- refusing ---- */

static int64_t count_scales(const QuantMatrix *m)
{
    return ceil_div(m->n_out, m->group_out) * ceil_div(m->n_in, m->group_in);
}

/* Largest magnitude that a code can have. */
static float largest_code(QuantFormat f)
{
    switch (f) {
    case QUANT_FP8: return 448.0f;
    case QUANT_AWQ:
    case QUANT_GPTQ:
    case QUANT_INT4: return 15.0f;
    default: return 6.0f;
    }
}

static Status check_scales(const QuantMatrix *m, const char *name, Error *err)
{
    const float largest = largest_code(m->format);
    for (int64_t i = 0, n = count_scales(m); i < n; i++) {
        float scale = quant_scale_at(m, i);
        if (isfinite(scale * m->global * largest)) continue;
        return error_set(err, ERR_INPUT, "tensor %.120s has the scale %g at index %" PRId64
                         ", which leaves no finite weights", name, (double)scale, i);
    }
    return OK;
}

static Status check_fp8_codes(const QuantMatrix *m, const char *name, Error *err)
{
    const uint8_t *codes = m->codes;
    for (int64_t i = 0, n = m->n_out * m->n_in; i < n; i++) {
        if (!e4m3_is_nan(codes[i])) continue;
        return error_set(err, ERR_INPUT, "tensor %.120s holds NaN at row %" PRId64 ", column %" PRId64, name,
                         i / m->n_in, i % m->n_in);
    }
    return OK;
}

static Status check_groups(const QuantMatrix *m, const char *name, Error *err)
{
    const int64_t n_groups = ceil_div(m->n_in, m->group_in);
    for (int64_t k = 0; k < m->n_in; k++) {
        int32_t group;
        memcpy(&group, (const char *)m->groups + 4 * k, sizeof group);
        if (group >= 0 && group < n_groups) continue;
        return error_set(err, ERR_INPUT, "tensor %.120s puts input %" PRId64 " into group %d of %" PRId64, name, k,
                         group, n_groups);
    }
    return OK;
}

Status quant_check(const QuantMatrix *m, const char *name, Error *err)
{
    if (quant_is_plain(m->format)) return OK;
    if (!isfinite(m->global))
        return error_set(err, ERR_INPUT, "tensor %.120s has the global scale %g", name, (double)m->global);
    if (quant_is_blocks(m->format)) {
        int64_t n_blocks = m->n_out * (m->n_in / geometry[m->format].block);
        return quant_check_blocks(m->format, m->codes, n_blocks, name, err);
    }
    Status s = check_scales(m, name, err);
    if (!s && m->format == QUANT_FP8) s = check_fp8_codes(m, name, err);
    if (!s && m->groups) s = check_groups(m, name, err);
    return s;
}
