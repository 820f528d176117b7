/* Philox4x32-10.
 *
 * A round multiplies words 0 and 2 by odd constants and lets the high halves, mixed with the key, trade places
 * with words 1 and 3; the key walks by the golden ratio and sqrt(3) - 1 (the Weyl sequence of the paper).
 * Ten rounds pass BigCrush with three to spare. The known answers of the paper's authors are in the tests. */
#include "sampling/philox.h"

static inline void block(uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3, uint32_t key0, uint32_t key1,
                         uint32_t *out)
{
#pragma GCC unroll 10 /* so that the loop over blocks can be vectorised */
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)w0 * 0xD2511F53u;
        uint64_t b = (uint64_t)w2 * 0xCD9E8D57u;
        w0 = (uint32_t)(b >> 32) ^ w1 ^ key0;
        w2 = (uint32_t)(a >> 32) ^ w3 ^ key1;
        w1 = (uint32_t)b;
        w3 = (uint32_t)a;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    out[0] = w0;
    out[1] = w1;
    out[2] = w2;
    out[3] = w3;
}

void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    block(counter[0], counter[1], counter[2], counter[3], key[0], key[1], out);
}

void philox4x32_batch(const uint32_t counter[4], const uint32_t key[2], uint32_t *restrict out)
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], key0 = key[0], key1 = key[1];
    for (uint32_t j = 0; j < PHILOX_BATCH; j++) block(c0, c1, c2 + j, c3, key0, key1, out + 4 * j);
}
