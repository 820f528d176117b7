/* Milliseconds of the monotonic clock, for figures shown to people. Any thread. */
#pragma once

#include <time.h>

static inline double clock_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}
