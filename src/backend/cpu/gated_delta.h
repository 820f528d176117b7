/* What the variants of Gated DeltaNet share: which rows pass through which state (walk.h), gates, logs. A
 * variant brings the arithmetic on a few columns of one head's state. */
#pragma once

#include "backend/cpu/cpu_impl.h"

enum { GDN_MAX_DK = 512, GDN_MAX_SLICE = 64 };

/* Some columns of one head's state [dk][dv]: element (i, j) at data[i * stride + j]. Stride 0: all rows are
 * the same, used for a state of zeros. */
typedef struct GdnState {
    float  *data;
    int64_t stride;
} GdnState;

/* One token on one slice: reads state `from`, leaves state `to` (which may be `from`). */
typedef struct GdnToken {
    GdnState     from, to;
    const float *q, *k; /* [dk] normalised, q scaled */
    const float *v;     /* [n] */
    float        decay, beta;
    float       *u, *o; /* [n] out; u NULL: nobody wants it */
} GdnToken;

/* The logged update of one row. */
typedef struct GdnUpdate {
    const float *k, *u;
    float        decay;
} GdnUpdate;

typedef struct GdnKernels {
    int32_t slice; /* columns a slice has, at most GDN_MAX_SLICE; its state should fit the L1 cache */

    /* out = x * (1 / sqrtf(lane sum x^2 + 1e-6)) * scale */
    void (*unit)(float *out, const float *x, int32_t dk, float scale);

    /* Tokens in order on n <= slice columns. */
    void (*run)(const GdnToken *token, int32_t n_tokens, int32_t dk, int32_t n);

    /* The writes of n_updates tokens again, in order. */
    void (*replay)(GdnState from, GdnState to, const GdnUpdate *update, int32_t n_updates, int32_t dk, int32_t n);
} GdnKernels;

void gdn_run(Stream *st, Tensor out, Tensor conv, Tensor a, Tensor b, const GatedDelta *p, StateView state,
             const Batch *batch, GdnLog log, const GdnKernels *kernels);
void gdn_commit(Stream *st, const GatedDelta *p, StateView state, StateView conv_state, int32_t channels,
                const Batch *batch, GdnLog log, const Commit *commits, int n, const GdnKernels *kernels);
