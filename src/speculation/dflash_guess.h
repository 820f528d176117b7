/* From the logits of a DFlash block to a draft: the part of drafting that knows requests and no networks. */
#pragma once

#include "speculation/ddtree.h"
#include "speculation/drafter.h"

typedef struct DflashGuess {
    int32_t       vocab_size, n_usable; /* ids from n_usable on are never proposed */
    bool          is_uncoupled;
    Chooser      *chooser;
    int32_t       max_budget; /* 0: chains only */
    DdTree       *trees;
    float        *best;  /* [max_budget] */
    uint32_t     *marks; /* [vocab] for rules_apply() */
} DflashGuess;

Status dflash_guess_open(DflashGuess *g, int32_t vocab_size, int32_t n_usable, int32_t tree_budget, bool is_uncoupled,
                         Error *err);
void   dflash_guess_close(DflashGuess *g); /* copes with a zeroed one */

/* Row i of the logits guesses the token i + 1 places behind the job's anchor. Both grow the job's tree, which holds the
 * anchor alone; false: the logits are broken and it still does. The tree's function spoils the logits. */
bool dflash_guess_chain(DflashGuess *g, Tensor logits, const DraftJob *job);
bool dflash_guess_tree(DflashGuess *g, Tensor logits, DdTreeShape shape, const DraftJob *job);

/* The k likeliest ids of each row with their logits under the request's rules, -1 where there are no more, and the
 * noise of each; spoils the logits. Returns the rows before the first without a candidate, -1 when they are broken. */
int32_t dflash_guess_candidates(DflashGuess *g, Tensor logits, int32_t k, const DraftJob *job, int32_t *id,
                                float *logit, float *noise);

/* What guesses of the job are tempered by before noise is added; 0 = no noise. */
float dflash_guess_temperature(const DflashGuess *g, const DraftJob *job);
