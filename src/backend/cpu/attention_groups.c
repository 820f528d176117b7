/* Attention by groups of queries: the bits of cpu/attention.c, with every key and value read once for many queries.
 * The arithmetic is the variant's (attention_groups.h).
 *
 * The query heads that share a KV head, of neighbouring rows of one sequence, form a group. A group goes
 * through the splits of its context:
 *
 *     scores of the committed keys, a tile at a time     shared by all queries of the group
 *     scores of the keys on each row's own path          (uncertain rows)
 *     softmax of the split, per query
 *     weighted values: committed, then path              ascending positions
 *
 * and leaves one partial (m, l, o) a query and split; the partials are put together at the end, when the
 * largest m is known. A work item is a group. When there are fewer groups than the workers need (one row and a
 * long context), an item is some splits of a group and the partials meet in a second round.
 *
 * Items lie head by head, and each worker begins with its even part of them: those heads whose queries, keys and values
 * it wrote itself. Who is done early takes items that others have not begun.
 *
 * A key or value outside a query's own positions is never added, not even with weight zero: it may be NaN. */
#include "backend/cpu/attention_groups.h"

#include "backend/cpu/kv.h"
#include "base/fmath.h"

#include <stdatomic.h>
#include <string.h>

enum {
    GROUP_QUERIES = 48,          /* scores of a split: 48 x 2 KB, a tenth of the L2 cache */
    MIN_QUERIES_BY_TILE = 5,     /* below, turning the keys costs more than it saves */
    X_STRIDE = ATTN_SPLIT + 32,  /* a tile may write past the last key */
    ITEMS_PER_WORKER = 4,
    MAX_AHEAD = 64,              /* rows of the cache that are asked for before they are needed, and their bytes */
    AHEAD_BYTES = 16 << 10,
    MIN_WORK_PER_WORKER = 1 << 17, /* multiplications that are worth waking a worker */
};

/* Items that a worker begins with; others may take some of them. */
typedef struct Share {
    atomic_llong next;
    int64_t      end;
} Share;

/* A worker's scratch: its share, a tile of keys or values, widened keys before they are turned, the scores of one split,
 * then room for partials. */
enum {
    SHARE_FLOATS = 32,
    TILE_FLOATS = TILE_KEYS * ATTN_MAX_HEAD_DIM,
    WIDE_FLOATS = 16 * ATTN_MAX_HEAD_DIM,
    SCORE_FLOATS = GROUP_QUERIES * X_STRIDE,
    FIRST_PARTIAL = SHARE_FLOATS + TILE_FLOATS + WIDE_FLOATS + SCORE_FLOATS,
    PARTIAL_FLOATS = WORKER_SCRATCH_BYTES / 4 - FIRST_PARTIAL,
};

typedef struct Plan {
    AttentionJob job;
    const AttentionKernels *k;
    bool    has_scales;
    int32_t heads_per_kv;
    int32_t group_queries; /* queries of a group, at most */
    int32_t n_splits;      /* of the longest context */
    int32_t ahead;         /* rows to prefetch: a lone row reads the cache at the speed of memory, and since blocks
                            * lie scattered, the machine's own prefetcher starts anew every few KB */
    int32_t n_chunks;      /* items that a group's splits are cut into */
    int64_t n_groups, n_queries; /* of one KV head */
    int64_t partial_floats, queries_per_worker; /* whose partials fit into a worker's scratch */
} Plan;

/* Queries [first, first + n) of a sequence (row-major over its rows and the heads of one KV head). */
typedef struct Group {
    const BatchSeq *seq;
    int32_t kv_head, first, n;
    float  *tile, *wide, *x;
    const float *q[GROUP_QUERIES];
    float       *out[GROUP_QUERIES];
    float       *partial[GROUP_QUERIES]; /* of split 0, the others behind it */
    int32_t      first_key[GROUP_QUERIES], n_keys[GROUP_QUERIES]; /* a query sees positions [first_key, n_keys) */
    int32_t      first_seen; /* by any of them */
    int32_t      start, end; /* positions of the splits of the item at hand */
    const void  *key[2 * ATTN_SPLIT + MAX_AHEAD]; /* of the split's shared positions; the values behind them */
    const void **value;
    float        key_factor[X_STRIDE];   /* of the split's shared positions: what a product with the key is multiplied by */
    float        value_factor[X_STRIDE]; /* of all of them, as the row at hand sees them; only where the cache has scales */
} Group;

