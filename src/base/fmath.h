/* The functions of the numeric contract: exp, log, log1p, sigmoid, silu, softplus, sin and cos in float32.
 *
 * libm gives other bits on other machines, so these are our own: a fixed list of IEEE operations (add,
 * multiply, fma, divide, integer bits) without tables and without branches that matter, so that 16 lanes
 * of AVX-512, 8 of AVX2 or 4 of NEON doing the same list give the same bits (cpu/x86/fmath_avx512.h).
 * Special cases are selects at the end. Coefficients are our own minimax fits (weighted for the
 * relative error of the result).
 *
 * Largest error found over a grid of 116 million float32 inputs, in units in the last place: exp 1.0,
 * log 0.8, log1p 0.9, sin and cos 0.51, sigmoid 2.5, silu 2.3, softplus 1.6.
 * Compile with -ffp-contract=off; fma is written out. Threads run in numeric mode (denormals are zero). */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t f_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
static inline float f_of_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

#define F_NAN      f_of_bits(0x7fc00000u)
#define F_INF      f_of_bits(0x7f800000u)
#define F_LOG2_E   0x1.715476p0f
#define F_LN2_HI   0x1.62e43p-1f        /* 24 bits of ln 2, and the rest */
#define F_LN2_LO   (-0x1.05c61p-29f)
#define F_MIN      0x1p-126f            /* smallest normal number */
#define F_ROUND    0x1.8p23f            /* x + F_ROUND: x rounded to an integer sits in the low bits */

/* exp(x - n ln 2) = 1 + r + r^2 P(r), and n goes into the exponent. */
#define F_EXP_MAX  0x1.62e42ep6f        /* above: inf */
#define F_EXP_MIN  (-0x1.5d589ep6f)     /* below: the result would be denormal, it is 0 */
#define F_EXP_C0   0x1.fffffcp-2f
#define F_EXP_C1   0x1.55549p-3f
#define F_EXP_C2   0x1.5558f4p-5f
#define F_EXP_C3   0x1.123a6cp-7f
#define F_EXP_C4   0x1.6a234ep-10f

static inline float f_exp(float x)
{
    float t = fmaf(x, F_LOG2_E, F_ROUND);
    float n = t - F_ROUND;
    float r = fmaf(n, -F_LN2_HI, x);
    r = fmaf(n, -F_LN2_LO, r);
    float p = fmaf(F_EXP_C4, r, F_EXP_C3);
    p = fmaf(p, r, F_EXP_C2);
    p = fmaf(p, r, F_EXP_C1);
    p = fmaf(p, r, F_EXP_C0);
    p = 1.0f + fmaf(r * r, p, r);
    float y = f_of_bits(f_bits(p) + (f_bits(t) << 23));
    y = x < F_EXP_MIN ? 0.0f : y;
    y = x > F_EXP_MAX ? F_INF : y;
    return x != x ? F_NAN : y;
}

/* log(1 + f) = f - f^2 / 2 + f^3 P(f) for sqrt(1/2) - 1 <= f <= sqrt(2) - 1. */
#define F_LOG_C0   0x1.555548p-2f
#define F_LOG_C1   (-0x1.000006p-2f)
#define F_LOG_C2   0x1.99a4cap-3f
#define F_LOG_C3   (-0x1.555c5cp-3f)
#define F_LOG_C4   0x1.2335aep-3f
#define F_LOG_C5   (-0x1.fc1d4cp-4f)
#define F_LOG_C6   0x1.e70736p-4f
#define F_LOG_C7   (-0x1.de65fp-4f)
#define F_LOG_C8   0x1.1456cep-4f
#define F_SQRT1_2  0x3f3504f3u          /* bits of sqrt(1/2) */

/* log((1 + f) 2^e) + c */
static inline float f_log_core(float f, float e, float c)
{
    float p = fmaf(F_LOG_C8, f, F_LOG_C7);
    p = fmaf(p, f, F_LOG_C6);
    p = fmaf(p, f, F_LOG_C5);
    p = fmaf(p, f, F_LOG_C4);
    p = fmaf(p, f, F_LOG_C3);
    p = fmaf(p, f, F_LOG_C2);
    p = fmaf(p, f, F_LOG_C1);
    p = fmaf(p, f, F_LOG_C0);
    float z = f * f;
    float y = fmaf(e, F_LN2_LO, fmaf(p * f, z, c));
    y = f + fmaf(-0.5f, z, y);
    return fmaf(e, F_LN2_HI, y);
}

