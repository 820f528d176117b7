/* See encode.h. */
#include "support/encode.h"

#include "base/error.h"
#include "tensor/small_float.h"

#include <math.h>
#include <string.h>

uint16_t f32_to_f16(float x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double m = fabs((double)x);
    if (m == 0) return sign;
    int e = ilogb(m) < -14 ? -14 : ilogb(m);
    double units = nearbyint(ldexp(m, 10 - e)); /* of the last place */
    if (units >= 2048) {
        units /= 2;
        e++;
    }
    CHECK(e <= 15);
    int bits = units >= 1024 ? (e + 15) << 10 | ((int)units - 1024) : (int)units;
    return (uint16_t)(sign | bits);
}

static float put_half(uint8_t *at, float x)
{
    uint16_t h = f32_to_f16(x);
    memcpy(at, &h, sizeof h);
    return f16_to_f32(h);
}

static int code_of(float x, float scale, int offset, int most)
{
    float q = scale != 0 ? nearbyintf(x / scale) + (float)offset : (float)offset;
    return q < 0 ? 0 : q > (float)most ? most : (int)q;
}

/* The number of largest magnitude, with its sign. */
static float largest(const float *x, int n)
{
    float found = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(found)) found = x[i];
    return found;
}

static void extremes(const float *x, int n, float *low, float *high)
{
    *low = *high = x[0];
    for (int i = 1; i < n; i++) {
        if (x[i] < *low) *low = x[i];
        if (x[i] > *high) *high = x[i];
    }
}

/* ---- blocks of 32: halves, fifth bits, then nibbles of element j and j + 16 ---- */

static void put_nibbles(uint8_t *q, const uint8_t code[32])
{
    for (int j = 0; j < 16; j++) q[j] = (uint8_t)((code[j] & 15) | (code[j + 16] & 15) << 4);
}

static void put_fifth(uint8_t *at, const uint8_t code[32])
{
    memset(at, 0, 4);
    for (int j = 0; j < 32; j++) at[j / 8] |= (uint8_t)((code[j] >> 4) << (j % 8));
}

static void symmetric(uint8_t *out, const float *x, int half)
{
    uint8_t code[32];
    float d = put_half(out, -largest(x, 32) / (float)half);
    for (int j = 0; j < 32; j++) code[j] = (uint8_t)code_of(x[j], d, half, 2 * half - 1);
    if (half == 16) put_fifth(out + 2, code);
    put_nibbles(out + (half == 16 ? 6 : 2), code);
}

static void with_minimum(uint8_t *out, const float *x, int most)
{
    uint8_t code[32];
    float low, high;
    extremes(x, 32, &low, &high);
    float d = put_half(out, (high - low) / (float)most), m = put_half(out + 2, low);
    for (int j = 0; j < 32; j++) code[j] = (uint8_t)code_of(x[j] - m, d, 0, most);
    if (most == 31) put_fifth(out + 4, code);
    put_nibbles(out + (most == 31 ? 8 : 4), code);
}

static void q8_0(uint8_t *out, const float *x)
{
    float d = put_half(out, fabsf(largest(x, 32)) / 127);
    for (int j = 0; j < 32; j++) out[2 + j] = (uint8_t)(int8_t)(code_of(x[j], d, 127, 254) - 127);
}

