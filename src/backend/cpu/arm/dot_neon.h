/* Four products a lane of codes and inputs by the multiplications every 64-bit Arm has: signed bytes to 16-bit sums, one
 * product of a word in each; eight sums for two outputs. */
#pragma once

#define VEC_DOT_NAME(what) cpu_neon_##what

enum { V_DOT_TERMS = 1, V_DOT_ROWS = 2, V_DOT_UNSIGNED = 0 };

typedef struct VDot {
    int16x8_t low, high;
} VDot;

ALWAYS_INLINE VDot v_dot_begin(VI sum)
{
    return (VDot){ vdupq_n_s16(0), vdupq_n_s16(0) };
}

ALWAYS_INLINE VDot v_dot_add(VDot dot, VU code, VU x, const bool is_signed)
{
    int8x16_t c = (int8x16_t)code, in = (int8x16_t)x;
    return (VDot){ vmlal_s8(dot.low, vget_low_s8(c), vget_low_s8(in)), vmlal_high_s8(dot.high, c, in) };
}

ALWAYS_INLINE VI v_dot_end(VDot dot, VI sum)
{
    return sum + (VI)vpaddq_s32(vpaddlq_s16(dot.low), vpaddlq_s16(dot.high));
}
