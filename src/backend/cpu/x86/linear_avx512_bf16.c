/* linear in AVX-512 with the bf16 dot instruction: tiles of R rows by P panels, in registers (linear_tiles.h).
 *
 * A lane is an output, its inputs come in ascending order. vdpbf16ps is the contract's step of two bf16 inputs, bit for
 * bit. Input rows are packed so that the R broadcasts of a step lie side by side. 16 accumulators hide the latency of the
 * dot; 8 x 3 and 6 x 4 measured no faster. */
#include "backend/cpu/linear_tiles.h"
#include "backend/cpu/x86/fmath_avx512.h"
#include "backend/cpu/x86/lanes_avx512.h"

#include <immintrin.h>

enum { MAX_R = 8, MAX_P = TILE_MAX_PANELS, STEP_WORDS = TILE_STEP_WORDS };

#define UNROLL _Pragma("GCC unroll 8")

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

/* ---- input rows, packed ---- */

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
ALWAYS_INLINE void pack_block(const TileRows *rows, uint32_t *to, const char *const row[MAX_R], bool is_bf16, const int S)
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

static void pack(const TileRows *rows, uint32_t *to, const char *const row[MAX_R], int R)
{
    bool is_bf16 = rows->x.dtype == DT_BF16;
    switch (packed_stride(R)) {
    case 1: pack_block(rows, to, row, is_bf16, 1); break;
    case 2: pack_block(rows, to, row, is_bf16, 2); break;
    case 4: pack_block(rows, to, row, is_bf16, 4); break;
    default: pack_block(rows, to, row, is_bf16, 8);
    }
}

static int packed_items(bool is_bf16, int R)
{
    return packed_stride(R);
}

/* ---- sums to outputs ---- */

static void store(float *to, const float *acc, int P, int64_t n_left, bool is_streamed)
{
    for (int64_t n = 0; n < P * WEIGHT_PANEL; n += WEIGHT_PANEL) {
        if (is_streamed) _mm512_stream_ps(to + n, _mm512_load_ps(acc + n));
        else _mm512_mask_storeu_ps(to + n, lanes_left(n_left - n), _mm512_load_ps(acc + n));
    }
}

static void fence(void)
{
    _mm_sfence();
}

static void store_gated(void *row, DType dtype, int64_t col, const float *acc, int64_t n)
{
    __m512 y = _mm512_mul_ps(v_silu(_mm512_load_ps(acc)), _mm512_load_ps(acc + WEIGHT_PANEL));
    v_put(row, col, y, dtype, lanes_left(n));
}

/* ---- the table ---- */

#define ENTRY(T, R) { T##_##R##x1, T##_##R##x2 }
#define ENTRIES(T)                                                                                 \
    { ENTRY(T, 1), ENTRY(T, 2), ENTRY(T, 3), ENTRY(T, 4), ENTRY(T, 5), ENTRY(T, 6), ENTRY(T, 7), ENTRY(T, 8) }
static const LinearKernels kernels = {
    .max_rows = MAX_R, .tile = { ENTRIES(f32), ENTRIES(bf16) }, .packed_items = packed_items, .pack = pack,
    .store = store, .fence = fence, .store_gated = store_gated,
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

void cpu_avx512_bf16_add_linear(Ops *ops)
{
    ops->linear = linear;
    ops->linear_silu_mul = linear_silu_mul;
}
