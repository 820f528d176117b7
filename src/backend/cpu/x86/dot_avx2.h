/* Four products a lane of codes and inputs, 256 bits wide, in 16-bit sums: an unsigned byte times a signed one, two
 * products a sum. Included where VEC_DOT names it; every header of this kind gives the same:
 *
 *     dot = v_dot_begin(sum);                 products of some words, to be added to `sum`
 *     dot = v_dot_add(dot, code, x, ...);     one word: four bytes a lane; codes are below 64 or signed, inputs never -128
 *     sum = v_dot_end(dot, sum); */
#pragma once

#define VEC_DOT_NAME(what) cpu_avx2_##what

enum {
    V_DOT_TERMS = 2, /* products that one word puts into a 16-bit sum; 0: sums have 32 bits */
    V_DOT_ROWS = 4,  /* at most: what the registers hold */
    V_DOT_UNSIGNED = 0, /* codes of 64 and more may be unsigned, too */
};

typedef VI VDot;

ALWAYS_INLINE VDot v_dot_begin(VI sum)
{
    return (VDot){ 0 };
}

/* Signed codes lend their signs to the inputs. */
ALWAYS_INLINE VDot v_dot_add(VDot dot, VU code, VU x, const bool is_signed)
{
    __m256i c = (__m256i)code, in = (__m256i)x;
    if (is_signed) {
        in = _mm256_sign_epi8(in, c);
        c = _mm256_abs_epi8(c);
    }
    dot = (VDot)_mm256_add_epi16((__m256i)dot, _mm256_maddubs_epi16(c, in));
    __asm__("" : "+x"(dot)); /* now, not as a tree of products that the registers cannot hold */
    return dot;
}

ALWAYS_INLINE VI v_dot_end(VDot dot, VI sum)
{
    return sum + (VI)_mm256_madd_epi16((__m256i)dot, _mm256_set1_epi16(1));
}
