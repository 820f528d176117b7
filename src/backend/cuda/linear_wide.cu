/* linear for devices with wgmma: the sums of linear.cu, from bytes that the copy engine brings.
 *
 * A block computes 64, 128 or 192 outputs (gated: half of gate and the same half of up) for N rows. One thread orders copies, one
 * to three groups of four warps multiply: weights go through registers, rows stay in shared memory.
 *
 *     weights ──tensor copies──> ring of stages, 64 inputs each ──registers──┐
 *     rows    ──tensor copies──> the same ring ───────────────────────────── wgmma ──> out
 *
 * A stage is two copies, one of all its tiles of weights and one of rows, because one thread gives all orders: with an order a tile
 * it could not keep up. With up to 128 rows it is one group of products as well.
 *
 * Of a row-parallel weight a cluster of blocks shares the parts of K: each takes some that follow each other, adds them up the
 * tree as far as they go (`saved`: at most one sum a level waits for its sibling), and in the end every block adds some rows of
 * all of them through distributed shared memory. So a layer of few outputs still keeps every multiprocessor busy. With many rows
 * there are blocks enough, and each takes all of K. Weights do not depend on the kernel before: as many stages as there are set
 * out before it ends.
 *
 * Bound by reading weights up to some 64 rows, then by wgmma. Without wgmma (sm_121) linear.cu does it all, with these bits. */
#include "backend/cuda/barriers.h"
#include "backend/cuda/linear_impl.h"
#include "backend/cuda/wgmma.h"

#include <cuda.h>

enum { STAGE_K = 64, TILE_BYTES = STAGE_K * TILE_ROWS * 2, PIECE_BYTES = TILE_K * TILE_ROWS * 2, MAX_STAGES = 12 };

struct WideArgs {
    CUtensorMap rows, weights[MAX_JOBS];
    LinearArgs  linear;
    int32_t     first_block[MAX_JOBS];    /* of outputs: a block has outputs of one job */
    int32_t     parts, per_part;          /* of this block; stages a part */
    int32_t     is_once;                  /* weights are read by one block only */
    int32_t     split;                    /* blocks of a cluster: they share K */
};

/* ---- copies and clusters ---- */

