/* Which contract a weight gets: decided from the weight alone. */
#include "backend/contract.h"

/* Eight parts whatever the number of ranks is today, so that 1, 2, 4 and 8 ranks give the same bits. */
static Contract cut(Contract c, int64_t n_in, int64_t step)
{
    for (c.k_parts = MAX_K_PARTS; c.k_parts > 1 && n_in % (c.k_parts * step) != 0;) c.k_parts /= 2;
    return c;
}

Contract contract_for(MathMode mode, int64_t n_in, int row_parallel)
{
    Contract c = { .mode = mode, .k_step = 1, .k_parts = 1, .in = DT_F32, .out = DT_F32 };
    if (mode == MATH_BF16) {
        c.k_step = 2;
        c.in = DT_BF16;
    }
    return row_parallel ? cut(c, n_in, c.k_step) : c;
}

Contract contract_for_blocks(QuantFormat format, int64_t unit, int64_t n_in, int row_parallel)
{
    Contract c = { .mode = MATH_INT8_BLOCK, .k_step = 32, .k_chunk = 32, .k_parts = 1, .in = DT_BF16, .out = DT_F32, .format = format };
    if (format == QUANT_FP8) {
        c.mode = MATH_W8A16;
        c.k_step = 2;
        c.k_chunk = (uint16_t)unit;
    }
    if (quant_is_int4(format)) c.k_chunk = (uint16_t)unit;
    return row_parallel ? cut(c, n_in, unit) : c;
}