static void iq4_nl(uint8_t *out, const float *x)
{
    static const int8_t value[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
    uint8_t code[32];
    float d = put_half(out, -largest(x, 32) / 127);
    for (int j = 0; j < 32; j++) {
        code[j] = 0;
        for (int c = 1; c < 16; c++)
            if (fabsf(x[j] - d * value[c]) < fabsf(x[j] - d * value[code[j]])) code[j] = (uint8_t)c;
    }
    put_nibbles(out + 2, code);
}

/* ---- small floats ---- */

uint8_t encode_mxfp4(uint8_t codes[32], const float *x)
{
    float amax = fabsf(largest(x, 32));
    int e = amax > 0 ? ilogbf(amax) - 2 + 127 : 0;
    uint8_t scale = (uint8_t)(e < 1 ? 1 : e);
    for (int j = 0; j < 32; j++) codes[j] = f32_to_e2m1(x[j] / e8m0_to_f32(scale));
    return scale;
}

static void mxfp4_block(uint8_t *out, const float *x)
{
    uint8_t code[32];
    out[0] = encode_mxfp4(code, x);
    put_nibbles(out + 1, code);
}

static void nvfp4_block(uint8_t *out, const float *x, float global)
{
    for (int s = 0; s < 4; s++) {
        float amax = fabsf(largest(x + 16 * s, 16)) / global;
        out[s] = f32_to_e4m3(amax / 6 < 0x1p-9f ? 0x1p-9f : amax / 6);
        for (int j = 0; j < 8; j++) {
            float scale = e4m3_to_f32(out[s]) * global;
            uint8_t low = f32_to_e2m1(x[16 * s + j] / scale), high = f32_to_e2m1(x[16 * s + 8 + j] / scale);
            out[4 + 8 * s + j] = (uint8_t)(low | high << 4);
        }
    }
}

/* ---- blocks of 256 with scales of two levels ---- */

static void k_block(uint8_t *out, const float *x, int most)
{
    float scale[8], min[8], low, high, most_scale = 0, most_min = 0;
    for (int b = 0; b < 8; b++) {
        extremes(x + 32 * b, 32, &low, &high);
        if (low > 0) low = 0;
        scale[b] = (high - low) / (float)most;
        min[b] = -low;
        if (scale[b] > most_scale) most_scale = scale[b];
        if (min[b] > most_min) most_min = min[b];
    }
    float d = put_half(out, most_scale / 63), dmin = put_half(out + 2, most_min / 63);
    uint8_t *packed = out + 4, *fifth = out + 16, *codes = out + (most == 31 ? 48 : 16);
    memset(packed, 0, (size_t)(codes + 128 - packed));
    for (int b = 0; b < 8; b++) {
        int sc = code_of(scale[b], d, 0, 63), m = code_of(min[b], dmin, 0, 63);
        if (b < 4) {
            packed[b] |= (uint8_t)sc;
            packed[b + 4] |= (uint8_t)m;
        } else {
            packed[b + 4] = (uint8_t)((sc & 15) | (m & 15) << 4);
            packed[b - 4] |= (uint8_t)((sc >> 4) << 6);
            packed[b] |= (uint8_t)((m >> 4) << 6);
        }
        for (int l = 0; l < 32; l++) {
            int q = code_of(x[32 * b + l] + dmin * (float)m, d * (float)sc, 0, most);
            codes[32 * (b / 2) + l] |= (uint8_t)((q & 15) << (b & 1 ? 4 : 0));
            if (most == 31) fifth[l] |= (uint8_t)((q >> 4) << b);
        }
    }
}

static void q6_k(uint8_t *out, const float *x)
{
    float scale[16], most = 0;
    for (int g = 0; g < 16; g++) {
        scale[g] = fabsf(largest(x + 16 * g, 16)) / 31;
        if (scale[g] > most) most = scale[g];
    }
    memset(out, 0, 208);
    float d = put_half(out + 208, most / 127);
    for (int g = 0; g < 16; g++) out[192 + g] = (uint8_t)code_of(scale[g], d, 0, 127);
    for (int i = 0; i < 256; i++) {
        int half = i / 128, j = i / 32 % 4, l = i % 32, q = code_of(x[i], d * (float)out[192 + i / 16], 32, 63);
        out[64 * half + l + 32 * (j & 1)] |= (uint8_t)((q & 15) << (j < 2 ? 0 : 4));
        out[128 + 32 * half + l] |= (uint8_t)((q >> 4) << 2 * j);
    }
}

static void encode_block(QuantFormat f, uint8_t *out, const float *x, float global)
{
    switch (f) {
    case QUANT_Q4_0: symmetric(out, x, 8); return;
    case QUANT_Q5_0: symmetric(out, x, 16); return;
    case QUANT_Q4_1: with_minimum(out, x, 15); return;
    case QUANT_Q5_1: with_minimum(out, x, 31); return;
    case QUANT_Q8_0: q8_0(out, x); return;
    case QUANT_IQ4_NL: iq4_nl(out, x); return;
    case QUANT_MXFP4_BLOCKS: mxfp4_block(out, x); return;
    case QUANT_NVFP4_BLOCKS: nvfp4_block(out, x, global); return;
    case QUANT_Q4_K: k_block(out, x, 15); return;
    case QUANT_Q5_K: k_block(out, x, 31); return;
    case QUANT_Q6_K: q6_k(out, x); return;
    default: CHECK(false);
    }
}

size_t encode_blocks(QuantFormat f, void *out, const float *x, int64_t n, float global)
{
    const QuantGeometry *g = quant_geometry(f);
    CHECK(quant_is_blocks(f) && n % g->block == 0);
    for (int64_t b = 0; b < n / g->block; b++) encode_block(f, (uint8_t *)out + b * g->block_bytes, x + b * g->block, global);
    return (size_t)(n / g->block * g->block_bytes);
}

void encode_affine(uint8_t *codes, const float *x, int64_t n, float *scale, int *zero)
{
    float low, high;
    extremes(x, (int)n, &low, &high);
    if (low > 0) low = 0;
    if (high < 0) high = 0;
    *scale = f16_to_f32(f32_to_f16(high > low ? (high - low) / 15 : 1));
    *zero = code_of(-low, *scale, 0, 15);
    for (int64_t i = 0; i < n; i++) codes[i] = (uint8_t)code_of(x[i], *scale, *zero, 15);
}
