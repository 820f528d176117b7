/* See linear_cases.h. */
#include "linear_cases.h"

#include "backend/measure.h"

#include <stdio.h>
#include <string.h>

void linear_same_bits(Check *c, const Weight *w, Tensor x)
{
    const int64_t n_rows = x.shape[0];
    Tensor want = check_output(c, DT_F32, n_rows, w->n_out), got = check_output(c, DT_F32, n_rows, w->n_out);
    LinearJob job = { want, w };
    c->reference->linear(c->reference_stream, x, &job, 1);
    job.out = got;
    while (check_next_variant(c)) {
        check_clear(got);
        c->ops->linear(c->stream, x, &job, 1);
        check_bits(c, got, want);
    }
}

void linear_in_company(Check *c, const Weight *w)
{
    enum { ROWS = 21 };
    const int64_t n_in = w->n_in, n_out = w->n_out;
    Weight dense = check_weight(c, FILL_NORMAL, n_out, n_in, contract_for(MATH_BF16, n_in, 0));
    Tensor x = check_random(c, FILL_NORMAL, DT_BF16, ROWS, n_in);
    Tensor want = check_output(c, DT_F32, ROWS, n_out), want_dense = check_output(c, DT_F32, ROWS, n_out);
    Tensor got = check_output(c, DT_F32, ROWS, n_out), got_dense = check_output(c, DT_F32, ROWS, n_out);
    for (int r = 0; r < ROWS; r++) {
        Tensor row = tensor_2d(tensor_bf16(x, r), DT_BF16, 1, n_in);
        LinearJob one = { tensor_2d(tensor_f32(want, r), DT_F32, 1, n_out), w };
        c->reference->linear(c->reference_stream, row, &one, 1);
        one = (LinearJob){ tensor_2d(tensor_f32(want_dense, r), DT_F32, 1, n_out), &dense };
        c->reference->linear(c->reference_stream, row, &one, 1);
    }
    LinearJob jobs[] = { { got, w }, { got_dense, &dense } };
    while (check_next_variant(c)) {
        check_clear(got);
        check_clear(got_dense);
        c->ops->linear(c->stream, x, jobs, 2);
        check_bits(c, got, want);
        check_bits(c, got_dense, want_dense);
    }
}

void linear_bench_reading(Check *c)
{
    size_t bytes = 512u << 20;
    void *data = backend_alloc(c->backend[0], bytes);
    if (!data) return;
    memset(data, 1, bytes);
    printf("best read stream: %.1f GB/s\n", measure_read_bandwidth(backend_stream(c->backend[0]), data, bytes, 2.0) * 1e-9);
    backend_free(c->backend[0], data);
}

void linear_bench(Check *c, const LinearBench *b)
{
    enum { MAX_MATRICES = 256, MAX_M = 512 };
    size_t bytes = weight_bytes(b->n_out, b->n_in, &b->contract);
    int n = (int)(400e6 / (double)bytes) + 1;
    if (n > MAX_MATRICES) n = MAX_MATRICES;
    Weight w[MAX_MATRICES];
    for (int i = 0; i < n; i++) {
        Error err = { 0 };
        if (weight_alloc(c->backend[0], &w[i], b->n_out, b->n_in, b->contract, &err)) return;
        memset(w[i].data, 0x3c, bytes); /* a number in every format */
    }
    Tensor x = check_random(c, FILL_NORMAL, b->contract.in, MAX_M, b->n_in), y = check_output(c, DT_F32, MAX_M, b->n_out);
    for (int r = 0; r < b->n_rows; r++) {
        const int rows = b->rows[r];
        while (check_next_variant(c)) {
            if (c->variant != c->n_backends - 1 && rows > b->most_of_others) continue;
            check_label(c, "%s %lldx%lld x%d M=%d", b->what, (long long)b->n_out, (long long)b->n_in, n, rows);
            check_work(c, 2.0 * (double)b->n_out * (double)b->n_in * rows, (double)bytes);
            int next = 0;
            LinearJob job = { tensor_rows(y, rows), NULL };
            CHECK_RUN(c, (job.weight = &w[next++ % n], c->ops->linear(c->stream, tensor_rows(x, rows), &job, 1)));
        }
    }
    for (int i = 0; i < n; i++) backend_free(c->backend[0], w[i].data);
    check_done(c);
}
