/* tandem bench MODEL --load-format dummy --synthetic-acceptance 0.93,0.90,...: what drafting would gain for a shape whose
 * weights are made up. A DFlash drafter of the shape's own really runs (its costs are real, its guesses worthless); then its
 * tree is replaced by a chain from the oracle that is right at each depth with the given probability. Plain decoding is the
 * same engine without drafts; plain, all widths, and the controller left to itself take turns. */
#include "cli/bench.h"

#include "base/clock.h"
#include "base/memory.h"
#include "speculation/drafter.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int32_t widths[] = { 1, 2, 3, 4, 6, 8, 10, 12, 16, 0 }; /* rows of a verify pass; 1 = plain, 0 = the controller decides */
enum { N_WIDTHS = 10, MOST_ROWS = 16, PROMPT = 32, MAX_TOKENS = 4096 };

typedef struct Synthetic {
    const Options *options;
    Drafter        face;      /* first step of the chain below; what the engine knows */
    Drafter       *child;     /* the drafter that really runs */
    DraftMethod    method;    /* the child's: a chain */
    Drafter       *oracle;
    Backend       *backend;
    Engine        *engine;
    double         by_depth[MAX_DEPTH];
    int32_t        n_by_depth, n_tokens, n_truth;
    int32_t        truth[MAX_TOKENS];
    uint64_t       n_requests; /* each has an id of its own, so the oracle's luck differs from run to run */
    Series         ms_per_token[N_WIDTHS];
    int64_t        steps[N_WIDTHS], tokens[N_WIDTHS];
} Synthetic;

/* ---- the drafter: the child's cost, the oracle's guesses ---- */

static Synthetic *owner(const Drafter *d)
{
    return (Synthetic *)((const char *)d - offsetof(Synthetic, face));
}
static Status face_fits(const Drafter *d, const ModelInfo *target, Error *err)
{
    return owner(d)->child->fits(owner(d)->child, target, err);
}
static int face_groups(const Drafter *d, CacheGroup out[MAX_GROUPS])
{
    return owner(d)->child->groups(owner(d)->child, out);
}
static void face_bind(Drafter *d, const CacheMemory memory[MAX_GROUPS])
{
    owner(d)->child->bind(owner(d)->child, memory);
}
static void face_begin(Drafter *d, int32_t slot, uint64_t id, int32_t choice)
{
    owner(d)->child->begin(owner(d)->child, slot, id, choice);
}
static void face_observe(Drafter *d, Stream *st, const Batch *batch, const Accepted *accepted, int n)
{
    owner(d)->child->observe(owner(d)->child, st, batch, accepted, n);
}
static void face_forget(Drafter *d, int32_t slot)
{
    owner(d)->child->forget(owner(d)->child, slot);
}
static void face_close(Drafter *d)
{
    drafter_close(owner(d)->child);
}
static Status face_draft(Drafter *d, Stream *st, DraftJob *jobs, int n, Error *err)
{
    Synthetic *y = owner(d);
    Status s = y->child->draft(y->child, st, jobs, n, err);
    return s ? s : y->oracle->draft(y->oracle, st, jobs, n, err);
}
static int32_t true_tokens(void *ctx, uint64_t id, int32_t choice, int32_t index, const int32_t **tokens)
{
    const Synthetic *y = ctx;
    int32_t at = index - PROMPT;
    if (at < 0 || at >= y->n_truth) return 0;
    *tokens = y->truth + at;
    return y->n_truth - at;
}

/* ---- opening ---- */

static Status read_acceptance(Synthetic *y, Error *err)
{
    const char *p = y->options->synthetic_acceptance;
    while (*p) {
        char *end;
        double value = strtod(p, &end);
        if (end == p || !(value >= 0 && value <= 1) || y->n_by_depth == MAX_DEPTH || (*end && *end != ','))
            return error_set(err, ERR_USAGE, "--synthetic-acceptance takes probabilities by depth, such as 0.9,0.8,0.7, got \"%s\"",
                             y->options->synthetic_acceptance);
        y->by_depth[y->n_by_depth++] = value;
        p = *end ? end + 1 : end;
    }
    return y->n_by_depth ? OK : error_set(err, ERR_USAGE, "--synthetic-acceptance is empty");
}

static Status open_drafter(Synthetic *y, const StackOptions *so, const char *dir, const Model *model, const ModelLimits *limits, Error *err)
{
    SpeculativeConfig config = so->speculation;
    if (config.method == SPEC_NONE || config.method == SPEC_AUTO) config.method = SPEC_DFLASH;
    SpeculationOptions options = { .config = &config, .model_dir = dir, .load_format = so->load_format, .limits = *limits,
                                   .max_model_len = PROMPT + y->n_tokens };
    SpeculationShape shape;
    Status s = speculation_decide(&options, &model->info, &shape, err);
    if (!s) s = speculation_open(&y->child, &options, &shape, model, y->backend, err);
    OracleOptions oo = { .n_by_depth = y->n_by_depth, .by_depth = y->by_depth, .n_nodes = MOST_ROWS, .chain = true,
                         .max_depth = MAX_DEPTH - 1, .seed = 7, .vocab_size = model->info.vocab_size, .truth = true_tokens,
                         .truth_ctx = y };
    if (!s) s = drafter_open_oracle(&y->oracle, &oo, err);
    if (s) return s;
    y->method = (DraftMethod){ .name = "synthetic", .max_nodes = MOST_ROWS, .max_depth = MOST_ROWS - 1 };
    y->face = (Drafter){ .name = y->method.name, .n_methods = 1, .methods = &y->method, .n_taps = y->child->n_taps, .taps = y->child->taps,
                         .wants_last_hidden = y->child->wants_last_hidden, .fits = face_fits, .groups = face_groups, .bind = face_bind,
                         .begin = face_begin, .observe = face_observe, .draft = face_draft, .forget = face_forget, .close = face_close };
    return OK;
}

