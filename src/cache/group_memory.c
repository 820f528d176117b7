/* Memory of cache groups: layer after layer, each a run of blocks or of slots. Sizes come from a model's config, so
 * every product is checked: an absurd config is a sentence, not a small allocation. */
#include "cache/group_memory.h"

#include "base/memory.h"

/* Entries of one layer of the group. */
static bool layer_bytes(const CacheGroup *g, const CacheShape *shape, size_t *out)
{
    size_t entries = (size_t)shape->n_slots;
    if (g->kind == CACHE_PER_TOKEN && !size_mul((size_t)shape->n_blocks + 1, (size_t)shape->block_size, &entries))
        return false;
    return size_mul(entries, g->entry_bytes, out);
}

size_t group_bytes(const CacheGroup *group, const CacheShape *shape)
{
    size_t layer, all;
    return layer_bytes(group, shape, &layer) && size_mul(layer, (size_t)group->n_layers, &all) ? all : SIZE_MAX;
}

static size_t entries_bytes(const CacheGroup *groups, int n, CacheKind kind)
{
    size_t sum = 0;
    for (int i = 0; i < n; i++)
        if (groups[i].kind == kind) sum += groups[i].entry_bytes * (size_t)groups[i].n_layers;
    return sum;
}

size_t groups_block_bytes(const CacheGroup *groups, int n, int32_t block_size)
{
    return entries_bytes(groups, n, CACHE_PER_TOKEN) * (size_t)block_size;
}

size_t groups_slot_bytes(const CacheGroup *groups, int n)
{
    return entries_bytes(groups, n, CACHE_PER_SEQ);
}

int32_t groups_spare(const CacheGroup *groups, int n)
{
    int32_t spare = 0;
    for (int i = 0; i < n; i++)
        if (groups[i].kind == CACHE_PER_TOKEN && groups[i].spare > spare) spare = groups[i].spare;
    return spare;
}

static Status group_alloc(CacheMemory *out, const CacheGroup *g, const CacheShape *shape, const BlockTable *table,
                          Error *err)
{
    size_t layer, all = group_bytes(g, shape);
    if (g->tokens_per_entry > 1)
        return error_set(err, ERR_UNSUPPORTED, "cache group %s holds %d tokens an entry; only 1 is supported", g->name,
                         g->tokens_per_entry);
    void *data = all < SIZE_MAX && layer_bytes(g, shape, &layer) ? backend_alloc_device(table->backend, all) : NULL;
    if (!data) return error_set(err, ERR_NOMEM, "no memory for the cache group %s of %zu bytes", g->name, all);
    *out = (CacheMemory){ .data = data, .layer_bytes = layer };
    if (g->kind != CACHE_PER_TOKEN) return OK;
    out->block_size = shape->block_size;
    out->max_blocks = table->max_blocks;
    out->block_table = table->blocks;
    return OK;
}

Status groups_alloc(CacheMemory *memory, const CacheGroup *groups, int n, const CacheShape *shape,
                    const BlockTable *table, Error *err)
{
    for (int i = 0; i < n; i++) {
        Status s = group_alloc(&memory[i], &groups[i], shape, table, err);
        if (!s) continue;
        groups_free(memory, i, table->backend);
        return s;
    }
    return OK;
}

void groups_free(CacheMemory *memory, int n, Backend *backend)
{
    for (int i = 0; i < n; i++) {
        if (memory[i].data) backend_free(backend, memory[i].data);
        memory[i] = (CacheMemory){ 0 };
    }
}
