/* linear by tiles of rows and panels: what the variants share. A variant brings the arithmetic of a tile, how it wants
 * the input rows packed, and how sums become outputs.
 *
 *     for a group of P panels                      P streams of weights, each read from memory once
 *       for a block of K (never across a part)     P x 4 KB of weights now sit in L1
 *         for all blocks of R rows
 *           tile: load R x P sums, add the block's inputs, store them
 *
 * Every row block asks for its part of the lines of a later K block, wherever that is, so memory and arithmetic
 * work at the same time. Sums between blocks of K are float32 in scratch: same bits. */
#pragma once

#include "backend/cpu/linear.h"

enum {
    TILE_MAX_ROWS = 8,
    TILE_MAX_PANELS = 2,
    TILE_BLOCK_WORDS = 64, /* of K, 64 bytes each in a panel: weights, inputs and sums of a block stay in L1 */
    TILE_STEP_WORDS = 8,   /* between two looks at the lines to ask for */
};

/* One tile over one block of K. */
typedef struct Tile {
    const uint32_t *x;          /* packed input rows, from the block's first word on */
    const uint32_t *panels;     /* word 0 of the block in panel 0; the others panel_step words apart */
    const uint32_t *next;       /* lines that will be wanted next, laid out likewise ... */
    int             n_ask;      /* ... so many of each panel are asked for every STEP_WORDS words */
    int64_t         panel_step, n_words;
    float          *acc;        /* [R][P][16], 64-byte aligned */
    bool            is_first;   /* of its part: sums start at 0 */
} Tile;
typedef void (*TileFn)(const Tile *t);

/* Rows of one call that are worked on together, in blocks of `block` rows (the last may be shorter). */
typedef struct TileRows {
    Tensor    x;        /* [n, n_in] */
    int64_t   n, n_words;
    int       block;
    uint32_t *packed;   /* blocks one after the other, in the variant's layout */
} TileRows;

typedef struct LinearKernels {
    int max_rows; /* of a tile, at most TILE_MAX_ROWS; panels are 1 or 2 */
    TileFn tile[2][TILE_MAX_ROWS][TILE_MAX_PANELS]; /* [0] float32, [1] bf16; R rows and P panels: [R - 1][P - 1] */

    /* 32-bit items that a word of R rows takes when it is packed. A block of K is a whole number of words further. */
    int (*packed_items)(bool is_bf16, int R);

    /* Packs a block of R rows; may write PACK_SLACK_BYTES too much. */
    void (*pack)(const TileRows *rows, uint32_t *to, const char *const row[TILE_MAX_ROWS], int R);

    /* Sums of one row and P panels to n_left outputs, or fewer when the panels hold fewer; streamed: past the caches,
     * whole panels only, to an aligned place. */
    void (*store)(float *to, const float *acc, int P, int64_t n_left, bool is_streamed);
    void (*fence)(void); /* orders streamed stores before what follows; NULL: this variant never streams */

    /* silu(first panel) * second panel, of one row, to n values of "act" from `col` on. */
    void (*store_gated)(void *row, DType dtype, int64_t col, const float *acc, int64_t n);
} LinearKernels;

enum { PACK_SLACK_BYTES = 1024 };

void linear_tile_spans(const LinearKernels *k, const LinearSpan *spans, int n_spans, Tensor x, void *scratch);
void linear_tile_gated(const LinearKernels *k, const GatedJob *job, int64_t first_panel, int64_t end_panel,
                       void *scratch);
