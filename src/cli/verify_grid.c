/* See verify_grid.h. */
#include "cli/verify_grid.h"

static const int32_t chain_rows[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 31, 32 };
static const int32_t tree_rows[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 31, 32, 33, 63, 64, 65 };
static const double chances[] = { 0, 0.5, 1 };
static const int32_t chunks[] = { 0, 1, 3, 64 };
static const int32_t batches[] = { 1, 8 };

enum { N_CHAINS = sizeof chain_rows / sizeof *chain_rows, N_TREES = sizeof tree_rows / sizeof *tree_rows,
       N_SHAPES = N_CHAINS + N_TREES, N_CHANCES = 3, N_CHUNKS = 4, N_BATCHES = 2, N_WORKERS = 3 };

/* A refused draft costs a pass a token, so such cells are shorter; the widest row still fits once behind the prompt. */
static int32_t tokens_for(const GridCell *c, GridSize size)
{
    int32_t n = c->p == 0 ? 16 : c->p < 1 ? 40 : 72;
    if (size == GRID_FULL && c->batch > 1) n /= 2;
    int32_t least = (c->n_rows < 32 ? c->n_rows : 32) + 4;
    return n > least ? n : least;
}

/* In the default grid batch, chunk and workers turn at different speeds, so that every pair of them meets. */
static bool in_rotation(int shape, int chance, int batch, int chunk, int workers)
{
    int k = shape * N_CHANCES + chance;
    return batch == (k + k / 4) % N_BATCHES && chunk == k % N_CHUNKS && workers == (k + k / 12) % N_WORKERS;
}

static bool is_quick(const GridCell *c)
{
    int32_t n = c->n_rows;
    return c->chain ? n == 1 || n == 2 || n == 8 || n == 17 || n == 32 : n == 3 || n == 16 || n == 33 || n == 65;
}

int grid_cells(GridSize size, GridCell cells[GRID_MAX_CELLS])
{
    int n = 0;
    for (int chunk = 0; chunk < N_CHUNKS; chunk++)
        for (int shape = 0; shape < N_SHAPES; shape++)
            for (int k = 0; k < N_CHANCES * N_BATCHES * N_WORKERS; k++) {
                int chance = k % N_CHANCES, batch = k / N_CHANCES % N_BATCHES, workers = k / N_CHANCES / N_BATCHES;
                bool chain = shape < N_CHAINS;
                GridCell c = { .chain = chain, .n_rows = chain ? chain_rows[shape] : tree_rows[shape - N_CHAINS],
                               .p = chances[chance], .batch = batches[batch], .chunk = chunks[chunk], .workers = workers + 1 };
                if (size != GRID_FULL && !in_rotation(shape, chance, batch, chunk, workers)) continue;
                if (size == GRID_QUICK && !is_quick(&c)) continue;
                c.n_tokens = tokens_for(&c, size);
                cells[n++] = c;
            }
    return n;
}
