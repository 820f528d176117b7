/* What the variants of attention share. */
#pragma once

#include "backend/cpu/cpu_impl.h"

typedef struct AttentionJob {
    Tensor         out, q;
    KvView         view;
    const Batch   *batch;
    const int32_t *store;
    float          scale;
    Stream        *st;
    const float   *number_of; /* [256] what E4M3 codes mean in sums; the contract's loops only */
} AttentionJob;

enum { ATTN_MAX_HEAD_DIM = 512 };

/* The contract, for any head_dim. */
void cpu_scalar_attention(Stream *st, Tensor out, Tensor q, KvView view, const Batch *batch, const int32_t *store,
                          float scale);

/* Counts the sequences' rows. */
void attention_count(Stream *st, const Batch *batch);
