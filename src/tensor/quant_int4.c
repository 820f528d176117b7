/* AWQ and GPTQ: 4-bit integers with a zero point and a half-precision scale per group of inputs
 * (docs/spec/quantization.md 2.6, 2.7).
 *
 *     w = (q - z) * scale           the difference is exact, one float32 product
 *
 * Both lay inputs outermost, so one output's codes are a column of words; they differ in what shares a word: eight
 * outputs in a shuffled order (AWQ), eight inputs in order (GPTQ). Zero points of both are packed along the outputs. */
#include "tensor/quant_impl.h"

static uint32_t word_at(const void *words, int64_t i)
{
    uint32_t word;
    memcpy(&word, (const char *)words + 4 * i, sizeof word);
    return word;
}

static int nibble_of(uint32_t word, int place)
{
    return (int)(word >> 4 * place & 15);
}

void awq_decode_row(const QuantMatrix *m, int64_t row, float *out)
{
    static const int place_of[8] = { 0, 4, 1, 5, 2, 6, 3, 7 };
    const int64_t words = m->n_out / 8, word = row / 8;
    const int place = place_of[row % 8];
    for (int64_t k = 0; k < m->n_in; k++) {
        const int64_t group = k / m->group_in;
        const int q = nibble_of(word_at(m->codes, k * words + word), place);
        const int z = nibble_of(word_at(m->zeros, group * words + word), place);
        out[k] = (float)(q - z) * quant_scale_at(m, group * m->n_out + row);
    }
}

static int64_t gptq_group(const QuantMatrix *m, int64_t k)
{
    return m->groups ? (int64_t)word_at(m->groups, k) : k / m->group_in;
}

void gptq_decode_row(const QuantMatrix *m, int64_t row, float *out)
{
    for (int64_t k = 0; k < m->n_in; k++) {
        const int64_t group = gptq_group(m, k);
        const int q = nibble_of(word_at(m->codes, k / 8 * m->n_out + row), (int)(k % 8));
        const int stored = nibble_of(word_at(m->zeros, group * (m->n_out / 8) + row / 8), (int)(row % 8));
        out[k] = (float)(q - ((stored + m->zero_offset) & 15)) * quant_scale_at(m, group * m->n_out + row);
    }
}
