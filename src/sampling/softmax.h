/* Exponentials over a row of scores: the part of choosing that is worth wide instructions.
 *
 * Every variant does the operations of base/fmath.h element by element, so all give the same bits; CPU_MASK (scalar,
 * avx2, avx512) chooses an older one, as in the backend. Any thread in numeric mode. */
#pragma once

#include "backend/choice.h"

/* out[i] = exp(x[i] - max), 0 for -inf. max is the largest x[i], finite. out is x or does not overlap it. */
void softmax_exp(float *out, const float *x, int32_t n, float max);

/* log of the sum of exp(x[i] - max): what log-softmax subtracts after max, logprob = (x - max) - this. Pieces of SUM_PIECE
 * values are summed in LANES float32 lanes, element i of a piece in lane i % LANES, ascending, the lanes added as a binary
 * tree (backend/ops.h); the sums of the pieces are added in the same way. So pieces can be summed at the same time, and no
 * chain of additions is long. n is at most 2^20. */
float softmax_log_sum(const float *x, int32_t n, float max);

/* The variants, for the test that compares them: scalar, avx2, avx512. NULL where this machine lacks it. */
enum { SOFTMAX_VARIANTS = 3 };
typedef void (*SoftmaxExp)(float *out, const float *x, int32_t n, float max);
SoftmaxExp softmax_exp_variant(int i);
