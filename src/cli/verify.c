/* tandem verify: drafted output equals plain output, bit for bit, on this machine and this model.
 *
 * The plain side is a fresh engine with one slot and one row a pass, prompt rows included; its tokens and the logits of
 * every new token are kept. The other side runs the cells of the grid: oracle drafts of stated shape, acceptance, batch,
 * prompt chunks and workers; then every drafter that the model has. Each row that it commits is compared: the token, every bit of its logits, and the
 * log-probability that was reported for it.
 *
 *     prompts ──> plain engine ──> truth (tokens, logits) ──┬──> oracle proposes from it
 *                                                           └──> compare with what drafted engines commit
 *
 * That passes of the stated widths really ran is counted inside the kernels (RowCounts), not taken from the scheduler. */
#include "cli/command.h"
#include "cli/verify_grid.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/memory.h"
#include "speculation/drafter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PROMPTS = 64, MAX_WORKERS = 3, DRAFT_ROWS = 65, PASS_ROWS = 640 };

static const char *const builtin_prompts[] = {
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "Write a function that counts the vowels in a string.",
    "import os\nimport sys\n\n\ndef main(argv):\n    parser = argparse.ArgumentParser(description=__doc__)\n"
    "    parser.add_argument(\"path\", help=\"file to read\")\n    parser.add_argument(\"-n\", type=int, default=10)\n"
    "    args = parser.parse_args(argv)\n    with open(args.path) as f:\n        for line in",
    "static int compare(const void *a, const void *b)\n{\n",
    "x",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "The quick brown fox jumps over the lazy dog. 1234567890, (a + b) * c != \xc3\xa9\xe4\xbd\xa0\xf0\x9f\x99\x82",
    "for i in range(10):\n    for j in range(10):\n        print(i * j, end=' ')\n    print()\n\n# The same with a comprehension:\n",
};

typedef struct Truth { /* one prompt */
    int32_t *prompt;
    int32_t  n_prompt, n_tokens;
    int32_t  tokens[GRID_MAX_TOKENS];
    float    logprobs[GRID_MAX_TOKENS];
    float   *logits; /* [GRID_MAX_TOKENS][vocab] */
} Truth;

typedef struct Sum { /* of a group of cells */
    int64_t cells, passes, positions, accepted, token_faults, logit_faults, logprob_faults;
} Sum;

typedef struct Verify {
    const Options *options;
    char           dir[4096];
    StackOptions   stack;
    Backend       *backend;
    int32_t        vocab_size, n_prompts;
    Truth          truth[MAX_PROMPTS];
    DrawKey        key;
    float          temperature;
    char           name[32];
    DType          act, kv;

    /* the drafted run in progress */
    Drafter       *oracle;   /* of the current cell; `face` hands everything on to it */
    Drafter        face;
    Sum           *sum;
    int64_t        missing_widths;
    bool           is_mixed; /* each request names a method of its own, or none */
    char           first_fault[256];
} Verify;

/* ---- engines ---- */

/* Who drafts: nobody, the oracles behind `face`, or a drafter of the model's own. */
typedef struct Who {
    Drafter                *face;
    const SpeculativeConfig *config; /* NULL: not a drafter of its own */
} Who;

static Status open_own(Verify *v, const SpeculativeConfig *config, const Model *model, const ModelLimits *limits, EngineOptions *eo,
                       Drafter **out, Error *err)
{
    SpeculationShape shape;
    SpeculationOptions so = { .config = config, .model_dir = v->dir, .load_format = v->stack.load_format, .limits = *limits,
                              .max_model_len = eo->max_model_len };
    Status s = speculation_decide(&so, &model->info, &shape, err);
    eo->draft_nodes = shape.draft_nodes;
    eo->draft_depth = shape.draft_depth;
    return s ? s : speculation_open(out, &so, &shape, model, v->backend, err);
}

static Status open_engine(Verify *v, Who who, EngineOptions *eo, Engine **out, Error *err)
{
    Model *model = NULL;
    Drafter *drafter = who.face;
    int32_t rows = eo->max_num_batched_tokens;
    ModelOptions mo = stack_model_options(&v->stack);
    mo.limits = (ModelLimits){ .max_rows = rows, .max_outputs = rows, .max_seqs = eo->max_num_seqs,
                               .max_uncertain_rows = who.face || who.config ? eo->max_num_seqs * DRAFT_ROWS : 1 };
    Status s = model_open(&model, v->dir, v->backend, &mo, err);
    if (s) return s;
    v->vocab_size = model->info.vocab_size;
    v->act = model->info.act;
    v->kv = model->info.numerics.kv;
    snprintf(v->name, sizeof v->name, "%s", model->info.name);
    if (who.config) s = open_own(v, who.config, model, &mo.limits, eo, &drafter, err);
    if (!s) s = engine_open(out, model, v->backend, drafter, eo, err);
    if (!s) return OK;
    if (who.config) drafter_close(drafter);
    model_close(model);
    return s;
}

