/* RMSNorm, plain and gated: the contract.
 *
 * Squares are summed in LANES lanes; the factor is one division and one square root per vector; products go
 * left to right. Rounding to the next linear's input type happens here, once. */
#include "backend/cpu/cpu_impl.h"
#include "base/fmath.h"
#include "backend/cpu/vectors.h"

typedef struct NormJob {
    Tensor       out, x, z; /* z.data NULL: not gated */
    const float *weight;
    float        eps;
} NormJob;

static float rms_factor(const float *x, int64_t d, float eps)
{
    return 1.0f / sqrtf(lanes_dot(x, x, d) / (float)d + eps);
}

static void norm_vectors(void *arg, int64_t first, int64_t end, int worker)
{
    const NormJob *job = arg;
    int64_t d = vectors_of(job->x).d;
    for (int64_t r = first; r < end; r++) {
        const float *x = vector_at(job->x, r), *z = job->z.data ? vector_at(job->z, r) : NULL;
        void *out = vector_at(job->out, r);
        float factor = rms_factor(x, d, job->eps);
        for (int64_t i = 0; i < d; i++) {
            float y = x[i] * factor * job->weight[i];
            if (z) y *= f_silu(z[i]);
            if (job->out.dtype == DT_F32) ((float *)out)[i] = y;
            else ((uint16_t *)out)[i] = f32_to_bf16(y);
        }
    }
}

static void rms_norm(Stream *st, Tensor out, Tensor x, const float *weight, float eps)
{
    NormJob job = { .out = out, .x = x, .weight = weight, .eps = eps };
    Vectors v = vectors_of(x);
    stream_for(st, v.n, vectors_per_worker(v), norm_vectors, &job);
    FAULT_POINT("norm", out, out.shape[0]);
}

static void rms_norm_gated(Stream *st, Tensor out, Tensor x, Tensor z, const float *weight, float eps)
{
    NormJob job = { .out = out, .x = x, .z = z, .weight = weight, .eps = eps };
    Vectors v = vectors_of(x);
    stream_for(st, v.n, vectors_per_worker(v), norm_vectors, &job);
    FAULT_POINT("norm", out, out.shape[0]);
}

void cpu_scalar_add_norm(Ops *ops)
{
    ops->rms_norm = rms_norm;
    ops->rms_norm_gated = rms_norm_gated;
}
