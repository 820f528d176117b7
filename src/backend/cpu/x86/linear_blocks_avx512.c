/* linear over stored blocks with the AVX-512 integer dot product. A lane is an output; vpdpbusd adds four products of an
 * unsigned code and a signed input to it, exactly. The offset of the codes is in where the sum starts: -offset times the
 * sum of the inputs, a product of 16-bit halves where each output has its own. What is done in float32 is the contract's, in its order; the integers have none. */
#include "backend/cpu/linear_blocks.h"
#include "backend/cpu/x86/lanes_avx512.h"

#include <immintrin.h>

#define UNROLL _Pragma("GCC unroll 8")

enum { WORDS = BLOCK / 4, AHEAD = 4096 }; /* bytes that are asked for ahead of time; past the end they are nobody's, which is no fault */

/* The codes of 32 inputs, word by word. high_bits and has_table are constants in every use. */
ALWAYS_INLINE void unpack(__m512i code[WORDS], const uint8_t *at, const int high_bits, const bool has_table, __m512i table)
{
    const __m512i low = _mm512_set1_epi8(15);
    if (high_bits == 4) {
        UNROLL for (int j = 0; j < WORDS; j++) code[j] = _mm512_loadu_si512(at + 64 * j);
        return;
    }
    UNROLL for (int i = 0; i < WORDS / 2; i++) {
        __m512i both = _mm512_loadu_si512(at + 64 * i);
        code[2 * i] = _mm512_and_si512(both, low);
        code[2 * i + 1] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    }
    if (has_table) {
        UNROLL for (int j = 0; j < WORDS; j++) code[j] = _mm512_shuffle_epi8(table, code[j]);
    }
    if (high_bits == 1) {
        __m512i bits = _mm512_loadu_si512(at + 256), bit = _mm512_set1_epi8(16);
        UNROLL for (int j = 0; j < WORDS; j++) {
            __m512i moved = j < 4 ? _mm512_slli_epi32(bits, 4 - j) : _mm512_srli_epi32(bits, j - 4);
            code[j] = _mm512_ternarylogic_epi32(code[j], moved, bit, 0xf8); /* code | (moved & bit) */
        }
    }
    if (high_bits == 2) {
        __m512i pair = _mm512_set1_epi8(0x30);
        UNROLL for (int j = 0; j < WORDS; j++) {
            __m512i bits = _mm512_loadu_si512(at + 256 + 64 * (j / 4));
            int t = j % 4;
            __m512i moved = t == 0 ? _mm512_slli_epi32(bits, 4) : t == 1 ? _mm512_slli_epi32(bits, 2) : t == 2 ? bits : _mm512_srli_epi32(bits, 2);
            code[j] = _mm512_ternarylogic_epi32(code[j], moved, pair, 0xf8);
        }
    }
}

ALWAYS_INLINE __m512 halves(const uint8_t *at)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at));
}

ALWAYS_INLINE __m512 bytes(const uint8_t *at)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)at)));
}

/* Half the value of E8M0 codes; those of 0 and 1 are denormals, zero here. */
ALWAYS_INLINE __m512 e8m0_halves(const uint8_t *at)
{
    __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)at));
    __m512i bits = _mm512_slli_epi32(_mm512_sub_epi32(code, _mm512_set1_epi32(1)), 23);
    return _mm512_castsi512_ps(_mm512_maskz_mov_epi32(_mm512_cmpgt_epi32_mask(code, _mm512_set1_epi32(1)), bits));
}

/* 0.5 * (e4m3 * global), codes without a sign. As a float32 whose exponent is 120 too small a code times 2^120 is its value;
 * a denormal code is digits * 2^-9. */
ALWAYS_INLINE __m512 e4m3_scales(const uint8_t *at, __m512 global)
{
    __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)at));
    __m512 normal = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32(code, 20), _mm512_set1_epi32(120 << 23)));
    __m512 small = _mm512_mul_ps(_mm512_cvtepi32_ps(code), _mm512_set1_ps(0x1p-9f));
    __m512 value = _mm512_mask_mov_ps(normal, _mm512_cmplt_epi32_mask(code, _mm512_set1_epi32(8)), small);
    return _mm512_mul_ps(_mm512_set1_ps(0.5f), _mm512_mul_ps(value, global));
}

