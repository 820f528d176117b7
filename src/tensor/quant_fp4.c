/* FP4 weights from safetensors: E2M1 codes, the lower input in the low half of a byte (docs/spec/quantization.md 2.1 to
 * 2.4).
 *
 *     NVFP4   w = e2m1 * (e4m3 * global)     a scale per 16 inputs; its product with `global` is formed first
 *     MXFP4   w = e2m1 * 2^(e - 127)         a scale per 32 inputs
 *
 * `global` is a multiplier; files that state its reciprocal are turned round once, when they are opened. */
#include "tensor/quant_impl.h"
#include "tensor/small_float.h"

static void decode_codes(const uint8_t *codes, int64_t n, float scale, float *out)
{
    for (int64_t i = 0; i < n; i += 2) {
        out[i] = e2m1_to_f32(codes[i / 2] & 15) * scale;
        out[i + 1] = e2m1_to_f32(codes[i / 2] >> 4) * scale;
    }
}

void nvfp4_decode_row(const QuantMatrix *m, int64_t row, float *out)
{
    const uint8_t *codes = (const uint8_t *)m->codes + row * (m->n_in / 2);
    const uint8_t *scales = (const uint8_t *)m->scales + row * (m->n_in / 16);
    for (int64_t k = 0; k < m->n_in; k += 16)
        decode_codes(codes + k / 2, 16, e4m3_to_f32(scales[k / 16]) * m->global, out + k);
}

/* The code 0.5 times the smallest scale is half of a denormal, still a float32: exact. */
void mxfp4_decode_row(const QuantMatrix *m, int64_t row, float *out)
{
    const uint8_t *codes = (const uint8_t *)m->codes + row * (m->n_in / 2);
    const uint8_t *scales = (const uint8_t *)m->scales + row * (m->n_in / 32);
    for (int64_t k = 0; k < m->n_in; k += 32) decode_codes(codes + k / 2, 32, e8m0_to_f32(scales[k / 32]), out + k);
}

/* ---- encoding ---- */

float nvfp4_global(float amax)
{
    float global = amax / (6.0f * 448.0f);
    return global >= 0x1p-117f ? global : 1.0f; /* so that even the smallest scale times it is normal */
}

static uint8_t block_scale(const float *x, float global)
{
    float amax = quant_amax(x, 16);
    if (amax == 0) return f32_to_e4m3(1.0f);
    float scale = amax / (6.0f * global);
    return f32_to_e4m3(scale < 0x1p-9f ? 0x1p-9f : scale);
}

/* f32_to_e2m1() of 16 numbers, without a branch, so that compilers take them side by side. */
static void encode_16(uint8_t *codes, const float *x, float scale)
{
    int32_t code[16];
    for (int i = 0; i < 16; i++) {
        const float q = x[i] / scale, a = q < 0 ? -q : q;
        const int32_t sign = (int32_t)(bits_of_float(q) >> 28 & 8) & -(int32_t)(a == a);
        code[i] = sign + (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    }
    for (int i = 0; i < 8; i++) codes[i] = (uint8_t)(code[2 * i] | code[2 * i + 1] << 4);
}

void nvfp4_encode(uint8_t *codes, uint8_t *scales, const float *x, int64_t n, float global)
{
    for (int64_t k = 0; k < n; k += 16) {
        uint8_t code = scales[k / 16] = block_scale(x + k, global);
        encode_16(codes + k / 2, x + k, e4m3_to_f32(code) * global);
    }
}
