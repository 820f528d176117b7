/* linear over FP8 weights as they are stored (MATH_W8A16): rows come back as the decoder has them, every variant has the scalar
 * table's bits, and sums are as exact as float32 allows. For a scale of the tensor, of each output, of each 128 x 128
 * square, with partial squares at both edges. --bench: their speed. */
#include "linear_cases.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef enum Scaled { BY_TENSOR, BY_OUTPUT, BY_SQUARE, N_SCALED } Scaled;
static const char *const scaled_names[] = { "tensor", "output", "128x128" };

static QuantMatrix shape_of(Scaled by, int64_t n_out, int64_t n_in)
{
    QuantMatrix m = { .format = QUANT_FP8, .n_out = n_out, .n_in = n_in, .scale_type = DT_F32, .global = 1 };
    m.group_out = by == BY_TENSOR ? n_out : by == BY_OUTPUT ? 1 : 128;
    m.group_in = by == BY_SQUARE ? 128 : n_in;
    return m;
}

/* All codes but NaN, denormal ones among them; scales of either sign about 2^-8. */
static QuantMatrix random_matrix(Check *c, Scaled by, int64_t n_out, int64_t n_in)
{
    QuantMatrix m = shape_of(by, n_out, n_in);
    int64_t n_scales = (n_out + m.group_out - 1) / m.group_out * ((n_in + m.group_in - 1) / m.group_in);
    uint8_t *codes = check_alloc(c, (size_t)(n_out * n_in));
    float *scales = check_alloc(c, (size_t)n_scales * sizeof *scales);
    for (int64_t i = 0; i < n_out * n_in; i++) {
        codes[i] = (uint8_t)check_u32(c);
        if ((codes[i] & 0x7f) == 0x7f) codes[i] = 0x80; /* -0 */
    }
    for (int64_t i = 0; i < n_scales; i++) scales[i] = check_value(c, FILL_NORMAL) * 0x1p-8f;
    m.codes = codes;
    m.scales = scales;
    return m;
}

/* In two pieces, the second first; they meet where a square ends, or in the middle of a panel. */
static Weight weight_of(Check *c, const QuantMatrix *m, int row_parallel)
{
    Contract contract = weight_blocks_contract(m, row_parallel);
    Weight w = { check_alloc(c, weight_bytes(m->n_out, m->n_in, &contract)), m->n_out, m->n_in, contract, .global = 1 };
    check_that(c, weight_takes_blocks(m) && contract.mode == MATH_W8A16, "FP8 is kept as it is stored");
    int64_t half = m->group_out == 128 ? (m->n_out > 128 ? 128 : 0) : m->n_out / 2;
    QuantMatrix low = *m, high = *m;
    low.n_out = half;
    high.n_out = m->n_out - half;
    high.codes = (const uint8_t *)m->codes + half * m->n_in;
    high.scales = (const float *)m->scales + half / m->group_out * ((m->n_in + m->group_in - 1) / m->group_in);
    weight_put_blocks(&w, half, &high);
    weight_put_blocks(&w, 0, &low);
    return w;
}

/* ---- checks ---- */

static void check_rows(Check *c, Scaled by)
{
    enum { N_OUT = 150, N_IN = 300 };
    check_label(c, "decoded, scales by %s", scaled_names[by]);
    QuantMatrix m = random_matrix(c, by, N_OUT, N_IN);
    Weight w = weight_of(c, &m, 0);
    float want[N_IN], got[N_IN];
    for (int64_t row = 0; row < N_OUT; row++) {
        quant_decode_row(&m, row, want);
        weight_get_row(&w, row, got);
        check_bytes(c, got, want, sizeof got);
    }
    check_done(c);
}

static void check_variants(Check *c, Scaled by, int64_t n_out, int64_t n_in, int n_rows, int row_parallel, Fill fill)
{
    check_label(c, "scales by %s M=%d K=%lld N=%lld fill=%d", scaled_names[by], n_rows, (long long)n_in, (long long)n_out, fill);
    QuantMatrix m = random_matrix(c, by, n_out, n_in);
    Weight w = weight_of(c, &m, row_parallel);
    Tensor x = check_random(c, fill, DT_BF16, n_rows, n_in);
    linear_same_bits(c, &w, x);
    check_done(c);
}

