/* Attention by groups of queries that share keys: what the variants share (attention_groups.c). A variant brings the
 * inner loops, on lists of keys and values that are pointers, so positions and tree paths are the same to them.
 *
 * Scores come in two shapes with the same bits (16 accumulators a dot product, then the binary tree):
 *   by rows    lanes are values of one key; the sums of some keys are folded together at the end. For few
 *              queries: keys are read as they lie.
 *   by tiles   lanes are keys, accumulators come one after the other; keys are turned to [dim][TILE_KEYS]
 *              first. For many queries: no shuffles, and a key is widened once for all of them. */
#pragma once

#include "backend/cpu/attention.h"

enum {
    TILE_KEYS = 32,
    BLOCK_QUERIES = 6,
    PARTIAL_HEAD = 16, /* floats before o in a partial, to keep it aligned: the largest score, the sum of weights */
};

/* A block of queries and the values that each one sees, by their places in a list of values. */
typedef struct ValueBlock {
    int          n_q;
    float       *o[BLOCK_QUERIES];
    const float *p[BLOCK_QUERIES]; /* weights, one a place */
    int32_t      first[BLOCK_QUERIES], end[BLOCK_QUERIES];
    /* all see [first_all, end_all), somebody [first_any, end_any) */
    int32_t      first_any, first_all, end_all, end_any;
} ValueBlock;

typedef struct AttentionKernels {
    /* x[i][0 .. 16) = scaled q[i] . key[0 .. 16) for n_q <= 4 queries; key[ahead ...] are prefetched meanwhile. */
    void (*scores_by_rows)(float *const x[], const float *const q[], int n_q, const void *const key[], int32_t ahead,
                           int32_t dim, float scale, bool is_bf16);

    /* tile[d * TILE_KEYS + j] = key[j][d] for 16 keys. */
    void (*turn_keys)(float *tile, const void *const key[], int32_t ahead, int32_t dim, bool is_bf16);

    /* x[i][0 .. 16 n) = scaled q[i] . keys of the tile, for n_q <= BLOCK_QUERIES; x and q are filled up to an even
     * number with the last one. n is 1 or 2. */
    void (*scores_by_tile)(float *const x[], const float *const q[], int n_q, const float *tile, int n, int32_t dim,
                           float scale);

    /* Scores [first, end) become weights in place; their largest and their sum are left in the partial. Scores are
     * readable and writable to the next multiple of 16. */
    void (*soften)(float *x, int32_t first, int32_t end, float *partial);

    /* o[i] += p[i][j] * value[j] for the queries of a closed block, j ascending; value[ahead ...] are prefetched. */
    void (*add_values)(const ValueBlock *b, const void *const value[], int32_t ahead, int32_t dim, bool is_bf16);

    /* A bf16 row to float32; `ahead` is prefetched. */
    void (*widen)(float *out, const uint16_t *row, const uint16_t *ahead, int32_t dim);

    /* out = (sum of partial[0] * o over the partials [first, end), step floats apart) / sum */
    void (*combine)(float *out, const float *first, const float *end, int64_t step, float sum, int32_t dim);
} AttentionKernels;

/* attention() of the table. Sizes of head that are no multiple of 16 go to the scalar one. */
void attention_by_groups(Stream *st, Tensor out, Tensor q, KvView view, const Batch *batch, const int32_t *store,
                         float scale, const AttentionKernels *kernels);
