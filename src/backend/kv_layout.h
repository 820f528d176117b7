/* How keys and values lie in a cache, said once: kernels, cache groups and the memory plan all count by it.
 *
 * An entry is a key row and a value row for each head. A block of one layer holds block_size of them:
 *
 *     keys    head 0: [block_size] rows | [block_size] scales,  head 1: ...
 *     values  likewise
 *
 * Rows are head_dim numbers of the cache's type. Only F8_E4M3 has scales, a float32 a row; they stand apart, so that
 * rows begin where vectors and cache lines do, and beside their rows, so that who reads a head reads on. */
#pragma once

#include "tensor/dtype.h"

#include <stdbool.h>

static inline bool kv_has_scales(DType t)
{
    return t == DT_F8_E4M3;
}

/* Of one head. Codes are filled up to 4 bytes, so that scales can lie behind them. */
static inline size_t kv_row_bytes(DType t, int32_t head_dim)
{
    size_t bytes = (size_t)head_dim * dtype_bytes(t);
    return kv_has_scales(t) ? (bytes + 3) / 4 * 4 : bytes;
}

static inline size_t kv_scale_bytes(DType t)
{
    return kv_has_scales(t) ? sizeof(float) : 0;
}

/* Rows and scales of one head in a block, keys or values. */
static inline size_t kv_head_bytes(DType t, int32_t head_dim, int32_t block_size)
{
    return (size_t)block_size * (kv_row_bytes(t, head_dim) + kv_scale_bytes(t));
}

/* Key and value of all heads; a block of one layer takes block_size times as much. */
static inline size_t kv_entry_bytes(DType t, int32_t n_heads, int32_t head_dim)
{
    return 2 * (size_t)n_heads * kv_head_bytes(t, head_dim, 1);
}

/* Place of an entry of a slot in every per-token group: the "store" of a row. block_table [n_slots][max_blocks]. */
static inline int32_t kv_store_of(const int32_t *block_table, int32_t max_blocks, int32_t block_size, int32_t slot,
                                  int32_t entry)
{
    int32_t block = block_table[(int64_t)slot * max_blocks + entry / block_size];
    return block * block_size + entry % block_size;
}
