/* The short convolution in 16 lanes: one row of some channels. */
#include "backend/cpu/conv.h"
#include "backend/cpu/x86/fmath_avx512.h"
#include "backend/cpu/x86/lanes_avx512.h"

static void conv_row(float *out, const float *const in[CONV_TAPS], float tap[CONV_TAPS][CONV_CHUNK], int64_t n)
{
    for (int64_t c = 0; c < n; c += 16) {
        __mmask16 valid = lanes_left(n - c);
        __m512 x = _mm512_mul_ps(_mm512_loadu_ps(tap[0] + c), _mm512_maskz_loadu_ps(valid, in[3] + c));
        for (int t = 1; t < CONV_TAPS; t++)
            x = v_fma(_mm512_loadu_ps(tap[t] + c), _mm512_maskz_loadu_ps(valid, in[CONV_TAPS - 1 - t] + c), x);
        _mm512_mask_storeu_ps(out + c, valid, v_silu(x));
    }
}

static void conv_silu(Stream *st, Tensor out, Tensor mix, const float *weight, StateView state, const Batch *batch,
                      Tensor log_mix)
{
    conv_run(st, out, mix, weight, state, batch, log_mix, conv_row);
}

void cpu_avx512_add_conv(Ops *ops)
{
    ops->conv_silu = conv_silu;
}
