/* The harness of the kernel checks; see check.h. */
#include "check.h"
#include "check_device.h"

#include "base/memory.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { GUARD_BYTES = 256, GUARD = 0xa5, ALIGNMENT = 64, MAX_REPORTS = 20 };

struct CheckBlock {
    CheckBlock *next;
    size_t      bytes;
    char       *data;
};

/* ---- begin and end ---- */

/* One of each name. The one that $CPU_MASK allows comes last: --bench times wide passes with it alone. */
static void add_backend(Check *c, Backend *b, bool is_last)
{
    int same = 0;
    while (same < c->n_backends && strcmp(backend_variant(c->backend[same]), backend_variant(b)) != 0) same++;
    if (same == c->n_backends) {
        c->backend[c->n_backends++] = b;
        return;
    }
    backend_close(b); /* this machine has nothing of its own between */
    if (!is_last || same == 0) return;
    b = c->backend[same];
    c->backend[same] = c->backend[c->n_backends - 1];
    c->backend[c->n_backends - 1] = b;
}

static bool open_backends(Check *c)
{
    if (getenv("TANDEM_CHECK_DEVICE")) return check_device_open(c);
    static const char *const masks[] = { "scalar", "avx2", "avx-vnni", "avx512", "avx512-vnni", "neon", NULL };
    for (int i = 0; i < COUNT(masks); i++) {
        BackendOptions options = { .n_workers = c->bench ? 0 : 3, .cpu_mask = masks[i] };
        Error err = { 0 };
        Backend *b;
        if (backend_open_cpu(&b, &options, &err)) {
            fprintf(stderr, "%s\n", err.text);
            return false;
        }
        add_backend(c, b, !masks[i]);
    }
    c->reference = backend_ops(c->backend[0]);
    c->reference_stream = backend_stream(c->backend[0]);
    return true;
}

bool check_begin(Check *c, int argc, char **argv)
{
    *c = (Check){ .seed = 1, .variant = -1, .label = "" };
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--bench") == 0) {
            c->bench = true;
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            c->seed = strtoull(argv[++i], NULL, 0);
        } else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
            c->only = argv[++i];
        } else {
            fprintf(stderr, "usage: %s [--seed N] [--bench [--only NAME]]\n", argv[0]);
            return false;
        }
    }
    c->random = c->seed * 0x9e3779b97f4a7c15u + 1;
    if (!open_backends(c)) return false;
    numeric_mode_enter();
    printf("seed %llu, variants:", (unsigned long long)c->seed);
    for (int i = 0; i < c->n_backends; i++) printf(" %s", backend_variant(c->backend[i]));
    printf("\n");
    return true;
}

int check_end(Check *c)
{
    check_done(c);
    check_device_close(c);
    for (int i = 0; i < c->n_backends; i++) backend_close(c->backend[i]);
    printf("%d checks, %d failed (seed %llu)\n", c->n_checks, c->n_failed, (unsigned long long)c->seed);
    return c->n_failed || !c->n_checks;
}

void check_label(Check *c, const char *format, ...)
{
    static char text[160];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    c->label = text;
}

static const char *variant_name(const Check *c)
{
    return c->variant < 0 ? "?" : backend_variant(c->backend[c->variant]);
}

void check_that(Check *c, bool is_true, const char *what)
{
    c->n_checks++;
    if (is_true) return;
    if (c->n_failed++ < MAX_REPORTS) {
        printf("FAILED %s, %s, %d workers: %s\n", c->label, variant_name(c), c->n_workers, what);
    }
}

/* ---- values ---- */

uint32_t check_u32(Check *c)
{
    c->random ^= c->random << 13;
    c->random ^= c->random >> 7;
    c->random ^= c->random << 17;
    return (uint32_t)(c->random >> 32);
}

int check_int(Check *c, int min, int max)
{
    return min + (int)(check_u32(c) % (uint32_t)(max - min + 1));
}

