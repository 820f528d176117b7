/* exp and log-sum-exp of a row.
 *
 * One loop, compiled three times: the compiler vectorises it for each instruction set, and since every operation in
 * it is one IEEE operation of fmath.h (fma included, contraction off), the bits cannot differ. The plain build of
 * x86-64 has no fma instruction and calls libm for it, which is right and slow: hence the variants. */
#include "sampling/softmax.h"

#include "backend/ops.h"
#include "base/error.h"
#include "base/fmath.h"

#include <stdatomic.h>
#include <stdlib.h>

enum { MAX_PIECES = 4096 };

static inline __attribute__((always_inline)) void exp_loop(float *out, const float *x, int32_t n, float max)
{
#pragma GCC ivdep
    for (int32_t i = 0; i < n; i++) out[i] = f_exp(x[i] - max);
}

static void exp_scalar(float *out, const float *x, int32_t n, float max)
{
    exp_loop(out, x, n, max);
}

#ifdef __x86_64__
__attribute__((target("avx2,fma"))) static void exp_avx2(float *out, const float *x, int32_t n, float max)
{
    exp_loop(out, x, n, max);
}

__attribute__((target("avx512f,prefer-vector-width=512"))) static void exp_avx512(float *out, const float *x, int32_t n,
                                                                                   float max)
{
    exp_loop(out, x, n, max);
}

SoftmaxExp softmax_exp_variant(int i)
{
    if (i == 1) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? exp_avx2 : NULL;
    if (i == 2) return __builtin_cpu_supports("avx512f") ? exp_avx512 : NULL;
    return exp_scalar;
}
#else
SoftmaxExp softmax_exp_variant(int i)
{
    return i == 0 ? exp_scalar : NULL;
}
#endif

static SoftmaxExp best_variant(void)
{
    const char *mask = getenv("CPU_MASK");
    int highest = mask && !strcmp(mask, "scalar") ? 0 : mask && !strcmp(mask, "avx2") ? 1 : 2;
    for (int i = highest; i > 0; i--) {
        if (softmax_exp_variant(i)) return softmax_exp_variant(i);
    }
    return exp_scalar;
}

void softmax_exp(float *out, const float *x, int32_t n, float max)
{
    static _Atomic(SoftmaxExp) chosen; /* every thread finds the same, so a race writes one value twice */
    SoftmaxExp fn = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (!fn) {
        fn = best_variant();
        atomic_store_explicit(&chosen, fn, memory_order_relaxed);
    }
    fn(out, x, n, max);
}

/* Sum of up to SUM_PIECE values. */
static float lanes_sum(const float *x, int32_t n)
{
    float lane[LANES] = { 0 };
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int k = 0; k < LANES; k++) lane[k] += x[i + k];
    }
    for (int k = 0; i < n; i++, k++) lane[k] += x[i];
    for (int w = LANES / 2; w > 0; w /= 2) {
        for (int k = 0; k < w; k++) lane[k] += lane[k + w];
    }
    return lane[0];
}

float softmax_log_sum(const float *x, int32_t n, float max)
{
    float part[SUM_PIECE], sum[MAX_PIECES];
    int32_t n_pieces = 0;
    CHECK(n <= MAX_PIECES * SUM_PIECE);
    for (int32_t first = 0; first < n; first += SUM_PIECE) {
        int32_t count = n - first < SUM_PIECE ? n - first : SUM_PIECE;
        softmax_exp(part, x + first, count, max);
        sum[n_pieces++] = lanes_sum(part, count);
    }
    return f_log(lanes_sum(sum, n_pieces));
}
