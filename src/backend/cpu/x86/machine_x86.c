/* What this x86 can do, and its numeric mode. */
#include "backend/cpu/cpu_impl.h"

#include <xmmintrin.h>

/* The compiler's run-time asks cpuid, and the system whether it saves the wide registers. */
unsigned cpu_features(void)
{
    __builtin_cpu_init();
    unsigned f = 0;
    if (__builtin_cpu_supports("fma")) f |= CPU_FMA;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") && (f & CPU_FMA)) f |= CPU_AVX2;
    if (__builtin_cpu_supports("avxvnni") && (f & CPU_AVX2)) f |= CPU_AVX_VNNI;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && (f & CPU_AVX2)) {
        f |= CPU_AVX512;
        if (__builtin_cpu_supports("avx512bf16")) f |= CPU_AVX512_BF16;
        if (__builtin_cpu_supports("avx512vnni")) f |= CPU_AVX512_VNNI;
        if (__builtin_cpu_supports("avx512vbmi")) f |= CPU_AVX512_VBMI;
    }
    return f;
}

void numeric_mode_enter(void)
{
    enum { FLUSH_TO_ZERO = 1 << 15, DENORMALS_ARE_ZERO = 1 << 6 };
    _mm_setcsr(_mm_getcsr() | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO);
}
