/* Best-first draft trees out of the logits of a block drafter (DDTree).
 *
 * Row d of the logits is the drafter's guess at the token d + 1 places behind the anchor, whatever the tokens between.
 * Then a prefix of guesses has the estimated chance exp(sum of their log-probabilities), and of all trees with B
 * nodes the B best prefixes are expected to be accepted deepest. One builder serves all requests, one thread. */
#pragma once

#include "speculation/tree.h"
#include "tensor/tensor.h"

typedef struct DdTree DdTree;

typedef struct DdTreeShape {
    int32_t budget;      /* nodes, the anchor not counted */
    int32_t top_k;       /* guesses of a row that are looked at; 0 = all that could matter, min(budget, vocabulary) */
    bool    spine_first; /* the likeliest guess of every row in a line comes first, the rest of the budget best-first */
} DdTreeShape;

/* Scratch for budgets up to max_budget < TREE_MAX_NODES and up to max_rows < MAX_DEPTH rows. Allocates only here. */
Status ddtree_open(DdTree **out, int32_t max_budget, int32_t max_rows, Error *err);
void   ddtree_close(DdTree *b);

/* Rows that can matter to a tree of this shape, at most n_rows, and the guesses of each that are looked at. */
int32_t ddtree_rows(const DdTree *b, int32_t n_rows, DdTreeShape shape, const Tree *tree, int32_t *n_guesses);
/* The guesses of row depth - 1, from the logits or ranked already (best first; log_sum is the log of the sum of exp(score -
 * largest) over the row). False: the row is broken. */
bool ddtree_rank(DdTree *b, int32_t depth, const float *logits, int32_t n, int32_t n_guesses);
void ddtree_take(DdTree *b, int32_t depth, const int32_t *id, const float *score, int32_t n, float log_sum);
/* Grows `tree` from n_rows rows that were ranked or taken; see ddtree_grow(). */
void ddtree_grow_ranked(DdTree *b, int32_t n_rows, DdTreeShape shape, Tree *tree);

/* All of these: grows `tree`, which holds its anchor alone, from logits [n_rows, vocabulary] float32; -inf is a guess that is not
 * allowed. At most shape.budget nodes and what the tree has room for; fewer when there are no more prefixes. Node
 * numbers are the order of growth; tree->score is the log of the estimated chance. ERR_NUMERIC when a row has a NaN or
 * +inf: the tree is the anchor alone. numeric_mode_enter() done. */
Status ddtree_grow(DdTree *b, Tensor logits, DdTreeShape shape, Tree *tree, Error *err);
