/* The order in which one sequence's rows pass through a recurrent state, and which state each one reads and
 * writes.
 *
 * A tree is walked depth first, each node's heaviest child last. That child may overwrite its parent's state,
 * because nobody needs it any more; the others write one slot further:
 *
 *     slot(row) = slot(parent) + (row is not the heaviest child)          a chain never leaves slot 0
 *
 * A light child has at most half of its parent's rows below it, so a tree of n rows needs log2(n) + 1 slots. */
#pragma once

#include "backend/batch.h"

enum { WALK_COMMITTED = -1, WALK_MAX_SLOTS = 16 }; /* 2^15 rows; batches are smaller */

typedef struct WalkStep {
    int32_t row;
    int32_t from, to; /* slots; WALK_COMMITTED = the state before the batch, which is never written here */
} WalkStep;

/* Bytes of `memory` for walk_plan(). */
size_t walk_bytes(int32_t n_rows);

/* Writes steps[n_rows] for an uncertain sequence, parents before children in any order. */
const WalkStep *walk_plan(void *memory, const Batch *batch, const BatchSeq *seq);

/* Step i of a certain sequence, whose rows are a line: no plan needed. */
static inline WalkStep walk_line(const BatchSeq *seq, int32_t i)
{
    return (WalkStep){ seq->first_row + i, i == 0 ? WALK_COMMITTED : 0, 0 };
}
