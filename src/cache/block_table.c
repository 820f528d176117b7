/* Block tables: rows of block numbers that grow and shrink at their end.
 *
 *     slot 2:  [ 17 | 4 | 9 | 0 | 0 ]     n_used 3: entries 0 .. 3 * block_size - 1 may be written
 *
 * Always: the first n_used places of a row are referenced blocks, all others are the dump block, so a kernel
 * that runs past a sequence's end reads rubbish, never another sequence. */
#include "cache/block_table.h"

#include "base/memory.h"

static int32_t max_blocks_of(const BlockTableShape *shape)
{
    return (int32_t)(((int64_t)shape->max_entries + shape->block_size - 1) / shape->block_size);
}

size_t block_table_bytes(const BlockTableShape *shape)
{
    size_t rows = (size_t)shape->n_slots * ((size_t)max_blocks_of(shape) + 1) * sizeof(int32_t);
    return rows + ((size_t)shape->n_blocks * 2 + 1) * sizeof(int32_t); /* the pool's two arrays */
}

Status block_table_open(BlockTable *t, Backend *backend, const BlockTableShape *shape, Error *err)
{
    *t = (BlockTable){ .backend = backend,
                       .n_slots = shape->n_slots,
                       .block_size = shape->block_size,
                       .max_blocks = max_blocks_of(shape) };
    Status s = block_pool_open(&t->pool, shape->n_blocks, err);
    if (s) return s;
    t->n_used = mem_alloc_array((size_t)t->n_slots, sizeof t->n_used[0]);
    t->blocks = backend_alloc(backend, (size_t)t->n_slots * (size_t)t->max_blocks * sizeof t->blocks[0]);
    if (t->n_used && t->blocks) return OK;
    block_table_close(t);
    return error_set(err, ERR_NOMEM, "no memory for the block tables of %d sequences", shape->n_slots);
}

void block_table_close(BlockTable *t)
{
    block_pool_close(t->pool);
    mem_free(t->n_used);
    if (t->blocks) backend_free(t->backend, t->blocks);
    *t = (BlockTable){ 0 };
}

int32_t block_table_blocks_for(const BlockTable *t, int32_t n_entries)
{
    return (int32_t)(((int64_t)n_entries + t->block_size - 1) / t->block_size);
}

static int32_t *row_of(const BlockTable *t, int32_t slot)
{
    CHECK(slot >= 0 && slot < t->n_slots);
    return t->blocks + (size_t)slot * (size_t)t->max_blocks;
}

Status block_table_reserve(BlockTable *t, int32_t slot, int32_t n_entries)
{
    int32_t *row = row_of(t, slot), want = block_table_blocks_for(t, n_entries), have = t->n_used[slot];
    CHECK(want <= t->max_blocks);
    if (want <= have) return OK;
    if (block_pool_take(t->pool, want - have, row + have)) return ERR_FULL;
    t->n_used[slot] = want;
    return OK;
}

void block_table_trim(BlockTable *t, int32_t slot, int32_t n_entries)
{
    int32_t *row = row_of(t, slot), keep = block_table_blocks_for(t, n_entries), have = t->n_used[slot];
    if (keep >= have) return;
    block_pool_give(t->pool, row + keep, have - keep);
    for (int32_t i = keep; i < have; i++) row[i] = 0;
    t->n_used[slot] = keep;
}

static int32_t count_in_rows(const BlockTable *t, int32_t block)
{
    int32_t n = 0;
    for (int32_t slot = 0; slot < t->n_slots; slot++)
        for (int32_t i = 0; i < t->n_used[slot]; i++) n += row_of(t, slot)[i] == block;
    return n;
}

bool block_table_check(const BlockTable *t)
{
    if (!block_pool_check(t->pool)) return false;
    for (int32_t slot = 0; slot < t->n_slots; slot++) {
        if (t->n_used[slot] < 0 || t->n_used[slot] > t->max_blocks) return false;
        for (int32_t i = t->n_used[slot]; i < t->max_blocks; i++)
            if (row_of(t, slot)[i] != 0) return false;
    }
    for (int32_t block = 0; block <= block_pool_total(t->pool); block++)
        if (count_in_rows(t, block) != block_pool_references(t->pool, block)) return false;
    return true;
}
