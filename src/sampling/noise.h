/* The Gumbel noise of a draw, from the formula at the head of choose.h. Any thread in numeric mode. */
#pragma once

#include "base/fmath.h"
#include "sampling/choose.h"

/* The words of NOISE_CHUNK ids in a row at one place of one choice; first_id is a multiple of 4. */
enum { NOISE_CHUNK = 64 };
void noise_words(DrawKey key, uint32_t index, uint32_t first_id, uint32_t words[NOISE_CHUNK]);

/* The noise that word x stands for. u has steps of 2^-32 near 0, where the noise is large and decides draws: it runs
 * down to 2^-33, so that the best of a million ids is drawn with its true chance. The other end is held at 1 - 2^-24,
 * the largest float32 below 1, so that log1p stays finite. */
static inline float noise_of_word(uint32_t x)
{
    float u = (float)(((double)x + 0.5) * 0x1p-32); /* exact until the one rounding to float32 */
    u = u > 0x1.fffffep-1f ? 0x1.fffffep-1f : u;
    return -f_log(-f_log1p(-u));
}

#define NOISE_MAX 22.88f /* no word has more; the least is -2.82 */

/* At least noise_of_word(x), without its two logarithms: -log(-log1p(-u)) <= -log(u), and a float read as an integer
 * is a straight-line log2 that lies below the true one by at most 0.09. 0.69315 is above ln 2 by more than the
 * roundings are worth. tests/unit/noise_sweep.c compares the two for every x. */
static inline float noise_bound(uint32_t x)
{
    float top = (float)(int32_t)(x >> 8); /* exact; 0 gives a bound above NOISE_MAX */
    float log2_below = (float)(int32_t)f_bits(top) * 0x1p-23f - 127.0f;
    return (24.0f - log2_below) * 0.69315f;
}
