/* Memory plan.
 *
 *     lasting = weights + drafter + scratch + pass + states * slots + tables + host  +  (n_blocks + 1) * block bytes
 *               └─────────────────── fixed(length) ───────────────────────────────┘     └── grows with the context ──┘
 *     total   = lasting + requests
 *
 * lasting is what the process holds once everything was used: memory is reserved at the start and becomes resident when it is
 * first touched, so a young server holds less and an idle one this much. requests is a bound that only live ones use.
 *
 * What may be used is a fraction of what is available. A length that was asked for is kept or refused; one that was not is
 * the model's own, cut to what fits. Blocks: room for every sequence at full length if that fits, else what is left, but
 * at least one full sequence, which is what the scheduler's promise of progress rests on.
 *
 * A refusal looks for the flag that helps by planning again with a smaller (or larger) value: context, sequences, rows,
 * fraction, in this order. plan_show.c writes plans out. */
#include "engine/plan.h"

#include "backend/needs.h"
#include "base/memory.h"
#include "cache/block_table.h"
#include "cache/group_memory.h"
#include "engine/batch_builder.h"
#include "engine/drafts.h"

#include <math.h>
#include <stdio.h>

enum { DEFAULT_SEQS = 8, DEFAULT_ROWS = 512, DEFAULT_BLOCK = 16, DEFAULT_WAITING = 128 };
enum { MIN_OUTPUTS = 64 }; /* so that scoring a prompt does not crawl */
/* Measured: what is touched of a thread's stack; a front worker's buffers; the program, its libraries and heap. */
enum { STACK_BYTES = 64 << 10, FRONT_BYTES = 512 << 10, PROGRAM_BYTES = 10 << 20 };
enum { MIN_LENGTH = 256 }; /* a shorter context is not proposed, nor chosen unless the model has no more */

static const size_t MB = (size_t)1 << 20;
static const double max_fraction = 0.97;

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

ModelLimits plan_limits(const EngineOptions *o)
{
    int64_t rows = o->max_num_batched_tokens, nodes = larger(o->draft_nodes, 1), drafted = o->max_num_seqs * nodes;
    return (ModelLimits){ .max_rows = (int32_t)rows,
                          .max_seqs = o->max_num_seqs,
                          .max_outputs = (int32_t)smaller(rows, larger(drafted, MIN_OUTPUTS)),
                          .max_uncertain_rows = nodes > 1 ? (int32_t)smaller(rows, drafted) : 1 };
}

size_t plan_request_bytes(const EngineOptions *o)
{
    if (o->max_request_bytes) return o->max_request_bytes;
    size_t one = (size_t)o->max_model_len * sizeof(int32_t) + 8192; /* ids, and the request itself */
    size_t all = one * ((size_t)o->max_waiting + (size_t)o->max_num_seqs);
    return all < 64 * MB ? 64 * MB : all > 1024 * MB ? 1024 * MB : all;
}

/* ---- counting ---- */

typedef struct Needs {
    ModelNeeds   model;
    DrafterNeeds drafter;
} Needs;

static int64_t blocks_for(int64_t n_tokens, int32_t block_size)
{
    return (n_tokens + block_size - 1) / block_size;
}

/* A bound, not a need: on a small machine it gives way to the model. */
static size_t request_share(Plan *p, const PlanInput *in)
{
    p->engine.max_request_bytes = in->engine.max_request_bytes;
    size_t bytes = plan_request_bytes(&p->engine), eighth = p->budget_bytes / 8, share = eighth > 4 * MB ? eighth : 4 * MB;
    if (!in->engine.max_request_bytes && bytes > share) bytes = share;
    return p->engine.max_request_bytes = bytes;
}

/* What whole pages add to n groups. */
static size_t group_pages(const CacheGroup *groups, int n, const EngineOptions *o)
{
    CacheShape shape = { o->max_num_seqs, o->n_blocks, o->block_size };
    size_t sum = 0;
    for (int i = 0; i < n; i++) {
        size_t bytes = group_bytes(&groups[i], &shape);
        sum += backend_held(bytes) - bytes;
    }
    return sum;
}

/* What whole pages add to everything, with the blocks in p->engine. */
static size_t rounding(const Plan *p, const Needs *needs, const PlanInput *in)
{
    if (in->host.is_device) return 0;
    return needs->model.page_bytes + backend_held(p->scratch_bytes) - p->scratch_bytes + backend_held(p->pass_bytes) - p->pass_bytes +
           group_pages(needs->model.groups, needs->model.n_groups, &p->engine) +
           group_pages(needs->drafter.groups, needs->drafter.n_groups, &p->engine);
}

static size_t host_bytes(Plan *p, const PlanHost *h)
{
    p->n_workers = h->n_workers;
    if (h->is_device || h->n_workers == 0) return 0;
    p->worker_bytes = h->worker_bytes + (size_t)h->n_workers * STACK_BYTES;
    p->text_bytes = h->text_bytes + (size_t)h->n_fronts * FRONT_BYTES;
    p->program_bytes = PROGRAM_BYTES;
    return p->worker_bytes + p->text_bytes + p->program_bytes;
}

