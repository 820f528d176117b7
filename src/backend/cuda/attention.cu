/* Attention over a paged cache, by the contract of cpu/attention.c and with its bits: every score has 16 lanes, every output
 * value takes its keys in ascending order.
 *
 * A block computes one split (512 positions) of one row, for one query head or for all that share a KV head. Splits leave
 * (m, l, o) in scratch and the last one to end adds them in ascending order; a single split needs none. Keys of a row's own path
 * come through its path, all others through the block table.
 *
 *     values ──cp.async──> ring in shared memory ──────────────┐
 *     keys ──> scores, 8 threads a key ──> exp, sums of p ──> outputs, a thread one or two values: 512 steps of one chain
 *
 * Few rows take a block a query head, to have enough blocks; more rows share what a group reads. Decode is bound by the
 * chains, long prompts by float32 arithmetic: tensor cores would give other bits and need the rule about the last MAX_DEPTH
 * positions; they lost to having the CPU's bits. attend_split is for any head size, attend_ring for usual ones in bf16. */
#include "backend/cuda/cuda_impl.h"

enum { THREADS = 128, MAX_DIM = 512, MAX_TICKETS = 1 << 20 };

struct AttentionArgs {
    float         *out, *partial; /* partial [row][head][split][head_dim + 2] */
    uint32_t      *tickets;       /* [row][head] splits that are done; 0 again behind the last */
    int64_t        out_row, out_head, q_row, q_head;
    const float   *q;
    DeviceKv       kv;
    DeviceBatch    batch;
    const int32_t *store;
    float          scale;
    int32_t        heads, group, n_splits; /* splits of the longest row */
    uint16_t      *rounded;                /* out once more, rounded to bf16, [rows][rounded_row]; NULL: not wanted */
    int64_t        rounded_row;
};

static __device__ __forceinline__ int32_t key_store(const AttentionArgs &a, const BatchSeq &seq, int32_t row, int32_t j)
{
    if (seq.certain || j < seq.n_committed) return kv_store_at(a.kv, seq.slot, j);
    return a.store[a.batch.path[(int64_t)row * MAX_DEPTH + j - seq.n_committed]];
}

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

/* ---- usual head sizes in bf16 ---- */

enum { RING_THREADS = 512, PIECE_KEYS = 64, PIECES = 4 };

template <int DIM, int G> struct RingMemory {
    uint16_t v[PIECES][PIECE_KEYS][DIM];
    float    x[G][ATTN_SPLIT], q[G][DIM], lanes[G][LANES], most[G];
    int32_t  place[ATTN_SPLIT];
};

static __device__ __forceinline__ void put_out(const AttentionArgs &a, int32_t row, int32_t head, int32_t d, float y)
{
    a.out[row * a.out_row + head * a.out_head + d] = y;
    if (a.rounded) a.rounded[row * a.rounded_row + (int64_t)head * a.kv.head_dim + d] = to_bf16(y);
}

/* x[h][j] = scaled dot product of query head h and key j. */
template <int DIM, int G> static __device__ __forceinline__ void ring_scores(const AttentionArgs &a, RingMemory<DIM, G> &s, int32_t kv_head, int32_t n)
{
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    /* Scores: thread `sub` of a key has lanes 2 sub and 2 sub + 1. */
    const int32_t sub = lane % 8;
    enum { KEYS = 4, STEP = RING_THREADS / 8 }; /* of a thread at once; of a block */
    for (int32_t j0 = warp * 4 + lane / 8; j0 - lane / 8 < n; j0 += STEP * KEYS) {
        uint32_t k[KEYS][DIM / 16];
#pragma unroll
        for (int u = 0; u < KEYS; u++) {
            const uint32_t *from = (const uint32_t *)kv_key(a.kv, s.place[min(j0 + STEP * u, n - 1)], kv_head) + sub;
#pragma unroll
            for (int i = 0; i < DIM / 16; i++) k[u][i] = from[i * 8];
        }
#pragma unroll
        for (int h = 0; h < G; h++) {
            float even[KEYS] = {}, odd[KEYS] = {};
#pragma unroll
            for (int i = 0; i < DIM / 16; i++) {
                float2 q = *(const float2 *)&s.q[h][16 * i + 2 * sub];
#pragma unroll
                for (int u = 0; u < KEYS; u++) {
                    even[u] = fmaf(q.x, __uint_as_float(k[u][i] << 16), even[u]);
                    odd[u] = fmaf(q.y, __uint_as_float(k[u][i] & 0xffff0000u), odd[u]);
                }
            }
#pragma unroll
            for (int u = 0; u < KEYS; u++) {
#pragma unroll
                for (int w = 4; w > 0; w /= 2) {
                    even[u] = even[u] + __shfl_xor_sync(0xffffffffu, even[u], w);
                    odd[u] = odd[u] + __shfl_xor_sync(0xffffffffu, odd[u], w);
                }
                int32_t j = j0 + STEP * u;
                if (sub == 0 && j < n) s.x[h][j] = (even[u] + odd[u]) * a.scale;
            }
        }
    }
}

