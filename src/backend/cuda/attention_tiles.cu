/* Attention over a bf16 cache on tensor cores: rows of one sequence share what they read of keys and values.
 *
 * The contract of a row at position P and a head (the reference in C: tests/kernels/check_device.c):
 *
 *     0 ........................................ B ............ P       B = largest multiple of 16 with P + 1 - B >= MAX_DEPTH
 *     [ body: tiles of 128 positions            )[ tail         ]
 *
 *     tail   one by one in float32 along the row's path, as on the CPU: one (m, l, o)
 *     tile   q rounded to bf16; score = products of 16 values ascending on tensor cores; x = score * scale; m = max x;
 *            p = bf16(exp(x - m)); l = p times ones and o = p times values, 16 positions a product, ascending
 *     spans  tiles are merged ascending inside SPAN positions, spans ascending, then the tail:
 *            M' = max(M, m);  L = fma(l, exp(m - M'), L * exp(M - M'));  O likewise;  out = O / L
 *
 * Everything before B is committed and an ancestor of the row, so rows of a tree meet only in what they share, and a position
 * that is masked for a row (p = 0) is one it reads in its tail: neighbours never matter.
 *
 * Kernels: attend_tail, a block a row and KV head; attend_body, a block a KV head, some rows and some tiles (a tile, a span or
 * all of them: as many as it takes to fill the device); join_rows. attend_body does not need what attend_tail leaves and runs
 * beside it: attend_tail lets it start once the kernel before is done, and it ends only after attend_tail. */
#include "backend/cuda/attention_pairs.h"

/* ---- tail ---- */

template <int DIM> struct TailMemory {
    uint16_t kv[2][MAX_TAIL][DIM]; /* keys, values */
    float    x[MAX_GROUP][MAX_TAIL], most[MAX_GROUP], sum[MAX_GROUP];
    int32_t  place[MAX_TAIL];
    float    q[1][DIM]; /* [group] */
};

/* x[h][j]: 8 threads a key, each with lanes 2 sub and 2 sub + 1 of the sum. */
template <int DIM> static __device__ __forceinline__ void tail_scores(const AttentionArgs &a, TailMemory<DIM> &s, int32_t n)
{
    const int32_t sub = threadIdx.x % 8;
    for (int32_t j0 = 0; j0 < n; j0 += TAIL_THREADS / 8) {
        int32_t j = j0 + (int32_t)threadIdx.x / 8;
        const uint32_t *from = (const uint32_t *)s.kv[0][min(j, n - 1)] + sub;
        uint32_t k[DIM / 16];
#pragma unroll
        for (int i = 0; i < DIM / 16; i++) k[i] = from[i * 8];
        for (int32_t h = 0; h < a.group; h++) {
            float even = 0, odd = 0;
#pragma unroll
            for (int i = 0; i < DIM / 16; i++) {
                float2 q = *(const float2 *)&s.q[h][16 * i + 2 * sub];
                even = fmaf(q.x, __uint_as_float(k[i] << 16), even);
                odd = fmaf(q.y, __uint_as_float(k[i] & 0xffff0000u), odd);
            }
#pragma unroll
            for (int w = 4; w > 0; w /= 2) {
                even = even + __shfl_xor_sync(0xffffffffu, even, w);
                odd = odd + __shfl_xor_sync(0xffffffffu, odd, w);
            }
            if (sub == 0 && j < n) s.x[h][j] = (even + odd) * a.scale;
        }
    }
}

/* A warp a head: scores to p, their largest and their sum. */
template <int DIM> static __device__ __forceinline__ void tail_softmax(TailMemory<DIM> &s, int32_t group, int32_t first, int32_t n)
{
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int32_t h = warp; h < group; h += TAIL_THREADS / 32) {
        float m = -F_INF, sum = 0;
        for (int32_t j = lane; j < n; j += 32) m = s.x[h][j] > m ? s.x[h][j] : m;
        for (int w = 16; w > 0; w /= 2) {
            float other = __shfl_xor_sync(0xffffffffu, m, w);
            m = other > m ? other : m;
        }
        for (int32_t j = lane; j < n; j += 32) s.x[h][j] = f_exp(s.x[h][j] - m);
        __syncwarp();
        for (int32_t j = (lane % LANES - first % LANES + LANES) % LANES; j < n; j += LANES) sum = sum + s.x[h][j];
        sum = lanes_sum(sum);
        if (lane == 0) {
            s.most[h] = m;
            s.sum[h] = sum;
        }
    }
}

