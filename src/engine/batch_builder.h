/* Lays the shares of a pass out as a Batch. All arrays are taken once, for the largest pass the options allow. */
#pragma once

#include "base/arena.h"
#include "cache/block_table.h"
#include "engine/share.h"

typedef struct BatchBuilder {
    const BlockTable *table;      /* borrowed */
    Arena             arena;
    Backend          *backend;    /* borrowed */
    ModelLimits       limits;
    int32_t           n_groups;   /* of the model; all stores are the same array */
    int32_t           rope_stride;
    BatchSeq         *seqs;       /* [max_seqs] */
    int32_t          *token, *seq, *index, *rope, *parent, *path, *store, *output;
    float            *logits, *features, *last_hidden; /* of kernels only; NULL when not wanted */
    int32_t           vocab_size, hidden_size, n_taps;
    const int32_t    *taps;
} BatchBuilder;

/* drafter may be NULL: nobody wants features. */
Status batch_builder_open(BatchBuilder *b, Backend *backend, const Model *model, const Drafter *drafter, const ModelLimits *limits,
                          const BlockTable *table, Error *err);
void   batch_builder_close(BatchBuilder *b); /* copes with a zeroed one */

/* Bytes that open takes; for the plan. */
size_t batch_builder_bytes(const ModelLimits *limits, int32_t vocab_size, int32_t hidden_size, const DrafterNeeds *drafter);

/* Fills *out from shares in their order (uncertain ones first) and sets their first_row, first_output and n_outputs.
 * out borrows the builder's arrays until the next call. */
void batch_build(BatchBuilder *b, Share *shares, int32_t n, Batch *out);
