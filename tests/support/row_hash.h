/* The bits of a row of logits in one number (FNV-1a over its words), so that tests compare many rows without keeping them. */
#pragma once

#include <stdint.h>
#include <string.h>

static inline uint64_t row_hash(const float *row, int32_t n)
{
    uint64_t h = 14695981039346656037u;
    for (int32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &row[i], sizeof bits);
        h = (h ^ bits) * 1099511628211u;
    }
    return h;
}
