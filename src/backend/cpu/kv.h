/* Where keys and values lie. A block of one layer is K [n_heads][block_size][head_dim], then V likewise;
 * a store is block * block_size + place in the block; a position is an entry of the sequence's block table. */
#pragma once

#include "backend/batch.h"

static inline int32_t kv_store_at(const KvView *view, int32_t slot, int32_t entry)
{
    int32_t block = view->block_table[(int64_t)slot * view->max_blocks + entry / view->block_size];
    return block * view->block_size + entry % view->block_size;
}

static inline int64_t kv_row_bytes(const KvView *view)
{
    return view->head_dim * (int64_t)dtype_bytes(view->dtype);
}

static inline void *kv_key(const KvView *view, int32_t store, int32_t head)
{
    int64_t block = store / view->block_size, place = store % view->block_size;
    int64_t row = (2 * block * view->n_heads + head) * view->block_size + place;
    return (char *)view->data + row * kv_row_bytes(view);
}

static inline void *kv_value(const KvView *view, int32_t store, int32_t head)
{
    return (char *)kv_key(view, store, head) + (int64_t)view->n_heads * view->block_size * kv_row_bytes(view);
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
