/* Drafting in rounds:
 *
 *     features of accepted tokens ──feed──┐
 *     anchors ────────────────────────────┴──> one pass of the network ──logits of a few blocks at a time──> trees
 *
 * The block always runs with all its rows, whatever a job can use: fewer mask rows would change the guesses. Logits are
 * made only for rows that a job can use. A job whose slot has missed tokens, and one whose logits are broken, gets no
 * draft; the others do not notice. */
#include "speculation/draft_dflash.h"

#include "base/memory.h"
#include "speculation/dflash_feed.h"
#include "speculation/dflash_guess.h"

enum { DEFAULT_BUDGET = 64, MAX_LOGITS_BYTES = 64 << 20 };

typedef struct DflashDrafter {
    Drafter       face; /* first: the two are converted into one another */
    DflashOptions options;
    DraftMethod   methods[3];
    DdTreeShape   shapes[3]; /* of the methods that are trees */
    Dflash       *net;
    DflashFeed    feed;
    DflashGuess   guess;
    int32_t       max_outputs;

    /* Of a draft. */
    int32_t     *jobs;   /* [n_slots] which job each block serves */
    DflashBlock *blocks; /* [n_slots] */
    /* Of the blocks whose logits are computed together. */
    int32_t  *rows;                        /* [max_outputs] */
    int32_t  *candidate, *picked;          /* DFlash 2: [max_outputs][top_k], [max_outputs] */
    float    *candidate_logit, *noise;
    PickLine *lines;                       /* [n_slots] */
} DflashDrafter;

static const DraftMethod *method_of(const DflashDrafter *d, const DraftJob *job)
{
    CHECK(job->method >= 0 && job->method < d->face.n_methods);
    return &d->methods[job->method];
}

/* Rows behind the anchor that the job has a use for. */
static int32_t rows_wanted(const DflashDrafter *d, const DraftJob *job)
{
    int32_t n = dflash_block_size(d->net) - 1;
    int32_t nodes = (job->max_nodes < job->tree->max_nodes ? job->max_nodes : job->tree->max_nodes) - 1;
    if (n > job->max_depth) n = job->max_depth;
    return n < nodes ? n : nodes; /* no path of a tree is longer either */
}

/* ---- guesses of a few blocks: [first, end), whose logits lie one behind the other ---- */

static GuessRows rows_of(const DflashDrafter *d, const DraftJob *jobs, int32_t block, int32_t first_row)
{
    const DraftJob *job = &jobs[d->jobs[block]];
    return (GuessRows){ .first = first_row, .n = rows_wanted(d, job), .job = job };
}

static bool is_second(const DflashDrafter *d)
{
    return dflash_config(d->net)->conv_kernel > 0;
}

/* Says which way each block will guess. */
static void queue_guesses(DflashDrafter *d, Stream *st, const DraftJob *jobs, int32_t first, int32_t end, Tensor logits)
{
    dflash_guess_begin(&d->guess, logits);
    for (int32_t b = first, row = 0; b < end; b++) {
        GuessRows rows = rows_of(d, jobs, b, row);
        row += rows.n;
        if (is_second(d)) dflash_guess_add_candidates(&d->guess, rows, dflash_config(d->net)->selector_top_k);
        else if (method_of(d, rows.job)->is_tree) dflash_guess_add_tree(&d->guess, rows);
        else dflash_guess_add_chain(&d->guess, rows);
    }
    dflash_guess_queue(&d->guess, st);
}

/* Returns how many jobs were broken. */
static int32_t guess_plain(DflashDrafter *d, DraftJob *jobs, int32_t first, int32_t end)
{
    int32_t n_broken = 0;
    for (int32_t b = first, row = 0; b < end; b++) {
        GuessRows rows = rows_of(d, jobs, b, row);
        row += rows.n;
        DdTreeShape shape = d->shapes[rows.job->method];
        if (shape.budget > rows.job->max_nodes - 1) shape.budget = rows.job->max_nodes - 1;
        bool is_good = method_of(d, rows.job)->is_tree ? dflash_guess_tree(&d->guess, rows, shape) : dflash_guess_chain(&d->guess, rows);
        n_broken += !is_good;
    }
    return n_broken;
}