/* Scores to p, their largest, and the sums of p in lanes of absolute positions. */
template <int DIM, int G> static __device__ __forceinline__ void ring_softmax(RingMemory<DIM, G> &s, int32_t first, int32_t n)
{
    const int32_t tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    __syncthreads();
    for (int h = warp; h < G; h += RING_THREADS / 32) {
        float m = -F_INF;
        for (int32_t j = lane; j < n; j += 32) m = s.x[h][j] > m ? s.x[h][j] : m;
        for (int w = 16; w > 0; w /= 2) {
            float other = __shfl_xor_sync(0xffffffffu, m, w);
            m = other > m ? other : m;
        }
        if (lane == 0) s.most[h] = m;
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < G; h++)
        for (int32_t j = tid; j < n; j += RING_THREADS) s.x[h][j] = f_exp(s.x[h][j] - s.most[h]);
    __syncthreads();
    if (tid < G * LANES) {
        float sum = 0;
        int h = tid / LANES, l = tid % LANES;
        for (int32_t j = (l - first % LANES + LANES) % LANES; j < n; j += LANES) sum = sum + s.x[h][j];
        s.lanes[h][l] = sum;
    }
}

/* Whoever is last of the row's splits adds them, in ascending order whoever that is. */
template <int DIM, int G>
static __device__ __forceinline__ void ring_join(const AttentionArgs &a, RingMemory<DIM, G> &s, int32_t row, int32_t head, int32_t first_split,
                                                 int32_t end_split)
{
    const int32_t tid = threadIdx.x;
    __threadfence();
    __syncthreads();
    if (tid == 0) s.place[0] = (int32_t)atomicInc(&a.tickets[(int64_t)row * a.heads + head], (uint32_t)(end_split - first_split - 1));
    __syncthreads();
    if (s.place[0] != end_split - first_split - 1) return;
    __threadfence();
    for (int32_t i = tid; i < G * DIM; i += RING_THREADS) {
        int32_t h = head + i / DIM, d = i % DIM;
        const volatile float *partial = a.partial + ((int64_t)row * a.heads + h) * a.n_splits * (DIM + 2);
        float most = -F_INF, sum = 0, y = 0;
        for (int32_t p = first_split; p < end_split; p++) {
            float m = partial[(int64_t)p * (DIM + 2)];
            most = m > most ? m : most;
        }
        for (int32_t p = first_split; p < end_split; p++) {
            const volatile float *one = partial + (int64_t)p * (DIM + 2);
            float factor = f_exp(one[0] - most);
            sum = fmaf(one[1], factor, sum);
            y = fmaf(one[2 + d], factor, y);
        }
        put_out(a, row, h, d, y / sum);
    }
}

