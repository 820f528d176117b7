/* linear over weights in stored blocks: rows come back as the decoder has them, every variant has the scalar table's bits, and
 * the table is as far from the exact sum as rounding inputs to eight bits explains. --bench: their speed. */
#include "linear_cases.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const QuantFormat formats[] = { QUANT_Q4_0, QUANT_Q4_1, QUANT_Q5_0, QUANT_Q5_1, QUANT_Q8_0, QUANT_IQ4_NL, QUANT_MXFP4_BLOCKS,
                                       QUANT_NVFP4_BLOCKS, QUANT_Q4_K, QUANT_Q5_K, QUANT_Q6_K, QUANT_NVFP4, QUANT_MXFP4, QUANT_AWQ, QUANT_GPTQ, QUANT_INT4 };

/* ---- random blocks ---- */

static void put_half(Check *c, uint8_t *at)
{
    /* 2^-14 .. 2^-3, either sign, now and then zero or a denormal */
    uint32_t r = check_u32(c);
    uint16_t h = (uint16_t)((r & 0x83ff) | (1 + r % 11) << 10);
    if (r >> 28 == 0) h = r >> 27 & 1 ? 0 : (uint16_t)(r & 0x3ff);
    memcpy(at, &h, sizeof h);
}

/* Where halves stand in a block; the rest may be anything. */
static void mend_scales(Check *c, QuantFormat f, uint8_t *b)
{
    switch (f) {
    case QUANT_Q4_1:
    case QUANT_Q5_1:
    case QUANT_Q4_K:
    case QUANT_Q5_K: put_half(c, b + 2); /* fall through */
    case QUANT_Q4_0:
    case QUANT_Q5_0:
    case QUANT_Q8_0:
    case QUANT_IQ4_NL: put_half(c, b); break;
    case QUANT_Q6_K: put_half(c, b + 208); break;
    case QUANT_MXFP4_BLOCKS: b[0] = (uint8_t)(110 + check_int(c, 0, 20)); break;
    case QUANT_NVFP4_BLOCKS:
        for (int i = 0; i < 4; i++) b[i] = (uint8_t)check_int(c, 0, 126);
        break;
    default: break;
    }
}

/* Outputs of words of eight. */
static int64_t outputs(QuantFormat f, int64_t n)
{
    return quant_is_int4(f) ? (n + 7) / 8 * 8 : n;
}

/* Groups of any size that units fit into, scales of any type. */
static QuantMatrix random_groups(Check *c, QuantFormat f, int64_t n_out, int64_t n_in)
{
    static const DType types[] = { DT_F32, DT_F16, DT_BF16 };
    int64_t groups[] = { 32, 64, 128, 256, n_in }, group = groups[check_int(c, 0, 4)], n_scales = n_out * (n_in / group);
    QuantMatrix m = { .format = f, .n_out = n_out, .n_in = n_in, .group_out = 1, .group_in = group, .global = 1,
                      .scale_type = types[check_int(c, 0, 2)], .zero_offset = f == QUANT_GPTQ };
    uint8_t *codes = check_alloc(c, (size_t)(n_out * n_in / 2)), *scales = check_alloc(c, 4 * (size_t)n_scales), *zeros = check_alloc(c, (size_t)n_scales / 2);
    for (int64_t i = 0; i < n_out * n_in / 2; i++) codes[i] = (uint8_t)check_u32(c);
    for (int64_t i = 0; i < n_scales / 2; i++) zeros[i] = (uint8_t)check_u32(c);
    for (int64_t i = 0; i < n_scales; i++) {
        float scale = check_value(c, FILL_NORMAL) * 0x1p-6f;
        uint16_t half = f32_to_bf16(scale);
        if (m.scale_type == DT_F32) memcpy(scales + 4 * i, &scale, sizeof scale);
        else if (m.scale_type == DT_F16) put_half(c, scales + 2 * i);
        else memcpy(scales + 2 * i, &half, sizeof half);
    }
    m.codes = codes;
    m.scales = scales;
    m.zeros = f == QUANT_INT4 && check_int(c, 0, 1) ? NULL : zeros;
    return m;
}

