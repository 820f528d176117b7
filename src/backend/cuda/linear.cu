/* linear: y = x W^T. bf16 on tensor cores, float32 by the scalar contract.
 *
 * Weights are the 16-row operand of mma.sync m16n8k16, rows of x the 8-column operand, so one row is a tile with seven
 * empty columns and takes the same instruction as 512. A product takes 16 inputs that follow each other, ascending, with one
 * float32 accumulator an output. Row-parallel weights have K in up to 8 equal parts, added as a binary tree (n_parts depends
 * on n_in alone), others in one.
 *
 *     one part     a warp has its tiles of 16 outputs for itself
 *     parts        the warps of a block share K: warp w takes part w
 *
 * Weights are stored as lanes hold them: a warp reads 512 contiguous bytes a product. A lane brings its own 16 bytes of
 * weights and of rows into a ring of its warp, so no barrier stands in the loop. One read of the weights bounds the time up to
 * some 16 rows; then the rows of x, read again for each tile of outputs, do (more outputs a warp: fewer reads of x). No sum
 * depends on rows, tiles or blocks. Where there is wgmma, wide passes go through linear_wide.cu: other tiles, the same sums.
 *
 * float32: one thread an output, one fma chain a part: the bits of the CPU. It exists for comparisons, not for speed. */
#include "backend/cuda/linear_impl.h"

static __device__ __forceinline__ void mma(float d[4], uint4 a, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/* 16 bytes on their way to shared memory; zeros where there is nothing to read. */
static __device__ __forceinline__ void bring(void *to, const void *from, bool is_there)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(is_there ? 16 : 0) : "memory");
}

/* Weights are read once: they should not push rows of x out of the L2 cache. */
static __device__ __forceinline__ void bring_weight(void *to, const void *from, uint64_t policy)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "l"(policy) : "memory");
}

/* 8 inputs of a row from k on, some perhaps behind its end. */
static __device__ __forceinline__ uint4 load_odd(const uint16_t *row, int64_t k, int64_t n_in)
{
    uint32_t word[4];
    for (int i = 0; i < 4; i++) {
        uint32_t low = k + 2 * i < n_in ? row[k + 2 * i] : 0, high = k + 2 * i + 1 < n_in ? row[k + 2 * i + 1] : 0;
        word[i] = low | high << 16;
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

/* Place of 16 bytes in 8 rows of 32 inputs, so that both the copy and ldmatrix meet every bank once. */
static __device__ __forceinline__ int row_place(int row, int chunk)
{
    return row * 4 + (chunk ^ (row >> 1));
}

/* The row operands of the two products of a piece. */
static __device__ __forceinline__ uint4 load_rows(const uint4 *tile, int lane)
{
    uint4 x;
    uint32_t from = (uint32_t)__cvta_generic_to_shared(tile + row_place(lane % 8, lane / 8));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(from) : "memory");
    return x;
}

/* Parts as a binary tree; n_parts is 1, 2, 4 or 8. */
static __device__ __forceinline__ float tree_of(const float *sums, int n_parts, int stride, int at)
{
    float part[MAX_PARTS];
#pragma unroll
    for (int p = 0; p < MAX_PARTS; p++) part[p] = p < n_parts ? sums[p * stride + at] : 0;
#pragma unroll
    for (int step = 1; step < MAX_PARTS; step *= 2)
#pragma unroll
        for (int p = 0; p + step < MAX_PARTS; p += 2 * step)
            if (step < n_parts) part[p] = part[p] + part[p + step];
    return part[0];
}

/* All who share sums: a block, or a warp. */
template <bool BLOCK> static __device__ __forceinline__ void meet()
{
    if (BLOCK) __syncthreads();
    else __syncwarp();
}

static __device__ __forceinline__ void commit_copies()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* All but the newest LEFT groups are there, for the whole warp. */
template <int LEFT> static __device__ __forceinline__ void await_copies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
    __syncwarp();
}

/* MT tiles of 16 outputs (GATED: half of gate, half of up), NT tiles of 8 rows, STAGES steps of KP pieces on their way.
 * Weights do not depend on the kernel before: they set out before it ends. */
