/* The tree of the best prefixes (docs/spec/speculation.md, section 3.2).
 *
 * A heap holds prefixes that could come next. The best one becomes a node, and the two that it was standing in the way
 * of enter: its next sibling (the following guess of the same row under the same parent) and its first child. Every
 * prefix has exactly one such predecessor, and a better one, so nothing is met twice or missed, and after B nodes
 * these are the B best. A child is never better than its parent, hence parents come first.
 *
 * Equal scores: by the ranks of the guesses along the prefix, as words in a dictionary. That is the order of the
 * published builder, no two prefixes have one word, and so the tree is a function of the logits alone. */
#include "speculation/ddtree.h"

#include "base/memory.h"
#include "sampling/row.h"
#include "sampling/softmax.h"
#include "sampling/topk.h"

typedef struct Prefix { /* parent's prefix and one more guess */
    float   score;
    int32_t parent, depth, rank;
} Prefix;

struct DdTree {
    int32_t  max_budget, max_rows;
    int32_t *token;  /* [max_rows][max_budget] guesses of a row, likeliest first */
    float   *log_p;  /* [max_rows][max_budget] */
    int32_t  n_guesses[MAX_DEPTH];
    int32_t *rank;   /* [max_budget + 1] of each node among its row's guesses */
    Prefix  *heap;   /* [max_budget + 2]: one to begin with; each node takes one out and puts two in */
    int32_t  n_heap;
};

Status ddtree_open(DdTree **out, int32_t max_budget, int32_t max_rows, Error *err)
{
    *out = NULL;
    if (max_budget < 1 || max_budget >= TREE_MAX_NODES || max_rows < 1 || max_rows >= MAX_DEPTH) {
        return error_set(err, ERR_UNSUPPORTED,
                         "a draft tree of %d nodes over %d rows is not possible: at most %d and %d are", max_budget,
                         max_rows, TREE_MAX_NODES - 1, MAX_DEPTH - 1);
    }
    DdTree *b = mem_alloc(sizeof *b);
    if (!b) return error_set(err, ERR_NOMEM, "no memory to build draft trees");
    size_t n = (size_t)max_budget;
    b->max_budget = max_budget;
    b->max_rows = max_rows;
    b->token = mem_alloc_array(n * (size_t)max_rows, sizeof *b->token);
    b->log_p = mem_alloc_array(n * (size_t)max_rows, sizeof *b->log_p);
    b->rank = mem_alloc_array(n + 1, sizeof *b->rank);
    b->heap = mem_alloc_array(n + 2, sizeof *b->heap);
    if (!b->token || !b->log_p || !b->rank || !b->heap) {
        ddtree_close(b);
        return error_set(err, ERR_NOMEM, "no memory to build draft trees of %d nodes", max_budget);
    }
    *out = b;
    return OK;
}

void ddtree_close(DdTree *b)
{
    if (!b) return;
    mem_free(b->token);
    mem_free(b->log_p);
    mem_free(b->rank);
    mem_free(b->heap);
    mem_free(b);
}

/* ---- guesses ---- */

static float log_p_at(const DdTree *b, int32_t depth, int32_t rank)
{
    return b->log_p[(depth - 1) * b->max_budget + rank];
}

void ddtree_take(DdTree *b, int32_t depth, const int32_t *id, const float *score, int32_t n, float log_sum)
{
    int32_t *token = b->token + (depth - 1) * b->max_budget;
    float *log_p = b->log_p + (depth - 1) * b->max_budget;
    b->n_guesses[depth] = n;
    for (int32_t i = 0; i < n; i++) {
        token[i] = id[i];
        log_p[i] = (score[i] - score[0]) - log_sum;
    }
}

bool ddtree_rank(DdTree *b, int32_t depth, const float *logits, int32_t n, int32_t n_guesses)
{
    if (!row_is_usable(logits, n)) return false;
    int32_t *token = b->token + (depth - 1) * b->max_budget;
    float *log_p = b->log_p + (depth - 1) * b->max_budget;
    int32_t count = b->n_guesses[depth] = topk_list(logits, n, n_guesses, token, log_p);
    if (count == 0) return true;
    float max = log_p[0], log_sum = softmax_log_sum(logits, n, max);
    for (int32_t i = 0; i < count; i++) log_p[i] = (log_p[i] - max) - log_sum;
    return true;
}

/* ---- heap, the best prefix at its root ---- */

/* Ranks from the first row down: the word by which equal scores are ordered. */
static void spell(const DdTree *b, const Tree *tree, const Prefix *p, int32_t word[MAX_DEPTH])
{
    word[p->depth - 1] = p->rank;
    for (int32_t node = p->parent, i = p->depth - 2; i >= 0; node = tree->parent[node], i--) word[i] = b->rank[node];
}

static bool word_is_first(const DdTree *b, const Tree *tree, const Prefix *p, const Prefix *q)
{
    int32_t p_word[MAX_DEPTH], q_word[MAX_DEPTH];
    spell(b, tree, p, p_word);
    spell(b, tree, q, q_word);
    for (int32_t i = 0; i < p->depth && i < q->depth; i++) {
        if (p_word[i] != q_word[i]) return p_word[i] < q_word[i];
    }
    return p->depth < q->depth;
}

