/* GGUF blocks to float32, each type by its formula in docs/spec/quantization.md 2.8.
 *
 * Products of scales are formed first, then times the code, then the offset is subtracted, nothing fused: the order of
 * the public decoder, so all bits are its bits. Block bytes have no alignment. */
#include "tensor/quant_impl.h"
#include "tensor/small_float.h"

#include <inttypes.h>
#include <math.h>

static float half_at(const uint8_t *b)
{
    return f16_to_f32((uint16_t)(b[0] | b[1] << 8));
}

static uint32_t u32_at(const uint8_t *b)
{
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* Element j of a block of 32 whose 16 bytes hold elements j (low) and j + 16 (high). */
static int nibble(const uint8_t *qs, int j)
{
    return j < 16 ? qs[j] & 15 : qs[j - 16] >> 4;
}

/* ---- blocks of 32 ---- */

static void decode_q4_0(const uint8_t *b, float *y)
{
    const float d = half_at(b);
    for (int j = 0; j < 32; j++) y[j] = d * (float)(nibble(b + 2, j) - 8);
}

static void decode_q4_1(const uint8_t *b, float *y)
{
    const float d = half_at(b), m = half_at(b + 2);
    for (int j = 0; j < 32; j++) y[j] = d * (float)nibble(b + 4, j) + m;
}

static void decode_q5_0(const uint8_t *b, float *y)
{
    const float d = half_at(b);
    const uint32_t fifth = u32_at(b + 2);
    for (int j = 0; j < 32; j++) y[j] = d * (float)((nibble(b + 6, j) | (int)(fifth >> j & 1) << 4) - 16);
}

static void decode_q5_1(const uint8_t *b, float *y)
{
    const float d = half_at(b), m = half_at(b + 2);
    const uint32_t fifth = u32_at(b + 4);
    for (int j = 0; j < 32; j++) y[j] = d * (float)(nibble(b + 8, j) | (int)(fifth >> j & 1) << 4) + m;
}

static void decode_q8_0(const uint8_t *b, float *y)
{
    const float d = half_at(b);
    for (int j = 0; j < 32; j++) y[j] = d * (float)(int8_t)b[2 + j];
}

static void decode_iq4_nl(const uint8_t *b, float *y)
{
    static const int8_t values[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
    const float d = half_at(b);
    for (int j = 0; j < 32; j++) y[j] = d * (float)values[nibble(b + 2, j)];
}

static void decode_mxfp4(const uint8_t *b, float *y)
{
    const float d = e8m0_half_to_f32(b[0]);
    for (int j = 0; j < 32; j++) y[j] = d * (float)e2m1_doubled[nibble(b + 1, j)];
}

/* Four times 16 elements; the byte j of eight holds elements j and j + 8. A scale's sign is not looked at, and the code
 * that would be NaN is 0. */
static void decode_nvfp4(const uint8_t *b, float *y)
{
    for (int s = 0; s < 4; s++) {
        const uint8_t code = b[s], *qs = b + 4 + 8 * s;
        const float d = code == 0x7f ? 0.0f : code == 0xff ? 240.0f : 0.5f * e4m3_to_f32(code & 0x7f);
        for (int j = 0; j < 8; j++) {
            y[16 * s + j] = d * (float)e2m1_doubled[qs[j] & 15];
            y[16 * s + j + 8] = d * (float)e2m1_doubled[qs[j] >> 4];
        }
    }
}

/* ---- blocks of 256 ---- */

/* The 6-bit scale and minimum of sub-block j of 8, packed in 12 bytes. */
static void k_scale(const uint8_t *q, int j, int *scale, int *min)
{
    if (j < 4) {
        *scale = q[j] & 63;
        *min = q[j + 4] & 63;
    } else {
        *scale = (q[j + 4] & 15) | (q[j - 4] >> 6) << 4;
        *min = q[j + 4] >> 4 | (q[j] >> 6) << 4;
    }
}

/* Q4_K, and Q5_K where `fifth` holds a bit of each element (NULL: none). */
static void decode_k45(const uint8_t *b, const uint8_t *fifth, const uint8_t *qs, float *y)
{
    const float d = half_at(b), dmin = half_at(b + 2);
    for (int j = 0; j < 8; j++) {
        int scale, min;
        k_scale(b + 4, j, &scale, &min);
        const float ds = d * (float)scale, m = dmin * (float)min;
        const uint8_t *q = qs + 32 * (j / 2);
        for (int l = 0; l < 32; l++) {
            int code = j & 1 ? q[l] >> 4 : q[l] & 15;
            if (fifth) code |= (fifth[l] >> j & 1) << 4;
            y[32 * j + l] = ds * (float)code - m;
        }
    }
}

static void decode_q4_k(const uint8_t *b, float *y)
{
    decode_k45(b, NULL, b + 16, y);
}

static void decode_q5_k(const uint8_t *b, float *y)
{
    decode_k45(b, b + 16, b + 48, y);
}

static void decode_q6_k(const uint8_t *b, float *y)
{
    const float d = half_at(b + 208);
    for (int i = 0; i < 256; i++) {
        const int half = i / 128, j = i / 32 % 4, l = i % 32;
        const uint8_t low = b[64 * half + l + 32 * (j & 1)], high = b[128 + 32 * half + l];
        const int code = (j < 2 ? low & 15 : low >> 4) | (high >> 2 * j & 3) << 4;
        y[i] = d * (float)(int8_t)b[192 + i / 16] * (float)(code - 32);
    }
}

/* ---- the table ---- */

typedef struct Layout {
    void (*decode)(const uint8_t *block, float *out);
    int half[2]; /* where its half-precision scales stand, -1 = none */
} Layout;

static const Layout *layout_of(QuantFormat f)
{
    static const Layout layouts[QUANT_FORMATS] = {
        [QUANT_Q4_0] = { decode_q4_0, { 0, -1 } },
        [QUANT_Q4_1] = { decode_q4_1, { 0, 2 } },
        [QUANT_Q5_0] = { decode_q5_0, { 0, -1 } },
        [QUANT_Q5_1] = { decode_q5_1, { 0, 2 } },
        [QUANT_Q8_0] = { decode_q8_0, { 0, -1 } },
        [QUANT_Q4_K] = { decode_q4_k, { 0, 2 } },
        [QUANT_Q5_K] = { decode_q5_k, { 0, 2 } },
        [QUANT_Q6_K] = { decode_q6_k, { 208, -1 } },
        [QUANT_IQ4_NL] = { decode_iq4_nl, { 0, -1 } },
        [QUANT_MXFP4_BLOCKS] = { decode_mxfp4, { -1, -1 } },
        [QUANT_NVFP4_BLOCKS] = { decode_nvfp4, { -1, -1 } },
    };
    CHECK(quant_is_blocks(f));
    return &layouts[f];
}

void quant_decode_blocks(QuantFormat f, const void *blocks, int64_t n_blocks, float *out)
{
    const Layout *layout = layout_of(f);
    const QuantGeometry *g = quant_geometry(f);
    const uint8_t *b = blocks;
    for (int64_t i = 0; i < n_blocks; i++) layout->decode(b + i * g->block_bytes, out + i * g->block);
}

/* ---- refusing ---- */

/* A half with all exponent bits set is infinite or no number. */
static bool half_is_finite(const uint8_t *b)
{
    return (b[1] & 0x7c) != 0x7c;
}

static bool block_is_finite(QuantFormat f, const Layout *layout, const uint8_t *b)
{
    if (f == QUANT_MXFP4_BLOCKS) return b[0] <= 252; /* 6 * 2^(252 - 127) is the last finite one */
    if (f == QUANT_NVFP4_BLOCKS) return b[0] != 0xff && b[1] != 0xff && b[2] != 0xff && b[3] != 0xff;
    for (int i = 0; i < 2; i++)
        if (layout->half[i] >= 0 && !half_is_finite(b + layout->half[i])) return false;
    return true;
}

Status quant_check_blocks(QuantFormat f, const void *blocks, int64_t n_blocks, const char *name, Error *err)
{
    const Layout *layout = layout_of(f);
    const QuantGeometry *g = quant_geometry(f);
    const uint8_t *b = blocks;
    for (int64_t i = 0; i < n_blocks; i++, b += g->block_bytes) {
        if (block_is_finite(f, layout, b)) continue;
        return error_set(err, ERR_INPUT, "tensor %.120s has a scale that is not finite in block %" PRId64, name, i);
    }
    return OK;
}
