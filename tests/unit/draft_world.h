/* A made-up machine and made-up drafters, for tests of the controller: what a pass takes, how often guesses hit, exactly
 * known. Independent of how the controller models either. */
#pragma once

#include "speculation/drafter.h"
#include "random.h"

enum { WORLD_TEXTS = 5, WORLD_NODES = 66, WORLD_RANKS = 8 };

/* How the guesses of one network hit in one kind of text. */
typedef struct HitRates {
    double first[MAX_DEPTH]; /* chance of the first guess, by depth, if all before it were right */
    double next;             /* each further guess of a row has `next` * (1 - first) times the chance of the one before */
    double off_path;         /* first guesses below a guess that was not the first have so much less chance */
} HitRates;

/* Of a best-first tree, in order of growth, so that the first n nodes are the tree of n. Node 0 is the anchor. */
typedef struct WorldNode {
    double  chance, parent_chance;
    int32_t parent, depth, rank;
    bool    is_off; /* it, or a node above it, was not a first guess */
} WorldNode;

/* Texts 0, 1, 2 are usual ones, 3 is what the text may change to, 4 is one where nothing hits. */
typedef struct World {
    double      pass_ms[WORLD_NODES];  /* by rows, one sequence */
    int32_t     n_methods, n_families;
    DraftMethod method[MAX_METHODS];
    double      draft_ms[MAX_METHODS], node_ms[MAX_METHODS];
    HitRates    rates[WORLD_TEXTS][MAX_METHODS]; /* by family */
    WorldNode   tree[WORLD_TEXTS][MAX_METHODS][WORLD_NODES]; /* the largest, of methods that grow trees */
    int32_t     n_grown[WORLD_TEXTS][MAX_METHODS];
    double      expected[WORLD_TEXTS][MAX_METHODS][WORLD_NODES]; /* tokens of a round, by method and nodes */
} World;

typedef enum WorldChange { HARDER, EASIER, ONE_DIES, ALL_DIE, NO_CHANGE, N_CHANGES } WorldChange;

/* one_network: a chain, or a chain and trees over it; else up to three networks. `change` says how text 3 differs. */
void world_make(World *w, Random *r, bool one_network, WorldChange change);

/* Milliseconds of a round of this method (-1 = plain) and width, draft and pass. */
double world_draft_ms(const World *w, int32_t method, int32_t n_nodes);
double world_round_ms(const World *w, int32_t method, int32_t n_nodes);

/* A draft and its verification in text `text`. */
typedef struct WorldRound {
    int32_t n_depth, n_accepted, n_spine, n_spine_accepted;
    int32_t nodes[MAX_DEPTH]; /* accepted ones */
} WorldRound;
void world_play(const World *w, Random *r, int32_t text, int32_t method, int32_t n_nodes, WorldRound *out);
