/* What linear.cu and linear_wide.cu share: the matrices of one call as kernels see them.
 *
 * Tiles of 16 outputs of all jobs follow each other. A gated call has two jobs of one shape, gate and up, and one output
 * silu(gate) * up. */
#pragma once

#include "backend/cuda/cuda_impl.h"

enum { MAX_JOBS = 8, MAX_PARTS = 8 };

struct LinearArgs {
    struct {
        const uint4 *weight;
        float       *out;
        int64_t      out_stride;
        int32_t      n_out, first_tile;
    } job[MAX_JOBS];
    int32_t         n_jobs, n_tiles, n_rows, n_in, n_pieces; /* pieces of 32 inputs, padded */
    const uint16_t *x;
    int64_t         x_stride;
    uint16_t       *gated; /* NULL: every job has its own output */
    int64_t         gated_stride;
};

static __device__ __forceinline__ int job_of(const LinearArgs &a, int tile)
{
    int j = 0;
    while (j + 1 < a.n_jobs && tile >= a.job[j + 1].first_tile) j++;
    return j;
}

static __device__ __forceinline__ const uint4 *tile_weights(const LinearArgs &a, int tile)
{
    int j = job_of(a, tile);
    return a.job[j].weight + (int64_t)(tile - a.job[j].first_tile) * a.n_pieces * 64;
}

static __device__ __forceinline__ void put_sum(const LinearArgs &a, int row, int tile, int i, float y)
{
    int j = job_of(a, tile), n = (tile - a.job[j].first_tile) * TILE_ROWS + i;
    if (n < a.job[j].n_out) a.job[j].out[(int64_t)row * a.job[j].out_stride + n] = y;
}

static __device__ __forceinline__ void put_gated(const LinearArgs &a, int row, int tile, int i, float gate, float up)
{
    int n = tile * TILE_ROWS + i;
    if (n < a.job[0].n_out) a.gated[(int64_t)row * a.gated_stride + n] = to_bf16(f_silu(gate) * up);
}

/* Passes of any width on a device with wgmma; false: not this device or not this shape. */
bool linear_wide(Device *d, const LinearArgs &args, int n_parts);
