/* RMSNorm, plain and gated, and what happens between two linears value by value.
 *
 * A norm of a long row has a block: all threads bring the row to shared memory, 16 of them add the squares in the lanes of
 * the contract, all scale. Short vectors (heads) have 16 threads each. Bound by latency: 16 chains of d / 16 steps. */
#include "backend/cuda/cuda_impl.h"

enum { THREADS = 256, LONG_THREADS = 1024, SHORT = 256, MAX_SHARED_ROW = 12288 }; /* longer rows are nobody's: 48 KB */

struct NormArgs {
    Rows         out, x, z; /* z.data NULL: not gated */
    Rows         more;      /* data NULL: nothing to add to x first */
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

/* Four values a thread at a time, so that a row of 4096 is one load of each array. */
static __device__ __forceinline__ float4 load4(const float *p, int32_t i, int32_t d, bool is_whole)
{
    if (is_whole) return *(const float4 *)(p + i);
    return make_float4(p[i], i + 1 < d ? p[i + 1] : 0, i + 2 < d ? p[i + 2] : 0, i + 3 < d ? p[i + 3] : 0);
}
static __device__ __forceinline__ void store4(float *p, int32_t i, int32_t d, bool is_whole, float4 v)
{
    if (is_whole) *(float4 *)(p + i) = v;
    else for (int e = 0; e < 4 && i + e < d; e++) p[i + e] = e == 0 ? v.x : e == 1 ? v.y : e == 2 ? v.z : v.w;
}

static __global__ void __launch_bounds__(LONG_THREADS) norm_long(const __grid_constant__ NormArgs a, bool is_whole)
{
    extern __shared__ __align__(16) float row[];
    __shared__ float shared_factor;
    int32_t d = (int32_t)a.x.d, at = (int32_t)threadIdx.x * 4;
    float4 weight = at < d ? load4(a.weight, at, d, is_whole) : make_float4(0, 0, 0, 0); /* known before all else */
    begin_kernel();
    int32_t r = blockIdx.x;
    float *x = (float *)row_at(a.x, r);
    const float *z = a.z.data ? (const float *)row_at(a.z, r) : nullptr, *more = a.more.data ? (const float *)row_at(a.more, r) : nullptr;
    char *out = row_at(a.out, r);
    for (int32_t i = at; i < d; i += 4 * LONG_THREADS) {
        float4 v = load4(x, i, d, is_whole);
        if (more) {
            float4 m = load4(more, i, d, is_whole);
            v = make_float4(v.x + m.x, v.y + m.y, v.z + m.z, v.w + m.w);
            store4(x, i, d, is_whole, v);
        }
        *(float4 *)(row + i) = v; /* the row has room for a whole last piece */
    }
    __syncthreads();
    if (threadIdx.x < 32) { /* 16 chains, twice; values come in groups so that only the sums wait for one another */
        enum { GROUP = 16 };
        float lane = 0;
        int32_t i = threadIdx.x % 16;
        for (; i + 16 * (GROUP - 1) < d; i += 16 * GROUP) {
            float v[GROUP];
#pragma unroll
            for (int g = 0; g < GROUP; g++) v[g] = row[i + 16 * g];
#pragma unroll
            for (int g = 0; g < GROUP; g++) lane = fmaf(v[g], v[g], lane);
        }
        for (; i < d; i += 16) lane = fmaf(row[i], row[i], lane);
        __syncwarp();
        lane = lanes_sum(lane);
        if (threadIdx.x == 0) shared_factor = factor_of(lane, d, a.eps);
    }
    __syncthreads();
    float factor = shared_factor;
    for (int32_t i = at; i < d; i += 4 * LONG_THREADS) {
        float4 v = *(float4 *)(row + i), w = i == at ? weight : load4(a.weight, i, d, is_whole);
        float y[4] = { v.x * factor * w.x, v.y * factor * w.y, v.z * factor * w.z, v.w * factor * w.w };
        for (int e = 0; z && e < 4 && i + e < d; e++) y[e] *= f_silu(z[i + e]);
        if (is_whole && a.out.item == 2) {
            *(uint2 *)((uint16_t *)out + i) = make_uint2(to_bf16(y[0]) | (uint32_t)to_bf16(y[1]) << 16, to_bf16(y[2]) | (uint32_t)to_bf16(y[3]) << 16);
        } else {
            for (int e = 0; e < 4 && i + e < d; e++) put(out, a.out.item, i + e, y[e]);
        }
    }
}

static __global__ void norm_short(const NormArgs a)
{
    begin_kernel();
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

static bool is_aligned(const Rows &x)
{
    return (uintptr_t)x.data % 16 == 0 && x.row_stride % 8 == 0 && x.head_stride % 8 == 0;
}

static bool is_whole(const NormArgs &a)
{
    return a.x.d % 4 == 0 && (uintptr_t)a.weight % 16 == 0 && is_aligned(a.x) && is_aligned(a.out) && is_aligned(a.more);
}

static void run_norm(Device *d, const NormArgs &a, Tensor out)
{
    if (a.x.n <= 0) return;
    MUST(a.x.d <= MAX_SHARED_ROW);
    if (a.x.d <= SHORT && !a.more.data) launch(d, norm_short, (unsigned)((a.x.n + 7) / 8), 128, 0, a);
    else launch(d, norm_long, (unsigned)a.x.n, LONG_THREADS, (size_t)(a.x.d + 3) / 4 * 16, a, is_whole(a));
    fault(d, "norm", out, out.shape[0]);
}

static void rms_norm(Stream *st, Tensor out, Tensor x, const float *weight, float eps)
{
    Device *d = device_with_held(st);
    const Tensor *more = join_norm(d, x);
    bool in_place = out.data == x.data && out.dtype == DT_F32 && x.n_dims == 3;
    if (!more && in_place && hold_head_norm(d, { x, weight, eps })) return;
    if (!more) release_held(d);
    run_norm(d, { rows_of(out), rows_of(x), {}, more ? rows_of(*more) : Rows{}, weight, eps }, out);
}

void cuda_run_norm(Device *d, HeadNorm n)
{
    run_norm(d, { rows_of(n.x), rows_of(n.x), {}, {}, n.weight, n.eps }, n.x);
}

static void rms_norm_gated(Stream *st, Tensor out, Tensor x, Tensor z, const float *weight, float eps)
{
    run_norm(device_of(st), { rows_of(out), rows_of(x), rows_of(z), {}, weight, eps }, out);
}

/* ---- value by value ---- */

enum Pair { ADD, SILU_MUL, SIGMOID_MUL };

template <Pair OP> static __global__ void pair_rows(Rows out, Rows a, Rows b)
{
    begin_kernel();
    int64_t r = blockIdx.x;
    char *o = row_at(out, r);
    const float *x = (const float *)row_at(a, r), *y = (const float *)row_at(b, r);
    for (int64_t i = (int64_t)blockIdx.y * blockDim.x + threadIdx.x; i < out.d; i += (int64_t)gridDim.y * blockDim.x) {
        if (OP == ADD) put(o, 4, i, x[i] + y[i]);
        if (OP == SILU_MUL) put(o, out.item, i, f_silu(x[i]) * y[i]);
        if (OP == SIGMOID_MUL) put(o, out.item, i, x[i] * f_sigmoid(y[i]));
    }
}

template <Pair OP> static void run_pair(Device *d, Tensor out, Tensor a, Tensor b)
{
    Rows o = rows_of(out);
    if (o.n <= 0) return;
    int64_t pieces = (o.d + THREADS - 1) / THREADS;
    launch(d, pair_rows<OP>, dim3((unsigned)o.n, (unsigned)(pieces < 32 ? pieces : 32)), THREADS, 0, o, rows_of(a), rows_of(b));
}

static void add(Stream *st, Tensor x, Tensor y)
{
    Device *d = device_of(st);
    if (!hold_add(d, x, y)) cuda_run_add(d, x, y);
}

void cuda_run_add(Device *d, Tensor x, Tensor y)
{
    run_pair<ADD>(d, x, x, y);
}

void cuda_run_silu_mul(Device *d, Tensor out, Tensor gate, Tensor up)
{
    run_pair<SILU_MUL>(d, out, gate, up);
}

static void silu_mul(Stream *st, Tensor out, Tensor gate, Tensor up)
{
    run_pair<SILU_MUL>(device_of(st), out, gate, up);
}

static void sigmoid_mul(Stream *st, Tensor out, Tensor x, Tensor gate)
{
    run_pair<SIGMOID_MUL>(device_of(st), out, x, gate);
}

void cuda_add_norm(Ops *ops)
{
    ops->rms_norm = rms_norm;
    ops->rms_norm_gated = rms_norm_gated;
    ops->add = add;
    ops->silu_mul = silu_mul;
    ops->sigmoid_mul = sigmoid_mul;
}
