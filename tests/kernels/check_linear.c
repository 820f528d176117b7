/* linear: every variant against the scalar table by bits, the table against sums in double, and the speed. */
#include "linear_cases.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct Shape {
    int64_t n_out, n_in;
    int     row_parallel;
} Shape;

/* A tensor of rows inside a wider one, whose gaps hold what was there before. */
static Tensor strided(Check *c, DType t, int64_t rows, int64_t cols)
{
    int64_t stride = cols + 3;
    return tensor_2d_strided(check_alloc(c, (size_t)(rows * stride) * dtype_bytes(t)), t, rows, cols, stride);
}

static Tensor whole_of(Tensor x)
{
    return tensor_2d(x.data, x.dtype, x.shape[0], x.stride[0]);
}

static void check_shape(Check *c, MathMode mode, Shape shape, int64_t n_rows, Fill fill)
{
    Contract contract = contract_for(mode, shape.n_in, shape.row_parallel);
    check_label(c, "linear %s M=%lld K=%lld N=%lld parts=%d fill=%d", mode == MATH_BF16 ? "bf16" : "f32",
                (long long)n_rows, (long long)shape.n_in, (long long)shape.n_out, contract.k_parts, fill);
    Weight w = check_weight(c, fill == FILL_BROKEN ? FILL_NASTY : fill, shape.n_out, shape.n_in, contract);
    Tensor x = strided(c, contract.in, n_rows, shape.n_in);
    check_fill(c, whole_of(x), FILL_BROKEN);
    check_fill(c, x, fill);

    Tensor want = strided(c, DT_F32, n_rows, shape.n_out), got = strided(c, DT_F32, n_rows, shape.n_out);
    check_clear(whole_of(want));
    LinearJob job = { want, &w };
    c->reference->linear(c->reference_stream, x, &job, 1);
    job.out = got;
    while (check_next_variant(c)) {
        check_clear(whole_of(got));
        c->ops->linear(c->stream, x, &job, 1);
        check_bits(c, whole_of(got), whole_of(want)); /* gaps between rows stay as they were */
    }
    check_done(c);
}

static void check_all_shapes(Check *c)
{
    static const Shape shapes[] = { { 1, 1, 0 },   { 16, 2, 0 },     { 15, 31, 0 },   { 17, 64, 1 },    { 80, 97, 0 },
                                    { 64, 128, 1 }, { 100, 304, 1 }, { 33, 1024, 1 }, { 70, 1030, 0 } };
    static const int rows[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128 };
    for (int s = 0; s < COUNT(shapes); s++) {
        for (int r = 0; r < COUNT(rows); r++) {
            for (Fill fill = FILL_NORMAL; fill <= FILL_BROKEN; fill++) {
                check_shape(c, MATH_BF16, shapes[s], rows[r], fill);
                check_shape(c, MATH_F32, shapes[s], rows[r], fill);
            }
        }
    }
    static const int many[] = { 129, 255, 256, 512 };
    for (int r = 0; r < COUNT(many); r++) {
        check_shape(c, MATH_BF16, (Shape){ 70, 304, 1 }, many[r], FILL_NASTY);
        check_shape(c, MATH_F32, (Shape){ 70, 304, 1 }, many[r], FILL_NASTY);
    }
    check_shape(c, MATH_BF16, (Shape){ 40, 20000, 1 }, 130, FILL_NORMAL); /* scratch holds fewer rows at once */
}

