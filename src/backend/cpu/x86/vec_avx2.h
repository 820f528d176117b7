/* Vectors of 8 floats: AVX2 and FMA. */
#pragma once

#define V_BYTES 32
#define VEC_NAME(what) cpu_avx2_##what

#include "backend/cpu/vec/types.h"

#include <immintrin.h>

static inline V v_set(float x)
{
    return _mm256_set1_ps(x);
}

static inline V v_fma(V a, V b, V c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline VD vd_fma(VD a, VD b, VD c)
{
    return _mm256_fmadd_pd(a, b, c);
}

/* a where the mask is set, else b */
static inline V v_pick(VI mask, V a, V b)
{
    return _mm256_blendv_ps(b, a, (V)mask);
}

static inline VD vd_widen(V v, int half)
{
    return half ? _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)) : _mm256_cvtps_pd(_mm256_castps256_ps128(v));
}

static inline V vd_narrow(VD low, VD high)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(low)), _mm256_cvtpd_ps(high), 1);
}

/* E4M3 codes / 256: halves with the codes' bits, whose conversion flushes no denormals. */
static inline V v_load_e4m3(const uint8_t *codes)
{
    __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)codes));
    return _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16((short)0xbf80)));
}

/* Lane k of the result is the binary tree over v[k]: each step halves the lanes a sum has and so the vectors. */
ALWAYS_INLINE V v_sums(const V v[V_LANES])
{
    V w4[4], w2[2];
    UNROLL for (int i = 0; i < 4; i++) /* sums i and i + 4: two of 4 lanes */
        w4[i] = _mm256_permute2f128_ps(v[i], v[i + 4], 0x20) + _mm256_permute2f128_ps(v[i], v[i + 4], 0x31);
    UNROLL for (int i = 0; i < 2; i++)
        w2[i] = _mm256_shuffle_ps(w4[2 * i], w4[2 * i + 1], 0x44) + _mm256_shuffle_ps(w4[2 * i], w4[2 * i + 1], 0xee);
    return _mm256_shuffle_ps(w2[0], w2[1], 0x88) + _mm256_shuffle_ps(w2[0], w2[1], 0xdd);
}

/* A byte a lane. */
static inline VU v_load_u8(const uint8_t *x)
{
    return (VU)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)x));
}

/* Halves, denormals too: this conversion flushes nothing. */
static inline V v_load_halves(const uint8_t *x)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)x));
}

/* Bytes 0 .. 15 to entries of a table, which stands in every 16 bytes. */
static inline VB v_lookup(VB table, VB i)
{
    return (VB)_mm256_shuffle_epi8((__m256i)table, (__m256i)i);
}

/* The same, 0 for bytes 16 .. 127. */
static inline VB v_lookup_first(VB table, VB i)
{
    return (VB)_mm256_shuffle_epi8((__m256i)table, (__m256i)(i + 0x70));
}

/* 16-bit numbers of low and high bytes: the first, the last half of every 16 bytes. */
static inline VB v_zip_low(VB low, VB high)
{
    return (VB)_mm256_unpacklo_epi8((__m256i)low, (__m256i)high);
}
static inline VB v_zip_high(VB low, VB high)
{
    return (VB)_mm256_unpackhi_epi8((__m256i)low, (__m256i)high);
}
