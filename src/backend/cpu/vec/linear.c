/* linear in vectors: tiles of R rows by P panels, in registers (linear_tiles.h). A panel's 16 outputs are V_PER_16
 * vectors, and a lane is an output, so inputs come in ascending order as in the scalar contract.
 *
 * A word of two bf16 weights is taken apart by a mask and a shift, once for all rows of the tile; the contract adds the
 * odd input, then the even one. Input rows are packed as float32 beforehand, so a step of a row is a broadcast from
 * memory and the fma. Where R x P sums do not fit the registers, the panels go one after the other over a block. */
#include "backend/cpu/linear_tiles.h"
#include "backend/cpu/vec/fmath.h"

enum {
    REGISTERS = V_LANES == 8 ? 16 : 32,
    MAX_R = V_LANES == 8 ? 5 : V_LANES == 4 ? 6 : 8, /* rows: sums, weights and a broadcast fit with one panel */
    MAX_P = TILE_MAX_PANELS,
};

/* Sums of a tile that are kept in registers beside two vectors of weights for each of a panel and a broadcast. */
#define FITS(R, P) ((R) * (P) * V_PER_16 + 2 * V_PER_16 + 1 <= REGISTERS)

/* acc[r] += the words of one panel. weight: [0] the even input's, [1] the odd one's (bf16), or the one there is. */
ALWAYS_INLINE void add_words(V acc[MAX_R][V_PER_16], const float *x, const uint32_t *word, const int R,
                             const bool is_bf16)
{
    V even[V_PER_16], odd[V_PER_16];
    UNROLL for (int c = 0; c < V_PER_16; c++) {
        VU w;
        memcpy(&w, word + c * V_LANES, sizeof w);
        even[c] = is_bf16 ? (V)(w << 16) : (V)w;
        odd[c] = (V)(w & 0xffff0000u);
    }
    UNROLL for (int r = 0; r < R; r++) {
        if (is_bf16) {
            V value = v_set(x[2 * r + 1]);
            UNROLL for (int c = 0; c < V_PER_16; c++) acc[r][c] = v_fma(value, odd[c], acc[r][c]);
        }
        V value = v_set(x[is_bf16 ? 2 * r : r]);
        UNROLL for (int c = 0; c < V_PER_16; c++) acc[r][c] = v_fma(value, even[c], acc[r][c]);
    }
}

/* Panels [first, first + n) of a tile's P. All of R, P, n and is_bf16 are constants: the arrays become registers. */
ALWAYS_INLINE void tile_panels(const Tile *t, const int R, const int P, const int first, const int n,
                               const bool is_bf16)
{
    V acc[MAX_P][MAX_R][V_PER_16];
    float *saved = t->acc + first * WEIGHT_PANEL;
    UNROLL for (int p = 0; p < n; p++) {
        UNROLL for (int r = 0; r < R; r++) {
            UNROLL for (int c = 0; c < V_PER_16; c++)
                acc[p][r][c] = t->is_first ? v_set(0.0f) : v_load(saved + (r * P + p) * WEIGHT_PANEL + c * V_LANES);
        }
    }
    const float *x = (const float *)t->x;
    const uint32_t *w = t->panels + first * t->panel_step, *end = w + t->n_words * WEIGHT_PANEL;
    const uint32_t *next = t->next + first * t->panel_step;
    int64_t panel_step = t->panel_step;
    while (w < end) {
        for (int i = 0; i < t->n_ask; i++, next += WEIGHT_PANEL) {
            UNROLL for (int p = 0; p < n; p++) __builtin_prefetch(next + p * panel_step);
        }
        const uint32_t *stop = end - w < TILE_STEP_WORDS * WEIGHT_PANEL ? end : w + TILE_STEP_WORDS * WEIGHT_PANEL;
        for (; w < stop; x += is_bf16 ? 2 * R : R, w += WEIGHT_PANEL) {
            UNROLL for (int p = 0; p < n; p++) add_words(acc[p], x, w + p * panel_step, R, is_bf16);
        }
    }
    UNROLL for (int p = 0; p < n; p++) {
        UNROLL for (int r = 0; r < R; r++) {
            UNROLL for (int c = 0; c < V_PER_16; c++)
                v_store(saved + (r * P + p) * WEIGHT_PANEL + c * V_LANES, acc[p][r][c]);
        }
    }
}

ALWAYS_INLINE void tile(const Tile *t, const int R, const int P, const bool is_bf16)
{
    if (FITS(R, P)) {
        tile_panels(t, R, P, 0, P, is_bf16);
        return;
    }
    UNROLL for (int p = 0; p < P; p++) tile_panels(t, R, P, p, 1, is_bf16);
}

