/* Time of one pass of a model by its number of rows, on any device: bench_step MODEL_DIR [cuda|cpu] [context] [prompt] [rows]
 *
 * Weights are made up (the shapes of config.json count). A prompt of `context` tokens is computed, then passes of 1, 2, 4 ..
 * 64 rows behind it, each repeated; then a prompt of `prompt` tokens. Before timing, the logits of the last row of every
 * width must have the bits of a pass of that row alone (not for recurrent models, whose state goes on with every pass). With
 * `rows` only a few passes of so many rows are made, for a profiler. */
#include "base/clock.h"
#include "base/memory.h"
#include "engine/score.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 512, RUNS = 41, WARM = 5 };

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of_passes(Scorer *s, const int32_t *ids, int32_t context, int32_t rows, int32_t outputs)
{
    double ms[RUNS];
    for (int i = -WARM; i < RUNS; i++) {
        double t = clock_ms();
        score_pass(s, ids, context, rows, outputs);
        if (i >= 0) ms[i] = clock_ms() - t;
    }
    qsort(ms, RUNS, sizeof ms[0], by_size);
    return ms[RUNS / 2];
}

static double prompt_ms(Scorer *s, const int32_t *ids, int32_t n)
{
    double t = clock_ms();
    for (int32_t first = 0; first < n; first += CHUNK) {
        int32_t take = n - first < CHUNK ? n - first : CHUNK;
        score_pass(s, ids, first, take, 1);
    }
    return clock_ms() - t;
}

/* Logits of the last row of `rows` against the same row alone. */
static int64_t differing(Scorer *s, const int32_t *ids, int32_t context, int32_t rows, int32_t vocab)
{
    size_t bytes = (size_t)vocab * sizeof(float);
    float *wide = mem_alloc(bytes);
    Tensor logits = score_pass(s, ids, context, rows, rows);
    memcpy(wide, tensor_f32(logits, rows - 1), bytes);
    for (int32_t i = 0; i < rows; i++) logits = score_pass(s, ids, context + i, 1, 1);
    int64_t n = 0;
    for (int32_t v = 0; v < vocab; v++) n += memcmp(&wide[v], tensor_f32(logits, 0) + v, sizeof(float)) != 0;
    mem_free(wide);
    return n;
}

static void time_widths(Scorer *s, const Model *model, const int32_t *ids, int32_t context)
{
    static const int32_t widths[] = { 1, 2, 4, 8, 16, 32, 64 };
    double one = 0, bytes = (double)model->info.read_bytes_per_pass;
    printf("context %d; a pass reads %.2f GB of weights\n rows       ms   x one row   GB/s of weights   logits of one ms   x one row   logits of the last row that differ\n", context,
           bytes * 1e-9);
    for (int i = 0; i < COUNT(widths); i++) {
        int64_t n = differing(s, ids, context, widths[i], model->info.vocab_size);
        double ms = median_of_passes(s, ids, context, widths[i], widths[i]), bare = median_of_passes(s, ids, context, widths[i], 1);
        if (i == 0) one = ms;
        printf("%5d  %7.3f   %9.3f   %15.0f   %14.3f   %9.3f   %lld\n", widths[i], ms, ms / one, bytes / ms * 1e-6, bare, bare / one, (long long)n);
        fflush(stdout);
    }
}

static void time_prompt(Scorer *s, const Model *model, const int32_t *ids, int32_t prompt)
{
    prompt_ms(s, ids, prompt);
    double ms = prompt_ms(s, ids, prompt), bytes = (double)model->info.read_bytes_per_pass;
    printf("prompt of %d tokens in chunks of %d: %.1f ms, %.0f tokens/s, %.0f TFLOP/s of the linears\n", prompt, CHUNK, ms, prompt / ms * 1e3,
           bytes * prompt / ms * 1e-9);
}

static Status run(const char *dir, DeviceChoice device, int32_t context, int32_t prompt, int32_t only, Error *err)
{
    Backend *backend = NULL;
    Model *model = NULL;
    Scorer *scorer = NULL;
    int32_t behind = only > 128 ? only : 128, longest = prompt > context + behind ? prompt : context + behind;
    ModelOptions options = { .load_format = LOAD_DUMMY, .dummy_seed = 1,
                             .limits = { .max_rows = CHUNK, .max_outputs = 64, .max_seqs = 1, .max_uncertain_rows = 1 } };
    Status s = backend_open(&backend, &(BackendOptions){ .device = device }, err);
    double t = clock_ms();
    if (!s) s = model_open(&model, dir, backend, &options, err);
    if (!s) printf("%s on %s: %.1f GB of weights in %.1f s\n", dir, backend_variant(backend), (double)model->info.weight_bytes * 1e-9,
                   (clock_ms() - t) * 1e-3);
    if (!s) s = score_open(&scorer, model, backend, longest, CHUNK, err);
    if (s) return s;

    int32_t *ids = mem_alloc_array((size_t)longest, sizeof *ids);
    for (int32_t i = 0; i < longest; i++) ids[i] = (int32_t)((uint32_t)i * 2654435761u % (uint32_t)model->info.vocab_size);
    prompt_ms(scorer, ids, context);
    for (int i = 0; i < 3 && only > 0; i++) score_pass(scorer, ids, context, only, only < 64 ? only : 64);
    if (!only) time_widths(scorer, model, ids, context);
    if (!only && prompt > 0) time_prompt(scorer, model, ids, prompt);
    mem_free(ids);
    score_close(scorer);
    model_close(model);
    backend_close(backend);
    return OK;
}

int main(int argc, char **argv)
{
    Error err = { 0 };
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL_DIR [cuda|cpu] [context] [prompt] [rows]\n", argv[0]);
        return 2;
    }
    DeviceChoice device = argc > 2 && strcmp(argv[2], "cpu") == 0 ? DEVICE_CPU : DEVICE_CUDA;
    Status s = run(argv[1], device, argc > 3 ? atoi(argv[3]) : 1024, argc > 4 ? atoi(argv[4]) : 0, argc > 5 ? atoi(argv[5]) : 0, &err);
    if (s) fprintf(stderr, "%s\n", err.text);
    return s != OK;
}
