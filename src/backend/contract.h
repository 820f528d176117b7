/* The numeric contract: what makes the bits of a row, written down once per weight.
 *
 * Set when a weight is loaded, from the weight alone. Rows in the pass, batch mates, worker threads,
 * tiles, CPU_MASK and ranks never enter, so they cannot change a bit.
 *
 * CPU contract of a linear layer, y[n] = sum_k x[k] * w[n][k]:
 *   - x is rounded once to `in` (bf16 or float32) by the op that made it; w is stored as loaded.
 *   - K is cut into k_parts equal parts (k_parts divides K / k_step). Inside a part one float32
 *     accumulator starts at +0 and takes k_step inputs at a time, ascending:
 *         MATH_BF16   k_step 2:  acc = fma(x[2i], w[2i], fma(x[2i+1], w[2i+1], acc))
 *                     denormal inputs and results are zero (what the bf16 dot instruction does)
 *         MATH_F32    k_step 1:  acc = fma(x[k], w[k], acc)
 *         MATH_INT8_BLOCK   k_step 32, weights as stored blocks: weight = scale * (code - offset) + min; the offset is
 *                     the format's, or the zero point that an output's group of inputs has
 *                     a block of 32 inputs becomes integers: amax = the largest magnitude, s = amax / 127,
 *                     q = x * (127 / amax) rounded to the nearest, ties to even (amax < 1e-30: all zero; an input that is
 *                     not finite: s is NaN). Then for each group of inputs that share a scale, ascending,
 *                         acc = fma((float)(sum of q * (code - offset)), scale * s, acc)
 *                     and where the format has a minimum  acc = fma(min, s * (float)(sum of q), acc)
 *                     Integer sums are exact, so their order is free. scale and min are what decoding multiplies with and
 *                     adds: for blocks of two levels d * scale and -(dmin * min), for NVFP4 0.5 * (e4m3 * global) with
 *                     doubled codes
 *         MATH_W8A16   k_step 2, weights as E4M3 codes and a float32 scale for each output and chunk of 128 inputs
 *                     for each chunk of a part, ascending (the last one may be shorter), a partial sum starts at +0 and takes
 *                     its codes, which bf16 holds exactly, by the rule of MATH_BF16; then
 *                         acc = fma(partial, scale, acc)
 *                     One rule for a scale of the whole tensor, of an output, and of a square of 128 x 128
 *   - parts are added as a binary tree: ((p0+p1)+(p2+p3))+((p4+p5)+(p6+p7)).
 * The engine and worker threads run with denormals-as-zero and flush-to-zero set, so that scalar code
 * and the instruction agree (numeric_mode_enter in backend.h). */
#pragma once

#include "tensor/quant.h"

#include <stdint.h>

/* Rows on a path: anchor and the row itself included, so at most 31 drafted tokens deep. */
enum { MAX_DEPTH = 32 };
enum { MAX_K_PARTS = 8 };

typedef enum MathMode { MATH_F32, MATH_BF16, MATH_W4A16, MATH_W8A16, MATH_W4A4, MATH_INT8_BLOCK } MathMode;

typedef struct Contract {
    MathMode mode;
    uint16_t k_step;  /* inputs one accumulation takes, see above */
    uint16_t k_chunk; /* inputs that share a scale; 0 = no scales */
    uint16_t k_parts; /* 1, 2, 4 or 8 */
    DType    in, out; /* activations are rounded once to `in`; sums leave as `out` (float32) */
    QuantFormat format; /* of weights kept as they are stored; else QUANT_NONE */
} Contract;

/* Numbers that hold for a whole model. */
typedef struct Numerics {
    int32_t  attn_tile;   /* keys that may be summed in an order of the device's own; 1 on CPUs: every
                           * key is added one by one, so the rule about the last MAX_DEPTH is empty */
    int32_t  attn_split;  /* partial softmaxes start at multiples of this position */
    int32_t  max_depth;   /* MAX_DEPTH */
    DType    residual, kv, state;
    int32_t  gdn_form;    /* 0 = token by token along the path */
    int32_t  sampler_version; /* noise function and filter order, sampling/choose.h */
    uint64_t fingerprint; /* hash of all this and of the weights' contracts and names; not of the ISA,
                           * where bits are equal. It is system_fingerprint and keys caches on disk */
} Numerics;

/* Contract of a weight. row_parallel: o_proj, down_proj, out_proj, whose K is cut over ranks. */
Contract contract_for(MathMode mode, int64_t n_in, int row_parallel);
/* The same for one that is kept as it is stored, whose inputs are rounded to bf16 first. unit: inputs that cannot be parted. */
Contract contract_for_blocks(QuantFormat format, int64_t unit, int64_t n_in, int row_parallel);