/* The same for DFlash 2, whose guesses follow one another. */
static int32_t guess_second(DflashDrafter *d, Stream *st, DraftJob *jobs, int32_t first, int32_t end)
{
    const int32_t k = dflash_config(d->net)->selector_top_k;
    int32_t n_broken = 0;
    for (int32_t b = first, row = 0; b < end; b++) {
        GuessRows rows = rows_of(d, jobs, b, row);
        size_t at = (size_t)row * (size_t)k;
        row += rows.n;
        float *noise = d->noise + at, temperature = dflash_guess_temperature(&d->guess, rows.job);
        int32_t n = dflash_guess_candidates(&d->guess, rows, k, d->candidate + at, d->candidate_logit + at, noise);
        n_broken += n < 0;
        d->lines[b - first] = (PickLine){ .first = rows.first, .n_rows = n > 0 ? n : 0, .anchor = rows.job->anchor,
                                          .temperature = temperature, .noise = temperature > 0 ? noise : NULL };
    }
    PickJob pick = { .n_lines = end - first, .k = k, .lines = d->lines, .candidate = d->candidate,
                     .logit = d->candidate_logit, .picked = d->picked };
    dflash_pick(d->net, st, &pick);
    stream_sync(st);
    for (int32_t b = first; b < end; b++) {
        const PickLine *line = &d->lines[b - first];
        for (int32_t i = 0, at = line->first; i < line->n_rows; i++, at++)
            tree_add(jobs[d->jobs[b]].tree, i, d->candidate[(size_t)at * (size_t)k + (size_t)d->picked[at]], 0);
    }
    return n_broken;
}

/* Trees for all blocks, as many at a time as there is room for logits. Returns how many jobs were broken. */
static int32_t guess_all(DflashDrafter *d, Stream *st, DraftJob *jobs, int32_t n_blocks)
{
    int32_t n_broken = 0;
    for (int32_t first = 0, end; first < n_blocks; first = end) {
        int32_t n_rows = 0;
        for (end = first; end < n_blocks; end++) {
            int32_t n = rows_wanted(d, &jobs[d->jobs[end]]);
            if (n_rows + n > d->max_outputs) break;
            for (int32_t i = 1; i <= n; i++) d->rows[n_rows++] = end * dflash_block_size(d->net) + i;
        }
        queue_guesses(d, st, jobs, first, end, dflash_logits(d->net, st, d->rows, n_rows));
        stream_sync(st);
        n_broken += is_second(d) ? guess_second(d, st, jobs, first, end) : guess_plain(d, jobs, first, end);
    }
    return n_broken;
}

/* ---- the drafter ---- */

static Status dflash_draft(Drafter *face, Stream *st, DraftJob *jobs, int n, Error *err)
{
    DflashDrafter *d = (DflashDrafter *)face;
    int32_t n_blocks = 0;
    CHECK(n <= d->options.n_slots);
    for (int i = 0; i < n; i++) {
        const DraftJob *job = &jobs[i];
        tree_start(job->tree, job->anchor);
        if (rows_wanted(d, job) < 1 || !dflash_feed_is_complete(&d->feed, job->slot, job->n_committed)) continue;
        d->jobs[n_blocks] = i;
        d->blocks[n_blocks++] =
            (DflashBlock){ .slot = job->slot, .anchor = job->anchor, .n_committed = job->n_committed };
    }
    if (n_blocks == 0) return OK;
    int32_t n_context = dflash_feed_gather(&d->feed, st, d->blocks, n_blocks);
    dflash_pass(d->net, st, d->feed.context, n_context, d->blocks, n_blocks);
    if (guess_all(d, st, jobs, n_blocks) < n_blocks) return OK;
    return error_set(err, ERR_NUMERIC, "the drafter's logits are not finite");
}

static void dflash_observe(Drafter *face, Stream *st, const Batch *batch, const Accepted *accepted, int n)
{
    DflashDrafter *d = (DflashDrafter *)face;
    if (!batch->features.data) return;
    int64_t hidden = dflash_config(d->net)->base.hidden_size;
    Tensor features = tensor_cols(batch->features, face->tap_column * hidden, face->n_taps * hidden);
    for (int i = 0; i < n; i++) dflash_feed_observe(&d->feed, st, batch, features, &accepted[i]);
}

static void dflash_begin(Drafter *face, int32_t slot, uint64_t request_id, int32_t choice)
{
    dflash_feed_begin(&((DflashDrafter *)face)->feed, slot);
}

static void dflash_forget(Drafter *face, int32_t slot)
{
    dflash_feed_forget(&((DflashDrafter *)face)->feed, slot);
}