/* A row's bits whoever is beside it: alone, then at each place among rows of garbage. */
static void check_neighbours(Check *c, MathMode mode)
{
    enum { N_IN = 130, N_OUT = 50, MOST = 40 };
    Contract contract = contract_for(mode, N_IN, 0);
    Weight w = check_weight(c, FILL_NASTY, N_OUT, N_IN, contract);
    Tensor row = check_random(c, FILL_NASTY, contract.in, 1, N_IN);
    Tensor want = check_output(c, DT_F32, 1, N_OUT), got = check_output(c, DT_F32, MOST, N_OUT);
    Tensor x = check_random(c, FILL_BROKEN, contract.in, MOST, N_IN);
    LinearJob job = { want, &w };
    c->reference->linear(c->reference_stream, row, &job, 1);
    job.out = got;
    while (check_next_variant(c)) {
        for (int at = 0; at < MOST; at++) {
            check_label(c, "linear row %d of %d", at, MOST);
            check_fill(c, x, FILL_BROKEN);
            memcpy((char *)x.data + (size_t)(at * N_IN) * dtype_bytes(x.dtype), row.data,
                   N_IN * dtype_bytes(row.dtype));
            c->ops->linear(c->stream, x, &job, 1);
            check_bits(c, tensor_2d(tensor_f32(got, at), DT_F32, 1, N_OUT), want);
        }
    }
    check_done(c);
}

/* Several matrices over one input: the same as one by one, wherever workers cut their panels. */
static void check_jobs(Check *c)
{
    static const int64_t n_out[] = { 48, 1, 300, 17 };
    enum { N_IN = 192, N_ROWS = 5, N_JOBS = COUNT(n_out) };
    Tensor x = check_random(c, FILL_NORMAL, DT_BF16, N_ROWS, N_IN);
    Weight w[N_JOBS];
    LinearJob want[N_JOBS], got[N_JOBS];
    check_label(c, "linear, %d jobs", N_JOBS);
    for (int j = 0; j < N_JOBS; j++) {
        w[j] = check_weight(c, FILL_NORMAL, n_out[j], N_IN, contract_for(MATH_BF16, N_IN, j == 2));
        want[j] = (LinearJob){ check_output(c, DT_F32, N_ROWS, n_out[j]), &w[j] };
        got[j] = (LinearJob){ check_output(c, DT_F32, N_ROWS, n_out[j]), &w[j] };
        c->reference->linear(c->reference_stream, x, &want[j], 1);
    }
    while (check_next_variant(c)) {
        for (int j = 0; j < N_JOBS; j++) check_clear(got[j].out);
        c->ops->linear(c->stream, x, got, N_JOBS);
        for (int j = 0; j < N_JOBS; j++) check_bits(c, got[j].out, want[j].out);
    }
    check_done(c);
}

/* Outputs so many that they go past the caches. */
static void check_many_outputs(Check *c)
{
    enum { N_ROWS = 130, N_OUT = 16400, N_IN = 6 };
    check_label(c, "linear, %d x %d outputs", N_ROWS, N_OUT);
    Tensor x = check_random(c, FILL_NASTY, DT_BF16, N_ROWS, N_IN);
    Weight w = check_weight(c, FILL_NASTY, N_OUT, N_IN, contract_for(MATH_BF16, N_IN, 0));
    linear_same_bits(c, &w, x);
    check_done(c);
}

/* Rows and inputs as models have them: whole lines, many pieces of K, outputs behind a tile's end. */
static void check_whole(Check *c, Shape shape, int64_t n_rows, Fill fill)
{
    check_label(c, "linear of whole lines M=%lld K=%lld N=%lld", (long long)n_rows, (long long)shape.n_in, (long long)shape.n_out);
    Contract contract = contract_for(MATH_BF16, shape.n_in, shape.row_parallel);
    Tensor x = check_random(c, fill, DT_BF16, n_rows, shape.n_in);
    Weight w[2] = { check_weight(c, fill, shape.n_out, shape.n_in, contract), check_weight(c, fill, shape.n_out, shape.n_in, contract) };
    LinearJob want[2], got[2];
    Tensor gated = check_output(c, DT_BF16, n_rows, shape.n_out), product = check_output(c, DT_BF16, n_rows, shape.n_out);
    for (int j = 0; j < 2; j++) {
        want[j] = (LinearJob){ check_output(c, DT_F32, n_rows, shape.n_out), &w[j] };
        got[j] = (LinearJob){ check_output(c, DT_F32, n_rows, shape.n_out), &w[j] };
    }
    c->reference->linear(c->reference_stream, x, want, 2);
    c->reference->silu_mul(c->reference_stream, product, want[0].out, want[1].out);
    while (check_next_variant(c)) {
        for (int j = 0; j < 2; j++) check_clear(got[j].out);
        check_clear(gated);
        c->ops->linear(c->stream, x, got, 2);
        for (int j = 0; j < 2; j++) check_bits(c, got[j].out, want[j].out);
        if (!c->ops->linear_silu_mul) continue;
        c->ops->linear_silu_mul(c->stream, gated, x, &w[0], &w[1]);
        check_bits(c, gated, product);
    }
    check_done(c);
}

