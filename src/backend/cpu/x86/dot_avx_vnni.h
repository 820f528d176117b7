/* Four products a lane of codes and inputs with the 256-bit integer dot product of processors that have it without AVX-512
 * (AVX-VNNI). The sums have 32 bits. */
#pragma once

#define VEC_DOT_NAME(what) cpu_avx_vnni_##what

enum { V_DOT_TERMS = 0, V_DOT_ROWS = 4, V_DOT_UNSIGNED = 1 };

typedef VI VDot;

ALWAYS_INLINE VDot v_dot_begin(VI sum)
{
    return (VDot)sum;
}

ALWAYS_INLINE VDot v_dot_add(VDot dot, VU code, VU x, const bool is_signed)
{
    return (VDot)_mm256_dpbusd_avx_epi32((__m256i)dot, (__m256i)code, (__m256i)x);
}

ALWAYS_INLINE VI v_dot_end(VDot dot, VI sum)
{
    return (VI)dot;
}
