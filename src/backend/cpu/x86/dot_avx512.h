/* Four products a lane of codes and inputs, 512 bits wide, for processors without the integer dot product: as in
 * dot_avx2.h, in 16-bit sums. */
#pragma once

#define VEC_DOT_NAME(what) cpu_avx512_##what

enum { V_DOT_TERMS = 2, V_DOT_ROWS = 8, V_DOT_UNSIGNED = 0 };

typedef VI VDot;

ALWAYS_INLINE VDot v_dot_begin(VI sum)
{
    return (VDot){ 0 };
}

/* Signed codes lend their signs to the inputs. */
ALWAYS_INLINE VDot v_dot_add(VDot dot, VU code, VU x, const bool is_signed)
{
    __m512i c = (__m512i)code, in = (__m512i)x;
    if (is_signed) {
        in = _mm512_mask_sub_epi8(in, _mm512_movepi8_mask(c), _mm512_setzero_si512(), in);
        c = _mm512_abs_epi8(c);
    }
    dot = (VDot)_mm512_add_epi16((__m512i)dot, _mm512_maddubs_epi16(c, in));
    __asm__("" : "+v"(dot)); /* now, not as a tree of products that the registers cannot hold */
    return dot;
}

ALWAYS_INLINE VI v_dot_end(VDot dot, VI sum)
{
    return sum + (VI)_mm512_madd_epi16((__m512i)dot, _mm512_set1_epi16(1));
}
