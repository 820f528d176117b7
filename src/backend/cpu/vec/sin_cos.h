/* f_sin_cos() of base/fmath.h in vectors of doubles. */
#pragma once

#include "backend/cpu/vec/fmath.h"

ALWAYS_INLINE VD vd_set(double x)
{
    return (VD){ 0 } + x; /* no constant here is -0 */
}

ALWAYS_INLINE VD vd_pick(VDI mask, VD a, VD b)
{
    return (VD)((mask & (VDI)a) | (~mask & (VDI)b));
}

/* -1 where the bit is set */
ALWAYS_INLINE VDI vd_has_bit(VDI x, int64_t bit)
{
    return (x & bit) != 0;
}

ALWAYS_INLINE VD vd_negate_where(VDI mask, VD x)
{
    return (VD)((VDI)x ^ (mask & INT64_MIN));
}

/* Half a vector of angles. */
static inline void vd_sin_cos(VD a, VD *sine, VD *cosine)
{
    VD t = vd_fma(a, vd_set(F_2_PI), vd_set(F_ROUND64));
    VD n = t - F_ROUND64;
    VD r = vd_fma(-n, vd_set(F_PI_2_HI), a);
    r = vd_fma(-n, vd_set(F_PI_2_LO), r);
    VD z = r * r;

    VD p = vd_fma(vd_set(F_SIN_C4), z, vd_set(F_SIN_C3));
    p = vd_fma(p, z, vd_set(F_SIN_C2));
    p = vd_fma(p, z, vd_set(F_SIN_C1));
    p = vd_fma(p, z, vd_set(F_SIN_C0));
    VD s = vd_fma(p, r * z, r);
    p = vd_fma(vd_set(F_COS_C3), z, vd_set(F_COS_C2));
    p = vd_fma(p, z, vd_set(F_COS_C1));
    p = vd_fma(p, z, vd_set(F_COS_C0));
    VD c = vd_fma(p, z * z, vd_fma(vd_set(-0.5), z, vd_set(1.0)));

    VDI quadrant = (VDI)t, is_odd = vd_has_bit(quadrant, 1);
    *sine = vd_negate_where(vd_has_bit(quadrant, 2), vd_pick(is_odd, c, s));
    *cosine = vd_negate_where(vd_has_bit(quadrant + 1, 2), vd_pick(is_odd, s, c));
}

static inline void v_sin_cos(V angle, V *sin_out, V *cos_out)
{
    VD s[2], c[2];
    for (int half = 0; half < 2; half++) vd_sin_cos(vd_widen(angle, half), &s[half], &c[half]);
    VI in_range = (angle < F_ANGLE_LIMIT) & (angle > -F_ANGLE_LIMIT);
    *sin_out = v_pick(in_range, vd_narrow(s[0], s[1]), v_set(F_NAN));
    *cos_out = v_pick(in_range, vd_narrow(c[0], c[1]), v_set(F_NAN));
}
