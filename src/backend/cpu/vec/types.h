/* The types of a vector of V_BYTES, as the compiler's own: arithmetic, comparisons (0 or -1 a lane), shifts and
 * conversions are operators. What C cannot say (fma, choosing by mask, sums across lanes) each instruction set adds
 * in its own header, cpu/x86/vec_*.h or cpu/arm/vec_*.h, which defines V_BYTES and includes this one. */
#pragma once

#include <stdint.h>
#include <string.h>

/* For loops over a constant that a caller passes: they have to become straight code. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

enum {
    V_LANES = V_BYTES / 4,
    V_PER_16 = 16 / V_LANES, /* vectors that hold LANES accumulators, or a panel's outputs */
};

typedef float    V __attribute__((vector_size(V_BYTES)));
typedef int32_t  VI __attribute__((vector_size(V_BYTES)));
typedef uint32_t VU __attribute__((vector_size(V_BYTES)));
typedef uint8_t  VB __attribute__((vector_size(V_BYTES)));
typedef uint16_t VHalf __attribute__((vector_size(V_BYTES / 2))); /* as many bf16 */
typedef double   VD __attribute__((vector_size(V_BYTES)));        /* half as many doubles, and their bits */
typedef int64_t  VDI __attribute__((vector_size(V_BYTES)));
