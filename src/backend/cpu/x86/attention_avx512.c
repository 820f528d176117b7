/* Inner loops of attention in 16 lanes (attention_groups.h): scores of some keys for some queries, and sums of weighted
 * values. Blocks of 6 queries make 6 x 2 accumulators of scores and 6 x 4 of outputs; 8 x 2 of both measured slower.
 *
 * A key or value outside a query's own positions is never added, not even with weight zero: it may be NaN. */
#include "backend/cpu/attention_groups.h"
#include "backend/cpu/x86/fmath_avx512.h"
#include "backend/cpu/x86/lanes_avx512.h"

#include <immintrin.h>

/* E4M3 codes / 256: halves with the codes' bits, whose conversion flushes no denormals. */
ALWAYS_INLINE __m512 load_e4m3(const uint8_t *codes)
{
    __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)codes));
    return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbf80)));
}

/* 16 values of a cache row, widened. */
ALWAYS_INLINE __m512 kv_load(const void *row, int64_t d, const DType t)
{
    if (t == DT_F32) return _mm512_loadu_ps((const float *)row + d);
    if (t != DT_BF16) return load_e4m3((const uint8_t *)row + d);
    __m256i half = _mm256_loadu_si256((const __m256i *)((const uint16_t *)row + d));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* 32 values. Codes are taken together as long as they are halves. */
ALWAYS_INLINE void kv_load_2(__m512 v[2], const void *row, int64_t d, const DType t)
{
    if (t != DT_F8_E4M3) {
        v[0] = kv_load(row, d, t);
        v[1] = kv_load(row, d + 16, t);
        return;
    }
    __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)((const uint8_t *)row + d)));
    __m512i half = _mm512_and_si512(_mm512_slli_epi16(wide, 7), _mm512_set1_epi16((short)0xbf80));
    v[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(half));
    v[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1));
}

/* Lane sums of 16 vectors: lane k of the result is the binary tree over v[k]. Each step halves the number of
 * lanes a sum still has and so the number of vectors. */
