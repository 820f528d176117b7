/* Four products a lane of codes and inputs by the dot product instruction (an option of Armv8.2, always there from 8.4). */
#pragma once

#define VEC_DOT_NAME(what) cpu_neon_dot_##what

enum { V_DOT_TERMS = 0, V_DOT_ROWS = 4, V_DOT_UNSIGNED = 0 };

typedef int32x4_t VDot;

ALWAYS_INLINE VDot v_dot_begin(VI sum)
{
    return (VDot)sum;
}

ALWAYS_INLINE VDot v_dot_add(VDot dot, VU code, VU x, const bool is_signed)
{
    return vdotq_s32(dot, (int8x16_t)code, (int8x16_t)x);
}

ALWAYS_INLINE VI v_dot_end(VDot dot, VI sum)
{
    return (VI)dot;
}