static Status drafter_fits(const Drafter *face, const ModelInfo *target, Error *err)
{
    return dflash_fits(dflash_config(((const DflashDrafter *)face)->net), target, err);
}

static int dflash_groups(const Drafter *face, CacheGroup out[MAX_GROUPS])
{
    out[0] = dflash_group(((const DflashDrafter *)face)->net);
    return 1;
}

static void bind(Drafter *face, const CacheMemory memory[MAX_GROUPS])
{
    dflash_bind(((DflashDrafter *)face)->net, &memory[0]);
}

static void close_drafter(Drafter *face)
{
    DflashDrafter *d = (DflashDrafter *)face;
    dflash_guess_close(&d->guess);
    dflash_feed_close(&d->feed);
    dflash_close(d->net);
    void *arrays[] = { d->jobs, d->blocks, d->rows, d->candidate, d->picked, d->candidate_logit, d->noise, d->lines };
    for (int i = 0; i < COUNT(arrays); i++) mem_free(arrays[i]);
    mem_free(d);
}

/* ---- opening ---- */

static DflashOptions with_defaults(DflashOptions o)
{
    if (o.methods == 0) o.methods = DFLASH_CHAIN;
    if (o.tree_budget == 0) o.tree_budget = DEFAULT_BUDGET;
    return o;
}

static bool has_trees(const DflashOptions *o)
{
    return o->methods & (DFLASH_TREE | DFLASH_SPINE);
}

static Status options_check(const DflashOptions *o, Error *err)
{
    if (o->methods & ~(unsigned)(DFLASH_CHAIN | DFLASH_TREE | DFLASH_SPINE))
        return error_set(err, ERR_INPUT, "no such method of a DFlash drafter: %#x", o->methods);
    if (o->n_slots < 1) return error_set(err, ERR_INPUT, "a drafter for %d sequences is not possible", o->n_slots);
    if (o->tree_budget < 1 || o->tree_budget >= TREE_MAX_NODES)
        return error_set(err, ERR_INPUT, "a tree of %d nodes is not possible: 1 to %d are", o->tree_budget,
                         TREE_MAX_NODES - 1);
    return OK;
}

/* Rows whose logits are computed together: a whole block at least, all of them if they are small. */
static int32_t outputs_for(const DflashOptions *o, int32_t vocab_size)
{
    int64_t block = DFLASH_MAX_BLOCK - 1, wanted = block * o->n_slots;
    int64_t fit = MAX_LOGITS_BYTES / ((int64_t)vocab_size * (int64_t)sizeof(float));
    return (int32_t)(wanted < fit ? wanted : fit < block ? block : fit);
}

static DflashSetup setup_for(const DflashOptions *o, const ModelInfo *target)
{
    return (DflashSetup){ .load_format = o->load_format,
                          .dummy_seed = o->dummy_seed,
                          .block_size = o->block_size,
                          .sliding_is_free = o->sliding_is_free,
                          .max_context = FEED_MAX_CONTEXT,
                          .max_blocks = o->n_slots,
                          .max_outputs = outputs_for(o, target->vocab_size) };
}

static void add_method(DflashDrafter *d, DflashMethod which, const char *name)
{
    if (!(d->options.methods & which)) return;
    int32_t i = d->face.n_methods++, budget = d->options.tree_budget, block = dflash_block_size(d->net);
    bool is_tree = which != DFLASH_CHAIN;
    d->methods[i] = (DraftMethod){ .name = name, .is_tree = is_tree, .max_nodes = is_tree ? budget + 1 : block,
                                   .max_depth = block - 1, .expected_first = 0.08f,
                                   .fingerprint = dflash_fingerprint(d->net) };
    d->shapes[i] = (DdTreeShape){ .budget = budget, .spine_first = which == DFLASH_SPINE };
}

