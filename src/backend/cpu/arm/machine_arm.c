/* What this 64-bit Arm can do (NEON with fused multiply-add: all of them), and its numeric mode. */
#include "backend/cpu/cpu_impl.h"

unsigned cpu_features(void)
{
    return CPU_FMA | CPU_NEON;
}

void numeric_mode_enter(void)
{
    const uint64_t flush_to_zero = 1u << 24; /* inputs and results */
    uint64_t fpcr;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(fpcr));
    __asm__ __volatile__("msr fpcr, %0" : : "r"(fpcr | flush_to_zero));
}
