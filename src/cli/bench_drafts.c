/* tandem bench MODEL: tokens per second, plain and with every drafter that the model has, by content class and number of
 * requests side by side. Every method has an engine of its own, all open at once, and they take turns, so that a change of
 * the machine's speed meets all of them; each figure is the median over the runs. Greedy; end tokens are ignored so that
 * every answer has the same length. Prompts go through the chat template. */
#include "cli/bench.h"
#include "cli/bench_prompts.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/sha256.h"

#include <stdio.h>
#include <string.h>

static const SpecMethod methods[] = { SPEC_NONE, SPEC_NGRAM, SPEC_MTP, SPEC_DFLASH, SPEC_DDTREE };
static const int widths[] = { 1, 4, 16 };
enum { N_METHODS = 5, N_WIDTHS = 3, MAX_BATCH = 16 };

typedef struct Cell { /* a method at one concurrency on one class */
    Series  tokens_per_s;
    int64_t steps, tokens, drafted, accepted;
} Cell;

typedef struct BenchDrafts {
    const Options *options;
    Stack         *stacks[N_METHODS]; /* NULL: the model has no such drafter */
    int32_t       *ids[BENCH_CLASSES][BENCH_PROMPTS];
    int64_t        n_ids[BENCH_CLASSES][BENCH_PROMPTS];
    int32_t        n_tokens;
    Cell           cells[BENCH_CLASSES][N_METHODS][N_WIDTHS];
    char           sha[BENCH_CLASSES][BENCH_PROMPTS][17]; /* of plain answers: drafted ones must have the same */
    int            n_differ;
} BenchDrafts;

/* ---- opening ---- */

static Status open_method(BenchDrafts *b, int k, StackOptions so, Error *err)
{
    so.speculation = (SpeculativeConfig){ .method = methods[k] };
    so.max_num_seqs = MAX_BATCH;
    so.max_model_len = so.max_model_len ? so.max_model_len : 1024;
    Stack *stack = mem_alloc(sizeof *stack);
    if (!stack) return error_set(err, ERR_NOMEM, "no memory to measure");
    Error why = { 0 };
    Status s = stack_open(stack, &so, NULL, &why);
    if (!s) {
        b->stacks[k] = stack;
        return OK;
    }
    mem_free(stack);
    if (methods[k] != SPEC_NONE && (s == ERR_UNSUPPORTED || s == ERR_USAGE || s == ERR_INPUT)) return OK; /* the model has no such drafter */
    return error_set(err, s, "%s", why.text);
}

static Status encode_prompt(BenchDrafts *b, TokenizerScratch *scratch, int c, int p, Error *err)
{
    Buf text;
    const Stack *s = b->stacks[0];
    int64_t capacity = 0;
    buf_init(&text, 1 << 20);
    Status status = OK;
    if (s->chat_template) status = command_render(s, NULL, bench_prompts[c][p], &text, err);
    else buf_text(&text, bench_prompts[c][p]);
    if (!status)
        status = tokenizer_encode(s->tokenizer, scratch, text.data, text.len, false, s->max_model_len, &b->ids[c][p], &b->n_ids[c][p],
                                  &capacity, err);
    buf_free(&text);
    return status;
}

static Status encode_prompts(BenchDrafts *b, Error *err)
{
    TokenizerScratch *scratch = NULL;
    Status s = tokenizer_scratch_open(&scratch, b->stacks[0]->tokenizer, err);
    for (int c = 0; !s && c < BENCH_CLASSES; c++)
        for (int p = 0; !s && p < BENCH_PROMPTS; p++) s = encode_prompt(b, scratch, c, p, err);
    tokenizer_scratch_close(scratch);
    return s;
}

/* ---- one turn ---- */

static Status submit(BenchDrafts *b, Engine *e, int c, int i, Request **out, Error *err)
{
    int p = i % BENCH_PROMPTS;
    GenerateRequest g = { .id = (uint64_t)i + 1, .prompt = b->ids[c][p], .n_prompt = (int32_t)b->n_ids[c][p], .n_choices = 1,
                          .max_tokens = b->n_tokens, .ignore_eos = true,
                          .params = { .temperature = b->options->temperature > 0 ? (float)b->options->temperature : 0, .top_p = 1,
                                      .repetition_penalty = 1, .n_logprobs = -1 } };
    return engine_submit(e, &g, NULL, NULL, out, err);
}

