/* linear in AVX-512: tiles of R rows by P panels, in registers.
 *
 * The order of sums is the scalar one (linear.c): a lane is an output, its inputs come in ascending order.
 * vdpbf16ps is the contract's step of two bf16 inputs, bit for bit. What is free, and chosen here, is which
 * outputs are worked on at once:
 *
 *     for a group of P panels                      P streams of weights, each read from memory once
 *       for a block of K (never across a part)     P x 4 KB of weights now sit in L1
 *         for all blocks of R rows                 R x P accumulators, R broadcasts and P loads a step
 *           tile: load accumulators, add the block's inputs, store them
 *
 * The first row block of each K block asks for the lines of the next one, wherever that is, so memory works
 * while the other row blocks compute. Accumulators between blocks of K are float32 in scratch: same bits.
 * Input rows are packed so that the R broadcasts of a step lie side by side. */
#include "backend/cpu/linear.h"

#include <immintrin.h>

enum {
    MAX_R = 8, MAX_P = 2,      /* 16 accumulators hide the latency of the dot; 8 x 3 and 6 x 4 measured no faster */
    BLOCK_WORDS = 64,          /* of K, 64 bytes each in a panel: weights, inputs and sums of a block stay in L1 */
    MAX_ROWS = 128,            /* packed at once */
    MAX_PENDING = 4,           /* 1 + log2(MAX_K_PARTS) */
    ACC_BYTES = MAX_PENDING * MAX_ROWS * MAX_P * WEIGHT_PANEL * sizeof(float),
    PACK_BYTES = WORKER_SCRATCH_BYTES - ACC_BYTES,
};

#define UNROLL _Pragma("GCC unroll 8")

/* One tile over one block of K. */
typedef struct Tile {
    const uint32_t *x;          /* [n_words][R] packed */
    const uint32_t *panels;     /* word 0 of the block in panel 0; the others panel_words apart */
    const uint32_t *next;       /* the block that will be wanted next, laid out likewise */
    int64_t         panel_words, n_words;
    float          *acc;        /* [R][P][16] */
    bool            is_first;   /* of its part: sums start at 0 */
} Tile;
typedef void (*TileFn)(const Tile *t);

/* acc + the inputs of one word. */
static inline __attribute__((always_inline)) __m512 add_word(bool is_bf16, __m512 acc, __m512i x, __m512i w)
{
    if (is_bf16) return _mm512_dpbf16_ps(acc, (__m512bh)x, (__m512bh)w);
    return _mm512_fmadd_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(w), acc);
}

/* R, P, is_bf16 and asks are constants in every use: the arrays become registers. */
static inline __attribute__((always_inline)) void tile(const Tile *t, int R, int P, bool is_bf16, bool asks)
{
    __m512 acc[MAX_R][MAX_P];
    float *saved = t->acc;
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int p = 0; p < P; p++) {
            acc[r][p] = t->is_first ? _mm512_setzero_ps() : _mm512_load_ps(saved + (r * P + p) * WEIGHT_PANEL);
        }
    }
    const uint32_t *x = t->x, *w = t->panels, *next = t->next;
    int64_t panel_words = t->panel_words;
    for (int64_t i = 0; i < t->n_words; i++, x += R, w += WEIGHT_PANEL, next += WEIGHT_PANEL) {
        __m512i weight[MAX_P];
        UNROLL for (int p = 0; p < P; p++) {
            weight[p] = _mm512_loadu_si512(w + p * panel_words);
            if (asks) _mm_prefetch((const char *)(next + p * panel_words), _MM_HINT_T0);
        }
        UNROLL for (int r = 0; r < R; r++) {
            __m512i value = _mm512_set1_epi32((int)x[r]);
            UNROLL for (int p = 0; p < P; p++) acc[r][p] = add_word(is_bf16, acc[r][p], value, weight[p]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int p = 0; p < P; p++) _mm512_store_ps(saved + (r * P + p) * WEIGHT_PANEL, acc[r][p]);
    }
}

