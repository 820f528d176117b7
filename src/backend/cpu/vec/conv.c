/* The short convolution in vectors: one row of some channels. */
#include "backend/cpu/conv.h"
#include "backend/cpu/vec/fmath.h"

static void conv_row(float *out, const float *const in[CONV_TAPS], float tap[CONV_TAPS][CONV_CHUNK], int64_t n)
{
    for (int64_t c = 0; c < n; c += V_LANES) {
        V x = v_load(tap[0] + c) * v_load_n(in[3] + c, n - c);
        for (int t = 1; t < CONV_TAPS; t++)
            x = v_fma(v_load(tap[t] + c), v_load_n(in[CONV_TAPS - 1 - t] + c, n - c), x);
        v_store_n(out + c, v_silu(x), n - c);
    }
}

static void conv_silu(Stream *st, Tensor out, Tensor mix, const float *weight, StateView state, const Batch *batch,
                      Tensor log_mix)
{
    conv_run(st, out, mix, weight, state, batch, log_mix, conv_row);
}

void VEC_NAME(add_conv)(Ops *ops)
{
    ops->conv_silu = conv_silu;
}
