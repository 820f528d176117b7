/* linear by tiles: groups of panels, blocks of K, packed rows (linear_tiles.h). The order of sums is the scalar one:
 * what is free, and chosen here, is which outputs are worked on at once. */
#include "backend/cpu/linear_tiles.h"

enum {
    MAX_ROWS = 128,  /* packed at once */
    MAX_PENDING = 4, /* 1 + log2(MAX_K_PARTS) */
    ACC_BYTES = MAX_PENDING * MAX_ROWS * TILE_MAX_PANELS * WEIGHT_PANEL * sizeof(float),
    PACK_BYTES = WORKER_SCRATCH_BYTES - ACC_BYTES - PACK_SLACK_BYTES,
    STREAMED_FROM_BYTES = 8 << 20,
};

/* One worker's work on one call. */
typedef struct Work {
    const LinearKernels *k;
    TileRows rows;
    float   *acc;
} Work;

/* A group of P panels and where the stream of weights goes on after it. */
typedef struct Group {
    const Weight   *weight;
    const uint32_t *panels;
    const uint32_t *next;    /* the group after it; NULL: none */
    int64_t         n_words; /* of a panel's row */
    int64_t         panel_step; /* words from one panel of the group to the next */
    int             P;
} Group;

/* ---- input rows, packed ---- */

static int rows_of_block(const TileRows *rows, int64_t first)
{
    return (int)(rows->n - first < rows->block ? rows->n - first : rows->block);
}

static bool is_bf16(const TileRows *rows)
{
    return rows->x.dtype == DT_BF16;
}

static uint32_t *packed_block(const Work *w, int64_t first)
{
    const TileRows *rows = &w->rows;
    return rows->packed + first / rows->block * w->k->packed_items(is_bf16(rows), rows->block) * rows->n_words;
}

static void pack_rows(const Work *w)
{
    const TileRows *rows = &w->rows;
    size_t row_bytes = (size_t)rows->x.stride[0] * dtype_bytes(rows->x.dtype);
    for (int64_t first = 0; first < rows->n; first += rows->block) {
        const char *row[TILE_MAX_ROWS];
        int n = rows_of_block(rows, first);
        for (int r = 0; r < TILE_MAX_ROWS; r++) /* missing ones: the last again, never looked at */
            row[r] = (const char *)rows->x.data + (size_t)(first + (r < n ? r : n - 1)) * row_bytes;
        w->k->pack(rows, packed_block(w, first), row, n);
    }
}

/* Some rows of x packed for the work of one call; false: there are no more. *first and rows->n are 0 at first. */
static bool next_rows(Work *w, Tensor x, int64_t *first, void *scratch)
{
    TileRows *rows = &w->rows;
    *first += rows->n;
    if (*first >= x.shape[0]) return false;
    int64_t word_bytes = sizeof(uint32_t), max = w->k->max_rows;
    rows->x = x;
    rows->x.data = (char *)x.data + (size_t)(*first * x.stride[0]) * dtype_bytes(x.dtype);
    rows->n_words = (x.shape[1] * (int64_t)dtype_bytes(x.dtype) + word_bytes - 1) / word_bytes;
    int64_t block_bytes = rows->n_words * word_bytes * w->k->packed_items(is_bf16(rows), (int)max);
    int64_t max_rows = PACK_BYTES / block_bytes * max;
    if (max_rows > MAX_ROWS) max_rows = MAX_ROWS;
    CHECK(max_rows > 0);
    rows->n = x.shape[0] - *first < max_rows ? x.shape[0] - *first : max_rows;
    int64_t n_blocks = (rows->n + max - 1) / max;
    rows->block = (int)((rows->n + n_blocks - 1) / n_blocks);
    w->acc = scratch;
    rows->packed = (uint32_t *)((char *)scratch + ACC_BYTES);
    pack_rows(w);
    return true;
}

/* ---- groups of panels ---- */

static const uint32_t *panel_at(const Weight *w, int64_t panel)
{
    return (const uint32_t *)w->data + panel * weight_words(w) * WEIGHT_PANEL;
}

/* The words that a tile asks for while it works on those before `word`. With few rows a block is over before memory
 * has answered, but then memory is the limit and more requests on the way would not help; with two blocks of rows
 * and more there is time to catch up, if the distance covers the latency. */
static const uint32_t *words_ahead(const Group *g, int64_t word, int64_t n_row_blocks)
{
    if (n_row_blocks > 1) word += TILE_BLOCK_WORDS;
    if (word < g->n_words) return g->panels + word * WEIGHT_PANEL;
    return g->next ? g->next + (word - g->n_words) * WEIGHT_PANEL : NULL;
}

