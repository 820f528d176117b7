/* Vectors of 4 floats: what every 64-bit Arm has. */
#pragma once

#define V_BYTES 16
#define VEC_NAME(what) cpu_neon_##what

#include "backend/cpu/vec/types.h"

#include <arm_neon.h>

static inline V v_set(float x)
{
    return vdupq_n_f32(x);
}

static inline V v_fma(V a, V b, V c)
{
    return vfmaq_f32(c, a, b);
}

static inline VD vd_fma(VD a, VD b, VD c)
{
    return vfmaq_f64(c, a, b);
}

/* a where the mask is set, else b */
static inline V v_pick(VI mask, V a, V b)
{
    return vbslq_f32((uint32x4_t)mask, a, b);
}

static inline VD vd_widen(V v, int half)
{
    return half ? vcvt_high_f64_f32(v) : vcvt_f64_f32(vget_low_f32(v));
}

static inline V vd_narrow(VD low, VD high)
{
    return vcvt_high_f32_f64(vcvt_f32_f64(low), high);
}

/* E4M3 codes / 256: halves with the codes' bits, whose conversion flushes no denormals. */
static inline V v_load_e4m3(const uint8_t *codes)
{
    uint32_t four;
    memcpy(&four, codes, sizeof four);
    int16x4_t wide = vget_low_s16(vmovl_s8(vcreate_s8(four)));
    uint16x4_t half = vand_u16(vreinterpret_u16_s16(vshl_n_s16(wide, 7)), vdup_n_u16(0xbf80));
    return vcvt_f32_f16(vreinterpret_f16_u16(half));
}

/* Lane k of the result is the binary tree over v[k]: each step halves the lanes a sum has and so the vectors. */
ALWAYS_INLINE V v_sums(const V v[V_LANES])
{
    V w2[2];
    for (int i = 0; i < 2; i++) {
        float64x2_t a = (float64x2_t)v[2 * i], b = (float64x2_t)v[2 * i + 1];
        w2[i] = (V)vzip1q_f64(a, b) + (V)vzip2q_f64(a, b);
    }
    return vuzp1q_f32(w2[0], w2[1]) + vuzp2q_f32(w2[0], w2[1]);
}

/* A byte a lane. */
static inline VU v_load_u8(const uint8_t *x)
{
    uint32_t four;
    memcpy(&four, x, sizeof four);
    return (VU)vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
}

/* Halves, denormals too: this conversion flushes nothing. */
static inline V v_load_halves(const uint8_t *x)
{
    float16x4_t half;
    memcpy(&half, x, sizeof half);
    return vcvt_f32_f16(half);
}

/* Bytes 0 .. 15 to entries of a table. */
static inline VB v_lookup(VB table, VB i)
{
    return (VB)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)i);
}

/* The same, 0 for other bytes. */
static inline VB v_lookup_first(VB table, VB i)
{
    return v_lookup(table, i);
}

/* 16-bit numbers of low and high bytes: the first, the last half. */
static inline VB v_zip_low(VB low, VB high)
{
    return (VB)vzip1q_u8((uint8x16_t)low, (uint8x16_t)high);
}
static inline VB v_zip_high(VB low, VB high)
{
    return (VB)vzip2q_u8((uint8x16_t)low, (uint8x16_t)high);
}
