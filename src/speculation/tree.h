/* A draft tree: node 0 is the anchor (the newest chosen token, not yet run through the target); parent[i] < i;
 * siblings have different tokens. A chain is a tree whose parent[i] is i - 1. Storage is the owner's. */
#pragma once

#include "backend/contract.h"
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum { TREE_MAX_NODES = 1024 };

typedef struct Tree {
    int32_t  max_nodes, n_nodes;
    int32_t *token, *parent, *depth; /* [max_nodes]; depth[0] = 0, at most MAX_DEPTH - 1 */
    float   *score;                  /* log of the estimated chance that the node is reached; 0 where unknown */
} Tree;

Status  tree_alloc(Tree *t, int32_t max_nodes, Error *err);
void    tree_free(Tree *t);
void    tree_start(Tree *t, int32_t anchor);
int32_t tree_add(Tree *t, int32_t parent, int32_t token, float score); /* new node; -1 when full or too deep;
                                                                        * an existing sibling's index when equal */
int32_t tree_child(const Tree *t, int32_t node, int32_t token);         /* -1: none */
bool    tree_is_chain(const Tree *t);
bool    tree_check(const Tree *t); /* the invariants above; tests and debug builds */

/* The line of first guesses: from the anchor always to the first child. Fills spine[1 ..], returns its length. */
int32_t tree_spine(const Tree *t, int32_t spine[MAX_DEPTH]);

/* Fills path[0..depth] with the nodes from the anchor to `node`, the rest up to MAX_DEPTH with -1. */
void tree_path(const Tree *t, int32_t node, int32_t path[MAX_DEPTH]);
