/* RMSNorm, plain and gated: the contract.
 *
 * Squares are summed in LANES lanes; the factor is one division and one square root per vector; products go
 * left to right. Rounding to the next linear's input type happens here, once. */
#include "backend/cpu/norm.h"

#include "backend/cpu/vectors.h"
#include "base/fmath.h"

static void norm_rows(void *arg, int64_t first, int64_t end, int worker)
{
    const NormJob *job = arg;
    Vectors out = vectors_of(job->out), x = vectors_of(job->x), z = job->z.data ? vectors_of(job->z) : (Vectors){ 0 };
    bool is_new = job->out.data != job->x.data; /* the rows were read by all workers since they were written */
    int64_t out_bytes = out.n_heads * out.d * (int64_t)dtype_bytes(job->out.dtype);
    if (is_new) ask_to_write(vector_at(&out, first, 0), out_bytes);
    for (int64_t r = first; r < end; r++) {
        if (is_new && r + 1 < end) ask_to_write(vector_at(&out, r + 1, 0), out_bytes);
        for (int64_t h = 0; h < x.n_heads; h++)
            job->fn(job, vector_at(&out, r, h), vector_at(&x, r, h), z.data ? vector_at(&z, r, h) : NULL);
    }
}

void norm_run(Stream *st, NormJob job)
{
    job.d = vectors_of(job.x).d;
    stream_for(st, job.x.shape[0], rows_per_share(job.x), norm_rows, &job);
    FAULT_POINT("norm", job.out, job.out.shape[0]);
}

/* ---- the contract's arithmetic ---- */

static void norm_vector(const NormJob *job, void *out, const float *x, const float *z)
{
    float factor = 1.0f / sqrtf(lanes_dot(x, x, job->d) / (float)job->d + job->eps);
    for (int64_t i = 0; i < job->d; i++) {
        float y = x[i] * factor * job->weight[i];
        if (z) y *= f_silu(z[i]);
        if (job->out.dtype == DT_F32) ((float *)out)[i] = y;
        else ((uint16_t *)out)[i] = f32_to_bf16(y);
    }
}

static void rms_norm(Stream *st, Tensor out, Tensor x, const float *weight, float eps)
{
    norm_run(st, (NormJob){ .out = out, .x = x, .weight = weight, .eps = eps, .fn = norm_vector });
}

static void rms_norm_gated(Stream *st, Tensor out, Tensor x, Tensor z, const float *weight, float eps)
{
    norm_run(st, (NormJob){ .out = out, .x = x, .z = z, .weight = weight, .eps = eps, .fn = norm_vector });
}

void cpu_scalar_add_norm(Ops *ops)
{
    ops->rms_norm = rms_norm;
    ops->rms_norm_gated = rms_norm_gated;
}
