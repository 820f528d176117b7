/* See blocks.h: from rows of stored blocks to panels, and back. Codes are moved bit by bit of their meaning, one output
 * at a time; scales keep their stored form. */
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

/* ---- one row of a unit, out of its stored blocks ---- */

typedef struct RowUnit {
    uint16_t d, m;         /* halves */
    uint8_t  scale[16], min[8]; /* small ones, in order */
    float    group_scale;
    uint8_t  zero;
    uint8_t  code[256];
} RowUnit;

static uint16_t u16_at(const uint8_t *b)
{
    return (uint16_t)(b[0] | b[1] << 8);
}

static int nibble(const uint8_t *q, int j)
{
    return j < 16 ? q[j] & 15 : q[j - 16] >> 4;
}

/* Blocks of 32 with halves in front: d, then m where there is one, then the fifth bits, then the codes. */
static void read_32(const BlockLayout *l, const uint8_t *b, RowUnit *u)
{
    const uint8_t *fifth = b + (l->scales == SCALES_HALF_MIN ? 4 : 2), *q = fifth + (l->high_bits == 1 ? 4 : 0);
    u->d = u16_at(b);
    if (l->scales == SCALES_HALF_MIN) u->m = u16_at(b + 2);
    for (int j = 0; j < 32; j++) {
        u->code[j] = l->high_bits == 4 ? q[j] ^ 0x80 : (uint8_t)nibble(q, j);
        if (l->high_bits == 1) u->code[j] |= (fifth[j / 8] >> (j % 8) & 1) << 4;
    }
}

static void read_k(const BlockLayout *l, const uint8_t *b, RowUnit *u)
{
    const uint8_t *q = b + 4, *fifth = l->high_bits ? b + 16 : NULL, *codes = b + (l->high_bits ? 48 : 16);
    u->d = u16_at(b);
    u->m = u16_at(b + 2);
    for (int j = 0; j < 8; j++) {
        u->scale[j] = j < 4 ? q[j] & 63 : (q[j + 4] & 15) | (q[j - 4] >> 6) << 4;
        u->min[j] = j < 4 ? q[j + 4] & 63 : q[j + 4] >> 4 | (q[j] >> 6) << 4;
        for (int i = 0; i < 32; i++) {
            uint8_t byte = codes[32 * (j / 2) + i], code = j & 1 ? byte >> 4 : byte & 15;
            u->code[32 * j + i] = fifth ? code | (fifth[i] >> j & 1) << 4 : code;
        }
    }
}

static void read_k6(const uint8_t *b, RowUnit *u)
{
    u->d = u16_at(b + 208);
    memcpy(u->scale, b + 192, 16);
    for (int i = 0; i < 256; i++) {
        int half = i / 128, j = i / 32 % 4, at = i % 32;
        uint8_t low = b[64 * half + at + 32 * (j & 1)], high = b[128 + 32 * half + at];
        u->code[i] = (j < 2 ? low & 15 : low >> 4) | (high >> 2 * j & 3) << 4;
    }
}

/* FP4: in GGUF the halves of a group lie in the halves of its bytes, in safetensors neighbours share a byte. */
static void read_fp4(const QuantMatrix *m, int64_t row, int64_t k, RowUnit *u)
{
    const uint8_t *codes = (const uint8_t *)m->codes + row * (m->n_in / 2) + k / 2, *scales = m->scales;
    if (m->format == QUANT_MXFP4_BLOCKS) {
        const uint8_t *b = (const uint8_t *)m->codes + (row * m->n_in + k) / 32 * 17;
        u->scale[0] = b[0];
        for (int j = 0; j < 32; j++) u->code[j] = (uint8_t)nibble(b + 1, j);
    } else if (m->format == QUANT_NVFP4_BLOCKS) {
        const uint8_t *b = (const uint8_t *)m->codes + (row * m->n_in + k) / 64 * 36;
        int first = k % 64 / 16;
        for (int g = 0; g < 2; g++) {
            const uint8_t *q = b + 4 + 8 * (first + g);
            u->scale[g] = b[first + g] == 0x7f ? 0 : b[first + g] & 0x7f;
            for (int j = 0; j < 16; j++) u->code[16 * g + j] = j < 8 ? q[j] & 15 : q[j - 8] >> 4;
        }
    } else {
        for (int j = 0; j < 32; j++) u->code[j] = j & 1 ? codes[j / 2] >> 4 : codes[j / 2] & 15;
        if (m->format == QUANT_MXFP4) u->scale[0] = scales[(row * m->n_in + k) / 32];
        else memcpy(u->scale, scales + (row * m->n_in + k) / 16, 2);
    }
}

static void read_group(const BlockLayout *l, const QuantMatrix *m, int64_t row, int64_t k, RowUnit *u)
{
    u->group_scale = quant_int4_scale(m, row, k / m->group_in);
    u->zero = (uint8_t)quant_int4_zero(m, row, k / m->group_in);
    for (int j = 0; j < l->unit; j++) u->code[j] = (uint8_t)quant_int4_code(m, row, k + j);
}

