/* The body of attention for devices with wgmma: the sums of attention_tiles.cu for prompts.
 *
 * A block takes 64 or 128 pairs of row and head, a group of four warps 64 each; four more warps bring keys and values of a tile
 * after the other. A lane keeps the scores of its two pairs in registers, where they become weights, the other side of the next
 * product. So only keys, values and queries lie in shared memory, and while one group weighs, the other multiplies. */
#include "backend/cuda/attention_pairs.h"
#include "backend/cuda/barriers.h"
#include "backend/cuda/wgmma.h"

enum { BRINGERS = 128, LINE = 64 /* values of a line of 128 bytes */ };

/* GROUPS of four warps multiply; keys and values of STAGES tiles. */
template <int DIM, int GROUPS, int STAGES> struct WideMemory {
    uint16_t kv[2][STAGES][DIM / LINE][TILE][LINE]; /* keys, values */
    uint16_t q[GROUPS][DIM / LINE][64][LINE];
    int64_t  place[2][TILE]; /* byte of a position's key, by tile */
    uint64_t full[2][STAGES], empty[2][STAGES];
};

/* Byte place of 16 bytes in lines of LINE values as wgmma wants them; LINES lines, then the next LINE values of all. */
template <int LINES> static __device__ __forceinline__ uint32_t line_place(int line, int chunk)
{
    return (uint32_t)(chunk / 8 * LINES * 128 + line * 128 + (chunk % 8 ^ line % 8) * 16);
}

template <int DIM, int GROUPS, int STAGES> struct WideBody : Pairs<DIM, TILE / 8, DIM / 8> {
    typedef Pairs<DIM, TILE / 8, DIM / 8> Base;
    using Base::t, Base::rows, Base::kv_head, Base::wm, Base::lane, Base::lowest, Base::highest, Base::slot_of_seq;
    typedef WideMemory<DIM, GROUPS, STAGES> Memory;
    Memory &s;

    __device__ __forceinline__ WideBody(const TilesArgs &t, Memory &s) : Base(t, threadIdx.x / 32, 0), s(s) {}

    /* ---- warps that bring ---- */

    __device__ __forceinline__ int64_t find_place(int32_t tile) const
    {
        int32_t j = tile * TILE + threadIdx.x % TILE;
        if (j < lowest || j >= highest) return -1;
        return kv_key(t.a.kv, kv_store_at(t.a.kv, slot_of_seq, j), kv_head) - t.a.kv.data;
    }

    /* Keys or values of the n-th tile; what no row wants is zero. The barrier is told when they are there. */
    __device__ __forceinline__ void bring(int32_t n, int is_value)
    {
        const int stage = n % STAGES;
        const int64_t behind = is_value ? (int64_t)t.a.kv.n_heads * t.a.kv.block_size * DIM * 2 : 0;
        const uint32_t base = shared_address(s.kv[is_value][stage]);
        if (n >= STAGES) barrier_wait(&s.empty[is_value][stage], (n / STAGES - 1) & 1);
#pragma unroll 8
        for (int i = threadIdx.x % BRINGERS; i < TILE * (DIM / 8); i += BRINGERS) {
            int key = i / (DIM / 8), chunk = i % (DIM / 8);
            int64_t at = s.place[n & 1][key];
            copy16(base + line_place<TILE>(key, chunk), at < 0 ? t.a.kv.data : t.a.kv.data + at + behind + chunk * 16, at >= 0);
        }
        barrier_arrive_behind_copies(&s.full[is_value][stage]);
    }
    __device__ __forceinline__ void bring_tiles(int32_t first, int32_t end)
    {
        int64_t place = find_place(first);
        for (int32_t tile = first, n = 0; tile < end; tile++, n++) {
            s.place[n & 1][threadIdx.x % TILE] = place;
            if (tile + 1 < end) place = find_place(tile + 1);
            warps_meet<BRINGERS>(1);
            for (int is_value = 0; is_value < 2; is_value++) bring(n, is_value);
        }
    }

    /* ---- warps that multiply ---- */

    /* A warp's 16 pairs of its group's queries. */
    __device__ __forceinline__ void load_queries()
    {
        const AttentionArgs &a = t.a;
        enum { QUARTERS = DIM / 4, AT_ONCE = 8 };
        char *to = (char *)s.q[wm / 4];
        for (int i0 = lane; i0 < 16 * QUARTERS; i0 += 32 * AT_ONCE) {
            float4 q[AT_ONCE];
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++) {
                int pair = wm * 16 + (i0 + u * 32) / QUARTERS, row = pair / a.group, d = (i0 + u * 32) % QUARTERS * 4;
                q[u] = row < rows.n ? *(const float4 *)&a.q[(rows.first + row) * a.q_row + (kv_head * a.group + pair % a.group) * a.q_head + d] : make_float4(0, 0, 0, 0);
            }
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++) {
                int line = wm % 4 * 16 + (i0 + u * 32) / QUARTERS, d = (i0 + u * 32) % QUARTERS * 4;
                *(uint2 *)(to + line_place<64>(line, d / 8) + d % 8 * 2) = make_uint2(both_bf16(q[u].x, q[u].y), both_bf16(q[u].z, q[u].w));
            }
        }
        publish_to_engines();
        warps_meet<128>(2 + wm / 4);
    }

    __device__ __forceinline__ void scores(float (&x)[TILE / 8][4], int stage)
    {
#if HAS_WGMMA
        const uint64_t q = wgmma_rows(shared_address(s.q[wm / 4])), k = wgmma_rows(shared_address(s.kv[0][stage]));
#pragma unroll
        for (int n = 0; n < TILE / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) x[n][e] = 0;
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < DIM / 16; i++)
            Wgmma<TILE>::run_shared(&x[0][0], q + i / 4 * (64 * 128 >> 4) + i % 4 * 2, k + i / 4 * (TILE * 128 >> 4) + i % 4 * 2);
        wgmma_commit();
        wgmma_wait<0>();
