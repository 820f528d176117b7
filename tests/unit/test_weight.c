/* Weights: what is put in comes out, from every type, in every order; and the memory they live in. */
#include "backend/backend.h"
#include "backend/cpu/first_touch.h"
#include "base/memory.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

static Backend *backend;

static int open_backend(void **state)
{
    BackendOptions options = { .n_workers = 1 };
    return backend_open_cpu(&backend, &options, NULL);
}
static int close_backend(void **state)
{
    backend_close(backend);
    return 0;
}

/* A value that bf16 and f16 hold exactly, different for all places of a small matrix. */
static float value_of(int64_t n, int64_t k)
{
    return (float)((n * 131 + k * 7) % 255 - 127) * 0.0625f;
}

static uint16_t f16_of(float v) /* exact small values only */
{
    if (v == 0) return 0;
    int exponent;
    float m = frexpf(fabsf(v), &exponent);
    return (uint16_t)((v < 0 ? 0x8000 : 0) | (exponent - 1 + 15) << 10 | ((int)(m * 2048.0f) & 0x3ff));
}

static void *source_rows(DType t, int64_t first, int64_t n, int64_t n_in)
{
    char *rows = mem_alloc((size_t)(n * n_in) * dtype_bytes(t) + 1);
    for (int64_t i = 0; i < n * n_in; i++) {
        float v = value_of(first + i / n_in, i % n_in);
        if (t == DT_F32) ((float *)rows)[i] = v;
        else ((uint16_t *)rows)[i] = t == DT_BF16 ? f32_to_bf16(v) : f16_of(v);
    }
    return rows;
}

static void assert_weight(const Weight *w)
{
    float *row = mem_alloc((size_t)w->n_in * sizeof *row);
    for (int64_t n = 0; n < w->n_out; n++) {
        weight_get_row(w, n, row);
        for (int64_t k = 0; k < w->n_in; k++) {
            if (row[k] != value_of(n, k)) fail_msg("row %d, input %d is %g", (int)n, (int)k, (double)row[k]);
        }
    }
    mem_free(row);
}

/* Padding is zero: kernels read it. */
static void assert_padding(const Weight *w)
{
    size_t words = weight_bytes(w->n_out, w->n_in, &w->contract) / 4;
    const uint32_t *word = w->data;
    int64_t per_row = (int64_t)(words / 16) / ((w->n_out + 15) / 16);
    for (size_t i = 0; i < words; i++) {
        int64_t n = (int64_t)i / (per_row * 16) * 16 + (int64_t)i % 16, at = (int64_t)i / 16 % per_row;
        if (n >= w->n_out) assert_int_equal(word[i], 0);
        else if (w->contract.mode == MATH_BF16 && 2 * at + 1 >= w->n_in) assert_int_equal(word[i] >> 16, 0);
    }
}

static void put_and_get(MathMode mode, DType source, int64_t n_out, int64_t n_in, int64_t step)
{
    Weight w;
    Error err = { 0 };
    assert_int_equal(weight_alloc(backend, &w, n_out, n_in, contract_for(mode, n_in, 0), &err), OK);
    int64_t last = (n_out - 1) / step * step; /* backwards: any order is right */
    for (int64_t first = last; first >= 0; first -= step) {
        int64_t n = n_out - first < step ? n_out - first : step;
        void *rows = source_rows(source, first, n, n_in);
        weight_put_rows(&w, first, n, rows, source);
        mem_free(rows);
    }
    assert_weight(&w);
    assert_padding(&w);
    backend_free(backend, w.data);
}

static void what_is_put_comes_out(void **state)
{
    static const MathMode modes[] = { MATH_F32, MATH_BF16 };
    static const DType sources[] = { DT_F32, DT_BF16, DT_F16 };
    static const int64_t n_out[] = { 1, 15, 16, 17, 64, 100 }, n_in[] = { 1, 2, 3, 7, 8, 64, 127, 128, 129, 300 };
    static const int64_t steps[] = { 1, 5, 16, 48, 100 };
    for (int m = 0; m < COUNT(modes); m++)
        for (int t = 0; t < COUNT(sources); t++)
            for (int n = 0; n < COUNT(n_out); n++)
                for (int k = 0; k < COUNT(n_in); k++)
                    for (int s = 0; s < COUNT(steps); s++) put_and_get(modes[m], sources[t], n_out[n], n_in[k], steps[s]);
}

static void float32_is_rounded_once(void **state)
{
    static const float in[] = { 1.00390625f, 1.01171875f, -1.00390626f, 3.4e38f, 1e-40f, INFINITY };
    float out[COUNT(in)];
    Weight w;
    assert_int_equal(weight_alloc(backend, &w, 1, COUNT(in), contract_for(MATH_BF16, COUNT(in), 0), NULL), OK);
    weight_put_rows(&w, 0, 1, in, DT_F32);
    weight_get_row(&w, 0, out);
    for (int i = 0; i < COUNT(in); i++) {
        float want = bf16_to_f32(f32_to_bf16(in[i]));
        assert_memory_equal(&out[i], &want, sizeof want);
    }
    backend_free(backend, w.data);
}

