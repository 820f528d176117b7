/* What tensor cores of sm_90 compute, in C: the bits that a GPU must have (docs/ARCHITECTURE.md, GPU contract). */
#pragma once

#include "backend/backend.h"

/* acc + 16 products of bf16 numbers, as one m16n8k16. */
float tensor_core_product(float acc, const uint16_t *x, const uint16_t *w);

/* Row of x times a weight row of float32 numbers that are bf16 (n_in of them), in the order of linear. in_parts: of a
 * row-parallel weight, whose inputs are summed in parts. */
float tensor_core_dot(Tensor x, int64_t row, const float *w, int64_t n_in, bool in_parts);

/* Attention over a bf16 cache of a usual head size, by the contract of backend/cuda/attention_tiles.cu. */
bool tensor_core_attends(Tensor q, const KvView *view);
void tensor_core_attention(Tensor out, Tensor q, KvView view, const Batch *batch, const int32_t *store, float scale);
