/* Gated DeltaNet in vectors: lanes are columns of the state, which never meet.
 *
 * As in AVX-512 (cpu/x86/gated_delta_avx512.c) the second pass over the state of a token, write and read, and the first
 * of the next one that goes on from there, decay and read, are one loop. A slice is four vectors wide: three sums for
 * each of them just fit the registers. */
#include "backend/cpu/gated_delta.h"
#include "backend/cpu/vec/vec.h"

#include <math.h>

enum { MAX_VECTORS = 4, SLICE = MAX_VECTORS * V_LANES };

static void unit(float *out, const float *x, int32_t dk, float scale)
{
    V factor = v_set(1.0f / sqrtf(v_lanes_dot(x, x, dk) + 1e-6f));
    for (int32_t i = 0; i < dk; i += V_LANES)
        v_store_n(out + i, v_load_n(x + i, dk - i) * factor * v_set(scale), dk - i);
}

/* Columns of a slice: n vectors, of which the last may be partly filled. */
typedef struct Columns {
    int n;
    int last;
} Columns;

#define EACH(c) UNROLL for (int c = 0; c < w.n; c++)

ALWAYS_INLINE V load(const float *x, int c, Columns w)
{
    return v_load_n(x + V_LANES * c, c < w.n - 1 ? V_LANES : w.last);
}

ALWAYS_INLINE void store(float *x, int c, V v, Columns w)
{
    v_store_n(x + V_LANES * c, v, c < w.n - 1 ? V_LANES : w.last);
}

/* Decay and read of a token whose `from` no token of this call has just left. */
ALWAYS_INLINE void begin(const GdnToken *t, V p[MAX_VECTORS], int32_t dk, const Columns w)
{
    const float *k = t->k;
    V decay = v_set(t->decay);
    EACH(c) p[c] = v_set(0.0f);
    for (int64_t i = 0; i < dk; i++) {
        const float *in = t->from.data + i * t->from.stride;
        float *out = t->to.data + i * t->to.stride;
        V key = v_set(k[i]);
        EACH(c)
        {
            V s = decay * load(in, c, w);
            store(out, c, s, w);
            p[c] = v_fma(s, key, p[c]);
        }
    }
}

/* u = beta * (v - p) */
ALWAYS_INLINE void delta(const GdnToken *t, const V p[MAX_VECTORS], V u[MAX_VECTORS], const Columns w)
{
    EACH(c) u[c] = v_set(t->beta) * (load(t->v, c, w) - p[c]);
    if (t->u) EACH(c) store(t->u, c, u[c], w);
}

/* Write and read of t; then, with `next`, decay and read of the token that goes on from there: in place, or leaving
 * t's state for others. */
ALWAYS_INLINE void finish(const GdnToken *t, const GdnToken *next, bool is_in_place, V p[MAX_VECTORS], int32_t dk,
                          const Columns w)
{
    const float *k = t->k, *q = t->q, *next_k = next ? next->k : NULL;
    V u[MAX_VECTORS], o[MAX_VECTORS], decay = v_set(next ? next->decay : 0.0f);
    delta(t, p, u, w);
    EACH(c) o[c] = p[c] = v_set(0.0f);
    for (int64_t i = 0; i < dk; i++) {
        float *state = t->to.data + i * t->to.stride;
        V key = v_set(k[i]), query = v_set(q[i]);
        EACH(c)
        {
            V s = v_fma(key, u[c], load(state, c, w));
            o[c] = v_fma(s, query, o[c]);
            if (!is_in_place) store(state, c, s, w);
            if (!next) continue;
            s = decay * s;
            store(is_in_place ? state : next->to.data + i * next->to.stride, c, s, w);
            p[c] = v_fma(s, v_set(next_k[i]), p[c]);
        }
    }
    EACH(c) store(t->o, c, o[c], w);
}