template <int DIM> static __global__ void __launch_bounds__(TAIL_THREADS) attend_tail(const __grid_constant__ TilesArgs t)
{
    extern __shared__ __align__(16) char memory[];
    TailMemory<DIM> &s = *(TailMemory<DIM> *)memory;
    const AttentionArgs &a = t.a;
    const int32_t row = blockIdx.y, kv_head = blockIdx.x, tid = threadIdx.x, at = a.batch.seq[row];
    const int32_t index = at < 0 ? -1 : a.batch.index[row], first = max(body_end(index), first_key_of(a.batch, row)), n = at < 0 ? 0 : index + 1 - first;
    if (n > 0) {
        const BatchSeq seq = a.batch.seqs[at];
        for (int32_t j = tid; j < n; j += TAIL_THREADS) s.place[j] = key_store(a, seq, row, first + j);
    }
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); /* in this order: see above */
    if (n <= 0) return;
    __syncthreads();
    for (int32_t i = tid; i < 2 * n * (DIM / 8); i += TAIL_THREADS) {
        int32_t chunk = i % (DIM / 8), j = i / (DIM / 8) % n, is_value = i / (DIM / 8) / n;
        const char *from = is_value ? kv_value(a.kv, s.place[j], kv_head) : kv_key(a.kv, s.place[j], kv_head);
        copy16((uint32_t)__cvta_generic_to_shared(&s.kv[is_value][j][chunk * 8]), from + chunk * 16, true);
    }
    copies_commit();
    const float *q = a.q + row * a.q_row + kv_head * a.group * a.q_head;
    for (int32_t h = tid / 32; h < a.group; h += TAIL_THREADS / 32)
#pragma unroll
        for (int32_t d = tid % 32 * 2; d < DIM; d += 64) *(float2 *)&s.q[h][d] = *(const float2 *)&q[h * a.q_head + d];
    copies_wait<0>();
    __syncthreads();
    tail_scores<DIM>(a, s, n);
    __syncthreads();
    tail_softmax<DIM>(s, a.group, first, n);
    __syncthreads();
    for (int32_t i = tid; i < a.group * (DIM / 2); i += TAIL_THREADS) {
        int32_t h = i / (DIM / 2), d = i % (DIM / 2) * 2;
        float o[2] = {};
#pragma unroll 8
        for (int32_t j = 0; j < n; j++) {
            uint32_t v = *(const uint32_t *)&s.kv[1][j][d];
            o[0] = fmaf(s.x[h][j], __uint_as_float(v << 16), o[0]);
            o[1] = fmaf(s.x[h][j], __uint_as_float(v & 0xffff0000u), o[1]);
        }
        float *partial = partial_of<DIM>(t, row, kv_head * a.group + h, t.n_slots);
        partial[2 + d] = o[0];
        partial[3 + d] = o[1];
        if (d == 0) {
            partial[0] = s.most[h];
            partial[1] = s.sum[h];
        }
    }
}

/* ---- body ---- */

static __device__ __forceinline__ uint4 load_matrices(uint32_t from)
{
    uint4 r;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "r"(from) : "memory");
    return r;
}
static __device__ __forceinline__ uint4 load_turned(uint32_t from)
{
    uint4 r;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "r"(from) : "memory");
    return r;
}

/* Byte place of 16 bytes in rows of WIDTH bf16 values, so that 8 rows of one column meet every bank once. */
template <int WIDTH> static __device__ __forceinline__ uint32_t place16(int row, int chunk)
{
    return (uint32_t)(row * WIDTH * 2 + (chunk ^ (row & 7)) * 16);
}

/* ONE: keys and values take turns in one place, for devices with little shared memory. */
template <int DIM, int WM, bool ONE> struct BodyMemory {
    uint16_t kv[ONE ? 1 : 2][TILE][DIM], q[16 * WM][DIM], p[16 * WM][TILE];
    float    most[8][16 * WM]; /* by warp along the keys */
    int64_t  place[2][TILE];   /* byte of a position's key, by tile */
};

