/* A tensor [n, d] or [n, heads, d] read as a list of vectors of d values: what norms and gates work on. */
#pragma once

#include "tensor/tensor.h"

#include <math.h>

typedef struct Vectors {
    int64_t n, d;
} Vectors;

static inline Vectors vectors_of(Tensor x)
{
    if (x.n_dims == 3) return (Vectors){ x.shape[0] * x.shape[1], x.shape[2] };
    return (Vectors){ x.shape[0], x.shape[1] };
}

/* Vector i of x, whatever its rows and heads are strided by. */
static inline void *vector_at(Tensor x, int64_t i)
{
    int64_t at = x.n_dims == 3 ? i / x.shape[1] * x.stride[0] + i % x.shape[1] * x.stride[1] : i * x.stride[0];
    return (char *)x.data + (size_t)at * dtype_bytes(x.dtype);
}

/* Vectors a worker should have at least: about 16 K values, some microseconds of work. */
static inline int64_t vectors_per_worker(Vectors v)
{
    return v.d > 0 ? 16384 / v.d + 1 : 1;
}

/* The sum of every contract: LANES accumulators, added as a binary tree. */
static inline float lanes_sum(float lane[static 16])
{
    for (int w = 8; w > 0; w /= 2)
        for (int i = 0; i < w; i++) lane[i] += lane[i + w];
    return lane[0];
}

/* sum of a[i] * b[i], element i in lane i % 16, ascending by fma. */
static inline float lanes_dot(const float *a, const float *b, int64_t n)
{
    float lane[16] = { 0 };
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int l = 0; l < 16; l++) lane[l] = fmaf(a[i + l], b[i + l], lane[l]);
    for (int l = 0; i + l < n; l++) lane[l] = fmaf(a[i + l], b[i + l], lane[l]);
    return lanes_sum(lane);
}