float check_value(Check *c, Fill fill)
{
    static const float nasty[] = { 0.0f, -0.0f, 1e-39f, -3e-40f, 1.2e-38f, -1e-30f, 1e-20f, 3e15f, -1e19f, 1.0f };
    static const float broken[] = { INFINITY, -INFINITY, NAN, -NAN, 3e38f, -3e38f };
    if (fill == FILL_ZERO) return 0.0f;
    if (fill >= FILL_NASTY && check_u32(c) % 8 == 0) return nasty[check_u32(c) % COUNT(nasty)];
    if (fill == FILL_BROKEN && check_u32(c) % 64 == 0) return broken[check_u32(c) % COUNT(broken)];
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float)(check_u32(c) >> 8) * 0x1p-24f;
    return (sum - 2.0f) * 1.7f;
}

/* Bytes of the smallest range that holds all elements. */
static size_t span_bytes(Tensor x)
{
    int64_t last = 0;
    for (int d = 0; d < x.n_dims; d++) {
        if (x.shape[d] == 0) return 0;
        last += (x.shape[d] - 1) * x.stride[d];
    }
    return (size_t)(last + 1) * dtype_bytes(x.dtype);
}

/* Number of vectors along the last dimension, and the i-th of them. */
static int64_t n_vectors(Tensor x)
{
    return x.n_dims == 1 ? 1 : x.n_dims == 2 ? x.shape[0] : x.shape[0] * x.shape[1];
}
static char *vector_at(Tensor x, int64_t i)
{
    int64_t at = 0;
    if (x.n_dims == 2) at = i * x.stride[0];
    if (x.n_dims == 3) at = i / x.shape[1] * x.stride[0] + i % x.shape[1] * x.stride[1];
    return (char *)x.data + (size_t)at * dtype_bytes(x.dtype);
}

void check_fill(Check *c, Tensor x, Fill fill)
{
    for (int64_t i = 0, n = n_vectors(x); i < n; i++) {
        char *row = vector_at(x, i);
        for (int64_t k = 0; k < x.shape[x.n_dims - 1]; k++) {
            float v = check_value(c, fill);
            if (x.dtype == DT_BF16) ((uint16_t *)row)[k] = f32_to_bf16(v);
            else ((float *)row)[k] = v;
        }
    }
}

void check_clear(Tensor x)
{
    for (int64_t i = 0, n = n_vectors(x); i < n; i++) {
        memset(vector_at(x, i), 0xc3, (size_t)x.shape[x.n_dims - 1] * dtype_bytes(x.dtype));
    }
}

/* ---- memory ---- */

void *check_alloc(Check *c, size_t bytes)
{
    size_t whole = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + 2 * GUARD_BYTES;
    CheckBlock *b = mem_alloc(sizeof *b);
    if (b) b->data = c->device ? backend_alloc(c->backend[0], whole) : aligned_alloc(ALIGNMENT, whole);
    if (!b || !b->data) {
        fprintf(stderr, "no memory for a check\n");
        exit(1);
    }
    memset(b->data, GUARD, whole);
    memset(b->data + GUARD_BYTES, 0, bytes);
    b->bytes = bytes;
    b->next = c->blocks;
    c->blocks = b;
    return b->data + GUARD_BYTES;
}

static bool guards_are_whole(const CheckBlock *b)
{
    for (int i = 0; i < GUARD_BYTES; i++) {
        unsigned char before = (unsigned char)b->data[i], behind = (unsigned char)b->data[GUARD_BYTES + b->bytes + i];
        if (before != GUARD || behind != GUARD) return false;
    }
    return true;
}

void check_done(Check *c)
{
    check_device_done(c);
    while (c->blocks) {
        CheckBlock *b = c->blocks;
        if (!guards_are_whole(b)) check_that(c, false, "wrote outside its memory");
        c->blocks = b->next;
        if (c->device) backend_free(c->backend[0], b->data);
        else free(b->data);
        mem_free(b);
    }
}

Tensor check_output(Check *c, DType t, int64_t rows, int64_t cols)
{
    return tensor_2d(check_alloc(c, (size_t)(rows * cols) * dtype_bytes(t)), t, rows, cols);
}

Tensor check_output_heads(Check *c, DType t, int64_t rows, int64_t heads, int64_t dim)
{
    void *data = check_alloc(c, (size_t)(rows * heads * dim) * dtype_bytes(t));
    return tensor_heads(data, t, rows, heads, dim, heads * dim, dim);
}

Tensor check_random(Check *c, Fill fill, DType t, int64_t rows, int64_t cols)
{
    Tensor x = check_output(c, t, rows, cols);
    check_fill(c, x, fill);
    return x;
}

