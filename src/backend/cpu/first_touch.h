/* Weights beside those who read them, on machines with several memory nodes. */
#pragma once

#include "backend/backend.h"

/* Every worker is the first to write to the panels of its share, before the weight is loaded: the system puts a page next
 * to the processor that touches it first. Zeroed memory of the CPU. */
void first_touch_weight(Backend *b, const Weight *w);
