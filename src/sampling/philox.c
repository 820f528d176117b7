/* Philox4x32-10: see philox_block(). Ten rounds pass BigCrush with three to spare. The known answers of the paper's authors
 * are in the tests. */
#include "sampling/philox.h"

#include "backend/choose_math.h"

void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    philox_block(counter[0], counter[1], counter[2], counter[3], key[0], key[1], out);
}

void philox4x32_batch(const uint32_t counter[4], const uint32_t key[2], uint32_t *restrict out)
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], key0 = key[0], key1 = key[1];
    for (uint32_t j = 0; j < PHILOX_BATCH; j++) philox_block(c0, c1, c2 + j, c3, key0, key1, out + 4 * j);
}
