/* What the variants of the moving rows share: a variant only brings the loops over numbers. */
#pragma once

#include "backend/cpu/cpu_impl.h"

/* out[i] = x[i] rounded to bf16, as f32_to_bf16() does. */
typedef void (*RoundFn)(uint16_t *out, const float *x, int64_t n);

void rows_round(Stream *st, Tensor out, Tensor x, RoundFn round);

typedef struct StoreKernels {
    RoundFn round;
    /* Bits of the largest |x|; those of infinity or more when an x is not finite. */
    uint32_t (*largest)(const float *x, int64_t n);
    /* codes[i] = x[i] / scale as fp8_encode() does it; all finite, |x / scale| about 448 at most. */
    void (*encode)(uint8_t *codes, const float *x, int64_t n, float scale);
} StoreKernels;
void rows_kv_store(Stream *st, KvView view, Tensor k, Tensor v, const int32_t *store, const StoreKernels *kernels);
