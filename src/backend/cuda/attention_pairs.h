/* What the kernels of attention on tensor cores share (attention_tiles.cu has the contract): where rows end, how sums merge, and
 * the state of a warp that works on 16 pairs of row and head. */
#pragma once

#include "backend/cuda/attention_impl.h"

enum { GRAIN = 16, TILE = 128, SPAN = 1024, MAX_TAIL = MAX_DEPTH + GRAIN, TAIL_THREADS = 128, MAX_GROUP = 16, MAX_ROWS = 32, MAX_PARTIAL = 128 << 20 };
static_assert((int)TILE == (int)DEVICE_ATTENTION_TILE, "the fingerprint knows the tile");
static __device__ __forceinline__ int32_t body_end(int32_t index)
{
    int32_t before = index + 1 - MAX_DEPTH;
    return before > 0 ? before / GRAIN * GRAIN : 0;
}
static __device__ __forceinline__ int32_t first_key_of(const DeviceBatch &b, int32_t row)
{
    return b.first_key ? b.first_key[row] : 0;
}
template <int DIM> static __device__ __forceinline__ float *partial_of(const TilesArgs &t, int32_t row, int32_t head, int32_t slot)
{
    return t.a.partial + (((int64_t)row * t.a.heads + head) * (t.n_slots + 1) + slot) * (DIM + 2);
}

/* How a sum that ends and one that begins come together; nothing seen yet is (-inf, 0, 0). */
struct Merge {
    float m, old, fresh;
};
static __device__ __forceinline__ Merge merge_of(float M, float m)
{
    Merge r = { m > M ? m : M, 0, 0 };
    r.old = M == -F_INF ? 0.0f : f_exp(M - r.m);
    r.fresh = m == -F_INF ? 0.0f : f_exp(m - r.m);
    return r;
}
static __device__ __forceinline__ float merged(const Merge &r, float sum, float fresh)
{
    return fmaf(fresh, r.fresh, sum * r.old);
}

/* f_exp of what is not above 0 (or NaN): nothing can overflow. */
static __device__ __forceinline__ float exp_down(float x)
{
    float t = fmaf(x, F_LOG2_E, F_ROUND), n = t - F_ROUND, r = fmaf(n, -F_LN2_LO, fmaf(n, -F_LN2_HI, x));
    float p = fmaf(fmaf(fmaf(fmaf(F_EXP_C4, r, F_EXP_C3), r, F_EXP_C2), r, F_EXP_C1), r, F_EXP_C0);
    float y = f_of_bits(f_bits(1.0f + fmaf(r * r, p, r)) + (f_bits(t) << 23));
    y = x < F_EXP_MIN ? 0.0f : y;
    return x != x ? F_NAN : y;
}

/* Two numbers to bf16, ties to even; `low` comes first in memory. */
static __device__ __forceinline__ uint32_t both_bf16(float low, float high)
{
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

static __device__ __forceinline__ void copy16(uint32_t to, const void *from, bool is_there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(is_there ? 16 : 0) : "memory");
}
static __device__ __forceinline__ void copies_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int LEFT> static __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

