/* Rotary embedding in 16 lanes. Sines and cosines (in double, some 40 instructions for 8) are computed once a
 * row and serve all its heads. */
#include "backend/cpu/rope.h"
#include "backend/cpu/x86/fmath_avx512.h"
#include "backend/cpu/x86/lanes_avx512.h"

static void row_turns(const RopeJob *job, int64_t row, float *c, float *s)
{
    const RopeParams *p = job->params;
    int32_t half = p->dim / 2;
    for (int32_t i = 0; i < half; i += 16) {
        __mmask16 valid = lanes_left(half - i);
        __m512i at = _mm512_set1_epi32((int32_t)row);
        if (p->axis) {
            __m512i axis = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(valid, p->axis + i));
            at = _mm512_add_epi32(at, _mm512_mullo_epi32(axis, _mm512_set1_epi32(job->n_rows)));
        }
        __m512i position = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), valid, at, job->rope, 4);
        __m512 angle = _mm512_mul_ps(_mm512_cvtepi32_ps(position), _mm512_maskz_loadu_ps(valid, p->inv_freq + i));
        __m512 sine, cosine;
        v_sin_cos(angle, &sine, &cosine);
        _mm512_mask_storeu_ps(s + i, valid, _mm512_mul_ps(sine, v_set(p->scale)));
        _mm512_mask_storeu_ps(c + i, valid, _mm512_mul_ps(cosine, v_set(p->scale)));
    }
}

static void turn_head(float *x, const float *c, const float *s, int32_t half)
{
    for (int32_t i = 0; i < half; i += 16) {
        __mmask16 valid = lanes_left(half - i);
        __m512 a = _mm512_maskz_loadu_ps(valid, x + i), b = _mm512_maskz_loadu_ps(valid, x + half + i);
        __m512 cosine = _mm512_maskz_loadu_ps(valid, c + i), sine = _mm512_maskz_loadu_ps(valid, s + i);
        _mm512_mask_storeu_ps(x + i, valid, _mm512_fmsub_ps(a, cosine, _mm512_mul_ps(b, sine)));
        _mm512_mask_storeu_ps(x + half + i, valid, _mm512_fmadd_ps(b, cosine, _mm512_mul_ps(a, sine)));
    }
}

static void rope(Stream *st, Tensor x, const int32_t *positions, int32_t n_rows, const RopeParams *params)
{
    rope_run(st, (RopeJob){ x, positions, n_rows, params, row_turns, turn_head });
}

void cpu_avx512_add_rope(Ops *ops)
{
    ops->rope = rope;
}