static void check_company(Check *c)
{
    check_label(c, "in company");
    QuantMatrix m = random_matrix(c, BY_SQUARE, 50, 640);
    Weight w = weight_of(c, &m, 1);
    linear_in_company(c, &w);
    check_done(c);
}

/* Against sums of decoded weights in double: nothing is rounded but the sums themselves. */
static void check_sums(Check *c, Scaled by)
{
    enum { N_OUT = 24, N_IN = 1024, ROWS = 3 };
    check_label(c, "sums in double, scales by %s", scaled_names[by]);
    QuantMatrix m = random_matrix(c, by, N_OUT, N_IN);
    Weight w = weight_of(c, &m, 1);
    Tensor x = check_random(c, FILL_NORMAL, DT_BF16, ROWS, N_IN), y = check_output(c, DT_F32, ROWS, N_OUT);
    LinearJob job = { y, &w };
    float row[N_IN];
    double worst = 0;
    c->reference->linear(c->reference_stream, x, &job, 1);
    for (int64_t n = 0; n < N_OUT; n++) {
        quant_decode_row(&m, n, row);
        for (int64_t r = 0; r < ROWS; r++) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < N_IN; k++) {
                double term = bf16_to_f32(tensor_bf16(x, r)[k]) * (double)row[k];
                sum += term;
                size += fabs(term);
            }
            /* 128 roundings in a chunk, a few behind it, each of at most 2^-24 of what was summed up */
            worst = fmax(worst, fabs((double)tensor_f32(y, r)[n] - sum) / (size * 132 * 0x1p-24 + 1e-30));
        }
    }
    check_that(c, worst <= 1, "further from the exact sum than float32 explains");
    check_that(c, worst > 0, "rounding shows");
    check_done(c);
}

/* What must be decoded instead. */
static void check_refused(Check *c)
{
    check_label(c, "shapes without a kernel");
    QuantMatrix odd = shape_of(BY_OUTPUT, 32, 130), narrow = shape_of(BY_SQUARE, 32, 256);
    narrow.group_in = 64;
    check_that(c, !weight_takes_blocks(&odd) && !weight_takes_blocks(&narrow), "neither half a word of inputs nor other squares");
    check_done(c);
}

/* ---- speed ---- */

static void bench(Check *c)
{
    static const int rows[] = { 1, 2, 4, 8, 16, 64, 512 };
    static const int64_t shapes[][2] = { { 4096, 4096 }, { 1024, 3072 }, { 3072, 1024 } };
    linear_bench_reading(c);
    for (int i = 0; i < COUNT(shapes); i++) {
        QuantMatrix m = shape_of(BY_SQUARE, shapes[i][0], shapes[i][1]);
        linear_bench(c, &(LinearBench){ "FP8", weight_blocks_contract(&m, 0), m.n_out, m.n_in, rows, COUNT(rows), 1 });
    }
}

int main(int argc, char **argv)
{
    static const int rows[] = { 1, 2, 3, 4, 5, 7, 8, 9, 15, 17, 31, 33, 64 };
    Check c;
    if (!check_begin(&c, argc, argv)) return 2;
    if (c.bench) {
        bench(&c);
        return check_end(&c);
    }
    for (Scaled by = 0; by < N_SCALED; by++) {
        check_rows(&c, by);
        check_sums(&c, by);
        for (int r = 0; r < (int)(sizeof rows / sizeof rows[0]); r++) {
            check_variants(&c, by, 40, 256, rows[r], 0, FILL_NORMAL);
            check_variants(&c, by, 150, 700, rows[r], 1, FILL_NASTY);
            check_variants(&c, by, 33, 2048, rows[r], 1, FILL_BROKEN);
        }
        check_variants(&c, by, 17, 4, 3, 1, FILL_NORMAL);
    }
    check_variants(&c, BY_SQUARE, 260, 1024, 70, 1, FILL_NORMAL);
    check_company(&c);
    check_refused(&c);
    return check_end(&c);
}
