/* Compiled for AVX2 or NEON: VEC_ISA names the header of its vectors, LANE_SET what is exported. */
#include "fmath_lanes.h"

#include "backend/cpu/vec/sin_cos.h"

static bool is_available(void)
{
    return cpu_features() & (V_LANES == 8 ? CPU_AVX2 : CPU_NEON);
}

static V in_lanes(int f, V x)
{
    V s, c;
    switch (f) {
    case 0: return v_exp(x);
    case 3: return v_sigmoid(x);
    case 4: return v_silu(x);
    case 6: v_sin_cos(x, &s, &c); return s;
    default: v_sin_cos(x, &s, &c); return c;
    }
}

static bool vector(int f, const float *x, float *out, int n)
{
    if (f == 1 || f == 2 || f == 5) return false;
    for (int i = 0; i < n; i += V_LANES) v_store(out + i, in_lanes(f, v_load(x + i)));
    return true;
}

const LaneSet LANE_SET = { V_LANES == 8 ? "avx2" : "neon", is_available, vector };