static EngineOptions engine_limits(const Verify *v, int32_t n_seqs, int32_t rows)
{
    int32_t longest = 0;
    for (int i = 0; i < v->n_prompts; i++)
        if (v->truth[i].n_prompt > longest) longest = v->truth[i].n_prompt;
    int32_t length = longest + GRID_MAX_TOKENS;
    int32_t blocks = (length + DRAFT_ROWS) / 16 + 2;
    return (EngineOptions){ .max_num_seqs = n_seqs, .max_num_batched_tokens = rows, .max_model_len = length,
                            .block_size = 16, .n_blocks = n_seqs * blocks, .max_waiting = GRID_BATCH };
}

/* The next method for each request, and once in a round nobody. */
static void name_method(const Engine *e, uint64_t number, GenerateRequest *g)
{
    int32_t n;
    const DraftMethod *methods = engine_methods(e, &n);
    uint64_t k = number % ((uint64_t)n + 1);
    g->no_speculation = k == (uint64_t)n;
    if (!g->no_speculation) snprintf(g->draft_method, sizeof g->draft_method, "%s", methods[k].name);
}

static Status submit(Verify *v, Engine *e, int prompt, uint64_t id, int32_t n_tokens, Request **out, Error *err)
{
    const Truth *t = &v->truth[prompt];
    GenerateRequest g = { .id = id, .prompt = t->prompt, .n_prompt = t->n_prompt, .n_choices = 1, .max_tokens = n_tokens,
                          .seed = v->key.seed + (uint64_t)prompt, .ignore_eos = true,
                          .params = { .temperature = v->temperature, .top_p = 1, .repetition_penalty = 1, .n_logprobs = 0 } };
    if (v->is_mixed) name_method(e, id / MAX_PROMPTS, &g);
    return engine_submit(e, &g, NULL, NULL, out, err);
}

/* Steps until all are done; a failed request is an error. */
static Status finish(Engine *e, Request **requests, int n, Error *err)
{
    Status s = OK;
    for (int i = 0; i < n; i++) {
        while (!request_done(requests[i]))
            if (!engine_step(e) && !request_done(requests[i]))
                return error_set(err, ERR_NUMERIC, "the engine stood still with an unfinished request");
        if (!s && request_finish(requests[i], 0) == FINISH_ERROR) s = request_error(requests[i], err);
    }
    return s;
}

/* ---- the plain side ---- */

static void keep_row(void *ctx, uint64_t id, int32_t choice, int32_t index, const float *logits, int32_t vocab, int32_t token)
{
    Truth *t = &((Verify *)ctx)->truth[id];
    int32_t at = index - t->n_prompt;
    t->tokens[at] = token;
    t->n_tokens = at + 1;
    memcpy(t->logits + (size_t)at * (size_t)vocab, logits, (size_t)vocab * sizeof *logits);
}

static Status run_plain(Verify *v, Error *err)
{
    Engine *e = NULL;
    EngineOptions eo = engine_limits(v, 1, 1);
    eo.prefill_chunk = 1;
    eo.hooks = (EngineHooks){ keep_row, v };
    Status s = open_engine(v, (Who){ NULL, NULL }, &eo, &e, err);
    for (int i = 0; !s && i < v->n_prompts; i++) {
        v->truth[i].logits = mem_alloc_array((size_t)GRID_MAX_TOKENS * (size_t)v->vocab_size, sizeof(float));
        if (!v->truth[i].logits) s = error_set(err, ERR_NOMEM, "no memory for the plain logits");
        Request *r = NULL;
        if (!s) s = submit(v, e, i, (uint64_t)i, GRID_MAX_TOKENS, &r, err);
        if (!s) s = finish(e, &r, 1, err);
        for (int32_t k = 0; !s && k < request_count(r, 0); k++) v->truth[i].logprobs[k] = request_logprobs(r, 0)[k].logprob;
        if (r) request_close(r);
    }
    engine_close(e);
    return s;
}