typedef struct Scales {
    __m512  scale[BLOCK_MAX_GROUPS], min;
    __m512i zero; /* in lower halves */
} Scales;

/* d and dmin: of a unit with scales of two levels, read once. */
ALWAYS_INLINE Scales read_scales(const BlockScales kind, const uint8_t *unit, int k, __m512 d, __m512 dmin, __m512 global)
{
    Scales s;
    s.scale[0] = s.scale[1] = s.min = _mm512_setzero_ps();
    s.zero = _mm512_setzero_si512();
    if (kind == SCALES_HALF || kind == SCALES_HALF_MIN) s.scale[0] = halves(unit);
    if (kind == SCALES_HALF_MIN) s.min = halves(unit + 32);
    if (kind == SCALES_E8M0) s.scale[0] = e8m0_halves(unit);
    if (kind == SCALES_E4M3) s.scale[0] = e4m3_scales(unit, global), s.scale[1] = e4m3_scales(unit + 16, global);
    if (kind == SCALES_GROUP) {
        s.scale[0] = _mm512_loadu_ps(unit);
        s.zero = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(unit + 64)));
    }
    if (kind == SCALES_K) {
        s.scale[0] = _mm512_mul_ps(d, bytes(unit + 64 + 16 * k));
        s.min = _mm512_mul_ps(dmin, bytes(unit + 64 + 128 + 16 * k)); /* dmin is -dmin */
    }
    if (kind == SCALES_K6) {
        UNROLL for (int g = 0; g < 2; g++) {
            __m128i small = _mm_loadu_si128((const __m128i *)(unit + 32 + 16 * (2 * k + g)));
            s.scale[g] = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(small)));
        }
    }
    return s;
}

/* Everything that is const is a constant in every use. */
ALWAYS_INLINE void panel_rows(const Weight *w, const BlockLayout *l, const uint8_t *unit, int64_t n_units, int64_t first_block, const BlockRows *rows,
                              int64_t first_row, float *out, const int R, const int high_bits, const bool has_table, const int n_groups,
                              const BlockScales kind, const int blocks)
{
    const int64_t n_blocks = rows->n_in / BLOCK;
    const size_t scale_bytes = block_scale_bytes(l), code_bytes = block_code_bytes(l);
    const bool has_min = kind == SCALES_HALF_MIN || kind == SCALES_K, is_two_level = kind == SCALES_K || kind == SCALES_K6;
    const __m512i table = has_table ? _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)l->table)) : _mm512_setzero_si512();
    const __m512 global = _mm512_set1_ps(w->global);
    const int offset = -l->offset;
    __m512 acc[BLOCKS_MAX_ROWS];
    UNROLL for (int r = 0; r < R; r++) acc[r] = _mm512_setzero_ps();
    for (int64_t u = 0, block = first_block; u < n_units; u++) {
        __m512 d = is_two_level ? halves(unit) : global, dmin = global;
        if (kind == SCALES_K) dmin = _mm512_xor_ps(halves(unit + 32), _mm512_set1_ps(-0.0f));
        const uint8_t *codes = unit + scale_bytes;
        for (int k = 0; k < blocks; k++, block++, codes += code_bytes) {
            __m512i code[WORDS];
            UNROLL for (int line = 0; line < 4 + high_bits; line++) _mm_prefetch((const char *)(codes + AHEAD + 64 * line), _MM_HINT_T0);
            unpack(code, codes, high_bits, has_table, table);
            Scales s = read_scales(kind, unit, k, d, dmin, global);
            UNROLL for (int r = 0; r < R; r++) {
                int64_t at = (first_row + r) * n_blocks + block;
                const int32_t *x = (const int32_t *)(rows->q + at * BLOCK), *sums = rows->group_sum + 2 * at;
                __m512 scale = _mm512_set1_ps(rows->scale[at]);
                UNROLL for (int g = 0; g < n_groups; g++) {
                    int32_t sum_x = n_groups == 1 ? sums[0] + sums[1] : sums[g];
                    __m512i sum = kind == SCALES_GROUP ? _mm512_madd_epi16(s.zero, _mm512_set1_epi32(-sum_x)) : _mm512_set1_epi32(offset * sum_x);
                    UNROLL for (int j = 0; j < WORDS; j++)
                        if (j * n_groups / WORDS == g) sum = _mm512_dpbusd_epi32(sum, code[j], _mm512_set1_epi32(x[j]));
                    acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(s.scale[g], scale), acc[r]);
                }
                if (has_min) acc[r] = _mm512_fmadd_ps(s.min, _mm512_set1_ps(rows->sum[at]), acc[r]);
            }
        }
        unit = codes;
    }
    UNROLL for (int r = 0; r < R; r++) _mm512_storeu_ps(out + r * WEIGHT_PANEL, acc[r]);
}