template <int MT, int NT, int KP, int STAGES, bool SPLIT, bool ALIGNED, bool GATED>
static __global__ void __launch_bounds__(256) linear_bf16(const __grid_constant__ LinearArgs args)
{
    extern __shared__ uint4 memory[]; /* ring [warps][STAGES][KP * (2 MT + NT)][32], later sums */
    enum { ITEMS = 2 * MT + NT };
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = blockDim.x / 32, group = SPLIT ? blockIdx.y : blockIdx.y * n_warps + warp;
    const int g = lane / 4, t = lane % 4, first_row = blockIdx.x * NT * 8, half = args.n_tiles / 2;
    const int n_pieces = SPLIT ? args.n_pieces / n_warps : args.n_pieces, first = SPLIT ? warp * n_pieces : 0, n_steps = n_pieces / KP;
    uint4 *ring = memory + warp * STAGES * KP * ITEMS * 32;
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));

    auto tile_at = [&](int m) { return GATED ? m % 2 * half + group * (MT / 2) + m / 2 : group * MT + m; };
    auto is_tile = [&](int m) { return GATED ? group * (MT / 2) + m / 2 < half : tile_at(m) < args.n_tiles; };
    const uint4 *weight[MT];
#pragma unroll
    for (int m = 0; m < MT; m++) weight[m] = tile_weights(args, is_tile(m) ? tile_at(m) : 0) + (int64_t)first * 64 + lane;
    auto bring_weights = [&](int step) {
#pragma unroll
        for (int k = 0; k < KP; k++) {
            uint4 *to = ring + (step % STAGES * KP + k) * ITEMS * 32 + lane;
#pragma unroll
            for (int m = 0; m < MT; m++) {
                bring_weight(to + 2 * m * 32, weight[m] + (int64_t)(step * KP + k) * 64, policy);
                bring_weight(to + (2 * m + 1) * 32, weight[m] + (int64_t)(step * KP + k) * 64 + 32, policy);
            }
        }
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
        if (i < n_steps) bring_weights(i);
    begin_kernel();

    const uint16_t *row = args.x + (int64_t)(first_row + g) * args.x_stride + (int64_t)first * TILE_K + 8 * t;
    auto bring_rows = [&](int step) {
#pragma unroll
        for (int k = 0; k < KP; k++) {
            int piece = step * KP + k;
            uint4 *to = ring + ((step % STAGES * KP + k) * ITEMS + 2 * MT) * 32 + row_place(g, t);
#pragma unroll
            for (int n = 0; n < NT; n++) {
                bool is_there = first_row + n * 8 + g < args.n_rows;
                const uint16_t *from = is_there ? row + (int64_t)n * 8 * args.x_stride + (int64_t)piece * TILE_K : args.x;
                int64_t at = (int64_t)(first + piece) * TILE_K + 8 * t;
                if (ALIGNED) bring(to + n * 32, from, is_there);
                else to[n * 32] = is_there ? load_odd(from - at, at, args.n_in) : make_uint4(0, 0, 0, 0);
            }
        }
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < n_steps) bring_rows(i);
        commit_copies();
    }

    /* A step is in registers while the one before is multiplied. */
    float acc[MT][NT][4] = {};
    uint4 w[2][KP][MT][2], x[2][KP][NT];
    auto load = [&](int to, int step) {
#pragma unroll
        for (int k = 0; k < KP; k++) {
            const uint4 *from = ring + (step % STAGES * KP + k) * ITEMS * 32;
#pragma unroll
            for (int m = 0; m < MT; m++) {
                w[to][k][m][0] = from[2 * m * 32 + lane];
                w[to][k][m][1] = from[(2 * m + 1) * 32 + lane];
            }
#pragma unroll
            for (int n = 0; n < NT; n++) x[to][k][n] = load_rows(from + (2 * MT + n) * 32, lane);
        }
    };
    auto multiply = [&](int from) {
#pragma unroll
        for (int k = 0; k < KP; k++)
#pragma unroll
            for (int side = 0; side < 2; side++)
#pragma unroll
                for (int n = 0; n < NT; n++)
#pragma unroll
                    for (int m = 0; m < MT; m++) {
                        const uint4 &r = x[from][k][n];
                        mma(acc[m][n], w[from][k][m][side], side ? r.z : r.x, side ? r.w : r.y);
                    }
    };
    auto turn = [&](int step) { /* `step` is in registers: brings one more, loads the next, multiplies */
        if (step + STAGES - 1 < n_steps) {
            bring_weights(step + STAGES - 1);
            bring_rows(step + STAGES - 1);
        }
        commit_copies();
        await_copies<STAGES - 2>();
    };
    await_copies<STAGES - 2>();
    load(0, 0);
    for (int step = 0; step < n_steps; step += 2) {
        turn(step);
        if (step + 1 < n_steps) load(1, step + 1);
        multiply(0);
        if (step + 1 >= n_steps) break;
        turn(step + 1);
        if (step + 2 < n_steps) load(0, step + 2);
        multiply(1);
    }

    enum { WIDE = MT * 16, PART = NT * 8 * WIDE, STEP = GATED ? 2 : 1, RING = STAGES * KP * ITEMS * 128 };
    float *sums = SPLIT ? (float *)memory : (float *)memory + warp * (RING > PART ? RING : PART); /* in place of the rings */
    meet<SPLIT>();
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sums[(SPLIT ? warp * PART : 0) + (n * 8 + 2 * t + e % 2) * WIDE + m * 16 + g + e / 2 * 8] = acc[m][n][e];
    meet<SPLIT>();
    for (int i = SPLIT ? threadIdx.x : lane; i < PART / STEP; i += SPLIT ? blockDim.x : 32) {
        int r = i / (WIDE / STEP), m = i % (WIDE / STEP) / 16 * STEP, at = r * WIDE + m * 16 + i % 16;
        if (first_row + r >= args.n_rows || !is_tile(m)) continue;
        float sum = tree_of(sums, SPLIT ? n_warps : 1, PART, at);
        if (GATED) put_gated(args, first_row + r, tile_at(m), i % 16, sum, tree_of(sums, SPLIT ? n_warps : 1, PART, at + 16));
        else put_sum(args, first_row + r, tile_at(m), i % 16, sum);
    }
}

