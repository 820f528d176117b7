/* See linear_blocks.h. The scalar panel function is the contract. */
#include "backend/cpu/linear_blocks.h"

#include <math.h>

enum { MAX_PENDING = 4, /* 1 + log2(MAX_K_PARTS) */ GROUP = 16, LEAST_GROUP_SUMS = BLOCK / GROUP };

/* ---- input rows to integers ---- */

/* One block. A block that holds something not finite gets a scale that is no number, so its outputs show it. The loops are
 * plain so that the compiler makes vectors of them: every worker does this for all rows. */
static void quantise(const uint16_t x[BLOCK], int8_t *q, float *scale, float *sum, int32_t group_sum[LEAST_GROUP_SUMS])
{
    uint16_t most = 0;
    for (int k = 0; k < BLOCK; k++) {
        uint16_t magnitude = x[k] & 0x7fff;
        most = magnitude > most ? magnitude : most;
    }
    const float amax = bf16_to_f32(most);
    const bool is_finite = most < 0x7f80, is_zero = amax < 1e-30f;
    const float inverse = is_zero ? 0.0f : 127.0f / amax;
    int32_t value[BLOCK];
    for (int k = 0; k < BLOCK; k++) value[k] = is_finite ? (int32_t)rintf(bf16_to_f32(x[k]) * inverse) : 0;
    for (int k = 0; k < BLOCK; k++) q[k] = (int8_t)value[k];
    for (int g = 0; g < LEAST_GROUP_SUMS; g++) {
        int32_t total = 0;
#pragma GCC unroll 1 /* straight code would not become vectors any more */
        for (int k = 0; k < GROUP; k++) total += value[g * GROUP + k];
        group_sum[g] = total;
    }
    *scale = is_finite ? is_zero ? 0.0f : amax / 127.0f : NAN;
    *sum = *scale * (float)(group_sum[0] + group_sum[1]);
}

static void quantise_rows(BlockRows *rows, Tensor x, int64_t first)
{
    int64_t n_blocks = rows->n_in / BLOCK;
    for (int64_t r = 0; r < rows->n; r++) {
        for (int64_t b = 0; b < n_blocks; b++) {
            int64_t at = r * n_blocks + b;
            quantise(tensor_bf16(x, first + r) + b * BLOCK, rows->q + at * BLOCK, rows->scale + at, rows->sum + at,
                     rows->group_sum + at * LEAST_GROUP_SUMS);
        }
    }
}

/* Lays out as many rows of x as fit, from `first` on. */
static void place_rows(BlockRows *rows, Tensor x, int64_t first, void *scratch)
{
    enum { A_BLOCK = BLOCK + 2 * sizeof(float) + LEAST_GROUP_SUMS * sizeof(int32_t) };
    int64_t n_in = x.shape[1], row_bytes = n_in / BLOCK * A_BLOCK, most = WORKER_SCRATCH_BYTES / row_bytes;
    CHECK(most >= 1);
    *rows = (BlockRows){ .n = x.shape[0] - first < most ? x.shape[0] - first : most, .n_in = n_in };
    int64_t n_blocks = rows->n * (n_in / BLOCK);
    rows->scale = scratch;
    rows->sum = rows->scale + n_blocks;
    rows->group_sum = (int32_t *)(rows->sum + n_blocks);
    rows->q = (int8_t *)(rows->group_sum + n_blocks * LEAST_GROUP_SUMS);
}

/* ---- panels ---- */

/* All parts of K, added as they appear like carries of a binary counter (linear.c). */
static void panel_sums(BlocksPanelFn fn, const Weight *w, int64_t panel, const BlockRows *rows, int64_t first, int n_rows, float *out)
{
    float pending[MAX_PENDING][BLOCKS_MAX_ROWS * WEIGHT_PANEL];
    const BlockLayout *l = block_layout(w);
    int64_t n_units = w->n_in / l->unit;
    int n_parts = w->contract.k_parts, n_pending = 0;
    for (int part = 0; part < n_parts; part++) {
        fn(w, l, panel, n_units / n_parts * part, n_units / n_parts * (part + 1), rows, first, n_rows, pending[n_pending++]);
        for (int carry = part; carry & 1; carry >>= 1) {
            n_pending--;
            for (int i = 0; i < n_rows * WEIGHT_PANEL; i++) pending[n_pending - 1][i] += pending[n_pending][i];
        }
    }
    memcpy(out, pending[0], (size_t)(n_rows * WEIGHT_PANEL) * sizeof *out);
}

void linear_blocks_spans(BlocksPanelFn fn, const LinearSpan *spans, int n_spans, Tensor x, void *scratch)
{
    BlockRows rows = { 0 };
    for (int64_t first = 0; first < x.shape[0]; first += rows.n) {
        place_rows(&rows, x, first, scratch);
        quantise_rows(&rows, x, first);
        for (const LinearSpan *s = spans; s < spans + n_spans; s++) {
            for (int64_t p = s->first; p < s->end; p++) {
                for (int64_t r = 0; r < rows.n; r += BLOCKS_MAX_ROWS) {
                    float sums[BLOCKS_MAX_ROWS * WEIGHT_PANEL];
                    int n_rows = (int)(rows.n - r < BLOCKS_MAX_ROWS ? rows.n - r : BLOCKS_MAX_ROWS);
                    panel_sums(fn, s->job->weight, p, &rows, r, n_rows, sums);
                    linear_store_panel(s->job->out, first + r, p * WEIGHT_PANEL, sums, n_rows);
                }
            }
        }
    }
}

/* ---- the contract ---- */

static void add_block(const BlockNumbers *w, const BlockLayout *l, const BlockRows *rows, int64_t row, int64_t block, float acc[WEIGHT_PANEL])
{
    int64_t at = row * (rows->n_in / BLOCK) + block;
    const int8_t *x = rows->q + at * BLOCK;
    int per_group = BLOCK / l->n_groups;
    for (int g = 0; g < l->n_groups; g++) {
        int32_t sum[WEIGHT_PANEL] = { 0 };
        for (int k = g * per_group; k < (g + 1) * per_group; k++)
            for (int n = 0; n < WEIGHT_PANEL; n++) sum[n] += w->value[k][n] * x[k];
        for (int n = 0; n < WEIGHT_PANEL; n++) acc[n] = fmaf((float)sum[n], w->scale[g][n] * rows->scale[at], acc[n]);
    }
    if (!l->has_min) return;
    for (int n = 0; n < WEIGHT_PANEL; n++) acc[n] = fmaf(w->min[n], rows->sum[at], acc[n]);
}

static void scalar_panel(const Weight *w, const BlockLayout *l, int64_t panel, int64_t begin, int64_t end, const BlockRows *rows, int64_t first,
                         int n_rows, float *out)
{
    BlockNumbers numbers = { 0 };
    memset(out, 0, (size_t)(n_rows * WEIGHT_PANEL) * sizeof *out);
    for (int64_t u = begin; u < end; u++) {
        const uint8_t *unit = block_unit_at(w, l, panel, u);
        for (int k = 0; k < l->unit / BLOCK; k++) {
            block_read(w, l, unit, k, &numbers);
            for (int r = 0; r < n_rows; r++) add_block(&numbers, l, rows, first + r, u * (l->unit / BLOCK) + k, out + r * WEIGHT_PANEL);
        }
    }
}

void blocks_scalar_spans(const LinearSpan *spans, int n_spans, Tensor x, void *scratch)
{
    linear_blocks_spans(scalar_panel, spans, n_spans, x, scratch);
}