static __device__ __forceinline__ void barrier_expect(uint64_t *b, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void copy_weights(void *to, const CUtensorMap *map, int piece, int tile, uint64_t *done, uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;"
                 ::"r"(shared_address(to)), "l"(map), "r"(0), "r"(piece), "r"(tile), "r"(shared_address(done)), "l"(policy) : "memory");
}
static __device__ __forceinline__ void copy_rows(void *to, const CUtensorMap *map, int k, int row, uint64_t *done)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(shared_address(to)), "l"(map), "r"(k), "r"(row), "r"(shared_address(done)) : "memory");
}
static __device__ __forceinline__ uint32_t address_of_rank(uint32_t address, int rank)
{
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
static __device__ __forceinline__ uint32_t cluster_rank()
{
    uint32_t r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
static __device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/* All blocks are here; says nothing about memory. */
static __device__ __forceinline__ void cluster_meet()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
static __device__ __forceinline__ float4 load_of_rank(uint32_t address, int rank)
{
    float4 x;
    uint32_t there = address_of_rank(address, rank);
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(there));
    return x;
}
static __device__ __forceinline__ float4 plus(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* ---- the kernel ---- */

/* N rows, GROUPS of four warps with 64 outputs each. Three levels of sums take more registers than a thread has at the start:
 * four warps bring then, three of them idle, because registers are handed over by groups of four. */
template <int N, int GROUPS, int LEVELS, bool GATED> struct Wide {
    enum {
        MATRICES = GATED ? 2 : 1, OUTS = 64 * GROUPS, TILES = OUTS / TILE_ROWS, CONSUMERS = 128 * GROUPS,
        IS_DEEP = LEVELS == 3 && N >= 128, THREADS = CONSUMERS + (IS_DEEP ? 128 : 32),
        SUM_STRIDE = OUTS + 4, PUT = OUTS / MATRICES, PUT_TILES = PUT / TILE_ROWS, /* outputs that leave */
        KEPT_BYTES = LEVELS > 2 && IS_DEEP ? N / 2 * CONSUMERS * 4 : 0, /* sums of the third level */
    };
    struct Stage {
        uint4    weights[TILES * TILE_BYTES / 16];
        uint16_t rows[N * STAGE_K];
    };
};

/* What a block computes. */
struct WidePlace {
    int job, tile; /* first of the job's tiles */
    int first_row, first_step, n_steps;
};

/* One thread orders everything. */
template <typename W>
static __device__ __forceinline__ void wide_bring(const WideArgs &a, const WidePlace &place, typename W::Stage *stage, uint64_t *full, uint64_t *empty,
                                                  int n_stages)
{
    uint64_t policy;
    if (a.is_once) asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    else asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    auto weights = [&](int i, int s) {
        barrier_expect(&full[s], (int)sizeof(typename W::Stage));
#pragma unroll
        for (int j = 0; j < W::MATRICES; j++)
            copy_weights(stage[s].weights + j * W::PUT_TILES * (TILE_BYTES / 16), &a.weights[place.job + j], (place.first_step + i) * (STAGE_K / TILE_K),
                         place.tile, &full[s], policy);
    };
    auto rows = [&](int i, int s) { copy_rows(stage[s].rows, &a.rows, (place.first_step + i) * STAGE_K, place.first_row, &full[s]); };
    int early = place.n_steps < n_stages ? place.n_steps : n_stages;
    for (int i = 0; i < early; i++) weights(i, i);
    asm volatile("griddepcontrol.wait;" ::: "memory");
    for (int i = 0; i < early; i++) rows(i, i);
    uint32_t parity = 0;
    for (int i = early, s = 0; i < place.n_steps; i++) {
        barrier_wait(&empty[s], parity);
        weights(i, s);
        rows(i, s);
        if (++s == n_stages) {
            s = 0;
            parity ^= 1;
        }
    }
}

/* Sums of this block's parts, as far up the tree as they go. Groups of warps take turns: one loads weights while others
 * multiply. */
template <int N, int LEVELS, typename W>
static __device__ __forceinline__ void wide_sums(float (&acc)[N / 2], const WideArgs &a, typename W::Stage *stage, uint64_t *full, uint64_t *empty,
                                                 float4 *kept, int n_stages)
{
#if HAS_WGMMA
    enum { REGISTERS = W::IS_DEEP ? 2 : LEVELS, AT_ONCE = STAGE_K / 16, BY_STAGE = N <= 128 && !W::IS_DEEP && !(N == 64 && W::OUTS == 192) };
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float saved[REGISTERS > 0 ? REGISTERS : 1][N / 2];
    int s = 0, before = -1;
    uint32_t parity = 0;
    auto next = [&] {
        before = s;
        if (++s == n_stages) {
            s = 0;
            parity ^= 1;
        }
    };
    auto multiply = [&] { /* all of a stage at once */
        barrier_wait(&full[s], parity);
        const uint4 *weights = stage[s].weights + warp * (TILE_BYTES / 16) + lane;
        uint64_t rows = wgmma_rows(shared_address(stage[s].rows));
        uint4 w[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) w[k] = weights[k * 32];
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) Wgmma<N>::run(acc, w[k], rows + 2 * k);
        wgmma_commit();
        wgmma_wait<0>();
        if (lane == 0) barrier_arrive(&empty[s]);
        next();
    };
    auto multiply_slowly = [&] { /* product by product: fewer registers, and products are long */
        barrier_wait(&full[s], parity);
        const uint4 *weights = stage[s].weights + warp * (TILE_BYTES / 16) + lane;
        uint64_t rows = wgmma_rows(shared_address(stage[s].rows));
        uint4 w[2];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            w[k % 2] = weights[k * 32];
            wgmma_fence();
            Wgmma<N>::run(acc, w[k % 2], rows + 2 * k);
            wgmma_commit();
            wgmma_wait<1>();
            if (k == 0 && lane == 0 && before >= 0) barrier_arrive(&empty[before]);
        }
        next();
    };
#pragma unroll(W::IS_DEEP ? 1 << LEVELS : 1)
    for (int part = 0; part < (W::IS_DEEP ? 1 << LEVELS : a.parts); part++) {
#pragma unroll
        for (int e = 0; e < N / 2; e++) acc[e] = 0;
        for (int step = 0; step < a.per_part; step++) {
            if (BY_STAGE) multiply();
            else multiply_slowly();
        }
        wgmma_wait<0>();
#pragma unroll
        for (int level = 0; level < LEVELS; level++) {
            if ((part & ((1 << level) - 1)) != (1 << level) - 1) continue;
            bool is_second = (part >> level & 1) != 0;
            if (level < REGISTERS) {
#pragma unroll
                for (int e = 0; e < N / 2; e++) {
                    float &other = saved[level < REGISTERS ? level : 0][e];
                    if (is_second) acc[e] = other + acc[e];
                    else other = acc[e];
                }
            } else {
#pragma unroll
                for (int e = 0; e < N / 2; e += 4) {
                    float4 &other = kept[e / 4 * W::CONSUMERS + threadIdx.x], sum = { acc[e], acc[e + 1], acc[e + 2], acc[e + 3] };
                    if (is_second) sum = plus(other, sum);
                    else other = sum;
                    acc[e] = sum.x;
                    acc[e + 1] = sum.y;
                    acc[e + 2] = sum.z;
                    acc[e + 3] = sum.w;
                }
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

/* This block's share of the rows: four outputs a thread at a time. */
template <int N, typename W, bool GATED>
static __device__ __forceinline__ void wide_put(const LinearArgs &a, const float *sums, const WidePlace &place, int n)
{
    const int rank = n > 1 ? (int)cluster_rank() : 0, n_rows = min(N, a.n_rows - place.first_row);
    const auto &job = a.job[place.job];
#pragma unroll 2
    for (int i = threadIdx.x + rank * W::CONSUMERS; i < n_rows * (W::PUT / 4); i += n * W::CONSUMERS) {
        int r = i / (W::PUT / 4), o = i % (W::PUT / 4) * 4, at = place.tile * TILE_ROWS + o;
        int64_t row = place.first_row + r;
        if (at >= job.n_out) continue;
        float4 y = sum4(sums + r * W::SUM_STRIDE + o, n);
        bool is_whole = at + 4 <= job.n_out;
        if (GATED) {
            float4 up = sum4(sums + r * W::SUM_STRIDE + W::PUT + o, n);
            y = make_float4(f_silu(y.x) * up.x, f_silu(y.y) * up.y, f_silu(y.z) * up.z, f_silu(y.w) * up.w);
            uint16_t *to = a.gated + row * a.gated_stride + at;
            if (is_whole && (uintptr_t)to % 8 == 0) *(uint2 *)to = make_uint2(to_bf16(y.x) | (uint32_t)to_bf16(y.y) << 16, to_bf16(y.z) | (uint32_t)to_bf16(y.w) << 16);
            else for (int e = 0; e < 4 && at + e < job.n_out; e++) to[e] = to_bf16(e == 0 ? y.x : e == 1 ? y.y : e == 2 ? y.z : y.w);
        } else {
            float *to = job.out + row * job.out_stride + at;
            if (is_whole && (uintptr_t)to % 16 == 0) *(float4 *)to = y;
            else for (int e = 0; e < 4 && at + e < job.n_out; e++) to[e] = e == 0 ? y.x : e == 1 ? y.y : e == 2 ? y.z : y.w;
        }
    }
}

/* The same without shared memory, where a block has whole sums: eight lanes fill 32 bytes. */
template <int N> static __device__ __forceinline__ void wide_store(const LinearArgs &a, const float (&acc)[N / 2], const WidePlace &place)
{
    const int lane = threadIdx.x % 32, at = (place.tile + threadIdx.x / 32) * TILE_ROWS + lane / 4, row = place.first_row + lane % 4 * 2;
    const auto &job = a.job[place.job];
    float *to = job.out + row * job.out_stride + at;
#pragma unroll
    for (int e = 0; e < N / 2; e++) {
        int r = e / 4 * 8 + e % 2, o = e % 4 / 2 * 8;
        if (row + r < a.n_rows && at + o < job.n_out) to[r * job.out_stride + o] = acc[e];
    }
}

template <int N, int GROUPS, int LEVELS, bool GATED>
static __global__ void __launch_bounds__(Wide<N, GROUPS, LEVELS, GATED>::THREADS, N > 64 ? 1 : 2) linear_wgmma(const __grid_constant__ WideArgs a, int n_stages)
{
    typedef Wide<N, GROUPS, LEVELS, GATED> W;
    extern __shared__ char memory[];
    __shared__ uint64_t full[MAX_STAGES], empty[MAX_STAGES];
    auto *stage = (typename W::Stage *)(memory + (1024 - shared_address(memory) % 1024) % 1024);
    float *sums = (float *)stage; /* [N][SUM_STRIDE], in the end */
    const int split = LEVELS > 0 && !W::IS_DEEP ? a.split : 1;
    if (threadIdx.x == W::CONSUMERS) {
        for (int s = 0; s < n_stages; s++) {
            barrier_init(&full[s], 1);
            barrier_init(&empty[s], W::CONSUMERS / 32);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        publish_to_engines();
    }
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    __syncthreads();
    WidePlace place = { 0, 0, (int)(blockIdx.x / split) * N, 0, a.parts * a.per_part };
    if (!GATED)
        while (place.job + 1 < a.linear.n_jobs && (int)blockIdx.y >= a.first_block[place.job + 1]) place.job++;
    place.tile = ((int)blockIdx.y - a.first_block[place.job]) * W::PUT_TILES;
    if (split > 1) place.first_step = (int)cluster_rank() * place.n_steps;
    const bool is_whole = !GATED && split == 1, is_consumer = threadIdx.x < W::CONSUMERS;
    if (!is_consumer) {
        if (W::IS_DEEP) registers_give<24>();
        if (threadIdx.x == W::CONSUMERS) wide_bring<W>(a, place, stage, full, empty, n_stages);
        __syncwarp();
    } else {
        if (W::IS_DEEP) registers_take<240>();
        float acc[N / 2];
        wide_sums<N, LEVELS, W>(acc, a, stage, full, empty, (float4 *)(stage + n_stages), n_stages);
        asm volatile("griddepcontrol.wait;" ::: "memory"); /* others may still read what lies where we write */
        if (is_whole) wide_store<N>(a.linear, acc, place);
        else {
            warps_meet<W::CONSUMERS>(1); /* all groups have read every stage */
            int lane = threadIdx.x % 32, out = threadIdx.x / 32 * 16 + lane / 4, row = lane % 4 * 2;
#pragma unroll
            for (int e = 0; e < N / 2; e++) sums[(e / 4 * 8 + row + e % 2) * W::SUM_STRIDE + out + e % 4 / 2 * 8] = acc[e];
        }
    }
    if (is_whole) return;
    if (split > 1) cluster_sync();
    else if (is_consumer) warps_meet<W::CONSUMERS>(1);
    if (is_consumer) wide_put<N, W, GATED>(a.linear, sums, place, split);
    if (split > 1) cluster_meet(); /* nobody leaves while its sums are being read */
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

static void map_rows(CUtensorMap *map, const LinearArgs &a, int rows)
{
    cuuint64_t dims[2] = { (cuuint64_t)a.n_in, (cuuint64_t)a.n_rows }, strides[1] = { (cuuint64_t)a.x_stride * 2 };
    cuuint32_t box[2] = { STAGE_K, (cuuint32_t)rows }, ones[2] = { 1, 1 };
    MUST(!encode_tiled()(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)a.x, dims, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                         CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
}

/* Pieces of a tile follow each other; a stage of some tiles is one copy. What is behind the last tile comes as zeros. */
static void map_weights(CUtensorMap *map, const LinearArgs &a, int job, int tiles)
{
    cuuint64_t n_tiles = (cuuint64_t)(a.job[job].n_out + TILE_ROWS - 1) / TILE_ROWS;
    cuuint64_t dims[3] = { PIECE_BYTES / 4, (cuuint64_t)a.n_pieces, n_tiles }, strides[2] = { PIECE_BYTES, (cuuint64_t)a.n_pieces * PIECE_BYTES };
    cuuint32_t box[3] = { PIECE_BYTES / 4, STAGE_K / TILE_K, (cuuint32_t)tiles }, ones[3] = { 1, 1, 1 };
    MUST(!encode_tiled()(map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 3, (void *)a.job[job].weight, dims, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                         CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
}

template <int N, int GROUPS, int LEVELS, bool GATED> static void launch_kernel(Device *d, WideArgs &a, int n_parts, int split)
{
    typedef Wide<N, GROUPS, LEVELS, GATED> W;
    auto kernel = linear_wgmma<N, GROUPS, LEVELS, GATED>;
    int row_blocks = (a.linear.n_rows + N - 1) / N, out_blocks = 0;
    for (int j = 0; j < (GATED ? 1 : a.linear.n_jobs); j++) {
        a.first_block[j] = out_blocks;
        out_blocks += (a.linear.job[j].n_out + W::PUT - 1) / W::PUT;
    }
    /* Two blocks of a narrow pass fit a multiprocessor, one of them perhaps the next kernel's; but who needs one block alone
     * has more on its way. */
    size_t stage = sizeof(typename W::Stage), room = d->shared_bytes / (N > 64 ? 1 : 2) - 2048 - W::KEPT_BYTES;
    if (LEVELS == 0 && row_blocks * out_blocks <= d->n_sm) room = d->shared_bytes - 6144;
    int n_stages = (int)(room / stage), most = a.linear.n_pieces / 2 / split;
    if (n_stages > MAX_STAGES) n_stages = MAX_STAGES;
    if (n_stages > most) n_stages = most;
    size_t sums = (size_t)N * W::SUM_STRIDE * sizeof(float), ring = n_stages * stage + W::KEPT_BYTES, shared = ring > sums ? ring : sums;
    static bool is_set;
    if (!is_set) CUDA_MUST(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)d->shared_bytes - 512));
    is_set = true;

    map_rows(&a.rows, a.linear, N);
    for (int j = 0; j < a.linear.n_jobs; j++) map_weights(&a.weights[j], a.linear, j, W::PUT_TILES);
    a.parts = n_parts / split;
    a.per_part = a.linear.n_pieces / 2 / n_parts;
    a.is_once = row_blocks == 1;
    a.split = split;
    cudaLaunchAttribute attrs[2] = {};
    attrs[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attrs[0].val.programmaticStreamSerializationAllowed = 1;
    attrs[1].id = cudaLaunchAttributeClusterDimension;
    attrs[1].val.clusterDim.x = (unsigned)split;
    attrs[1].val.clusterDim.y = attrs[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(row_blocks * split), (unsigned)out_blocks);
    config.blockDim = W::THREADS;
    config.dynamicSmemBytes = shared + 1024;
    config.stream = d->stream;
    config.attrs = attrs;
    config.numAttrs = split > 1 ? 2 : 1;
    CUDA_MUST(cudaLaunchKernelEx(&config, kernel, a, n_stages));
}

/* One part: groups a block so that blocks fill the multiprocessors evenly. */
template <int N, bool GATED> static int groups_of(const Device *d, const LinearArgs &a)
{
    static const int order[] = { 2, 3, 1 };
    int best = 2, least = INT32_MAX;
    for (int g : order) {
        int wide = 64 * g / (GATED ? 2 : 1), blocks = 0;
        if ((g == 3 && N > 64) || (g == 1 && GATED)) continue;
        for (int j = 0; j < (GATED ? 1 : a.n_jobs); j++) blocks += (a.job[j].n_out + wide - 1) / wide;
        int time = ((a.n_rows + N - 1) / N * blocks + d->n_sm - 1) / d->n_sm * g;
        if (time >= least) continue;
        least = time;
        best = g;
    }
    return best;
}

template <int N, bool GATED> static void launch_groups(Device *d, WideArgs &a)
{
    int groups = groups_of<N, GATED>(d, a.linear);
    if (groups == 2) launch_kernel<N, 2, 0, GATED>(d, a, 1, 1);
    if constexpr (N <= 64)
        if (groups == 3) launch_kernel<N, 3, 0, GATED>(d, a, 1, 1);
    if constexpr (!GATED)
        if (groups == 1) launch_kernel<N, 1, 0, GATED>(d, a, 1, 1);
}

template <int N> static void launch_whole(Device *d, WideArgs &a)
{
    if (a.linear.gated) launch_groups<N, true>(d, a);
    else launch_groups<N, false>(d, a);
}

/* Parts: blocks share K until there are enough of them; a block keeps at most 2^LEVELS parts. */
template <int N, int LEVELS> static void launch_parts(Device *d, WideArgs &a, int n_parts)
{
    int split = 1, blocks = (a.linear.n_rows + N - 1) / N * ((a.linear.n_tiles + 7) / 8);
    while (split < n_parts && (n_parts / split > 1 << LEVELS || blocks * split * 8 < d->n_sm * 7)) split *= 2;
    launch_kernel<N, 2, LEVELS, false>(d, a, n_parts, split);
}

/* Many rows: there are blocks enough, and each takes all of K. */
static bool are_many(const Device *d, const LinearArgs &a, int n_parts)
{
    int blocks = (a.n_rows + 127) / 128 * ((a.n_tiles + 7) / 8);
    return n_parts == MAX_PARTS && (blocks * 8 >= d->n_sm * 7 || d->wide_from == 1);
}

bool linear_wide(Device *d, const LinearArgs &args, int n_parts)
{
    int from = n_parts > 1 ? d->wide_from : d->wide_from / 2 + 1;
    if (d->wide_from > MAX_WIDE_FROM || args.n_rows < from || args.n_in % (STAGE_K * n_parts) != 0 || (args.gated && n_parts > 1)) return false;
    WideArgs a;
    memset(&a, 0, sizeof a);
    a.linear = args;
    if (n_parts == 1) {
        if (args.n_rows <= 8) launch_whole<8>(d, a);
        else if (args.n_rows <= 16) launch_whole<16>(d, a);
        else if (args.n_rows <= 32) launch_whole<32>(d, a);
        else if (args.n_rows <= 64) launch_whole<64>(d, a);
        else if (args.n_rows <= 128) launch_whole<128>(d, a);
        else launch_whole<256>(d, a);
    } else if (args.n_rows <= 8) launch_parts<8, 3>(d, a, n_parts);
    else if (args.n_rows <= 16) launch_parts<16, 3>(d, a, n_parts);
    else if (args.n_rows <= 32) launch_parts<32, 2>(d, a, n_parts);
    else if (args.n_rows <= 64) launch_parts<64, 1>(d, a, n_parts);
    else if (are_many(d, args, n_parts)) launch_kernel<128, 2, 3, false>(d, a, n_parts, 1);
    else launch_parts<128, 1>(d, a, n_parts);
    return true;
}
