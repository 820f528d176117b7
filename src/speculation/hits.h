/* How well a drafter's guesses hit, and what widths of drafts are worth by that.
 *
 * At any time a drafter has one of HIT_LEVELS levels for a sequence, from "never right" to "always right"; a level
 * says with what chance each guess is right. Belief is a probability for each level (texts.h moves it). Plain data;
 * no clock, no randomness. */
#pragma once

#include "speculation/tree.h"

enum { HIT_LEVELS = 15, HIT_WIDTHS = 32 };

/* Shared by all sequences: one for each network (family of methods). */
typedef struct HitLaw {
    double  offers;                          /* share of its rounds in which it proposes anything */
    double  shift[MAX_DEPTH];                /* by depth: logit of a hit, beside that of the level */
    double  n_shift[MAX_DEPTH];
    double  tree_hits[HIT_WIDTHS];           /* accepted nodes among those that a width adds to the one before, and */
    double  tree_expected[HIT_WIDTHS];       /* how many the model tree had promised */
    int32_t n_young;                         /* tokens learnt, while there are few */
    int32_t n_stale;                         /* rounds learnt since the tables were made */
    int32_t max_tree_nodes;                  /* 0 = it grows none */
    float   chain[HIT_LEVELS][HIT_WIDTHS];   /* expected accepted drafts, by index of width */
    float   tree[HIT_LEVELS][HIT_WIDTHS];
    float   added[HIT_LEVELS][HIT_WIDTHS];   /* of the model tree: what a width adds to the one before */
    float   reach[HIT_LEVELS][MAX_DEPTH];    /* chance that d drafts of a chain are accepted, if it is as long */
} HitLaw;

/* What one method gave over what the model promises, by level; shared by all sequences. Chain and trees of one network
 * share a law, and no model fits both. */
typedef struct HitCheck {
    double accepted[HIT_LEVELS], promised[HIT_LEVELS]; /* drafts, lately */
    double ratio[HIT_LEVELS];                          /* with a little hope where little is known */
} HitCheck;

typedef struct HitBelief {
    double p[HIT_LEVELS];
    double offers;
    bool   has_collapsed;  /* the last round hit nothing, and more likely because the text changed than by accident */
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

void hits_init(HitLaw *law, int32_t max_tree_nodes);
void hits_check_init(HitCheck *check);

/* Accepted drafts to expect of width w at level k, and over all levels, if it proposes so many. `offers` of the
 * belief is the chance that it proposes any. */
double hits_expect_at(const HitLaw *law, const HitCheck *check, bool is_tree, int k, int w);
double hits_expect(const HitLaw *law, const HitCheck *check, const HitBelief *b, bool is_tree, int w);

/* Chance of what the round showed, at each level. */
void hits_seen(const HitLaw *law, const HitRound *round, double seen[HIT_LEVELS]);

/* A round, or some round of the same network by another method, which makes what is known of this one older.
 * b: as believed before the round. */
void hits_check_learn(const HitLaw *law, HitCheck *check, const HitBelief *b, const HitRound *round);
void hits_check_fade(HitCheck *check);

/* b->p: as believed after the round. */
void hits_learn(HitLaw *law, HitBelief *b, const HitRound *round);

/* n tokens went by without a draft of this family. */
void hits_idle(const HitLaw *law, HitBelief *b, int32_t n_tokens);