template <int MT, int NT, int KP, int STAGES> static size_t shared_of(int n_warps)
{
    size_t ring = (size_t)STAGES * KP * (2 * MT + NT) * 32 * sizeof(uint4), sums = (size_t)NT * 8 * MT * 16 * sizeof(float);
    return n_warps * (ring > sums ? ring : sums);
}

template <int MT, int NT, int KP, int STAGES, bool SPLIT, bool ALIGNED, bool GATED>
static void launch_kernel(Device *d, const LinearArgs &args, int n_warps, size_t at_least)
{
    size_t shared = shared_of<MT, NT, KP, STAGES>(n_warps) > at_least ? shared_of<MT, NT, KP, STAGES>(n_warps) : at_least;
    int tiles = GATED ? args.n_tiles / 2 : args.n_tiles, wide = (GATED ? MT / 2 : MT) * (SPLIT ? 1 : n_warps);
    dim3 grid((args.n_rows + NT * 8 - 1) / (NT * 8), (tiles + wide - 1) / wide);
    auto kernel = linear_bf16<MT, NT, KP, STAGES, SPLIT, ALIGNED, GATED>;
    static size_t allowed;
    if (shared > allowed) CUDA_MUST(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    allowed = shared > allowed ? shared : allowed;
    launch(d, kernel, grid, 32 * n_warps, shared, args);
}

/* How blocks are spread: kernels start while the one before still holds places, and blocks of one long wave that were put
 * where there was room would end late. So a block asks for so much shared memory that only as many fit a multiprocessor as
 * its even share is. */
static size_t even_share(const Device *d, int blocks)
{
    int each = (blocks + d->n_sm - 1) / d->n_sm;
    return each <= 2 ? d->shared_bytes / (each + 1) + 1024 : 0;
}

/* Row-parallel weights: their K is shared by as many warps as there are parts. */
template <int MT, int NT, int STAGES> static void launch_split(Device *d, const LinearArgs &a, int n_parts, bool aligned)
{
    size_t share = even_share(d, (a.n_tiles + MT - 1) / MT * ((a.n_rows + NT * 8 - 1) / (NT * 8)));
    if (a.gated) launch_kernel<2, 4, 1, 3, true, false, true>(d, a, n_parts, 0); /* no model has such gates */
    else if (aligned) launch_kernel<MT, NT, 1, STAGES, true, true, false>(d, a, n_parts, share);
    else launch_kernel<MT, NT, 1, STAGES, true, false, false>(d, a, n_parts, 0);
}

/* Others: one block a multiprocessor if its warps suffice for all tiles, else blocks of eight. */
template <int MT, int NT, int KP, int STAGES, bool GATED> static void launch_whole(Device *d, const LinearArgs &a, bool aligned)
{
    int units = GATED ? a.n_tiles / 2 / (MT / 2) : (a.n_tiles + MT - 1) / MT, warps = (units + d->n_sm - 1) / d->n_sm;
    warps = warps < 8 ? warps : 8;
    while (warps > 1 && shared_of<MT, NT, KP, STAGES>(warps) > d->shared_bytes) warps--;
    size_t share = even_share(d, (units + warps - 1) / warps * ((a.n_rows + NT * 8 - 1) / (NT * 8)));
    if (aligned && a.n_pieces % KP == 0) launch_kernel<MT, NT, KP, STAGES, false, true, GATED>(d, a, warps, share);
    else if (aligned) launch_kernel<MT, NT, 1, 4, false, true, GATED>(d, a, 2, 0);
    else launch_kernel<MT, NT, 1, 4, false, false, GATED>(d, a, 2, 0);
}

static void run_whole(Device *d, const LinearArgs &a, bool aligned)
{
    bool is_narrow = a.n_tiles < 6 * d->n_sm; /* few outputs: more warps share the reading */
    if (a.gated) {
        if (a.n_rows <= 8) launch_whole<2, 1, 2, 4, true>(d, a, aligned);
        else if (a.n_rows <= 16) launch_whole<2, 2, 2, 4, true>(d, a, aligned);
        else launch_whole<2, 4, 1, 5, true>(d, a, aligned);
    } else if (a.n_rows <= 8 && is_narrow) launch_whole<1, 1, 2, 16, false>(d, a, aligned);
    else if (a.n_rows <= 8) launch_whole<1, 1, 2, 4, false>(d, a, aligned);
    else if (a.n_rows <= 16 && is_narrow) launch_whole<1, 2, 2, 8, false>(d, a, aligned);
    else if (a.n_rows <= 16) launch_whole<2, 2, 1, 4, false>(d, a, aligned);
    else launch_whole<2, 4, 1, 5, false>(d, a, aligned);
}

static LinearArgs args_of(Tensor x, const LinearJob *jobs, int n_jobs)
{
    const Weight *w = jobs[0].weight;
    LinearArgs a = {};
    a.n_jobs = n_jobs;
    for (int j = 0; j < n_jobs; j++) {
        const Weight *wj = jobs[j].weight;
        MUST(wj->n_in == w->n_in && wj->contract.k_parts == w->contract.k_parts);
        a.job[j] = { (const uint4 *)wj->data, (float *)jobs[j].out.data, jobs[j].out.stride[0], (int32_t)wj->n_out, a.n_tiles };
        a.n_tiles += (int32_t)((wj->n_out + TILE_ROWS - 1) / TILE_ROWS);
    }
    a.n_rows = (int32_t)x.shape[0];
    a.n_in = (int32_t)w->n_in;
    a.n_pieces = (int32_t)(padded_k(w->n_in) / TILE_K);
    a.x = (const uint16_t *)x.data;
    a.x_stride = x.stride[0];
    return a;
}

static void run_bf16(Device *d, const LinearArgs &a, int parts)
{
    bool aligned = a.n_in % TILE_K == 0 && (uintptr_t)a.x % 16 == 0 && a.x_stride % 8 == 0;
    bool is_large = d->shared_bytes >= shared_of<4, 4, 1, 3>(MAX_PARTS);
    if (aligned && linear_wide(d, a, parts)) return;
    if (parts == 1) run_whole(d, a, aligned);
    else if (a.n_rows <= 8) launch_split<1, 1, 6>(d, a, parts, aligned);
    else if (a.n_rows <= 16) launch_split<2, 2, 4>(d, a, parts, aligned);
    else if (a.n_rows <= 32) launch_split<2, 4, 3>(d, a, parts, aligned);
    else if (is_large) launch_split<4, 4, 3>(d, a, parts, aligned);
    else launch_split<2, 4, 3>(d, a, parts, aligned);
}

/* ---- float32 ---- */

static __global__ void linear_f32(float *out, int64_t out_stride, const float *w, int n_out, int64_t n_in, int n_parts,
                                  const float *x, int64_t x_stride, int n_rows)
{
    begin_kernel();
    int n = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 8 + threadIdx.y;
    if (n >= n_out || r >= n_rows) return;
    const float *column = w + (int64_t)blockIdx.x * n_in * TILE_ROWS + threadIdx.x, *row = x + r * x_stride;
    float part[MAX_PARTS];
    int64_t per_part = n_in / n_parts;
#pragma unroll
    for (int p = 0; p < MAX_PARTS; p++) {
        float sum = 0;
        if (p < n_parts)
            for (int64_t k = p * per_part; k < (p + 1) * per_part; k++) sum = fmaf(row[k], column[k * TILE_ROWS], sum);
        part[p] = sum;
    }
#pragma unroll
    for (int step = 1; step < MAX_PARTS; step *= 2)
#pragma unroll
        for (int p = 0; p + step < MAX_PARTS; p += 2 * step)
            if (step < n_parts) part[p] = part[p] + part[p + step];
    out[r * out_stride + n] = part[0];
}

static void run_f32(Device *d, Tensor x, const LinearJob *job)
{
    const Weight *w = job->weight;
    dim3 grid((unsigned)((w->n_out + 15) / 16), (unsigned)((x.shape[0] + 7) / 8));
    launch(d, linear_f32, grid, dim3(16, 8), 0, (float *)job->out.data, job->out.stride[0], (const float *)w->data,
                                                    (int)w->n_out, w->n_in, w->contract.k_parts, (const float *)x.data,
                                                    x.stride[0], (int)x.shape[0]);
}

static void linear(Stream *st, Tensor x, const LinearJob *jobs, int n_jobs)
{
    Device *d = device_of(st);
    MUST(n_jobs <= MAX_JOBS);
    if (x.shape[0] <= 0 || n_jobs <= 0) return;
    count_rows(d, d->counts->linear, x.shape[0]);
    for (int j = 0, n; j < n_jobs && jobs[0].weight->contract.mode == MATH_BF16; j += n) { /* those of as many parts together */
        for (n = 1; j + n < n_jobs && jobs[j + n].weight->contract.k_parts == jobs[j].weight->contract.k_parts;) n++;
        run_bf16(d, args_of(x, jobs + j, n), jobs[j].weight->contract.k_parts);
    }
    if (jobs[0].weight->contract.mode != MATH_BF16)
        for (int j = 0; j < n_jobs; j++) run_f32(d, x, &jobs[j]);
    fault(d, "linear", jobs[0].out, x.shape[0]);
}

static void linear_silu_mul(Stream *st, Tensor out, Tensor x, const struct Weight *gate, const struct Weight *up)
{
    Device *d = device_of(st);
    int64_t n_rows = x.shape[0], n_out = gate->n_out;
    if (n_rows <= 0) return;
    count_rows(d, d->counts->linear, n_rows);
    LinearJob jobs[2] = { { tensor_2d(nullptr, DT_F32, n_rows, n_out), gate }, { tensor_2d(nullptr, DT_F32, n_rows, n_out), up } };
    if (gate->contract.mode == MATH_BF16) {
        LinearArgs a = args_of(x, jobs, 2);
        a.gated = (uint16_t *)out.data;
        a.gated_stride = out.stride[0];
        run_bf16(d, a, gate->contract.k_parts);
    } else {
        float *sums = (float *)scratch(d, (size_t)(2 * n_rows * n_out) * sizeof(float));
        for (int j = 0; j < 2; j++) {
            jobs[j].out.data = sums + j * n_rows * n_out;
            run_f32(d, x, &jobs[j]);
        }
        cuda_run_silu_mul(d, out, jobs[0].out, jobs[1].out);
    }
    fault(d, "linear", out, n_rows);
}

/* ---- weights ---- */

Contract cuda_contract(Contract c, int64_t n_in)
{
    if (c.mode != MATH_BF16) return c;
    c.k_step = 16;
    if (c.k_parts == 1) return c; /* not row-parallel */
    for (c.k_parts = MAX_PARTS; c.k_parts > 1 && n_in % (c.k_parts * TILE_K) != 0;) c.k_parts /= 2;
    return c;
}

size_t cuda_weight_bytes(int64_t n_out, int64_t n_in, const Contract *c)
{
    size_t rows = (size_t)((n_out + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS);
    return c->mode == MATH_BF16 ? rows * (size_t)padded_k(n_in) * 2 : rows * (size_t)n_in * 4;
}

static __global__ void place_rows(void *to, const void *from, int64_t first, int64_t n, int64_t n_in, int is_bf16)
{
    begin_kernel();
    int64_t r = blockIdx.y;
    for (int64_t k = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; k < n_in; k += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = first + r;
        if (is_bf16) ((uint16_t *)to)[bf16_place(n_in, row, k)] = ((const uint16_t *)from)[r * n_in + k];
        else ((float *)to)[(row / TILE_ROWS * n_in + k) * TILE_ROWS + row % TILE_ROWS] = ((const float *)from)[r * n_in + k];
    }
}

enum { STAGING_BYTES = 16 << 20 };

void cuda_put_rows(Device *d, const Weight *w, int64_t first, int64_t n, const void *rows)
{
    size_t row_bytes = (size_t)w->n_in * type_bytes(w->contract.in);
    int64_t most = (int64_t)(STAGING_BYTES / row_bytes);
    MUST(most > 0);
    if (most > 32768) most = 32768;
    if (!d->staging) {
        CUDA_MUST(cudaMallocHost(&d->staging, STAGING_BYTES));
        CUDA_MUST(cudaMalloc(&d->raw, STAGING_BYTES));
    }
    for (int64_t at = 0; at < n; at += most) {
        int64_t take = n - at < most ? n - at : most;
        memcpy(d->staging, (const char *)rows + (size_t)at * row_bytes, (size_t)take * row_bytes);
        CUDA_MUST(cudaMemcpyAsync(d->raw, d->staging, (size_t)take * row_bytes, cudaMemcpyHostToDevice, d->stream));
        dim3 grid((unsigned)((w->n_in + 255) / 256 < 64 ? (w->n_in + 255) / 256 : 64), (unsigned)take);
        launch(d, place_rows, grid, 256, 0, w->data, d->raw, first + at, take, w->n_in, w->contract.mode == MATH_BF16);
        CUDA_MUST(cudaStreamSynchronize(d->stream));
    }
}

static __global__ void widen_row(float *out, DeviceWeight w, int64_t row)
{
    begin_kernel();
    for (int64_t k = threadIdx.x; k < w.n_in; k += blockDim.x) out[k] = weight_at(w, row, k);
}

void cuda_get_row(Device *d, const Weight *w, int64_t row, float *out)
{
    float *wide = (float *)scratch(d, (size_t)w->n_in * sizeof(float));
    launch(d, widen_row, 1, 256, 0, wide, weight_of(w), row);
    CUDA_MUST(cudaMemcpyAsync(out, wide, (size_t)w->n_in * sizeof(float), cudaMemcpyDeviceToHost, d->stream));
    CUDA_MUST(cudaStreamSynchronize(d->stream));
}

void cuda_add_linear(Ops *ops)
{
    ops->linear = linear;
    ops->linear_silu_mul = linear_silu_mul;
}