static void note_answer(BenchDrafts *b, Cell *cell, const Request *r, int c, int i, bool is_plain)
{
    RequestTimings t = request_timings(r);
    char sha[17];
    cell->steps += t.steps;
    cell->tokens += request_count(r, 0) - 1;
    cell->drafted += t.draft_tokens;
    cell->accepted += t.accepted_tokens;
    token_sha(request_tokens(r, 0), request_count(r, 0), sha);
    char *plain = b->sha[c][i % BENCH_PROMPTS];
    if (is_plain && !plain[0]) memcpy(plain, sha, sizeof sha);
    if (strcmp(plain, sha) != 0) b->n_differ++;
}

static Status run_turn(BenchDrafts *b, int c, int k, int w, Error *err)
{
    Request *requests[MAX_BATCH] = { NULL };
    Engine *e = b->stacks[k]->engine;
    Cell *cell = &b->cells[c][k][w];
    int n = widths[w];
    int64_t emitted = 0;
    Status s = OK;
    double start = clock_ms();
    for (int i = 0; !s && i < n; i++) s = submit(b, e, c, i, &requests[i], err);
    for (int i = 0; !s && i < n; i++)
        while (!request_done(requests[i])) engine_step(e);
    double took = clock_ms() - start;
    for (int i = 0; i < n && requests[i]; i++) {
        if (!s && request_finish(requests[i], 0) == FINISH_ERROR) s = request_error(requests[i], err);
        emitted += request_count(requests[i], 0);
        if (!s) note_answer(b, cell, requests[i], c, i, k == 0);
        request_close(requests[i]);
    }
    series_add(&cell->tokens_per_s, (double)emitted * 1e3 / took);
    return s;
}

static Status run_all(BenchDrafts *b, Error *err)
{
    Status s = OK;
    for (int64_t run = 0; run < b->options->runs; run++)
        for (int c = 0; c < BENCH_CLASSES; c++)
            for (int w = 0; w < N_WIDTHS; w++)
                for (int k = 0; !s && k < N_METHODS; k++)
                    if (b->stacks[k]) s = run_turn(b, c, k, w, err);
    return s;
}

/* ---- the table ---- */

static void print_row(BenchDrafts *b, int c, int k)
{
    printf("%-11s %-7s", k ? "" : bench_class_names[c], k ? spec_method_name(methods[k]) : "plain");
    for (int w = 0; w < N_WIDTHS; w++) {
        double mine = series_median(&b->cells[c][k][w].tokens_per_s), plain = series_median(&b->cells[c][0][w].tokens_per_s);
        printf(" %9.0f %5.2fx", mine, mine / plain);
    }
    const Cell *one = &b->cells[c][k][0];
    printf(" %11.2f %9.1f %%\n", one->steps ? (double)one->tokens / (double)one->steps : 0,
           one->drafted ? 100.0 * (double)one->accepted / (double)one->drafted : 0);
}

static void print_table(BenchDrafts *b)
{
    const Stack *s = b->stacks[0];
    printf("%s, %s, %s, %d workers, %d tokens an answer, temperature %g, prompt included, medians of %lld runs in turn\n", b->options->model,
           dtype_name(engine_model(s->engine)->act), backend_variant(s->backend), backend_workers(s->backend), b->n_tokens,
           b->options->temperature > 0 ? b->options->temperature : 0, (long long)b->options->runs);
    printf("class       method   1 request            4 requests       16 requests       tokens/round   accepted\n");
    for (int c = 0; c < BENCH_CLASSES; c++)
        for (int k = 0; k < N_METHODS; k++)
            if (b->stacks[k]) print_row(b, c, k);
    printf(b->n_differ ? "%d answers DIFFER from plain ones\n" : "every drafted answer has the token_sha of the plain one\n", b->n_differ);
}

static void close_all(BenchDrafts *b)
{
    for (int k = 0; k < N_METHODS; k++) {
        if (b->stacks[k]) stack_close(b->stacks[k]);
        mem_free(b->stacks[k]);
    }
    for (int c = 0; c < BENCH_CLASSES; c++)
        for (int p = 0; p < BENCH_PROMPTS; p++) mem_free(b->ids[c][p]);
    mem_free(b);
}

Status bench_drafts(const Options *o, const StackOptions *stack, Error *err)
{
    BenchDrafts *b = mem_alloc(sizeof *b);
    if (!b) return error_set(err, ERR_NOMEM, "no memory to measure");
    b->options = o;
    b->n_tokens = o->n_tokens ? (int32_t)o->n_tokens : 96;
    Status s = OK;
    for (int k = 0; !s && k < N_METHODS; k++) s = open_method(b, k, *stack, err);
    if (!s) s = encode_prompts(b, err);
    if (!s) s = run_all(b, err);
    if (!s) print_table(b);
    if (!s && b->n_differ) s = error_set(err, ERR_NUMERIC, "%d drafted answers differ from the plain ones", b->n_differ);
    close_all(b);
    return s;
}