/* Everything but the blocks and pages, for the length and options in p->engine. */
static size_t fixed_bytes(Plan *p, const Needs *needs, const PlanInput *in)
{
    const EngineOptions *o = &p->engine;
    BlockTableShape shape = { o->max_num_seqs, o->n_blocks, o->block_size,
                              o->max_model_len + drafts_max_entries(&in->drafter, o) };
    p->weight_bytes = needs->model.weight_bytes;
    p->scratch_bytes = needs->model.scratch_bytes;
    p->pass_bytes = batch_builder_bytes(&p->limits, p->config.vocab_size, p->config.hidden_size, &in->drafter);
    p->drafter_bytes = needs->drafter.bytes + (o->draft_nodes > 1 ? drafts_bytes(o) : 0);
    p->state_bytes = (size_t)o->max_num_seqs * (groups_slot_bytes(needs->model.groups, needs->model.n_groups) +
                                                groups_slot_bytes(needs->drafter.groups, needs->drafter.n_groups));
    p->table_bytes = block_table_bytes(&shape);
    p->request_bytes = request_share(p, in);
    return p->weight_bytes + p->scratch_bytes + p->drafter_bytes + p->pass_bytes + p->state_bytes + p->table_bytes +
           host_bytes(p, &in->host) + p->request_bytes;
}

/* Blocks for the length in p->engine, as many as are wanted and fit; false when not even one sequence fits. */
static bool fit_blocks(Plan *p, const Needs *needs, const PlanInput *in)
{
    EngineOptions *o = &p->engine;
    int64_t least = blocks_for(o->max_model_len, o->block_size);
    int64_t wanted = in->engine.n_blocks
                         ? in->engine.n_blocks
                         : o->max_num_seqs * blocks_for((int64_t)o->max_model_len + o->draft_nodes, o->block_size);
    wanted = smaller(wanted, INT32_MAX / o->block_size - 1);
    p->block_bytes = groups_block_bytes(needs->model.groups, needs->model.n_groups, o->block_size) +
                     groups_block_bytes(needs->drafter.groups, needs->drafter.n_groups, o->block_size);
    o->n_blocks = (int32_t)wanted;
    size_t fixed = fixed_bytes(p, needs, in);
    p->page_bytes = rounding(p, needs, in);
    size_t most = fixed + p->page_bytes; /* other blocks end on other pages: up to 2 MB more a group */
    if (!in->host.is_device) most += (size_t)(needs->model.n_groups + needs->drafter.n_groups) * 2 * MB;
    size_t left = p->budget_bytes > most ? p->budget_bytes - most : 0;
    int64_t room = (int64_t)(left / (p->block_bytes ? p->block_bytes : 1)) - 1; /* one is the dump block */
    if (!in->engine.n_blocks) o->n_blocks = (int32_t)larger(smaller(wanted, room), least);
    p->token_cache_bytes = ((size_t)o->n_blocks + 1) * p->block_bytes;
    p->page_bytes = rounding(p, needs, in);
    p->total_bytes = fixed + p->token_cache_bytes + p->page_bytes;
    p->lasting_bytes = p->total_bytes - p->request_bytes;
    return o->n_blocks >= least && p->total_bytes <= p->budget_bytes;
}

/* The longest context up to `most` for which fit_blocks holds, in whole blocks; 0 = none that is worth it. */
static int32_t longest_fit(Plan *p, const Needs *needs, const PlanInput *in, int32_t most)
{
    int32_t size = p->engine.block_size, low = 0, high = most / size;
    while (low < high) {
        int32_t mid = low + (high - low + 1) / 2;
        p->engine.max_model_len = mid * size;
        if (fit_blocks(p, needs, in))
            low = mid;
        else
            high = mid - 1;
    }
    return low * size >= smaller(MIN_LENGTH, most) ? low * size : 0;
}

static void fill_defaults(EngineOptions *o)
{
    if (!o->max_num_seqs) { /* a pass has a row for each */
        bool is_small = o->max_num_batched_tokens > 0 && o->max_num_batched_tokens < DEFAULT_SEQS;
        o->max_num_seqs = is_small ? o->max_num_batched_tokens : DEFAULT_SEQS;
    }
    if (!o->max_num_batched_tokens) o->max_num_batched_tokens = (int32_t)larger(DEFAULT_ROWS, o->max_num_seqs);
    if (!o->block_size) o->block_size = DEFAULT_BLOCK;
    if (!o->max_waiting) o->max_waiting = DEFAULT_WAITING;
}

