/* AWQ, GPTQ and compressed-tensors' pack-quantized: 4-bit integers with a zero point and a scale per group of inputs
 * (docs/spec/quantization.md 2.6, 2.7).
 *
 *     w = (q - z) * scale           the difference is exact, one float32 product
 *
 * They differ in what shares a word of eight codes: outputs in a shuffled order, inputs outermost (AWQ); inputs in order,
 * words of an input's outputs behind each other (GPTQ) or of an output's inputs (INT4). Eight outputs share a word of zero
 * points, in AWQ shuffled as well. */
#include "tensor/quant_impl.h"

static uint32_t word_at(const void *words, int64_t i)
{
    uint32_t word;
    memcpy(&word, (const char *)words + 4 * i, sizeof word);
    return word;
}

static int nibble_of(uint32_t word, int64_t place)
{
    return (int)(word >> 4 * place & 15);
}

const uint8_t quant_awq_place[8] = { 0, 4, 1, 5, 2, 6, 3, 7 };

static int64_t groups_of(const QuantMatrix *m)
{
    return (m->n_in + m->group_in - 1) / m->group_in;
}

int quant_int4_code(const QuantMatrix *m, int64_t row, int64_t k)
{
    switch (m->format) {
    case QUANT_AWQ: return nibble_of(word_at(m->codes, k * (m->n_out / 8) + row / 8), quant_awq_place[row % 8]);
    case QUANT_GPTQ: return nibble_of(word_at(m->codes, k / 8 * m->n_out + row), k % 8);
    default: return nibble_of(word_at(m->codes, row * (m->n_in / 8) + k / 8), k % 8);
    }
}

int quant_int4_zero(const QuantMatrix *m, int64_t row, int64_t group)
{
    switch (m->format) {
    case QUANT_AWQ: return nibble_of(word_at(m->zeros, group * (m->n_out / 8) + row / 8), quant_awq_place[row % 8]);
    case QUANT_GPTQ: return (nibble_of(word_at(m->zeros, group * (m->n_out / 8) + row / 8), row % 8) + m->zero_offset) & 15;
    default: return m->zeros ? nibble_of(word_at(m->zeros, row / 8 * groups_of(m) + group), row % 8) : 8;
    }
}

float quant_int4_scale(const QuantMatrix *m, int64_t row, int64_t group)
{
    return quant_scale_at(m, m->format == QUANT_INT4 ? row * groups_of(m) + group : group * m->n_out + row);
}

void int4_decode_row(const QuantMatrix *m, int64_t row, float *out)
{
    for (int64_t k = 0; k < m->n_in; k++) {
        const int64_t group = m->groups ? (int64_t)word_at(m->groups, k) : k / m->group_in;
        out[k] = (float)(quant_int4_code(m, row, k) - quant_int4_zero(m, row, group)) * quant_int4_scale(m, row, group);
    }
}
