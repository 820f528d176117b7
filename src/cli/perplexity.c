/* tandem perplexity MODEL -f FILE: how surprising a text is to the model, exp of the mean negative log-likelihood of its
 * tokens. The text goes in windows of --ctx-size tokens (default 512, at most the context), each from its own beginning; of a
 * window the second half is scored, each of its tokens behind at least half a window: the measure that llama.cpp's tool of
 * the same name prints, so figures can be compared. */
#include "cli/command.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "engine/score.h"

#include <math.h>
#include <stdio.h>

enum { CHUNK = 64, MAX_TEXT = 1 << 30, DEFAULT_WINDOW = 512 };

typedef struct Perplexity {
    const Options *options;
    Tokenizer     *tokenizer;
    Backend       *backend;
    Model         *model;
    Scorer        *scorer;
    int32_t       *ids;
    int64_t        n_ids;
    int32_t        window;
    const int32_t *now;      /* ids of the window that is being scored */
    double         sum, squares;
    int64_t        n_scored;
} Perplexity;

static double negative_log_likelihood(const float *logits, int32_t n, int32_t token)
{
    double most = logits[0], sum = 0;
    for (int32_t i = 1; i < n; i++) most = fmax(most, (double)logits[i]);
    for (int32_t i = 0; i < n; i++) sum += exp((double)logits[i] - most);
    return log(sum) + most - (double)logits[token];
}

/* Logits of places first ..: each says how likely the next token of the window was. */
static void score_rows(void *ctx, int32_t first, Tensor logits)
{
    Perplexity *p = ctx;
    for (int64_t i = 0; i < logits.shape[0]; i++) {
        int32_t place = first + (int32_t)i;
        if (place < p->window / 2 || place + 1 >= p->window) continue;
        double nll = negative_log_likelihood(tensor_f32(logits, i), (int32_t)logits.shape[1], p->now[place + 1]);
        p->sum += nll;
        p->squares += nll * nll;
        p->n_scored++;
    }
}

static Status read_text(Perplexity *p, const char *dir, Error *err)
{
    char cache[4096], *text = NULL;
    size_t n = 0;
    int64_t capacity = 0;
    TokenizerScratch *scratch = NULL;
    tokenizer_default_cache_dir(cache, sizeof cache);
    Status s = tokenizer_open(&p->tokenizer, dir, cache[0] ? cache : NULL, err);
    if (!s) s = tokenizer_scratch_open(&scratch, p->tokenizer, err);
    if (!s) s = file_read(p->options->file, MAX_TEXT, &text, &n, err);
    if (!s) s = tokenizer_encode(p->tokenizer, scratch, text, n, false, INT32_MAX, &p->ids, &p->n_ids, &capacity, err);
    tokenizer_scratch_close(scratch);
    mem_free(text);
    return s;
}

static Status open_model(Perplexity *p, const StackOptions *so, const char *dir, Error *err)
{
    ModelOptions options = stack_model_options(so);
    options.limits = (ModelLimits){ .max_rows = CHUNK, .max_outputs = CHUNK, .max_seqs = 1, .max_uncertain_rows = 1 };
    Status s = backend_open(&p->backend, &so->backend, err);
    if (!s) s = model_open(&p->model, dir, p->backend, &options, err);
    if (s) return s;
    int32_t most = p->model->info.config->max_position;
    p->window = p->options->ctx_size ? (int32_t)p->options->ctx_size : DEFAULT_WINDOW;
    if (p->window > most) p->window = most;
    return score_open(&p->scorer, p->model, p->backend, p->window, CHUNK, err);
}

static void report(const Perplexity *p, int64_t n_windows, double seconds)
{
    double n = (double)p->n_scored, mean = p->sum / n, variance = p->squares / n - mean * mean;
    printf("%s: %lld tokens in %lld windows of %d, the second half of each scored (%lld tokens), %.1f s\n", p->options->file,
           (long long)(n_windows * p->window), (long long)n_windows, p->window, (long long)p->n_scored, seconds);
    printf("perplexity %.4f +- %.4f\n", exp(mean), exp(mean) * sqrt(fmax(variance, 0) / n));
}

static Status score_all(Perplexity *p, Error *err)
{
    int64_t n_windows = p->n_ids / p->window;
    double start = clock_ms();
    if (n_windows == 0)
        return error_set(err, ERR_INPUT, "%s has %lld tokens, less than one window of %d; --ctx-size makes it smaller", p->options->file,
                         (long long)p->n_ids, p->window);
    Status s = OK;
    for (int64_t w = 0; !s && w < n_windows && !command_interrupted(); w++) {
        p->now = p->ids + w * p->window;
        s = score_run(p->scorer, p->now, p->window, score_rows, p, err);
    }
    if (!s && command_interrupted()) return error_set(err, ERR_CANCELLED, "interrupted before the text was scored");
    if (!s) report(p, n_windows, (clock_ms() - start) / 1e3);
    return s;
}

Status command_perplexity(const Options *o, Error *err)
{
    if (!o->file) return error_set(err, ERR_USAGE, "usage: tandem perplexity MODEL -f FILE");
    char dir[4096];
    StackOptions so;
    Perplexity p = { .options = o };
    command_catch_interrupt();
    Status s = command_stack_options(o, &so, err);
    if (!s) s = model_find(o->model, dir, sizeof dir, err);
    if (!s) s = read_text(&p, dir, err);
    if (!s) s = open_model(&p, &so, dir, err);
    numeric_mode_enter();
    if (!s) s = score_all(&p, err);
    score_close(p.scorer);
    model_close(p.model);
    backend_close(p.backend);
    tokenizer_close(p.tokenizer);
    mem_free(p.ids);
    return s;
}