static __device__ __forceinline__ void mma(float d[4], uint4 a, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/* Rows [first, first + n) of one sequence: the block's z-th run of them. */
struct RowRun {
    int32_t seq, first, n;
};
static __device__ __forceinline__ RowRun find_rows(const TilesArgs &t, int32_t z)
{
    const DeviceBatch &b = t.a.batch;
    const int32_t size = t.rows_per_block;
    int32_t s = 0;
    if (t.per_seq) {
        s = z / t.per_seq;
        z %= t.per_seq;
    } else {
        for (; s < b.n_seqs; s++) {
            int32_t n = is_real(b, b.seqs[s]) ? (b.seqs[s].n_rows + size - 1) / size : 0;
            if (z < n) break;
            z -= n;
        }
    }
    if (s >= b.n_seqs || !is_real(b, b.seqs[s])) return { -1, 0, 0 };
    return { s, b.seqs[s].first_row + z * size, min(size, b.seqs[s].n_rows - z * size) };
}

/* The positions that rows of the block want from the body, found by a warp's lanes. */
static __device__ __forceinline__ void find_range(const DeviceBatch &b, const RowRun &rows, int32_t *lowest, int32_t *highest)
{
    int32_t lane = threadIdx.x % 32, low = INT32_MAX, high = 0;
    if (lane < rows.n) {
        low = first_key_of(b, rows.first + lane);
        high = body_end(b.index[rows.first + lane]);
    }
    *lowest = __reduce_min_sync(0xffffffffu, low);
    *highest = __reduce_max_sync(0xffffffffu, high);
}

/* 16 pairs of row and head of a warp, KEY_TILES eighths of a tile's keys and DIM_TILES eighths of a head's values: as mma.sync
 * and wgmma hold them, a lane has pairs g and g + 8. */
template <int DIM, int KEY_TILES, int DIM_TILES> struct Pairs {
    const TilesArgs &t;
    RowRun           rows;
    int32_t          kv_head, slot_of_seq, lowest, highest; /* positions that some row wants */
    int32_t          wm, wn, lane, g, c;
    int32_t          low[2], high[2];
    float            M[2], L[2], O[DIM_TILES][4];

    __device__ __forceinline__ Pairs(const TilesArgs &t, int32_t wm, int32_t wn)
        : t(t), rows(find_rows(t, blockIdx.z)), kv_head(blockIdx.x), wm(wm), wn(wn), lane(threadIdx.x % 32), g(threadIdx.x % 32 / 4), c(threadIdx.x % 4)
    {
    }
    __device__ __forceinline__ int32_t pair(int e) const { return wm * 16 + g + 8 * e; }
    __device__ __forceinline__ int32_t row_of(int e) const { return rows.first + pair(e) / t.a.group; }

    /* Tiles [first, end) of this block. */
    __device__ __forceinline__ void find_tiles(int32_t *first, int32_t *end)
    {
        find_range(t.a.batch, rows, &lowest, &highest);
        *first = lowest / TILE;
        *end = (highest + TILE - 1) / TILE;
        if (t.mode == WHOLE) return;
        const int32_t per_slot = t.mode == BY_TILE ? 1 : SPAN / TILE, slot = (int32_t)blockIdx.y;
        *first = max(*first, slot * per_slot);
        *end = min(*end, (slot + 1) * per_slot);
    }
    __device__ __forceinline__ void find_limits()
    {
        slot_of_seq = t.a.batch.seqs[rows.seq].slot;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            bool is_pair = pair(e) / t.a.group < rows.n;
            low[e] = is_pair ? first_key_of(t.a.batch, row_of(e)) : 0;
            high[e] = is_pair ? body_end(t.a.batch.index[row_of(e)]) : 0;
        }
    }

    /* Every pair of the warp sees every position of the tile (the warp agrees). */
    __device__ __forceinline__ bool sees_all(int32_t tile) const
    {
        bool is_all = true;
#pragma unroll
        for (int e = 0; e < 2; e++) is_all = is_all && tile * TILE >= low[e] && (tile + 1) * TILE <= high[e];
        return __all_sync(0xffffffffu, is_all);
    }
    __device__ __forceinline__ bool sees(int32_t position, int e) const { return position >= low[e] && position < high[e]; }
    __device__ __forceinline__ int32_t position_of(int32_t tile, int n, int e) const { return tile * TILE + (wn * KEY_TILES + n) * 8 + 2 * c + (e & 1); }

    template <bool MASKED> __device__ __forceinline__ void find_most(float (&x)[KEY_TILES][4], int32_t tile, float (&most)[2])
    {
#pragma unroll
        for (int n = 0; n < KEY_TILES; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                x[n][e] = x[n][e] * t.a.scale;
                if (!MASKED || sees(position_of(tile, n, e), e / 2)) most[e / 2] = fmaxf(most[e / 2], x[n][e]); /* not NaN */
            }
    }

    /* The weights of N eighths of scores from the n-th on, given the largest of the tile; 0 where a pair sees nothing. */
    template <bool MASKED, int N> __device__ __forceinline__ void weights_of(float (&p)[4 * N], const float (&x)[KEY_TILES][4], int n, int32_t tile, const float (&m)[2])
    {
#pragma unroll
        for (int i = 0; i < 4 * N; i++) {
            p[i] = exp_down(x[n + i / 4][i % 4] - m[i % 4 / 2]);
            if (MASKED && !sees(position_of(tile, n + i / 4, i % 4), i % 4 / 2)) p[i] = 0;
        }
    }

    /* Sums of a tile into M, L, O. Pairs that see nothing of it have no such tile. */
    __device__ __forceinline__ void merge_in(const float (&o)[DIM_TILES][4], const float (&l)[4], const float (&m)[2], int32_t tile)
    {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            if (tile * TILE >= high[e] || (tile + 1) * TILE <= low[e]) continue;
            Merge r = merge_of(M[e], m[e]);
            M[e] = r.m;
            L[e] = merged(r, L[e], l[2 * e]);
#pragma unroll
            for (int n = 0; n < DIM_TILES; n++) {
                O[n][2 * e] = merged(r, O[n][2 * e], o[n][2 * e]);
                O[n][2 * e + 1] = merged(r, O[n][2 * e + 1], o[n][2 * e + 1]);
            }
        }
    }

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            M[e] = -F_INF;
            L[e] = 0;
        }
#pragma unroll
        for (int n = 0; n < DIM_TILES; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) O[n][e] = 0;
    }

    /* Leaves M, L, O in a slot, merged with what spans before have left there. L and M of a pair are the same in all warps
     * along the keys, so each merges its own values and the first writes them. */
    __device__ __forceinline__ void put(int32_t slot, bool is_first)
    {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            bool is_pair = high[e] > 0, is_empty = M[e] == -F_INF && L[e] == 0;
            float *to = partial_of<DIM>(t, is_pair ? row_of(e) : 0, kv_head * t.a.group + pair(e) % t.a.group, slot);
            Merge r = { M[e], 0, 1 };
            float l = L[e];
            if (is_pair && !is_first) {
                r = merge_of(to[0], M[e]);
                l = merged(r, to[1], L[e]);
            }
            if (DIM_TILES * 8 < DIM) __syncthreads(); /* all have read what the first one overwrites */
            else __syncwarp();
            if (!is_pair || (is_empty && !is_first)) continue;
#pragma unroll
            for (int n = 0; n < DIM_TILES; n++) {
                float2 *at = (float2 *)&to[2 + (wn * DIM_TILES + n) * 8 + 2 * c], y = { O[n][2 * e], O[n][2 * e + 1] };
                if (!is_first) y = { merged(r, at->x, y.x), merged(r, at->y, y.y) };
                *at = y;
            }
            if (wn == 0 && c == 0) *(float2 *)to = { r.m, l };
        }
    }

    /* A tile is done: what is summed up leaves at the end of a span. */
    __device__ __forceinline__ void leave(int32_t tile, bool is_more, bool *is_first)
    {
        if (is_more && (tile + 1) % (SPAN / TILE) != 0) return;
        put(t.mode == WHOLE ? 0 : (int32_t)blockIdx.y, *is_first);
        clear();
        *is_first = false;
    }
};