/* ---- the drafted side ---- */

static int prompt_of(uint64_t id)
{
    return (int)(id % MAX_PROMPTS);
}

static int32_t oracle_truth(void *ctx, uint64_t id, int32_t choice, int32_t index, const int32_t **tokens)
{
    const Truth *t = &((Verify *)ctx)->truth[prompt_of(id)];
    int32_t at = index - t->n_prompt;
    if (at < 0 || at >= t->n_tokens) return 0;
    *tokens = t->tokens + at;
    return t->n_tokens - at;
}

static void compare_row(void *ctx, uint64_t id, int32_t choice, int32_t index, const float *logits, int32_t vocab, int32_t token)
{
    Verify *v = ctx;
    const Truth *t = &v->truth[prompt_of(id)];
    int32_t at = index - t->n_prompt;
    bool same_token = at >= 0 && at < t->n_tokens && t->tokens[at] == token;
    bool same_bits = at >= 0 && at < t->n_tokens &&
                     !memcmp(t->logits + (size_t)at * (size_t)vocab, logits, (size_t)vocab * sizeof *logits);
    v->sum->positions++;
    v->sum->token_faults += !same_token;
    v->sum->logit_faults += !same_bits;
    if ((same_token && same_bits) || v->first_fault[0]) return;
    snprintf(v->first_fault, sizeof v->first_fault, "prompt %d, token %d: %s differ", prompt_of(id), at,
             same_bits ? "tokens" : "logits");
}

static void compare_logprobs(Verify *v, const Request *r, int prompt)
{
    for (int32_t k = 0; k < request_count(r, 0); k++) {
        if (!memcmp(&v->truth[prompt].logprobs[k], &request_logprobs(r, 0)[k].logprob, sizeof(float))) continue;
        v->sum->logprob_faults++;
        if (!v->first_fault[0]) snprintf(v->first_fault, sizeof v->first_fault, "prompt %d, token %d: log-probabilities differ", prompt, k);
    }
}

static void face_begin(Drafter *d, int32_t slot, uint64_t id, int32_t choice)
{
}
static void face_observe(Drafter *d, Stream *st, const Batch *b, const Accepted *a, int n)
{
}
static void face_forget(Drafter *d, int32_t slot)
{
}
static void face_close(Drafter *d)
{
}
static Status face_fits(const Drafter *d, const ModelInfo *target, Error *err)
{
    return OK;
}
static int face_groups(const Drafter *d, CacheGroup out[MAX_GROUPS])
{
    return 0;
}
static Verify *face_owner(Drafter *d)
{
    return (Verify *)((char *)d - offsetof(Verify, face));
}
static Status face_draft(Drafter *d, Stream *st, DraftJob *jobs, int n, Error *err)
{
    Drafter *oracle = face_owner(d)->oracle;
    return oracle->draft(oracle, st, jobs, n, err);
}

/* The width must have been seen by the kernels: alone it is a whole pass, in a batch the rows of a sequence. */
static void check_width(Verify *v, const GridCell *c, const RowCounts *seen)
{
    bool ran = seen->attention[c->n_rows] > 0 && (c->batch > 1 || (seen->embed[c->n_rows] > 0 && seen->linear[c->n_rows] > 0));
    if (ran) return;
    v->missing_widths++;
    if (!v->first_fault[0])
        snprintf(v->first_fault, sizeof v->first_fault, "no pass of %d rows reached the kernels (%s, p %.1f, batch %d)", c->n_rows,
                 c->chain ? "chain" : "tree", c->p, c->batch);
}

/* Runs the requests of a cell and compares all that they emit. */
static Status run_requests(Verify *v, Engine *e, const GridCell *c, int number, RowCounts *total, Error *err)
{
    Request *requests[GRID_BATCH] = { NULL };
    Stream *st = backend_stream(v->backend);
    RowCounts *seen = stream_row_counts(st);
    Status s = OK;
    stream_use_workers(st, c->workers);
    memset(seen, 0, sizeof *seen);
    uint64_t steps = engine_stats(e).steps;
    for (int i = 0; !s && i < c->batch; i++) {
        int prompt = (number + i) % v->n_prompts;
        s = submit(v, e, prompt, (uint64_t)(number * GRID_BATCH + i) * MAX_PROMPTS + (uint64_t)prompt, c->n_tokens, &requests[i], err);
    }
    if (!s) s = finish(e, requests, c->batch, err);
    v->sum->cells++;
    v->sum->passes += (int64_t)(engine_stats(e).steps - steps);
    if (!s && c->n_rows) check_width(v, c, seen);
    for (int i = 0; !s && i < c->batch; i++) compare_logprobs(v, requests[i], (number + i) % v->n_prompts);
    for (size_t i = 0; i < sizeof *seen / sizeof(uint64_t); i++) ((uint64_t *)total)[i] += ((uint64_t *)seen)[i];
    for (int i = 0; i < c->batch; i++) {
        if (!requests[i]) continue;
        v->sum->accepted += request_timings(requests[i]).accepted_tokens;
        request_close(requests[i]);
    }
    return s;
}

