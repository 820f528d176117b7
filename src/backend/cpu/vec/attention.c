/* Inner loops of attention in vectors (attention_groups.h): scores of some keys for some queries, and sums of weighted
 * values. What 16 lanes do in one register takes V_PER_16 here, so blocks are cut narrower: no more sums at once than
 * registers hold.
 *
 * A key or value outside a query's own positions is never added, not even with weight zero: it may be NaN. */
#include "backend/cpu/attention_groups.h"
#include "backend/cpu/vec/fmath.h"

/* Values d .. of a cache row, widened. */
ALWAYS_INLINE V kv_load(const void *row, int64_t d, const DType t)
{
    switch (t) {
    case DT_F32: return v_load((const float *)row + d);
    case DT_BF16: return v_load_bf16((const uint16_t *)row + d);
    default: return v_load_e4m3((const uint8_t *)row + d);
    }
}

/* Asks for the line at value d of a row, once for each cache line; d a multiple of 16. */
ALWAYS_INLINE void kv_prefetch(const void *row, int64_t d, const DType t)
{
    const int item = t == DT_F32 ? 4 : t == DT_BF16 ? 2 : 1;
    if (d * item % 64 == 0) __builtin_prefetch((const char *)row + d * item);
}

/* ---- scores by rows ---- */

ALWAYS_INLINE void scores_by_rows_n(float *const x[], const float *const q[], const void *const key[],
                                    const float *factor, int32_t ahead, int32_t dim, const DType t, const int n_q)
{
    enum { MAX_KEYS = 4 };
    const int n_keys = n_q == 1 ? 4 : n_q <= 3 ? 2 : 1; /* at a time: eight to twelve sums */
    V sum[4][16];
    for (int k = 0; k < 16; k += n_keys) {
        V acc[4][MAX_KEYS][V_PER_16];
        UNROLL for (int i = 0; i < n_q; i++)
            UNROLL for (int u = 0; u < n_keys; u++)
                UNROLL for (int c = 0; c < V_PER_16; c++) acc[i][u][c] = v_set(0.0f);
        for (int64_t d = 0; d < dim; d += 16) {
            UNROLL for (int u = 0; u < n_keys; u++) {
                kv_prefetch(key[k + u + ahead], d, t);
                UNROLL for (int c = 0; c < V_PER_16; c++) {
                    V row = kv_load(key[k + u], d + c * V_LANES, t);
                    UNROLL for (int i = 0; i < n_q; i++)
                        acc[i][u][c] = v_fma(v_load(q[i] + d + c * V_LANES), row, acc[i][u][c]);
                }
            }
        }
        UNROLL for (int i = 0; i < n_q; i++)
            UNROLL for (int u = 0; u < n_keys; u++) sum[i][k + u] = v_narrow(acc[i][u]);
    }
    for (int i = 0; i < n_q; i++)
        for (int k = 0; k < 16; k += V_LANES) v_store(x[i] + k, v_sums(sum[i] + k) * v_load(factor + k));
}

/* ---- scores by tiles ---- */

/* Four values in the 128-bit vectors that every machine has. */
typedef float    V4 __attribute__((vector_size(16)));
typedef uint32_t V4U __attribute__((vector_size(16)));
typedef uint16_t V4H __attribute__((vector_size(8)));

ALWAYS_INLINE V4 load_4(const void *row, int64_t d, bool is_bf16)
{
    V4 v;
    V4H half;
    if (!is_bf16) {
        memcpy(&v, (const float *)row + d, sizeof v);
        return v;
    }
    memcpy(&half, (const uint16_t *)row + d, sizeof half);
    return (V4)(__builtin_convertvector(half, V4U) << 16);
}

/* Values d .. d + 3 of four keys, turned. */
ALWAYS_INLINE void turn_4(float *tile, const void *const key[4], int64_t d, bool is_bf16)
{
    V4 a = load_4(key[0], d, is_bf16), b = load_4(key[1], d, is_bf16);
    V4 c = load_4(key[2], d, is_bf16), e = load_4(key[3], d, is_bf16);
    V4 ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    V4 ce_low = __builtin_shufflevector(c, e, 0, 4, 1, 5), ce_high = __builtin_shufflevector(c, e, 2, 6, 3, 7);
    V4 out[4] = { __builtin_shufflevector(ab_low, ce_low, 0, 1, 4, 5),
                  __builtin_shufflevector(ab_low, ce_low, 2, 3, 6, 7),
                  __builtin_shufflevector(ab_high, ce_high, 0, 1, 4, 5),
                  __builtin_shufflevector(ab_high, ce_high, 2, 3, 6, 7) };
    UNROLL for (int i = 0; i < 4; i++) memcpy(tile + (d + i) * TILE_KEYS, &out[i], sizeof out[i]);
}

