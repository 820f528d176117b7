/* Pearson's test for counts: how many standard deviations the statistic lies above what chance gives. */
#pragma once

#include <math.h>
#include <stdint.h>

typedef struct ChiSquare {
    double statistic, sigmas;
    int    degrees;
} ChiSquare;

/* Cells that expect fewer than 5 are put together. sigmas: Wilson and Hilferty's normal approximation (1931); a right
 * sampler exceeds 4 once in 30,000 seeds, and seeds here are fixed. */
static inline ChiSquare chi_square(const int64_t *seen, const double *expected, int n)
{
    ChiSquare c = { 0 };
    double rare_seen = 0, rare_expected = 0;
    int cells = 0;
    for (int i = 0; i < n; i++) {
        if (expected[i] < 5) {
            rare_seen += (double)seen[i];
            rare_expected += expected[i];
            continue;
        }
        double d = (double)seen[i] - expected[i];
        c.statistic += d * d / expected[i];
        cells++;
    }
    if (rare_expected >= 5) {
        double d = rare_seen - rare_expected;
        c.statistic += d * d / rare_expected;
        cells++;
    }
    c.degrees = cells - 1;
    double k = c.degrees, v = 2 / (9 * k);
    c.sigmas = (cbrt(c.statistic / k) - (1 - v)) / sqrt(v);
    return c;
}
