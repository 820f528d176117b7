/* The functions of fmath by number, one by one and in vector lanes: compiled apart, with the flags of the
 * kernels (test_fmath.c itself runs on any machine). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { LANES_COUNT = 8 };
const char *lanes_name(int f);
void        lanes_scalar(int f, const float *x, float *out, int n);

/* One instruction set. */
typedef struct LaneSet {
    const char *name;
    bool (*is_available)(void);                              /* on this machine */
    bool (*vector)(int f, const float *x, float *out, int n); /* n a multiple of 16; false: nobody needs f in it */
} LaneSet;

extern const LaneSet lanes_avx2, lanes_avx512, lanes_neon; /* those of this family of processors */
