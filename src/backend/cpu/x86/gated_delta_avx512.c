/* Gated DeltaNet in 16 lanes: lanes are columns of the state, which never meet.
 *
 * A slice of 64 columns gives four independent chains of fma and, with dk = 128 rows, a state of 32 KB. A token
 * needs two passes over it, because u needs the whole read before the write:
 *
 *     decay and read      s = decay * s;        p += s * k
 *     write and read      s = s + k * u;        o += s * q
 *
 * The second pass of a token and the first of the next that goes on from its state are one loop: a load, four
 * operations and a store a value. Arithmetic bounds it. Measured on Zen 5 at dk = 128, in ns a token and slice: two
 * passes 349, the first one without its store 307, one loop 254. */
#include "backend/cpu/gated_delta.h"
#include "backend/cpu/x86/lanes_avx512.h"

#include <math.h>

enum { SLICE = 64 };

static void unit(float *out, const float *x, int32_t dk, float scale)
{
    __m512 factor = _mm512_set1_ps(1.0f / sqrtf(v_lanes_dot(x, x, dk) + 1e-6f));
    for (int32_t i = 0; i < dk; i += 16) {
        __mmask16 valid = lanes_left(dk - i);
        __m512 y = _mm512_mul_ps(_mm512_maskz_loadu_ps(valid, x + i), factor);
        _mm512_mask_storeu_ps(out + i, valid, _mm512_mul_ps(y, _mm512_set1_ps(scale)));
    }
}

/* Up to 64 columns as vectors. A masked store costs several plain ones, so whole slices go without. */
typedef struct Columns {
    int       n; /* vectors */
    bool      is_whole;
    __mmask16 last;
} Columns;

/* For each vector; unrolled early, or the compiler keeps the accumulators in memory. */
#define EACH(c) _Pragma("GCC unroll 4") for (int c = 0; c < w.n; c++)

ALWAYS_INLINE __m512 load(const float *x, int c, Columns w)
{
    return w.is_whole || c < w.n - 1 ? _mm512_loadu_ps(x + 16 * c) : _mm512_maskz_loadu_ps(w.last, x + 16 * c);
}

ALWAYS_INLINE void store(float *x, int c, __m512 v, Columns w)
{
    if (w.is_whole || c < w.n - 1) _mm512_storeu_ps(x + 16 * c, v);
    else _mm512_mask_storeu_ps(x + 16 * c, w.last, v);
}

/* Decay and read of a token whose `from` no token of this call has just left. */
ALWAYS_INLINE void begin(const GdnToken *t, __m512 p[4], int32_t dk, const Columns w)
{
    const float *k = t->k;
    __m512 decay = _mm512_set1_ps(t->decay);
    EACH(c) p[c] = _mm512_setzero_ps();
    for (int64_t i = 0; i < dk; i++) {
        const float *in = t->from.data + i * t->from.stride;
        float *out = t->to.data + i * t->to.stride;
        __m512 key = _mm512_set1_ps(k[i]);
        EACH(c)
        {
            __m512 s = _mm512_mul_ps(decay, load(in, c, w));
            store(out, c, s, w);
            p[c] = _mm512_fmadd_ps(s, key, p[c]);
        }
    }
}

/* u = beta * (v - p) */
ALWAYS_INLINE void delta(const GdnToken *t, const __m512 p[4], __m512 u[4], const Columns w)
{
    float *out = t->u;
    EACH(c) u[c] = _mm512_mul_ps(_mm512_set1_ps(t->beta), _mm512_sub_ps(load(t->v, c, w), p[c]));
    if (out) EACH(c) store(out, c, u[c], w);
}

/* Write and read of t; then, with `next`, decay and read of the token that goes on from there: in place, or leaving
 * t's state for others. */
ALWAYS_INLINE void finish(const GdnToken *t, const GdnToken *next, bool is_in_place, __m512 p[4], int32_t dk,
                          const Columns w)
{
    const float *k = t->k, *q = t->q, *next_k = next ? next->k : NULL;
    __m512 u[4], o[4], decay = _mm512_set1_ps(next ? next->decay : 0.0f);
    delta(t, p, u, w);
    EACH(c) o[c] = p[c] = _mm512_setzero_ps();
    for (int64_t i = 0; i < dk; i++) {
        float *state = t->to.data + i * t->to.stride;
        __m512 key = _mm512_set1_ps(k[i]), query = _mm512_set1_ps(q[i]);
        EACH(c)
        {
            __m512 s = _mm512_fmadd_ps(key, u[c], load(state, c, w));
            o[c] = _mm512_fmadd_ps(s, query, o[c]);
            if (!is_in_place) store(state, c, s, w);
            if (!next) continue;
            s = _mm512_mul_ps(decay, s);
            store(is_in_place ? state : next->to.data + i * next->to.stride, c, s, w);
            p[c] = _mm512_fmadd_ps(s, _mm512_set1_ps(next_k[i]), p[c]);
        }
    }
    float *out = t->o;
    EACH(c) store(out, c, o[c], w);
}

