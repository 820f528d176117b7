/* RMSNorm, plain and gated, in vectors. */
#include "backend/cpu/norm.h"
#include "backend/cpu/vec/fmath.h"

ALWAYS_INLINE void scale_vector(void *out, DType dtype, const float *x, const float *weight, const float *z, int64_t d,
                                float factor, bool is_gated)
{
    for (int64_t i = 0; i < d; i += V_LANES) {
        V y = v_load_n(x + i, d - i) * v_set(factor) * v_load_n(weight + i, d - i);
        if (is_gated) y *= v_silu(v_load_n(z + i, d - i));
        v_put(out, i, y, dtype, d - i);
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

void VEC_NAME(add_norm)(Ops *ops)
{
    ops->rms_norm = rms_norm;
    ops->rms_norm_gated = rms_norm_gated;
}