static QuantMatrix random_matrix(Check *c, QuantFormat f, int64_t n_out, int64_t n_in)
{
    if (quant_is_int4(f)) return random_groups(c, f, n_out, n_in);
    const QuantGeometry *g = quant_geometry(f);
    size_t bytes = (size_t)(n_out * (n_in / g->block)) * (size_t)g->block_bytes, n_scales = (size_t)(n_out * n_in / 16);
    uint8_t *codes = check_alloc(c, bytes), *scales = check_alloc(c, n_scales);
    for (size_t i = 0; i < bytes; i++) codes[i] = (uint8_t)check_u32(c);
    for (size_t i = 0; i < n_scales; i++) scales[i] = (uint8_t)(f == QUANT_MXFP4 ? check_int(c, 110, 130) : check_int(c, 0, 126));
    if (quant_is_blocks(f))
        for (size_t at = 0; at < bytes; at += (size_t)g->block_bytes) mend_scales(c, f, codes + at);
    return (QuantMatrix){ .format = f, .n_out = n_out, .n_in = n_in, .codes = codes, .scales = scales, .group_out = 1,
                          .scale_type = f == QUANT_MXFP4 ? DT_U8 : DT_F8_E4M3, .group_in = f == QUANT_MXFP4 ? 32 : 16,
                          .global = f == QUANT_NVFP4 ? 0.037f : 1 };
}

/* From output or input `first` on, n of them. */
static QuantMatrix part_of(const QuantMatrix *m, int64_t first, int64_t n)
{
    const QuantGeometry *g = quant_geometry(m->format);
    QuantMatrix part = *m;
    int64_t codes = first * m->n_in / g->block * g->block_bytes, scales = first * m->n_in / m->group_in;
    if (!g->in_rows) {
        codes = first * m->n_out / 2;
        scales = first / m->group_in * m->n_out;
    }
    *(g->in_rows ? &part.n_out : &part.n_in) = n;
    part.codes = (const uint8_t *)m->codes + codes;
    part.scales = (const uint8_t *)m->scales + scales * (int64_t)dtype_bytes(m->scale_type);
    if (m->zeros) part.zeros = (const uint8_t *)m->zeros + scales / 2;
    return part;
}

/* Where a matrix may be parted: in the middle of a panel, but not of a word of zero points or a group. */
static int64_t middle_of(const QuantMatrix *m)
{
    if (quant_geometry(m->format)->in_rows) return quant_is_int4(m->format) ? m->n_out / 16 * 8 : m->n_out / 2;
    return m->n_in / 2 / 128 * 128;
}

/* In two pieces, the second first. */
static Weight weight_of(Check *c, const QuantMatrix *m, int row_parallel)
{
    Error err = { 0 };
    Weight w;
    Contract contract = weight_blocks_contract(m, row_parallel);
    int64_t half = middle_of(m), all = quant_geometry(m->format)->in_rows ? m->n_out : m->n_in;
    w = (Weight){ check_alloc(c, weight_bytes(m->n_out, m->n_in, &contract)), m->n_out, m->n_in, contract, .global = m->global };
    if (!weight_takes_blocks(m)) error_set(&err, ERR_INPUT, "no kernel");
    check_that(c, err.status == OK, "this format has a kernel");
    QuantMatrix low = part_of(m, 0, half), high = part_of(m, half, all - half);
    weight_put_blocks(&w, half, &high);
    weight_put_blocks(&w, 0, &low);
    return w;
}

/* ---- checks ---- */

static void check_rows(Check *c, QuantFormat f)
{
    enum { N_IN = 512 };
    const int64_t n_out = outputs(f, 37);
    check_label(c, "%s decoded", quant_geometry(f)->name);
    QuantMatrix m = random_matrix(c, f, n_out, N_IN);
    Weight w = weight_of(c, &m, 0);
    float want[N_IN], got[N_IN];
    bool same = true;
    for (int64_t row = 0; row < n_out; row++) {
        quant_decode_row(&m, row, want);
        weight_get_row(&w, row, got);
        for (int k = 0; k < N_IN; k++) same &= want[k] == got[k];
    }
    check_that(c, same, "rows come back as the decoder has them");
    check_done(c);
}

static void check_variants(Check *c, QuantFormat f, int64_t n_out, int64_t n_in, int n_rows, int row_parallel, Fill fill)
{
    n_out = outputs(f, n_out);
    check_label(c, "%s M=%d K=%lld N=%lld fill=%d", quant_geometry(f)->name, n_rows, (long long)n_in, (long long)n_out, fill);
    QuantMatrix m = random_matrix(c, f, n_out, n_in);
    Weight w = weight_of(c, &m, row_parallel);
    Tensor x = check_random(c, fill, DT_BF16, n_rows, n_in);
    linear_same_bits(c, &w, x);
    check_done(c);
}

/* The largest sums of integers there are: every code the same, inputs all at one magnitude. What sums in 16 bits, or with
 * saturation, has no more than enough room. */
