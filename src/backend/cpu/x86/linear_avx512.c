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
 * Every row block asks for its part of the lines of a later K block, wherever that is, so memory and arithmetic
 * work at the same time. Accumulators between blocks of K are float32 in scratch: same bits. Input rows are packed
 * so that the R broadcasts of a step lie side by side. */
#include "backend/cpu/linear.h"
#include "backend/cpu/x86/fmath_avx512.h"
#include "backend/cpu/x86/lanes_avx512.h"

#include <immintrin.h>

enum {
    MAX_R = 8, MAX_P = 2,      /* 16 accumulators hide the latency of the dot; 8 x 3 and 6 x 4 measured no faster */
    BLOCK_WORDS = 64,          /* of K, 64 bytes each in a panel: weights, inputs and sums of a block stay in L1 */
    STEP_WORDS = 8,            /* between two looks at the lines to ask for */
    MAX_ROWS = 128,            /* packed at once */
    MAX_PENDING = 4,           /* 1 + log2(MAX_K_PARTS) */
    ACC_BYTES = MAX_PENDING * MAX_ROWS * MAX_P * WEIGHT_PANEL * sizeof(float),
    SLACK_BYTES = 1024,        /* packing writes whole vectors */
    STREAMED_FROM_BYTES = 8 << 20,
    PACK_BYTES = WORKER_SCRATCH_BYTES - ACC_BYTES - SLACK_BYTES,
};

#define UNROLL _Pragma("GCC unroll 8")

/* One tile over one block of K. */
typedef struct Tile {
    const uint32_t *x;          /* [n_words][packed_stride(R)] */
    const uint32_t *panels;     /* word 0 of the block in panel 0; the others panel_step words apart */
    const uint32_t *next;       /* lines that will be wanted next, laid out likewise ... */
    int             n_ask;      /* ... so many of each panel are asked for every STEP_WORDS words */
    int64_t         panel_step, n_words;
    float          *acc;        /* [R][P][16] */
    bool            is_first;   /* of its part: sums start at 0 */
} Tile;
typedef void (*TileFn)(const Tile *t);

/* Rows lie side by side in packed inputs, a power of two apart. */
ALWAYS_INLINE int packed_stride(int R)
{
    return R <= 2 ? R : R <= 4 ? 4 : 8;
}

/* acc + the inputs of one word. */
ALWAYS_INLINE __m512 add_word(bool is_bf16, __m512 acc, __m512i x, __m512i w)
{
    if (is_bf16) return _mm512_dpbf16_ps(acc, (__m512bh)x, (__m512bh)w);
    return _mm512_fmadd_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(w), acc);
}

/* R, P and is_bf16 are constants in every use: the arrays become registers. */
ALWAYS_INLINE void tile(const Tile *t, const int R, const int P, const bool is_bf16)
{
    __m512 acc[MAX_R][MAX_P];
    float *saved = t->acc;
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int p = 0; p < P; p++) {
            acc[r][p] = t->is_first ? _mm512_setzero_ps() : _mm512_load_ps(saved + (r * P + p) * WEIGHT_PANEL);
        }
    }
    const uint32_t *x = t->x, *w = t->panels, *next = t->next, *end = w + t->n_words * WEIGHT_PANEL;
    int64_t panel_step = t->panel_step;
    while (w < end) {
        for (int i = 0; i < t->n_ask; i++, next += WEIGHT_PANEL) {
            UNROLL for (int p = 0; p < P; p++) _mm_prefetch((const char *)(next + p * panel_step), _MM_HINT_T0);
        }
        const uint32_t *stop = end - w < STEP_WORDS * WEIGHT_PANEL ? end : w + STEP_WORDS * WEIGHT_PANEL;
        for (; w < stop; x += packed_stride(R), w += WEIGHT_PANEL) {
            __m512i weight[MAX_P];
            UNROLL for (int p = 0; p < P; p++) weight[p] = _mm512_loadu_si512(w + p * panel_step);
            UNROLL for (int r = 0; r < R; r++) {
                __m512i value = _mm512_set1_epi32((int)x[r]);
                UNROLL for (int p = 0; p < P; p++) acc[r][p] = add_word(is_bf16, acc[r][p], value, weight[p]);
            }
        }
    }
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int p = 0; p < P; p++) _mm512_store_ps(saved + (r * P + p) * WEIGHT_PANEL, acc[r][p]);
    }
}