/* Fills *out; *fits says whether it may be used. */
static Status plan_try(Plan *out, const PlanInput *in, Needs *needs, bool *fits, Error *err)
{
    *out = (Plan){ .engine = in->engine,
                   .available_bytes = in->available_bytes,
                   .memory_fraction = in->memory_fraction };
    out->budget_bytes = (size_t)((double)in->available_bytes * in->memory_fraction);
    fill_defaults(&out->engine);
    out->limits = plan_limits(&out->engine);
    ModelOptions model = in->model;
    model.limits = out->limits;
    Status s = model_needs(in->dir, &model, &needs->model, &out->config, err);
    if (s) return s;
    needs->drafter = in->drafter;

    int32_t own = (int32_t)smaller(out->config.max_position, INT32_MAX / 2), asked = in->engine.max_model_len;
    if (asked > own)
        return error_set_param(err, ERR_USAGE, "--max-model-len",
                               "--max-model-len is %d, but this model was made for %d positions", asked, own);
    out->engine.max_model_len = asked ? asked : own;
    *fits = fit_blocks(out, needs, in);
    if (*fits || asked) return OK;
    int32_t length = longest_fit(out, needs, in, own);
    out->engine.max_model_len = length ? length : own;
    *fits = fit_blocks(out, needs, in);
    return OK;
}

/* ---- refusing ---- */

typedef struct Help {
    char flag[32], value[32];
} Help;

static bool fits_with(const PlanInput *in)
{
    Plan plan;
    Needs needs;
    bool fits = false;
    return plan_try(&plan, in, &needs, &fits, NULL) == OK && fits;
}

static bool help_length(const PlanInput *in, const Plan *refused, const Needs *needs, Help *out)
{
    Plan trial = *refused;
    PlanInput free_blocks = *in;
    free_blocks.engine.n_blocks = 0;
    int32_t length = longest_fit(&trial, needs, &free_blocks, refused->engine.max_model_len);
    *out = (Help){ .flag = "--max-model-len" };
    snprintf(out->value, sizeof out->value, "%d", length);
    return length > 0;
}

/* Halves *value, a field of *trial, until the plan fits. */
static bool help_halving(PlanInput *trial, int32_t *value, int32_t least, const char *flag, Help *out)
{
    *out = (Help){ 0 };
    snprintf(out->flag, sizeof out->flag, "%s", flag);
    while (*value / 2 >= least) {
        *value /= 2;
        if (!fits_with(trial)) continue;
        snprintf(out->value, sizeof out->value, "%d", *value);
        return true;
    }
    return false;
}

static bool help_fraction(PlanInput *trial, const Plan *refused, Help *out)
{
    *out = (Help){ .flag = "--gpu-memory-utilization" };
    double wanted = (double)refused->total_bytes / (double)(refused->available_bytes ? refused->available_bytes : 1);
    trial->memory_fraction = ceil(wanted * 100) / 100;
    snprintf(out->value, sizeof out->value, "%.2f", trial->memory_fraction);
    return trial->memory_fraction <= max_fraction && fits_with(trial);
}

static bool find_help(const PlanInput *in, const Plan *refused, const Needs *needs, Help *out)
{
    if (help_length(in, refused, needs, out)) return true;
    PlanInput trial = *in;
    trial.engine.max_num_seqs = refused->engine.max_num_seqs;
    if (help_halving(&trial, &trial.engine.max_num_seqs, 1, "--max-num-seqs", out)) return true;
    trial = *in;
    trial.engine.max_num_batched_tokens = refused->engine.max_num_batched_tokens;
    if (help_halving(&trial, &trial.engine.max_num_batched_tokens, (int32_t)larger(refused->engine.max_num_seqs, 16),
                     "--max-num-batched-tokens", out))
        return true;
    trial = *in;
    return help_fraction(&trial, refused, out);
}

/* "123 MB", "12.3 GB" */
typedef struct SizeText {
    char text[32];
} SizeText;
static SizeText size_text(size_t bytes)
{
    SizeText t;
    double mb = (double)bytes / (double)MB;
    if (mb < 10000)
        snprintf(t.text, sizeof t.text, "%.0f MB", mb);
    else
        snprintf(t.text, sizeof t.text, "%.1f GB", mb / 1024);
    return t;
}

static Status refuse(const PlanInput *in, const Plan *p, const Needs *needs, Error *err)
{
    Help help;
    char advice[128] = "no flag makes it fit: a smaller model is needed";
    bool has_help = find_help(in, p, needs, &help);
    if (has_help) snprintf(advice, sizeof advice, "%s %s would fit", help.flag, help.value);
    size_t caches = p->token_cache_bytes + p->state_bytes;
    return error_set_param(
        err, ERR_PLAN, has_help ? help.flag : "",
        "%s with a context of %d tokens needs %s of %smemory (weights %s, caches %s, the rest %s) and may use %s, "
        "%.0f %% of the %s available; %s",
        in->dir, p->engine.max_model_len, size_text(p->total_bytes).text, in->host.is_device ? "the device's " : "", size_text(p->weight_bytes).text,
        size_text(caches).text, size_text(p->total_bytes - p->weight_bytes - caches).text,
        size_text(p->budget_bytes).text, p->memory_fraction * 100, size_text(p->available_bytes).text, advice);
}

Status plan_make(Plan *out, const PlanInput *input, Error *err)
{
    PlanInput in = *input;
    Needs needs;
    bool fits = false;
    if (!in.available_bytes) in.available_bytes = plan_available();
    if (!(in.memory_fraction > 0)) in.memory_fraction = 0.9;
    Status s = plan_try(out, &in, &needs, &fits, err);
    return s || fits ? s : refuse(&in, out, &needs, err);
}
