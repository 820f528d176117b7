/* Four products a lane of codes and inputs with the 512-bit integer dot product. The sums have 32 bits. */
#pragma once

#define VEC_DOT_NAME(what) cpu_avx512_vnni_##what

enum { V_DOT_TERMS = 0, V_DOT_ROWS = 8, V_DOT_UNSIGNED = 1 };

typedef VI VDot;

ALWAYS_INLINE VDot v_dot_begin(VI sum)
{
    return (VDot)sum;
}

ALWAYS_INLINE VDot v_dot_add(VDot dot, VU code, VU x, const bool is_signed)
{
    return (VDot)_mm512_dpbusd_epi32((__m512i)dot, (__m512i)code, (__m512i)x);
}

ALWAYS_INLINE VI v_dot_end(VDot dot, VI sum)
{
    return (VI)dot;
}
