/* The input of one forward pass, and what a kernel sees of a cache: plain data, ids instead of
 * pointers between modules. One shape for prompt, decode, chain and tree rows.
 *
 * Rows of one sequence are contiguous and in order: parents before children. Uncertain sequences
 * (a draft to be verified) come before certain ones (prompt chunks, plain decode), so that logs
 * and scratch for undoing need room for the uncertain rows only: rows [0, n_uncertain_rows).
 *
 *   certain    the rows are known tokens in a line: forward writes their entries at their own
 *              positions and advances the per-sequence states itself
 *   uncertain  a tree (or chain) whose row 0 is the anchor: entries go behind n_committed in row
 *              order, states stay, every row's update is logged; Model.commit makes one path permanent
 *
 * Arrays of ids lie in the host's memory (a device keeps copies of its own, cuda/device.cu), out
 * tensors where the kernels run: the host has rows of them copied (sampling/row_chooser.h). All
 * memory is whoever's that builds the batch, borrowed until it builds the next one. */
#pragma once

#include "backend/contract.h"
#include "tensor/tensor.h"

#include <stdbool.h>

enum { MAX_GROUPS = 12, MAX_TAPS = 96 };

typedef enum SeqPhase { SEQ_PAD, SEQ_PROMPT, SEQ_DECODE, SEQ_VERIFY } SeqPhase; /* statistics only:
                                                                                 * kernels look at `certain` */

typedef struct BatchSeq {
    int32_t  first_row, n_rows;
    SeqPhase phase;
    int32_t  n_committed; /* tokens whose entries and states exist before this pass */
    int32_t  slot;        /* its place in block tables, states, rings */
    bool     certain;
} BatchSeq;

typedef struct Batch {
    int32_t         n_rows, n_seqs, n_outputs; /* bucket sizes, padding included */
    int32_t         n_uncertain_rows;          /* they are rows [0, this) */
    const BatchSeq *seqs;                      /* [n_seqs] */
    const int32_t  *token;                     /* [n_rows] vocabulary id; a placeholder's at image rows */
    const int32_t  *seq;                       /* [n_rows] -1 = padding: nobody sees it, store = dump entry */
    const int32_t  *index;                     /* [n_rows] place in its sequence: causality, splits, draw key */
    const int32_t  *rope;                      /* [3][n_rows] rotary coordinates; differ from index after images */
    const int32_t  *parent;                    /* [n_rows] row before it on its path, smaller than the row;
                                                * -1 = the last committed token */
    const int32_t  *path;                      /* [n_rows][MAX_DEPTH] rows from the anchor to itself, -1 fills: the
                                                * order of every sum. Certain rows: all -1, keys are found by position */
    const int32_t  *first_key;                 /* [n_rows] first position that a row attends to (sliding windows);
                                                * NULL = 0 for all */
    const int32_t  *store[MAX_GROUPS];         /* [n_rows] entry of each per-token group where the row is written */
    const int32_t  *soft_row;                  /* [n_rows] row of `soft` that replaces the embedding; -1 = none; NULL = none at all */
    Tensor          soft;                      /* [n_soft, hidden] picture rows, float32 */
    const int32_t  *output;                    /* [n_outputs] rows whose logits are wanted */
    int32_t         n_taps;
    const int32_t  *taps;                      /* [n_taps] decoder layers whose output rows go to features */
    Tensor          features;                  /* out [n_rows, n_taps * hidden] float32; data NULL if n_taps == 0 */
    Tensor          last_hidden;               /* out [n_rows, hidden] float32 after the final norm, as MTP wants it;
                                                * data NULL = not wanted */
    Tensor          logits;                    /* out [n_outputs, vocab] float32, unrounded */
} Batch;

/* One sequence's accepted path after an uncertain pass. path_rows are batch rows, anchor first; path_rows[d]
 * is at depth d. n_path may have been cut by a stop. */
typedef struct Commit {
    int32_t        seq; /* index into batch->seqs */
    int32_t        n_path;
    const int32_t *path_rows;
} Commit;

/* What a kernel sees of one layer of one per-token group of keys and values. Layout: kv_layout.h. */
typedef struct KvView {
    void          *data; /* this layer's first block */
    DType          dtype;
    int32_t        n_heads, head_dim;
    int32_t        block_size, max_blocks;
    const int32_t *block_table; /* [n_slots][max_blocks], in the host's memory as well */
} KvView;

/* One layer of one per-sequence group: entry of slot s at data + s * slot_bytes. */
typedef struct StateView {
    void  *data;
    size_t slot_bytes;
} StateView;
