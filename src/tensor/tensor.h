/* A view of numbers in memory: pointer, element type, shape, strides. Never an owner.
 *
 * Row-major. The last dimension is always contiguous (stride 1); the others may be wider than the
 * shape, so "q of the doubled projection" or "the first n rows" are views, not copies.
 * Strides count elements. Shapes are counts, so int64_t throughout: products overflow 32 bits. */
#pragma once

#include "tensor/dtype.h"

enum { TENSOR_MAX_DIMS = 3 };

typedef struct Tensor {
    void   *data;
    DType   dtype;
    int     n_dims;
    int64_t shape[TENSOR_MAX_DIMS];
    int64_t stride[TENSOR_MAX_DIMS];
} Tensor;

static inline Tensor tensor_1d(void *data, DType t, int64_t n)
{
    return (Tensor){ data, t, 1, { n }, { 1 } };
}
static inline Tensor tensor_2d(void *data, DType t, int64_t rows, int64_t cols)
{
    return (Tensor){ data, t, 2, { rows, cols }, { cols, 1 } };
}
static inline Tensor tensor_2d_strided(void *data, DType t, int64_t rows, int64_t cols, int64_t row_stride)
{
    return (Tensor){ data, t, 2, { rows, cols }, { row_stride, 1 } };
}
/* [rows, heads, dim]: rows row_stride apart, heads head_stride apart. */
static inline Tensor tensor_heads(void *data, DType t, int64_t rows, int64_t heads, int64_t dim,
                                  int64_t row_stride, int64_t head_stride)
{
    return (Tensor){ data, t, 3, { rows, heads, dim }, { row_stride, head_stride, 1 } };
}
/* The first n rows of x (first dimension cut). */
static inline Tensor tensor_rows(Tensor x, int64_t n)
{
    x.shape[0] = n;
    return x;
}
/* n columns of a 2-d x from `first` on. */
static inline Tensor tensor_cols(Tensor x, int64_t first, int64_t n)
{
    x.data = (char *)x.data + (size_t)first * dtype_bytes(x.dtype);
    x.shape[1] = n;
    return x;
}
static inline float *tensor_f32(Tensor x, int64_t row)
{
    return (float *)x.data + row * x.stride[0];
}
static inline uint16_t *tensor_bf16(Tensor x, int64_t row)
{
    return (uint16_t *)x.data + row * x.stride[0];
}
