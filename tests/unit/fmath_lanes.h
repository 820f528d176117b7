/* The functions of fmath by number, one by one and in vector lanes: compiled apart, with the flags of the
 * kernels (test_fmath.c itself runs on any machine). */
#pragma once

#include <stdbool.h>

enum { LANES_COUNT = 8 };
const char *lanes_name(int f);
bool        lanes_available(void);
void        lanes_scalar(int f, const float *x, float *out, int n);
void        lanes_vector(int f, const float *x, float *out, int n); /* n a multiple of 16 */
