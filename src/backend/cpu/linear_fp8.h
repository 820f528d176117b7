/* linear over FP8 weights as they are stored (MATH_W8A16, contract.h): layout, what the variants share, and the one
 * function that a variant brings.
 *
 * A panel of 16 outputs is its scales and then, for each four inputs, 64 bytes of E4M3 codes:
 *
 *     float32 [16]             a scale of each output
 *     float32 [chunks]         a scale of each chunk of 128 inputs, filled up to a multiple of 16
 *     codes   [n_in / 4][64]   bytes 16q .. 16q + 15 belong to outputs 4q .. 4q + 3: inputs 0, 1 of each, then inputs 2, 3 of each
 *
 * so that putting high and low bytes of numbers together by halves of 16 bytes (what unpack and zip instructions do) gives
 * 32-bit lanes that are outputs and hold two bf16 inputs in a row, the operand of MATH_BF16.
 *
 * The scale of an output and a chunk is the product of the two; one of them is 1, whichever way the tensor is scaled, so the
 * product is exact, and squares of 128 x 128 cost four bytes a panel and chunk. */
#pragma once

#include "backend/cpu/linear.h"

enum { FP8_CHUNK = 128, FP8_WORD = 4 /* inputs in 64 bytes */, FP8_MAX_ROWS = 8 };

/* A panel of a weight; the last chunk may be shorter. */
typedef struct Fp8Panel {
    const float   *out_scale;   /* [16] */
    const float   *chunk_scale; /* [n_chunks] */
    const uint8_t *codes;
    int64_t        n_in, n_chunks, chunks_of_part; /* chunk c belongs to part c / chunks_of_part of K */
} Fp8Panel;

/* Whole words of inputs, and scales of one of the three ways. */
bool     fp8_takes(const QuantMatrix *m);
size_t   fp8_panel_bytes(int64_t n_in);
Fp8Panel fp8_panel_at(const Weight *w, int64_t panel);

void fp8_put_rows(Weight *w, int64_t first, const QuantMatrix *rows);
void fp8_get_row(const Weight *w, int64_t row, float *out); /* as quant_decode_row() has it */

/* Adds rows [first, first + n_rows) of x, at most FP8_MAX_ROWS, times the panel to sums [k_parts][n_rows][16]: for each chunk,
 * ascending, sums[part][r] = fma(partial sum of the chunk, scale, sums[part][r]). Called with zeros in sums. */
typedef void (*Fp8PanelFn)(const Fp8Panel *p, Tensor x, int64_t first, int n_rows, float *sums);

/* The work of one worker: LinearSpansFn with the panel function of a variant. */
void linear_fp8_spans(Fp8PanelFn fn, const LinearSpan *spans, int n_spans, Tensor x);

/* The contract; those of the variants are cpu_*_linear_fp8(). */
void fp8_scalar_spans(const LinearSpan *spans, int n_spans, Tensor x, void *scratch);
