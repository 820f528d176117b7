/* tandem bench, first table: measured speed of the model's shape beside what this machine can do, all in one process.
 *
 *     read      best read stream over memory                       -> GB/s
 *     F(M)      best rate of one linear layer, M rows, weights hot  -> GFLOP/s (not of weights in stored formats)
 *     decode    N tokens after a prompt, through the engine         -> tokens/s, share of the read stream
 *     t(M)      a whole pass of M rows with all their logits        -> ms, over max(bytes / read, flops / F(M))
 *     prefill   512 rows, one logits row                            -> tokens/s, share of F(64)
 *
 * The figures are taken in turn, `runs` times over, and each is the median of its runs: a change of the machine's
 * speed meets all of them. */
#include "cli/bench.h"

#include "backend/measure.h"
#include "base/clock.h"
#include "base/memory.h"
#include "engine/score.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 32, PREFILL = 512, N_WIDTHS = 7, STREAM_BYTES = 512 << 20 };
static const int32_t widths[N_WIDTHS] = { 1, 2, 4, 8, 16, 32, 64 };

typedef struct Bench {
    const Options *options;
    StackOptions   stack;
    char           dir[4096];
    Backend       *backend;
    Model         *model; /* of the passes; the engine has one of its own */
    Scorer        *scorer;
    Engine        *engine;
    void          *stream_memory;
    int32_t        n_tokens;
    bool           is_dense; /* all matrices hold numbers of the products' type, which F(M) is measured with */
    double         weights_bytes, flops_per_row, kv_bytes_per_token;
    Weight         gemm;
    void          *gemm_in;
    float         *gemm_out;
    Series         read, decode, prefill, pass[N_WIDTHS], rate[N_WIDTHS];
} Bench;

/* ---- opening ---- */

static Status open_model(Bench *b, int32_t rows, Model **out, Error *err)
{
    ModelOptions mo = stack_model_options(&b->stack);
    mo.limits = (ModelLimits){ .max_rows = rows, .max_outputs = 64, .max_seqs = 1, .max_uncertain_rows = 1 };
    return model_open(out, b->dir, b->backend, &mo, err);
}

static Status open_engine(Bench *b, Error *err)
{
    Model *model = NULL;
    Status s = open_model(b, 64, &model, err);
    if (s) return s;
    int32_t length = PROMPT + b->n_tokens;
    EngineOptions eo = { .max_num_seqs = 1, .max_num_batched_tokens = 64, .max_model_len = length, .block_size = 16,
                         .n_blocks = length / 16 + 2, .max_waiting = 1 };
    s = engine_open(&b->engine, model, b->backend, NULL, &eo, err);
    if (s) model_close(model);
    return s;
}

/* The layer whose rate stands for F(M): gate and up of the MLP, by far the most of a pass. */
static Status open_gemm(Bench *b, Error *err)
{
    const ModelConfig *c = b->model->info.config;
    MathMode mode = b->model->info.act == DT_F32 ? MATH_F32 : MATH_BF16;
    size_t element = dtype_bytes(b->model->info.act);
    Status s = weight_alloc(b->backend, &b->gemm, c->intermediate_size, c->hidden_size, contract_for(mode, c->hidden_size, 0), err);
    if (s) return s;
    b->gemm_in = backend_alloc(b->backend, 64 * (size_t)c->hidden_size * element);
    b->gemm_out = backend_alloc(b->backend, 64 * (size_t)c->intermediate_size * sizeof(float));
    float *row = mem_alloc_array((size_t)c->hidden_size, sizeof *row);
    if (!b->gemm_in || !b->gemm_out || !row) s = error_set(err, ERR_NOMEM, "no memory for the matrix of F(M)");
    for (int64_t i = 0; !s && i < c->hidden_size; i++) row[i] = 0.01f * (float)(i % 17 - 8);
    for (int64_t i = 0; !s && i < c->intermediate_size; i++) weight_put_rows(&b->gemm, i, 1, row, DT_F32);
    mem_free(row);
    return s;
}

