/* Vectors of 16 floats: AVX-512 as the first processors had it. Only linear is built from these (for processors without
 * dot instructions for bf16 and bytes); the other kernels have files of their own, with masks for tails. */
#pragma once

#define V_BYTES 64
#define VEC_NAME(what) cpu_avx512_##what

#include "backend/cpu/vec/types.h"

#include <immintrin.h>

static inline V v_set(float x)
{
    return _mm512_set1_ps(x);
}

static inline V v_fma(V a, V b, V c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* a where the mask is set, else b */
static inline V v_pick(VI mask, V a, V b)
{
    return _mm512_mask_blend_ps(_mm512_movepi32_mask((__m512i)mask), b, a);
}

/* A byte a lane. */
static inline VU v_load_u8(const uint8_t *x)
{
    return (VU)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)x));
}

/* Halves, denormals too: this conversion flushes nothing. */
static inline V v_load_halves(const uint8_t *x)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)x));
}

/* E4M3 codes / 256: halves with the codes' bits, whose conversion flushes no denormals. */
static inline V v_load_e4m3(const uint8_t *codes)
{
    __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)codes));
    return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbf80)));
}

/* Bytes 0 .. 15 to entries of a table, which stands in every 16 bytes. */
static inline VB v_lookup(VB table, VB i)
{
    return (VB)_mm512_shuffle_epi8((__m512i)table, (__m512i)i);
}

/* The same, 0 for bytes 16 .. 127. */
static inline VB v_lookup_first(VB table, VB i)
{
    return (VB)_mm512_shuffle_epi8((__m512i)table, (__m512i)(i + 0x70));
}

/* 16-bit numbers of low and high bytes: the first, the last half of every 16 bytes. */
static inline VB v_zip_low(VB low, VB high)
{
    return (VB)_mm512_unpacklo_epi8((__m512i)low, (__m512i)high);
}
static inline VB v_zip_high(VB low, VB high)
{
    return (VB)_mm512_unpackhi_epi8((__m512i)low, (__m512i)high);
}