template <int DIM, int G> static __global__ void __launch_bounds__(RING_THREADS) attend_ring(const __grid_constant__ AttentionArgs a)
{
    extern __shared__ __align__(16) char memory[];
    RingMemory<DIM, G> &s = *(RingMemory<DIM, G> *)memory;
    const int32_t row = blockIdx.z, head = blockIdx.x * G, split = blockIdx.y, kv_head = head / a.group, tid = threadIdx.x;
    /* Batch and block table come from the host, not from a kernel: they can be read before the one before us ends. */
    const int32_t seq_at = a.batch.seq[row];
    const int32_t first_key = a.batch.first_key ? a.batch.first_key[row] : 0, n_keys = seq_at < 0 ? 0 : a.batch.index[row] + 1;
    const int32_t first = max(split * ATTN_SPLIT, first_key), end = min((split + 1) * ATTN_SPLIT, n_keys), n = end - first;
    if (n > 0) {
        const BatchSeq seq = a.batch.seqs[seq_at];
        for (int32_t j = tid; j < n; j += RING_THREADS) s.place[j] = key_store(a, seq, row, first + j);
    }
    begin_kernel();
    if (n <= 0) return;
    for (int32_t i = tid; i < G * DIM; i += RING_THREADS) s.q[i / DIM][i % DIM] = a.q[row * a.q_row + (head + i / DIM) * a.q_head + i % DIM];
    __syncthreads();

    auto bring = [&](int32_t piece) {
        for (int32_t i = tid; i < PIECE_KEYS * DIM / 8; i += RING_THREADS) {
            int32_t key = i / (DIM / 8), part = i % (DIM / 8), j = piece * PIECE_KEYS + key;
            if (j >= n) continue;
            uint32_t to = (uint32_t)__cvta_generic_to_shared(&s.v[piece % PIECES][key][part * 8]);
            const char *from = kv_value(a.kv, s.place[j], kv_head) + part * 16;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
        }
    };
    const int32_t n_pieces = (n + PIECE_KEYS - 1) / PIECE_KEYS;
    for (int32_t p = 0; p < PIECES; p++) {
        if (p < n_pieces) bring(p);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    ring_scores<DIM, G>(a, s, kv_head, n);
    ring_softmax<DIM, G>(s, first, n);

    /* WIDE values a thread, so that few heads still fill the schedulers. */
    enum { WIDE = G == 1 ? 1 : 2, PLACES = DIM / WIDE, SLOTS = (G * PLACES + RING_THREADS - 1) / RING_THREADS, STEPS = 16 };
    float o[SLOTS][WIDE] = {};
    for (int32_t p = 0; p < n_pieces; p++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(PIECES - 1) : "memory");
        __syncthreads();
        int32_t base = p * PIECE_KEYS, count = min(PIECE_KEYS, n - base);
#pragma unroll
        for (int t = 0; t < SLOTS; t++) {
            int32_t slot = tid + t * RING_THREADS, h = slot / PLACES, d = slot % PLACES * WIDE;
            if (slot >= G * PLACES) continue;
            const float *x = &s.x[h][base];
            const uint16_t *v = &s.v[p % PIECES][0][d];
            auto value = [&](int32_t j) { return WIDE == 2 ? *(const uint32_t *)(v + j * DIM) : (uint32_t)v[j * DIM] << 16; };
            auto step = [&](float px, uint32_t pv) {
                if (WIDE == 2) o[t][0] = fmaf(px, __uint_as_float(pv << 16), o[t][0]);
                o[t][WIDE - 1] = fmaf(px, __uint_as_float(pv & 0xffff0000u), o[t][WIDE - 1]);
            };
            int32_t j = 0;
            float px[2][STEPS];
            uint32_t pv[2][STEPS];
            auto fetch = [&](int to, int32_t from) {
#pragma unroll
                for (int i = 0; i < STEPS; i += 4) *(float4 *)&px[to][i] = *(const float4 *)(x + from + i);
#pragma unroll
                for (int i = 0; i < STEPS; i++) pv[to][i] = value(from + i);
            };
            if (count == PIECE_KEYS) { /* the next values are on their way while the chain goes on */
                fetch(0, 0);
#pragma unroll
                for (; j < PIECE_KEYS; j += STEPS) {
                    if (j + STEPS < PIECE_KEYS) fetch((j / STEPS + 1) % 2, j + STEPS);
#pragma unroll
                    for (int i = 0; i < STEPS; i++) step(px[j / STEPS % 2][i], pv[j / STEPS % 2][i]);
                }
            }
            for (; j < count; j++) step(x[j], value(j));
        }
        __syncthreads();
        if (p + PIECES < n_pieces) bring(p + PIECES);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    const bool is_only = first_key / ATTN_SPLIT == split && end == n_keys;
#pragma unroll
    for (int t = 0; t < SLOTS; t++) {
        int32_t slot = tid + t * RING_THREADS, h = slot / PLACES, d = slot % PLACES * WIDE;
        if (slot >= G * PLACES) continue;
        float l[LANES], m = s.most[h];
#pragma unroll
        for (int i = 0; i < LANES; i++) l[i] = s.lanes[h][i];
#pragma unroll
        for (int w = LANES / 2; w > 0; w /= 2)
#pragma unroll
            for (int i = 0; i < w; i++) l[i] = l[i] + l[i + w];
        float *partial = a.partial + (((int64_t)row * a.heads + head + h) * a.n_splits + split) * (DIM + 2);
        for (int e = 0; e < WIDE; e++) {
            if (is_only) put_out(a, row, head + h, d + e, fmaf(o[t][e], f_exp(m - m), 0.0f) / fmaf(l[0], f_exp(m - m), 0.0f));
            else partial[2 + d + e] = o[t][e];
        }
        if (!is_only && d == 0) {
            partial[0] = m;
            partial[1] = l[0];
        }
    }
    if (is_only) return;

    ring_join<DIM, G>(a, s, row, head, first_key / ATTN_SPLIT, (n_keys + ATTN_SPLIT - 1) / ATTN_SPLIT);
}

template <int DIM, int G> static void launch_ring(Device *d, const AttentionArgs &a, int32_t n_rows)
{
    static bool is_set;
    if (!is_set) {
        CUDA_MUST(cudaFuncSetAttribute(attend_ring<DIM, G>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(RingMemory<DIM, G>)));
        is_set = true;
    }
    launch(d, attend_ring<DIM, G>, dim3(a.heads / G, a.n_splits, n_rows), RING_THREADS, sizeof(RingMemory<DIM, G>), a);
}

template <int DIM> static bool launch_dim(Device *d, const AttentionArgs &a, int32_t n_rows)
{
    bool is_shared = n_rows > 2;
    if (sizeof(RingMemory<DIM, 8>) > d->shared_bytes) return false;
    if (is_shared && a.group == 2) launch_ring<DIM, 2>(d, a, n_rows);
    else if (is_shared && a.group == 4) launch_ring<DIM, 4>(d, a, n_rows);
    else if (is_shared && a.group == 8) launch_ring<DIM, 8>(d, a, n_rows);
    else launch_ring<DIM, 1>(d, a, n_rows);
    return true;
}

static bool launch_usual(Device *d, const AttentionArgs &a, int32_t n_rows)
{
    if (a.kv.item != 2) return false;
    if (a.kv.head_dim == 64) return launch_dim<64>(d, a, n_rows);
    if (a.kv.head_dim == 128) return launch_dim<128>(d, a, n_rows);
    if (a.kv.head_dim == 256) return launch_dim<256>(d, a, n_rows);
    return false;
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

static void run_attention(Device *d, const AttentionArgs &a, int32_t n_rows)
{
    dim3 grid(a.heads, a.n_splits, n_rows);
    if (launch_usual(d, a, n_rows)) return;
    if (a.kv.item == 4) {
        launch(d, attend_split<4>, grid, THREADS, 0, a);
    } else {
        launch(d, attend_split<2>, grid, THREADS, 0, a);
    }
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
    MUST(n_rows * heads <= MAX_TICKETS);
    if (!d->tickets) {
        CUDA_MUST(cudaMalloc(&d->tickets, MAX_TICKETS * sizeof(uint32_t)));
        CUDA_MUST(cudaMemsetAsync(d->tickets, 0, MAX_TICKETS * sizeof(uint32_t), d->stream));
    }
    a.tickets = d->tickets;
    if (n_splits > 1) a.partial = (float *)scratch(d, (size_t)n_rows * heads * n_splits * (view.head_dim + 2) * sizeof(float));
    a.rounded = nullptr;
    hold_attention(d, out, [=](uint16_t *rounded, int64_t rounded_row) {
        AttentionArgs args = a;
        args.rounded = rounded;
        args.rounded_row = rounded_row;
        run_attention(d, args, n_rows);
        fault(d, "attention", out, n_rows);
    });
}

void cuda_add_attention(Ops *ops)
{
    ops->attention = attention;
}
