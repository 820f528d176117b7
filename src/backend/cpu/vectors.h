/* A tensor [n, d] or [n, heads, d] read as rows of vectors of d values: what norms and gates work on.
 *
 * Their work is cut by rows, also where heads or columns would do: a worker then reads and writes one piece of memory.
 * Cut by columns, what the hardware fetches ahead at the end of each row are lines that another worker is about to
 * write; with cores that share no cache a step took three times as long. */
#pragma once

#include "tensor/tensor.h"

#include <math.h>

/* A 2-d tensor has one vector a row. */
typedef struct Vectors {
    char   *data;
    int64_t n_rows, n_heads, d;
    int64_t row_bytes, head_bytes; /* from one to the next */
} Vectors;

static inline Vectors vectors_of(Tensor x)
{
    int64_t item = (int64_t)dtype_bytes(x.dtype);
    if (x.n_dims == 2) return (Vectors){ x.data, x.shape[0], 1, x.shape[1], x.stride[0] * item, 0 };
    return (Vectors){ x.data, x.shape[0], x.shape[1], x.shape[2], x.stride[0] * item, x.stride[1] * item };
}

static inline void *vector_at(const Vectors *v, int64_t row, int64_t head)
{
    return v->data + row * v->row_bytes + head * v->head_bytes;
}

static inline Vectors vectors_of_rows(Tensor x, int64_t first, int64_t end)
{
    Vectors v = vectors_of(x);
    v.data += first * v.row_bytes;
    v.n_rows = end - first;
    return v;
}

/* Rows of x that hold `values` of its values. */
static inline int64_t rows_with(Tensor x, int64_t values)
{
    Vectors v = vectors_of(x);
    return values / (v.n_heads * v.d + 1) + 1;
}

/* What a worker should have at least: some microseconds of work, because waking it also means that it fetches the
 * instructions and that data travels. */
static inline int64_t rows_per_share(Tensor x)
{
    return rows_with(x, 24576);
}

/* Asks for lines that will be written: another worker may have read them, and to take them back one after the other
 * costs more than the work on them. */
static inline void ask_to_write(const void *at, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char *)at + i, 1);
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