static void check_all_whole(Check *c)
{
    static const Shape shapes[] = { { 130, 512, 1 }, { 70, 1536, 1 }, { 48, 192, 1 }, { 260, 128, 0 } };
    static const int rows[] = { 1, 7, 8, 9, 16, 20, 33, 64, 65, 128, 200 };
    for (int s = 0; s < COUNT(shapes); s++)
        for (int r = 0; r < COUNT(rows); r++) check_whole(c, shapes[s], rows[r], (s + r) % 3 ? FILL_NORMAL : FILL_NASTY);
    check_whole(c, (Shape){ 384, 192, 0 }, 512, FILL_NASTY); /* blocks that bring for each other */
    check_whole(c, (Shape){ 256, 512, 1 }, 512, FILL_NASTY);
}

/* linear_silu_mul has the bits of linear and silu_mul one after the other, in the contract and in every variant. */
static void check_gated(Check *c, MathMode mode, Shape shape, int64_t n_rows, Fill fill)
{
    Contract contract = contract_for(mode, shape.n_in, shape.row_parallel);
    check_label(c, "linear_silu_mul %s M=%lld K=%lld N=%lld fill=%d", mode == MATH_BF16 ? "bf16" : "f32",
                (long long)n_rows, (long long)shape.n_in, (long long)shape.n_out, fill);
    Fill weight_fill = fill == FILL_BROKEN ? FILL_NASTY : fill;
    Weight gate = check_weight(c, weight_fill, shape.n_out, shape.n_in, contract);
    Weight up = check_weight(c, weight_fill, shape.n_out, shape.n_in, contract);
    Tensor x = strided(c, contract.in, n_rows, shape.n_in);
    check_fill(c, x, fill);
    LinearJob jobs[] = { { check_output(c, DT_F32, n_rows, shape.n_out), &gate },
                         { check_output(c, DT_F32, n_rows, shape.n_out), &up } };
    Tensor want = strided(c, contract.in, n_rows, shape.n_out), got = strided(c, contract.in, n_rows, shape.n_out);
    check_clear(whole_of(want));
    c->reference->linear(c->reference_stream, x, jobs, 2);
    c->reference->silu_mul(c->reference_stream, want, jobs[0].out, jobs[1].out);
    check_clear(whole_of(got));
    c->reference->linear_silu_mul(c->reference_stream, got, x, &gate, &up);
    check_bits(c, whole_of(got), whole_of(want));
    while (check_next_variant(c)) {
        check_clear(whole_of(got));
        c->ops->linear_silu_mul(c->stream, got, x, &gate, &up);
        check_bits(c, whole_of(got), whole_of(want));
    }
    check_done(c);
}

static void check_gated_shapes(Check *c)
{
    static const Shape shapes[] = { { 1, 1, 0 }, { 15, 31, 0 }, { 80, 97, 0 }, { 33, 1024, 1 }, { 70, 1030, 0 } };
    static const int rows[] = { 0, 1, 2, 5, 8, 9, 16, 17, 64, 65, 130 };
    for (int s = 0; s < COUNT(shapes); s++) {
        for (int r = 0; r < COUNT(rows); r++) {
            for (Fill fill = FILL_NORMAL; fill <= FILL_BROKEN; fill++) {
                check_gated(c, MATH_BF16, shapes[s], rows[r], fill);
                check_gated(c, MATH_F32, shapes[s], rows[r], fill);
            }
        }
    }
}