/* What a warp of the body works on: 16 pairs of row and head; of a tile's keys and of a head's values some eighths. */
template <int DIM, int WM, int WN, bool ONE> struct Body : Pairs<DIM, TILE / 8 / WN, DIM / 8 / WN> {
    enum { THREADS = WM * WN * 32, KEY_TILES = TILE / 8 / WN, DIM_TILES = DIM / 8 / WN };
    typedef Pairs<DIM, KEY_TILES, DIM_TILES> Base;
    using Base::t, Base::rows, Base::kv_head, Base::wm, Base::wn, Base::lane, Base::g, Base::c, Base::low, Base::high, Base::pair;
    using Base::sees, Base::sees_all, Base::position_of, Base::find_most, Base::merge_in;
    BodyMemory<DIM, WM, ONE> &s;

    __device__ __forceinline__ Body(const TilesArgs &t, BodyMemory<DIM, WM, ONE> &s) : Base(t, threadIdx.x / 32 / WN, threadIdx.x / 32 % WN), s(s) {}

    /* Where a thread's position of a tile lies. */
    __device__ __forceinline__ int64_t find_place(int32_t tile) const
    {
        int32_t j = tile * TILE + threadIdx.x;
        bool is_there = threadIdx.x < TILE && j >= this->lowest && j < this->highest;
        return is_there ? kv_key(t.a.kv, kv_store_at(t.a.kv, this->slot_of_seq, j), kv_head) - t.a.kv.data : -1;
    }
    __device__ __forceinline__ void keep_place(int32_t tile, int64_t place)
    {
        if (threadIdx.x < TILE) s.place[tile & 1][threadIdx.x] = place;
    }

    /* Keys or values of a tile; what no row wants is zero. */
    __device__ __forceinline__ void bring(int32_t tile, bool is_value)
    {
        uint32_t base = (uint32_t)__cvta_generic_to_shared(s.kv[ONE ? 0 : is_value]);
        int64_t behind = is_value ? (int64_t)t.a.kv.n_heads * t.a.kv.block_size * DIM * 2 : 0;
        for (int32_t i = threadIdx.x; i < TILE * (DIM / 8); i += THREADS) {
            int32_t key = i / (DIM / 8), chunk = i % (DIM / 8);
            int64_t at = s.place[tile & 1][key];
            copy16(base + place16<DIM>(key, chunk), at < 0 ? t.a.kv.data : t.a.kv.data + at + behind + chunk * 16, at >= 0);
        }
        copies_commit();
    }

    /* A warp a pair: many loads on their way at once. */
    __device__ __forceinline__ void load_queries()
    {
        const AttentionArgs &a = t.a;
        enum { AT_ONCE = 16 * WM * 32 / THREADS < 8 ? 16 * WM * 32 / THREADS : 8 };
        for (int32_t p0 = threadIdx.x / 32; p0 < 16 * WM; p0 += THREADS / 32 * AT_ONCE) {
            float2 q[AT_ONCE][DIM / 64];
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++) {
                int32_t p = p0 + u * (THREADS / 32), row = p / a.group;
#pragma unroll
                for (int i = 0; i < DIM / 64; i++)
                    q[u][i] = row < rows.n ? *(const float2 *)&a.q[(rows.first + row) * a.q_row + (kv_head * a.group + p % a.group) * a.q_head + i * 64 + lane * 2]
                                           : make_float2(0, 0);
            }
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++)
#pragma unroll
                for (int i = 0; i < DIM / 64; i++) {
                    int32_t d = i * 64 + lane * 2;
                    *(uint32_t *)((char *)s.q + place16<DIM>(p0 + u * (THREADS / 32), d / 8) + d % 8 * 2) = both_bf16(q[u][i].x, q[u][i].y);
                }
        }
    }

    /* Scores in x, scaled; the largest a pair sees goes to `most`. */
    __device__ __forceinline__ void scores(float (&x)[KEY_TILES][4], int32_t tile)
    {
        uint32_t q = (uint32_t)__cvta_generic_to_shared(s.q), k = (uint32_t)__cvta_generic_to_shared(s.kv[0]);
#pragma unroll
        for (int n = 0; n < KEY_TILES; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) x[n][e] = 0;
#pragma unroll
        for (int i = 0; i < DIM / 16; i++) {
            uint4 A = load_matrices(q + place16<DIM>(wm * 16 + lane % 16, 2 * i + lane / 16));
#pragma unroll
            for (int n = 0; n < KEY_TILES; n += 2) {
                uint4 B = load_matrices(k + place16<DIM>((wn * KEY_TILES + n + lane / 16) * 8 + lane % 8, 2 * i + lane / 8 % 2));
                mma(x[n], A, B.x, B.y);
                mma(x[n + 1], A, B.z, B.w);
            }
        }
        float most[2] = { -F_INF, -F_INF };
        if (sees_all(tile)) this->template find_most<false>(x, tile, most);
        else this->template find_most<true>(x, tile, most);
#pragma unroll
        for (int e = 0; e < 2; e++) {
#pragma unroll
            for (int w = 2; w > 0; w /= 2) {
                float other = __shfl_xor_sync(0xffffffffu, most[e], w);
                most[e] = other > most[e] ? other : most[e];
            }
            if (c == 0) s.most[wn][pair(e)] = most[e];
        }
    }

    /* p in shared memory; m of both pairs. */
    __device__ __forceinline__ void weigh(float (&x)[KEY_TILES][4], int32_t tile, float (&m)[2])
    {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            m[e] = -F_INF;
#pragma unroll
            for (int w = 0; w < WN; w++) m[e] = s.most[w][pair(e)] > m[e] ? s.most[w][pair(e)] : m[e];
        }
        if (sees_all(tile)) put_weights<false>(x, tile, m);
        else put_weights<true>(x, tile, m);
    }

    template <bool MASKED> __device__ __forceinline__ void put_weights(const float (&x)[KEY_TILES][4], int32_t tile, const float (&m)[2])
    {
#pragma unroll
        for (int n = 0; n < KEY_TILES; n++) {
            float p[4];
            this->template weights_of<MASKED, 1>(p, x, n, tile, m);
#pragma unroll
            for (int e = 0; e < 2; e++)
                *(uint32_t *)((char *)s.p + place16<TILE>(pair(e), wn * KEY_TILES + n) + 4 * c) = both_bf16(p[2 * e], p[2 * e + 1]);
        }
    }

    /* Sums of a tile, merged into M, L, O. Pairs that see nothing of it have no such tile. */
    __device__ __forceinline__ void add_values(const float (&m)[2], int32_t tile)
    {
        uint32_t p = (uint32_t)__cvta_generic_to_shared(s.p), v = (uint32_t)__cvta_generic_to_shared(s.kv[ONE ? 0 : 1]);
        float o[DIM_TILES][4] = {}, l[4] = {};
#pragma unroll
        for (int i = 0; i < TILE / 16; i++) {
            uint4 A = load_matrices(p + place16<TILE>(wm * 16 + lane % 16, 2 * i + lane / 16));
            mma(l, A, 0x3f803f80u, 0x3f803f80u);
#pragma unroll
            for (int n = 0; n < DIM_TILES; n += 2) {
                uint4 B = load_turned(v + place16<DIM>(i * 16 + lane % 16, wn * DIM_TILES + n + lane / 16));
                mma(o[n], A, B.x, B.y);
                mma(o[n + 1], A, B.z, B.w);
            }
        }
        merge_in(o, l, m, tile);
    }

};

