/* What the variants of the rotary embedding share: a variant brings the sines and cosines of a row and the turn of one
 * head. */
#pragma once

#include "backend/cpu/cpu_impl.h"

enum { ROPE_MAX_PAIRS = 512 };

typedef struct RopeJob {
    Tensor            x;
    const int32_t    *rope; /* [3][n_rows] */
    int32_t           n_rows;
    const RopeParams *params;
    void (*row_turns)(const struct RopeJob *job, int64_t row, float *c, float *s);
    void (*turn_head)(float *x, const float *c, const float *s, int32_t half);
} RopeJob;

void rope_run(Stream *st, RopeJob job);
