/* What the variants of the short convolution share: the walk over rows and states. A variant brings the
 * arithmetic of one row. */
#pragma once

#include "backend/cpu/cpu_impl.h"

enum {
    CONV_TAPS = 4,
    CONV_TAIL = CONV_TAPS - 1, /* raw rows kept per slot */
    CONV_CHUNK = 256,          /* channels one worker takes at a time */
};

/* One row, n <= CONV_CHUNK channels. in[b] is the raw row b tokens back, tap[i] the n weights of tap i:
 * out[c] = silu(fma(tap[3], in[0], fma(tap[2], in[1], fma(tap[1], in[2], tap[0] * in[3])))). */
typedef void (*ConvRowFn)(float *out, const float *const in[CONV_TAPS], float tap[CONV_TAPS][CONV_CHUNK], int64_t n);

void conv_run(Stream *st, Tensor out, Tensor mix, const float *weight, StateView state, const Batch *batch,
              Tensor log_mix, ConvRowFn row_fn);

/* Channels [first, first + n) of the state after an accepted path: its last three raw rows. */
void conv_commit_channels(StateView state, int64_t channels, const BatchSeq *seq, Tensor log_mix,
                          const Commit *commit, int64_t first, int64_t n);