template <int DIM, int WM, int WN, bool ONE> static __device__ __forceinline__ void body_tiles(Body<DIM, WM, WN, ONE> &b, int32_t first, int32_t end)
{
    typedef Body<DIM, WM, WN, ONE> B;
    b.keep_place(first, b.find_place(first));
    __syncthreads();
    b.bring(first, false);
    if (!ONE) b.bring(first, true);
    b.load_queries();
    b.clear();
    bool is_first = true;
    for (int32_t tile = first; tile < end; tile++) {
        bool is_more = tile + 1 < end;
        float x[B::KEY_TILES][4], m[2];
        int64_t next = is_more ? b.find_place(tile + 1) : -1; /* on its way while we multiply */
        copies_wait<ONE ? 0 : 1>(); /* keys; a group is committed for every copy that could have been made */
        __syncthreads();
        b.scores(x, tile);
        b.keep_place(tile + 1, next);
        __syncthreads();
        if (ONE) b.bring(tile, true);
        else if (is_more) b.bring(tile + 1, false);
        else copies_commit();
        b.weigh(x, tile, m);
        copies_wait<ONE ? 0 : 1>(); /* values */
        __syncthreads();
        b.add_values(m, tile);
        __syncthreads();
        if (is_more) b.bring(tile + 1, !ONE);
        else copies_commit();
        b.leave(tile, is_more, &is_first);
    }
}