/* Every size of tile in both types. */
#define TILE(R, P)                                                                                 \
    static void bf16_##R##x##P(const Tile *t) { tile(t, R, P, true); }                             \
    static void f32_##R##x##P(const Tile *t) { tile(t, R, P, false); }
#define TILES(P) TILE(1, P) TILE(2, P) TILE(3, P) TILE(4, P) TILE(5, P) TILE(6, P) TILE(7, P) TILE(8, P)
TILES(1)
TILES(2)

#define ENTRY(T, R) { T##_##R##x1, T##_##R##x2 }
#define ENTRIES(T)                                                                                 \
    { ENTRY(T, 1), ENTRY(T, 2), ENTRY(T, 3), ENTRY(T, 4), ENTRY(T, 5), ENTRY(T, 6), ENTRY(T, 7), ENTRY(T, 8) }
static const TileFn tiles[2][MAX_R][MAX_P] = { ENTRIES(f32), ENTRIES(bf16) };

/* ---- input rows, packed ---- */

/* Rows of one call that are worked on together, in blocks of `block` rows (the last may be shorter). */
typedef struct Rows {
    Tensor    x;        /* [n, n_in] */
    int64_t   n, n_words;
    int       block;
    uint32_t *packed;   /* blocks one after the other, each [n_words][packed_stride(rows of the block)] */
} Rows;

static int rows_of_block(const Rows *rows, int64_t first)
{
    return (int)(rows->n - first < rows->block ? rows->n - first : rows->block);
}

static uint32_t *packed_block(const Rows *rows, int64_t first)
{
    return rows->packed + first / rows->block * packed_stride(rows->block) * rows->n_words;
}

/* 16 words of a row, or what is left of it. */
ALWAYS_INLINE __m512i load_words(const char *row, int64_t first, int64_t n_in, bool is_bf16)
{
    const char *at = row + first * (int64_t)sizeof(uint32_t);
    int64_t left = n_in - (is_bf16 ? 2 * first : first);
    if (left >= (is_bf16 ? 32 : 16)) return _mm512_loadu_si512(at);
    if (is_bf16) return _mm512_maskz_loadu_epi16((1u << left) - 1, at);
    return _mm512_maskz_loadu_epi32(lanes_left(left), at);
}

/* Words of S rows side by side: pairs of rows are interleaved, then pairs of those, far ones first. */
ALWAYS_INLINE void pack_block(const Rows *rows, uint32_t *to, const char *const row[MAX_R], bool is_bf16, const int S)
{
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    for (int64_t i = 0; i < rows->n_words; i += 16, to += 16 * S) {
        __m512i v[MAX_R], z[MAX_R];
        UNROLL for (int r = 0; r < S; r++) v[r] = load_words(row[r], i, rows->x.shape[1], is_bf16);
        UNROLL for (int half = S / 2, n = 1; half > 0; half /= 2, n *= 2) {
            UNROLL for (int k = 0; k < half * n; k++) {
                z[2 * k] = _mm512_permutex2var_epi32(v[k], low, v[k + half * n]);
                z[2 * k + 1] = _mm512_permutex2var_epi32(v[k], high, v[k + half * n]);
            }
            UNROLL for (int r = 0; r < S; r++) v[r] = z[r];
        }
        UNROLL for (int r = 0; r < S; r++) _mm512_storeu_si512(to + 16 * r, v[r]);
    }
}

static void pack_rows(const Rows *rows)
{
    bool is_bf16 = rows->x.dtype == DT_BF16;
    size_t row_bytes = (size_t)rows->x.stride[0] * dtype_bytes(rows->x.dtype);
    for (int64_t first = 0; first < rows->n; first += rows->block) {
        const char *row[MAX_R];
        int n = rows_of_block(rows, first);
        for (int r = 0; r < MAX_R; r++) { /* missing ones: the last again, never looked at */
            row[r] = (const char *)rows->x.data + (size_t)(first + (r < n ? r : n - 1)) * row_bytes;
        }
        uint32_t *to = packed_block(rows, first);
        switch (packed_stride(n)) {
        case 1: pack_block(rows, to, row, is_bf16, 1); break;
        case 2: pack_block(rows, to, row, is_bf16, 2); break;
        case 4: pack_block(rows, to, row, is_bf16, 4); break;
        default: pack_block(rows, to, row, is_bf16, 8);
        }
    }
}

/* ---- groups of panels ---- */

