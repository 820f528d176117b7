/* Stored formats of weights: how numbers lie in a checkpoint, what they mean, and which we refuse.
 *
 * Three kinds of layout (docs/spec/quantization.md section 2):
 *   plain    F32, F16, BF16: one number behind the other
 *   blocks   GGUF: a row is a run of blocks, each with scales of its own inside
 *   parts    safetensors: codes in one tensor, scales (and zero points, groups) in others
 *
 * Decoding here is the truth that kernels are measured by: exact float32, in the order of operations that the published
 * decoders use, so it can be compared with them bit for bit. It is not fast, and expects denormals to be honoured
 * (MXFP4 scales can be that small). Any thread. */
#pragma once

#include "base/error.h"
#include "tensor/dtype.h"

typedef enum QuantFormat {
    QUANT_NONE, /* something we cannot compute with */
    QUANT_F32,
    QUANT_F16,
    QUANT_BF16,
    QUANT_Q4_0, /* blocks, from here ... */
    QUANT_Q4_1,
    QUANT_Q5_0,
    QUANT_Q5_1,
    QUANT_Q8_0,
    QUANT_Q4_K,
    QUANT_Q5_K,
    QUANT_Q6_K,
    QUANT_IQ4_NL,
    QUANT_MXFP4_BLOCKS,
    QUANT_NVFP4_BLOCKS, /* ... to here; `global` multiplies */
    QUANT_FP8,          /* parts: E4M3 codes [n_out, n_in]; scales per group_out x group_in */
    QUANT_NVFP4,        /* E2M1 pairs [n_out, n_in / 2]; E4M3 scale per 16 inputs, times `global` */
    QUANT_MXFP4,        /* E2M1 pairs; E8M0 scale per 32 inputs */
    QUANT_AWQ,          /* 4 bits, [n_in, n_out / 8] words: inputs outermost */
    QUANT_GPTQ,         /* 4 bits, [n_in / 8, n_out] words: inputs outermost */
    QUANT_INT4,         /* 4 bits, [n_out, n_in / 8] words: compressed-tensors' pack-quantized */
    QUANT_FORMATS
} QuantFormat;

enum { QUANT_MAX_BLOCK = 256, QUANT_ZEROS_IN_WORD = 8 /* outputs whose 4-bit zero points share a word */ };

typedef struct QuantGeometry {
    const char *name;        /* as in messages: "Q4_1" */
    int         block;       /* inputs a block; n_in is a multiple of it */
    int         block_bytes; /* of codes; in a blocks layout the scales are among them */
    bool        in_rows;     /* a row's codes lie behind each other: false for AWQ and GPTQ */
} QuantGeometry;

const QuantGeometry *quant_geometry(QuantFormat f);
static inline bool quant_is_plain(QuantFormat f)
{
    return f >= QUANT_F32 && f <= QUANT_BF16;
}
static inline bool quant_is_blocks(QuantFormat f)
{
    return f >= QUANT_Q4_0 && f <= QUANT_NVFP4_BLOCKS;
}

/* Bytes of codes of a row, 0 when blocks do not fit n_in. For AWQ and GPTQ the average of the columns. */
size_t quant_row_bytes(QuantFormat f, int64_t n_in);

/* A stored matrix in memory, as its file has it: a view, never an owner. Pointers may have any alignment. */
typedef struct QuantMatrix {
    QuantFormat format;
    int64_t     n_out, n_in;
    const void *codes;
    const void *scales;              /* parts layouts. [ceil(n_out / group_out), ceil(n_in / group_in)];
                                      * AWQ, GPTQ: [ceil(n_in / group_in), n_out] */
    const void *zeros;               /* AWQ, GPTQ: packed zero points [groups, n_out / 8]; INT4: [ceil(n_out / 8), groups] or NULL, all are 8 */
    const void *groups;              /* GPTQ, INT4: int32 [n_in], the group of each input; NULL = input / group_in */
    DType       scale_type;          /* F32, BF16, F16, F8_E4M3; U8 = E8M0 */
    int64_t     group_out, group_in; /* outputs and inputs that share a scale */
    float       global;              /* second-level multiplier of NVFP4; 1 otherwise */
    int         zero_offset;         /* added to a stored GPTQ zero point, modulo 16: 1 for format "gptq", else 0 */
} QuantMatrix;

/* Rows [first, first + n) of a format whose rows lie together. They lie in one group of scales or begin one, and begin a word of
 * zero points where there are any. */
QuantMatrix quant_rows(const QuantMatrix *m, int64_t first, int64_t n);

/* scales[i] as float32. */
float quant_scale_at(const QuantMatrix *m, int64_t i);

/* AWQ, GPTQ, INT4, of a row: the code of an input, and zero point and scale of a group. Codes and zero points are 0 .. 15. */
int   quant_int4_code(const QuantMatrix *m, int64_t row, int64_t k);
int   quant_int4_zero(const QuantMatrix *m, int64_t row, int64_t group);
float quant_int4_scale(const QuantMatrix *m, int64_t row, int64_t group);
extern const uint8_t quant_awq_place[8]; /* of output i % 8 in its word, in codes from the lowest */
static inline bool quant_is_int4(QuantFormat f)
{
    return f == QUANT_AWQ || f == QUANT_GPTQ || f == QUANT_INT4;
}

/* Row `row`, n_in numbers, to float32. */
void quant_decode_row(const QuantMatrix *m, int64_t row, float *out);

/* n_blocks whole blocks of a blocks layout to float32, block by block. */
void quant_decode_blocks(QuantFormat f, const void *blocks, int64_t n_blocks, float *out);

/* Refuses what would put NaN or infinity into a run: scales that are not finite or make weights that are not, FP8 NaN
 * codes, groups that do not exist. Plain numbers are not looked at. `name` is the tensor's, for the sentence. */
Status quant_check(const QuantMatrix *m, const char *name, Error *err);
/* The same for whole blocks. */
Status quant_check_blocks(QuantFormat f, const void *blocks, int64_t n_blocks, const char *name, Error *err);

/* ---- encoding, for --quantization ---- */

/* Largest magnitude; NaN when one of them is no number. */
float quant_amax(const float *x, int64_t n);

/* FP8: w = code * scale. A scale for numbers up to amax, whoever shares it (tensor, row, 128 x 128); codes of x under
 * it. */
float fp8_scale(float amax);
void  fp8_encode(uint8_t *codes, const float *x, int64_t n, float scale);

/* NVFP4: w = e2m1 * (e4m3 * global). `global` for numbers up to amax (a tensor's, or a row's: see nvfp4_encode), then
 * n / 2 bytes of codes and n / 16 scales. n is a multiple of 16. The arithmetic is ModelOpt's. */
float nvfp4_global(float amax);
void  nvfp4_encode(uint8_t *codes, uint8_t *scales, const float *x, int64_t n, float global);