static bool is_better(const DdTree *b, const Tree *tree, const Prefix *p, const Prefix *q)
{
    return p->score != q->score ? p->score > q->score : word_is_first(b, tree, p, q);
}

static void push(DdTree *b, const Tree *tree, Prefix p)
{
    int32_t i = b->n_heap++;
    for (; i > 0 && is_better(b, tree, &p, &b->heap[(i - 1) / 2]); i = (i - 1) / 2) b->heap[i] = b->heap[(i - 1) / 2];
    b->heap[i] = p;
}

static Prefix pop(DdTree *b, const Tree *tree)
{
    Prefix best = b->heap[0], last = b->heap[--b->n_heap];
    int32_t i = 0;
    for (;;) {
        int32_t child = 2 * i + 1;
        if (child >= b->n_heap) break;
        if (child + 1 < b->n_heap && is_better(b, tree, &b->heap[child + 1], &b->heap[child])) child++;
        if (!is_better(b, tree, &b->heap[child], &last)) break;
        b->heap[i] = b->heap[child];
        i = child;
    }
    b->heap[i] = last;
    return best;
}

/* ---- growth ---- */

/* The guess of this rank behind `parent`; from the parent's score, so that no rounding is handed from sibling to
 * sibling. */
static Prefix prefix_of(const DdTree *b, const Tree *tree, int32_t parent, int32_t rank)
{
    int32_t depth = tree->depth[parent] + 1;
    return (Prefix){ tree->score[parent] + log_p_at(b, depth, rank), parent, depth, rank };
}

static bool has_guess(const DdTree *b, int32_t n_rows, int32_t depth, int32_t rank)
{
    return depth <= n_rows && rank < b->n_guesses[depth];
}

/* Makes the prefix a node and lets its next sibling in. */
static int32_t plant(DdTree *b, Tree *tree, int32_t n_rows, const Prefix *p)
{
    int32_t node = tree_add(tree, p->parent, b->token[(p->depth - 1) * b->max_budget + p->rank], p->score);
    b->rank[node] = p->rank;
    if (has_guess(b, n_rows, p->depth, p->rank + 1)) push(b, tree, prefix_of(b, tree, p->parent, p->rank + 1));
    return node;
}

static void grow(DdTree *b, Tree *tree, int32_t n_rows, int32_t n_nodes, bool spine_first)
{
    int32_t tip = 0;
    b->n_heap = 0;
    while (spine_first && tree->n_nodes < n_nodes && has_guess(b, n_rows, tree->depth[tip] + 1, 0)) {
        Prefix p = prefix_of(b, tree, tip, 0);
        tip = plant(b, tree, n_rows, &p);
    }
    if (tip == 0 && has_guess(b, n_rows, 1, 0)) push(b, tree, prefix_of(b, tree, 0, 0));
    while (b->n_heap > 0 && tree->n_nodes < n_nodes) {
        Prefix p = pop(b, tree);
        int32_t node = plant(b, tree, n_rows, &p);
        if (has_guess(b, n_rows, p.depth + 1, 0)) push(b, tree, prefix_of(b, tree, node, 0));
    }
}

static int32_t budget_of(const DdTree *b, DdTreeShape shape, const Tree *tree)
{
    int32_t budget = shape.budget < b->max_budget ? shape.budget : b->max_budget;
    return budget < tree->max_nodes ? budget : tree->max_nodes - 1;
}

int32_t ddtree_rows(const DdTree *b, int32_t n_rows, DdTreeShape shape, const Tree *tree, int32_t *n_guesses)
{
    int32_t budget = budget_of(b, shape, tree);
    *n_guesses = shape.top_k > 0 && shape.top_k < budget ? shape.top_k : budget;
    if (n_rows > b->max_rows) n_rows = b->max_rows;
    return n_rows < budget ? n_rows : budget; /* no prefix is longer */
}

void ddtree_grow_ranked(DdTree *b, int32_t n_rows, DdTreeShape shape, Tree *tree)
{
    CHECK(tree->n_nodes == 1);
    grow(b, tree, n_rows, budget_of(b, shape, tree) + 1, shape.spine_first);
}

Status ddtree_grow(DdTree *b, Tensor logits, DdTreeShape shape, Tree *tree, Error *err)
{
    int32_t n_guesses, n_rows = ddtree_rows(b, (int32_t)logits.shape[0], shape, tree, &n_guesses);
    for (int32_t depth = 1; depth <= n_rows; depth++) {
        if (ddtree_rank(b, depth, tensor_f32(logits, depth - 1), (int32_t)logits.shape[1], n_guesses)) continue;
        return error_set(err, ERR_NUMERIC, "the drafter's logits of row %d are not finite", depth - 1);
    }
    ddtree_grow_ranked(b, n_rows, shape, tree);
    return OK;
}
