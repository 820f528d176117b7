/* The functions of base/fmath.h in 16 lanes: the same operations in the same order, so the same bits.
 * Read that file first; here stands only what differs. */
#pragma once

#include "base/fmath.h"

#include <immintrin.h>

static inline __m512 v_set(float x)
{
    return _mm512_set1_ps(x);
}
static inline __m512 v_fma(__m512 a, __m512 b, __m512 c)
{
    return _mm512_fmadd_ps(a, b, c);
}
/* where `mask`: the constant, else y */
static inline __m512 v_select(__mmask16 mask, float constant, __m512 y)
{
    return _mm512_mask_mov_ps(y, mask, _mm512_set1_ps(constant));
}
static inline __mmask16 v_is_nan(__m512 x)
{
    return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
}

static inline __m512 v_exp(__m512 x)
{
    __m512 t = v_fma(x, v_set(F_LOG2_E), v_set(F_ROUND));
    __m512 n = _mm512_sub_ps(t, v_set(F_ROUND));
    __m512 r = v_fma(n, v_set(-F_LN2_HI), x);
    r = v_fma(n, v_set(-F_LN2_LO), r);
    __m512 p = v_fma(v_set(F_EXP_C4), r, v_set(F_EXP_C3));
    p = v_fma(p, r, v_set(F_EXP_C2));
    p = v_fma(p, r, v_set(F_EXP_C1));
    p = v_fma(p, r, v_set(F_EXP_C0));
    p = _mm512_add_ps(v_set(1.0f), v_fma(_mm512_mul_ps(r, r), p, r));
    __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    __m512 y = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), exponent));
    y = v_select(_mm512_cmp_ps_mask(x, v_set(F_EXP_MIN), _CMP_LT_OQ), 0.0f, y);
    y = v_select(_mm512_cmp_ps_mask(x, v_set(F_EXP_MAX), _CMP_GT_OQ), F_INF, y);
    return v_select(v_is_nan(x), F_NAN, y);
}

static inline __m512 v_log_core(__m512 f, __m512 e, __m512 c)
{
    __m512 p = v_fma(v_set(F_LOG_C8), f, v_set(F_LOG_C7));
    p = v_fma(p, f, v_set(F_LOG_C6));
    p = v_fma(p, f, v_set(F_LOG_C5));
    p = v_fma(p, f, v_set(F_LOG_C4));
    p = v_fma(p, f, v_set(F_LOG_C3));
    p = v_fma(p, f, v_set(F_LOG_C2));
    p = v_fma(p, f, v_set(F_LOG_C1));
    p = v_fma(p, f, v_set(F_LOG_C0));
    __m512 z = _mm512_mul_ps(f, f);
    __m512 y = v_fma(e, v_set(F_LN2_LO), v_fma(_mm512_mul_ps(p, f), z, c));
    y = _mm512_add_ps(f, v_fma(v_set(-0.5f), z, y));
    return v_fma(e, v_set(F_LN2_HI), y);
}

static inline __m512 v_log_split(__m512 x, __m512 *e)
{
    __m512i first = _mm512_set1_epi32((int)F_SQRT1_2);
    __m512i u = _mm512_sub_epi32(_mm512_castps_si512(x), first);
    *e = _mm512_cvtepi32_ps(_mm512_srai_epi32(u, 23));
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_and_si512(u, _mm512_set1_epi32(0x7fffff)), first));
}

static inline __m512 v_log(__m512 x)
{
    __m512 e, m = v_log_split(x, &e);
    __m512 y = v_log_core(_mm512_sub_ps(m, v_set(1.0f)), e, v_set(0.0f));
    y = v_select(_mm512_cmp_ps_mask(x, v_set(F_MIN), _CMP_LT_OQ), -F_INF, y);
    y = v_select(_mm512_cmp_ps_mask(x, v_set(-F_MIN), _CMP_LE_OQ), F_NAN, y);
    y = v_select(_mm512_cmp_ps_mask(x, v_set(F_INF), _CMP_EQ_OQ), F_INF, y);
    return v_select(v_is_nan(x), F_NAN, y);
}

static inline __m512 v_log1p(__m512 x)
{
    __m512 one = v_set(1.0f);
    __m512 u = _mm512_add_ps(one, x);
    __m512 e, m = v_log_split(u, &e);
    __m512 lost = _mm512_sub_ps(x, _mm512_sub_ps(u, one));
    __m512 lost_of_large = _mm512_sub_ps(one, _mm512_sub_ps(u, x));
    lost = _mm512_mask_mov_ps(lost, _mm512_cmp_ps_mask(x, one, _CMP_GE_OQ), lost_of_large);
    __m512 c = _mm512_div_ps(lost, u);
    __mmask16 near_one = _mm512_cmp_ps_mask(e, v_set(0.0f), _CMP_EQ_OQ);
    __m512 f = _mm512_mask_mov_ps(_mm512_sub_ps(m, one), near_one, x);
    __m512 y = v_log_core(f, e, v_select(near_one, 0.0f, c));
    y = v_select(_mm512_cmp_ps_mask(x, v_set(-1.0f), _CMP_EQ_OQ), -F_INF, y);
    y = v_select(_mm512_cmp_ps_mask(x, v_set(-1.0f), _CMP_LT_OQ), F_NAN, y);
    y = v_select(_mm512_cmp_ps_mask(x, v_set(F_INF), _CMP_EQ_OQ), F_INF, y);
    return v_select(v_is_nan(x), F_NAN, y);
}