static float *partial_of(const Plan *plan, const Group *g, int32_t query, int32_t split)
{
    return g->partial[query] + split * plan->partial_floats;
}

static int32_t row_of(const Plan *plan, const Group *g, int32_t query)
{
    return g->seq->first_row + (g->first + query) / plan->heads_per_kv;
}

/* ---- the keys of a group ---- */

/* Positions that all of a sequence's rows read from committed entries; the rest lies on their paths. */
static int32_t shared_keys(const Group *g)
{
    return g->seq->certain ? g->n_keys[g->n - 1] : g->seq->n_committed;
}

/* Of a cache without scales: one factor for all. */
static void set_key_factors(const Plan *plan, Group *g)
{
    for (int32_t j = 0; j < X_STRIDE; j++) g->key_factor[j] = plan->job.scale;
}

/* Neighbours in one block: positions [first, first + n) at most. */
typedef struct Run {
    int32_t store, n;
} Run;
static Run run_at(const Plan *plan, const Group *g, int32_t first, int32_t n)
{
    const KvView *view = &plan->job.view;
    int32_t in_block = view->block_size - first % view->block_size;
    return (Run){ kv_store_at(view, g->seq->slot, first), in_block < n ? in_block : n };
}

static void list_keys(const Plan *plan, const Group *g, const void **key, int32_t first, int32_t n)
{
    int64_t row_bytes = kv_view_row_bytes(&plan->job.view);
    for (int32_t j = 0; j < n;) {
        Run run = run_at(plan, g, first + j, n - j);
        const char *at = kv_key(&plan->job.view, run.store, g->kv_head);
        for (int32_t i = 0; i < run.n; i++, j++) key[j] = at + i * row_bytes;
    }
}

/* Of positions [first, first + n), to the beginning of the split's factors. */
static void list_factors(const Plan *plan, Group *g, int32_t first, int32_t n)
{
    for (int32_t j = 0; j < n;) {
        Run run = run_at(plan, g, first + j, n - j);
        const float *key = kv_key_scale(&plan->job.view, run.store, g->kv_head);
        const float *value = kv_value_scale(&plan->job.view, run.store, g->kv_head);
        for (int32_t i = 0; i < run.n; i++) {
            g->key_factor[j + i] = plan->job.scale * (key[i] * KV_CODE_UNIT);
            g->value_factor[j + i] = value[i] * KV_CODE_UNIT;
        }
        j += run.n;
    }
}

/* All of a split are wanted before its first key, and each block has a line of them: asked for a split ahead. */
static void ask_for_scales(const Plan *plan, const Group *g, int32_t first, int32_t n)
{
    for (int32_t j = 0; j < n;) {
        Run run = run_at(plan, g, first + j, n - j);
        const float *key = kv_key_scale(&plan->job.view, run.store, g->kv_head);
        const float *value = kv_value_scale(&plan->job.view, run.store, g->kv_head);
        for (int32_t i = 0; i < run.n; i += 16) {
            __builtin_prefetch(key + i);
            __builtin_prefetch(value + i);
        }
        j += run.n;
    }
}

/* The first rows of an item's first split; all later ones are asked for on the way. */
static void ask_for_first(const Plan *plan, const Group *g, int32_t n)
{
    int64_t row_bytes = kv_view_row_bytes(&plan->job.view);
    for (int32_t i = 0; i < n && i < plan->ahead; i++) {
        for (int64_t at = 0; at < row_bytes; at += 64) {
            __builtin_prefetch((const char *)g->key[i] + at);
            __builtin_prefetch((const char *)g->value[i] + at);
        }
    }
}

/* Lists the keys of positions [first, first + n), the last one again to fill its tile, then their values, then what those
 * find who look ahead: keys of the next split, or the last value again. */
