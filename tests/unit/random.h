/* Repeatable random numbers for tests: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014). Independent of src/ on purpose. */
#pragma once

#include <math.h>
#include <stdint.h>

typedef struct Random {
    uint64_t state;
} Random;

static inline uint64_t random_bits(Random *r)
{
    uint64_t z = r->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}
static inline int32_t random_below(Random *r, int32_t n)
{
    return (int32_t)((random_bits(r) >> 32) * (uint64_t)n >> 32);
}
static inline double random_unit(Random *r) /* (0, 1) */
{
    return ((double)(random_bits(r) >> 12) + 0.5) * 0x1p-52;
}
static inline float random_normal(Random *r)
{
    double a = random_unit(r), b = random_unit(r);
    return (float)(sqrt(-2 * log(a)) * cos(6.283185307179586 * b));
}