static Status run_cell(Verify *v, Engine *e, const GridCell *c, int number, RowCounts *total, Error *err)
{
    OracleOptions oo = { .p = c->p, .n_nodes = c->n_rows, .chain = c->chain, .max_depth = MAX_DEPTH - 1,
                         .seed = (uint64_t)number, .vocab_size = v->vocab_size, .truth = oracle_truth, .truth_ctx = v };
    Status s = drafter_open_oracle(&v->oracle, &oo, err);
    if (!s) s = run_requests(v, e, c, number, total, err);
    drafter_close(v->oracle);
    v->oracle = NULL;
    return s;
}

static EngineOptions drafted_limits(Verify *v, int32_t chunk)
{
    EngineOptions eo = engine_limits(v, GRID_BATCH, PASS_ROWS);
    eo.prefill_chunk = chunk;
    eo.draft_nodes = DRAFT_ROWS;
    eo.draft_depth = MAX_DEPTH - 1;
    eo.hooks = (EngineHooks){ compare_row, v };
    return eo;
}

static Status open_drafted(Verify *v, int32_t chunk, Engine **e, Error *err)
{
    EngineOptions eo = drafted_limits(v, chunk);
    v->face = (Drafter){ .name = "oracle", .fits = face_fits, .groups = face_groups, .begin = face_begin,
                         .observe = face_observe, .draft = face_draft, .forget = face_forget, .close = face_close };
    return open_engine(v, (Who){ &v->face, NULL }, &eo, e, err);
}

/* ---- the model's own drafters: their widths are what they are, so only equality is at stake. auto: all at once, every
 * other time each request by a method of its own, else by whatever the controller likes ---- */

static const SpecMethod own_methods[] = { SPEC_NGRAM, SPEC_MTP, SPEC_DFLASH, SPEC_DDTREE, SPEC_AUTO };
enum { N_OWN = 5, N_SUMS = 6 + N_OWN, ALONE_RUNS = 3, BATCH_RUNS = 2 };

static Status run_own(Verify *v, SpecMethod method, int number, RowCounts *total, Error *err)
{
    static const int32_t chunks[] = { 0, 1, 3, 64 };
    SpeculativeConfig config = { .method = method };
    Status s = OK;
    for (int i = 0; !s && i < COUNT(chunks) && !command_interrupted(); i++) {
        Engine *e = NULL;
        EngineOptions eo = drafted_limits(v, chunks[i]);
        v->is_mixed = method == SPEC_AUTO && i % 2 == 0;
        eo.adapts_drafts = method == SPEC_AUTO && i % 2 == 1;
        s = open_engine(v, (Who){ NULL, &config }, &eo, &e, err);
        for (int batch = 1; !s && batch <= GRID_BATCH; batch += GRID_BATCH - 1) {
            GridCell c = { .batch = batch, .chunk = chunks[i], .workers = 1 + (i + batch) % MAX_WORKERS, .n_tokens = GRID_MAX_TOKENS };
            for (int first = 0; !s && first < (batch == 1 ? ALONE_RUNS : BATCH_RUNS); first++) s = run_requests(v, e, &c, number + 10 * i + first, total, err);
        }
        engine_close(e);
    }
    v->is_mixed = false;
    return s;
}

