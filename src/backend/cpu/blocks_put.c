/* Stored blocks to panels (blocks.h). One output's part of a unit is taken apart into a byte a code, whatever the format, and
 * those go four by four, a 32-bit lane, to where kernels want them; scales keep their stored form.
 *
 * A panel's lanes are written once for all of its outputs' bits: bits above the first four of different words share bytes, so
 * a lane is put together before it is written. */
#include "backend/cpu/blocks.h"

enum { MAX_UNIT = 256, WORDS = BLOCK / 4 };

/* One output's part of a unit. */
typedef struct RowUnit {
    uint16_t d, m;              /* halves */
    uint8_t  scale[16], min[8]; /* small ones, in order */
    float    group_scale;
    uint8_t  zero;
    uint8_t  code[MAX_UNIT];
} RowUnit;

static uint16_t u16_at(const uint8_t *b)
{
    return (uint16_t)(b[0] | b[1] << 8);
}

/* ---- codes, a byte each ---- */

/* n bytes: their low halves, then their high ones. */
static inline void halves_apart(uint8_t *code, const uint8_t *q, int n)
{
    for (int j = 0; j < n; j++) code[j] = q[j] & 15;
    for (int j = 0; j < n; j++) code[n + j] = q[j] >> 4;
}

/* n codes, two neighbours a byte, the first one low. */
static inline void pairs_apart(uint8_t *code, const uint8_t *q, int n)
{
    for (int j = 0; j < n; j += 4) {
        uint32_t x = u16_at(q + j / 2);
        x = (x | x << 8) & 0x00ff00ff;
        x = (x | x << 4) & 0x0f0f0f0f;
        memcpy(code + j, &x, sizeof x);
    }
}

/* Bit i of a byte becomes bit 4 of byte i. */
static inline uint64_t spread(uint8_t bits)
{
    uint64_t x = bits * 0x0101010101010101u & 0x8040201008040201u;
    return ((x + 0x00406070787c7e7fu) & 0x8080808080808080u) >> 3;
}

/* Blocks of 32 with halves in front: d, then m where there is one, then the fifth bits, then the codes. */
static void read_32(const BlockLayout *l, const uint8_t *b, RowUnit *u)
{
    const uint8_t *fifth = b + (l->scales == SCALES_HALF_MIN ? 4 : 2), *q = fifth + (l->high_bits == 1 ? 4 : 0);
    u->d = u16_at(b);
    if (l->scales == SCALES_HALF_MIN) u->m = u16_at(b + 2);
    if (l->high_bits == 4) {
        for (int j = 0; j < 32; j++) u->code[j] = q[j] ^ 0x80;
        return;
    }
    halves_apart(u->code, q, 16);
    for (int i = 0; l->high_bits == 1 && i < 4; i++) {
        uint64_t eight;
        memcpy(&eight, u->code + 8 * i, sizeof eight);
        eight |= spread(fifth[i]);
        memcpy(u->code + 8 * i, &eight, sizeof eight);
    }
}

static void read_k(const BlockLayout *l, const uint8_t *b, RowUnit *u)
{
    const uint8_t *q = b + 4, *fifth = b + 16, *codes = b + (l->high_bits ? 48 : 16);
    u->d = u16_at(b);
    u->m = u16_at(b + 2);
    for (int j = 0; j < 8; j++) {
        u->scale[j] = j < 4 ? q[j] & 63 : (q[j + 4] & 15) | (q[j - 4] >> 6) << 4;
        u->min[j] = j < 4 ? q[j + 4] & 63 : q[j + 4] >> 4 | (q[j] >> 6) << 4;
    }
    for (int j = 0; j < 4; j++) halves_apart(u->code + 64 * j, codes + 32 * j, 32);
    for (int j = 0; l->high_bits && j < 8; j++)
        for (int i = 0; i < 32; i++) u->code[32 * j + i] |= (uint8_t)((fifth[i] >> j & 1) << 4);
}

static void read_k6(const uint8_t *b, RowUnit *u)
{
    u->d = u16_at(b + 208);
    memcpy(u->scale, b + 192, 16);
    for (int half = 0; half < 2; half++) {
        const uint8_t *low = b + 64 * half, *high = b + 128 + 32 * half;
        halves_apart(u->code + 128 * half, low, 64);
        for (int j = 0; j < 4; j++)
            for (int i = 0; i < 32; i++) u->code[128 * half + 32 * j + i] |= (uint8_t)((high[i] >> 2 * j & 3) << 4);
    }
}

/* FP4: in GGUF the halves of a group lie in the halves of its bytes, in safetensors neighbours share a byte. */
static void read_fp4(const QuantMatrix *m, int64_t row, int64_t k, RowUnit *u)
{
    const uint8_t *codes = m->codes, *scales = m->scales;
    const int64_t at = row * m->n_in + k;
    if (m->format == QUANT_MXFP4_BLOCKS) {
        const uint8_t *b = codes + at / 32 * 17;
        u->scale[0] = b[0];
        halves_apart(u->code, b + 1, 16);
    } else if (m->format == QUANT_NVFP4_BLOCKS) {
        const uint8_t *b = codes + at / 64 * 36;
        int first = k % 64 / 16;
        for (int g = 0; g < 2; g++) {
            u->scale[g] = b[first + g] == 0x7f ? 0 : b[first + g] & 0x7f;
            halves_apart(u->code + 16 * g, b + 4 + 8 * (first + g), 8);
        }
    } else {
        pairs_apart(u->code, codes + at / 2, 32);
        if (m->format == QUANT_MXFP4) u->scale[0] = scales[at / 32];
        else memcpy(u->scale, scales + at / 16, 2);
    }
}

