/* What the variants of the moving rows share: a variant only brings the rounding loop. */
#pragma once

#include "backend/cpu/cpu_impl.h"

/* out[i] = x[i] rounded to bf16, as f32_to_bf16() does. */
typedef void (*RoundFn)(uint16_t *out, const float *x, int64_t n);

void rows_round(Stream *st, Tensor out, Tensor x, RoundFn round);
void rows_kv_store(Stream *st, KvView view, Tensor k, Tensor v, const int32_t *store, RoundFn round);
