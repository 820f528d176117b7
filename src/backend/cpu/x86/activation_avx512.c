/* Elementwise steps between the linears in 16 lanes. Memory bounds the add; silu and sigmoid cost some twenty
 * instructions for 16 values, an exp and a division. */
#include "backend/cpu/cpu_impl.h"
#include "backend/cpu/vectors.h"
#include "backend/cpu/x86/fmath_avx512.h"
#include "backend/cpu/x86/lanes_avx512.h"

typedef struct PairJob {
    Tensor out, a, b;
} PairJob;

static void add_vectors(void *arg, int64_t first, int64_t end, int worker)
{
    const PairJob *job = arg;
    int64_t d = vectors_of(job->out).d;
    for (int64_t r = first; r < end; r++) {
        float *x = vector_at(job->out, r);
        const float *y = vector_at(job->a, r);
        for (int64_t i = 0; i < d; i += 16) {
            __mmask16 valid = lanes_left(d - i);
            __m512 sum = _mm512_add_ps(_mm512_maskz_loadu_ps(valid, x + i), _mm512_maskz_loadu_ps(valid, y + i));
            _mm512_mask_storeu_ps(x + i, valid, sum);
        }
    }
}

static void silu_mul_vectors(void *arg, int64_t first, int64_t end, int worker)
{
    const PairJob *job = arg;
    int64_t d = vectors_of(job->a).d;
    for (int64_t r = first; r < end; r++) {
        const float *gate = vector_at(job->a, r), *up = vector_at(job->b, r);
        void *out = vector_at(job->out, r);
        for (int64_t i = 0; i < d; i += 16) {
            __mmask16 valid = lanes_left(d - i);
            __m512 y = v_silu(_mm512_maskz_loadu_ps(valid, gate + i));
            v_put(out, i, _mm512_mul_ps(y, _mm512_maskz_loadu_ps(valid, up + i)), job->out.dtype, valid);
        }
    }
}

static void sigmoid_mul_vectors(void *arg, int64_t first, int64_t end, int worker)
{
    const PairJob *job = arg;
    int64_t d = vectors_of(job->a).d;
    for (int64_t r = first; r < end; r++) {
        const float *x = vector_at(job->a, r), *gate = vector_at(job->b, r);
        void *out = vector_at(job->out, r);
        for (int64_t i = 0; i < d; i += 16) {
            __mmask16 valid = lanes_left(d - i);
            __m512 y = v_sigmoid(_mm512_maskz_loadu_ps(valid, gate + i));
            v_put(out, i, _mm512_mul_ps(_mm512_maskz_loadu_ps(valid, x + i), y), job->out.dtype, valid);
        }
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

void cpu_avx512_add_activation(Ops *ops)
{
    ops->add = add;
    ops->silu_mul = silu_mul;
    ops->sigmoid_mul = sigmoid_mul;
}
