/* Attention over a paged cache: the op, and the kernel for what tensor cores do not take (attention_tiles.cu).
 *
 * attend_split follows the contract of cpu/attention.c and has its bits: every score has 16 lanes, every output value takes
 * its keys in ascending order. It is for float32 caches, where results are compared, and for unusual head sizes. A block
 * computes one split (512 positions) of one row and query head; splits leave (m, l, o) in scratch and a second kernel adds
 * them. */
#include "backend/cuda/attention_impl.h"

enum { THREADS = 128, MAX_DIM = 512 };

/* 16 values of a key or value row from d on. */
template <int ITEM> static __device__ __forceinline__ void load16(float *v, const char *row, int32_t d)
{
    if (ITEM == 2) {
        const uint4 *p = (const uint4 *)(row + d * 2);
        uint4 w[2] = { p[0], p[1] };
        const uint32_t *u = (const uint32_t *)w;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            v[2 * i] = __uint_as_float(u[i] << 16);
            v[2 * i + 1] = __uint_as_float(u[i] & 0xffff0000u);
        }
    } else {
        const float4 *p = (const float4 *)(row + d * 4);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float4 f = p[i];
            v[4 * i] = f.x;
            v[4 * i + 1] = f.y;
            v[4 * i + 2] = f.z;
            v[4 * i + 3] = f.w;
        }
    }
}

template <int ITEM> static __device__ __forceinline__ float value_at(const char *row, int32_t d)
{
    return ITEM == 2 ? from_bf16(((const uint16_t *)row)[d]) : ((const float *)row)[d];
}

/* The lane sum of q and a key row. */
template <int ITEM> static __device__ float dot(const float *q, const char *key, int32_t dim, bool whole)
{
    float lane[LANES] = {};
    if (whole) {
        for (int32_t d = 0; d < dim; d += LANES) {
            float k[LANES];
            load16<ITEM>(k, key, d);
#pragma unroll
            for (int l = 0; l < LANES; l++) lane[l] = fmaf(q[d + l], k[l], lane[l]);
        }
    } else {
        for (int32_t d = 0; d < dim; d += LANES)
#pragma unroll
            for (int l = 0; l < LANES; l++)
                if (d + l < dim) lane[l] = fmaf(q[d + l], value_at<ITEM>(key, d + l), lane[l]);
    }
#pragma unroll
    for (int w = LANES / 2; w > 0; w /= 2)
#pragma unroll
        for (int l = 0; l < w; l++) lane[l] = lane[l] + lane[l + w];
    return lane[0];
}

template <int ITEM> static __global__ void __launch_bounds__(THREADS) attend_split(const AttentionArgs a)
{
    begin_kernel();
    __shared__ float q[MAX_DIM], x[ATTN_SPLIT], most[THREADS / 32], lanes[LANES];
    __shared__ int32_t place[ATTN_SPLIT];
    int32_t row = blockIdx.z, head = blockIdx.x, split = blockIdx.y, dim = a.kv.head_dim, kv_head = head / a.group;
    int32_t s = a.batch.seq[row];
    if (s < 0) return;
    int32_t first_key = a.batch.first_key ? a.batch.first_key[row] : 0, n_keys = a.batch.index[row] + 1;
    int32_t first = max(split * ATTN_SPLIT, first_key), end = min((split + 1) * ATTN_SPLIT, n_keys), n = end - first;
    if (n <= 0) return;
    const BatchSeq seq = a.batch.seqs[s];
    bool whole = dim % LANES == 0;

    for (int32_t i = threadIdx.x; i < dim; i += THREADS) q[i] = a.q[row * a.q_row + head * a.q_head + i];
    for (int32_t j = threadIdx.x; j < n; j += THREADS) place[j] = key_store(a, seq, row, first + j);
    __syncthreads();

    float m = -F_INF;
    for (int32_t j = threadIdx.x; j < n; j += THREADS) {
        float score = dot<ITEM>(q, kv_key(a.kv, place[j], kv_head), dim, whole) * a.scale;
        x[j] = score;
        m = score > m ? score : m;
    }
    for (int w = 16; w > 0; w /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, m, w);
        m = other > m ? other : m;
    }
    if (threadIdx.x % 32 == 0) most[threadIdx.x / 32] = m;
    __syncthreads();
    for (int w = 0; w < THREADS / 32; w++) m = most[w] > m ? most[w] : m;
    for (int32_t j = threadIdx.x; j < n; j += THREADS) x[j] = f_exp(x[j] - m);
    __syncthreads();

    if (threadIdx.x < LANES) { /* lane j % LANES by absolute position */
        float lane = 0;
        int32_t from = ((int32_t)threadIdx.x - first % LANES + LANES) % LANES;
        for (int32_t j = from; j < n; j += LANES) lane = lane + x[j];
        lanes[threadIdx.x] = lane;
    }
    __syncthreads();
    float l[LANES];
#pragma unroll
    for (int i = 0; i < LANES; i++) l[i] = lanes[i];
#pragma unroll
    for (int w = LANES / 2; w > 0; w /= 2)
