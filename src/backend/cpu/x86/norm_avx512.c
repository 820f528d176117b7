/* RMSNorm, plain and gated, in 16 lanes. A row of a decode step is a few hundred cycles, so what counts is that
 * the sum and the scaled copy run without tails in the middle; memory bounds nothing here. */
#include "backend/cpu/norm.h"
#include "backend/cpu/x86/fmath_avx512.h"
#include "backend/cpu/x86/lanes_avx512.h"

ALWAYS_INLINE void scale_vector(void *out, DType dtype, const float *x, const float *weight, const float *z, int64_t d,
                                float factor, bool is_gated)
{
    for (int64_t i = 0; i < d; i += 16) {
        __mmask16 valid = lanes_left(d - i);
        __m512 y = _mm512_mul_ps(_mm512_maskz_loadu_ps(valid, x + i), v_set(factor));
        y = _mm512_mul_ps(y, _mm512_maskz_loadu_ps(valid, weight + i));
        if (is_gated) y = _mm512_mul_ps(y, v_silu(_mm512_maskz_loadu_ps(valid, z + i)));
        v_put(out, i, y, dtype, valid);
    }
}

static void norm_vector(const NormJob *job, void *out, const float *x, const float *z)
{
    float factor = 1.0f / sqrtf(v_lanes_dot(x, x, job->d) / (float)job->d + job->eps);
    if (z) scale_vector(out, job->out.dtype, x, job->weight, z, job->d, factor, true);
    else if (job->out.dtype == DT_F32) scale_vector(out, DT_F32, x, job->weight, NULL, job->d, factor, false);
    else scale_vector(out, DT_BF16, x, job->weight, NULL, job->d, factor, false);
}

static void rms_norm(Stream *st, Tensor out, Tensor x, const float *weight, float eps)
{
    norm_run(st, (NormJob){ .out = out, .x = x, .weight = weight, .eps = eps, .fn = norm_vector });
}

static void rms_norm_gated(Stream *st, Tensor out, Tensor x, Tensor z, const float *weight, float eps)
{
    norm_run(st, (NormJob){ .out = out, .x = x, .z = z, .weight = weight, .eps = eps, .fn = norm_vector });
}

void cpu_avx512_add_norm(Ops *ops)
{
    ops->rms_norm = rms_norm;
    ops->rms_norm_gated = rms_norm_gated;
}