/* Those that the model has; for one that it has not, the reason is not ours to report. */
static Status run_own_drafters(Verify *v, Sum sums[N_SUMS], RowCounts *total, Error *err)
{
    Status s = OK;
    ModelConfig config;
    ModelInfo info;
    ModelOptions mo = stack_model_options(&v->stack);
    s = model_info(v->dir, &mo, &config, &info, err);
    for (int k = 0; !s && k < N_OWN; k++) {
        SpeculativeConfig wanted = { .method = own_methods[k] };
        SpeculationOptions so = { .config = &wanted, .model_dir = v->dir, .load_format = v->stack.load_format, .max_model_len = 1024,
                                  .limits = { PASS_ROWS, PASS_ROWS, GRID_BATCH, GRID_BATCH * DRAFT_ROWS } };
        SpeculationShape shape;
        DrafterNeeds needs;
        Error why = { 0 };
        if (speculation_decide(&so, &info, &shape, &why) || speculation_needs(&so, &shape, &info, &needs, &why)) continue;
        v->sum = &sums[6 + k];
        s = run_own(v, own_methods[k], GRID_MAX_CELLS + 100 * k, total, err);
    }
    if (!s && command_interrupted()) s = error_set(err, ERR_CANCELLED, "interrupted before the drafters were done");
    return s;
}

/* ---- prompts ---- */

static Status add_prompt(Verify *v, const Tokenizer *t, TokenizerScratch *scratch, const char *text, Error *err)
{
    int64_t n = 0, capacity = 0;
    Truth *truth = &v->truth[v->n_prompts];
    Status s = tokenizer_encode(t, scratch, text, strlen(text), false, 1 << 16, &truth->prompt, &n, &capacity, err);
    if (!s && n == 0) s = error_set(err, ERR_INPUT, "prompt %d is empty", v->n_prompts);
    truth->n_prompt = (int32_t)n;
    if (!s) v->n_prompts++;
    return s;
}

static Status add_prompts(Verify *v, const Tokenizer *t, TokenizerScratch *scratch, Error *err)
{
    json_t *list = NULL;
    Status s = OK;
    if (!v->options->prompts) {
        for (int i = 0; !s && i < COUNT(builtin_prompts); i++) s = add_prompt(v, t, scratch, builtin_prompts[i], err);
        return s;
    }
    s = json_parse_file(&list, v->options->prompts, 64 << 20, err);
    if (!s && (!json_is_array(list) || !json_array_size(list)))
        s = error_set(err, ERR_INPUT, "%s must hold a JSON array of strings", v->options->prompts);
    for (size_t i = 0; !s && i < json_array_size(list) && v->n_prompts < MAX_PROMPTS; i++) {
        const char *text = json_string_value(json_array_get(list, i));
        s = text ? add_prompt(v, t, scratch, text, err) : error_set(err, ERR_INPUT, "%s: item %zu is not a string", v->options->prompts, i);
    }
    json_decref(list);
    return s;
}

static Status read_prompts(Verify *v, Error *err)
{
    char cache[4096];
    Tokenizer *t = NULL;
    TokenizerScratch *scratch = NULL;
    tokenizer_default_cache_dir(cache, sizeof cache);
    Status s = tokenizer_open(&t, v->dir, cache[0] ? cache : NULL, err);
    if (!s) s = tokenizer_scratch_open(&scratch, t, err);
    if (!s) s = add_prompts(v, t, scratch, err);
    tokenizer_scratch_close(scratch);
    tokenizer_close(t);
    return s;
}

/* ---- the report ---- */

static const char *const p_names[] = { "0", "0.5", "1" };

static int group_of(const GridCell *c)
{
    return (c->chain ? 0 : 3) + (c->p == 0 ? 0 : c->p < 1 ? 1 : 2);
}

static void print_counts(const char *what, const uint64_t *counts)
{
    printf("  %-22s", what);
    for (int n = 0; n <= COUNT_ROWS_MAX; n++)
        if (counts[n] && (n <= 17 || (n >= 31 && n <= 33) || (n >= 63 && n <= 65))) printf(" %d:%llu", n, (unsigned long long)counts[n]);
    putchar('\n');
}

static Sum print_table(const Sum sums[N_SUMS], const RowCounts *total)
{
    Sum all = { 0 };
    printf("  drafts   acceptance   cells   passes   positions   accepted   tokens differ   logit rows differ   logprobs differ\n");
    for (int g = 0; g < N_SUMS; g++) {
        const Sum *s = &sums[g];
        if (!s->cells) continue;
        printf("  %-8s %-10s %7lld %8lld %11lld %10lld %15lld %19lld %17lld\n",
               g < 3 ? "chain" : g < 6 ? "tree" : spec_method_name(own_methods[g - 6]), g < 6 ? p_names[g % 3] : "its own", (long long)s->cells,
               (long long)s->passes, (long long)s->positions, (long long)s->accepted, (long long)s->token_faults, (long long)s->logit_faults,
               (long long)s->logprob_faults);
        all.cells += s->cells;
        all.passes += s->passes;
        all.positions += s->positions;
        all.token_faults += s->token_faults;
        all.logit_faults += s->logit_faults;
        all.logprob_faults += s->logprob_faults;
    }
    printf("rows counted in the kernels (rows:calls)\n");
    print_counts("a pass (embed)", total->embed);
    print_counts("a matrix (linear)", total->linear);
    print_counts("a sequence (attention)", total->attention);
    print_counts("a sequence (gdn)", total->recurrent);
    return all;
}