Tensor check_random_heads(Check *c, Fill fill, DType t, int64_t rows, int64_t heads, int64_t dim)
{
    Tensor x = check_output_heads(c, t, rows, heads, dim);
    check_fill(c, x, fill);
    return x;
}

Weight check_weight(Check *c, Fill fill, int64_t n_out, int64_t n_in, Contract contract)
{
    Weight w = { check_alloc(c, weight_bytes(n_out, n_in, &contract)), n_out, n_in, contract };
    float *row = check_alloc(c, (size_t)n_in * sizeof *row);
    for (int64_t i = 0; i < n_out; i++) {
        check_fill(c, tensor_1d(row, DT_F32, n_in), fill);
        weight_put_rows(&w, i, 1, row, DT_F32);
    }
    if (c->device) check_device_weight(c, &w);
    return w;
}

/* ---- variants and bits ---- */

bool check_next_variant(Check *c)
{
    int most = c->bench || c->device ? 1 : 3; /* turns a variant gets: 1, 2, 3 workers, or all at once */
    if (c->variant < 0 || c->n_workers >= most) {
        if (++c->variant == c->n_backends) {
            c->variant = -1;
            return false;
        }
        c->n_workers = 0;
    }
    c->n_workers++;
    c->ops = c->device ? check_device_ops(c) : backend_ops(c->backend[c->variant]);
    c->stream = backend_stream(c->backend[c->variant]);
    if (!c->bench) stream_use_workers(c->stream, c->n_workers);
    return true;
}

static double value_at(const char *row, int64_t k, DType t)
{
    return t == DT_BF16 ? (double)bf16_to_f32(((const uint16_t *)row)[k]) : (double)((const float *)row)[k];
}

void check_bits(Check *c, Tensor got, Tensor want)
{
    int64_t width = want.shape[want.n_dims - 1];
    size_t item = dtype_bytes(want.dtype);
    for (int64_t i = 0, n = n_vectors(want); i < n; i++) {
        const char *a = vector_at(got, i), *b = vector_at(want, i);
        if (memcmp(a, b, (size_t)width * item) == 0) continue;
        for (int64_t k = 0; k < width; k++) {
            if (memcmp(a + (size_t)k * item, b + (size_t)k * item, item) == 0) continue;
            double g = value_at(a, k, want.dtype), w = value_at(b, k, want.dtype);
            if (isnan(g) && isnan(w)) continue;
            char text[128];
            snprintf(text, sizeof text, "vector %lld of %lld, value %lld: %a instead of %a", (long long)i, (long long)n,
                     (long long)k, g, w);
            check_that(c, false, text);
            return;
        }
    }
    check_that(c, got.dtype == want.dtype && span_bytes(got) == span_bytes(want), "shapes differ");
}

void check_bytes(Check *c, const void *got, const void *want, size_t n)
{
    check_that(c, memcmp(got, want, n) == 0, "bytes differ");
}

/* ---- time ---- */

enum { MAX_LAPS = 4096 };
static struct {
    double start, lap;
    int    n;
    double laps[MAX_LAPS];
} timer;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void check_work(Check *c, double flops, double bytes)
{
    c->flops = flops;
    c->bytes = bytes;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void check_time_begin(Check *c)
{
    timer.n = 0;
    timer.start = timer.lap = now_s();
}

bool check_time_more(Check *c)
{
    const double min_seconds = 0.25;
    double t = now_s();
    timer.laps[timer.n++] = t - timer.lap;
    if (timer.n < MAX_LAPS && (t - timer.start < min_seconds || timer.n < 3)) {
        timer.lap = now_s();
        return true;
    }
    qsort(timer.laps, (size_t)timer.n, sizeof timer.laps[0], by_size);
    double median = timer.laps[timer.n / 2], best = timer.laps[0];
    printf("%-12s %-36s %10.2f us", variant_name(c), c->label, median * 1e6);
    if (c->flops > 0) printf(" %7.1f GFLOP/s (best %7.1f)", c->flops / median * 1e-9, c->flops / best * 1e-9);
    if (c->bytes > 0) printf(" %6.1f GB/s (best %6.1f)", c->bytes / median * 1e-9, c->bytes / best * 1e-9);
    printf("\n");
    fflush(stdout);
    return false;
}
