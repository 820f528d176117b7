/* linear over weights in stored blocks (MATH_INT8_BLOCK, contract.h): what the variants share. Input rows are turned to
 * integers once a call and worker; then each panel is read once for every MAX_ROWS rows. */
#pragma once

#include "backend/cpu/blocks.h"
#include "backend/cpu/linear.h"

enum { BLOCKS_MAX_ROWS = 8 };

/* Rows of integers: x = scale * q in each 32 inputs. */
typedef struct BlockRows {
    int64_t  n, n_in;
    int8_t  *q;       /* [n][n_in] */
    float   *scale;   /* [n][n_in / 32] */
    float   *sum;     /* [n][n_in / 32] scale * sum of q */
    int32_t *group_sum; /* [n][n_in / 16] sums of q */
} BlockRows;

/* Sums of one panel for rows [first, first + n_rows), at most BLOCKS_MAX_ROWS of them: out [n_rows][16]. Units [begin, end). */
typedef void (*BlocksPanelFn)(const Weight *w, const BlockLayout *l, int64_t panel, int64_t begin, int64_t end, const BlockRows *rows,
                              int64_t first, int n_rows, float *out);

/* The work of one worker: LinearSpansFn with the panel function of a variant. */
void linear_blocks_spans(BlocksPanelFn fn, const LinearSpan *spans, int n_spans, Tensor x, void *scratch);

/* The contract; those of the variants are cpu_*_linear_blocks(), the rest of the table is linear's. */
void blocks_scalar_spans(const LinearSpan *spans, int n_spans, Tensor x, void *scratch);