static Status open_all(Synthetic *y, const StackOptions *so, const char *dir, Error *err)
{
    Model *model = NULL;
    int32_t length = PROMPT + y->n_tokens;
    EngineOptions eo = { .max_num_seqs = 1, .max_num_batched_tokens = 64, .max_model_len = length, .block_size = 16,
                         .n_blocks = (length + 32) / 16 + 2, .max_waiting = 1, .draft_nodes = MOST_ROWS, .draft_depth = MOST_ROWS - 1,
                         .adapts_drafts = true };
    ModelOptions mo = stack_model_options(so);
    mo.limits = (ModelLimits){ .max_rows = 64, .max_outputs = 64, .max_seqs = 1, .max_uncertain_rows = 16 };
    Status s = backend_open(&y->backend, &so->backend, err);
    if (!s) s = model_open(&model, dir, y->backend, &mo, err);
    if (!s) s = open_drafter(y, so, dir, model, &mo.limits, err);
    if (!s) s = engine_open(&y->engine, model, y->backend, &y->face, &eo, err);
    if (s) {
        drafter_close(y->child);
        model_close(model);
    }
    return s;
}

/* ---- running ---- */

static Status run_width(Synthetic *y, int w, Error *err)
{
    int32_t prompt[PROMPT];
    for (int i = 0; i < PROMPT; i++) prompt[i] = 100 + i * 7;
    GenerateRequest g = { .id = ++y->n_requests, .prompt = prompt, .n_prompt = PROMPT, .n_choices = 1, .max_tokens = y->n_tokens, .ignore_eos = true,
                          .no_speculation = widths[w] == 1, .draft_nodes = widths[w] > 1 ? widths[w] : 0,
                          .params = { .temperature = 0, .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1 } };
    Request *r = NULL;
    if (widths[w] > 1) snprintf(g.draft_method, sizeof g.draft_method, "%s", y->method.name);
    Status s = engine_submit(y->engine, &g, NULL, NULL, &r, err);
    if (s) return s;
    while (!request_done(r)) engine_step(y->engine);
    if (request_finish(r, 0) == FINISH_ERROR) s = request_error(r, err);
    RequestTimings t = request_timings(r);
    int32_t n = request_count(r, 0);
    if (!s && y->n_truth == 0) { /* the first, plain one tells the truth */
        memcpy(y->truth, request_tokens(r, 0), (size_t)n * sizeof y->truth[0]);
        y->n_truth = n;
    } else if (!s && memcmp(y->truth, request_tokens(r, 0), (size_t)n * sizeof y->truth[0]) != 0) {
        s = error_set(err, ERR_NUMERIC, "the answer drafted with %d rows differs from the plain one", widths[w]);
    } else if (!s) {
        series_add(&y->ms_per_token[w], t.decode_ms / (n - 1));
        y->steps[w] += t.steps;
        y->tokens[w] += n - 1;
    }
    request_close(r);
    return s;
}

static Status run_all(Synthetic *y, Error *err)
{
    Status s = run_width(y, 0, err);
    for (int64_t run = 0; run < y->options->runs; run++)
        for (int w = 0; !s && w < N_WIDTHS; w++) s = run_width(y, w, err);
    return s;
}

static void print_table(Synthetic *y)
{
    double plain = series_median(&y->ms_per_token[0]);
    printf("%s, %s, drafter %s really run, acceptance by depth %s, %d tokens after %d, medians of %lld runs in turn\n", y->options->model,
           backend_variant(y->backend), y->child->name, y->options->synthetic_acceptance, y->n_tokens, PROMPT,
           (long long)y->options->runs);
    printf("rows   tokens/round   ms/token   tokens/s   against plain\n");
    for (int w = 0; w < N_WIDTHS; w++) {
        double ms = series_median(&y->ms_per_token[w]);
        printf("%4d %14.2f %10.2f %10.1f %14.2fx%s\n", widths[w], (double)y->tokens[w] / (double)y->steps[w], ms, 1e3 / ms, plain / ms,
               widths[w] == 1 ? "  plain" : widths[w] ? "" : "  width and whether to draft at all chosen round by round");
    }
}

Status bench_synthetic(const Options *o, const StackOptions *stack, const char *dir, Error *err)
{
    Synthetic *y = mem_alloc(sizeof *y);
    if (!y) return error_set(err, ERR_NOMEM, "no memory to measure");
    y->options = o;
    y->n_tokens = o->n_tokens && o->n_tokens < MAX_TOKENS ? (int32_t)o->n_tokens : 128;
    Status s = read_acceptance(y, err);
    if (!s) s = open_all(y, stack, dir, err);
    if (!s) s = run_all(y, err);
    if (!s) print_table(y);
    engine_close(y->engine);
    drafter_close(y->oracle);
    backend_close(y->backend);
    mem_free(y);
    return s;
}