/* Every size of tile in both types; those above MAX_R are never asked for. */
#define TILE(R, P)                                                                                 \
    static void bf16_##R##x##P(const Tile *t) { tile(t, R < MAX_R ? R : MAX_R, P, true); }         \
    static void f32_##R##x##P(const Tile *t) { tile(t, R < MAX_R ? R : MAX_R, P, false); }
#define TILES(P) TILE(1, P) TILE(2, P) TILE(3, P) TILE(4, P) TILE(5, P) TILE(6, P) TILE(7, P) TILE(8, P)
TILES(1)
TILES(2)

/* ---- input rows, packed ---- */

static int packed_items(bool is_bf16, int R)
{
    return is_bf16 ? 2 * R : R;
}

ALWAYS_INLINE void pack_rows(const TileRows *rows, uint32_t *to, const char *const row[TILE_MAX_ROWS], const int R)
{
    int64_t n_in = rows->x.shape[1];
    if (rows->x.dtype == DT_F32) {
        for (int64_t k = 0; k < n_in; k++)
            UNROLL for (int r = 0; r < R; r++) *to++ = ((const uint32_t *)row[r])[k];
        return;
    }
    for (int64_t k = 0; k + 2 <= n_in; k += 2) {
        UNROLL for (int r = 0; r < R; r++) {
            uint32_t word;
            memcpy(&word, row[r] + k * 2, sizeof word);
            *to++ = word << 16;
            *to++ = word & 0xffff0000u;
        }
    }
    for (int r = 0; n_in % 2 && r < R; r++) {
        *to++ = (uint32_t)((const uint16_t *)row[r])[n_in - 1] << 16;
        *to++ = 0;
    }
}

static void pack(const TileRows *rows, uint32_t *to, const char *const row[TILE_MAX_ROWS], int R)
{
    switch (R) {
    case 1: pack_rows(rows, to, row, 1); break;
    case 2: pack_rows(rows, to, row, 2); break;
    case 3: pack_rows(rows, to, row, 3); break;
    case 4: pack_rows(rows, to, row, 4); break;
    case 5: pack_rows(rows, to, row, 5); break;
    case 6: pack_rows(rows, to, row, 6); break;
    case 7: pack_rows(rows, to, row, 7); break;
    default: pack_rows(rows, to, row, 8);
    }
}

/* ---- sums to outputs ---- */

static void store(float *to, const float *acc, int P, int64_t n_left, bool is_streamed)
{
    for (int64_t n = 0; n < P * WEIGHT_PANEL && n < n_left; n += V_LANES)
        v_store_n(to + n, v_load(acc + n), n_left - n);
}

static void store_gated(void *row, DType dtype, int64_t col, const float *acc, int64_t n)
{
    for (int64_t i = 0; i < n; i += V_LANES)
        v_put(row, col + i, v_silu(v_load(acc + i)) * v_load(acc + WEIGHT_PANEL + i), dtype, n - i);
}

/* ---- the table ---- */

#define ENTRY(T, R) { T##_##R##x1, T##_##R##x2 }
#define ENTRIES(T)                                                                                 \
    { ENTRY(T, 1), ENTRY(T, 2), ENTRY(T, 3), ENTRY(T, 4), ENTRY(T, 5), ENTRY(T, 6), ENTRY(T, 7), ENTRY(T, 8) }
static const LinearKernels kernels = {
    .max_rows = MAX_R, .tile = { ENTRIES(f32), ENTRIES(bf16) }, .packed_items = packed_items, .pack = pack,
    .store = store, .store_gated = store_gated,
};

static void spans(const LinearSpan *spans, int n_spans, Tensor x, void *scratch)
{
    linear_tile_spans(&kernels, spans, n_spans, x, scratch);
}

static void gated(const GatedJob *job, int64_t first_panel, int64_t end_panel, void *scratch)
{
    linear_tile_gated(&kernels, job, first_panel, end_panel, scratch);
}

static void linear(Stream *st, Tensor x, const LinearJob *jobs, int n_jobs)
{
    linear_spread(st, x, jobs, n_jobs, spans);
}

static void linear_silu_mul(Stream *st, Tensor out, Tensor x, const Weight *gate, const Weight *up)
{
    linear_spread_gated(st, &(GatedJob){ out, x, gate, up }, gated);
}

void VEC_NAME(add_linear)(Ops *ops)
{
    ops->linear = linear;
    ops->linear_silu_mul = linear_silu_mul;
}