static void read_unit(const BlockLayout *l, const QuantMatrix *m, int64_t row, int64_t unit, RowUnit *u)
{
    if (l->scales == SCALES_GROUP) {
        read_group(l, m, row, unit * l->unit, u);
        return;
    }
    const QuantGeometry *g = quant_geometry(m->format);
    const uint8_t *b = (const uint8_t *)m->codes + (row * (m->n_in / g->block) + unit) * g->block_bytes;
    if (l->table == fp4_table) read_fp4(m, row, unit * BLOCK, u);
    else if (l->scales == SCALES_K) read_k(l, b, u);
    else if (l->scales == SCALES_K6) read_k6(b, u);
    else read_32(l, b, u);
}

/* ---- into a panel ---- */

static void put_half(uint8_t *to, int n, uint16_t h)
{
    memcpy(to + 2 * n, &h, sizeof h);
}

static void put_scales(const BlockLayout *l, uint8_t *unit, int n, const RowUnit *u)
{
    switch (l->scales) {
    case SCALES_HALF_MIN: put_half(unit + 32, n, u->m); /* fall through */
    case SCALES_HALF: put_half(unit, n, u->d); break;
    case SCALES_E8M0: unit[n] = u->scale[0]; break;
    case SCALES_E4M3:
        for (int g = 0; g < 2; g++) unit[16 * g + n] = u->scale[g];
        break;
    case SCALES_K:
        put_half(unit, n, u->d);
        put_half(unit + 32, n, u->m);
        for (int j = 0; j < 8; j++) unit[64 + 16 * j + n] = u->scale[j];
        for (int j = 0; j < 8; j++) unit[64 + 128 + 16 * j + n] = u->min[j];
        break;
    case SCALES_K6:
        put_half(unit, n, u->d);
        for (int j = 0; j < 16; j++) unit[32 + 16 * j + n] = u->scale[j];
        break;
    case SCALES_GROUP:
        memcpy(unit + 4 * n, &u->group_scale, sizeof u->group_scale);
        unit[64 + n] = u->zero;
        break;
    }
}

/* The codes of 32 inputs of output n of the panel. Bits of other outputs stay. */
static void put_codes(const BlockLayout *l, uint8_t *to, int n, const uint8_t *code)
{
    for (int j = 0; j < BLOCK; j++) {
        int word = j / 4, b = 4 * n + j % 4;
        if (l->high_bits == 4) {
            to[64 * word + b] = code[j];
            continue;
        }
        to[64 * (word / 2) + b] |= (uint8_t)((code[j] & 15) << (word & 1 ? 4 : 0));
        if (l->high_bits == 1) to[256 + b] |= (uint8_t)((code[j] >> 4) << word);
        if (l->high_bits == 2) to[256 + 64 * (word / 4) + b] |= (uint8_t)((code[j] >> 4) << 2 * (word % 4));
    }
}

/* Output `row` of the weight in its unit `k`. */
static void put_unit(Weight *w, const BlockLayout *l, int64_t row, int64_t k, const RowUnit *u)
{
    int n = (int)(row % WEIGHT_PANEL);
    uint8_t *unit = (uint8_t *)block_unit_at(w, l, row / WEIGHT_PANEL, k), *codes = unit + block_scale_bytes(l);
    put_scales(l, unit, n, u);
    for (int j = 0; j < l->unit / BLOCK; j++) put_codes(l, codes + (size_t)j * block_code_bytes(l), n, u->code + BLOCK * j);
}

void blocks_put_rows(Weight *w, int64_t first, const QuantMatrix *rows)
{
    const BlockLayout *l = block_layout(w);
    CHECK(l && rows->format == w->contract.format && rows->n_in == w->n_in && first + rows->n_out <= w->n_out);
    RowUnit u = { 0 };
    for (int64_t row = 0; row < rows->n_out; row++) {
        for (int64_t k = 0; k < w->n_in / l->unit; k++) {
            read_unit(l, rows, row, k, &u);
            put_unit(w, l, first + row, k, &u);
        }
    }
}

void blocks_put_inputs(Weight *w, int64_t first, const QuantMatrix *inputs)
{
    const BlockLayout *l = block_layout(w);
    CHECK(l && inputs->format == w->contract.format && inputs->n_out == w->n_out && first % l->unit == 0 && inputs->n_in % l->unit == 0 &&
          first + inputs->n_in <= w->n_in);
    RowUnit u = { 0 };
    for (int64_t k = 0; k < inputs->n_in / l->unit; k++) {
        for (int64_t row = 0; row < w->n_out; row++) {
            read_unit(l, inputs, row, k, &u);
            put_unit(w, l, row, first / l->unit + k, &u);
        }
    }
}

/* ---- reading ---- */

static float half_of(const uint8_t *at, int n)
{
    return f16_to_f32(u16_at(at + 2 * n));
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
