/* tandem bench MODEL: tokens per second, plain and with every drafter that the model has, by content class and number of
 * requests side by side; how far drafts were accepted, where the time of a pass went, and what `auto` made of it. Every
 * method has an engine of its own, all open at once, and they take turns, so that a change of the machine's speed meets
 * all of them; each speed is the median over the runs. Greedy unless --temperature says otherwise; end tokens are ignored so
 * that every answer has the same length. Prompts go through the chat template. Of --speculative-config everything but the
 * method counts for all of them: the drafter, widths. */
#include "cli/bench.h"
#include "cli/bench_prompts.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/sha256.h"
#include "server/timings.h"

#include <stdio.h>
#include <string.h>

static const SpecMethod methods[] = { SPEC_NONE, SPEC_NGRAM, SPEC_MTP, SPEC_DFLASH, SPEC_DDTREE, SPEC_AUTO };
static const int widths[] = { 1, 4, 16 };
enum { N_METHODS = 6, N_WIDTHS = 3, MAX_BATCH = 16, DEPTHS = 4, AUTO = N_METHODS - 1 };

typedef struct Cell { /* a method at one concurrency on one class */
    Series         tokens_per_s;
    RequestTimings sum;
    int64_t        tokens; /* after the first of each answer */
    Series         draft_ms, forward_ms, choose_ms, rest_ms; /* of a pass, once all prompts are through */
} Cell;

typedef struct BenchDrafts {
    const Options *options;
    Stack         *stacks[N_METHODS]; /* NULL: the model has no such drafter, because: */
    Error          missing[N_METHODS];
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
    so.speculation.method = methods[k];
    so.max_num_seqs = MAX_BATCH;
    so.max_model_len = so.max_model_len ? so.max_model_len : 1024;
    Stack *stack = mem_alloc(sizeof *stack);
    if (!stack) return error_set(err, ERR_NOMEM, "no memory to measure");
    Error *why = &b->missing[k];
    Status s = stack_open(stack, &so, NULL, why);
    if (!s) {
        b->stacks[k] = stack;
        return OK;
    }
    mem_free(stack);
    if (methods[k] != SPEC_NONE && (s == ERR_UNSUPPORTED || s == ERR_USAGE || s == ERR_INPUT)) return OK;
    return error_set(err, s, "%s", why->text);
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
    timings_add(&cell->sum, &t);
    cell->tokens += request_count(r, 0) - 1;
    token_sha(request_tokens(r, 0), request_count(r, 0), sha);
    char *plain = b->sha[c][i % BENCH_PROMPTS];
    if (is_plain && !plain[0]) memcpy(plain, sha, sizeof sha);
    if (strcmp(plain, sha) != 0) b->n_differ++;
}

/* rest: scheduling, deciding about drafts, publishing. */
static void add_phases(Cell *cell, const EngineStats *from, const EngineStats *to, double all_ms)
{
    double passes = (double)(to->steps - from->steps), draft = to->draft_ms - from->draft_ms;
    double forward = to->forward_ms - from->forward_ms, choose = to->choose_ms - from->choose_ms;
    if (passes == 0) return;
    series_add(&cell->draft_ms, draft / passes);
    series_add(&cell->forward_ms, forward / passes);
    series_add(&cell->choose_ms, choose / passes);
    series_add(&cell->rest_ms, (all_ms - draft - forward - choose) / passes);
}

/* Steps until all have their first token, or all their tokens. */
static void step_until(Engine *e, Request *const *requests, int n, bool done)
{
    for (int i = 0; i < n; i++)
        while (!request_done(requests[i]) && (done || request_count(requests[i], 0) == 0)) engine_step(e);
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
    if (!s) step_until(e, requests, n, false);
    EngineStats before = engine_stats(e);
    double decode_start = clock_ms();
    if (!s) step_until(e, requests, n, true);
    double end = clock_ms();
    EngineStats after = engine_stats(e);
    add_phases(cell, &before, &after, end - decode_start);
    for (int i = 0; i < n && requests[i]; i++) {
        if (!s && request_finish(requests[i], 0) == FINISH_ERROR) s = request_error(requests[i], err);
        emitted += request_count(requests[i], 0);
        if (!s) note_answer(b, cell, requests[i], c, i, k == 0);
        request_close(requests[i]);
    }
    series_add(&cell->tokens_per_s, (double)emitted * 1e3 / (end - start));
    return s;
}

/* Pages touched, costs of passes learnt: a turn of every kind that does not count. */
static Status warm_up(BenchDrafts *b, Error *err)
{
    Status s = OK;
    for (int w = 0; w < N_WIDTHS; w++)
        for (int k = 0; !s && k < N_METHODS; k++)
            if (b->stacks[k]) s = run_turn(b, 0, k, w, err);
    memset(b->cells[0], 0, sizeof b->cells[0]);
    return s;
}

static Status run_all(BenchDrafts *b, Error *err)
{
    Status s = warm_up(b, err);
    for (int64_t run = 0; run < b->options->runs; run++)
        for (int c = 0; c < BENCH_CLASSES; c++)
            for (int w = 0; w < N_WIDTHS; w++)
                for (int k = 0; !s && k < N_METHODS; k++)
                    if (b->stacks[k]) s = run_turn(b, c, k, w, err);
    return s;
}