/* Adds words [first, end) of a part to acc, rows by rows. */
static void group_part(const Work *w, const Group *g, int64_t first, int64_t end, float *acc)
{
    const TileRows *rows = &w->rows;
    const TileFn(*fn)[TILE_MAX_PANELS] = w->k->tile[is_bf16(rows)];
    int64_t n_row_blocks = (rows->n + rows->block - 1) / rows->block;
    for (int64_t word = first; word < end; word += TILE_BLOCK_WORDS) {
        int64_t n = end - word < TILE_BLOCK_WORDS ? end - word : TILE_BLOCK_WORDS;
        Tile t = { .panels = g->panels + word * WEIGHT_PANEL, .panel_step = g->panel_step, .n_words = n,
                   .next = words_ahead(g, word + n, n_row_blocks), .is_first = word == first };
        t.n_ask = t.next ? (int)((TILE_STEP_WORDS + n_row_blocks - 1) / n_row_blocks) : 0;
        int64_t left = TILE_BLOCK_WORDS; /* to ask for */
        for (int64_t row = 0; row < rows->n; row += rows->block) {
            int R = rows_of_block(rows, row);
            t.x = packed_block(w, row) + word * w->k->packed_items(is_bf16(rows), R);
            t.acc = acc + row * g->P * WEIGHT_PANEL;
            fn[R - 1][g->P - 1](&t);
            left -= t.n_ask * (TILE_BLOCK_WORDS / TILE_STEP_WORDS);
            t.next += t.n_ask * (TILE_BLOCK_WORDS / TILE_STEP_WORDS) * WEIGHT_PANEL;
            if (left <= 0) t.n_ask = 0;
        }
    }
}

static void add_floats(float *restrict to, const float *restrict from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] += from[i];
}

/* All parts of K, added as they appear like carries of a binary counter (linear.c). The sum is in acc. */
static void group_sums(const Work *w, const Group *g)
{
    float *acc = w->acc;
    int64_t n_sums = w->rows.n * g->P * WEIGHT_PANEL;
    int n_parts = g->weight->contract.k_parts, n_pending = 0;
    for (int part = 0; part < n_parts; part++) {
        int64_t first = g->n_words / n_parts * part, end = g->n_words / n_parts * (part + 1);
        group_part(w, g, first, end, acc + n_pending * n_sums);
        n_pending++;
        for (int carry = part; carry & 1; carry >>= 1) {
            n_pending--;
            add_floats(acc + (n_pending - 1) * n_sums, acc + n_pending * n_sums, n_sums);
        }
    }
}

/* Outputs that no cache holds go past the caches. */
static bool can_stream(Tensor out)
{
    return (uintptr_t)out.data % 64 == 0 && out.stride[0] % WEIGHT_PANEL == 0 && out.shape[1] % WEIGHT_PANEL == 0 &&
           (size_t)(out.shape[0] * out.shape[1]) * sizeof(float) >= STREAMED_FROM_BYTES;
}

/* after: the first panel behind the span; NULL: none. */
static void span_rows(const Work *work, const LinearSpan *span, int64_t first_row, const uint32_t *after)
{
    const Weight *w = span->job->weight;
    Tensor out = span->job->out;
    bool is_streamed = work->k->fence && can_stream(out);
    Group g = { .weight = w, .n_words = weight_words(w), .panel_step = weight_words(w) * WEIGHT_PANEL };
    for (int64_t panel = span->first; panel < span->end; panel += g.P) {
        g.P = (int)(span->end - panel < TILE_MAX_PANELS ? span->end - panel : TILE_MAX_PANELS);
        g.panels = panel_at(w, panel);
        g.next = panel + g.P < span->end ? panel_at(w, panel + g.P) : after;
        group_sums(work, &g);
        int64_t col = panel * WEIGHT_PANEL;
        for (int64_t r = 0; r < work->rows.n; r++)
            work->k->store(tensor_f32(out, first_row + r) + col, work->acc + r * g.P * WEIGHT_PANEL, g.P,
                           w->n_out - col, is_streamed);
    }
    if (is_streamed) work->k->fence(); /* such stores are not ordered by what tells the caller that we are done */
}

void linear_tile_spans(const LinearKernels *k, const LinearSpan *spans, int n_spans, Tensor x, void *scratch)
{
    Work w = { .k = k };
    for (int64_t first = 0; next_rows(&w, x, &first, scratch);) {
        bool is_last = first + w.rows.n == x.shape[0];
        for (int i = 0; i < n_spans; i++) {
            const LinearSpan *next = i + 1 < n_spans ? &spans[i + 1] : is_last ? NULL : &spans[0];
            span_rows(&w, &spans[i], first, next ? panel_at(next->job->weight, next->first) : NULL);
        }
    }
}

/* ---- gate and up together: a group is one panel of each ---- */

void linear_tile_gated(const LinearKernels *k, const GatedJob *job, int64_t first_panel, int64_t end_panel,
                       void *scratch)
{
    Work w = { .k = k };
    Tensor out = job->out;
    intptr_t distance = (intptr_t)job->up->data - (intptr_t)job->gate->data;
    Group g = { .weight = job->gate, .n_words = weight_words(job->gate), .P = 2,
                .panel_step = distance / (intptr_t)sizeof(uint32_t) };
    for (int64_t first = 0; next_rows(&w, job->x, &first, scratch);) {
        for (int64_t panel = first_panel; panel < end_panel; panel++) {
            g.panels = panel_at(job->gate, panel);
            g.next = panel + 1 < end_panel ? panel_at(job->gate, panel + 1) : NULL;
            group_sums(&w, &g);
            int64_t col = panel * WEIGHT_PANEL, left = job->gate->n_out - col;
            for (int64_t r = 0; r < w.rows.n; r++) {
                void *row = out.dtype == DT_F32 ? (void *)tensor_f32(out, first + r) : tensor_bf16(out, first + r);
                k->store_gated(row, out.dtype, col, w.acc + r * 2 * WEIGHT_PANEL,
                               left < WEIGHT_PANEL ? left : WEIGHT_PANEL);
            }
        }
    }
}