/* A group of P panels and where the stream of weights goes on after it. */
typedef struct Group {
    const Weight   *weight;
    const uint32_t *panels;
    const uint32_t *next;    /* the group after it; NULL: none */
    int64_t         n_words; /* of a panel's row */
    int64_t         panel_step; /* words from one panel of the group to the next */
    int             P;
} Group;

/* The words that a tile asks for while it works on those before `word`. With few rows a block is over before memory
 * has answered, but then memory is the limit and more requests on the way would not help; with two blocks of rows
 * and more there is time to catch up, if the distance covers the latency. */
static const uint32_t *words_ahead(const Group *g, int64_t word, int64_t n_row_blocks)
{
    if (n_row_blocks > 1) word += BLOCK_WORDS;
    if (word < g->n_words) return g->panels + word * WEIGHT_PANEL;
    return g->next ? g->next + (word - g->n_words) * WEIGHT_PANEL : NULL;
}

/* Adds words [first, end) of a part to acc, rows by rows. */
static void group_part(const Group *g, const Rows *rows, int64_t first, int64_t end, float *acc)
{
    const TileFn(*fn)[MAX_P] = tiles[g->weight->contract.mode == MATH_BF16];
    int64_t n_row_blocks = (rows->n + rows->block - 1) / rows->block;
    for (int64_t word = first; word < end; word += BLOCK_WORDS) {
        int64_t n = end - word < BLOCK_WORDS ? end - word : BLOCK_WORDS;
        Tile t = { .panels = g->panels + word * WEIGHT_PANEL, .panel_step = g->panel_step, .n_words = n,
                   .next = words_ahead(g, word + n, n_row_blocks), .is_first = word == first };
        t.n_ask = t.next ? (int)((STEP_WORDS + n_row_blocks - 1) / n_row_blocks) : 0;
        int64_t left = BLOCK_WORDS; /* to ask for */
        for (int64_t row = 0; row < rows->n; row += rows->block) {
            int R = rows_of_block(rows, row);
            t.x = packed_block(rows, row) + word * packed_stride(R);
            t.acc = acc + row * g->P * WEIGHT_PANEL;
            fn[R - 1][g->P - 1](&t);
            left -= t.n_ask * (BLOCK_WORDS / STEP_WORDS);
            t.next += t.n_ask * (BLOCK_WORDS / STEP_WORDS) * WEIGHT_PANEL;
            if (left <= 0) t.n_ask = 0;
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

/* Sums to output columns; a matrix may end inside its last panel. Outputs that no cache holds go past the caches. */
static void group_store(const Group *g, const Rows *rows, const float *acc, Tensor out, int64_t first_row, int64_t col,
                        bool is_streamed)
{
    for (int64_t r = 0; r < rows->n; r++) {
        float *to = tensor_f32(out, first_row + r) + col;
        for (int64_t n = 0; n < g->P * WEIGHT_PANEL; n += WEIGHT_PANEL, acc += WEIGHT_PANEL) {
            if (is_streamed) _mm512_stream_ps(to + n, _mm512_load_ps(acc));
            else _mm512_mask_storeu_ps(to + n, lanes_left(g->weight->n_out - col - n), _mm512_load_ps(acc));
        }
    }
}

static bool can_stream(Tensor out)
{
    return (uintptr_t)out.data % 64 == 0 && out.stride[0] % WEIGHT_PANEL == 0 && out.shape[1] % WEIGHT_PANEL == 0 &&
           (size_t)(out.shape[0] * out.shape[1]) * sizeof(float) >= STREAMED_FROM_BYTES;
}

static const uint32_t *panel_at(const Weight *w, int64_t panel)
{
    return (const uint32_t *)w->data + panel * weight_words(w) * WEIGHT_PANEL;
}

/* after: the first panel behind the span; NULL: none. */
static void span_rows(const LinearSpan *span, const Rows *rows, int64_t first_row, float *acc, const uint32_t *after)
{
    const Weight *w = span->job->weight;
    bool is_streamed = can_stream(span->job->out);
    Group g = { .weight = w, .n_words = weight_words(w), .panel_step = weight_words(w) * WEIGHT_PANEL };
    for (int64_t panel = span->first; panel < span->end; panel += g.P) {
        g.P = (int)(span->end - panel < MAX_P ? span->end - panel : MAX_P);
        g.panels = panel_at(w, panel);
        g.next = panel + g.P < span->end ? panel_at(w, panel + g.P) : after;
        group_sums(&g, rows, acc);
        group_store(&g, rows, acc, span->job->out, first_row, panel * WEIGHT_PANEL, is_streamed);
    }
    if (is_streamed) _mm_sfence(); /* such stores are not ordered by what tells the caller that we are done */
}

/* Some rows of x packed for the work of one call; false: there are no more. rows zeroed before the first call. */
static bool next_rows(Rows *rows, Tensor x, int64_t *first, void *scratch)
{
    *first += rows->n;
    if (*first >= x.shape[0]) return false;
    int64_t word_bytes = sizeof(uint32_t);
    rows->n_words = (x.shape[1] * (int64_t)dtype_bytes(x.dtype) + word_bytes - 1) / word_bytes;
    int64_t max_rows = PACK_BYTES / (rows->n_words * word_bytes * MAX_R) * MAX_R;
    if (max_rows > MAX_ROWS) max_rows = MAX_ROWS;
    CHECK(max_rows > 0);
    rows->n = x.shape[0] - *first < max_rows ? x.shape[0] - *first : max_rows;
    int64_t n_blocks = (rows->n + MAX_R - 1) / MAX_R;
    rows->block = (int)((rows->n + n_blocks - 1) / n_blocks);
    rows->packed = (uint32_t *)((char *)scratch + ACC_BYTES);
    rows->x = x;
    rows->x.data = (char *)x.data + (size_t)(*first * x.stride[0]) * dtype_bytes(x.dtype);
    pack_rows(rows);
    return true;
}

static void avx512_spans(const LinearSpan *spans, int n_spans, Tensor x, void *scratch)
{
    Rows rows = { 0 };
    for (int64_t first = 0; next_rows(&rows, x, &first, scratch);) {
        bool is_last = first + rows.n == x.shape[0];
        for (int i = 0; i < n_spans; i++) {
            const LinearSpan *next = i + 1 < n_spans ? &spans[i + 1] : is_last ? NULL : &spans[0];
            span_rows(&spans[i], &rows, first, scratch, next ? panel_at(next->job->weight, next->first) : NULL);
        }
    }
}

/* ---- gate and up together: a group is one panel of each ---- */

static void gated_store(const Rows *rows, const float *acc, const GatedJob *job, int64_t first_row, int64_t col)
{
    Tensor out = job->out;
    __mmask16 mask = lanes_left(job->gate->n_out - col);
    for (int64_t r = 0; r < rows->n; r++, acc += 2 * WEIGHT_PANEL) {
        __m512 y = _mm512_mul_ps(v_silu(_mm512_load_ps(acc)), _mm512_load_ps(acc + WEIGHT_PANEL));
        if (out.dtype == DT_F32) v_put(tensor_f32(out, first_row + r), col, y, DT_F32, mask);
        else v_put(tensor_bf16(out, first_row + r), col, y, DT_BF16, mask);
    }
}

static void avx512_gated(const GatedJob *job, int64_t first_panel, int64_t end_panel, void *scratch)
{
    Rows rows = { 0 };
    float *acc = scratch;
    intptr_t distance = (intptr_t)job->up->data - (intptr_t)job->gate->data;
    Group g = { .weight = job->gate, .n_words = weight_words(job->gate), .P = 2,
                .panel_step = distance / (intptr_t)sizeof(uint32_t) };
    for (int64_t first = 0; next_rows(&rows, job->x, &first, scratch);) {
        for (int64_t panel = first_panel; panel < end_panel; panel++) {
            g.panels = panel_at(job->gate, panel);
            g.next = panel + 1 < end_panel ? panel_at(job->gate, panel + 1) : NULL;
            group_sums(&g, &rows, acc);
            gated_store(&rows, acc, job, first, panel * WEIGHT_PANEL);
        }
    }
}

static void linear_silu_mul_avx512(Stream *st, Tensor out, Tensor x, const Weight *gate, const Weight *up)
{
    linear_spread_gated(st, &(GatedJob){ out, x, gate, up }, avx512_gated);
}

static void linear_avx512(Stream *st, Tensor x, const LinearJob *jobs, int n_jobs)
{
    linear_spread(st, x, jobs, n_jobs, avx512_spans);
}

void cpu_avx512_add_linear(Ops *ops)
{
    ops->linear = linear_avx512;
    ops->linear_silu_mul = linear_silu_mul_avx512;
}
