/* Where keys and values of a view lie (backend/kv_layout.h has the layout). A store is block * block_size + place in
 * the block; a position is an entry of the sequence's block table. */
#pragma once

#include "backend/batch.h"
#include "backend/kv_layout.h"

/* Codes of an F8_E4M3 cache enter sums as number / 256: the half-precision number with the code's bits, exact whatever
 * the thread does to denormals. Their scales enter as scale * 256. */
#define KV_CODE_UNIT 256.0f

static inline int32_t kv_store_at(const KvView *view, int32_t slot, int32_t entry)
{
    return kv_store_of(view->block_table, view->max_blocks, view->block_size, slot, entry);
}

static inline int64_t kv_view_row_bytes(const KvView *view)
{
    return (int64_t)kv_row_bytes(view->dtype, view->head_dim);
}

/* From a key, or its scale, to its value's. */
static inline int64_t kv_to_value(const KvView *view)
{
    return view->n_heads * (int64_t)kv_head_bytes(view->dtype, view->head_dim, view->block_size);
}

/* Keys of one head in the block of a store. */
static inline char *kv_head_keys(const KvView *view, int32_t store, int32_t head)
{
    int64_t block = store / view->block_size, head_bytes = (int64_t)kv_head_bytes(view->dtype, view->head_dim, view->block_size);
    return (char *)view->data + (2 * block * view->n_heads + head) * head_bytes;
}

static inline void *kv_key(const KvView *view, int32_t store, int32_t head)
{
    return kv_head_keys(view, store, head) + store % view->block_size * kv_view_row_bytes(view);
}

static inline void *kv_value(const KvView *view, int32_t store, int32_t head)
{
    return (char *)kv_key(view, store, head) + kv_to_value(view);
}

/* Only where kv_has_scales(). The scales of a block's later places follow. */
static inline float *kv_key_scale(const KvView *view, int32_t store, int32_t head)
{
    return (float *)(void *)(kv_head_keys(view, store, head) + view->block_size * kv_view_row_bytes(view)) + store % view->block_size;
}

static inline float *kv_value_scale(const KvView *view, int32_t store, int32_t head)
{
    return (float *)(void *)((char *)kv_key_scale(view, store, head) + kv_to_value(view));
}

/* The other sequences are padding up to the bucket's size: without rows, or with rows that belong to nobody. */
static inline bool batch_seq_is_real(const Batch *batch, const BatchSeq *seq)
{
    return seq->n_rows > 0 && batch->seq[seq->first_row] >= 0;
}

/* Row before `row` on its path; -1 = the last committed token. Rows of a certain sequence are a line. */
static inline int32_t batch_parent(const Batch *batch, const BatchSeq *seq, int32_t row)
{
    if (!seq->certain) return batch->parent[row];
    return row > seq->first_row ? row - 1 : -1;
}

/* First position that `row` attends to. */
static inline int32_t batch_first_key(const Batch *batch, int32_t row)
{
    return batch->first_key ? batch->first_key[row] : 0;
}

/* Rows up to the last real one: the padding stands at the end. */
static inline int64_t batch_real_rows(const Batch *batch)
{
    int64_t n = batch->n_rows;
    while (n > 0 && batch->seq[n - 1] < 0) n--;
    return n;
}
