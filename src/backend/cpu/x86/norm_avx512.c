/* RMSNorm, plain and gated, in 16 lanes. A row of a decode step is a few hundred cycles, so what counts is that
 * the sum and the scaled copy run without tails in the middle; memory bounds nothing here. */
#include "backend/cpu/cpu_impl.h"
#include "backend/cpu/vectors.h"
#include "backend/cpu/x86/fmath_avx512.h"
#include "backend/cpu/x86/lanes_avx512.h"

typedef struct NormJob {
    Tensor       out, x, z; /* z.data NULL: not gated */
    const float *weight;
    float        eps;
} NormJob;

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

static void norm_vectors(void *arg, int64_t first, int64_t end, int worker)
{
    const NormJob *job = arg;
    int64_t d = vectors_of(job->x).d;
    for (int64_t r = first; r < end; r++) {
        const float *x = vector_at(job->x, r);
        void *out = vector_at(job->out, r);
        float factor = 1.0f / sqrtf(v_lanes_dot(x, x, d) / (float)d + job->eps);
        if (job->z.data) scale_vector(out, job->out.dtype, x, job->weight, vector_at(job->z, r), d, factor, true);
        else scale_vector(out, job->out.dtype, x, job->weight, NULL, d, factor, false);
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

void cpu_avx512_add_norm(Ops *ops)
{
    ops->rms_norm = rms_norm;
    ops->rms_norm_gated = rms_norm_gated;
}
