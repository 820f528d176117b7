/* Weights in stored blocks (tensor/quant.h), laid out for kernels: the stored bits, 16 outputs side by side.
 *
 * A panel of 16 outputs is a run of units of 32 inputs (256 where scales have two levels, up to 128 in groups of a zero point). A unit is the scales of its 16
 * outputs, kind by kind, and then for each 32 inputs the codes:
 *
 *     4 bits     4 x 64 bytes; byte b of output n in the i-th holds inputs 8i + b (low) and 8i + 4 + b (high)
 *     + 1 bit    64 bytes; bit j of byte b of output n belongs to input 4j + b
 *     + 2 bits   2 x 64 bytes; bits 2t of byte b of output n in the h-th belong to input 4 (4h + t) + b
 *     8 bits     8 x 64 bytes; byte b of output n in the j-th is input 4j + b
 *
 * so that a 32-bit lane is an output and its four bytes are inputs in a row: the shape of integer dot products.
 *
 * What a code means: weight = scale * (code - offset) + min, with a table in between for IQ4_NL and FP4. The contract of a
 * linear layer over such weights (MATH_INT8_BLOCK) is in contract.h. */
#pragma once

#include "backend/backend.h"
#include "tensor/quant.h"

enum { BLOCK = 32, BLOCK_MAX_GROUPS = 2 };

typedef enum BlockScales {
    SCALES_HALF,     /* f16 d[16] */
    SCALES_HALF_MIN, /* f16 d[16], m[16] */
    SCALES_E8M0,     /* u8 [16], of doubled codes: half the value */
    SCALES_E4M3,     /* u8 [2][16] per 16 inputs, of doubled codes, times the weight's `global` */
    SCALES_K,        /* f16 d[16], dmin[16]; u8 scale[8][16], min[8][16] of each 32 inputs */
    SCALES_K6,       /* f16 d[16]; i8 scale[16][16] of each 16 inputs */
    SCALES_GROUP,    /* f32 scale[16]; u8 zero[16], taken off the codes of the whole unit; groups of several units repeat both */
} BlockScales;

typedef struct BlockLayout {
    int32_t     unit;      /* inputs */
    int32_t     high_bits; /* of a code beyond four: 0, 1, 2; 4 = whole bytes */
    int32_t     offset;    /* what is taken off an unsigned code; with a table: off its entry */
    int32_t     n_groups;  /* scales in 32 inputs */
    BlockScales scales;
    bool        has_min;
    const uint8_t *table;  /* [16] from a nibble to an unsigned code; NULL = itself */
} BlockLayout;

/* NULL: kernels do not know this format. group: inputs that share a scale, of AWQ, GPTQ and INT4. */
const BlockLayout *block_layout_for(QuantFormat f, int64_t group, int64_t n_in);
static inline const BlockLayout *block_layout(const Weight *w)
{
    return block_layout_for(w->contract.format, w->contract.k_chunk, w->n_in);
}
size_t block_scale_bytes(const BlockLayout *l); /* of a unit of 16 outputs */
size_t block_code_bytes(const BlockLayout *l);  /* of 32 inputs of 16 outputs */
static inline size_t block_unit_bytes(const BlockLayout *l)
{
    return block_scale_bytes(l) + (size_t)(l->unit / BLOCK) * block_code_bytes(l);
}

/* Rows of a panel: into place, and one back as float32, as quant_decode_row() has it. */
void blocks_put_rows(Weight *w, int64_t first, const QuantMatrix *rows);
/* The same for some inputs of all rows, of a format whose inputs are outermost: whole units from input `first` on. */
void blocks_put_inputs(Weight *w, int64_t first, const QuantMatrix *inputs);
void blocks_get_row(const Weight *w, int64_t row, float *out);

/* Unit `unit` of a panel. */
static inline const uint8_t *block_unit_at(const Weight *w, const BlockLayout *l, int64_t panel, int64_t unit)
{
    return (const uint8_t *)w->data + (size_t)(panel * (w->n_in / l->unit) + unit) * block_unit_bytes(l);
}

/* The scalar reading of a unit, which every kernel agrees with: block k of it (32 inputs). */
typedef struct BlockNumbers {
    float   scale[BLOCK_MAX_GROUPS][WEIGHT_PANEL], min[WEIGHT_PANEL];
    int16_t value[BLOCK][WEIGHT_PANEL]; /* code - offset */
} BlockNumbers;
void block_read(const Weight *w, const BlockLayout *l, const uint8_t *unit, int k, BlockNumbers *out);