template <int DIM, int WM, int WN, bool ONE>
static __global__ void __launch_bounds__(WM *WN * 32, WM * WN == 8 ? 2 : 1) attend_body(const __grid_constant__ TilesArgs t)
{
    extern __shared__ __align__(16) char memory[];
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    Body<DIM, WM, WN, ONE> b(t, *(BodyMemory<DIM, WM, ONE> *)memory);
    int32_t first, end;
    b.find_tiles(&first, &end);
    if (first < end) {
        b.find_limits();
        body_tiles<DIM, WM, WN, ONE>(b, first, end);
    }
    asm volatile("griddepcontrol.wait;" ::: "memory"); /* attend_tail is done when this kernel is */
}

/* ---- joining ---- */

/* m, l and four values of o; slots are 8 bytes aligned. */
struct Joined {
    float m, l, o[4];
};
static __device__ __forceinline__ Joined load_slot(const float *slot, int32_t d)
{
    float2 head = *(const float2 *)slot, low = *(const float2 *)&slot[2 + d], high = *(const float2 *)&slot[4 + d];
    return { head.x, head.y, { low.x, low.y, high.x, high.y } };
}
static __device__ __forceinline__ void join(Joined *to, const Joined &s)
{
    Merge r = merge_of(to->m, s.m);
    to->m = r.m;
    to->l = merged(r, to->l, s.l);
#pragma unroll
    for (int e = 0; e < 4; e++) to->o[e] = merged(r, to->o[e], s.o[e]);
}

/* Four values a thread, four heads a block. */
template <int DIM> static __global__ void __launch_bounds__(DIM) join_rows(const __grid_constant__ TilesArgs t)
{
    const AttentionArgs &a = t.a;
    const int32_t row = blockIdx.y, head = blockIdx.x * 4 + threadIdx.x / (DIM / 4), d = threadIdx.x % (DIM / 4) * 4;
    const bool is_row = a.batch.seq[row] >= 0 && head < a.heads;
    const int32_t first_key = is_row ? first_key_of(a.batch, row) : 0, end_key = is_row ? body_end(a.batch.index[row]) : 0;
    begin_kernel();
    if (!is_row) return;
    const int32_t size = t.mode == BY_TILE ? TILE : SPAN;
    int32_t first = first_key / size, end = end_key > first_key ? (end_key + size - 1) / size : first;
    if (t.mode == WHOLE && end > first) {
        first = 0;
        end = 1;
    }
    const Joined tail = load_slot(partial_of<DIM>(t, row, head, t.n_slots), d), none = { -F_INF, 0, {} };
    Joined all = none;
    enum { AT_ONCE = SPAN / TILE };
    for (int32_t base = first / AT_ONCE * AT_ONCE; base < end; base += AT_ONCE) {
        Joined slot[AT_ONCE], span = none;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) /* all on their way together */
            if (base + i >= first && base + i < end) slot[i] = load_slot(partial_of<DIM>(t, row, head, base + i), d);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (base + i >= first && base + i < end) {
                if (t.mode == BY_TILE) join(&span, slot[i]);
                else join(&all, slot[i]);
            }
        if (t.mode == BY_TILE) join(&all, span); /* tiles of a batch are a span */
    }
    join(&all, tail);
#pragma unroll
    for (int e = 0; e < 4; e++) put_out(a, row, head, d + e, all.o[e] / all.l);
}

/* ---- launching ---- */