static void list_shared(const Plan *plan, Group *g, int32_t first, int32_t n)
{
    const int64_t to_value = kv_to_value(&plan->job.view);
    const int32_t left = shared_keys(g) - first - n, n_tiled = (n + TILE_KEYS - 1) / TILE_KEYS * TILE_KEYS;
    if (n <= 0) return;
    list_keys(plan, g, g->key, first, n);
    for (int32_t j = n; j < n_tiled; j++) g->key[j] = g->key[n - 1];
    g->value = g->key + n_tiled;
    for (int32_t i = 0; i < n + MAX_AHEAD; i++) g->value[i] = (const char *)g->key[i < n ? i : n - 1] + to_value;
    if (left > 0 && first + n < g->end) list_keys(plan, g, g->value + n, first + n, left < MAX_AHEAD ? left : MAX_AHEAD);
    if (first == g->start) ask_for_first(plan, g, n);
    if (!plan->has_scales) return;
    list_factors(plan, g, first, n);
    if (left > 0 && first + n < g->end) ask_for_scales(plan, g, first + n, left < ATTN_SPLIT ? left : ATTN_SPLIT);
}

/* Store of depth `depth` of a row's path. */
static int32_t path_store(const Plan *plan, int32_t row, int32_t depth)
{
    return plan->job.store[plan->job.batch->path[(int64_t)row * MAX_DEPTH + depth]];
}

/* The keys of depths [first, first + n <= 16) of a row's path; the last one again up to 16. */
static void list_path_keys(const Plan *plan, const Group *g, int32_t row, int32_t first, int32_t n, const void *key[16],
                           float factor[16])
{
    const KvView *view = &plan->job.view;
    for (int32_t j = 0; j < 16; j++) {
        int32_t store = path_store(plan, row, first + (j < n ? j : n - 1));
        key[j] = kv_key(view, store, g->kv_head);
        factor[j] = plan->job.scale;
        if (plan->has_scales) factor[j] *= *kv_key_scale(view, store, g->kv_head) * KV_CODE_UNIT;
    }
}

/* Factors of the values of a row's own path in split [start, end). */
static void list_path_factors(const Plan *plan, Group *g, int32_t row, int32_t start, int32_t end)
{
    int32_t n_committed = g->seq->n_committed, n_keys = plan->job.batch->index[row] + 1;
    if (n_keys < end) end = n_keys;
    for (int32_t j = start > n_committed ? start : n_committed; j < end; j++) {
        int32_t store = path_store(plan, row, j - n_committed);
        g->value_factor[j - start] = *kv_value_scale(&plan->job.view, store, g->kv_head) * KV_CODE_UNIT;
    }
}

/* ---- scores ---- */

static void score_list(const Plan *plan, const Group *g, int32_t first_query, int32_t end_query, int32_t at,
                       const void *const key[16], const float *factor, int32_t ahead)
{
    const AttentionJob *job = &plan->job;
    for (int32_t i = first_query; i < end_query; i += 4) {
        float *x[4];
        int32_t n = end_query - i < 4 ? end_query - i : 4;
        for (int32_t u = 0; u < n; u++) x[u] = g->x + (i + u) * X_STRIDE + at;
        plan->k->scores_by_rows(x, g->q + i, n, key, factor, ahead, job->view.head_dim, job->view.dtype);
    }
}

/* 16 keys into column `at` of the tile. Codes are widened first: once for all queries, so it need not be fast. */
static void turn_keys(const Plan *plan, const Group *g, int32_t at, const void *const *key)
{
    int32_t dim = plan->job.view.head_dim;
    const void *wide[16];
    if (!plan->has_scales) {
        plan->k->turn_keys(g->tile + at, key, plan->ahead, dim, plan->job.view.dtype == DT_BF16);
        return;
    }
    for (int32_t i = 0; i < 16; i++) {
        float *row = g->wide + (int64_t)i * dim;
        plan->k->widen(row, key[i], key[i + plan->ahead], dim, plan->job.view.dtype);
        wide[i] = row;
    }
    plan->k->turn_keys(g->tile + at, wide, 0, dim, false);
}

