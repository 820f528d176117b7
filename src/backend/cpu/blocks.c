/* See blocks.h: what formats there are, and the scalar reading of a panel. How panels come to be is blocks_put.c. */
#include "backend/cpu/blocks.h"

#include "tensor/small_float.h"

/* Entries are values + 128 or + 12: unsigned, as dot products want one side. */
static const uint8_t iq4_table[16] = { 1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241 };
static const uint8_t fp4_table[16] = { 12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0 };

/* The largest unit that lies inside the groups. */
static const BlockLayout *group_layout(int64_t group, int64_t n_in)
{
    static const BlockLayout layouts[] = { { 128, 0, 0, 1, SCALES_GROUP, false, NULL },
                                           { 64, 0, 0, 1, SCALES_GROUP, false, NULL },
                                           { 32, 0, 0, 1, SCALES_GROUP, false, NULL } };
    for (int i = 0; i < COUNT(layouts); i++)
        if (group > 0 && group % layouts[i].unit == 0 && n_in % layouts[i].unit == 0) return &layouts[i];
    return NULL;
}

const BlockLayout *block_layout_for(QuantFormat f, int64_t group, int64_t n_in)
{
    static const BlockLayout layouts[QUANT_FORMATS] = {
        [QUANT_Q4_0] = { 32, 0, 8, 1, SCALES_HALF, false, NULL },
        [QUANT_Q4_1] = { 32, 0, 0, 1, SCALES_HALF_MIN, true, NULL },
        [QUANT_Q5_0] = { 32, 1, 16, 1, SCALES_HALF, false, NULL },
        [QUANT_Q5_1] = { 32, 1, 0, 1, SCALES_HALF_MIN, true, NULL },
        [QUANT_Q8_0] = { 32, 4, 128, 1, SCALES_HALF, false, NULL },
        [QUANT_IQ4_NL] = { 32, 0, 128, 1, SCALES_HALF, false, iq4_table },
        [QUANT_MXFP4_BLOCKS] = { 32, 0, 12, 1, SCALES_E8M0, false, fp4_table },
        [QUANT_MXFP4] = { 32, 0, 12, 1, SCALES_E8M0, false, fp4_table },
        [QUANT_NVFP4_BLOCKS] = { 32, 0, 12, 2, SCALES_E4M3, false, fp4_table },
        [QUANT_NVFP4] = { 32, 0, 12, 2, SCALES_E4M3, false, fp4_table },
        [QUANT_Q4_K] = { 256, 0, 0, 1, SCALES_K, true, NULL },
        [QUANT_Q5_K] = { 256, 1, 0, 1, SCALES_K, true, NULL },
        [QUANT_Q6_K] = { 256, 2, 32, 2, SCALES_K6, false, NULL },
    };
    if (quant_is_int4(f)) return group_layout(group, n_in);
    return f < QUANT_FORMATS && layouts[f].unit && n_in % layouts[f].unit == 0 ? &layouts[f] : NULL;
}

size_t block_scale_bytes(const BlockLayout *l)
{
    static const uint16_t bytes[] = { [SCALES_HALF] = 32, [SCALES_HALF_MIN] = 64, [SCALES_E8M0] = 16, [SCALES_E4M3] = 32,
                                      [SCALES_K] = 64 + 256, [SCALES_K6] = 32 + 256, [SCALES_GROUP] = 64 + 16 };
    return bytes[l->scales];
}

size_t block_code_bytes(const BlockLayout *l)
{
    return 256 + (size_t)l->high_bits * 64;
}

/* ---- reading ---- */

static float half_of(const uint8_t *at, int n)
{
    return f16_to_f32((uint16_t)(at[2 * n] | at[2 * n + 1] << 8));
}

static void read_scales(const Weight *w, const BlockLayout *l, const uint8_t *unit, int k, BlockNumbers *out)
{
    for (int n = 0; n < WEIGHT_PANEL; n++) {
        switch (l->scales) {
        case SCALES_HALF_MIN: out->min[n] = half_of(unit + 32, n); /* fall through */
        case SCALES_HALF: out->scale[0][n] = half_of(unit, n); break;
        case SCALES_E8M0: out->scale[0][n] = e8m0_half_to_f32(unit[n]); break;
        case SCALES_E4M3:
            for (int g = 0; g < 2; g++) out->scale[g][n] = 0.5f * (e4m3_to_f32(unit[16 * g + n]) * w->global);
            break;
        case SCALES_K:
            out->scale[0][n] = half_of(unit, n) * (float)unit[64 + 16 * k + n];
            out->min[n] = -(half_of(unit + 32, n) * (float)unit[64 + 128 + 16 * k + n]);
            break;
        case SCALES_K6:
            for (int g = 0; g < 2; g++) out->scale[g][n] = half_of(unit, n) * (float)(int8_t)unit[32 + 16 * (2 * k + g) + n];
            break;
        case SCALES_GROUP: memcpy(&out->scale[0][n], unit + 4 * n, sizeof out->scale[0][n]); break;
        }
    }
}

static int code_at(const BlockLayout *l, const uint8_t *codes, int j, int n)
{
    int word = j / 4, b = 4 * n + j % 4;
    if (l->high_bits == 4) return codes[64 * word + b];
    int code = codes[64 * (word / 2) + b] >> (word & 1 ? 4 : 0) & 15;
    if (l->table) return l->table[code];
    if (l->high_bits == 1) code |= (codes[256 + b] >> word & 1) << 4;
    if (l->high_bits == 2) code |= (codes[256 + 64 * (word / 4) + b] >> 2 * (word % 4) & 3) << 4;
    return code;
}

void block_read(const Weight *w, const BlockLayout *l, const uint8_t *unit, int k, BlockNumbers *out)
{
    const uint8_t *codes = unit + block_scale_bytes(l) + (size_t)k * block_code_bytes(l);
    read_scales(w, l, unit, k, out);
    for (int j = 0; j < BLOCK; j++) {
        for (int n = 0; n < WEIGHT_PANEL; n++) {
            int offset = l->scales == SCALES_GROUP ? unit[64 + n] : l->offset;
            out->value[j][n] = (int16_t)(code_at(l, codes, j, n) - offset);
        }
    }
}

void blocks_get_row(const Weight *w, int64_t row, float *out)
{
    const BlockLayout *l = block_layout(w);
    int n = (int)(row % WEIGHT_PANEL), per_group = BLOCK / l->n_groups;
    BlockNumbers numbers = { 0 };
    for (int64_t k = 0; k < w->n_in; k += BLOCK) {
        const uint8_t *unit = block_unit_at(w, l, row / WEIGHT_PANEL, k / l->unit);
        block_read(w, l, unit, (int)(k % l->unit / BLOCK), &numbers);
        for (int j = 0; j < BLOCK; j++) {
            float x = numbers.scale[j / per_group][n] * (float)numbers.value[j][n];
            out[k + j] = l->has_min ? x + numbers.min[n] : x;
        }
    }
}
