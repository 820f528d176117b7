/* Time of a decoded token behind a long context, by type of the cache, in turn: bench_context MODEL_DIR [context] [runs]
 *
 * Weights are made up (the shapes of config.json count), and so is the context: its cache is filled with one number and
 * never computed. The types take turns, so a change of the machine's speed meets all of them; a figure is the median. */
#include "base/clock.h"
#include "support/batch_builder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_TYPES = 2, MAX_RUNS = 200 };
static const DType types[N_TYPES] = { DT_BF16, DT_F8_E4M3 };

typedef struct Line {
    Model        *model;
    BatchBuilder *builder;
    double        ms[MAX_RUNS];
} Line;

static Status open_line(Line *l, const char *dir, DType kv, Backend *backend, int32_t context, Error *err)
{
    ModelOptions mo = { .kv_dtype = kv, .load_format = LOAD_DUMMY,
                        .limits = { .max_rows = 1, .max_outputs = 1, .max_seqs = 1, .max_uncertain_rows = 1 } };
    BuilderOptions bo = { .n_slots = 1, .max_tokens = context + 16, .max_rows = 1, .max_outputs = 1 };
    Status s = model_open(&l->model, dir, backend, &mo, err);
    if (!s) s = builder_open(&l->builder, l->model, &bo, err);
    for (int g = 0; !s && g < l->builder->n_groups; g++) {
        CacheMemory *m = &l->builder->memory[g]; /* 0x30: a small number in every type, and no two pages are one */
        memset(m->data, 0x30, m->layer_bytes * (size_t)l->builder->groups[g].n_layers);
    }
    return s;
}

static double step(Line *l, int32_t context)
{
    int32_t token = 1234;
    double start = clock_ms();
    l->builder->n_committed[0] = context;
    builder_begin(l->builder);
    builder_want(l->builder, builder_line(l->builder, 0, &token, 1), 1);
    builder_forward(l->builder);
    return clock_ms() - start;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(Line *l, DType t, int32_t context, int runs)
{
    double bytes = 0;
    for (int g = 0; g < l->builder->n_groups; g++)
        bytes += (double)l->builder->groups[g].entry_bytes * l->builder->groups[g].n_layers;
    qsort(l->ms, (size_t)runs, sizeof l->ms[0], by_size);
    double ms = l->ms[runs / 2];
    printf("%-8s cache %6.1f KB a token, %7.1f MB: %7.2f ms a token (best %.2f), %6.2f tokens/s\n", dtype_name(t), bytes * 1e-3,
           bytes * context * 1e-6, ms, l->ms[0], 1e3 / ms);
}

int main(int argc, char **argv)
{
    static Line lines[N_TYPES];
    Backend *backend = NULL;
    Error err = { 0 };
    int32_t context = argc > 2 ? atoi(argv[2]) : 16384;
    int runs = argc > 3 ? atoi(argv[3]) : 15;
    if (argc < 2 || context < 1 || runs < 1 || runs > MAX_RUNS) return 2;
    Status s = backend_open_cpu(&backend, NULL, &err);
    for (int t = 0; !s && t < N_TYPES; t++) s = open_line(&lines[t], argv[1], types[t], backend, context, &err);
    for (int r = -2; !s && r < runs; r++)
        for (int t = 0; t < N_TYPES; t++) {
            double ms = step(&lines[t], context);
            if (r >= 0) lines[t].ms[r] = ms;
        }
    if (s) fprintf(stderr, "%s\n", err.text);
    else printf("%s, %s, %d workers, context %d, medians of %d runs in turn\n", argv[1], backend_variant(backend),
                backend_workers(backend), context, runs);
    for (int t = 0; t < N_TYPES; t++) {
        if (!s) report(&lines[t], types[t], context, runs);
        builder_close(lines[t].builder);
        model_close(lines[t].model);
    }
    backend_close(backend);
    return s != OK;
}
