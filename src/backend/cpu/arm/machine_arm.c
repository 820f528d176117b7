/* What this 64-bit Arm can do (NEON with fused multiply-add: all of them), and its numeric mode. */
#include "backend/cpu/cpu_impl.h"

#include <sys/auxv.h>

unsigned cpu_features(void)
{
    const unsigned long has_dot_products = 1u << 20; /* HWCAP_ASIMDDP */
    return CPU_FMA | CPU_NEON | (getauxval(AT_HWCAP) & has_dot_products ? CPU_NEON_DOT : 0);
}

void numeric_mode_enter(void)
{
    const uint64_t flush_to_zero = 1u << 24; /* inputs and results */
    uint64_t fpcr;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(fpcr));
    __asm__ __volatile__("msr fpcr, %0" : : "r"(fpcr | flush_to_zero));
}