/* n_vectors times 16 keys. */
static void score_tile(const Plan *plan, const Group *g, int32_t first_query, int32_t at, const void *const *key,
                       int n_vectors)
{
    for (int i = 0; i < n_vectors; i++) turn_keys(plan, g, 16 * i, key + 16 * i);
    for (int32_t i = first_query; i < g->n; i += BLOCK_QUERIES) {
        float *x[BLOCK_QUERIES];
        const float *q[BLOCK_QUERIES];
        int32_t n = g->n - i < BLOCK_QUERIES ? g->n - i : BLOCK_QUERIES;
        for (int32_t u = 0; u < n + n % 2; u++) {
            int32_t query = i + (u < n ? u : n - 1);
            x[u] = g->x + query * X_STRIDE + at;
            q[u] = g->q[query];
        }
        plan->k->scores_by_tile(x, q, n, g->tile, g->key_factor + at, n_vectors, plan->job.view.head_dim);
    }
}

/* First query that sees position j: rows of a certain sequence see more and more. */
static int32_t first_query_at(const Group *g, int32_t j)
{
    int32_t i = 0;
    while (i < g->n && g->n_keys[i] <= j) i++;
    return i;
}

/* Start of the first tile of a split that somebody sees. */
static int32_t first_tile(const Group *g, int32_t start)
{
    return g->first_seen > start ? (g->first_seen - start) / TILE_KEYS * TILE_KEYS : 0;
}

/* Positions [start, start + n). */
static void score_shared(const Plan *plan, const Group *g, int32_t start, int32_t n)
{
    for (int32_t t = first_tile(g, start); t < n; t += TILE_KEYS) {
        int32_t first_query = first_query_at(g, start + t);
        if (g->n - first_query >= MIN_QUERIES_BY_TILE) {
            score_tile(plan, g, first_query, t, g->key + t, n - t > 16 ? 2 : 1);
        } else {
            for (int32_t u = t; u < t + TILE_KEYS && u < n; u += 16)
                score_list(plan, g, first_query, g->n, u, g->key + u, g->key_factor + u, plan->ahead);
        }
    }
}

/* Positions [first, end) of one row's path within a split; n_queries of the group belong to the row. */
typedef struct PathPart {
    int32_t row, first_query, n_queries;
    int32_t first, end;
} PathPart;

/* Goes from row to row of the group: *part zeroed before the first call, false after the last row. */
static bool next_path(const Plan *plan, const Group *g, int32_t start, int32_t end, PathPart *part)
{
    int32_t i = part->first_query + part->n_queries, n_committed = g->seq->n_committed;
    if (g->seq->certain || i >= g->n) return false;
    part->row = row_of(plan, g, i);
    part->first_query = i;
    while (i < g->n && row_of(plan, g, i) == part->row) i++;
    part->n_queries = i - part->first_query;
    part->first = start > n_committed ? start : n_committed;
    if (part->first < g->first_key[part->first_query]) part->first = g->first_key[part->first_query];
    part->end = end < g->n_keys[part->first_query] ? end : g->n_keys[part->first_query];
    return true;
}

static void score_paths(const Plan *plan, const Group *g, int32_t start, int32_t end)
{
    const void *key[16];
    float factor[16];
    for (PathPart part = { 0 }; next_path(plan, g, start, end, &part);) {
        for (int32_t t = part.first; t < part.end; t += 16) {
            int32_t n = part.end - t < 16 ? part.end - t : 16;
            list_path_keys(plan, g, part.row, t - g->seq->n_committed, n, key, factor);
            score_list(plan, g, part.first_query, part.first_query + part.n_queries, t - start, key, factor, 0);
        }
    }
}

/* ---- weighted values ---- */

static void block_add(ValueBlock *b, float *o, const float *p, int32_t first, int32_t end)
{
    int i = b->n_q++;
    b->o[i] = o;
    b->p[i] = p;
    b->first[i] = first;
    b->end[i] = end;
}

