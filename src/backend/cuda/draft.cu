/* What only drafters need, with the bits of cpu/draft_ops.c: scaled and capped logits, the convolution inside a block,
 * picking candidates that follow one another. Small beside the linears around them. */
#include "backend/cuda/cuda_impl.h"

enum { THREADS = 256 };

static __device__ __forceinline__ float tanh_of(float x)
{
    float y = fabsf(x), z = x * x, t = f_exp(-2.0f * y);
    float series = fmaf(z, 0x1.664f48p-6f, -0x1.ba1ba2p-5f);
    series = fmaf(series, z, 0x1.111112p-3f);
    series = fmaf(series, z, -0x1.555556p-2f);
    series = fmaf(x * z, series, x);
    float far = copysignf((1.0f - t) / (1.0f + t), x);
    return y < 0.25f ? series : far;
}

static __global__ void scale_rows(Rows x, float factor, float cap)
{
    begin_kernel();
    float *row = (float *)row_at(x, blockIdx.x);
    for (int64_t i = (int64_t)blockIdx.y * blockDim.x + threadIdx.x; i < x.d; i += (int64_t)gridDim.y * blockDim.x) {
        float y = row[i] * factor;
        row[i] = cap > 0 ? cap * tanh_of(y / cap) : y;
    }
}

static void scale_cap(Stream *st, Tensor x, float factor, float cap)
{
    Device *d = device_of(st);
    if (x.shape[0] <= 0) return;
    launch(d, scale_rows, dim3((unsigned)x.shape[0], 32), THREADS, 0, rows_of(x), factor, cap);
}

static __global__ void conv_block(Rows out, Rows x, const float *base, Rows dynamic, int32_t kernel, int32_t block_rows, int64_t group)
{
    begin_kernel();
    int64_t r = blockIdx.x, d = x.d, n_groups = d / group, place = r % block_rows;
    const float *own = (const float *)row_at(dynamic, r);
    char *to = row_at(out, r);
    for (int64_t c = (int64_t)blockIdx.y * blockDim.x + threadIdx.x; c < d; c += (int64_t)gridDim.y * blockDim.x) {
        float sum = 0;
        for (int64_t t = 0; t < kernel && t <= place; t++)
            sum = fmaf(base[t * d + c] + own[t * n_groups + c / group], ((const float *)row_at(x, r - t))[c], sum);
        put(to, out.item, c, sum);
    }
}

static void block_conv(Stream *st, Tensor out, Tensor x, const float *base, Tensor dynamic, int32_t kernel, int32_t block_rows)
{
    Device *d = device_of(st);
    if (x.shape[0] <= 0) return;
    int64_t n_groups = dynamic.shape[1] / kernel;
    launch(d, conv_block, dim3((unsigned)x.shape[0], 8), THREADS, 0, rows_of(out), rows_of(x), base, rows_of(dynamic), kernel,
                                                                       block_rows, x.shape[1] / n_groups);
    fault(d, "block_conv", out, out.shape[0]);
}

/* ---- pick ---- */

struct DeviceLine {
    int32_t first, n_rows, anchor, noise; /* noise: where its rows begin; -1 = none */
    float   temperature;
};

struct PickArgs {
    const DeviceLine *lines;
    const int32_t    *candidate;
    const float      *logit, *noise;
    const float      *edge;
    int64_t           edge_row, rank;
    DeviceWeight      predecessor, successor;
    int32_t          *picked, k;
};

/* A warp a line, its halves a candidate in turn: 16 lanes each. */
static __global__ void pick_line(const PickArgs p)
{
    begin_kernel();
    DeviceLine line = p.lines[blockIdx.x];
    int32_t before = line.anchor, lane = threadIdx.x % 16, half = threadIdx.x / 16;
    for (int32_t i = 0; i < line.n_rows; i++) {
        int64_t row = line.first + i;
        float best = -F_INF;
        int32_t picked = 0, n = 0;
        while (n < p.k && p.candidate[row * p.k + n] >= 0) n++;
        for (int32_t c0 = 0; c0 < n; c0 += 2) {
            int32_t c = c0 + half < n ? c0 + half : n - 1;
            int32_t id = p.candidate[row * p.k + c];
            float sum = 0;
            for (int64_t r = lane; r < p.rank; r += 16)
                sum = fmaf(weight_at(p.predecessor, before, r) * p.edge[row * p.edge_row + r], weight_at(p.successor, id, r), sum);
            sum = lanes_sum(sum);
            float score = p.logit[row * p.k + c] + sum;
            if (line.temperature > 0) score /= line.temperature;
            if (line.noise >= 0) score += p.noise[((int64_t)line.noise + i) * p.k + c];
            float low = __shfl_sync(0xffffffffu, score, 0), high = __shfl_sync(0xffffffffu, score, 16);
            if (low > best) {
                best = low;
                picked = c0;
            }
            if (c0 + 1 < n && high > best) {
                best = high;
                picked = c0 + 1;
            }
        }
        if (threadIdx.x == 0) p.picked[row] = picked;
        before = p.candidate[row * p.k + picked];
    }
}

/* The lists lie in host memory and the caller reads the picks there after a sync. */
static void pick(Stream *st, const PickJob *job)
{
    enum { MAX_LINES = 1024 };
    Device *d = device_of(st);
    static DeviceLine lines[MAX_LINES];
    int32_t n_rows = 0;
    const float *noise = nullptr;
    MUST(job->n_lines <= MAX_LINES);
    if (job->n_lines <= 0) return;
    for (int32_t i = 0; i < job->n_lines; i++)
        if (job->lines[i].noise && (!noise || job->lines[i].noise < noise)) noise = job->lines[i].noise;
    int32_t n_noise = 0;
    for (int32_t i = 0; i < job->n_lines; i++) {
        const PickLine *l = &job->lines[i];
        lines[i] = { l->first, l->n_rows, l->anchor, l->noise ? (int32_t)((l->noise - noise) / job->k) : -1, l->temperature };
        if (l->first + l->n_rows > n_rows) n_rows = l->first + l->n_rows;
        if (l->noise && lines[i].noise + l->n_rows > n_noise) n_noise = lines[i].noise + l->n_rows;
    }
    if (n_rows == 0) return;
    int32_t *picked = (int32_t *)scratch(d, (size_t)n_rows * sizeof(int32_t));
    PickArgs p = { input_of(d, lines, job->n_lines), input_of(d, job->candidate, (int64_t)n_rows * job->k),
                   input_of(d, job->logit, (int64_t)n_rows * job->k), input_of(d, noise, (int64_t)n_noise * job->k),
                   (const float *)job->edge.data, job->edge.stride[0], job->edge.shape[1], weight_of(job->predecessor),
                   weight_of(job->successor), picked, job->k };
    launch(d, pick_line, job->n_lines, 32, 0, p);
    for (int32_t i = 0; i < job->n_lines; i++) { /* rows of no line stay as they are */
        size_t first = (size_t)lines[i].first, bytes = (size_t)lines[i].n_rows * sizeof(int32_t);
        if (bytes) CUDA_MUST(cudaMemcpyAsync(job->picked + first, picked + first, bytes, cudaMemcpyDeviceToHost, d->stream));
    }
}

void cuda_add_draft(Ops *ops)
{
    ops->scale_cap = scale_cap;
    ops->block_conv = block_conv;
    ops->pick = pick;
}
