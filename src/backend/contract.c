/* Which contract a weight gets: decided from the weight alone. */
#include "backend/contract.h"

Contract contract_for(MathMode mode, int64_t n_in, int row_parallel)
{
    Contract c = { .mode = mode, .k_step = 1, .k_parts = 1, .in = DT_F32, .out = DT_F32 };
    if (mode == MATH_BF16) {
        c.k_step = 2;
        c.in = DT_BF16;
    }
    if (!row_parallel) return c;
    /* Eight parts whatever the number of ranks is today, so that 1, 2, 4 and 8 ranks give the same bits. */
    for (c.k_parts = MAX_K_PARTS; c.k_parts > 1 && n_in % (c.k_parts * c.k_step) != 0;) c.k_parts /= 2;
    return c;
}
