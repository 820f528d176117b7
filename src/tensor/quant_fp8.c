/* FP8 weights: E4M3 codes, one scale for a tensor, an output or a 128 x 128 square (docs/spec/quantization.md 2.5).
 *
 *     w = e4m3(code) * scale        one float32 product */
#include "tensor/quant_impl.h"
#include "tensor/small_float.h"

void fp8_decode_row(const QuantMatrix *m, int64_t row, float *out)
{
    const uint8_t *codes = (const uint8_t *)m->codes + row * m->n_in;
    const int64_t per_row = (m->n_in + m->group_in - 1) / m->group_in, first = row / m->group_out * per_row;
    for (int64_t g = 0; g < per_row; g++) {
        const float scale = quant_scale_at(m, first + g);
        const int64_t end = m->n_in - g * m->group_in < m->group_in ? m->n_in : (g + 1) * m->group_in;
        for (int64_t k = g * m->group_in; k < end; k++) out[k] = e4m3_to_f32(codes[k]) * scale;
    }
}

/* Magnitudes are in the order of their bits, infinity and NaN above all, and compilers take a maximum of integers many at a
 * time. */
float quant_amax(const float *x, int64_t n)
{
    int32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        const int32_t bits = (int32_t)(bits_of_float(x[i]) & 0x7fffffff);
        most = bits > most ? bits : most;
    }
    return float_of_bits((uint32_t)most);
}

/* Never 0 or denormal: a scale that vanishes would turn 0 / scale into NaN. */
float fp8_scale(float amax)
{
    float scale = amax / 448.0f;
    return scale >= 0x1p-126f ? scale : 1.0f;
}

void fp8_encode(uint8_t *codes, const float *x, int64_t n, float scale)
{
    for (int64_t i = 0; i < n; i++) codes[i] = f32_to_e4m3(x[i] / scale);
}
