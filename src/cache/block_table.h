/* Block tables: which blocks hold the entries of which slot. One table for all per-token groups, because they
 * advance together. The rows lie in backend memory, where kernels read them. Engine thread only. */
#pragma once

#include "backend/backend.h"
#include "backend/kv_layout.h"
#include "cache/block_pool.h"

typedef struct BlockTable {
    Backend   *backend;  /* borrowed */
    BlockPool *pool;     /* owned */
    int32_t    n_slots, max_blocks, block_size;
    int32_t   *blocks;   /* [n_slots][max_blocks] backend memory; unused places are 0, the dump block */
    int32_t   *n_used;   /* [n_slots] blocks each slot holds */
} BlockTable;

typedef struct BlockTableShape {
    int32_t n_slots, n_blocks, block_size;
    int32_t max_entries; /* of one slot, tentative ones included */
} BlockTableShape;

size_t block_table_bytes(const BlockTableShape *shape); /* what open takes; for the plan */
Status block_table_open(BlockTable *t, Backend *backend, const BlockTableShape *shape, Error *err);
void   block_table_close(BlockTable *t); /* copes with a zeroed one */

/* Blocks for entries [0, n_entries) of a slot. ERR_FULL leaves slot and pool as they were. */
Status block_table_reserve(BlockTable *t, int32_t slot, int32_t n_entries);
/* Gives back the blocks behind entry n_entries - 1. */
void   block_table_trim(BlockTable *t, int32_t slot, int32_t n_entries);

int32_t block_table_blocks_for(const BlockTable *t, int32_t n_entries);

/* Where an entry lies in every per-token group: the "store" of a row. */
static inline int32_t block_table_store(const BlockTable *t, int32_t slot, int32_t entry)
{
    return kv_store_of(t->blocks, t->max_blocks, t->block_size, slot, entry);
}

/* Pool and tables agree: every block belongs to as many slots as it has references, unused places are 0. For tests. */
bool block_table_check(const BlockTable *t);
