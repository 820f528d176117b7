/* The memory of cache groups: how many bytes a group takes, and taking them. Engine thread only. */
#pragma once

#include "backend/backend.h"
#include "cache/block_table.h"
#include "cache/group.h"

/* What all groups of an engine share. */
typedef struct CacheShape {
    int32_t n_slots, n_blocks, block_size; /* n_blocks without the dump block */
} CacheShape;

/* Bytes of one group; SIZE_MAX when that does not fit into a size_t. */
size_t group_bytes(const CacheGroup *group, const CacheShape *shape);
/* Bytes that one more block, or one more slot, costs over n groups. */
size_t groups_block_bytes(const CacheGroup *groups, int n, int32_t block_size);
size_t groups_slot_bytes(const CacheGroup *groups, int n);
/* Most tentative entries that any of n groups wants behind the committed ones. */
int32_t groups_spare(const CacheGroup *groups, int n);

/* Takes the memory of n groups into memory[MAX_GROUPS]; per-token groups share `table`. All or nothing. ERR_UNSUPPORTED:
 * a group with several tokens an entry. */
Status groups_alloc(CacheMemory *memory, const CacheGroup *groups, int n, const CacheShape *shape, const BlockTable *table,
                    Error *err);
void   groups_free(CacheMemory *memory, int n, Backend *backend);