/* ---- the tables ---- */

static void print_speeds(const BenchDrafts *b, Cell (*cells)[N_WIDTHS], int c, int k)
{
    printf("%-11s %-7s", k ? "" : bench_class_names[c], k ? spec_method_name(methods[k]) : "plain");
    for (int w = 0; w < N_WIDTHS; w++) {
        double mine = series_median(&cells[k][w].tokens_per_s), plain = series_median(&cells[0][w].tokens_per_s);
        printf(" %9.0f %5.2fx", mine, mine / plain);
    }
    printf("\n");
}

static double ratio(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

/* Accepted so far, of the rounds whose drafts went so deep; all methods of `auto` together. */
static void print_depths(const RequestTimings *t)
{
    for (int d = 1; d <= DEPTHS; d++) {
        int64_t reached = 0, accepted = 0;
        for (int m = 0; m < MAX_METHODS; m++) {
            reached += t->drafts[m].reached[d];
            accepted += t->drafts[m].accepted[d];
        }
        if (reached) printf(" %5.2f", (double)accepted / (double)reached);
        else printf("      ");
    }
}

static void print_phases(Cell *c)
{
    printf("  %6.2f %7.2f %6.2f %5.2f", series_median(&c->draft_ms), series_median(&c->forward_ms), series_median(&c->choose_ms),
           series_median(&c->rest_ms));
}

static void print_round(const BenchDrafts *b, Cell (*cells)[N_WIDTHS], int c, int k)
{
    Cell *one = &cells[k][0];
    printf("%-11s %-7s %6.2f", k ? "" : bench_class_names[c], k ? spec_method_name(methods[k]) : "plain",
           ratio((double)one->tokens, (double)one->sum.steps));
    if (one->sum.draft_tokens) printf(" %7.1f %%", 100.0 * (double)one->sum.accepted_tokens / (double)one->sum.draft_tokens);
    else printf("          ");
    print_depths(&one->sum);
    print_phases(one);
    print_phases(&cells[k][N_WIDTHS - 1]);
    printf("\n");
}

/* Who drafted in the passes that each answer was in. */
static void print_choices(const BenchDrafts *b, Cell (*cells)[N_WIDTHS], int c, int k)
{
    int32_t n;
    const DraftMethod *all = engine_methods(b->stacks[AUTO]->engine, &n);
    if (k != AUTO) return;
    printf("%-11s", bench_class_names[c]);
    for (int w = 0; w < N_WIDTHS; w++) {
        const RequestTimings *t = &cells[AUTO][w].sum;
        int64_t plain = t->steps;
        printf("%s%d:", w ? "; " : " ", widths[w]);
        for (int32_t m = 0; m < n; m++) {
            plain -= t->drafts[m].rounds;
            if (t->drafts[m].rounds) printf(" %s %.0f %%", all[m].name, 100 * ratio((double)t->drafts[m].rounds, (double)t->steps));
        }
        printf(" plain %.0f %%", 100 * ratio((double)plain, (double)t->steps));
    }
    printf("\n");
}

static void print_rows(BenchDrafts *b, void (*row)(const BenchDrafts *b, Cell (*cells)[N_WIDTHS], int c, int k))
{
    for (int c = 0; c < BENCH_CLASSES; c++)
        for (int k = 0; k < N_METHODS; k++)
            if (b->stacks[k]) row(b, b->cells[c], c, k);
}

static void print_tables(BenchDrafts *b)
{
    const Stack *s = b->stacks[0];
    printf("%s, %s, %s, %d workers, %d tokens an answer, temperature %g, prompt included, medians of %lld runs in turn\n", b->options->model,
           dtype_name(engine_model(s->engine)->act), backend_variant(s->backend), backend_workers(s->backend), b->n_tokens,
           b->options->temperature > 0 ? b->options->temperature : 0, (long long)b->options->runs);
    printf("\ntokens/s    method   1 request            4 requests       16 requests\n");
    print_rows(b, print_speeds);
    printf("\n            1 request:               accepted at depth        ms a pass of 1 request        of 16 requests\n"
           "rounds      method  tokens accepted     1     2     3     4   draft forward choose  rest   draft forward choose  rest\n");
    print_rows(b, print_round);
    printf("\nauto chose, by number of requests\n");
    print_rows(b, print_choices);
    for (int k = 0; k < N_METHODS; k++)
        if (!b->stacks[k]) printf("\nnot measured: %s: %s", spec_method_name(methods[k]), b->missing[k].text);
    printf(b->n_differ ? "\n%d answers DIFFER from plain ones\n" : "\nevery drafted answer has the token_sha of the plain one\n", b->n_differ);
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
    if (!s) print_tables(b);
    if (!s && b->n_differ) s = error_set(err, ERR_NUMERIC, "%d drafted answers differ from the plain ones", b->n_differ);
    close_all(b);
    return s;
}
