/* What the variants of linear share: how panels are spread over workers, and where their sums go. */
#pragma once

#include "backend/cpu/cpu_impl.h"

#include <string.h>

enum { LINEAR_MAX_JOBS = 8 };

/* linear as one function per worker: counts rows, cuts the panels of every job into even, contiguous shares. Jobs whose
 * weights are kept as stored go to the stream's functions for them, the others to fn. */
void linear_spread(Stream *st, Tensor x, const LinearJob *jobs, int n_jobs, LinearSpansFn fn);

/* linear_silu_mul: panels [first, end) of gate and up, their products to the same columns of out. */
typedef struct GatedJob {
    Tensor               out, x;
    const struct Weight *gate, *up;
} GatedJob;
typedef void (*GatedFn)(const GatedJob *job, int64_t first, int64_t end, void *scratch);
void linear_spread_gated(Stream *st, const GatedJob *job, GatedFn fn);

/* 32-bit words of one output row: pairs of bf16 inputs, or float32 inputs. */
static inline int64_t weight_words(const struct Weight *w)
{
    return w->contract.mode == MATH_BF16 ? (w->n_in + 1) / 2 : w->n_in;
}
static inline int64_t weight_panels(const struct Weight *w)
{
    return (w->n_out + WEIGHT_PANEL - 1) / WEIGHT_PANEL;
}

/* Sums [n_rows][16] of the panel that begins at column `col` to rows of out; the last panel may have fewer columns. */
static inline void linear_store_panel(Tensor out, int64_t row, int64_t col, const float *sums, int n_rows)
{
    int64_t n = out.shape[1] - col < WEIGHT_PANEL ? out.shape[1] - col : WEIGHT_PANEL;
    for (int r = 0; r < n_rows; r++) memcpy(tensor_f32(out, row + r) + col, sums + r * WEIGHT_PANEL, (size_t)n * sizeof *sums);
}
