/* Draft trees as plain arrays.
 *
 * Nodes are numbered as they are added, so a parent's number is always smaller than its children's: the order in
 * which rows enter a pass. A node's children are found by looking at the nodes behind it: trees have tens of nodes. */
#include "speculation/tree.h"

#include "base/memory.h"

Status tree_alloc(Tree *t, int32_t max_nodes, Error *err)
{
    *t = (Tree){ 0 };
    if (max_nodes < 1 || max_nodes > TREE_MAX_NODES) {
        return error_set(err, ERR_UNSUPPORTED, "a draft tree of %d nodes is not possible: 1 to %d are", max_nodes,
                         TREE_MAX_NODES);
    }
    size_t n = (size_t)max_nodes;
    t->max_nodes = max_nodes;
    t->token = mem_alloc_array(n, sizeof *t->token);
    t->parent = mem_alloc_array(n, sizeof *t->parent);
    t->depth = mem_alloc_array(n, sizeof *t->depth);
    t->score = mem_alloc_array(n, sizeof *t->score);
    if (t->token && t->parent && t->depth && t->score) return OK;
    tree_free(t);
    return error_set(err, ERR_NOMEM, "no memory for a draft tree of %d nodes", max_nodes);
}

void tree_free(Tree *t)
{
    mem_free(t->token);
    mem_free(t->parent);
    mem_free(t->depth);
    mem_free(t->score);
    *t = (Tree){ 0 };
}

void tree_start(Tree *t, int32_t anchor)
{
    t->n_nodes = 1;
    t->token[0] = anchor;
    t->parent[0] = -1;
    t->depth[0] = 0;
    t->score[0] = 0;
}

int32_t tree_add(Tree *t, int32_t parent, int32_t token, float score)
{
    CHECK(parent >= 0 && parent < t->n_nodes);
    int32_t existing = tree_child(t, parent, token);
    if (existing >= 0) return existing;
    if (t->n_nodes == t->max_nodes || t->depth[parent] == MAX_DEPTH - 1) return -1;

    int32_t node = t->n_nodes++;
    t->token[node] = token;
    t->parent[node] = parent;
    t->depth[node] = t->depth[parent] + 1;
    t->score[node] = score;
    return node;
}

int32_t tree_child(const Tree *t, int32_t node, int32_t token)
{
    for (int32_t i = node + 1; i < t->n_nodes; i++) {
        if (t->parent[i] == node && t->token[i] == token) return i;
    }
    return -1;
}

bool tree_is_chain(const Tree *t)
{
    for (int32_t i = 1; i < t->n_nodes; i++) {
        if (t->parent[i] != i - 1) return false;
    }
    return true;
}

bool tree_check(const Tree *t)
{
    if (t->n_nodes < 1 || t->n_nodes > t->max_nodes) return false;
    if (t->parent[0] != -1 || t->depth[0] != 0) return false;
    for (int32_t i = 1; i < t->n_nodes; i++) {
        int32_t parent = t->parent[i];
        if (parent < 0 || parent >= i) return false;
        if (t->depth[i] != t->depth[parent] + 1 || t->depth[i] >= MAX_DEPTH) return false;
        if (tree_child(t, parent, t->token[i]) != i) return false; /* an earlier sibling has the same token */
    }
    return true;
}

void tree_path(const Tree *t, int32_t node, int32_t path[MAX_DEPTH])
{
    int32_t depth = t->depth[node];
    for (int32_t i = MAX_DEPTH - 1; i > depth; i--) path[i] = -1;
    for (int32_t i = depth; i >= 0; i--, node = t->parent[node]) path[i] = node;
}

int32_t tree_spine(const Tree *t, int32_t spine[MAX_DEPTH])
{
    int32_t n = 0;
    spine[0] = 0;
    for (int32_t i = 1; i < t->n_nodes && n + 1 < MAX_DEPTH; i++)
        if (t->parent[i] == spine[n]) spine[++n] = i;
    return n;
}
