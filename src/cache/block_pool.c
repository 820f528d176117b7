/* Block pool: a stack of free numbers beside an array of reference counts.
 *
 *     free (refs 0) ──take──> in use (refs >= 1) ──last give──> free
 *
 * Always: n_free + blocks with references == n_blocks, and no number lies in the stack twice. Handing the block
 * given last out first keeps the working set small. */
#include "cache/block_pool.h"

#include "base/memory.h"

struct BlockPool {
    int32_t n_blocks, n_free;
    int32_t *free_ids; /* [n_blocks], the first n_free of them are free; the last of these goes next */
    int32_t *refs;     /* [n_blocks + 1]; refs[0] belongs to the dump block and stays 0 */
};

Status block_pool_open(BlockPool **out, int32_t n_blocks, Error *err)
{
    CHECK(n_blocks >= 1);
    *out = NULL;
    BlockPool *p = mem_alloc(sizeof *p);
    if (p) {
        p->free_ids = mem_alloc_array((size_t)n_blocks, sizeof p->free_ids[0]);
        p->refs = mem_alloc_array((size_t)n_blocks + 1, sizeof p->refs[0]);
    }
    if (!p || !p->free_ids || !p->refs) {
        block_pool_close(p);
        return error_set(err, ERR_NOMEM, "no memory for the book-keeping of %d cache blocks", n_blocks);
    }
    p->n_blocks = p->n_free = n_blocks;
    for (int32_t i = 0; i < n_blocks; i++) p->free_ids[i] = n_blocks - i;
    *out = p;
    return OK;
}

void block_pool_close(BlockPool *p)
{
    if (!p) return;
    mem_free(p->free_ids);
    mem_free(p->refs);
    mem_free(p);
}

Status block_pool_take(BlockPool *p, int32_t n, int32_t *ids)
{
    CHECK(n >= 0);
    if (n > p->n_free) return ERR_FULL;
    for (int32_t i = 0; i < n; i++) {
        ids[i] = p->free_ids[--p->n_free];
        p->refs[ids[i]] = 1;
    }
    return OK;
}

void block_pool_share(BlockPool *p, int32_t id)
{
    CHECK(id >= 1 && id <= p->n_blocks && p->refs[id] >= 1);
    p->refs[id]++;
}

void block_pool_give(BlockPool *p, const int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        CHECK(ids[i] >= 1 && ids[i] <= p->n_blocks && p->refs[ids[i]] >= 1);
        if (--p->refs[ids[i]] == 0) p->free_ids[p->n_free++] = ids[i];
    }
}

int32_t block_pool_total(const BlockPool *p)
{
    return p->n_blocks;
}

int32_t block_pool_free_count(const BlockPool *p)
{
    return p->n_free;
}

int32_t block_pool_references(const BlockPool *p, int32_t id)
{
    CHECK(id >= 0 && id <= p->n_blocks);
    return p->refs[id];
}

bool block_pool_check(const BlockPool *p)
{
    int32_t n_used = 0;
    for (int32_t id = 1; id <= p->n_blocks; id++) {
        if (p->refs[id] < 0) return false;
        n_used += p->refs[id] > 0;
    }
    for (int32_t i = 0; i < p->n_free; i++) {
        int32_t id = p->free_ids[i];
        if (id < 1 || id > p->n_blocks || p->refs[id] != 0) return false;
        for (int32_t j = 0; j < i; j++)
            if (p->free_ids[j] == id) return false;
    }
    return p->refs[0] == 0 && n_used + p->n_free == p->n_blocks;
}
