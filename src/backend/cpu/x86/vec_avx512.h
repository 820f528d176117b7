/* Vectors of 16 floats: AVX-512 as the first processors had it. Only linear is built from these (for processors without
 * the bf16 dot instruction); the other kernels have files of their own, with masks for tails. */
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
