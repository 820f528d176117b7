/* How well a drafter's guesses hit: what is believed of one sequence now, and what all sequences have taught.
 *
 * At any time a drafter has one of HIT_LEVELS levels for a sequence, from "never right" to "always right"; a level says
 * with what chance each guess is right. Belief is a probability for each level. Levels drift, and jump when the text
 * changes, with or without notice. Plain data; no clock, no randomness. */
#pragma once

#include "speculation/tree.h"

enum { HIT_LEVELS = 15, HIT_WIDTHS = 32 };

/* Shared by all sequences: one for each network (family of methods). */
typedef struct HitLaw {
    double  prior[HIT_LEVELS];               /* where a sequence begins, and where it lands after a change of text */
    double  n_prior;                         /* tokens behind it */
    double  offers;                          /* share of its rounds in which it proposes anything */
    double  shift[MAX_DEPTH];                /* by depth: logit of a hit, beside that of the level */
    double  n_shift[MAX_DEPTH];
    double  tree_hits[HIT_WIDTHS];           /* accepted nodes among those that a width adds to the one before, and */
    double  tree_expected[HIT_WIDTHS];       /* how many the model tree had promised */
    int32_t n_stale;                         /* rounds learnt since the tables were made */
    int32_t max_tree_nodes;                  /* 0 = it grows none */
    float   chain[HIT_LEVELS][HIT_WIDTHS];   /* expected accepted drafts, by index of width */
    float   tree[HIT_LEVELS][HIT_WIDTHS];
    float   added[HIT_LEVELS][HIT_WIDTHS];   /* of the model tree: what a width adds to the one before */
    float   reach[HIT_LEVELS][MAX_DEPTH];    /* chance that d drafts of a chain are accepted, if it is as long */
} HitLaw;

typedef struct HitBelief {
    double p[HIT_LEVELS];
    double offers;
    bool   has_collapsed;  /* the last round hit nothing, and more likely because the text changed than by accident */
    double n_own, n_hints; /* rounds of its own and of others behind it, lately */
} HitBelief;

/* What one verified draft showed. */
typedef struct HitRound {
    bool    is_tree;
    int32_t n_nodes;    /* proposed, anchor counted: 1 = nothing */
    int32_t n_depth;    /* levels proposed below the anchor */
    int32_t n_accepted;
    int32_t n_spine, n_spine_accepted; /* of the line of first guesses; a chain is all spine */
    const int32_t *nodes; /* [n_accepted] of a tree: numbers of the accepted nodes, in order of growth; borrowed */
    bool    is_cut;     /* the text ended there, so nothing is known of the next draft */
} HitRound;

/* Numbers of nodes, anchor counted, that are worth considering: width w of a chain or a tree. */
int32_t hits_nodes(bool is_tree, int w);
int     hits_width(bool is_tree, int32_t n_nodes); /* the widest that needs no more nodes; -1: 1 node is none */

void   hits_init(HitLaw *law, int32_t max_tree_nodes);
void   hits_begin(const HitLaw *law, HitBelief *b);

/* Expected accepted drafts with width w, if it proposes so many. `offers` of the belief is the chance that it proposes any. */
double hits_expect(const HitLaw *law, const HitBelief *b, bool is_tree, int w);

/* Returns the chance that the text changed with this round. */
double hits_learn(HitLaw *law, HitBelief *b, const HitRound *round);

/* Another drafter's round for the same sequence: text that is hard for one is mostly hard for the others. */
void   hits_hint(const HitLaw *law, HitBelief *b, const HitLaw *other, const HitRound *round);

/* n tokens went by without a draft of this family; `change`: chance that the text changed meanwhile, as others saw it. */
void   hits_idle(const HitLaw *law, HitBelief *b, int32_t n_tokens, double change);
