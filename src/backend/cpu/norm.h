/* What the variants of RMSNorm share: a variant only brings the arithmetic of one vector. */
#pragma once

#include "backend/cpu/cpu_impl.h"

typedef struct NormJob NormJob;

/* Norm of the job->d values of x, to out; z NULL: not gated. */
typedef void (*NormFn)(const NormJob *job, void *out, const float *x, const float *z);

struct NormJob {
    Tensor       out, x, z; /* z.data NULL: not gated */
    const float *weight;
    float        eps;
    NormFn       fn;
    int64_t      d;
};

void norm_run(Stream *st, NormJob job);