ALWAYS_INLINE __m512 lane_sums(const __m512 v[16])
{
    __m512 w8[8], w4[4], w2[2];
    for (int i = 0; i < 8; i++) { /* sums i and i + 8: two of 8 lanes */
        __m512 low = _mm512_shuffle_f32x4(v[i], v[i + 8], 0x44), high = _mm512_shuffle_f32x4(v[i], v[i + 8], 0xee);
        w8[i] = _mm512_add_ps(low, high);
    }
    for (int i = 0; i < 4; i++) { /* i, i + 8, i + 4, i + 12: four of 4 lanes */
        __m512 low = _mm512_shuffle_f32x4(w8[i], w8[i + 4], 0x88), high = _mm512_shuffle_f32x4(w8[i], w8[i + 4], 0xdd);
        w4[i] = _mm512_add_ps(low, high);
    }
    for (int i = 0; i < 2; i++) {
        __m512d a = _mm512_castps_pd(w4[i]), b = _mm512_castps_pd(w4[i + 2]);
        w2[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    __m512 sums = _mm512_add_ps(_mm512_shuffle_ps(w2[0], w2[1], 0x88), _mm512_shuffle_ps(w2[0], w2[1], 0xdd));
    /* A block of four lanes now holds sums b, b + 2, b + 1, b + 3 for b = 0, 8, 4, 12. */
    const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
    return _mm512_permutexvar_ps(order, sums);
}

/* Asks for the 64 bytes at value d of a row, once for each cache line. */
ALWAYS_INLINE void kv_prefetch(const void *row, int64_t d, const DType t)
{
    const int item = t == DT_F32 ? 4 : t == DT_BF16 ? 2 : 1;
    if (d * item % 64 == 0) __builtin_prefetch((const char *)row + d * item);
}

/* ---- scores by rows ---- */

ALWAYS_INLINE void scores_by_rows_n(float *const x[], const float *const q[], const void *const key[],
                                    const float *factor, int32_t ahead, int32_t dim, const DType t, const int n_q)
{
    enum { KEYS = 4 }; /* at a time: 4 x 4 accumulators hide the latency of fma */
    __m512 sum[4][16];
    for (int k = 0; k < 16; k += KEYS) {
        __m512 acc[4][KEYS];
        for (int i = 0; i < n_q; i++)
            for (int u = 0; u < KEYS; u++) acc[i][u] = _mm512_setzero_ps();
        int64_t d = 0;
        for (; d + 32 <= dim; d += 32) {
            __m512 row[KEYS][2];
            for (int u = 0; u < KEYS; u++) {
                kv_prefetch(key[k + u + ahead], d, t);
                if (t == DT_F32) kv_prefetch(key[k + u + ahead], d + 16, t);
                kv_load_2(row[u], key[k + u], d, t);
            }
            for (int h = 0; h < 2; h++) {
                for (int i = 0; i < n_q; i++) {
                    __m512 query = _mm512_loadu_ps(q[i] + d + 16 * h);
                    for (int u = 0; u < KEYS; u++) acc[i][u] = _mm512_fmadd_ps(query, row[u][h], acc[i][u]);
                }
            }
        }
        for (; d < dim; d += 16) {
            __m512 row[KEYS];
            for (int u = 0; u < KEYS; u++) {
                kv_prefetch(key[k + u + ahead], d, t);
                row[u] = kv_load(key[k + u], d, t);
            }
            for (int i = 0; i < n_q; i++) {
                __m512 query = _mm512_loadu_ps(q[i] + d);
                for (int u = 0; u < KEYS; u++) acc[i][u] = _mm512_fmadd_ps(query, row[u], acc[i][u]);
            }
        }
        for (int i = 0; i < n_q; i++)
            for (int u = 0; u < KEYS; u++) sum[i][k + u] = acc[i][u];
    }
    for (int i = 0; i < n_q; i++) _mm512_storeu_ps(x[i], _mm512_mul_ps(lane_sums(sum[i]), _mm512_loadu_ps(factor)));
}

/* ---- scores by tiles ---- */

/* Transposes 16 x 16 32-bit items. */
ALWAYS_INLINE void transpose_16(__m512i r[16])
{
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    /* b[4 g + c] holds, in its 128-bit parts, columns c, c + 4, c + 8, c + 12 of rows 4 g .. 4 g + 3. */
    for (int c = 0; c < 4; c++) {
        __m512i even01 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88), odd01 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xdd);
        __m512i even23 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88);
        __m512i odd23 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xdd);
        r[c] = _mm512_shuffle_i32x4(even01, even23, 0x88);
        r[c + 8] = _mm512_shuffle_i32x4(even01, even23, 0xdd);
        r[c + 4] = _mm512_shuffle_i32x4(odd01, odd23, 0x88);
        r[c + 12] = _mm512_shuffle_i32x4(odd01, odd23, 0xdd);
    }
}

/* tile[d * TILE_KEYS + j] = key[j][d] for 16 keys. bf16 goes in pairs of d: half the shuffles. */
static void turn_keys(float *tile, const void *const key[], int32_t ahead, int32_t dim, bool is_bf16)
{
    __m512i r[16];
    const int step = is_bf16 ? 32 : 16;
    for (int32_t d = 0; d < dim; d += step) {
        bool is_half = is_bf16 && dim - d < 32;
        for (int k = 0; k < 16; k++) {
            kv_prefetch(key[k + ahead], d, is_bf16 ? DT_BF16 : DT_F32);
            const char *at = (const char *)key[k] + (size_t)d * (is_bf16 ? 2 : 4);
            r[k] = is_half ? _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i *)at)) : _mm512_loadu_si512(at);
        }
        transpose_16(r);
        for (int c = 0; c < (is_half ? 8 : 16); c++) {
            float *out = tile + (int64_t)(is_bf16 ? d + 2 * c : d + c) * TILE_KEYS;
            if (!is_bf16) {
                _mm512_store_si512(out, r[c]);
                continue;
            }
            _mm512_store_si512(out, _mm512_slli_epi32(r[c], 16));
            _mm512_store_si512(out + TILE_KEYS, _mm512_and_si512(r[c], _mm512_set1_epi32((int)0xffff0000u)));
        }
    }
}

/* x[i][0 .. 16 n_v) = scaled q[i] . keys of the tile. Accumulators are visited in the order in which the tree adds
 * them (bits of n reversed: 0, 8, 4, 12, 2 ...), so that at most four wait on the stack. */