#pragma unroll
        for (int i = 0; i < w; i++) l[i] = l[i] + l[i + w];

    bool is_only = first_key / ATTN_SPLIT == split && end == n_keys;
    float *partial = a.partial + (((int64_t)row * a.heads + head) * a.n_splits + split) * (dim + 2);
    for (int32_t d = threadIdx.x; d < dim; d += THREADS) {
        float o = 0;
        int32_t j = 0;
        /* Keys of a block of the cache lie one behind the other; the loads of eight go out together. */
        for (; j + 8 <= n; j += 8) {
            float v[8];
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = value_at<ITEM>(kv_value(a.kv, place[j + i], kv_head), d);
#pragma unroll
            for (int i = 0; i < 8; i++) o = fmaf(x[j + i], v[i], o);
        }
        for (; j < n; j++) o = fmaf(x[j], value_at<ITEM>(kv_value(a.kv, place[j], kv_head), d), o);
        if (is_only) { /* the largest score of all splits is m, so both factors are 1 */
            float sum = fmaf(l[0], f_exp(m - m), 0.0f);
            float y = fmaf(o, f_exp(m - m), 0.0f) / sum;
            a.out[row * a.out_row + head * a.out_head + d] = y;
            if (a.rounded) a.rounded[row * a.rounded_row + (int64_t)head * dim + d] = to_bf16(y);
        } else {
            partial[2 + d] = o;
        }
    }
    if (!is_only && threadIdx.x == 0) {
        partial[0] = m;
        partial[1] = l[0];
    }
}

static __global__ void add_splits(const AttentionArgs a)
{
    begin_kernel();
    int32_t row = blockIdx.y, head = blockIdx.x, dim = a.kv.head_dim;
    if (a.batch.seq[row] < 0) return;
    int32_t first_key = a.batch.first_key ? a.batch.first_key[row] : 0, n_keys = a.batch.index[row] + 1;
    int32_t first = first_key / ATTN_SPLIT, end = (n_keys + ATTN_SPLIT - 1) / ATTN_SPLIT;
    if (end - first <= 1) return;
    const float *partial = a.partial + ((int64_t)row * a.heads + head) * a.n_splits * (dim + 2);
    float most = -F_INF;
    for (int32_t s = first; s < end; s++) {
        float m = partial[(int64_t)s * (dim + 2)];
        most = m > most ? m : most;
    }
    for (int32_t d = threadIdx.x; d < dim; d += blockDim.x) {
        float sum = 0, o = 0;
        for (int32_t s = first; s < end; s++) {
            const float *p = partial + (int64_t)s * (dim + 2);
            float factor = f_exp(p[0] - most);
            sum = fmaf(p[1], factor, sum);
            o = fmaf(p[2 + d], factor, o);
        }
        put_out(a, row, head, d, o / sum);
    }
}

static void run_splits(Device *d, const AttentionArgs &a, int32_t n_rows)
{
    dim3 grid(a.heads, a.n_splits, n_rows);
    if (a.kv.item == 4) launch(d, attend_split<4>, grid, THREADS, 0, a);
    else launch(d, attend_split<2>, grid, THREADS, 0, a);
    if (a.n_splits > 1) launch(d, add_splits, dim3(a.heads, n_rows), 128, 0, a);
}

static void attention(Stream *st, Tensor out, Tensor q, KvView view, const Batch *batch, const int32_t *store, float scale)
{
    Device *d = device_of(st);
    int32_t last_slot = -1, n_rows = (int32_t)real_rows(batch), n_splits = 1;
    for (int32_t s = 0; s < batch->n_seqs; s++) {
        const BatchSeq *seq = &batch->seqs[s];
        if (!is_real(batch, seq)) continue;
        count_rows(d, d->counts->attention, seq->n_rows);
        if (seq->slot > last_slot) last_slot = seq->slot;
    }
    if (n_rows <= 0) return;
    for (int32_t r = 0; r < n_rows; r++)
        if (batch->seq[r] >= 0 && batch->index[r] / ATTN_SPLIT + 1 > n_splits) n_splits = batch->index[r] / ATTN_SPLIT + 1;
    MUST(view.head_dim <= MAX_DIM);

    int32_t heads = (int32_t)q.shape[1];
    AttentionArgs a = {};
    a.out = (float *)out.data;
    a.out_row = out.stride[0];
    a.out_head = out.stride[1];
    a.q = (const float *)q.data;
    a.q_row = q.stride[0];
    a.q_head = q.stride[1];
    a.kv = { (char *)view.data, (int32_t)type_bytes(view.dtype), view.n_heads, view.head_dim, view.block_size, view.max_blocks,
             input_of(d, view.block_table, (int64_t)(last_slot + 1) * view.max_blocks) };
    a.batch = batch_of(d, batch);
    a.store = input_of(d, store, batch->n_rows);
    a.scale = scale;
    a.heads = heads;
    a.group = heads / view.n_heads;
    a.n_splits = n_splits;
    bool is_tiled = are_tiles(a);
    TilesArgs tiles = {};
    if (is_tiled) tiles = plan_tiles(d, a, batch, n_rows);
    else if (n_splits > 1) a.partial = (float *)scratch(d, (size_t)n_rows * heads * n_splits * (view.head_dim + 2) * sizeof(float));
    hold_attention(d, out, [=](uint16_t *rounded, int64_t rounded_row) mutable {
        AttentionArgs &args = is_tiled ? tiles.a : a;
        args.rounded = rounded;
        args.rounded_row = rounded_row;
        if (is_tiled) run_tiles(d, tiles, n_rows);
        else run_splits(d, a, n_rows);
        fault(d, "attention", out, n_rows);
    });
}

void cuda_add_attention(Ops *ops)
{
    ops->attention = attention;
}
