#include "fmath_lanes.h"

#include "base/fmath.h"

const char *lanes_name(int f)
{
    static const char *const names[LANES_COUNT] = { "exp", "log", "log1p", "sigmoid", "silu", "softplus", "sin", "cos" };
    return names[f];
}

static float one(int f, float x)
{
    float s, c;
    switch (f) {
    case 0: return f_exp(x);
    case 1: return f_log(x);
    case 2: return f_log1p(x);
    case 3: return f_sigmoid(x);
    case 4: return f_silu(x);
    case 5: return f_softplus(x);
    case 6: f_sin_cos(x, &s, &c); return s;
    default: f_sin_cos(x, &s, &c); return c;
    }
}

void lanes_scalar(int f, const float *x, float *out, int n)
{
    for (int i = 0; i < n; i++) out[i] = one(f, x[i]);
}
