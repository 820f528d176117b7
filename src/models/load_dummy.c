/* Dummy weights: cheap, reproducible, of about the size that a model's have, in bf16 or in the format that config.json declares.
 *
 * Numbers come from a stream that a name and a row begin, so they depend on nothing else. In stored formats codes are random and
 * all scales of a matrix the same. */
#include "models/load_impl.h"

#include <math.h>
#include <xxhash.h>

/* splitmix64 (Steele, Lea, Flood, OOPSLA 2014): the i-th number of a stream without computing the others. */
static inline uint64_t mix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* What begins at row or input `at` of the task's tensor. */
static uint64_t stream_at(const LoadContext *c, const LoadTask *t, int64_t at)
{
    return mix64(XXH3_64bits_withSeed(t->item->name, strlen(t->item->name), c->options->dummy_seed) ^ (uint64_t)at);
}

/* k: a matrix gets numbers of about 2^k, or 1 / sqrt(n_in), so that activations and logits stay near 1 at any depth. */
static int exponent_of(int64_t n_in)
{
    return -1 - ilogb((double)n_in) / 2;
}

/* ---- bf16 ---- */

/* n bf16 numbers of random sign and magnitude in [2^k, 2^(k+2)): four a random word, no arithmetic in floats. */
static void dummy_numbers(uint16_t *out, int64_t n, int k, uint64_t stream)
{
    uint64_t exponent = (uint64_t)(127 + k) / 2 * 2 << 7;
    exponent *= 0x0001000100010001u;
    for (int64_t i = 0; i < n; i += 4) {
        uint64_t word = (mix64(stream + (uint64_t)i) & 0x80ff80ff80ff80ffu) | exponent;
        memcpy(out + i, &word, n - i < 4 ? (size_t)(n - i) * 2 : 8);
    }
}

void load_dummy_rows(const LoadContext *c, const LoadTask *t, uint16_t *out)
{
    int64_t n_row = (int64_t)t->row_bytes / 2;
    int k = t->item->matrix ? exponent_of(n_row) : -5;
    for (int64_t r = 0; r < t->n; r++) dummy_numbers(out + r * n_row, n_row, k, stream_at(c, t, t->first + r));
    if (t->item->vector && t->item->use == VECTOR_NORM)
        for (int64_t i = 0; i < n_row; i++) out[i] = f32_to_bf16(1.0f + bf16_to_f32(out[i]));
}

/* ---- stored formats ---- */

/* n rows of a matrix, or n inputs of all rows where those are outermost; no pointers yet. */
static CheckpointBand band_of(const WeightItem *item, int64_t n)
{
    const QuantFormat f = item->contract.format;
    const bool in_rows = quant_geometry(f)->in_rows;
    const QuantMatrix m = weights_quantized(f, in_rows ? n : item->shape[0], in_rows ? item->shape[1] : n);
    const size_t n_scales = (size_t)(m.n_out * ((m.n_in + m.group_in - 1) / m.group_in));
    return (CheckpointBand){ .stored = m,
                             .code_bytes = in_rows ? (size_t)n * quant_row_bytes(f, m.n_in) : (size_t)(n * m.n_out / 2),
                             .scale_bytes = n_scales * dtype_bytes(m.scale_type),
                             .zero_bytes = in_rows ? 0 : n_scales / 2 };
}

static size_t band_bytes(const CheckpointBand *b)
{
    return b->code_bytes + b->scale_bytes + b->zero_bytes;
}

int64_t load_dummy_band(const LoadTask *t, size_t bytes)
{
    const int64_t step = quant_geometry(t->item->contract.format)->in_rows ? WEIGHT_PANEL : t->item->contract.k_chunk;
    const CheckpointBand least = band_of(t->item, step);
    const int64_t n = (int64_t)(bytes / band_bytes(&least)) * step;
    return n < step ? step : n;
}

size_t load_dummy_room(const LoadTask *t)
{
    const CheckpointBand band = band_of(t->item, t->n);
    return band_bytes(&band);
}

/* FP8: of both signs, 0.5 to 2. Integers and FP4: anything. */
static void fill_codes(uint8_t *codes, size_t n, QuantFormat f, uint64_t stream)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word = mix64(stream + i);
        if (f == QUANT_FP8) word = (word & 0x8f8f8f8f8f8f8f8fu) | 0x3030303030303030u;
        memcpy(codes + i, &word, n - i < 8 ? n - i : 8);
    }
}

static void repeat(uint8_t *to, size_t bytes, const void *value, size_t n)
{
    for (size_t i = 0; i < bytes; i += n) memcpy(to + i, value, n);
}

/* All scales, so that codes make numbers of about 2^k. NVFP4's are 1: its global is the scale. */
static void fill_scales(uint8_t *scales, size_t bytes, const QuantMatrix *m, int k)
{
    const float scale = ldexpf(m->format == QUANT_FP8 ? 1.0f : 0.25f, k);
    const uint16_t half = f32_to_bf16(scale);
    if (m->scale_type == DT_F8_E4M3) memset(scales, 0x38, bytes);
    else if (m->scale_type == DT_U8) memset(scales, 127 + k - 1, bytes);
    else if (m->scale_type == DT_F32) repeat(scales, bytes, &scale, sizeof scale);
    else repeat(scales, bytes, &half, sizeof half);
}

void load_dummy_stored(const LoadContext *c, const LoadTask *t, void *staging, CheckpointBand *out)
{
    *out = band_of(t->item, t->n);
    QuantMatrix *m = &out->stored;
    uint8_t *codes = staging, *scales = codes + out->code_bytes, *zeros = scales + out->scale_bytes;
    fill_codes(codes, out->code_bytes, m->format, stream_at(c, t, t->first));
    fill_scales(scales, out->scale_bytes, m, exponent_of(t->item->shape[1]));
    memset(zeros, m->zero_offset ? 0x77 : 0x88, out->zero_bytes);
    m->codes = codes;
    m->scales = scales;
    m->zeros = out->zero_bytes ? zeros : NULL;
    m->global = load_dummy_global(t->item);
}

float load_dummy_global(const WeightItem *item)
{
    return item->contract.format == QUANT_NVFP4 ? ldexpf(0.375f, exponent_of(item->shape[1])) : 1.0f;
}