static bool take_arrays(DflashDrafter *d)
{
    size_t n_slots = (size_t)d->options.n_slots, n_rows = (size_t)d->max_outputs;
    size_t n_candidates = n_rows * (size_t)dflash_config(d->net)->selector_top_k;
    d->jobs = mem_alloc_array(n_slots, sizeof *d->jobs);
    d->blocks = mem_alloc_array(n_slots, sizeof *d->blocks);
    d->rows = mem_alloc_array(n_rows, sizeof *d->rows);
    if (!d->jobs || !d->blocks || !d->rows) return false;
    if (n_candidates == 0) return true;
    d->candidate = mem_alloc_array(n_candidates, sizeof *d->candidate);
    d->candidate_logit = mem_alloc_array(n_candidates, sizeof *d->candidate_logit);
    d->noise = mem_alloc_array(n_candidates, sizeof *d->noise);
    d->picked = mem_alloc_array(n_rows, sizeof *d->picked);
    d->lines = mem_alloc_array(n_slots, sizeof *d->lines);
    return d->candidate && d->candidate_logit && d->noise && d->picked && d->lines;
}

static Status no_trees(const DflashOptions *o, Error *err)
{
    return error_set(err, ERR_UNSUPPORTED, "%s is a DFlash 2 drafter, which drafts chains (\"dflash\") and no trees", o->dir);
}

static Status open_parts(DflashDrafter *d, Error *err)
{
    const DflashOptions *o = &d->options;
    const ModelInfo *target = &o->target->info;
    DflashSetup setup = setup_for(o, target);
    d->max_outputs = setup.max_outputs;
    Status s = dflash_open(&d->net, o->dir, o->target, o->backend, &setup, err);
    if (s) return s;
    const DflashConfig *c = dflash_config(d->net);
    if (c->conv_kernel > 0 && has_trees(o)) return no_trees(o, err);
    int32_t n_usable = c->selector_vocab ? c->selector_vocab : c->base.vocab_size;
    s = dflash_feed_open(&d->feed, d->net, o->backend, target->act, o->n_slots, err);
    DflashGuessSizes sizes = { .vocab_size = c->base.vocab_size, .n_usable = n_usable, .max_rows = d->max_outputs,
                               .tree_budget = has_trees(o) ? o->tree_budget : 0, .top_k = c->selector_top_k,
                               .is_uncoupled = o->is_uncoupled };
    if (!s) s = dflash_guess_open(&d->guess, o->backend, &sizes, err);
    if (!s && !take_arrays(d)) s = error_set(err, ERR_NOMEM, "no memory for the drafts of %d sequences", o->n_slots);
    return s;
}

Status drafter_open_dflash(Drafter **out, const DflashOptions *options, Error *err)
{
    *out = NULL;
    DflashOptions o = with_defaults(*options);
    Status s = options_check(&o, err);
    if (s) return s;
    DflashDrafter *d = mem_alloc(sizeof *d);
    if (!d) return error_set(err, ERR_NOMEM, "no memory for a DFlash drafter");
    d->options = o;
    s = open_parts(d, err);
    if (s) {
        close_drafter(&d->face);
        return s;
    }
    d->face = (Drafter){ .name = "dflash",
                         .methods = d->methods,
                         .n_taps = dflash_config(d->net)->n_taps,
                         .taps = dflash_config(d->net)->taps,
                         .fits = drafter_fits,
                         .groups = dflash_groups,
                         .bind = bind,
                         .begin = dflash_begin,
                         .observe = dflash_observe,
                         .draft = dflash_draft,
                         .forget = dflash_forget,
                         .close = close_drafter };
    add_method(d, DFLASH_CHAIN, "dflash");
    add_method(d, DFLASH_TREE, "ddtree");
    add_method(d, DFLASH_SPINE, "ddtree-spine");
    *out = &d->face;
    return OK;
}

Status drafter_dflash_needs(const DflashOptions *options, const ModelInfo *target, DflashNeeds *out, Error *err)
{
    DflashOptions o = with_defaults(*options);
    DflashSetup setup = setup_for(&o, target);
    Status s = options_check(&o, err);
    if (!s) s = dflash_needs(o.dir, target, &setup, out, err);
    if (!s && out->is_second && has_trees(&o)) s = no_trees(&o, err);
    if (s) return s;
    size_t vocab = (size_t)target->vocab_size;
    out->scratch_bytes += dflash_feed_bytes(o.n_slots, (int64_t)out->n_taps * target->hidden_size, target->act);
    out->scratch_bytes += vocab * (24 + sizeof(uint32_t)); /* the chooser's, and the marks */
    if (has_trees(&o)) out->scratch_bytes += (size_t)o.tree_budget * (MAX_DEPTH * 2 + 8) * sizeof(int32_t);
    return OK;
}

const Dflash *drafter_dflash_network(const Drafter *d)
{
    return ((const DflashDrafter *)d)->net;
}