/* AWQ: eight outputs share the word of an input. */
static void read_awq(const QuantMatrix *m, int64_t row, int64_t k, int n, uint8_t *code)
{
    const int64_t words = m->n_out / 8;
    const int place = quant_awq_place[row % 8], shift = place % 2 * 4;
    const uint8_t *at = (const uint8_t *)m->codes + (k * words + row / 8) * 4 + place / 2;
    for (int j = 0; j < n; j++) code[j] = at[j * words * 4] >> shift & 15;
}

static void read_group(const BlockLayout *l, const QuantMatrix *m, int64_t row, int64_t k, RowUnit *u)
{
    const uint8_t *codes = m->codes;
    u->group_scale = quant_int4_scale(m, row, k / m->group_in);
    u->zero = (uint8_t)quant_int4_zero(m, row, k / m->group_in);
    if (m->format == QUANT_AWQ) read_awq(m, row, k, l->unit, u->code);
    else if (m->format == QUANT_INT4) pairs_apart(u->code, codes + (row * m->n_in + k) / 2, l->unit);
    else for (int j = 0; j < l->unit; j += 8) pairs_apart(u->code + j, codes + ((k + j) / 8 * m->n_out + row) * 4, 8);
}

static void read_unit(const BlockLayout *l, const QuantMatrix *m, int64_t row, int64_t unit, RowUnit *u)
{
    const QuantGeometry *g = quant_geometry(m->format);
    const uint8_t *b = (const uint8_t *)m->codes + (row * (m->n_in / g->block) + unit) * g->block_bytes; /* of whole blocks */
    if (l->scales == SCALES_GROUP) read_group(l, m, row, unit * l->unit, u);
    else if (l->scales == SCALES_E8M0 || l->scales == SCALES_E4M3) read_fp4(m, row, unit * BLOCK, u);
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

static inline void put_lane(uint8_t *to, int n, uint32_t lane)
{
    memcpy(to + 4 * n, &lane, sizeof lane);
}

/* The codes of 32 inputs of output n of the panel. */
static void put_codes(const BlockLayout *l, uint8_t *to, int n, const uint8_t *code)
{
    uint32_t word[WORDS], high[2] = { 0 };
    memcpy(word, code, sizeof word);
    if (l->high_bits == 4) {
        for (int j = 0; j < WORDS; j++) put_lane(to + 64 * j, n, word[j]);
        return;
    }
    for (int i = 0; i < WORDS / 2; i++) put_lane(to + 64 * i, n, (word[2 * i] & 0x0f0f0f0f) | (word[2 * i + 1] & 0x0f0f0f0f) << 4);
    for (int j = 0; l->high_bits && j < WORDS; j++) {
        uint32_t bits = word[j] >> 4 & 0x03030303;
        if (l->high_bits == 1) high[0] |= bits << j;
        else high[j / 4] |= bits << 2 * (j % 4);
    }
    for (int h = 0; h < l->high_bits; h++) put_lane(to + 256 + 64 * h, n, high[h]);
}

/* Output `row` of the weight in its unit `k`. */
static void put_unit(Weight *w, const BlockLayout *l, int64_t row, int64_t k, const RowUnit *u)
{
    int n = (int)(row % WEIGHT_PANEL);
    uint8_t *unit = (uint8_t *)block_unit_at(w, l, row / WEIGHT_PANEL, k), *codes = unit + block_scale_bytes(l);
    put_scales(l, unit, n, u);
    for (int j = 0; j < l->unit / BLOCK; j++) put_codes(l, codes + (size_t)j * block_code_bytes(l), n, u->code + BLOCK * j);
}

/* All inputs of n_rows rows of m, to outputs from `row` and units from `unit` on. */
static void put_units(Weight *w, const BlockLayout *l, const QuantMatrix *m, int64_t first_row, int64_t n_rows, int64_t row, int64_t unit)
{
    RowUnit u;
    for (int64_t k = 0; k < m->n_in / l->unit; k++) {
        for (int64_t r = 0; r < n_rows; r++) {
            read_unit(l, m, first_row + r, k, &u);
            put_unit(w, l, row + r, unit + k, &u);
        }
    }
}

void blocks_put_rows(Weight *w, int64_t first, const QuantMatrix *rows)
{
    const BlockLayout *l = block_layout(w);
    CHECK(l && rows->format == w->contract.format && rows->n_in == w->n_in && first + rows->n_out <= w->n_out);
    for (int64_t row = 0; row < rows->n_out; row += WEIGHT_PANEL) /* few enough that their panels stay in the cache */
        put_units(w, l, rows, row, rows->n_out - row < WEIGHT_PANEL ? rows->n_out - row : WEIGHT_PANEL, first + row, 0);
}

void blocks_put_inputs(Weight *w, int64_t first, const QuantMatrix *inputs)
{
    const BlockLayout *l = block_layout(w);
    CHECK(l && inputs->format == w->contract.format && inputs->n_out == w->n_out && first % l->unit == 0 && inputs->n_in % l->unit == 0 &&
          first + inputs->n_in <= w->n_in);
    put_units(w, l, inputs, 0, w->n_out, 0, first / l->unit);
}
