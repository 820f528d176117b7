/* tandem bench: which table, and medians. */
#include "cli/bench.h"

#include "backend/measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void series_add(Series *s, double value)
{
    if (s->n < BENCH_MAX_RUNS) s->value[s->n++] = value;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double series_median(Series *s)
{
    if (s->n == 0) return 0;
    qsort(s->value, (size_t)s->n, sizeof *s->value, by_value);
    return s->n % 2 ? s->value[s->n / 2] : (s->value[s->n / 2 - 1] + s->value[s->n / 2]) / 2;
}

static Status bench_reading(const StackOptions *stack, Error *err)
{
    enum { BYTES = 512 << 20 };
    Backend *backend = NULL;
    Status s = backend_open(&backend, &stack->backend, err);
    void *memory = s ? NULL : backend_alloc(backend, BYTES);
    if (!s && !memory) s = error_set(err, ERR_NOMEM, "no memory to read");
    if (!s) {
        memset(memory, 1, BYTES);
        printf("%.2f GB/s\n", measure_read_bandwidth(backend_stream(backend), memory, BYTES, 0.5) * 1e-9);
    }
    if (memory) backend_free(backend, memory);
    backend_close(backend);
    return s;
}

Status command_bench(const Options *o, Error *err)
{
    StackOptions stack;
    char dir[4096];
    Status s = command_stack_options(o, &stack, err);
    if (!s && o->read_stream) return bench_reading(&stack, err);
    if (!s && !o->model)
        s = error_set(err, ERR_USAGE, "which MODEL? for example: tandem bench nano, or tandem bench models/shapes/qwen3-0.6b --load-format dummy");
    if (!s) s = model_find(o->model, dir, sizeof dir, err);
    if (s) return s;
    numeric_mode_enter();
    if (o->synthetic_acceptance) return bench_synthetic(o, &stack, dir, err);
    return stack.load_format == LOAD_DUMMY || o->limits ? bench_shape(o, &stack, dir, err) : bench_drafts(o, &stack, err);
}