static Status run_grid(Verify *v, Sum sums[N_SUMS], RowCounts *total, Error *err)
{
    GridCell *cells = mem_alloc_array(GRID_MAX_CELLS, sizeof *cells);
    if (!cells) return error_set(err, ERR_NOMEM, "no memory for the grid");
    int n = grid_cells(v->options->full ? GRID_FULL : v->options->quick ? GRID_QUICK : GRID_DEFAULT, cells);
    Engine *e = NULL;
    Status s = OK;
    for (int i = 0; !s && i < n && !command_interrupted(); i++) {
        if (!i || cells[i].chunk != cells[i - 1].chunk) {
            engine_close(e);
            e = NULL;
            s = open_drafted(v, cells[i].chunk, &e, err);
        }
        v->sum = &sums[group_of(&cells[i])];
        if (!s) s = run_cell(v, e, &cells[i], i, total, err);
    }
    engine_close(e);
    mem_free(cells);
    if (!s && command_interrupted()) s = error_set(err, ERR_CANCELLED, "interrupted before the grid was complete");
    return s;
}

static Status verify(Verify *v, Error *err)
{
    Sum sums[N_SUMS] = { { 0 } };
    RowCounts *total = mem_alloc(sizeof *total);
    if (!total) return error_set(err, ERR_NOMEM, "no memory for the counters");
    double start = clock_ms();
    Status s = run_plain(v, err);
    double plain = clock_ms();
    if (!s)
        printf("tandem verify %s: %s, %s, cache %s, %s, temperature %g; plain: %d prompts, %d tokens each, one row a pass (%.1f s)\n", v->options->model,
               v->name, dtype_name(v->act), dtype_name(v->kv), backend_variant(v->backend), v->temperature, v->n_prompts, GRID_MAX_TOKENS,
               (plain - start) / 1e3);
    if (!s) s = run_grid(v, sums, total, err);
    if (!s) s = run_own_drafters(v, sums, total, err);
    if (!s) {
        Sum all = print_table(sums, total);
        int64_t faults = all.token_faults + all.logit_faults + all.logprob_faults;
        printf("%lld positions in %.1f s: %s\n", (long long)all.positions, (clock_ms() - plain) / 1e3,
               faults || v->missing_widths ? "NOT EQUAL" : "every token, logit bit and log-probability equal");
        if (faults || v->missing_widths)
            s = error_set(err, ERR_NUMERIC, "of %lld positions %lld tokens, %lld logit rows and %lld log-probabilities differ, %lld widths did not run; first: %s",
                          (long long)all.positions, (long long)all.token_faults, (long long)all.logit_faults,
                          (long long)all.logprob_faults, (long long)v->missing_widths, v->first_fault);
    }
    mem_free(total);
    return s;
}

Status command_verify(const Options *o, Error *err)
{
    Verify *v = mem_alloc(sizeof *v);
    if (!v) return error_set(err, ERR_NOMEM, "no memory to verify");
    v->options = o;
    v->temperature = o->temperature >= 0 ? (float)o->temperature : 0;
    v->key.seed = 20260101;
    Status s = command_stack_options(o, &v->stack, err);
    v->stack.backend.n_workers = MAX_WORKERS;
    if (!s) s = model_find(o->model, v->dir, sizeof v->dir, err);
    if (!s) s = read_prompts(v, err);
    if (!s) s = backend_open(&v->backend, &v->stack.backend, err);
    command_catch_interrupt();
    numeric_mode_enter();
    if (!s) s = verify(v, err);
    backend_close(v->backend);
    for (int i = 0; i < MAX_PROMPTS; i++) {
        mem_free(v->truth[i].prompt);
        mem_free(v->truth[i].logits);
    }
    mem_free(v);
    return s;
}
