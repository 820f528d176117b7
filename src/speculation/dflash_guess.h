/* From the logits of a DFlash block to a draft: the part of drafting that knows requests and no networks. */
#pragma once

#include "sampling/row_chooser.h"
#include "speculation/ddtree.h"
#include "speculation/drafter.h"

typedef struct DflashGuess {
    int32_t       vocab_size, n_usable; /* ids from n_usable on are never proposed */
    bool          is_uncoupled;
    RowChooser   *rows;       /* of the logits at hand */
    int32_t       max_budget; /* 0: chains only */
    DdTree       *trees;
    float        *best;  /* [max_budget] */
    uint32_t     *marks; /* [vocab] for rules_apply() */
} DflashGuess;

/* max_rows: of logits at a time; top_k: candidates, 0 = none are wanted. */
typedef struct DflashGuessSizes {
    int32_t vocab_size, n_usable, max_rows, tree_budget, top_k;
    bool    is_uncoupled;
} DflashGuessSizes;
Status dflash_guess_open(DflashGuess *g, Backend *backend, const DflashGuessSizes *sizes, Error *err);
void   dflash_guess_close(DflashGuess *g); /* copes with a zeroed one */

/* Rows [first, first + n) of logits are one job's: row i guesses the token i + 1 places behind its anchor. Between begin and
 * queue, behind the pass that makes the logits, every job says which way it will guess; after a sync it does. */
typedef struct GuessRows {
    int32_t         first, n;
    const DraftJob *job;
} GuessRows;
void dflash_guess_begin(DflashGuess *g, Tensor logits);
void dflash_guess_add_chain(DflashGuess *g, GuessRows rows);
void dflash_guess_add_tree(DflashGuess *g, GuessRows rows);
void dflash_guess_add_candidates(DflashGuess *g, GuessRows rows, int32_t k);
void dflash_guess_queue(DflashGuess *g, Stream *st);

/* Both grow the job's tree, which holds the anchor alone; false: the logits are broken and it still does. */
bool dflash_guess_chain(DflashGuess *g, GuessRows rows);
bool dflash_guess_tree(DflashGuess *g, GuessRows rows, DdTreeShape shape);

/* The k likeliest ids of each row with their logits under the request's rules, -1 where there are no more, and the
 * noise of each. Returns the rows before the first without a candidate, -1 when they are broken. */
int32_t dflash_guess_candidates(DflashGuess *g, GuessRows rows, int32_t k, int32_t *id, float *logit, float *noise);

/* What guesses of the job are tempered by before noise is added; 0 = no noise. */
float dflash_guess_temperature(const DflashGuess *g, const DraftJob *job);
