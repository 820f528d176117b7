/* fmath: accuracy against long double, special values, and the vector lanes against the scalar bits. */
#include "base/error.h"
#include "base/fmath.h"

#include "backend/backend.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>

#include "fmath_lanes.h"

#if defined(__x86_64__)
static const LaneSet *const lane_sets[] = { &lanes_avx2, &lanes_avx512 };
#else
static const LaneSet *const lane_sets[] = { &lanes_neon };
#endif

typedef float (*Function)(float x);
typedef long double (*Oracle)(long double x);

static float sin_of(float x)
{
    float s, c;
    f_sin_cos(x, &s, &c);
    return s;
}
static float cos_of(float x)
{
    float s, c;
    f_sin_cos(x, &s, &c);
    return c;
}
static long double sigmoid_of(long double x)
{
    return 1.0L / (1.0L + expl(-x));
}
static long double silu_of(long double x)
{
    return x * sigmoid_of(x);
}
static long double softplus_of(long double x)
{
    return x > 60.0L ? x : log1pl(expl(x));
}

/* Distance in units in the last place of the exact result (of the smallest normal number at least). */
static double ulps(float got, long double want)
{
    int exponent;
    frexpl(want, &exponent);
    if (exponent < -125) exponent = -125;
    return (double)(fabsl((long double)got - want) / ldexpl(1.0L, exponent - 24));
}

typedef struct Accuracy {
    const char *name;
    Function    function;
    Oracle      oracle;
    float       min, max; /* where the result is a normal number */
    double      max_ulps;
} Accuracy;

/* Float32 inputs evenly spread over their bits, so over all magnitudes, and around the ends. */
static void accuracy(void **state)
{
    static const Accuracy table[] = {
        { "exp", f_exp, expl, -0x1.5d589ep6f, 0x1.62e42ep6f, 1.0 },
        { "log", f_log, logl, 0x1p-126f, 0x1.fffffep127f, 0.85 },
        { "log1p", f_log1p, log1pl, -0x1.fffffep-1f, 0x1.fffffep127f, 0.9 },
        { "sigmoid", f_sigmoid, sigmoid_of, -87.0f, 1e30f, 2.5 },
        { "silu", f_silu, silu_of, -87.0f, 1e30f, 2.5 },
        { "softplus", f_softplus, softplus_of, -87.0f, 1e30f, 1.7 },
        { "sin", sin_of, sinl, -0x1.fffffep39f, 0x1.fffffep39f, 0.51 },
        { "cos", cos_of, cosl, -0x1.fffffep39f, 0x1.fffffep39f, 0.51 },
    };
    for (int i = 0; i < COUNT(table); i++) {
        const Accuracy *a = &table[i];
        double worst = 0;
        float worst_at = 0;
        for (uint64_t bits = 0; bits < (1ull << 32); bits += 10007) {
            float x = f_of_bits((uint32_t)bits);
            if (!(x >= a->min && x <= a->max) || (x != 0 && fabsf(x) < F_MIN)) continue;
            double error = ulps(a->function(x), a->oracle(x));
            if (!(error <= worst)) worst = error, worst_at = x;
        }
        if (!(worst <= a->max_ulps)) fail_msg("%s(%a) is off by %.3f units in the last place", a->name, worst_at, worst);
    }
}

static void assert_value(const char *what, float got, float want)
{
    if (isnan(want) ? !isnan(got) : f_bits(got) != f_bits(want)) fail_msg("%s is %a, not %a", what, got, want);
}
#define VALUE(call, want) assert_value(#call, call, want)

static void special_values(void **state)
{
    VALUE(f_exp(0.0f), 1.0f);
    VALUE(f_exp(-0.0f), 1.0f);
    VALUE(f_exp(INFINITY), INFINITY);
    VALUE(f_exp(-INFINITY), 0.0f);
    VALUE(f_exp(89.0f), INFINITY);
    VALUE(f_exp(-87.5f), 0.0f); /* the result would be denormal */
    VALUE(f_exp(-3e38f), 0.0f);
    VALUE(f_exp(3e38f), INFINITY);
    VALUE(f_exp(NAN), NAN);
    VALUE(f_log(0.0f), -INFINITY);
    VALUE(f_log(-0.0f), -INFINITY);
    VALUE(f_log(1.0f), 0.0f);
    VALUE(f_log(-1.0f), NAN);
    VALUE(f_log(-INFINITY), NAN);
    VALUE(f_log(INFINITY), INFINITY);
    VALUE(f_log(NAN), NAN);
    VALUE(f_log1p(0.0f), 0.0f);
    VALUE(f_log1p(-1.0f), -INFINITY);
    VALUE(f_log1p(-1.5f), NAN);
    VALUE(f_log1p(INFINITY), INFINITY);
    VALUE(f_log1p(NAN), NAN);
    VALUE(f_sigmoid(0.0f), 0.5f);
    VALUE(f_sigmoid(200.0f), 1.0f);
    VALUE(f_sigmoid(-200.0f), 0.0f);
    VALUE(f_sigmoid(NAN), NAN);
    VALUE(f_silu(200.0f), 200.0f);
    VALUE(f_silu(-200.0f), -0.0f);
    VALUE(f_silu(-INFINITY), NAN);
    VALUE(f_silu(NAN), NAN);
    VALUE(f_softplus(-200.0f), 0.0f);
    VALUE(f_softplus(100.0f), 100.0f);
    VALUE(f_softplus(NAN), NAN);
    VALUE(sin_of(0.0f), 0.0f);
    VALUE(cos_of(0.0f), 1.0f);
    VALUE(sin_of(INFINITY), NAN);
    VALUE(cos_of(0x1p40f), NAN);
    VALUE(cos_of(NAN), NAN);
}

/* Angles a long context makes, and the floats nearest to multiples of pi / 2, where reduction cancels most. */
static void angles_of_long_contexts(void **state)
{
    for (int i = 0; i < 300000; i += 7) {
        float x = (float)i;
        if (ulps(sin_of(x), sinl(x)) > 0.51 || ulps(cos_of(x), cosl(x)) > 0.51) fail_msg("wrong at angle %a", x);
    }
    for (long double n = 1; n < 1e12L; n *= 1.0001L) {
        float x = (float)(floorl(n) * 1.57079632679489661923L);
        if (ulps(sin_of(x), sinl(x)) > 0.51 || ulps(cos_of(x), cosl(x)) > 0.51) fail_msg("wrong at angle %a", x);
    }
}

static void compare_lanes(const LaneSet *set, int f)
{
    enum { N = 4096 };
    static float x[N], want[N], got[N];
    uint64_t bits = 0;
    while (bits < (1ull << 32)) {
        for (int i = 0; i < N; i++, bits += 2003) x[i] = f_of_bits((uint32_t)bits);
        if (!set->vector(f, x, got, N)) return;
        lanes_scalar(f, x, want, N);
        for (int i = 0; i < N; i++) {
            if (f_bits(got[i]) != f_bits(want[i]))
                fail_msg("%s(%a) is %a in %s and %a alone", lanes_name(f), x[i], got[i], set->name, want[i]);
        }
    }
}

static void lanes_give_the_same_bits(void **state)
{
    numeric_mode_enter();
    for (int i = 0; i < COUNT(lane_sets); i++)
        for (int f = 0; f < LANES_COUNT && lane_sets[i]->is_available(); f++) compare_lanes(lane_sets[i], f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accuracy),
        cmocka_unit_test(special_values),
        cmocka_unit_test(angles_of_long_contexts),
        cmocka_unit_test(lanes_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
