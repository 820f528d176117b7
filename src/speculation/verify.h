/* Walks a tree with the tokens chosen at its rows: the committed path. Rows off the path are never chosen for. */
#pragma once

#include "sampling/choose.h"
#include "speculation/tree.h"

typedef struct Walk {
    int32_t n_path;                 /* nodes on the accepted path, anchor included: at least 1 */
    int32_t path[MAX_DEPTH];        /* their numbers, ascending */
    Choice  chosen[MAX_DEPTH];      /* token chosen at path[i]; [n_path - 1] is the bonus token */
    bool    failed;                 /* non-finite logits at the last node of the path */
} Walk;

/* choose_at(ctx, node, path, depth, out): the choice at tree node `node`, whose path from the anchor is path[0..depth].
 * stop_at(ctx, token, depth): true ends the walk after this token was chosen (stop id, length): it is then the last
 * one, even if a child of the tree has it. May be NULL. */
void verify_walk(const Tree *tree,
                 void (*choose_at)(void *ctx, int32_t node, const int32_t *path, int32_t depth, Choice *out),
                 bool (*stop_at)(void *ctx, int32_t token, int32_t depth), void *ctx, Walk *walk);
