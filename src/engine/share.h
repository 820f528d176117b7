/* One sequence's share of a pass: its rows, what they may give, what came of them. Lives for one step. */
#pragma once

#include "engine/request_impl.h"
#include "speculation/verify.h"

typedef struct Share {
    Sequence *seq;
    SeqPhase  phase;
    Tree     *tree;                 /* the anchor and its drafts; for prompt rows the last known token alone */
    int32_t   method, n_asked;      /* who drafted, how many rows it was asked for; -1 and 1 = nobody was asked */
    int32_t   n_rows, first_row;
    int32_t   n_outputs, first_output;
    bool      is_certain;
    bool      gives_token;          /* its last known token is among the rows: a token is chosen behind it */
    bool      is_scored;            /* prompt rows whose logits are all wanted */
    int32_t   n_emitted;            /* after choosing: tokens that the sequence gained */
    int32_t   n_path;               /* after choosing: rows of an uncertain share that become permanent */
    int32_t   path_rows[MAX_DEPTH]; /* their batch rows */
} Share;
