/* linear for devices with wgmma: the sums of linear.cu for wide passes, from bytes that the copy engine brings.
 *
 * A block computes 64 or 128 outputs (gated: half of gate and the same half of up) for N rows. One warp orders copies, one or two
 * groups of four warps multiply: weights go through registers, rows stay in shared memory.
 *
 *     weights ──bulk copies──> ring of stages, 64 inputs each ──registers──┐
 *     rows    ──tensor copies──> the same ring ──────────────────────────── wgmma ──> sums in shared memory ──> out
 *
 * Of a row-parallel weight a cluster of blocks shares the parts of K: each takes some that follow each other, adds them up the
 * tree as far as they go (`saved`: at most one sum a level waits for its sibling), and in the end every block adds some rows of
 * all of them through distributed shared memory. So a layer of few outputs still keeps every multiprocessor busy. Weights do not
 * depend on the kernel before: as many stages as there are set out before it ends.
 *
 * Bound by reading weights up to some 64 rows, then by wgmma. Without wgmma (sm_121) linear.cu does it all, with these bits. */
#include "backend/cuda/linear_impl.h"
#include "backend/cuda/wgmma.h"

#include <cuda.h>

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WGMMA 1
#else
#define HAS_WGMMA 0
#endif

enum {
    STAGE_K = 64, TILE_BYTES = STAGE_K * TILE_ROWS * 2, MAX_STAGES = 12,
};

struct WideArgs {
    CUtensorMap  rows;
    LinearArgs   linear;
    int32_t      parts, per_part; /* of this block; stages a part */
    int32_t      is_once;         /* weights are read by one block only */
};