ALWAYS_INLINE void run_columns(const GdnToken *token, int32_t n_tokens, int32_t dk, const Columns w)
{
    V p[MAX_VECTORS];
    for (int32_t i = 0; i < n_tokens; i++) {
        const GdnToken *t = &token[i], *next = i + 1 < n_tokens && t[1].from.data == t->to.data ? t + 1 : NULL;
        if (i == 0 || t->from.data != t[-1].to.data) begin(t, p, dk, w);
        if (!next) finish(t, NULL, false, p, dk, w);
        else if (next->to.data == t->to.data) finish(t, next, true, p, dk, w);
        else finish(t, next, false, p, dk, w);
    }
}

/* Narrow slices, of small models and last columns, a vector at a time. */
static void run(const GdnToken *token, int32_t n_tokens, int32_t dk, int32_t n)
{
    if (n == SLICE) {
        run_columns(token, n_tokens, dk, (Columns){ MAX_VECTORS, V_LANES });
        return;
    }
    for (int32_t j = 0; j < n; j += V_LANES) {
        for (int32_t i = 0; i < n_tokens; i++) {
            GdnToken t = token[i];
            t.from.data += j;
            t.to.data += j;
            t.v += j;
            t.o += j;
            if (t.u) t.u += j;
            run_columns(&t, 1, dk, (Columns){ 1, n - j < V_LANES ? n - j : V_LANES });
        }
    }
}

/* Rows i .. of the state through all updates. */
ALWAYS_INLINE void replay_rows(GdnState from, GdnState to, const GdnUpdate *update, int32_t n_updates, int64_t i,
                               int32_t first, const int n_rows, const Columns w)
{
    V s[2][MAX_VECTORS];
    UNROLL for (int r = 0; r < n_rows; r++) EACH(c) s[r][c] = load(from.data + (i + r) * from.stride + first, c, w);
    for (int32_t t = 0; t < n_updates; t++) {
        V decay = v_set(update[t].decay), u[MAX_VECTORS];
        EACH(c) u[c] = load(update[t].u + first, c, w);
        UNROLL for (int r = 0; r < n_rows; r++) {
            V key = v_set(update[t].k[i + r]);
            EACH(c) s[r][c] = v_fma(key, u[c], decay * s[r][c]);
        }
    }
    UNROLL for (int r = 0; r < n_rows; r++) EACH(c) store(to.data + (i + r) * to.stride + first, c, s[r][c], w);
}

/* Two rows at a time: eight chains of multiply and fma hide their latency. */
ALWAYS_INLINE void replay_columns(GdnState from, GdnState to, const GdnUpdate *update, int32_t n_updates, int32_t dk,
                                  int32_t first, const Columns w)
{
    int64_t i = 0;
    for (; i + 2 <= dk; i += 2) replay_rows(from, to, update, n_updates, i, first, 2, w);
    if (i < dk) replay_rows(from, to, update, n_updates, i, first, 1, w);
}

static void replay(GdnState from, GdnState to, const GdnUpdate *update, int32_t n_updates, int32_t dk, int32_t n)
{
    int32_t j = 0;
    for (; j + SLICE <= n; j += SLICE)
        replay_columns(from, to, update, n_updates, dk, j, (Columns){ MAX_VECTORS, V_LANES });
    for (; j < n; j += V_LANES)
        replay_columns(from, to, update, n_updates, dk, j, (Columns){ 1, n - j < V_LANES ? n - j : V_LANES });
}

static const GdnKernels kernels = { SLICE, unit, run, replay };

static void gated_delta(Stream *st, Tensor out, Tensor conv, Tensor a, Tensor b, const GatedDelta *p, StateView state,
                        const Batch *batch, GdnLog log)
{
    gdn_run(st, out, conv, a, b, p, state, batch, log, &kernels);
}

static void gated_delta_commit(Stream *st, const GatedDelta *p, StateView state, StateView conv_state, int32_t channels,
                               const Batch *batch, GdnLog log, const Commit *commits, int n)
{
    gdn_commit(st, p, state, conv_state, channels, batch, log, commits, n, &kernels);
}

void VEC_NAME(add_gated_delta)(Ops *ops)
{
    ops->gated_delta = gated_delta;
    ops->gated_delta_commit = gated_delta_commit;
}
