/* Small steps that the row kernels share: tails, sums over lanes, rounding to bf16. */
#pragma once

#include "tensor/dtype.h"

#include <immintrin.h>

/* For loops over a constant that a caller passes: they have to become straight code. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Lanes of the last, partly filled vector; all of them when 16 or more are left. */
static inline __mmask16 lanes_left(int64_t left)
{
    return left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
}

/* The binary tree over 16 lanes: halves are added, the upper to the lower. */
static inline float v_lanes_sum(__m512 v)
{
    __m256 w8 = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 w4 = _mm_add_ps(_mm256_castps256_ps128(w8), _mm256_extractf128_ps(w8, 1));
    __m128 w2 = _mm_add_ps(w4, _mm_movehl_ps(w4, w4));
    return _mm_cvtss_f32(_mm_add_ss(w2, _mm_shuffle_ps(w2, w2, 1)));
}

/* sum of a[i] * b[i] in 16 lanes. */
static inline float v_lanes_dot(const float *a, const float *b, int64_t n)
{
    __m512 sum = _mm512_setzero_ps();
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) sum = _mm512_fmadd_ps(_mm512_loadu_ps(a + i), _mm512_loadu_ps(b + i), sum);
    if (i < n) {
        __mmask16 left = lanes_left(n - i);
        __m512 x = _mm512_maskz_loadu_ps(left, a + i), y = _mm512_maskz_loadu_ps(left, b + i);
        sum = _mm512_mask3_fmadd_ps(x, y, sum, left);
    }
    return v_lanes_sum(sum);
}

/* f32_to_bf16() in 16 lanes. Not the instruction of that name: it would make denormals zero. */
static inline __m256i v_to_bf16(__m512 x)
{
    __m512i u = _mm512_castps_si512(x), high = _mm512_srli_epi32(u, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i y = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    y = _mm512_mask_or_epi32(y, is_nan, high, _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(y);
}

/* Some lanes of a row of "act": float32, or bf16 rounded once. */
static inline void v_put(void *out, int64_t i, __m512 y, DType dtype, __mmask16 valid)
{
    if (dtype == DT_F32) _mm512_mask_storeu_ps((float *)out + i, valid, y);
    else _mm256_mask_storeu_epi16((uint16_t *)out + i, valid, v_to_bf16(y));
}