/* x = m 2^e with m between sqrt(1/2) and sqrt(2); x normal and positive. */
static inline float f_log_split(float x, float *e)
{
    uint32_t u = f_bits(x) - F_SQRT1_2;
    *e = (float)((int32_t)u >> 23);
    return f_of_bits((u & 0x7fffffu) + F_SQRT1_2);
}

static inline float f_log(float x) /* denormals count as 0 */
{
    float e, m = f_log_split(x, &e);
    float y = f_log_core(m - 1.0f, e, 0.0f);
    y = x < F_MIN ? -F_INF : y;
    y = x <= -F_MIN ? F_NAN : y;
    y = x == F_INF ? F_INF : y;
    return x != x ? F_NAN : y;
}

static inline float f_log1p(float x)
{
    float u = 1.0f + x;                 /* what 1 + x lost comes back as c */
    float e, m = f_log_split(u, &e);
    float c = (x >= 1.0f ? 1.0f - (u - x) : x - (u - 1.0f)) / u;
    float f = e == 0.0f ? x : m - 1.0f;
    float y = f_log_core(f, e, e == 0.0f ? 0.0f : c);
    y = x == -1.0f ? -F_INF : y;
    y = x < -1.0f ? F_NAN : y;
    y = x == F_INF ? F_INF : y;
    return x != x ? F_NAN : y;
}

static inline float f_sigmoid(float x)
{
    return 1.0f / (1.0f + f_exp(-x));
}

static inline float f_silu(float x) /* -inf gives NaN: a broken row shows */
{
    return x / (1.0f + f_exp(-x));
}

/* ln(1 + e^t); t itself above 20, where they agree. */
static inline float f_softplus(float t)
{
    float y = f_log1p(f_exp(t));
    return t > 20.0f ? t : y;
}

/* sin and cos of a float32 angle, exact reduction included: the angle is taken to double, n pi/2 is
 * removed by two fma (106 bits of pi), the polynomials run in double, one rounding at the end. Right for
 * |angle| < 2^40; no position is larger, so beyond (and inf) the answer is NaN. */
#define F_2_PI        0x1.45f306dc9c883p-1
#define F_PI_2_HI     0x1.921fb54442d18p+0
#define F_PI_2_LO     0x1.1a62633145c07p-54
#define F_ROUND64     0x1.8p52
#define F_ANGLE_LIMIT 0x1p40f
#define F_SIN_C0      (-0x1.55555555523fep-3)
#define F_SIN_C1      0x1.1111110ca264dp-7
#define F_SIN_C2      (-0x1.a019f95a598b0p-13)
#define F_SIN_C3      0x1.71d77cd424c00p-19
#define F_SIN_C4      (-0x1.a966d23f60000p-26)
#define F_COS_C0      0x1.5555554f4da15p-5
#define F_COS_C1      (-0x1.6c16b89819a0ap-10)
#define F_COS_C2      0x1.a0111fb132a00p-16
#define F_COS_C3      (-0x1.242abd6ec6400p-22)

static inline void f_sin_cos(float angle, float *sin_out, float *cos_out)
{
    double a = (double)angle;
    double t = fma(a, F_2_PI, F_ROUND64);
    double n = t - F_ROUND64;
    double r = fma(-n, F_PI_2_HI, a);
    r = fma(-n, F_PI_2_LO, r);
    double z = r * r;

    double p = fma(F_SIN_C4, z, F_SIN_C3);
    p = fma(p, z, F_SIN_C2);
    p = fma(p, z, F_SIN_C1);
    p = fma(p, z, F_SIN_C0);
    double s = fma(p, r * z, r);
    p = fma(F_COS_C3, z, F_COS_C2);
    p = fma(p, z, F_COS_C1);
    p = fma(p, z, F_COS_C0);
    double c = fma(p, z * z, fma(-0.5, z, 1.0));

    uint64_t quadrant;
    memcpy(&quadrant, &t, sizeof quadrant);
    double s1 = quadrant & 1 ? c : s, c1 = quadrant & 1 ? s : c;
    float sf = (float)(quadrant & 2 ? -s1 : s1);
    float cf = (float)((quadrant + 1) & 2 ? -c1 : c1);
    int in_range = angle > -F_ANGLE_LIMIT && angle < F_ANGLE_LIMIT;
    *sin_out = in_range ? sf : F_NAN;
    *cos_out = in_range ? cf : F_NAN;
}