/* The table itself against double: a sum of n_in float32 fma steps is off by at most n_in roundings of the
 * absolute sum. Inputs and weights are bf16-exact, so nothing else is lost. */
static void check_oracle(Check *c, MathMode mode, Shape shape)
{
    enum { N_ROWS = 3 };
    Contract contract = contract_for(mode, shape.n_in, shape.row_parallel);
    check_label(c, "linear against double, K=%lld", (long long)shape.n_in);
    Weight w = check_weight(c, FILL_NORMAL, shape.n_out, shape.n_in, contract);
    Tensor x = check_random(c, FILL_NORMAL, contract.in, N_ROWS, shape.n_in);
    Tensor y = check_output(c, DT_F32, N_ROWS, shape.n_out);
    float *row = check_alloc(c, (size_t)shape.n_in * sizeof *row);
    LinearJob job = { y, &w };
    c->reference->linear(c->reference_stream, x, &job, 1);
    double worst = 0;
    for (int64_t n = 0; n < shape.n_out; n++) {
        weight_get_row(&w, n, row);
        for (int64_t m = 0; m < N_ROWS; m++) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < shape.n_in; k++) {
                double xk = mode == MATH_BF16 ? bf16_to_f32(tensor_bf16(x, m)[k]) : tensor_f32(x, m)[k];
                sum += xk * row[k];
                size += fabs(xk * row[k]);
            }
            double error = fabs((double)tensor_f32(y, m)[n] - sum) / (size * (double)shape.n_in * 0x1p-24 + 1e-30);
            if (error > worst) worst = error;
        }
    }
    check_that(c, worst <= 1.0, "further from the exact sum than its roundings explain");
    check_done(c);
}

/* ---- speed ---- */

static void bench_shape(Check *c, Shape shape, MathMode mode, const int *rows, int n_rows)
{
    Contract contract = contract_for(mode, shape.n_in, shape.row_parallel);
    linear_bench(c, &(LinearBench){ mode == MATH_BF16 ? "bf16" : "f32", contract, shape.n_out, shape.n_in, rows, n_rows, 16 });
}

static void bench(Check *c)
{
    static const int many[] = { 1, 2, 3, 4, 6, 8, 12, 16, 17, 32, 64, 128, 512 }, few[] = { 1, 4, 16, 64 };
    static const Shape qwen[] = { { 2048, 1024, 0 }, { 1024, 2048, 1 }, { 3072, 1024, 0 }, { 1024, 3072, 1 } };
    linear_bench_reading(c);
    bench_shape(c, (Shape){ 4096, 4096, 0 }, MATH_BF16, many, COUNT(many));
    for (int i = 0; i < COUNT(qwen); i++) bench_shape(c, qwen[i], MATH_BF16, few, COUNT(few));
    bench_shape(c, (Shape){ 4096, 4096, 0 }, MATH_F32, few, COUNT(few));
    linear_bench_reading(c);
}

int main(int argc, char **argv)
{
    Check c;
    if (!check_begin(&c, argc, argv)) return 2;
    if (c.bench) {
        bench(&c);
        c.n_checks++;
        return check_end(&c);
    }
    check_all_shapes(&c);
    check_neighbours(&c, MATH_BF16);
    check_neighbours(&c, MATH_F32);
    check_jobs(&c);
    check_many_outputs(&c);
    check_gated_shapes(&c);
    check_all_whole(&c);
    check_oracle(&c, MATH_BF16, (Shape){ 40, 1024, 1 });
    check_oracle(&c, MATH_BF16, (Shape){ 40, 333, 0 });
    check_oracle(&c, MATH_F32, (Shape){ 40, 1024, 1 });
    return check_end(&c);
}
