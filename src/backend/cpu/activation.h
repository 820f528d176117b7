/* What the variants of the elementwise steps share: a variant only brings the arithmetic on some values of a row. */
#pragma once

#include "backend/cpu/cpu_impl.h"

/* out[i] = f(a[i], b[i]) for n values; out is of type dtype, and may be a. */
typedef void (*PairFn)(void *out, DType dtype, const float *a, const float *b, int64_t n);

/* values_per_share: as many as keep a worker busy for some microseconds. */
void pairs_run(Stream *st, Tensor out, Tensor a, Tensor b, int64_t values_per_share, PairFn fn);

enum { ADD_PER_SHARE = 32768, GATE_PER_SHARE = 8192 };