/* Ready for use: filled up to an even number with the last query, whose sums are then computed and written twice. */
static void block_close(ValueBlock *b)
{
    if (b->n_q % 2) block_add(b, b->o[b->n_q - 1], b->p[b->n_q - 1], b->first[b->n_q - 1], b->end[b->n_q - 1]);
    b->first_any = b->first_all = b->first[0];
    b->end_any = b->end_all = b->end[0];
    for (int i = 1; i < b->n_q; i++) {
        if (b->first[i] < b->first_any) b->first_any = b->first[i];
        if (b->first[i] > b->first_all) b->first_all = b->first[i];
        if (b->end[i] > b->end_any) b->end_any = b->end[i];
        if (b->end[i] < b->end_all) b->end_all = b->end[i];
    }
    if (b->end_all < b->first_all) b->end_all = b->first_all; /* nothing in common */
}

static int32_t clamp(int32_t x, int32_t low, int32_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* Values of positions [start + at, start + at + n), for all queries that see them. */
static void add_shared_tile(const Plan *plan, const Group *g, int32_t split, int32_t at, int32_t n,
                            const void *const *value, int32_t ahead, DType dtype)
{
    int32_t t = split * ATTN_SPLIT + at;
    for (int32_t i = first_query_at(g, t); i < g->n;) {
        ValueBlock block = { 0 };
        for (; block.n_q < BLOCK_QUERIES && i < g->n; i++)
            block_add(&block, partial_of(plan, g, i, split) + PARTIAL_HEAD, g->x + i * X_STRIDE + at,
                      clamp(g->first_key[i] - t, 0, n), clamp(g->n_keys[i] - t, 0, n));
        block_close(&block);
        plan->k->add_values(&block, value, ahead, plan->job.view.head_dim, dtype);
    }
}

static void widen_values(const Plan *plan, float *tile, const void **value, int32_t n)
{
    int32_t dim = plan->job.view.head_dim;
    for (int32_t j = 0; j < n; j++) {
        float *row = tile + (int64_t)j * dim;
        plan->k->widen(row, value[j], value[j + plan->ahead], dim, plan->job.view.dtype);
        value[j] = row;
    }
}

static void add_shared(const Plan *plan, Group *g, int32_t split, int32_t n)
{
    DType dtype = plan->job.view.dtype;
    bool is_widened = dtype != DT_F32 && g->n > BLOCK_QUERIES;
    for (int32_t t = first_tile(g, split * ATTN_SPLIT); t < n; t += TILE_KEYS) {
        int32_t in_tile = n - t < TILE_KEYS ? n - t : TILE_KEYS;
        if (is_widened) widen_values(plan, g->tile, g->value + t, in_tile);
        add_shared_tile(plan, g, split, t, in_tile, g->value + t, is_widened ? 0 : plan->ahead, is_widened ? DT_F32 : dtype);
    }
}

static void add_paths(const Plan *plan, const Group *g, int32_t split, int32_t start, int32_t end)
{
    const void *value[MAX_DEPTH];
    for (PathPart part = { 0 }; next_path(plan, g, start, end, &part);) {
        int32_t n = part.end - part.first;
        if (n <= 0) continue;
        for (int32_t j = 0; j < n; j++)
            value[j] = kv_value(&plan->job.view, path_store(plan, part.row, part.first - g->seq->n_committed + j), g->kv_head);
        for (int32_t i = 0; i < part.n_queries;) {
            ValueBlock block = { 0 };
            for (; block.n_q < BLOCK_QUERIES && i < part.n_queries; i++) {
                int32_t query = part.first_query + i;
                block_add(&block, partial_of(plan, g, query, split) + PARTIAL_HEAD,
                          g->x + query * X_STRIDE + part.first - start, 0, n);
            }
            block_close(&block);
            plan->k->add_values(&block, value, 0, plan->job.view.head_dim, plan->job.view.dtype);
        }
    }
}

/* ---- one split, all splits, the end ---- */

static void soften_split(const Plan *plan, Group *g, int32_t split, int32_t start, int32_t end)
{
    int32_t row = -1;
    for (int32_t i = 0; i < g->n; i++) {
        int32_t n = g->n_keys[i] - start < ATTN_SPLIT ? g->n_keys[i] - start : ATTN_SPLIT;
        int32_t first = g->first_key[i] > start ? g->first_key[i] - start : 0;
        if (first >= n) continue;
        if (plan->has_scales && !g->seq->certain && row_of(plan, g, i) != row) {
            row = row_of(plan, g, i);
            list_path_factors(plan, g, row, start, end);
        }
        float *partial = partial_of(plan, g, i, split);
        memset(partial + PARTIAL_HEAD, 0, (size_t)plan->job.view.head_dim * sizeof *partial);
        plan->k->soften(g->x + i * X_STRIDE, first, n, plan->has_scales ? g->value_factor : NULL, partial);
    }
}

static void run_split(const Plan *plan, Group *g, int32_t split)
{
    int32_t start = split * ATTN_SPLIT, end = start + ATTN_SPLIT;
    int32_t n_shared = shared_keys(g) < end ? shared_keys(g) - start : ATTN_SPLIT;
    list_shared(plan, g, start, n_shared);
    score_shared(plan, g, start, n_shared);
    score_paths(plan, g, start, end);
    soften_split(plan, g, split, start, end);
    add_shared(plan, g, split, n_shared);
    add_paths(plan, g, split, start, end);
}

static void combine_query(const Plan *plan, const Group *g, int32_t query)
{
    int32_t n_splits = (g->n_keys[query] + ATTN_SPLIT - 1) / ATTN_SPLIT;
    int64_t step = plan->partial_floats;
    float largest = -F_INF, sum = 0;
    float *first = partial_of(plan, g, query, g->first_key[query] / ATTN_SPLIT);
    float *end = partial_of(plan, g, query, n_splits);
    for (const float *p = first; p < end; p += step) largest = p[0] > largest ? p[0] : largest;
    for (float *p = first; p < end; p += step) {
        p[0] = f_exp(p[0] - largest);
        sum = fmaf(p[1], p[0], sum);
    }
    plan->k->combine(g->out[query], first, end, step, sum, plan->job.view.head_dim);
}

/* ---- items ---- */

static int64_t queries_of(const Plan *plan, const BatchSeq *seq)
{
    return batch_seq_is_real(plan->job.batch, seq) ? (int64_t)seq->n_rows * plan->heads_per_kv : 0;
}

static int64_t groups_of(const Plan *plan, const BatchSeq *seq)
{
    return (queries_of(plan, seq) + plan->group_queries - 1) / plan->group_queries;
}

/* Finds groups whose numbers ascend within a head: the search goes on where it stopped. */
typedef struct Cursor {
    int32_t kv_head, seq;
    int64_t first_group, first_query; /* of that sequence, among the head's */
} Cursor;

static void find_sequence(const Plan *plan, Cursor *at, int32_t kv_head, int64_t group)
{
    if (kv_head != at->kv_head || group < at->first_group) *at = (Cursor){ .kv_head = kv_head };
    for (;; at->seq++) {
        const BatchSeq *seq = &plan->job.batch->seqs[at->seq];
        int64_t n = groups_of(plan, seq);
        if (group < at->first_group + n) return;
        at->first_group += n;
        at->first_query += queries_of(plan, seq);
    }
}

/* Partials of a query, counted head by head over the whole call: where the second round finds them. */
static float *shared_partial(const Plan *plan, int64_t query)
{
    float *scratch = worker_scratch(plan->job.st, (int)(query / plan->queries_per_worker));
    return scratch + FIRST_PARTIAL + query % plan->queries_per_worker * plan->n_splits * plan->partial_floats;
}

/* own: where partials go that nobody else needs; NULL: to their shared places. */
static void find_group(const Plan *plan, Cursor *at, int64_t item, float *own, Group *g)
{
    const AttentionJob *job = &plan->job;
    int64_t group = item % plan->n_groups;
    g->kv_head = (int32_t)(item / plan->n_groups);
    find_sequence(plan, at, g->kv_head, group);
    g->seq = &job->batch->seqs[at->seq];
    g->first = (int32_t)(group - at->first_group) * plan->group_queries;
    int64_t n_left = queries_of(plan, g->seq) - g->first;
    int64_t query = g->kv_head * plan->n_queries + at->first_query + g->first;
    g->n = (int32_t)(n_left < plan->group_queries ? n_left : plan->group_queries);
    g->first_seen = INT32_MAX;
    int32_t row = row_of(plan, g, 0), head = g->first % plan->heads_per_kv;
    for (int32_t i = 0; i < g->n; i++) {
        int32_t q_head = g->kv_head * plan->heads_per_kv + head;
        g->q[i] = tensor_f32(job->q, row) + q_head * job->q.stride[1];
        g->out[i] = tensor_f32(job->out, row) + q_head * job->out.stride[1];
        g->partial[i] = own ? own + i * plan->n_splits * plan->partial_floats : shared_partial(plan, query + i);
        g->first_key[i] = batch_first_key(job->batch, row);
        g->n_keys[i] = job->batch->index[row] + 1;
        if (g->first_key[i] < g->first_seen) g->first_seen = g->first_key[i];
        if (++head < plan->heads_per_kv) continue;
        head = 0;
        row++;
    }
}

/* Another worker may have written the queries and read what is written now. */
static void ask_for_rows(const Plan *plan, const Group *g)
{
    for (int32_t i = 0; i < g->n; i++) {
        for (int32_t d = 0; d < plan->job.view.head_dim; d += 16) {
            __builtin_prefetch(g->q[i] + d);
            __builtin_prefetch(g->out[i] + d, 1);
        }
    }
}

static int32_t most_keys(const Group *g)
{
    int32_t most = 0;
    for (int32_t i = 0; i < g->n; i++) most = g->n_keys[i] > most ? g->n_keys[i] : most;
    return most;
}

static void run_item(const Plan *plan, int64_t item, float *own_partials, Cursor *cursor, Group *g)
{
    bool is_whole = plan->n_chunks == 1;
    find_group(plan, cursor, item / plan->n_chunks, is_whole ? own_partials : NULL, g);
    ask_for_rows(plan, g);
    int32_t n_splits = (most_keys(g) + ATTN_SPLIT - 1) / ATTN_SPLIT;
    Range range = worker_range(n_splits, (int)(item % plan->n_chunks), plan->n_chunks);
    int32_t first = g->first_seen / ATTN_SPLIT > range.first ? g->first_seen / ATTN_SPLIT : (int32_t)range.first;
    g->start = first * ATTN_SPLIT;
    g->end = (int32_t)range.end * ATTN_SPLIT;
    for (int32_t s = first; s < range.end; s++) run_split(plan, g, s);
    for (int32_t i = 0; is_whole && i < g->n; i++) combine_query(plan, g, i);
}

static void run_items(void *arg, int worker, int n_workers)
{
    const Plan *plan = arg;
    Cursor cursor = { 0 };
    float *scratch = worker_scratch(plan->job.st, worker);
    Group g = { .tile = scratch + SHARE_FLOATS };
    g.wide = g.tile + TILE_FLOATS;
    g.x = g.wide + WIDE_FLOATS;
    if (!plan->has_scales) set_key_factors(plan, &g);
    for (int i = 0; i < n_workers; i++) { /* the own share, then what is left of the others */
        Share *share = worker_scratch(plan->job.st, (worker + i) % n_workers);
        for (;;) {
            int64_t item = atomic_fetch_add_explicit(&share->next, 1, memory_order_relaxed);
            if (item >= share->end) break;
            run_item(plan, item, scratch + FIRST_PARTIAL, &cursor, &g);
        }
    }
}

static void share_items(const Plan *plan, int n_workers)
{
    int64_t n_items = plan->job.view.n_heads * plan->n_groups * plan->n_chunks;
    for (int w = 0; w < n_workers; w++) {
        Share *share = worker_scratch(plan->job.st, w);
        Range range = worker_range(n_items, w, n_workers);
        atomic_store_explicit(&share->next, range.first, memory_order_relaxed);
        share->end = range.end;
    }
}

static void combine_groups(void *arg, int64_t first, int64_t end, int worker)
{
    const Plan *plan = arg;
    Cursor cursor = { 0 };
    Group g;
    for (int64_t group = first; group < end; group++) {
        find_group(plan, &cursor, group, NULL, &g);
        for (int32_t i = 0; i < g.n; i++) combine_query(plan, &g, i);
    }
}

/* ---- the plan of one call: how many queries a group has and into how many items its splits are cut ---- */

/* Multiplications of the whole call, about; also finds the longest context. */
static double measure(Plan *plan)
{
    double work = 0;
    int32_t longest = 0;
    for (int32_t s = 0; s < plan->job.batch->n_seqs; s++) {
        const BatchSeq *seq = &plan->job.batch->seqs[s];
        if (!batch_seq_is_real(plan->job.batch, seq)) continue;
        int32_t n = seq->n_committed + seq->n_rows;
        longest = n > longest ? n : longest;
        work += (double)n * seq->n_rows * plan->job.q.shape[1] * plan->job.view.head_dim * 2;
    }
    plan->n_splits = (longest + ATTN_SPLIT - 1) / ATTN_SPLIT;
    return work;
}

static void cut(Plan *plan, int n_workers)
{
    plan->partial_floats = PARTIAL_HEAD + plan->job.view.head_dim;
    plan->queries_per_worker = PARTIAL_FLOATS / (plan->partial_floats * plan->n_splits);
    CHECK(plan->queries_per_worker >= 1);
    plan->ahead = AHEAD_BYTES / (int32_t)kv_view_row_bytes(&plan->job.view);
    if (plan->ahead > MAX_AHEAD) plan->ahead = MAX_AHEAD;
    plan->group_queries = GROUP_QUERIES;
    if (plan->group_queries > plan->queries_per_worker) plan->group_queries = (int32_t)plan->queries_per_worker;
    plan->n_chunks = 1;

    for (int32_t s = 0; s < plan->job.batch->n_seqs; s++) {
        plan->n_groups += groups_of(plan, &plan->job.batch->seqs[s]);
        plan->n_queries += queries_of(plan, &plan->job.batch->seqs[s]);
    }
    int64_t n_groups = plan->n_groups * plan->job.view.n_heads, n_queries = plan->n_queries * plan->job.view.n_heads;
    bool has_room = n_queries <= plan->queries_per_worker * n_workers;
    if (n_groups < (int64_t)ITEMS_PER_WORKER * n_workers && has_room) {
        int64_t wanted = ((int64_t)ITEMS_PER_WORKER * n_workers + n_groups - 1) / n_groups;
        plan->n_chunks = (int32_t)(wanted < plan->n_splits ? wanted : plan->n_splits);
    }
}

void attention_by_groups(Stream *st, Tensor out, Tensor q, KvView view, const Batch *batch, const int32_t *store,
                         float scale, const AttentionKernels *kernels)
{
    if (view.head_dim % 16 != 0 || view.head_dim > ATTN_MAX_HEAD_DIM) {
        cpu_scalar_attention(st, out, q, view, batch, store, scale);
        return;
    }
    Plan plan = { .job = { out, q, view, batch, store, scale, st }, .k = kernels, .has_scales = kv_has_scales(view.dtype) };
    plan.heads_per_kv = (int32_t)(q.shape[1] / view.n_heads);
    attention_count(st, batch);
    double share = measure(&plan) / MIN_WORK_PER_WORKER;
    if (plan.n_splits == 0) return;
    int n_workers = share < st->n_in_use ? (int)share + 1 : st->n_in_use;
    cut(&plan, n_workers);
    share_items(&plan, n_workers);
    stream_parallel_n(st, n_workers, run_items, &plan);
    if (plan.n_chunks > 1) stream_for(st, plan.n_groups * view.n_heads, 1, combine_groups, &plan);
    FAULT_POINT("attention", tensor_rows(out, batch_real_rows(batch)), batch_real_rows(batch));
}
