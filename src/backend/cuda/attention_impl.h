/* What the files of attention share: one call as kernels see it. */
#pragma once

#include "backend/cuda/cuda_impl.h"

struct AttentionArgs {
    float         *out, *partial; /* partial [row][head][slot][head_dim + 2]: largest score, sum of p, sums of p v */
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

/* Keys of a row's own path come through its path, all others through the block table. */
static __device__ __forceinline__ int32_t key_store(const AttentionArgs &a, const BatchSeq &seq, int32_t row, int32_t j)
{
    if (seq.certain || j < seq.n_committed) return kv_store_at(a.kv, seq.slot, j);
    return a.store[a.batch.path[(int64_t)row * MAX_DEPTH + j - seq.n_committed]];
}

static __device__ __forceinline__ void put_out(const AttentionArgs &a, int32_t row, int32_t head, int32_t d, float y)
{
    a.out[row * a.out_row + head * a.out_head + d] = y;
    if (a.rounded) a.rounded[row * a.rounded_row + (int64_t)head * a.kv.head_dim + d] = to_bf16(y);
}

/* Attention on tensor cores (attention_tiles.cu). */
enum TilesMode { BY_TILE, BY_SPAN, WHOLE };
struct TilesArgs {
    AttentionArgs a;
    TilesMode     mode;
    int32_t       n_slots;                 /* of the body; the tail's is behind them */
    int32_t       rows_per_block, per_seq; /* blocks of rows a sequence has; 0: they differ */
    int32_t       pairs, n_blocks;         /* of row and head a block takes; blocks of rows in the batch */
};
bool      are_tiles(const AttentionArgs &a);
TilesArgs plan_tiles(Device *d, const AttentionArgs &a, const Batch *batch, int32_t n_rows);
void      run_tiles(Device *d, const TilesArgs &t, int32_t n_rows);
bool      attend_body_wide(Device *d, const TilesArgs &t); /* false: not this device or not this shape */