#endif
    }

    template <bool MASKED> __device__ __forceinline__ void weigh(uint4 (&p)[TILE / 16], float (&x)[TILE / 8][4], float (&m)[2], int32_t tile)
    {
        m[0] = m[1] = -F_INF;
        this->template find_most<MASKED>(x, tile, m);
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
            for (int w = 2; w > 0; w /= 2) {
                float other = __shfl_xor_sync(0xffffffffu, m[e], w);
                m[e] = other > m[e] ? other : m[e];
            }
#pragma unroll
        for (int i = 0; i < TILE / 16; i++) {
            float y[8];
            this->template weights_of<MASKED, 2>(y, x, 2 * i, tile, m);
            p[i] = make_uint4(both_bf16(y[0], y[1]), both_bf16(y[2], y[3]), both_bf16(y[4], y[5]), both_bf16(y[6], y[7]));
        }
    }

    __device__ __forceinline__ void add_values(float (&o)[DIM / 8][4], float (&l)[4], const uint4 (&p)[TILE / 16], int stage)
    {
#if HAS_WGMMA
        const uint64_t v = wgmma_turned(shared_address(s.kv[1][stage]), TILE * 128);
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) o[n][e] = 0;
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < TILE / 16; i++) Wgmma<DIM>::run_turned(&o[0][0], p[i], v + i * (16 * 128 >> 4));
        wgmma_commit();
        for (int e = 0; e < 4; e++) l[e] = 0;
#pragma unroll
        for (int i = 0; i < TILE / 16; i++) mma(l, p[i], 0x3f803f80u, 0x3f803f80u);
        wgmma_wait<0>();
#endif
    }

    __device__ __forceinline__ void add_tiles(int32_t first, int32_t end)
    {
        bool is_first = true;
        load_queries();
        this->clear();
        for (int32_t tile = first, n = 0; tile < end; tile++, n++) {
            const int stage = n % STAGES, parity = n / STAGES & 1;
            float x[TILE / 8][4], o[DIM / 8][4], m[2], l[4];
            uint4 p[TILE / 16];
            barrier_wait(&s.full[0][stage], parity);
            publish_to_engines(); /* what others have brought, and said so */
            scores(x, stage);
            if (lane == 0) barrier_arrive(&s.empty[0][stage]);
            if (this->sees_all(tile)) weigh<false>(p, x, m, tile);
            else weigh<true>(p, x, m, tile);
            barrier_wait(&s.full[1][stage], parity);
            publish_to_engines();
            add_values(o, l, p, stage);
            if (lane == 0) barrier_arrive(&s.empty[1][stage]);
            this->merge_in(o, l, m, tile);
            this->leave(tile, tile + 1 < end, &is_first);
        }
    }
};

template <int DIM, int GROUPS, int STAGES>
static __global__ void __launch_bounds__(GROUPS * 128 + BRINGERS, GROUPS == 1 ? 2 : 1) attend_wide(const __grid_constant__ TilesArgs t)
{
    typedef WideBody<DIM, GROUPS, STAGES> Body;
    enum { CONSUMERS = GROUPS * 128 };
    extern __shared__ char memory[];
    auto &s = *(typename Body::Memory *)(memory + (1024 - shared_address(memory) % 1024) % 1024);
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    Body b(t, s);
    int32_t first, end;
    b.find_tiles(&first, &end);
    if (first < end) {
        b.find_limits();
        if (threadIdx.x == 0) {
            for (int i = 0; i < 2 * STAGES; i++) {
                barrier_init(&s.full[0][i], BRINGERS);
                barrier_init(&s.empty[0][i], CONSUMERS / 32);
            }
            publish_to_engines();
        }
        __syncthreads();
        if (threadIdx.x >= CONSUMERS) {
            registers_give<40>();
            b.bring_tiles(first, end);
        } else {
            registers_take<GROUPS == 1 ? 208 : 232>();
            b.add_tiles(first, end);
        }
    }
    asm volatile("griddepcontrol.wait;" ::: "memory"); /* attend_tail is done when this kernel is */
}

template <int DIM, int GROUPS, int STAGES> static void launch_wide(Device *d, const TilesArgs &t)
{
    static bool is_set;
    size_t shared = sizeof(WideMemory<DIM, GROUPS, STAGES>) + 1024;
    if (!is_set) CUDA_MUST(cudaFuncSetAttribute(attend_wide<DIM, GROUPS, STAGES>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    is_set = true;
    launch(d, attend_wide<DIM, GROUPS, STAGES>, dim3(t.a.kv.n_heads, t.n_slots, t.n_blocks), GROUPS * 128 + BRINGERS, shared, t);
}

/* Two blocks a multiprocessor of 64 pairs, for a tile or a few; one of 128 for many. */
template <int DIM> static void launch_dim(Device *d, const TilesArgs &t)
{
    if (t.pairs == 128) launch_wide<DIM, 2, 2>(d, t);
    else launch_wide<DIM, 1, 1>(d, t);
}

bool attend_body_wide(Device *d, const TilesArgs &t)
{
    bool is_aligned = t.a.q_row % 4 == 0 && t.a.q_head % 4 == 0 && (uintptr_t)t.a.q % 16 == 0;
    if (d->wide_from > MAX_WIDE_FROM || !is_aligned || t.pairs < 64) return false;
    if (t.a.kv.head_dim == 64) launch_dim<64>(d, t);
    else if (t.a.kv.head_dim == 128) launch_dim<128>(d, t);
    else return false;
    return true;
}