/* Sizes of row groups: 1, 2, 4, 8; three rows are two and one. */
#define KIND(NAME, HIGH, TABLE, GROUPS, SCALES, BLOCKS)                                                                                            \
    static void NAME(const Weight *w, const BlockLayout *l, int64_t panel, int64_t begin, int64_t end, const BlockRows *rows, int64_t first,      \
                     int n_rows, float *out)                                                                                                      \
    {                                                                                                                                              \
        const uint8_t *unit = block_unit_at(w, l, panel, begin);                                                                                   \
        for (int done = 0; done < n_rows;) {                                                                                                       \
            int left = n_rows - done, R = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;                                                       \
            float *to = out + done * WEIGHT_PANEL;                                                                                                 \
            int64_t row = first + done, block = begin * (BLOCKS), n = end - begin;                                                                  \
            if (R == 8) panel_rows(w, l, unit, n, block, rows, row, to, 8, HIGH, TABLE, GROUPS, SCALES, BLOCKS);                                  \
            else if (R == 4) panel_rows(w, l, unit, n, block, rows, row, to, 4, HIGH, TABLE, GROUPS, SCALES, BLOCKS);                             \
            else if (R == 2) panel_rows(w, l, unit, n, block, rows, row, to, 2, HIGH, TABLE, GROUPS, SCALES, BLOCKS);                             \
            else panel_rows(w, l, unit, n, block, rows, row, to, 1, HIGH, TABLE, GROUPS, SCALES, BLOCKS);                                         \
            done += R;                                                                                                                             \
        }                                                                                                                                          \
    }
KIND(half_4, 0, false, 1, SCALES_HALF, 1)
KIND(half_table, 0, true, 1, SCALES_HALF, 1)
KIND(half_min_4, 0, false, 1, SCALES_HALF_MIN, 1)
KIND(half_5, 1, false, 1, SCALES_HALF, 1)
KIND(half_min_5, 1, false, 1, SCALES_HALF_MIN, 1)
KIND(half_8, 4, false, 1, SCALES_HALF, 1)
KIND(mxfp4, 0, true, 1, SCALES_E8M0, 1)
KIND(nvfp4, 0, true, 2, SCALES_E4M3, 1)
KIND(k_4, 0, false, 1, SCALES_K, 8)
KIND(k_5, 1, false, 1, SCALES_K, 8)
KIND(k_6, 2, false, 2, SCALES_K6, 8)
KIND(group_4, 0, false, 1, SCALES_GROUP, (l->unit / BLOCK))

static const BlocksPanelFn kinds[QUANT_FORMATS] = {
    [QUANT_Q4_0] = half_4,      [QUANT_Q4_1] = half_min_4, [QUANT_Q5_0] = half_5,         [QUANT_Q5_1] = half_min_5, [QUANT_Q8_0] = half_8,
    [QUANT_IQ4_NL] = half_table, [QUANT_MXFP4] = mxfp4,     [QUANT_MXFP4_BLOCKS] = mxfp4, [QUANT_NVFP4] = nvfp4,     [QUANT_NVFP4_BLOCKS] = nvfp4,
    [QUANT_Q4_K] = k_4,         [QUANT_Q5_K] = k_5,        [QUANT_Q6_K] = k_6,           [QUANT_AWQ] = group_4,     [QUANT_GPTQ] = group_4,
    [QUANT_INT4] = group_4,
};

static void any_panel(const Weight *w, const BlockLayout *l, int64_t panel, int64_t begin, int64_t end, const BlockRows *rows, int64_t first,
                      int n_rows, float *out)
{
    kinds[w->contract.format](w, l, panel, begin, end, rows, first, n_rows, out);
}

void blocks_avx512_vnni_spans(const LinearSpan *spans, int n_spans, Tensor x, void *scratch)
{
    linear_blocks_spans(any_panel, spans, n_spans, x, scratch);
}
