/* The arithmetic of choosing, for host and devices: the words and values of Gumbel noise, what rules do to a score, the order
 * of scores and the integer masses of filters. Formulas: sampling/choose.h. Like fmath.h a list of exact operations, so that
 * every processor gets the same bits. */
#pragma once

#include "backend/choice.h"
#include "base/fmath.h"

#ifdef __CUDACC__
#define CHOOSE_UNROLL_10 _Pragma("unroll 10")
#else
#define CHOOSE_UNROLL_10 _Pragma("GCC unroll 10")
#endif

/* ---- noise ---- */

/* A block of Philox4x32-10 (Salmon et al., SC 2011). A round multiplies words 0 and 2 by odd constants and lets the high
 * halves, mixed with the key, trade places with words 1 and 3; the key walks by the golden ratio and sqrt(3) - 1. */
static inline void philox_block(uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3, uint32_t key0, uint32_t key1, uint32_t *out)
{
    CHOOSE_UNROLL_10 /* so that a loop over blocks can be vectorised */
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)w0 * 0xD2511F53u;
        uint64_t b = (uint64_t)w2 * 0xCD9E8D57u;
        w0 = (uint32_t)(b >> 32) ^ w1 ^ key0;
        w2 = (uint32_t)(a >> 32) ^ w3 ^ key1;
        w1 = (uint32_t)b;
        w3 = (uint32_t)a;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    out[0] = w0;
    out[1] = w1;
    out[2] = w2;
    out[3] = w3;
}

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

/* ---- rules ---- */

/* The usual formulas and their order: repetition (CTRL, arXiv 1909.05858, section 4.1, on both signs), then OpenAI's
 * frequency and presence. count: how often the id was put out. */
static inline float penalised(float score, uint32_t count, Penalties p)
{
    if (p.repetition != 1.0f) score = score > 0 ? score / p.repetition : score * p.repetition;
    if (count > 0) {
        score -= p.frequency * (float)count;
        score -= p.presence;
    }
    return score;
}

static inline float edited(float score, ScoreEdit e, Penalties p)
{
    if (e.mark & EDIT_BANNED) return -F_INF;
    if (e.bias != 0) score += e.bias;
    if (e.mark && score > -F_INF) score = penalised(score, e.mark & ~EDIT_PROMPT, p);
    return score;
}

/* ---- order and mass ---- */

/* Larger scores give larger keys. -0 counts as 0, as it does for ==. */
static inline uint32_t score_key(float score)
{
    uint32_t u = f_bits(score + 0.0f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The mass of an id of this weight (a chance as a share of the largest, at most 1), in units of 2^-42. Integers add up to the
 * same sum in any order; fewer than 2^20 of them cannot overflow 63 bits, and what is cut is below 2^-22 of the mass. */
static inline uint64_t mass_of(float weight)
{
    return (uint64_t)(int64_t)(weight * 0x1p42f);
}

/* Mass that the smallest set for top_p must have, of the mass of all. */
static inline uint64_t mass_needed(float top_p, uint64_t total)
{
    double need = ceil((double)top_p * (double)total);
    return need < 1 ? 1 : need < (double)total ? (uint64_t)need : total;
}
