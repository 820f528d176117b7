/* Inner loops of attention by the element type of the cache. Each variant includes this once, behind its own scores_by_rows_n(),
 * add_values_typed() and widen_typed(): there the type, and the number of queries, have to be constants. */
#pragma once

#include "backend/cpu/attention_groups.h"

ALWAYS_INLINE void scores_by_rows_typed(float *const x[], const float *const q[], int n_q, const void *const key[],
                                        const float *factor, int32_t ahead, int32_t dim, const DType t)
{
    switch (n_q) {
    case 1: scores_by_rows_n(x, q, key, factor, ahead, dim, t, 1); break;
    case 2: scores_by_rows_n(x, q, key, factor, ahead, dim, t, 2); break;
    case 3: scores_by_rows_n(x, q, key, factor, ahead, dim, t, 3); break;
    default: scores_by_rows_n(x, q, key, factor, ahead, dim, t, 4);
    }
}

static void scores_by_rows(float *const x[], const float *const q[], int n_q, const void *const key[],
                           const float *factor, int32_t ahead, int32_t dim, DType dtype)
{
    switch (dtype) {
    case DT_F32: scores_by_rows_typed(x, q, n_q, key, factor, ahead, dim, DT_F32); break;
    case DT_BF16: scores_by_rows_typed(x, q, n_q, key, factor, ahead, dim, DT_BF16); break;
    default: scores_by_rows_typed(x, q, n_q, key, factor, ahead, dim, DT_F8_E4M3);
    }
}

static void add_values(const ValueBlock *b, const void *const value[], int32_t ahead, int32_t dim, DType dtype)
{
    switch (dtype) {
    case DT_F32: add_values_typed(b, value, ahead, dim, DT_F32); break;
    case DT_BF16: add_values_typed(b, value, ahead, dim, DT_BF16); break;
    default: add_values_typed(b, value, ahead, dim, DT_F8_E4M3);
    }
}

static void widen(float *out, const void *row, const void *ahead, int32_t dim, DType dtype)
{
    if (dtype == DT_BF16) widen_typed(out, row, ahead, dim, DT_BF16);
    else widen_typed(out, row, ahead, dim, DT_F8_E4M3);
}
