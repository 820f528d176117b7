/* Gated DeltaNet in 16 lanes: lanes are columns of the state, which never meet.
 *
 * A slice of 64 columns gives four independent chains of fma, about what hides their latency, and a state of
 * dk = 128 rows takes 32 KB. A token goes through it twice, because u needs the whole read before the write:
 *
 *     decay and read      to = decay * from;        p += to * k
 *     write and read      to = to + k * u;          o += to * q
 *
 * Arithmetic bounds it: four operations a value and token, 2 loads, 2 stores. */
#include "backend/cpu/gated_delta.h"
#include "backend/cpu/x86/lanes_avx512.h"

#include <math.h>

enum { SLICE = 64 };

#define ALWAYS_INLINE static inline __attribute__((always_inline))

static void unit(float *out, const float *x, int32_t dk)
{
    __m512 factor = _mm512_set1_ps(1.0f / sqrtf(v_lanes_dot(x, x, dk) + 1e-6f));
    for (int32_t i = 0; i < dk; i += 16) {
        __mmask16 valid = lanes_left(dk - i);
        _mm512_mask_storeu_ps(out + i, valid, _mm512_mul_ps(_mm512_maskz_loadu_ps(valid, x + i), factor));
    }
}

/* n_v vectors, the last one with the lanes of `last`. */
ALWAYS_INLINE void step_n(GdnState from, GdnState to, const GdnToken *t, int32_t dk, const int n_v, __mmask16 last)
{
    __m512 p[4], o[4], u[4], decay = _mm512_set1_ps(t->decay);
    __mmask16 valid[4];
    for (int c = 0; c < n_v; c++) {
        valid[c] = c == n_v - 1 ? last : 0xffff;
        p[c] = o[c] = _mm512_setzero_ps();
    }
    for (int64_t i = 0; i < dk; i++) {
        const float *in = from.data + i * from.stride;
        float *out = to.data + i * to.stride;
        __m512 k = _mm512_set1_ps(t->k[i]);
        for (int c = 0; c < n_v; c++) {
            __m512 s = _mm512_mul_ps(decay, _mm512_maskz_loadu_ps(valid[c], in + 16 * c));
            _mm512_mask_storeu_ps(out + 16 * c, valid[c], s);
            p[c] = _mm512_fmadd_ps(s, k, p[c]);
        }
    }
    for (int c = 0; c < n_v; c++) {
        __m512 v = _mm512_maskz_loadu_ps(valid[c], t->v + 16 * c);
        u[c] = _mm512_mul_ps(_mm512_set1_ps(t->beta), _mm512_sub_ps(v, p[c]));
        _mm512_mask_storeu_ps(t->u + 16 * c, valid[c], u[c]);
    }
    for (int64_t i = 0; i < dk; i++) {
        float *state = to.data + i * to.stride;
        __m512 k = _mm512_set1_ps(t->k[i]), q = _mm512_set1_ps(t->q[i]);
        for (int c = 0; c < n_v; c++) {
            __m512 s = _mm512_fmadd_ps(k, u[c], _mm512_maskz_loadu_ps(valid[c], state + 16 * c));
            _mm512_mask_storeu_ps(state + 16 * c, valid[c], s);
            o[c] = _mm512_fmadd_ps(s, q, o[c]);
        }
    }
    for (int c = 0; c < n_v; c++) _mm512_mask_storeu_ps(t->o + 16 * c, valid[c], o[c]);
}

static void step(GdnState from, GdnState to, const GdnToken *t, int32_t dk, int32_t n)
{
    __mmask16 last = lanes_left((n - 1) % 16 + 1);
    if (n == SLICE) step_n(from, to, t, dk, 4, 0xffff);
    else if (n == 32) step_n(from, to, t, dk, 2, 0xffff);
    else if (n > 48) step_n(from, to, t, dk, 4, last);
    else if (n > 32) step_n(from, to, t, dk, 3, last);
    else if (n > 16) step_n(from, to, t, dk, 2, last);
    else step_n(from, to, t, dk, 1, last);
}

static void replay(GdnState from, GdnState to, const GdnUpdate *update, int32_t n_updates, int32_t dk, int32_t n)
{
    for (int64_t i = 0; i < dk; i++) {
        for (int32_t j = 0; j < n; j += 16) {
            __mmask16 valid = lanes_left(n - j);
            __m512 s = _mm512_maskz_loadu_ps(valid, from.data + i * from.stride + j);
            for (int32_t t = 0; t < n_updates; t++) {
                __m512 u = _mm512_maskz_loadu_ps(valid, update[t].u + j);
                s = _mm512_fmadd_ps(_mm512_set1_ps(update[t].k[i]), u, _mm512_mul_ps(_mm512_set1_ps(update[t].decay), s));
            }
            _mm512_mask_storeu_ps(to.data + i * to.stride + j, valid, s);
        }
    }
}

static const GdnKernels avx512_kernels = { SLICE, unit, step, replay };

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