/* ---- barriers and copies ---- */

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
static __device__ __forceinline__ void barrier_init(uint64_t *b, int count)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count) : "memory");
}
static __device__ __forceinline__ void barrier_expect(uint64_t *b, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
[[maybe_unused]] static __device__ __forceinline__ void barrier_arrive(uint64_t *b)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
static __device__ __forceinline__ void barrier_wait(uint64_t *b, uint32_t parity)
{
    asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra again;\n}"
                 ::"r"(shared_address(b)), "r"(parity) : "memory");
}
static __device__ __forceinline__ void copy_weights(void *to, const void *from, int bytes, uint64_t *done, uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(done)), "l"(policy) : "memory");
}
static __device__ __forceinline__ void copy_rows(void *to, const CUtensorMap *map, int k, int row, uint64_t *done)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(shared_address(to)), "l"(map), "r"(k), "r"(row), "r"(shared_address(done)) : "memory");
}
static __device__ __forceinline__ uint32_t cluster_rank()
{
    uint32_t r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
static __device__ __forceinline__ uint32_t cluster_size()
{
    uint32_t n;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
    return n;
}
static __device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
static __device__ __forceinline__ float4 load_of_rank(uint32_t address, int rank)
{
    float4 x;
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(there));
    return x;
}
static __device__ __forceinline__ float4 plus(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* ---- the kernel ---- */

/* N rows, GROUPS of four warps with 64 outputs each. */
template <int N, int GROUPS, bool GATED> struct Wide {
    enum {
        OUTS = 64 * GROUPS, TILES = OUTS / TILE_ROWS, CONSUMERS = 128 * GROUPS, THREADS = CONSUMERS + 32, WEIGHT_BYTES = TILES * TILE_BYTES,
        SUM_STRIDE = OUTS + 4, PUT = GATED ? OUTS / 2 : OUTS, /* outputs that leave */
    };
    struct Stage {
        uint4    weights[WEIGHT_BYTES / 16];
        uint16_t rows[N * STAGE_K];
    };
    static __device__ __forceinline__ int tile(const LinearArgs &a, int m)
    {
        if (!GATED) return blockIdx.y * TILES + m;
        return m / (TILES / 2) * (a.n_tiles / 2) + blockIdx.y * (TILES / 2) + m % (TILES / 2);
    }
    static __device__ __forceinline__ bool is_tile(const LinearArgs &a, int m)
    {
        return GATED ? blockIdx.y * (TILES / 2) + m % (TILES / 2) < a.n_tiles / 2 : tile(a, m) < a.n_tiles;
    }
};

/* One thread orders everything. */
template <typename W>
static __device__ __forceinline__ void wide_bring(const WideArgs &a, typename W::Stage *stage, uint64_t *full, uint64_t *empty, int n_stages,
                                                  int first_row, int first_step, int n_steps)
{
    uint64_t policy;
    if (a.is_once) asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    else asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    const uint4 *from[W::TILES];
#pragma unroll
    for (int m = 0; m < W::TILES; m++) from[m] = tile_weights(a.linear, W::is_tile(a.linear, m) ? W::tile(a.linear, m) : 0) + (int64_t)first_step * (TILE_BYTES / 16);
    auto weights = [&](int i) {
        int s = i % n_stages;
        barrier_expect(&full[s], (int)sizeof(typename W::Stage));
#pragma unroll
        for (int m = 0; m < W::TILES; m++)
            copy_weights(stage[s].weights + m * (TILE_BYTES / 16), from[m] + (int64_t)i * (TILE_BYTES / 16), TILE_BYTES, &full[s], policy);
    };
    auto rows = [&](int i) { copy_rows(stage[i % n_stages].rows, &a.rows, (first_step + i) * STAGE_K, first_row, &full[i % n_stages]); };
    int early = n_steps < n_stages ? n_steps : n_stages;
    for (int i = 0; i < early; i++) weights(i);
    asm volatile("griddepcontrol.wait;" ::: "memory");
    for (int i = 0; i < early; i++) rows(i);
    for (int i = early; i < n_steps; i++) {
        barrier_wait(&empty[i % n_stages], (i / n_stages - 1) & 1);
        weights(i);
        rows(i);
    }
}

/* Sums of this block's parts, as far up the tree as they go. */
template <int N, int LEVELS, typename W>
static __device__ __forceinline__ void wide_sums(float (&acc)[N / 2], const WideArgs &a, typename W::Stage *stage, uint64_t *full,
                                                 uint64_t *empty, int n_stages)
{
#if HAS_WGMMA
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float saved[LEVELS > 0 ? LEVELS : 1][N / 2];
    int i = 0, s = 0;
    uint32_t parity = 0;
    for (int part = 0; part < a.parts; part++) {
#pragma unroll
        for (int e = 0; e < N / 2; e++) acc[e] = 0;
        for (int step = 0; step < a.per_part; step++, i++) {
            barrier_wait(&full[s], parity);
            const uint4 *weights = stage[s].weights + warp * (TILE_BYTES / 16) + lane;
            uint64_t rows = wgmma_rows(shared_address(stage[s].rows));
            uint4 w[2];
#pragma unroll
            for (int k = 0; k < STAGE_K / 16; k++) {
                w[k % 2] = weights[k * 32];
                wgmma_fence();
                Wgmma<N>::run(acc, w[k % 2], rows + 2 * k);
                wgmma_commit();
                wgmma_wait<1>();
                if (k == 0 && i > 0 && lane == 0) barrier_arrive(&empty[s > 0 ? s - 1 : n_stages - 1]); /* the stage before is read */
            }
            if (++s == n_stages) {
                s = 0;
                parity ^= 1;
            }
        }
        wgmma_wait<0>();
#pragma unroll
        for (int level = 0; level < LEVELS; level++) {
            if ((part & ((1 << level) - 1)) != (1 << level) - 1) continue;
            bool is_second = (part >> level & 1) != 0;
#pragma unroll
            for (int e = 0; e < N / 2; e++) {
                if (is_second) acc[e] = saved[level][e] + acc[e];
                else saved[level][e] = acc[e];
            }
            if (!is_second) break;
        }
    }
#endif
}

/* Four sums of a row, over the cluster: rank order is the order of parts. */
static __device__ __forceinline__ float4 sum4(const float *sums, int n)
{
    if (n == 1) return *(const float4 *)sums;
    float4 part[MAX_PARTS];
    uint32_t at = shared_address(sums);
#pragma unroll
    for (int p = 0; p < MAX_PARTS; p++) part[p] = p < n ? load_of_rank(at, p) : make_float4(0, 0, 0, 0);
#pragma unroll
    for (int step = 1; step < MAX_PARTS; step *= 2)
#pragma unroll
        for (int p = 0; p + step < MAX_PARTS; p += 2 * step)
            if (step < n) part[p] = plus(part[p], part[p + step]);
    return part[0];
}

/* This block's share of the rows: four outputs a thread at a time, in one store where they are one job's. */
template <int N, typename W, bool GATED> static __device__ __forceinline__ void wide_put(const LinearArgs &a, const float *sums, int first_row)
{
    const int rank = (int)cluster_rank(), n = (int)cluster_size(), n_rows = min(N, a.n_rows - first_row);
#pragma unroll 2
    for (int i = threadIdx.x + rank * W::THREADS; i < n_rows * (W::PUT / 4); i += n * W::THREADS) {
        int r = i / (W::PUT / 4), o = i % (W::PUT / 4) * 4, m = o / TILE_ROWS;
        if (!W::is_tile(a, m)) continue;
        int tile = W::tile(a, m), j = GATED ? 0 : job_of(a, tile), at = (tile - a.job[j].first_tile) * TILE_ROWS + o % TILE_ROWS;
        int64_t row = first_row + r;
        float4 y = sum4(sums + r * W::SUM_STRIDE + o, n);
        bool is_whole = at + 4 <= a.job[j].n_out;
        if (GATED) {
            float4 up = sum4(sums + r * W::SUM_STRIDE + W::OUTS / 2 + o, n);
            y = make_float4(f_silu(y.x) * up.x, f_silu(y.y) * up.y, f_silu(y.z) * up.z, f_silu(y.w) * up.w);
            uint16_t *to = a.gated + row * a.gated_stride + at;
            if (is_whole && (uintptr_t)to % 8 == 0) *(uint2 *)to = make_uint2(to_bf16(y.x) | (uint32_t)to_bf16(y.y) << 16, to_bf16(y.z) | (uint32_t)to_bf16(y.w) << 16);
            else for (int e = 0; e < 4 && at + e < a.job[j].n_out; e++) to[e] = to_bf16(e == 0 ? y.x : e == 1 ? y.y : e == 2 ? y.z : y.w);
        } else {
            float *to = a.job[j].out + row * a.job[j].out_stride + at;
            if (is_whole && (uintptr_t)to % 16 == 0) *(float4 *)to = y;
            else for (int e = 0; e < 4 && at + e < a.job[j].n_out; e++) to[e] = e == 0 ? y.x : e == 1 ? y.y : e == 2 ? y.z : y.w;
        }
    }
}

template <int N, int GROUPS, int LEVELS, bool GATED, int BLOCKS>
static __global__ void __launch_bounds__(128 * GROUPS + 32, BLOCKS) linear_wgmma(const __grid_constant__ WideArgs a, int n_stages)
{
    typedef Wide<N, GROUPS, GATED> W;
    extern __shared__ char memory[];
    __shared__ uint64_t full[MAX_STAGES], empty[MAX_STAGES];
    auto *stage = (typename W::Stage *)(memory + (1024 - shared_address(memory) % 1024) % 1024);
    float *sums = (float *)stage; /* [N][SUM_STRIDE], in the end */
    const int n = (int)cluster_size(), first_row = (int)(blockIdx.x / n) * N;
    const int n_steps = a.parts * a.per_part, first_step = (int)cluster_rank() * n_steps;
    if (threadIdx.x == 0) {
        for (int s = 0; s < n_stages; s++) {
            barrier_init(&full[s], 1);
            barrier_init(&empty[s], W::CONSUMERS / 32);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    __syncthreads();
    const int lane = threadIdx.x % 32, group = threadIdx.x / 128;
    if (threadIdx.x >= W::CONSUMERS) {
        if (lane == 0) wide_bring<W>(a, stage, full, empty, n_stages, first_row, first_step, n_steps);
        __syncwarp();
    } else {
        float acc[N / 2];
        wide_sums<N, LEVELS, W>(acc, a, stage, full, empty, n_stages);
        asm volatile("bar.sync 1, %0;" ::"n"(W::CONSUMERS + 0) : "memory"); /* all groups have read every stage */
        int out = group * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4, row = lane % 4 * 2;
#pragma unroll
        for (int e = 0; e < N / 2; e++) sums[(e / 4 * 8 + row + e % 2) * W::SUM_STRIDE + out + e % 4 / 2 * 8] = acc[e];
    }
    asm volatile("griddepcontrol.wait;" ::: "memory"); /* others may still read what lies where we write */
    if (n > 1) cluster_sync();
    else __syncthreads();
    wide_put<N, W, GATED>(a.linear, sums, first_row);
    if (n > 1) cluster_sync(); /* nobody leaves while its sums are being read */
}

/* ---- launching ---- */

typedef CUresult (*EncodeTiled)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
                                const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static EncodeTiled encode_tiled()
{
    static void *f;
    cudaDriverEntryPointQueryResult found;
    if (!f) CUDA_MUST(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found));
    MUST(f);
    return (EncodeTiled)f;
}

static CUtensorMap map_of(const LinearArgs &a, int box_rows)
{
    CUtensorMap map;
    cuuint64_t dims[2] = { (cuuint64_t)a.n_in, (cuuint64_t)a.n_rows }, strides[1] = { (cuuint64_t)a.x_stride * 2 };
    cuuint32_t box[2] = { STAGE_K, (cuuint32_t)box_rows }, ones[2] = { 1, 1 };
    MUST(!encode_tiled()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)a.x, dims, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                         CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    return map;
}

template <int N, int GROUPS, int LEVELS, bool GATED, int BLOCKS> static void launch_kernel(Device *d, WideArgs &a, int n_parts, int cluster)
{
    typedef Wide<N, GROUPS, GATED> W;
    auto kernel = linear_wgmma<N, GROUPS, LEVELS, GATED, BLOCKS>;
    /* Two blocks of a narrow pass fit a multiprocessor, one of them perhaps the next kernel's. */
    size_t stage = sizeof(typename W::Stage), room = d->shared_bytes / (N > 64 ? 1 : 2) - 2048;
    int n_stages = (int)(room / stage), most = a.linear.n_pieces / 2 / cluster;
    if (n_stages > MAX_STAGES) n_stages = MAX_STAGES;
    if (n_stages > most) n_stages = most;
    size_t sums = (size_t)N * W::SUM_STRIDE * sizeof(float), shared = n_stages * stage > sums ? n_stages * stage : sums;
    static bool is_set;
    if (!is_set) CUDA_MUST(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)d->shared_bytes - 512));
    is_set = true;

    a.rows = map_of(a.linear, N);
    a.parts = n_parts / cluster;
    a.per_part = a.linear.n_pieces / 2 / n_parts;
    a.is_once = a.linear.n_rows <= N;
    cudaLaunchAttribute attrs[2] = {};
    attrs[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attrs[0].val.programmaticStreamSerializationAllowed = 1;
    attrs[1].id = cudaLaunchAttributeClusterDimension;
    attrs[1].val.clusterDim.x = (unsigned)cluster;
    attrs[1].val.clusterDim.y = attrs[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    int tiles = GATED ? a.linear.n_tiles / 2 : a.linear.n_tiles, wide = W::PUT / TILE_ROWS;
    config.gridDim = dim3((unsigned)((a.linear.n_rows + N - 1) / N * cluster), (unsigned)((tiles + wide - 1) / wide));
    config.blockDim = W::THREADS;
    config.dynamicSmemBytes = shared + 1024;
    config.stream = d->stream;
    config.attrs = attrs;
    config.numAttrs = cluster > 1 ? 2 : 1;
    CUDA_MUST(cudaLaunchKernelEx(&config, kernel, a, n_stages));
}

/* One part: as many outputs a block as leave a block for every multiprocessor. (192 outputs a block, one block each, lost:
 * fewer reads of rows, but nothing that runs while sums leave.) */
template <int N, int BLOCKS> static void launch_whole(Device *d, WideArgs &a)
{
    const LinearArgs &l = a.linear;
    int blocks = (l.n_rows + N - 1) / N * (l.n_tiles / 8);
    if (l.gated) launch_kernel<N, 2, 0, true, BLOCKS>(d, a, 1, 1);
    else if (blocks >= d->n_sm) launch_kernel<N, 2, 0, false, BLOCKS>(d, a, 1, 1);
    else launch_kernel<N, 1, 0, false, BLOCKS>(d, a, 1, 1);
}

/* Parts: blocks share K until there are enough of them; a block keeps at most 2^LEVELS parts. */
template <int N, int LEVELS, int BLOCKS> static void launch_parts(Device *d, WideArgs &a, int n_parts)
{
    int cluster = 1, blocks = (a.linear.n_rows + N - 1) / N * ((a.linear.n_tiles + 7) / 8);
    while (cluster < n_parts && (n_parts / cluster > 1 << LEVELS || blocks * cluster * 8 < d->n_sm * BLOCKS * 7)) cluster *= 2;
    launch_kernel<N, 2, LEVELS, false, BLOCKS>(d, a, n_parts, cluster);
}

bool linear_wide(Device *d, const LinearArgs &args, int n_parts)
{
    if (args.n_rows < d->wide_from || args.n_in % (STAGE_K * n_parts) != 0 || (args.gated && n_parts > 1)) return false;
    WideArgs a;
    memset(&a, 0, sizeof a);
    a.linear = args;
    if (n_parts == 1) {
        if (args.n_rows <= 8) launch_whole<8, 2>(d, a);
        else if (args.n_rows <= 16) launch_whole<16, 2>(d, a);
        else if (args.n_rows <= 32) launch_whole<32, 2>(d, a);
        else if (args.n_rows <= 64) launch_whole<64, 2>(d, a);
        else if (args.n_rows <= 128) launch_whole<128, 1>(d, a);
        else launch_whole<256, 1>(d, a);
    } else if (args.n_rows <= 8) launch_parts<8, 3, 2>(d, a, n_parts);
    else if (args.n_rows <= 16) launch_parts<16, 3, 2>(d, a, n_parts);
    else if (args.n_rows <= 32) launch_parts<32, 2, 1>(d, a, n_parts);
    else if (args.n_rows <= 64) launch_parts<64, 1, 1>(d, a, n_parts);
    else launch_parts<128, 1, 1>(d, a, n_parts);
    return true;
}