/* -x by flipping the sign, NaN included, as the compiler does for the scalar one. */
static inline __m512 v_negate(__m512 x)
{
    return _mm512_xor_ps(x, v_set(-0.0f));
}

static inline __m512 v_sigmoid(__m512 x)
{
    __m512 one = v_set(1.0f);
    return _mm512_div_ps(one, _mm512_add_ps(one, v_exp(v_negate(x))));
}

static inline __m512 v_silu(__m512 x)
{
    return _mm512_div_ps(x, _mm512_add_ps(v_set(1.0f), v_exp(v_negate(x))));
}

static inline __m512 v_softplus(__m512 t)
{
    return _mm512_mask_mov_ps(v_log1p(v_exp(t)), _mm512_cmp_ps_mask(t, v_set(20.0f), _CMP_GT_OQ), t);
}

/* Eight angles in double. */
static inline void v_sin_cos8(__m256 angle, __m256 *sin_out, __m256 *cos_out)
{
    __m512d a = _mm512_cvtps_pd(angle);
    __m512d round = _mm512_set1_pd(F_ROUND64);
    __m512d t = _mm512_fmadd_pd(a, _mm512_set1_pd(F_2_PI), round);
    __m512d n = _mm512_sub_pd(t, round);
    __m512d r = _mm512_fnmadd_pd(n, _mm512_set1_pd(F_PI_2_HI), a);
    r = _mm512_fnmadd_pd(n, _mm512_set1_pd(F_PI_2_LO), r);
    __m512d z = _mm512_mul_pd(r, r);

    __m512d p = _mm512_fmadd_pd(_mm512_set1_pd(F_SIN_C4), z, _mm512_set1_pd(F_SIN_C3));
    p = _mm512_fmadd_pd(p, z, _mm512_set1_pd(F_SIN_C2));
    p = _mm512_fmadd_pd(p, z, _mm512_set1_pd(F_SIN_C1));
    p = _mm512_fmadd_pd(p, z, _mm512_set1_pd(F_SIN_C0));
    __m512d s = _mm512_fmadd_pd(p, _mm512_mul_pd(r, z), r);
    p = _mm512_fmadd_pd(_mm512_set1_pd(F_COS_C3), z, _mm512_set1_pd(F_COS_C2));
    p = _mm512_fmadd_pd(p, z, _mm512_set1_pd(F_COS_C1));
    p = _mm512_fmadd_pd(p, z, _mm512_set1_pd(F_COS_C0));
    __m512d half = _mm512_fmadd_pd(_mm512_set1_pd(-0.5), z, _mm512_set1_pd(1.0));
    __m512d c = _mm512_fmadd_pd(p, _mm512_mul_pd(z, z), half);

    __m512i quadrant = _mm512_castpd_si512(t), next = _mm512_add_epi64(quadrant, _mm512_set1_epi64(1));
    __mmask8 is_odd = _mm512_test_epi64_mask(quadrant, _mm512_set1_epi64(1));
    __mmask8 minus_sin = _mm512_test_epi64_mask(quadrant, _mm512_set1_epi64(2));
    __mmask8 minus_cos = _mm512_test_epi64_mask(next, _mm512_set1_epi64(2));
    __m512d minus = _mm512_set1_pd(-0.0);
    __m512d s1 = _mm512_mask_mov_pd(s, is_odd, c), c1 = _mm512_mask_mov_pd(c, is_odd, s);
    __m256 sf = _mm512_cvtpd_ps(_mm512_mask_xor_pd(s1, minus_sin, s1, minus));
    __m256 cf = _mm512_cvtpd_ps(_mm512_mask_xor_pd(c1, minus_cos, c1, minus));
    __m256 nan = _mm256_set1_ps(F_NAN), limit = _mm256_set1_ps(F_ANGLE_LIMIT);
    __mmask8 in_range = _mm256_cmp_ps_mask(angle, limit, _CMP_LT_OQ) &
                        _mm256_cmp_ps_mask(angle, _mm256_set1_ps(-F_ANGLE_LIMIT), _CMP_GT_OQ);
    *sin_out = _mm256_mask_mov_ps(nan, in_range, sf);
    *cos_out = _mm256_mask_mov_ps(nan, in_range, cf);
}

static inline void v_sin_cos(__m512 angle, __m512 *sin_out, __m512 *cos_out)
{
    __m256 s0, c0, s1, c1;
    v_sin_cos8(_mm512_castps512_ps256(angle), &s0, &c0);
    v_sin_cos8(_mm512_extractf32x8_ps(angle, 1), &s1, &c1);
    *sin_out = _mm512_insertf32x8(_mm512_castps256_ps512(s0), s1, 1);
    *cos_out = _mm512_insertf32x8(_mm512_castps256_ps512(c0), c1, 1);
}
