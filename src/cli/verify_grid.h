/* The grid of `tandem verify`: which drafted runs are compared with the plain one. Plain data; no engine here. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef enum GridSize { GRID_QUICK, GRID_DEFAULT, GRID_FULL } GridSize;

typedef struct GridCell {
    bool    chain;
    int32_t n_rows;    /* of every verify pass of a request, anchor included */
    double  p;         /* chance that a drafted spine token is the true one */
    int32_t batch;     /* requests side by side: 1 or 8 */
    int32_t chunk;     /* prompt rows a pass: 1, 3, 64; 0 = whole */
    int32_t workers;   /* 1 .. 3 */
    int32_t n_tokens;  /* new tokens of each request */
} GridCell;

enum { GRID_MAX_CELLS = 4096, GRID_MAX_TOKENS = 96, GRID_BATCH = 8 };

/* Cells, ordered by chunk so that an engine serves as many as possible. Chains of 1-17, 31 and 32 rows; trees of 1-17,
 * 31-33 and 63-65; p 0, 0.5, 1. Default: each with one batch size, chunk and worker count in rotation; full: with all. */
int grid_cells(GridSize size, GridCell cells[GRID_MAX_CELLS]);
