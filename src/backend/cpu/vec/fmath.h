/* The functions of base/fmath.h in V_LANES lanes: the same operations in the same order, so the same bits.
 * Read that file first; here stands only what differs. */
#pragma once

#include "backend/cpu/vec/vec.h"
#include "base/fmath.h"

static inline V v_exp(V x)
{
    V t = v_fma(x, v_set(F_LOG2_E), v_set(F_ROUND));
    V n = t - F_ROUND;
    V r = v_fma(n, v_set(-F_LN2_HI), x);
    r = v_fma(n, v_set(-F_LN2_LO), r);
    V p = v_fma(v_set(F_EXP_C4), r, v_set(F_EXP_C3));
    p = v_fma(p, r, v_set(F_EXP_C2));
    p = v_fma(p, r, v_set(F_EXP_C1));
    p = v_fma(p, r, v_set(F_EXP_C0));
    p = 1.0f + v_fma(r * r, p, r);
    V y = (V)(v_bits(p) + (v_bits(t) << 23));
    y = v_pick(x < F_EXP_MIN, v_set(0.0f), y);
    y = v_pick(x > F_EXP_MAX, v_set(F_INF), y);
    return v_pick(x != x, v_set(F_NAN), y);
}

static inline V v_sigmoid(V x)
{
    return 1.0f / (1.0f + v_exp(-x));
}

static inline V v_silu(V x)
{
    return x / (1.0f + v_exp(-x));
}
