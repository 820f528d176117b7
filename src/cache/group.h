/* Cache groups: what a model or a drafter keeps per token or per sequence. Pools, prefix reuse and
 * the memory plan know groups and nothing else.
 *
 * Per token: memory is blocks of block_size entries; a sequence's block table lists its blocks, and
 * entry e of slot s lies at block_table[s][e / block_size] * block_size + e % block_size: the "store"
 * of a row. Entry number = position while a token is committed; tentative rows of a tree use the
 * entries behind the committed ones, in row order, until commit moves the accepted path.
 * Per sequence: one entry per slot, e.g. a recurrent state. A slot whose sequence has no committed
 * tokens reads as zeros whatever lies there: kernels look at n_committed. */
#pragma once

#include "backend/batch.h"
#include "backend/kv_layout.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum CacheKind { CACHE_PER_TOKEN, CACHE_PER_SEQ } CacheKind;

typedef struct CacheGroup {
    const char *name;             /* kv, mtp_kv, dflash_kv, index_keys, gdn_state, conv_state ... */
    CacheKind   kind;
    int32_t     tokens_per_entry; /* 1; 4 for pooled index keys */
    int32_t     window;           /* 0 = the whole prefix is needed to resume, else the last so many */
    int32_t     spare;            /* tentative entries behind n_committed while a tree is in flight */
    int32_t     n_layers;         /* layers that share the group's block table */
    size_t      entry_bytes;      /* one entry of one layer, this rank, its share of scales included */
    bool        in_prefix;        /* kept for later prompts (by block, or by snapshot if PER_SEQ) */
} CacheGroup;

/* Memory of a whole group as the engine allocated it. Layer l's part starts at data + l * layer_bytes.
 *   PER_TOKEN  layer_bytes = n_blocks * block_size * entry_bytes; the block table is per slot
 *   PER_SEQ    layer_bytes = n_slots * entry_bytes;               block_table NULL */
typedef struct CacheMemory {
    void          *data;
    size_t         layer_bytes;
    int32_t        block_size;    /* entries a block */
    int32_t        max_blocks;    /* row length of block_table */
    const int32_t *block_table;   /* [n_slots][max_blocks], block 0 is the dump block (padding) */
} CacheMemory;

/* The store of an entry of a per-token group. */
static inline int32_t cache_store(const CacheMemory *m, int32_t slot, int32_t entry)
{
    return kv_store_of(m->block_table, m->max_blocks, m->block_size, slot, entry);
}
