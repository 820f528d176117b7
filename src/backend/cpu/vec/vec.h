/* Steps that every vectorised kernel shares: tails, sums over lanes, rounding to bf16.
 *
 * Files of this folder are compiled once for each instruction set; VEC_ISA names its header, and VEC_NAME() puts its
 * name before what they export. A lane does what the scalar contract does with one element, in the same order. */
#pragma once

#include VEC_ISA

#include "backend/cpu/cpu_impl.h"
#include "tensor/dtype.h"

/* ---- memory ---- */

static inline V v_load(const float *x)
{
    V v;
    memcpy(&v, x, sizeof v);
    return v;
}

static inline void v_store(float *x, V v)
{
    memcpy(x, &v, sizeof v);
}

/* The first n values, then zeros. Whole vectors go the short way. */
static inline V v_load_n(const float *x, int64_t n)
{
    if (n >= V_LANES) return v_load(x);
    V v = { 0 };
    memcpy(&v, x, (size_t)n * sizeof *x);
    return v;
}

static inline void v_store_n(float *x, V v, int64_t n)
{
    if (n >= V_LANES) v_store(x, v);
    else memcpy(x, &v, (size_t)n * sizeof *x);
}

/* ---- bits ---- */

static inline VU v_bits(V v)
{
    return (VU)v;
}

/* The lanes before n. */
static inline VI v_first(int64_t n)
{
    static const int32_t numbers[16] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    VI lane;
    memcpy(&lane, numbers, sizeof lane);
    return lane < (int32_t)(n < V_LANES ? n : V_LANES);
}

/* ---- bf16 ---- */

static inline V v_load_bf16(const uint16_t *x)
{
    VHalf half;
    memcpy(&half, x, sizeof half);
    return (V)(__builtin_convertvector(half, VU) << 16);
}

/* f32_to_bf16() of every lane. */
static inline VHalf v_to_bf16(V x)
{
    VU u = v_bits(x), high = u >> 16;
    VU y = (u + 0x7fffu + (high & 1)) >> 16;
    VI is_nan = x != x;
    y = ((VU)is_nan & (high | 0x40)) | (~(VU)is_nan & y);
    return __builtin_convertvector(y, VHalf);
}

/* n values of a row of "act": float32, or bf16 rounded once. */
static inline void v_put(void *out, int64_t i, V y, DType dtype, int64_t n)
{
    if (dtype == DT_F32) {
        v_store_n((float *)out + i, y, n);
        return;
    }
    VHalf half = v_to_bf16(y);
    memcpy((uint16_t *)out + i, &half, (size_t)(n < V_LANES ? n : V_LANES) * sizeof(uint16_t));
}

/* ---- sums over LANES accumulators ---- */

/* The upper levels of the binary tree: 16 lanes to those of one vector. */
ALWAYS_INLINE V v_narrow(const V lane[V_PER_16])
{
    V v[V_PER_16];
    UNROLL for (int i = 0; i < V_PER_16; i++) v[i] = lane[i];
    UNROLL for (int w = V_PER_16 / 2; w > 0; w /= 2)
        UNROLL for (int i = 0; i < w; i++) v[i] += v[i + w];
    return v[0];
}

static inline float v_lanes_sum(const V lane[V_PER_16])
{
    float x[V_LANES];
    v_store(x, v_narrow(lane));
    for (int w = V_LANES / 2; w > 0; w /= 2)
        for (int i = 0; i < w; i++) x[i] += x[i + w];
    return x[0];
}

/* sum of a[i] * b[i] in 16 lanes. */
static inline float v_lanes_dot(const float *a, const float *b, int64_t n)
{
    V sum[V_PER_16] = { 0 };
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        UNROLL for (int c = 0; c < V_PER_16; c++)
            sum[c] = v_fma(v_load(a + i + V_LANES * c), v_load(b + i + V_LANES * c), sum[c]);
    for (int c = 0; i < n; i += V_LANES, c++) {
        int64_t left = n - i;
        sum[c] = v_pick(v_first(left), v_fma(v_load_n(a + i, left), v_load_n(b + i, left), sum[c]), sum[c]);
    }
    return v_lanes_sum(sum);
}