static void layout_is_as_documented(void **state)
{
    enum { N_OUT = 20, N_IN = 6 };
    Weight w;
    assert_int_equal(weight_alloc(backend, &w, N_OUT, N_IN, contract_for(MATH_BF16, N_IN, 0), NULL), OK);
    void *rows = source_rows(DT_BF16, 0, N_OUT, N_IN);
    weight_put_rows(&w, 0, N_OUT, rows, DT_BF16);
    const uint16_t *data = w.data;
    for (int n = 0; n < N_OUT; n++) {
        for (int k = 0; k < N_IN; k++) {
            int at = ((n / 16 * (N_IN / 2) + k / 2) * 16 + n % 16) * 2 + k % 2;
            assert_int_equal(data[at], ((uint16_t *)rows)[n * N_IN + k]);
        }
    }
    mem_free(rows);
    backend_free(backend, w.data);
}

static void contracts(void **state)
{
    Contract c = contract_for(MATH_BF16, 1024, 1);
    assert_int_equal(c.k_parts, 8);
    assert_int_equal(c.k_step, 2);
    assert_int_equal(c.in, DT_BF16);
    assert_int_equal(c.out, DT_F32);
    assert_int_equal(contract_for(MATH_BF16, 1024, 0).k_parts, 1);
    assert_int_equal(contract_for(MATH_BF16, 24, 1).k_parts, 4);
    assert_int_equal(contract_for(MATH_BF16, 36, 1).k_parts, 2);
    assert_int_equal(contract_for(MATH_BF16, 30, 1).k_parts, 1);
    assert_int_equal(contract_for(MATH_F32, 24, 1).k_parts, 8);
    assert_int_equal(contract_for(MATH_F32, 7, 1).k_parts, 1);
    assert_int_equal(contract_for(MATH_F32, 7, 1).in, DT_F32);
}

static void unsupported_modes_are_refused(void **state)
{
    Weight w;
    Error err = { 0 };
    assert_int_equal(weight_alloc(backend, &w, 16, 16, contract_for(MATH_W4A16, 16, 0), &err), ERR_UNSUPPORTED);
    assert_null(w.data);
}

static void memory_is_zeroed_aligned_and_counted(void **state)
{
    static const size_t sizes[] = { 0, 1, 100, (1 << 20) - 1, 1 << 20, (5 << 20) + 12345 };
    size_t before = backend_bytes(backend), sum = 0;
    void *p[COUNT(sizes)];
    uint64_t calls = mem_count();
    for (int i = 0; i < COUNT(sizes); i++) {
        p[i] = backend_alloc(backend, sizes[i]);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % (sizes[i] >= 1 << 20 ? 2 << 20 : 64), 0);
        for (size_t at = 0; at < sizes[i]; at++) assert_int_equal(((char *)p[i])[at], 0);
        memset(p[i], 1, sizes[i]);
        sum += sizes[i];
    }
    assert_int_equal(mem_count() - calls, COUNT(sizes));
    assert_int_equal(backend_bytes(backend) - before, sum);
    for (int i = 0; i < COUNT(sizes); i++) backend_free(backend, p[i]);
    backend_free(backend, NULL);
    assert_int_equal(backend_bytes(backend), before);
}

static void no_memory_is_an_error(void **state)
{
    Weight w;
    Error err = { 0 };
    mem_fail_at(1);
    assert_int_equal(weight_alloc(backend, &w, 4096, 4096, contract_for(MATH_BF16, 4096, 0), &err), ERR_NOMEM);
    assert_null(w.data);
    mem_fail_at(1);
    assert_null(backend_alloc(backend, 10));
    assert_null(backend_alloc(backend, (size_t)-1));
    assert_null(backend_alloc(backend, (size_t)1 << 62));
}

/* First touch by several workers: every page is there afterwards, and still zero. */
static void touching_reaches_every_page(void **state)
{
    enum { N_OUT = 16 * 37, N_IN = 3000 };
    Backend *b;
    Weight w;
    Error err = { 0 };
    BackendOptions options = { .n_workers = 3 };
    assert_int_equal(backend_open_cpu(&b, &options, &err), OK);
    assert_int_equal(weight_alloc(b, &w, N_OUT, N_IN, contract_for(MATH_F32, N_IN, 0), &err), OK);
    first_touch_weight(b, &w);
    size_t bytes = weight_bytes(N_OUT, N_IN, &w.contract), page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *is_resident = mem_alloc(bytes / page + 1);
    assert_int_equal(mincore(w.data, bytes, is_resident), 0);
    for (size_t i = 0; i < bytes / page; i++) assert_true(is_resident[i] & 1);
    for (size_t i = 0; i < bytes; i += 4096) assert_int_equal(((const char *)w.data)[i], 0);
    mem_free(is_resident);
    backend_free(b, w.data);
    backend_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_put_comes_out),
        cmocka_unit_test(float32_is_rounded_once),
        cmocka_unit_test(layout_is_as_documented),
        cmocka_unit_test(contracts),
        cmocka_unit_test(unsupported_modes_are_refused),
        cmocka_unit_test(memory_is_zeroed_aligned_and_counted),
        cmocka_unit_test(no_memory_is_an_error),
        cmocka_unit_test(touching_reaches_every_page),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