static void count_bytes(Bench *b)
{
    const ModelInfo *info = &b->model->info;
    CacheGroup groups[MAX_GROUPS];
    int n = b->model->groups(b->model, groups);
    b->weights_bytes = (double)info->read_bytes_per_pass;
    b->flops_per_row = 2 * (double)info->numbers_per_pass;
    b->is_dense = b->weights_bytes >= b->flops_per_row / 2 * (double)dtype_bytes(info->act);
    for (int g = 0; g < n; g++)
        if (groups[g].kind == CACHE_PER_TOKEN) b->kv_bytes_per_token += (double)groups[g].entry_bytes * groups[g].n_layers;
}

static Status open_all(Bench *b, Error *err)
{
    Status s = backend_open_cpu(&b->backend, &b->stack.backend, err);
    if (!s) s = open_model(b, PREFILL, &b->model, err);
    if (!s) s = score_open(&b->scorer, b->model, b->backend, PREFILL + 64, PREFILL, err);
    if (!s) s = open_engine(b, err);
    if (!s) s = open_gemm(b, err);
    if (!s && !(b->stream_memory = backend_alloc(b->backend, STREAM_BYTES))) s = error_set(err, ERR_NOMEM, "no memory for the read stream");
    if (!s) memset(b->stream_memory, 1, STREAM_BYTES);
    if (!s) count_bytes(b);
    return s;
}

static void close_all(Bench *b)
{
    engine_close(b->engine);
    score_close(b->scorer);
    model_close(b->model);
    if (b->backend) {
        backend_free(b->backend, b->gemm.data);
        backend_free(b->backend, b->gemm_in);
        backend_free(b->backend, b->gemm_out);
        backend_free(b->backend, b->stream_memory);
    }
    backend_close(b->backend);
}

/* ---- one turn of each ---- */

static Status run_decode(Bench *b, Error *err)
{
    int32_t prompt[PROMPT];
    for (int i = 0; i < PROMPT; i++) prompt[i] = 100 + i * 7;
    GenerateRequest g = { .id = 1, .prompt = prompt, .n_prompt = PROMPT, .n_choices = 1, .max_tokens = b->n_tokens, .ignore_eos = true,
                          .params = { .temperature = 0, .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1 } };
    Request *r = NULL;
    Status s = engine_submit(b->engine, &g, NULL, NULL, &r, err);
    if (s) return s;
    while (!request_done(r)) engine_step(b->engine);
    if (request_finish(r, 0) == FINISH_ERROR) s = request_error(r, err);
    else series_add(&b->decode, request_timings(r).decode_ms / (b->n_tokens - 1));
    request_close(r);
    return s;
}

static double time_pass(Bench *b, int32_t first, int32_t n, int32_t n_outputs)
{
    int32_t ids[PREFILL + 64];
    for (int i = 0; i < COUNT(ids); i++) ids[i] = (100 + i * 7 % 1000) % b->model->info.vocab_size;
    double start = clock_ms();
    score_pass(b->scorer, ids, first, n, n_outputs);
    return clock_ms() - start;
}

static void run_rate(Bench *b, int k)
{
    const ModelConfig *c = b->model->info.config;
    LinearJob job = { tensor_2d(b->gemm_out, DT_F32, widths[k], c->intermediate_size), &b->gemm };
    Tensor x = tensor_2d(b->gemm_in, b->model->info.act, widths[k], c->hidden_size);
    const Ops *op = backend_ops(b->backend);
    Stream *st = backend_stream(b->backend);
    double best = 1e30;
    for (int i = 0; i < 20; i++) {
        double start = clock_ms();
        op->linear(st, x, &job, 1);
        double took = clock_ms() - start;
        if (took < best) best = took;
    }
    series_add(&b->rate[k], 2.0 * widths[k] * c->intermediate_size * c->hidden_size / best * 1e-6);
}

