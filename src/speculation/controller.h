/* Who drafts, how, and how wide: decided before every pass for all sequences that decode, so that the expected tokens
 * per millisecond of the whole batch are most. Plain decoding is one of the choices.
 *
 *     plan(wishes) ──> draft, verify ──> learn(report) ──> plan ...
 *
 * It knows what passes and drafts cost (cost.h, measured) and how well each drafter hits (hits.h, measured). Times
 * are given to it; it reads no clock and rolls no dice, so the same reports give the same plans. It can change speed
 * only. Engine thread only; allocates only in open. */
#pragma once

#include "speculation/drafter.h"

typedef struct Controller Controller;

typedef struct ControllerOptions {
    int32_t n_slots;
    int32_t n_methods;          /* 1 .. MAX_METHODS */
    const DraftMethod *methods; /* borrowed; `off` is looked at in every plan */
    double  pass_ms;            /* first guess at a pass of one row; 0 = 20 */
} ControllerOptions;

Status controller_open(Controller **out, const ControllerOptions *options, Error *err);
void   controller_close(Controller *c);
size_t controller_bytes(const ControllerOptions *options); /* for the memory plan */

/* A sequence that decodes in the coming pass, and what was decided for it. */
typedef struct DraftWish {
    int32_t slot;
    int32_t max_nodes, max_depth;   /* limits, anchor counted; max_nodes 1 = it only decodes */
    int32_t n_left;                 /* tokens that may still come */
    int32_t only_method;            /* a request's own choice; -1 = any */
    int32_t fixed_nodes;            /* the request's own width, taken as it is; 0 = to be decided */
    int32_t foreseen[MAX_METHODS];  /* drafts that a method would propose; -1 = not known */
    int32_t method, n_nodes;        /* out; n_nodes 1 = plain, method then -1 */
    bool    is_probe;               /* out: not expected to pay now, but to tell something */
} DraftWish;

void controller_begin(Controller *c, int32_t slot, int32_t n_prompt); /* a new sequence in this slot */

/* n_other: rows of prompts in the same pass. max_draft_rows: drafts of all together. */
void controller_plan(Controller *c, DraftWish *wishes, int32_t n, int32_t n_other, int32_t max_draft_rows);

/* What became of a sequence that decoded in the pass. */
typedef struct DraftRound {
    int32_t slot, method, n_asked;  /* as planned; method -1 = plain */
    int32_t n_nodes, n_depth;       /* as proposed and verified; 1 and 0 = nothing */
    int32_t n_accepted, n_emitted;  /* drafts on the path; tokens gained */
    int32_t n_spine, n_spine_accepted; /* length of the line of first guesses; how far the path kept to it */
    const int32_t *nodes;           /* [n_accepted] their numbers in the tree, ascending; borrowed for the call */
    bool    is_cut;                 /* it ended: a stop, a limit */
} DraftRound;

typedef struct PassReport {
    int32_t           n_rows, n_other; /* all rows; of them rows of prompts */
    double            draft_ms, pass_ms;
    int32_t           n_rounds;
    const DraftRound *rounds;
} PassReport;

void controller_learn(Controller *c, const PassReport *report);

/* What it believes, for logs, metrics and tests. */
double controller_pass_ms(const Controller *c, int32_t n_rows, int32_t n_seqs);
double controller_expected(const Controller *c, int32_t slot, int32_t method, int32_t n_nodes); /* tokens of a round */
