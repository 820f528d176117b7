#include "fmath_lanes.h"

#include "backend/cpu/x86/fmath_avx512.h"

static bool is_available(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static __m512 in_lanes(int f, __m512 x)
{
    __m512 s, c;
    switch (f) {
    case 0: return v_exp(x);
    case 1: return v_log(x);
    case 2: return v_log1p(x);
    case 3: return v_sigmoid(x);
    case 4: return v_silu(x);
    case 5: return v_softplus(x);
    case 6: v_sin_cos(x, &s, &c); return s;
    default: v_sin_cos(x, &s, &c); return c;
    }
}

static bool vector(int f, const float *x, float *out, int n)
{
    for (int i = 0; i < n; i += 16) _mm512_storeu_ps(out + i, in_lanes(f, _mm512_loadu_ps(x + i)));
    return true;
}

const LaneSet lanes_avx512 = { "avx512", is_available, vector };