ALWAYS_INLINE void turn_keys_of(float *tile, const void *const key[], int32_t ahead, int32_t dim, const bool is_bf16)
{
    for (int64_t d = 0; d < dim; d += 16) {
        for (int k = 0; k < 16; k++) kv_prefetch(key[k + ahead], d, is_bf16 ? DT_BF16 : DT_F32);
        for (int k = 0; k < 16; k += 4)
            UNROLL for (int i = 0; i < 16; i += 4) turn_4(tile + k, key + k, d + i, is_bf16);
    }
}

static void turn_keys(float *tile, const void *const key[], int32_t ahead, int32_t dim, bool is_bf16)
{
    if (is_bf16) turn_keys_of(tile, key, ahead, dim, true);
    else turn_keys_of(tile, key, ahead, dim, false);
}

/* x[i][0 .. 16). Accumulators are visited in the order in which the tree adds them (bits of n reversed: 0, 8, 4, 12,
 * 2 ...), so that at most four wait on the stack. */
ALWAYS_INLINE void scores_of_16(float *const x[], int32_t at, const float *const q[], const float *tile,
                                const float *factor, int32_t dim, const int n_q)
{
    V stack[4][BLOCK_QUERIES][V_PER_16];
    for (int n = 0; n < 16; n++) {
        int lane = (n & 1) << 3 | (n & 2) << 1 | (n & 4) >> 1 | n >> 3;
        V acc[BLOCK_QUERIES][V_PER_16];
        UNROLL for (int i = 0; i < n_q; i++)
            UNROLL for (int c = 0; c < V_PER_16; c++) acc[i][c] = v_set(0.0f);
        for (int64_t d = lane; d < dim; d += 16) {
            V key[V_PER_16];
            UNROLL for (int c = 0; c < V_PER_16; c++) key[c] = v_load(tile + d * TILE_KEYS + c * V_LANES);
            UNROLL for (int i = 0; i < n_q; i++) {
                V query = v_set(q[i][d]);
                UNROLL for (int c = 0; c < V_PER_16; c++) acc[i][c] = v_fma(query, key[c], acc[i][c]);
            }
        }
        int level = 0;
        for (; n >> level & 1; level++)
            UNROLL for (int i = 0; i < n_q; i++)
                UNROLL for (int c = 0; c < V_PER_16; c++) acc[i][c] = stack[level][i][c] + acc[i][c];
        UNROLL for (int i = 0; i < n_q; i++) {
            UNROLL for (int c = 0; c < V_PER_16; c++) {
                if (level == 4) v_store(x[i] + at + c * V_LANES, acc[i][c] * v_load(factor + c * V_LANES)); /* n = 15: all is added */
                else stack[level][i][c] = acc[i][c];
            }
        }
    }
}

static void scores_by_tile(float *const x[], const float *const q[], int n_q, const float *tile, const float *factor,
                           int n, int32_t dim)
{
    for (int32_t at = 0; at < 16 * n; at += 16) {
        if (n_q <= 2) scores_of_16(x, at, q, tile + at, factor + at, dim, 2);
        else if (n_q <= 4) scores_of_16(x, at, q, tile + at, factor + at, dim, 4);
        else scores_of_16(x, at, q, tile + at, factor + at, dim, 6);
    }
}

/* ---- weighted sums ---- */

enum { MAX_VECTORS = 2 * V_PER_16 };

/* Places [first, end) that only some of the queries see: a weight of zero is not enough, the value may be NaN. */
ALWAYS_INLINE void add_masked(V acc[BLOCK_QUERIES][MAX_VECTORS], const ValueBlock *b, const void *const value[],
                              int32_t first, int32_t end, int64_t d, const DType t, const int n_q, const int n_v)
{
    for (int32_t j = first; j < end; j++) {
        UNROLL for (int i = 0; i < n_q; i++) {
            VI sees = (VI){ 0 } - (j >= b->first[i] && j < b->end[i]);
            V weight = v_set(b->p[i][j]);
            UNROLL for (int c = 0; c < n_v; c++)
                acc[i][c] = v_pick(sees, v_fma(weight, kv_load(value[j], d + c * V_LANES, t), acc[i][c]), acc[i][c]);
        }
    }
}