template <typename K> static void allow(K kernel, size_t shared)
{
    CUDA_MUST(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
}

template <int DIM, int WM, int WN> static void launch_body(Device *d, const TilesArgs &t)
{
    dim3 grid(t.a.kv.n_heads, t.n_slots, t.n_blocks);
    static bool is_set;
    size_t two = sizeof(BodyMemory<DIM, WM, false>), one = sizeof(BodyMemory<DIM, WM, true>);
    bool is_small = two > d->shared_bytes;
    if (!is_set && !is_small) allow(attend_body<DIM, WM, WN, false>, two);
    if (!is_set && is_small) allow(attend_body<DIM, WM, WN, true>, one);
    is_set = true;
    if (is_small) launch(d, attend_body<DIM, WM, WN, true>, grid, WM * WN * 32, one, t);
    else launch(d, attend_body<DIM, WM, WN, false>, grid, WM * WN * 32, two, t);
}

template <int DIM> static void launch_tiles(Device *d, const TilesArgs &t, int32_t n_rows)
{
    size_t tail = sizeof(TailMemory<DIM>) + (size_t)(t.a.group - 1) * DIM * sizeof(float);
    static bool is_set;
    if (!is_set) allow(attend_tail<DIM>, sizeof(TailMemory<DIM>) + (MAX_GROUP - 1) * DIM * sizeof(float));
    is_set = true;
    launch(d, attend_tail<DIM>, dim3(t.a.kv.n_heads, n_rows), TAIL_THREADS, tail, t);
    if (attend_body_wide(d, t)) {
    } else if (t.pairs == 16) launch_body<DIM, 1, DIM == 64 ? 4 : 8>(d, t);
    else if (t.pairs == 32) launch_body<DIM, 2, DIM == 64 ? 4 : 8>(d, t);
    else if (t.pairs == 128) {
        if constexpr (DIM <= 128) launch_body<DIM, 8, 2>(d, t);
    } else if (t.n_blocks * t.n_slots * t.a.kv.n_heads <= d->n_sm) launch_body<DIM, 4, 4>(d, t); /* a block a multiprocessor */
    else launch_body<DIM, 4, DIM == 256 ? 4 : 2>(d, t); /* two of them take turns at multiplying */
    launch(d, join_rows<DIM>, dim3((t.a.heads + 3) / 4, n_rows), DIM, 0, t);
}

bool are_tiles(const AttentionArgs &a)
{
    int32_t dim = a.kv.head_dim;
    return a.kv.item == 2 && (dim == 64 || dim == 128 || dim == 256) && a.group <= MAX_GROUP && a.q_row % 2 == 0 && a.q_head % 2 == 0;
}

/* Pairs of row and head a block takes: as many as shared memory holds and a sequence has; 128 only where that leaves a block
 * for every multiprocessor (or everything is to go through wgmma, for tests). */
static int32_t pairs_of(const Device *d, const AttentionArgs &a, int32_t most_rows, int32_t n_rows)
{
    int32_t pairs = 16, dim = a.kv.head_dim, wanted = (most_rows < MAX_ROWS ? most_rows : MAX_ROWS) * a.group;
    if (d->wide_from == 1 && dim <= 128) return 128;
    int32_t most = dim <= 128 && n_rows * a.heads / 128 >= d->n_sm * 3 / 4 ? 128 : 64;
    while (pairs < wanted && pairs < most && (size_t)dim * TILE * 2 + (size_t)pairs * 2 * (dim + TILE + 16) * 2 + 4096 <= d->shared_bytes) pairs *= 2;
    return pairs;
}

TilesArgs plan_tiles(Device *d, const AttentionArgs &a, const Batch *batch, int32_t n_rows)
{
    TilesArgs t = { a };
    int32_t most = 1, spans = (a.n_splits * ATTN_SPLIT + SPAN - 1) / SPAN;
    bool is_even = true;
    for (int32_t s = 0; s < batch->n_seqs; s++)
        if (is_real(batch, &batch->seqs[s]) && batch->seqs[s].n_rows > most) most = batch->seqs[s].n_rows;
    t.pairs = pairs_of(d, a, most, n_rows);
    t.rows_per_block = t.pairs / a.group < MAX_ROWS ? t.pairs / a.group : MAX_ROWS;
    for (int32_t s = 0; s < batch->n_seqs; s++) {
        const BatchSeq *q = &batch->seqs[s];
        is_even = is_even && is_real(batch, q) && q->n_rows == batch->seqs[0].n_rows;
        if (is_real(batch, q)) t.n_blocks += (q->n_rows + t.rows_per_block - 1) / t.rows_per_block;
    }
    t.per_seq = is_even ? t.n_blocks / batch->n_seqs : 0;

    int32_t blocks = t.n_blocks * a.kv.n_heads, enough = d->n_sm * 3 / 4;
    size_t slot = (size_t)n_rows * a.heads * (a.kv.head_dim + 2) * sizeof(float);
    t.mode = blocks >= enough || slot * spans > (size_t)MAX_PARTIAL ? WHOLE : blocks * spans >= enough ? BY_SPAN : BY_TILE;
    t.n_slots = t.mode == WHOLE ? 1 : t.mode == BY_SPAN ? spans : a.n_splits * (ATTN_SPLIT / TILE);
    t.a.partial = (float *)scratch(d, slot * (t.n_slots + 1));
    return t;
}

void run_tiles(Device *d, const TilesArgs &t, int32_t n_rows)
{
    if (t.a.kv.head_dim == 64) launch_tiles<64>(d, t, n_rows);
    else if (t.a.kv.head_dim == 128) launch_tiles<128>(d, t, n_rows);
    else launch_tiles<256>(d, t, n_rows);
}
