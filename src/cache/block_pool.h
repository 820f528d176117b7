/* Blocks of the paged cache groups, by number. One pool serves every per-token group of an engine: a block number
 * means the same tokens in all of them. Block 0 is the dump block, written by padding rows and never handed out.
 * Engine thread only; allocates only in open. */
#pragma once

#include "base/error.h"

#include <stdint.h>

typedef struct BlockPool BlockPool;

/* Blocks 1 .. n_blocks. */
Status block_pool_open(BlockPool **out, int32_t n_blocks, Error *err);
void   block_pool_close(BlockPool *p);

/* Takes n blocks, each with one reference, and writes their numbers to ids[n].
 * All or nothing: ERR_FULL leaves the pool as it was. */
Status block_pool_take(BlockPool *p, int32_t n, int32_t *ids);

/* One more reference, for a second owner of the same tokens. */
void block_pool_share(BlockPool *p, int32_t id);

/* Drops one reference of each; a block without any is free again. */
void block_pool_give(BlockPool *p, const int32_t *ids, int32_t n);

int32_t block_pool_total(const BlockPool *p);
int32_t block_pool_free_count(const BlockPool *p);
int32_t block_pool_references(const BlockPool *p, int32_t id);

/* Counts everything again: no block is both free and referenced, or neither. For tests. */
bool block_pool_check(const BlockPool *p);
