/* Elementwise steps between the linears: residual add, SwiGLU, output gate. The contract. */
#include "backend/cpu/cpu_impl.h"
#include "base/fmath.h"
#include "backend/cpu/vectors.h"

typedef struct PairJob {
    Tensor out, a, b;
} PairJob;

static inline void put_act(void *out, DType dtype, int64_t i, float y)
{
    if (dtype == DT_F32) ((float *)out)[i] = y;
    else ((uint16_t *)out)[i] = f32_to_bf16(y);
}

static void add_vectors(void *arg, int64_t first, int64_t end, int worker)
{
    const PairJob *job = arg;
    int64_t d = vectors_of(job->out).d;
    for (int64_t r = first; r < end; r++) {
        float *x = vector_at(job->out, r);
        const float *y = vector_at(job->a, r);
        for (int64_t i = 0; i < d; i++) x[i] += y[i];
    }
}

static void silu_mul_vectors(void *arg, int64_t first, int64_t end, int worker)
{
    const PairJob *job = arg;
    int64_t d = vectors_of(job->a).d;
    for (int64_t r = first; r < end; r++) {
        const float *gate = vector_at(job->a, r), *up = vector_at(job->b, r);
        void *out = vector_at(job->out, r);
        for (int64_t i = 0; i < d; i++) put_act(out, job->out.dtype, i, f_silu(gate[i]) * up[i]);
    }
}

static void sigmoid_mul_vectors(void *arg, int64_t first, int64_t end, int worker)
{
    const PairJob *job = arg;
    int64_t d = vectors_of(job->a).d;
    for (int64_t r = first; r < end; r++) {
        const float *x = vector_at(job->a, r), *gate = vector_at(job->b, r);
        void *out = vector_at(job->out, r);
        for (int64_t i = 0; i < d; i++) put_act(out, job->out.dtype, i, x[i] * f_sigmoid(gate[i]));
    }
}

static void add(Stream *st, Tensor x, Tensor y)
{
    PairJob job = { .out = x, .a = y };
    Vectors v = vectors_of(x);
    stream_for(st, v.n, vectors_per_worker(v), add_vectors, &job);
}

static void silu_mul(Stream *st, Tensor out, Tensor gate, Tensor up)
{
    PairJob job = { out, gate, up };
    Vectors v = vectors_of(gate);
    stream_for(st, v.n, vectors_per_worker(v), silu_mul_vectors, &job);
}

static void sigmoid_mul(Stream *st, Tensor out, Tensor x, Tensor gate)
{
    PairJob job = { out, x, gate };
    Vectors v = vectors_of(x);
    stream_for(st, v.n, vectors_per_worker(v), sigmoid_mul_vectors, &job);
}

void cpu_scalar_add_activation(Ops *ops)
{
    ops->add = add;
    ops->silu_mul = silu_mul;
    ops->sigmoid_mul = sigmoid_mul;
}