static Status run_all(Bench *b, Error *err)
{
    Stream *st = backend_stream(b->backend);
    Status s = OK;
    time_pass(b, 0, PROMPT, 1);
    for (int64_t run = 0; !s && run < b->options->runs; run++) {
        series_add(&b->read, measure_read_bandwidth(st, b->stream_memory, STREAM_BYTES, 0.4) * 1e-9);
        s = run_decode(b, err);
        for (int k = 0; k < N_WIDTHS; k++) {
            if (b->is_dense) run_rate(b, k);
            series_add(&b->pass[k], time_pass(b, PROMPT, widths[k], widths[k]));
        }
        series_add(&b->prefill, time_pass(b, 0, PREFILL, 1));
        if (!s && stream_lost(st)) s = error_set(err, ERR_LOST, "%s", stream_lost(st));
    }
    return s;
}

/* ---- the table ---- */

static void print_table(Bench *b)
{
    double read = series_median(&b->read), rate[N_WIDTHS], decode = series_median(&b->decode), prefill = series_median(&b->prefill);
    double kv = b->kv_bytes_per_token * (PROMPT + b->n_tokens / 2.0);
    for (int k = 0; k < N_WIDTHS; k++) rate[k] = b->is_dense ? series_median(&b->rate[k]) : 0;
    double floor_ms = (b->weights_bytes + kv) / read * 1e-6;
    printf("%s, %s, %s, %d workers, medians of %lld interleaved runs\n", b->options->model, dtype_name(b->model->info.act),
           backend_variant(b->backend), backend_workers(b->backend), (long long)b->options->runs);
    printf("read stream        %8.1f GB/s; weights %.1f MB a pass, cache %.1f KB a token\n", read, b->weights_bytes * 1e-6,
           b->kv_bytes_per_token * 1e-3);
    printf("decode             %8.2f tokens/s (%d tokens after %d): %.2f ms, %.1f %% of the read stream\n", 1e3 / decode, b->n_tokens,
           PROMPT, decode, 100 * floor_ms / decode);
    printf("rows   pass ms   t(M)/t(1)%s\n", b->is_dense ? "   F(M) GFLOP/s   F(M)/F(64)   limit ms   pass/limit" : "");
    double t1 = series_median(&b->pass[0]);
    for (int k = 0; k < N_WIDTHS; k++) {
        double t = series_median(&b->pass[k]);
        if (!b->is_dense) {
            printf("%4d %9.2f %11.2f\n", widths[k], t, t / t1);
            continue;
        }
        double bytes_ms = b->weights_bytes / read * 1e-6;
        double flops_ms = b->flops_per_row * widths[k] / rate[k] * 1e-6, limit = bytes_ms > flops_ms ? bytes_ms : flops_ms;
        printf("%4d %9.2f %11.2f %14.1f %12.2f %10.2f %12.2f\n", widths[k], t, t / t1, rate[k], rate[k] / rate[N_WIDTHS - 1], limit, t / limit);
    }
    const ModelConfig *c = b->model->info.config;
    double head = 2.0 * c->vocab_size * c->hidden_size, flops = (b->flops_per_row - head) * PREFILL + head;
    printf("prefill of %d     %8.0f tokens/s: %.0f ms, %.0f GFLOP/s", PREFILL, PREFILL * 1e3 / prefill, prefill, flops / prefill * 1e-6);
    if (b->is_dense) printf(", %.1f %% of F(64)", 100 * flops / prefill * 1e-6 / rate[N_WIDTHS - 1]);
    printf("\n");
}

Status bench_shape(const Options *o, const StackOptions *stack, const char *dir, Error *err)
{
    Bench *b = mem_alloc(sizeof *b);
    if (!b) return error_set(err, ERR_NOMEM, "no memory to measure");
    b->options = o;
    b->stack = *stack;
    b->n_tokens = o->n_tokens ? (int32_t)o->n_tokens : 128;
    snprintf(b->dir, sizeof b->dir, "%s", dir);
    Status s = open_all(b, err);
    if (!s) s = run_all(b, err);
    if (!s) print_table(b);
    close_all(b);
    mem_free(b);
    return s;
}
