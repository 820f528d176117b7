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
    /* x[i][j] = factor[j] * (q[i] . key[j]) for j < 16 and n_q <= 4 queries; key[ahead ...] are prefetched meanwhile. */
    void (*scores_by_rows)(float *const x[], const float *const q[], int n_q, const void *const key[],
                           const float *factor, int32_t ahead, int32_t dim, DType dtype);

    /* tile[d * TILE_KEYS + j] = key[j][d] for 16 keys, float32 or bf16. */
    void (*turn_keys)(float *tile, const void *const key[], int32_t ahead, int32_t dim, bool is_bf16);

    /* x[i][j] = factor[j] * (q[i] . key j of the tile) for j < 16 n and n_q <= BLOCK_QUERIES; x and q are filled up to
     * an even number with the last one. n is 1 or 2. */
    void (*scores_by_tile)(float *const x[], const float *const q[], int n_q, const float *tile, const float *factor,
                           int n, int32_t dim);

    /* Scores [first, end) become weights in place, times factor[j] unless that is NULL; their largest and the sum of the
     * weights without factors are left in the partial. Scores and factors are readable, scores writable to the next
     * multiple of 16. */
    void (*soften)(float *x, int32_t first, int32_t end, const float *factor, float *partial);

    /* o[i] += p[i][j] * value[j] for the queries of a closed block, j ascending; value[ahead ...] are prefetched. */
    void (*add_values)(const ValueBlock *b, const void *const value[], int32_t ahead, int32_t dim, DType dtype);

    /* A row of bf16 or E4M3 to float32; `ahead` is prefetched. */
    void (*widen)(float *out, const void *row, const void *ahead, int32_t dim, DType dtype);

    /* out = (sum of partial[0] * o over the partials [first, end), step floats apart) / sum */
    void (*combine)(float *out, const float *first, const float *end, int64_t step, float sum, int32_t dim);
} AttentionKernels;

/* attention() of the table. Sizes of head that are no multiple of 16 go to the scalar one. */
void attention_by_groups(Stream *st, Tensor out, Tensor q, KvView view, const Batch *batch, const int32_t *store,
                         float scale, const AttentionKernels *kernels);