ALWAYS_INLINE void scores_by_tile_n(float *const x[], const float *const q[], const float *tile, const float *factor,
                                    int32_t dim, const int n_q, const int n_v)
{
    __m512 stack[4][BLOCK_QUERIES][2];
    for (int n = 0; n < 16; n++) {
        int lane = (n & 1) << 3 | (n & 2) << 1 | (n & 4) >> 1 | n >> 3;
        __m512 acc[BLOCK_QUERIES][2];
        for (int i = 0; i < n_q; i++)
            for (int h = 0; h < n_v; h++) acc[i][h] = _mm512_setzero_ps();
        _Pragma("GCC unroll 8") for (int64_t d = lane; d < dim; d += 16) {
            __m512 key[2];
            for (int h = 0; h < n_v; h++) key[h] = _mm512_load_ps(tile + d * TILE_KEYS + 16 * h);
            for (int i = 0; i < n_q; i++) {
                __m512 query = _mm512_set1_ps(q[i][d]);
                for (int h = 0; h < n_v; h++) acc[i][h] = _mm512_fmadd_ps(query, key[h], acc[i][h]);
            }
        }
        int level = 0;
        for (; n >> level & 1; level++)
            for (int i = 0; i < n_q; i++)
                for (int h = 0; h < n_v; h++) acc[i][h] = _mm512_add_ps(stack[level][i][h], acc[i][h]);
        if (level == 4) { /* n = 15: everything is added */
            for (int i = 0; i < n_q; i++)
                for (int h = 0; h < n_v; h++)
                    _mm512_storeu_ps(x[i] + 16 * h, _mm512_mul_ps(acc[i][h], _mm512_loadu_ps(factor + 16 * h)));
            return;
        }
        for (int i = 0; i < n_q; i++)
            for (int h = 0; h < n_v; h++) stack[level][i][h] = acc[i][h];
    }
}

/* Scores of n_v vectors of keys for a block of queries; x and q are filled up to an even number with the last one. */
static void scores_by_tile(float *const x[], const float *const q[], int n_q, const float *tile, const float *factor,
                           int n_v, int32_t dim)
{
    switch (n_v == 2 ? n_q : -n_q) {
    case 1: case 2: scores_by_tile_n(x, q, tile, factor, dim, 2, 2); break;
    case 3: case 4: scores_by_tile_n(x, q, tile, factor, dim, 4, 2); break;
    case 5: case 6: scores_by_tile_n(x, q, tile, factor, dim, 6, 2); break;
    case -1: case -2: scores_by_tile_n(x, q, tile, factor, dim, 2, 1); break;
    case -3: case -4: scores_by_tile_n(x, q, tile, factor, dim, 4, 1); break;
    default: scores_by_tile_n(x, q, tile, factor, dim, 6, 1);
    }
}

/* ---- weighted sums ---- */

/* Places [first, end) that only some of the queries see: a weight of zero is not enough, the value may be NaN. */
ALWAYS_INLINE void add_masked(__m512 acc[BLOCK_QUERIES][8], const ValueBlock *b, const void *const value[],
                              int32_t first, int32_t end, int64_t d, const DType t, const int n_q, const int n_v)
{
    for (int32_t j = first; j < end; j++) {
        for (int i = 0; i < n_q; i++) {
            __mmask16 sees = j >= b->first[i] && j < b->end[i] ? 0xffff : 0;
            __m512 weight = _mm512_set1_ps(b->p[i][j]);
            for (int c = 0; c < n_v; c++)
                acc[i][c] = _mm512_mask3_fmadd_ps(weight, kv_load(value[j], d + 16 * c, t), acc[i][c], sees);
        }
    }
}

/* o[i][d .. d + 16 n_v) += p[i][j] * value[j], j ascending. */
ALWAYS_INLINE void add_values_n(const ValueBlock *b, const void *const value[], int32_t ahead, int64_t d, const DType t,
                                const int n_q, const int n_v)
{
    __m512 acc[BLOCK_QUERIES][8];
    for (int i = 0; i < n_q; i++)
        for (int c = 0; c < n_v; c++) acc[i][c] = _mm512_loadu_ps(b->o[i] + d + 16 * c);
    add_masked(acc, b, value, b->first_any, b->first_all, d, t, n_q, n_v);
    for (int32_t j = b->first_all; j < b->end_all; j++) {
        __m512 v[8];
        for (int c = 0; c < n_v; c++) {
            kv_prefetch(value[j + ahead], d + 16 * c, t);
            if (n_v == 1) v[c] = kv_load(value[j], d, t);
            else if (c % 2 == 0) kv_load_2(v + c, value[j], d + 16 * c, t);
        }
        for (int i = 0; i < n_q; i++) {
            __m512 weight = _mm512_set1_ps(b->p[i][j]);
            for (int c = 0; c < n_v; c++) acc[i][c] = _mm512_fmadd_ps(weight, v[c], acc[i][c]);
        }
    }
    add_masked(acc, b, value, b->end_all, b->end_any, d, t, n_q, n_v);
    for (int i = 0; i < n_q; i++)
        for (int c = 0; c < n_v; c++) _mm512_storeu_ps(b->o[i] + d + 16 * c, acc[i][c]);
}

