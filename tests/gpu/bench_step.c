/* Time of one step of a model by its number of rows, on any device: bench_step MODEL_DIR [cuda|cpu] [context] [prompt] [rows]
 *
 * Weights are made up (the shapes of config.json count). A prompt of `context` tokens is computed, then steps of 1, 2, 4 ..
 * 64 rows behind it, each repeated: pass and choosing; then a prompt of `prompt` tokens. Before timing, the logits of the last row of every
 * width must have the bits of a pass of that row alone, else it fails in the end (not for recurrent models, whose state goes on
 * with every pass). With `rows` only a few passes of so many rows are made, for a profiler. */
#include "base/clock.h"
#include "base/memory.h"
#include "engine/score.h"
#include "sampling/row_chooser.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 512, RUNS = 41, WARM = 5, MAX_WIDTH = 64 };

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* How a step ends: its tokens are chosen where the logits lie (greedy, or sampled as Qwen3 asks for), or the logits of all rows
 * or of the last one come to the host. */
typedef enum Ending { GREEDY, SAMPLED, ALL_LOGITS, ONE_LOGITS, ENDINGS } Ending;

typedef struct Step {
    Scorer     *scorer;
    RowChooser *chooser;
    Stream     *stream;
    float      *logits; /* device memory */
} Step;

static void choose_all(Step *s, Tensor logits, bool is_greedy)
{
    static const SampleParams kinds[] = { { .temperature = 0.6f, .top_k = 20, .top_p = 0.95f, .repetition_penalty = 1, .n_logprobs = -1 },
                                          { .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1 } };
    RowRule rule = { .forced = -1, .params = &kinds[is_greedy] };
    DrawKey key = { 1, 0 };
    Choice choice;
    row_chooser_begin(s->chooser, logits);
    for (int32_t i = 0; i < logits.shape[0]; i++) row_chooser_add(s->chooser, i, &rule, key, (uint32_t)i);
    row_chooser_queue(s->chooser, s->stream);
    stream_sync(s->stream);
    for (int32_t i = 0; i < logits.shape[0]; i++) row_chooser_choose(s->chooser, i, &rule, key, (uint32_t)i, &choice);
}

static void run_step(Step *s, const int32_t *ids, int32_t context, int32_t rows, Ending ending)
{
    if (ending == GREEDY || ending == SAMPLED) choose_all(s, score_queue(s->scorer, ids, context, rows, rows, s->logits), ending == GREEDY);
    else score_pass(s->scorer, ids, context, rows, ending == ALL_LOGITS ? rows : 1);
}

static double median_of_steps(Step *s, const int32_t *ids, int32_t context, int32_t rows, Ending ending)
{
    double ms[RUNS];
    for (int i = -WARM; i < RUNS; i++) {
        double t = clock_ms();
        run_step(s, ids, context, rows, ending);
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

/* Returns how many logits differ by width. */
static int64_t time_widths(Step *s, const Model *model, const int32_t *ids, int32_t context)
{
    static const int32_t widths[] = { 1, 2, 4, 8, 16, 32, 64 };
    double one[ENDINGS], bytes = (double)model->info.read_bytes_per_pass;
    int64_t n_differing = 0;
    printf("context %d; a pass reads %.2f GB of weights; ms a step and against one row, by where its tokens are chosen\n"
           " rows   device, greedy            GB/s   device, sampled      all logits to host   last row's alone     bits that differ\n", context, bytes * 1e-9);
    for (int i = 0; i < COUNT(widths); i++) {
        int64_t n = differing(s->scorer, ids, context, widths[i], model->info.vocab_size);
        n_differing += n;
        double ms[ENDINGS];
        for (int e = 0; e < ENDINGS; e++) ms[e] = median_of_steps(s, ids, context, widths[i], (Ending)e);
        if (i == 0) memcpy(one, ms, sizeof one);
        printf("%5d", widths[i]);
        for (int e = 0; e < ENDINGS; e++) {
            printf("  %8.3f  %6.3f", ms[e], ms[e] / one[e]);
            if (e == GREEDY) printf("  %10.0f", bytes / ms[e] * 1e-6);
            else printf("   ");
        }
        printf("  %lld\n", (long long)n);
        fflush(stdout);
    }
    return n_differing;
}

static bool is_recurrent(const Model *model)
{
    CacheGroup groups[MAX_GROUPS];
    int n = model->groups(model, groups);
    for (int g = 0; g < n; g++)
        if (groups[g].kind != CACHE_PER_TOKEN) return true;
    return false;
}

/* What makes the times worthless. */
static Status judge(const Step *s, const Model *model, int64_t n_differing, Error *err)
{
    if (stream_lost(s->stream)) return error_set(err, ERR_LOST, "%s", stream_lost(s->stream));
    if (n_differing == 0 || is_recurrent(model)) return OK;
    return error_set(err, ERR_NUMERIC, "%lld logits depend on how many rows came along", (long long)n_differing);
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
    Step step = { .scorer = scorer, .stream = backend ? backend_stream(backend) : NULL };
    if (!s) s = row_chooser_open(&step.chooser, backend, model->info.vocab_size, MAX_WIDTH, 0, err);
    if (s) return s;
    step.logits = backend_alloc_device(backend, (size_t)MAX_WIDTH * (size_t)model->info.vocab_size * sizeof(float));
    if (!step.logits) return error_set(err, ERR_NOMEM, "no memory for logits");

    int32_t *ids = mem_alloc_array((size_t)longest, sizeof *ids);
    for (int32_t i = 0; i < longest; i++) ids[i] = (int32_t)((uint32_t)i * 2654435761u % (uint32_t)model->info.vocab_size);
    prompt_ms(scorer, ids, context);
    for (int i = 0; i < 3 && only > 0; i++) run_step(&step, ids, context, only, only > MAX_WIDTH ? ONE_LOGITS : GREEDY);
    int64_t n_differing = only ? 0 : time_widths(&step, model, ids, context);
    if (!only && prompt > 0) time_prompt(scorer, model, ids, prompt);
    s = judge(&step, model, n_differing, err);
    mem_free(ids);
    backend_free(backend, step.logits);
    row_chooser_close(step.chooser);
    score_close(scorer);
    model_close(model);
    backend_close(backend);
    return s;
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