ALWAYS_INLINE void run_columns(const GdnToken *token, int32_t n_tokens, int32_t dk, const Columns w)
{
    __m512 p[4];
    for (int32_t i = 0; i < n_tokens; i++) {
        const GdnToken *t = &token[i], *next = i + 1 < n_tokens && t[1].from.data == t->to.data ? t + 1 : NULL;
        if (i == 0 || t->from.data != t[-1].to.data) begin(t, p, dk, w);
        if (!next) finish(t, NULL, false, p, dk, w);
        else if (next->to.data == t->to.data) finish(t, next, true, p, dk, w);
        else finish(t, next, false, p, dk, w);
    }
}

static void run(const GdnToken *token, int32_t n_tokens, int32_t dk, int32_t n)
{
    __mmask16 last = lanes_left((n - 1) % 16 + 1);
    if (n == 64) run_columns(token, n_tokens, dk, (Columns){ 4, true });
    else if (n == 32) run_columns(token, n_tokens, dk, (Columns){ 2, true });
    else if (n > 48) run_columns(token, n_tokens, dk, (Columns){ 4, false, last });
    else if (n > 32) run_columns(token, n_tokens, dk, (Columns){ 3, false, last });
    else if (n > 16) run_columns(token, n_tokens, dk, (Columns){ 2, false, last });
    else run_columns(token, n_tokens, dk, (Columns){ 1, false, last });
}

/* Two rows of the state at a time: eight chains of multiply and fma. */
ALWAYS_INLINE void replay_columns(GdnState from, GdnState to, const GdnUpdate *update, int32_t n_updates, int64_t i,
                                  const int n_rows, const Columns w)
{
    __m512 s[2][4];
    for (int r = 0; r < n_rows; r++) EACH(c) s[r][c] = load(from.data + (i + r) * from.stride, c, w);
    for (int32_t t = 0; t < n_updates; t++) {
        __m512 decay = _mm512_set1_ps(update[t].decay), u[4];
        EACH(c) u[c] = load(update[t].u, c, w);
        for (int r = 0; r < n_rows; r++) {
            __m512 key = _mm512_set1_ps(update[t].k[i + r]);
            EACH(c) s[r][c] = _mm512_fmadd_ps(key, u[c], _mm512_mul_ps(decay, s[r][c]));
        }
    }
    for (int r = 0; r < n_rows; r++) EACH(c) store(to.data + (i + r) * to.stride, c, s[r][c], w);
}

ALWAYS_INLINE void replay_rows(GdnState from, GdnState to, const GdnUpdate *update, int32_t n_updates, int32_t dk,
                               const Columns w)
{
    int64_t i = 0;
    for (; i + 2 <= dk; i += 2) replay_columns(from, to, update, n_updates, i, 2, w);
    if (i < dk) replay_columns(from, to, update, n_updates, i, 1, w);
}

static void replay(GdnState from, GdnState to, const GdnUpdate *update, int32_t n_updates, int32_t dk, int32_t n)
{
    __mmask16 last = lanes_left((n - 1) % 16 + 1);
    if (n == 64) replay_rows(from, to, update, n_updates, dk, (Columns){ 4, true });
    else if (n == 32) replay_rows(from, to, update, n_updates, dk, (Columns){ 2, true });
    else if (n > 48) replay_rows(from, to, update, n_updates, dk, (Columns){ 4, false, last });
    else if (n > 32) replay_rows(from, to, update, n_updates, dk, (Columns){ 3, false, last });
    else if (n > 16) replay_rows(from, to, update, n_updates, dk, (Columns){ 2, false, last });
    else replay_rows(from, to, update, n_updates, dk, (Columns){ 1, false, last });
}

static const GdnKernels avx512_kernels = { SLICE, unit, run, replay };

static void gated_delta(Stream *st, Tensor out, Tensor conv, Tensor a, Tensor b, const GatedDelta *p, StateView state,
                        const Batch *batch, GdnLog log)
{
    gdn_run(st, out, conv, a, b, p, state, batch, log, &avx512_kernels);
}

static void gated_delta_commit(Stream *st, const GatedDelta *p, StateView state, StateView conv_state, int32_t channels,
                               const Batch *batch, GdnLog log, const Commit *commits, int n)
{
    gdn_commit(st, p, state, conv_state, channels, batch, log, commits, n, &avx512_kernels);
}

void cpu_avx512_add_gated_delta(Ops *ops)
{
    ops->gated_delta = gated_delta;
    ops->gated_delta_commit = gated_delta_commit;
}
