/* Philox4x32-10: random words as a pure function of key and counter (Salmon, Moraes, Dror, Shaw: "Parallel
 * random numbers: as easy as 1, 2, 3", SC 2011, section 3.3). Any thread; nothing is remembered. */
#pragma once

#include <stdint.h>

void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* PHILOX_BATCH blocks in a row: block j has counter[2] + j instead of counter[2]. out [4 * PHILOX_BATCH]. The same
 * words as one by one, in a third of the time. */
enum { PHILOX_BATCH = 16 };
void philox4x32_batch(const uint32_t counter[4], const uint32_t key[2], uint32_t *out);
