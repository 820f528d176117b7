/* The Gumbel noise of a draw, from the formula at the head of choose.h. Any thread in numeric mode. */
#pragma once

#include "backend/choose_math.h"
#include "sampling/choose.h"

/* The words of NOISE_CHUNK ids in a row at one place of one choice; first_id is a multiple of 4. */
enum { NOISE_CHUNK = 64 };
void noise_words(DrawKey key, uint32_t index, uint32_t first_id, uint32_t words[NOISE_CHUNK]);
