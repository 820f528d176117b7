/* Builds the passes of a test: certain lines, draft trees and their commits over caches of its own.
 *
 * It owns the memory of the model's cache groups for a few slots. Blocks are handed out in a scattered order and all
 * cache memory begins as NaN, so a kernel that ignores the block table or reads what was never written shows.
 *
 *     builder_begin, builder_tree ..., builder_line ..., builder_want ..., builder_forward, builder_commit
 *
 * Uncertain sequences come first, as in every Batch. Mistakes of a test stop it by CHECK. */
#pragma once

#include "models/model.h"

typedef struct BuilderOptions {
    int32_t        n_slots, max_tokens; /* of a slot; tentative rows included */
    int32_t        max_rows, max_outputs;
    int32_t        block_size;          /* 0 = 16 */
    int32_t        n_taps;
    const int32_t *taps;
    bool           wants_last_hidden;
} BuilderOptions;

typedef struct BatchBuilder {
    Batch          batch; /* of the last builder_forward */
    Model         *model;
    BuilderOptions options;
    int32_t       *n_committed; /* [n_slots] */

    int         n_groups;
    CacheGroup  groups[MAX_GROUPS];
    CacheMemory memory[MAX_GROUPS];
    int32_t    *block_table;
    BatchSeq   *seqs;
    int32_t    *token, *seq, *index, *rope, *parent, *path, *store, *output;
    float      *features, *last_hidden, *logits;
} BatchBuilder;

Status builder_open(BatchBuilder **out, Model *model, const BuilderOptions *options, Error *err);
void   builder_close(BatchBuilder *b);

/* The slot begins anew: no committed tokens. Its memory keeps what lies there, as in the engine. */
void builder_clear(BatchBuilder *b, int32_t slot);

void builder_begin(BatchBuilder *b);

/* n known tokens behind the committed ones of the slot; returns the first row. */
int32_t builder_line(BatchBuilder *b, int32_t slot, const int32_t *tokens, int32_t n);

/* A draft tree: node 0 is the anchor, parents[i] < i, parents[0] = -1; returns the first row. */
int32_t builder_tree(BatchBuilder *b, int32_t slot, const int32_t *tokens, const int32_t *parents, int32_t n);

/* Asks for the logits of a row, or of n rows from `row` on; they come in the order of asking. */
void builder_want(BatchBuilder *b, int32_t row, int32_t n);

/* Runs the pass. Lines are committed by it, trees are not. */
void builder_forward(BatchBuilder *b);

/* Commits a path of the tree that sits in `slot`: nodes[0] = 0, ascending. */
void builder_commit(BatchBuilder *b, int32_t slot, const int32_t *nodes, int32_t n);

const float *builder_logits(const BatchBuilder *b, int32_t output);
