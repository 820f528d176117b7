/* Elementwise steps between the linears: residual add, SwiGLU, output gate. The contract. */
#include "backend/cpu/activation.h"

#include "backend/cpu/vectors.h"
#include "base/fmath.h"

typedef struct PairJob {
    Tensor out, a, b;
    PairFn fn;
} PairJob;

static void run_rows(void *arg, int64_t first, int64_t end, int worker)
{
    const PairJob *job = arg;
    Vectors out = vectors_of(job->out), a = vectors_of(job->a), b = vectors_of(job->b);
    for (int64_t r = first; r < end; r++)
        for (int64_t h = 0; h < out.n_heads; h++)
            job->fn(vector_at(&out, r, h), job->out.dtype, vector_at(&a, r, h), vector_at(&b, r, h), out.d);
}

void pairs_run(Stream *st, Tensor out, Tensor a, Tensor b, int64_t values_per_share, PairFn fn)
{
    PairJob job = { out, a, b, fn };
    stream_for(st, a.shape[0], rows_with(a, values_per_share), run_rows, &job);
}

/* ---- the contract's arithmetic ---- */

static inline void put_act(void *out, DType dtype, int64_t i, float y)
{
    if (dtype == DT_F32) ((float *)out)[i] = y;
    else ((uint16_t *)out)[i] = f32_to_bf16(y);
}

static void add_values(void *out, DType dtype, const float *a, const float *b, int64_t n)
{
    float *x = out;
    for (int64_t i = 0; i < n; i++) x[i] = a[i] + b[i];
}

static void silu_mul_values(void *out, DType dtype, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++) put_act(out, dtype, i, f_silu(gate[i]) * up[i]);
}

static void sigmoid_mul_values(void *out, DType dtype, const float *x, const float *gate, int64_t n)
{
    for (int64_t i = 0; i < n; i++) put_act(out, dtype, i, x[i] * f_sigmoid(gate[i]));
}

static void add(Stream *st, Tensor x, Tensor y)
{
    pairs_run(st, x, x, y, ADD_PER_SHARE, add_values);
}

static void silu_mul(Stream *st, Tensor out, Tensor gate, Tensor up)
{
    pairs_run(st, out, gate, up, GATE_PER_SHARE, silu_mul_values);
}

static void sigmoid_mul(Stream *st, Tensor out, Tensor x, Tensor gate)
{
    pairs_run(st, out, x, gate, GATE_PER_SHARE, sigmoid_mul_values);
}

void cpu_scalar_add_activation(Ops *ops)
{
    ops->add = add;
    ops->silu_mul = silu_mul;
    ops->sigmoid_mul = sigmoid_mul;
}
