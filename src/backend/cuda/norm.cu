/* RMSNorm, plain and gated, and what happens between two linears value by value.
 *
 * A norm of a long row has a block: all threads bring the row to shared memory, 16 of them add the squares in the lanes of
 * the contract, all scale. Short vectors (heads) have 16 threads each. Bound by latency: 16 chains of d / 16 steps. */
#include "cuda_impl.h"

enum { THREADS = 256, SHORT = 256, MAX_SHARED_ROW = 12288 };

struct NormArgs {
    Rows         out, x, z; /* z.data NULL: not gated */
    const float *weight;
    float        eps;
};

static __device__ __forceinline__ void put_normed(const NormArgs &a, char *out, const float *z, int64_t i, float x, float factor)
{
    float y = x * factor * a.weight[i];
    if (z) y *= f_silu(z[i]);
    put(out, a.out.item, i, y);
}

static __device__ __forceinline__ float factor_of(float sum, int64_t d, float eps)
{
    return 1.0f / sqrtf(sum / (float)d + eps);
}

static __global__ void norm_long(const NormArgs a)
{
    extern __shared__ float row[];
    __shared__ float shared_factor;
    int64_t r = blockIdx.x, d = a.x.d;
    const float *x = (const float *)row_at(a.x, r), *z = a.z.data ? (const float *)row_at(a.z, r) : nullptr;
    char *out = row_at(a.out, r);
    bool fits = d <= MAX_SHARED_ROW;
    if (fits) {
        for (int64_t i = threadIdx.x; i < d; i += blockDim.x) row[i] = x[i];
        __syncthreads();
    }
    if (threadIdx.x < 32) {
        const float *in = fits ? row : x;
        float lane = 0;
        int64_t i = threadIdx.x % 16;
#pragma unroll 16
        for (; i < d; i += 16) lane = fmaf(in[i], in[i], lane);
        lane = lanes_sum(lane);
        if (threadIdx.x == 0) shared_factor = factor_of(lane, d, a.eps);
    }
    __syncthreads();
    float factor = shared_factor;
    for (int64_t i = threadIdx.x; i < d; i += blockDim.x) put_normed(a, out, z, i, fits ? row[i] : x[i], factor);
}

static __global__ void norm_short(const NormArgs a)
{
    int64_t r = (int64_t)blockIdx.x * (blockDim.x / 16) + threadIdx.x / 16, d = a.x.d;
    bool is_row = r < a.x.n;
    const float *x = (const float *)row_at(a.x, is_row ? r : 0);
    float lane = 0;
    for (int64_t i = threadIdx.x % 16; i < d; i += 16) lane = fmaf(x[i], x[i], lane);
    lane = lanes_sum(lane);
    if (!is_row) return;
    const float *z = a.z.data ? (const float *)row_at(a.z, r) : nullptr;
    char *out = row_at(a.out, r);
    float factor = factor_of(lane, d, a.eps);
    for (int64_t i = threadIdx.x % 16; i < d; i += 16) put_normed(a, out, z, i, x[i], factor);
}

static void run_norm(Device *d, const NormArgs &a, Tensor out)
{
    if (a.x.n <= 0) return;
    if (a.x.d <= SHORT) {
        norm_short<<<(unsigned)((a.x.n + 7) / 8), 128, 0, d->stream>>>(a);
    } else {
        size_t shared = a.x.d <= MAX_SHARED_ROW ? (size_t)a.x.d * sizeof(float) : 0;
        norm_long<<<(unsigned)a.x.n, THREADS, shared, d->stream>>>(a);
    }
    LAUNCHED();
    fault(d, "norm", out, out.shape[0]);
}

static void rms_norm(Stream *st, Tensor out, Tensor x, const float *weight, float eps)
{
    run_norm(device_of(st), { rows_of(out), rows_of(x), {}, weight, eps }, out);
}

static void rms_norm_gated(Stream *st, Tensor out, Tensor x, Tensor z, const float *weight, float eps)
{
    run_norm(device_of(st), { rows_of(out), rows_of(x), rows_of(z), weight, eps }, out);
}

/* ---- value by value ---- */

enum Pair { ADD, SILU_MUL, SIGMOID_MUL };

template <Pair OP> static __global__ void pair_rows(Rows out, Rows a, Rows b)
{
    int64_t r = blockIdx.x;
    char *o = row_at(out, r);
    const float *x = (const float *)row_at(a, r), *y = (const float *)row_at(b, r);
    for (int64_t i = (int64_t)blockIdx.y * blockDim.x + threadIdx.x; i < out.d; i += (int64_t)gridDim.y * blockDim.x) {
        if (OP == ADD) put(o, 4, i, x[i] + y[i]);
        if (OP == SILU_MUL) put(o, out.item, i, f_silu(x[i]) * y[i]);
        if (OP == SIGMOID_MUL) put(o, out.item, i, x[i] * f_sigmoid(y[i]));
    }
}

template <Pair OP> static void run_pair(Stream *st, Tensor out, Tensor a, Tensor b)
{
    Device *d = device_of(st);
    Rows o = rows_of(out);
    if (o.n <= 0) return;
    int64_t pieces = (o.d + THREADS - 1) / THREADS;
    pair_rows<OP><<<dim3((unsigned)o.n, (unsigned)(pieces < 32 ? pieces : 32)), THREADS, 0, d->stream>>>(o, rows_of(a), rows_of(b));
    LAUNCHED();
}

static void add(Stream *st, Tensor x, Tensor y)
{
    run_pair<ADD>(st, x, x, y);
}

static void silu_mul(Stream *st, Tensor out, Tensor gate, Tensor up)
{
    run_pair<SILU_MUL>(st, out, gate, up);
}

static void sigmoid_mul(Stream *st, Tensor out, Tensor x, Tensor gate)
{
    run_pair<SIGMOID_MUL>(st, out, x, gate);
}

void cuda_add_norm(Ops *ops)
{
    ops->rms_norm = rms_norm;
    ops->rms_norm_gated = rms_norm_gated;
    ops->add = add;
    ops->silu_mul = silu_mul;
    ops->sigmoid_mul = sigmoid_mul;
}