/* Every size of tile in both types; [1]: asks for the next block. */
#define TILE(R, P)                                                                                 \
    static void bf16_##R##x##P(const Tile *t) { tile(t, R, P, true, false); }                      \
    static void bf16_##R##x##P##_asks(const Tile *t) { tile(t, R, P, true, true); }                \
    static void f32_##R##x##P(const Tile *t) { tile(t, R, P, false, false); }                      \
    static void f32_##R##x##P##_asks(const Tile *t) { tile(t, R, P, false, true); }
#define TILES(P) TILE(1, P) TILE(2, P) TILE(3, P) TILE(4, P) TILE(5, P) TILE(6, P) TILE(7, P) TILE(8, P)
TILES(1)
TILES(2)

#define ENTRIES_OF(T, R)                                                                           \
    { { T##_##R##x1, T##_##R##x1_asks }, { T##_##R##x2, T##_##R##x2_asks } }
#define ENTRIES(T)                                                                                 \
    { ENTRIES_OF(T, 1), ENTRIES_OF(T, 2), ENTRIES_OF(T, 3), ENTRIES_OF(T, 4),                      \
      ENTRIES_OF(T, 5), ENTRIES_OF(T, 6), ENTRIES_OF(T, 7), ENTRIES_OF(T, 8) }
static const TileFn tiles[2][MAX_R][MAX_P][2] = { ENTRIES(f32), ENTRIES(bf16) };

/* ---- input rows, packed ---- */

/* Rows of one call that are worked on together, in blocks of `block` rows (the last may be shorter). */
typedef struct Rows {
    Tensor    x;        /* [n, n_in] */
    int64_t   n, n_words;
    int       block;
    uint32_t *packed;   /* blocks one after the other, each [n_words][rows of the block] */
} Rows;

static int rows_of_block(const Rows *rows, int64_t first)
{
    return (int)(rows->n - first < rows->block ? rows->n - first : rows->block);
}

static void pack_row(uint32_t *to, int stride, const void *row, int64_t n_in, bool is_bf16)
{
    int64_t n_whole = is_bf16 ? n_in / 2 : n_in;
    const char *from = row;
    for (int64_t i = 0; i < n_whole; i++) memcpy(&to[i * stride], from + i * sizeof *to, sizeof *to);
    if (is_bf16 && n_in % 2) to[n_whole * stride] = ((const uint16_t *)row)[n_in - 1];
}

static void pack_rows(const Rows *rows)
{
    bool is_bf16 = rows->x.dtype == DT_BF16;
    size_t row_bytes = (size_t)rows->x.stride[0] * dtype_bytes(rows->x.dtype);
    for (int64_t first = 0; first < rows->n; first += rows->block) {
        int n = rows_of_block(rows, first);
        for (int r = 0; r < n; r++) {
            const char *row = (const char *)rows->x.data + (size_t)(first + r) * row_bytes;
            pack_row(rows->packed + first * rows->n_words + r, n, row, rows->x.shape[1], is_bf16);
        }
    }
}

/* ---- groups of panels ---- */

/* A group of P panels and where the stream of weights goes on after it. */
typedef struct Group {
    const Weight   *weight;
    const uint32_t *panels;
    const uint32_t *next;    /* the group after it, or this one again */
    int64_t         n_words; /* of a panel's row */
    int             P;
} Group;

/* Adds words [first, end) of a part to acc, rows by rows. */
static void group_part(const Group *g, const Rows *rows, int64_t first, int64_t end, float *acc)
{
    const TileFn(*fn)[MAX_P][2] = tiles[g->weight->contract.mode == MATH_BF16];
    for (int64_t word = first; word < end; word += BLOCK_WORDS) {
        int64_t n = end - word < BLOCK_WORDS ? end - word : BLOCK_WORDS;
        bool is_last = word + n == g->n_words;
        Tile t = { .panels = g->panels + word * WEIGHT_PANEL, .panel_words = g->n_words * WEIGHT_PANEL, .n_words = n,
                   .next = is_last ? g->next : g->panels + (word + n) * WEIGHT_PANEL, .is_first = word == first };
        for (int64_t row = 0; row < rows->n; row += rows->block) {
            int R = rows_of_block(rows, row);
            t.x = rows->packed + row * rows->n_words + word * R;
            t.acc = acc + row * g->P * WEIGHT_PANEL;
            fn[R - 1][g->P - 1][row == 0](&t);
        }
    }
}

static void add_floats(float *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += WEIGHT_PANEL) {
        _mm512_store_ps(to + i, _mm512_add_ps(_mm512_load_ps(to + i), _mm512_load_ps(from + i)));
    }
}

/* All parts of K, added as they appear like carries of a binary counter (linear.c). The sum is in acc. */
static void group_sums(const Group *g, const Rows *rows, float *acc)
{
    int64_t n_sums = rows->n * g->P * WEIGHT_PANEL;
    int n_parts = g->weight->contract.k_parts, n_pending = 0;
    for (int part = 0; part < n_parts; part++) {
        group_part(g, rows, g->n_words / n_parts * part, g->n_words / n_parts * (part + 1), acc + n_pending * n_sums);
        n_pending++;
        for (int carry = part; carry & 1; carry >>= 1) {
            n_pending--;
            add_floats(acc + (n_pending - 1) * n_sums, acc + n_pending * n_sums, n_sums);
        }
    }
}

/* Sums to output columns; a matrix may end inside its last panel. */
static void group_store(const Group *g, const Rows *rows, const float *acc, Tensor out, int64_t first_row, int64_t col)
{
    for (int64_t first = 0; first < rows->n; first += rows->block) {
        int R = rows_of_block(rows, first);
        for (int i = 0; i < R * g->P; i++, acc += WEIGHT_PANEL) {
            int64_t at = col + i % g->P * WEIGHT_PANEL, n = g->weight->n_out - at;
            __mmask16 mask = n >= WEIGHT_PANEL ? 0xffff : (__mmask16)((1u << n) - 1);
            _mm512_mask_storeu_ps(tensor_f32(out, first_row + first + i / g->P) + at, mask, _mm512_load_ps(acc));
        }
    }
}

static void span_rows(const LinearSpan *span, const Rows *rows, int64_t first_row, float *acc)
{
    const Weight *w = span->job->weight;
    Group g = { .weight = w, .n_words = weight_words(w) };
    for (int64_t panel = span->first; panel < span->end; panel += g.P) {
        g.P = (int)(span->end - panel < MAX_P ? span->end - panel : MAX_P);
        g.panels = (const uint32_t *)w->data + panel * g.n_words * WEIGHT_PANEL;
        g.next = panel + 2 * g.P <= span->end ? g.panels + g.P * g.n_words * WEIGHT_PANEL : g.panels;
        group_sums(&g, rows, acc);
        group_store(&g, rows, acc, span->job->out, first_row, panel * WEIGHT_PANEL);
    }
}

static void avx512_spans(const LinearSpan *spans, int n_spans, Tensor x, void *scratch)
{
    float *acc = scratch;
    Rows rows = { .packed = (uint32_t *)((char *)scratch + ACC_BYTES), .n_words = weight_words(spans[0].job->weight) };
    int64_t max_rows = PACK_BYTES / (rows.n_words * (int64_t)sizeof(uint32_t));
    if (max_rows > MAX_ROWS) max_rows = MAX_ROWS;
    for (int64_t first = 0; first < x.shape[0]; first += rows.n) {
        rows.n = x.shape[0] - first < max_rows ? x.shape[0] - first : max_rows;
        int64_t n_blocks = (rows.n + MAX_R - 1) / MAX_R;
        rows.block = (int)((rows.n + n_blocks - 1) / n_blocks);
        rows.x = x;
        rows.x.data = (char *)x.data + (size_t)(first * x.stride[0]) * dtype_bytes(x.dtype);
        pack_rows(&rows);
        for (int i = 0; i < n_spans; i++) span_rows(&spans[i], &rows, first, acc);
    }
}

static void linear_avx512(Stream *st, Tensor x, const LinearJob *jobs, int n_jobs)
{
    linear_spread(st, x, jobs, n_jobs, avx512_spans);
}

void cpu_avx512_add_linear(Ops *ops)
{
    ops->linear = linear_avx512;
}
