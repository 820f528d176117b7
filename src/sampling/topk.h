/* The few largest of many, in order. Any thread; no memory of its own. */
#pragma once

#include <stdint.h>

/* Writes the k largest of x[0 .. n) to value[] and their places to id[], larger first, equal ones by lower place.
 * -inf is never taken; the result may therefore be shorter than k: the number taken is returned. x holds no NaN.
 * About n comparisons and k log(n / k) heap steps when x is in no order. */
int32_t topk_list(const float *x, int32_t n, int32_t k, int32_t *id, float *value);
