/* Short passes over a row of scores, written in lanes so that the compiler vectorises them. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/* No NaN and no +inf; -inf is a masked id. */
static inline bool row_is_usable(const float *x, int32_t n)
{
    int bad = 0;
    for (int32_t i = 0; i < n; i++) bad |= !(x[i] < INFINITY);
    return !bad;
}

/* Largest of x[0 .. n), -inf when n is 0. No NaN. */
static inline float row_max(const float *x, int32_t n)
{
    enum { WIDTH = 16 };
    float lane[WIDTH];
    for (int k = 0; k < WIDTH; k++) lane[k] = -INFINITY;
    int32_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        for (int k = 0; k < WIDTH; k++) lane[k] = x[i + k] > lane[k] ? x[i + k] : lane[k];
    }
    for (int k = 0; i < n; i++, k++) lane[k] = x[i] > lane[k] ? x[i] : lane[k];
    for (int w = WIDTH / 2; w > 0; w /= 2) {
        for (int k = 0; k < w; k++) lane[k] = lane[k + w] > lane[k] ? lane[k + w] : lane[k];
    }
    return lane[0];
}