static void check_extremes(Check *c, QuantFormat f)
{
    enum { N_OUT = 16, N_IN = 256, ROWS = 8 };
    static const uint8_t bytes[] = { 0xff, 0x00, 0x77, 0x7f, 0x80, 0x88 };
    for (int i = 0; i < (int)sizeof bytes; i++) {
        check_label(c, "%s, all codes 0x%02x", quant_geometry(f)->name, bytes[i]);
        const QuantGeometry *g = quant_geometry(f);
        QuantMatrix m = random_matrix(c, f, N_OUT, N_IN);
        size_t n = (size_t)(N_OUT * (N_IN / g->block)) * (size_t)g->block_bytes;
        memset((uint8_t *)m.codes, bytes[i], n);
        for (size_t at = 0; quant_is_blocks(f) && at < n; at += (size_t)g->block_bytes) mend_scales(c, f, (uint8_t *)m.codes + at);
        Weight w = weight_of(c, &m, 0);
        Tensor x = check_output(c, DT_BF16, ROWS, N_IN);
        for (int r = 0; r < ROWS; r++)
            for (int k = 0; k < N_IN; k++) tensor_bf16(x, r)[k] = f32_to_bf16(r >> k % 4 & 1 ? -3.0f : 3.0f); /* row 0: no minus */
        linear_same_bits(c, &w, x);
        check_done(c);
    }
}

/* A row alone and among others: the same bits. Blocks and dense matrices in one call: each as by itself. */
static void check_company(Check *c, QuantFormat f)
{
    check_label(c, "%s in company", quant_geometry(f)->name);
    QuantMatrix m = random_matrix(c, f, 56, 512);
    Weight w = weight_of(c, &m, 0);
    linear_in_company(c, &w);
    check_done(c);
}

/* Against sums of decoded weights in double. An input is off by at most half a step of its block: 1 / 254 of the largest. */
static void check_sums(Check *c, QuantFormat f)
{
    enum { N_OUT = 24, N_IN = 1024, ROWS = 3 };
    check_label(c, "%s against sums in double", quant_geometry(f)->name);
    QuantMatrix m = random_matrix(c, f, N_OUT, N_IN);
    Weight w = weight_of(c, &m, 1);
    Tensor x = check_random(c, FILL_NORMAL, DT_BF16, ROWS, N_IN), y = check_output(c, DT_F32, ROWS, N_OUT);
    LinearJob job = { y, &w };
    float row[N_IN];
    double worst = 0;
    c->reference->linear(c->reference_stream, x, &job, 1);
    for (int64_t n = 0; n < N_OUT; n++) {
        quant_decode_row(&m, n, row);
        for (int64_t r = 0; r < ROWS; r++) {
            double sum = 0, bound = 1e-20;
            for (int64_t b = 0; b < N_IN; b += 32) {
                double most = 0, weights = 0;
                for (int64_t k = b; k < b + 32; k++) {
                    double xk = bf16_to_f32(tensor_bf16(x, r)[k]);
                    sum += xk * (double)row[k];
                    most = fmax(most, fabs(xk));
                    weights += fabs((double)row[k]);
                }
                bound += most / 253.0 * weights + most * weights * 1e-5;
            }
            worst = fmax(worst, fabs((double)tensor_f32(y, r)[n] - sum) / bound);
        }
    }
    check_that(c, worst <= 1, "further from the exact sum than eight bits explain");
    check_that(c, worst > 0, "rounding shows");
    check_done(c);
}

/* ---- speed ---- */

static void bench(Check *c)
{
    static const int rows[] = { 1, 2, 4, 8, 16, 64, 512 };
    linear_bench_reading(c);
    for (int i = 0; i < COUNT(formats); i++) {
        QuantMatrix m = { .format = formats[i], .n_out = 4096, .n_in = 4096, .group_in = 128 };
        const char *name = quant_geometry(m.format)->name;
        if (c->only && strcmp(c->only, name) != 0) continue;
        linear_bench(c, &(LinearBench){ name, weight_blocks_contract(&m, 0), m.n_out, m.n_in, rows, COUNT(rows), 1 });
    }
}

int main(int argc, char **argv)
{
    static const int rows[] = { 1, 2, 3, 5, 8, 9, 17, 64 };
    Check c;
    if (!check_begin(&c, argc, argv)) return 2;
    if (c.bench) {
        bench(&c);
        return check_end(&c);
    }
    for (int i = 0; i < (int)(sizeof formats / sizeof formats[0]); i++) {
        QuantFormat f = formats[i];
        check_rows(&c, f);
        check_sums(&c, f);
        check_company(&c, f);
        check_extremes(&c, f);
        for (int r = 0; r < (int)(sizeof rows / sizeof rows[0]); r++) {
            check_variants(&c, f, 40, 256, rows[r], 0, FILL_NORMAL);
            check_variants(&c, f, 33, 2048, rows[r], 1, FILL_BROKEN);
        }
        check_variants(&c, f, 100, 1024, 40, 1, FILL_NASTY);
    }
    return check_end(&c);
}