ALWAYS_INLINE void add_values_q(const ValueBlock *b, const void *const value[], int32_t ahead, int32_t dim,
                                const DType t, const int n_q)
{
    int32_t d = 0;
    if (n_q <= 2)
        for (; d + 128 <= dim; d += 128) add_values_n(b, value, ahead, d, t, n_q, 8);
    for (; d + 64 <= dim; d += 64) add_values_n(b, value, ahead, d, t, n_q, 4);
    for (; d + 32 <= dim; d += 32) add_values_n(b, value, ahead, d, t, n_q, 2);
    for (; d < dim; d += 16) add_values_n(b, value, ahead, d, t, n_q, 1);
}

ALWAYS_INLINE void add_values_typed(const ValueBlock *b, const void *const value[], int32_t ahead, int32_t dim,
                                    const DType t)
{
    switch (b->n_q) {
    case 2: add_values_q(b, value, ahead, dim, t, 2); break;
    case 4: add_values_q(b, value, ahead, dim, t, 4); break;
    default: add_values_q(b, value, ahead, dim, t, 6);
    }
}

ALWAYS_INLINE void widen_typed(float *out, const void *row, const void *ahead, int32_t dim, const DType t)
{
    for (int32_t d = 0; d < dim; d += 16) {
        kv_prefetch(ahead, d, t);
        _mm512_store_ps(out + d, kv_load(row, d, t));
    }
}

#include "backend/cpu/attention_typed.h"

/* ---- softmax of one split, and the end ---- */

/* Which of the scores j .. j + 15 lie in [first, end). */
static __mmask16 lanes_in(int32_t j, int32_t first, int32_t end)
{
    uint32_t below = end - j >= 16 ? 0xffff : (1u << (end - j)) - 1;
    return (__mmask16)(first > j ? below & 0xffffu << (first - j) : below);
}

static void soften(float *x, int32_t first, int32_t end, const float *factor, float *partial)
{
    __m512 m = _mm512_set1_ps(-F_INF), l = _mm512_setzero_ps();
    for (int32_t j = first / 16 * 16; j < end; j += 16) /* a NaN leaves m, as in the contract */
        m = _mm512_mask_max_ps(m, lanes_in(j, first, end), _mm512_loadu_ps(x + j), m);
    float largest = _mm512_reduce_max_ps(m);
    for (int32_t j = first / 16 * 16; j < end; j += 16) {
        __m512 p = v_exp(_mm512_sub_ps(_mm512_loadu_ps(x + j), _mm512_set1_ps(largest)));
        l = _mm512_mask_add_ps(l, lanes_in(j, first, end), l, p);
        _mm512_storeu_ps(x + j, factor ? _mm512_mul_ps(p, _mm512_loadu_ps(factor + j)) : p);
    }
    partial[0] = largest;
    partial[1] = v_lanes_sum(l);
}

static void combine(float *out, const float *first, const float *end, int64_t step, float sum, int32_t dim)
{
    for (int32_t d = 0; d < dim; d += 16) {
        __m512 o = _mm512_setzero_ps();
        for (const float *p = first; p < end; p += step)
            o = _mm512_fmadd_ps(_mm512_loadu_ps(p + PARTIAL_HEAD + d), _mm512_set1_ps(p[0]), o);
        _mm512_storeu_ps(out + d, _mm512_div_ps(o, _mm512_set1_ps(sum)));
    }
}

static const AttentionKernels kernels = {
    scores_by_rows, turn_keys, scores_by_tile, soften, add_values, widen, combine,
};

static void attention(Stream *st, Tensor out, Tensor q, KvView view, const Batch *batch, const int32_t *store,
                      float scale)
{
    attention_by_groups(st, out, q, view, batch, store, scale, &kernels);
}

void cpu_avx512_add_attention(Ops *ops)
{
    ops->attention = attention;
}