/* o[i][d .. d + n_v vectors) += p[i][j] * value[j], j ascending. */
ALWAYS_INLINE void add_values_n(const ValueBlock *b, const void *const value[], int32_t ahead, int64_t d,
                                const DType t, const int n_q, const int n_v)
{
    V acc[BLOCK_QUERIES][MAX_VECTORS];
    UNROLL for (int i = 0; i < n_q; i++)
        UNROLL for (int c = 0; c < n_v; c++) acc[i][c] = v_load(b->o[i] + d + c * V_LANES);
    add_masked(acc, b, value, b->first_any, b->first_all, d, t, n_q, n_v);
    for (int32_t j = b->first_all; j < b->end_all; j++) {
        V v[MAX_VECTORS];
        UNROLL for (int c = 0; c < n_v; c++) {
            if (c % V_PER_16 == 0) kv_prefetch(value[j + ahead], d + c * V_LANES, t);
            v[c] = kv_load(value[j], d + c * V_LANES, t);
        }
        UNROLL for (int i = 0; i < n_q; i++) {
            V weight = v_set(b->p[i][j]);
            UNROLL for (int c = 0; c < n_v; c++) acc[i][c] = v_fma(weight, v[c], acc[i][c]);
        }
    }
    add_masked(acc, b, value, b->end_all, b->end_any, d, t, n_q, n_v);
    UNROLL for (int i = 0; i < n_q; i++)
        UNROLL for (int c = 0; c < n_v; c++) v_store(b->o[i] + d + c * V_LANES, acc[i][c]);
}

ALWAYS_INLINE void add_values_typed(const ValueBlock *b, const void *const value[], int32_t ahead, int32_t dim,
                                    const DType t)
{
    int32_t d = 0;
    if (b->n_q == 2)
        for (; d + 32 <= dim; d += 32) add_values_n(b, value, ahead, d, t, 2, 2 * V_PER_16);
    for (; d < dim; d += 16) {
        if (b->n_q == 2) add_values_n(b, value, ahead, d, t, 2, V_PER_16);
        else if (b->n_q == 4) add_values_n(b, value, ahead, d, t, 4, V_PER_16);
        else add_values_n(b, value, ahead, d, t, 6, V_PER_16);
    }
}

ALWAYS_INLINE void widen_typed(float *out, const void *row, const void *ahead, int32_t dim, const DType t)
{
    for (int32_t d = 0; d < dim; d += V_LANES) {
        if (d % 16 == 0) kv_prefetch(ahead, d, t);
        v_store(out + d, kv_load(row, d, t));
    }
}

#include "backend/cpu/attention_typed.h"

/* ---- softmax of one split, and the end ---- */

static void soften(float *x, int32_t first, int32_t end, const float *factor, float *partial)
{
    V m = v_set(-F_INF), l[V_PER_16] = { 0 };
    float lane[V_LANES];
    int32_t start = first / 16 * 16;
    for (int32_t j = start; j < end; j += V_LANES) { /* a NaN leaves m, as in the contract */
        V score = v_load(x + j);
        m = v_pick((score > m) & v_first(end - j) & ~v_first(first - j), score, m);
    }
    v_store(lane, m);
    float largest = lane[0];
    for (int i = 1; i < V_LANES; i++) largest = lane[i] > largest ? lane[i] : largest;
    for (int32_t j = start; j < end; j += 16) {
        UNROLL for (int c = 0; c < V_PER_16; c++) {
            int32_t at = j + c * V_LANES;
            V p = v_exp(v_load(x + at) - v_set(largest));
            l[c] = v_pick(v_first(end - at) & ~v_first(first - at), l[c] + p, l[c]);
            v_store(x + at, factor ? p * v_load(factor + at) : p);
        }
    }
    partial[0] = largest;
    partial[1] = v_lanes_sum(l);
}

static void combine(float *out, const float *first, const float *end, int64_t step, float sum, int32_t dim)
{
    for (int32_t d = 0; d < dim; d += V_LANES) {
        V o = v_set(0.0f);
        for (const float *p = first; p < end; p += step) o = v_fma(v_load(p + PARTIAL_HEAD + d), v_set(p[0]), o);
        v_store(out + d, o / v_set(sum));
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

void VEC_NAME(add_attention)(Ops *ops)
{
    ops->attention = attention;
}
