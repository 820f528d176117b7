/* Drafts: what a drafter says is a guess, so everything about it is checked and nothing about it can fail a request.
 *
 * Before the call each job has its blocks: entries behind n_committed for every node, and for what the drafter writes into
 * groups of its own. A job that gets none decodes plainly. Depth: with the anchor at place P and at most N tokens in all,
 * N - P - 2 accepted drafts leave the bonus token the last place (docs/spec/speculation.md 1.5); here P + 1 == n_ids. */
#include "engine/drafts.h"

#include "base/log.h"
#include "base/memory.h"
#include "cache/group_memory.h"
#include "engine/choosing.h"

int32_t drafts_max_entries(const DrafterNeeds *drafter, const EngineOptions *options)
{
    int32_t spare = groups_spare(drafter->groups, drafter->n_groups);
    return options->draft_nodes > spare ? options->draft_nodes : spare;
}

Status drafts_open(Drafts *d, Drafter *drafter, Scheduler *scheduler, const EngineOptions *options, int32_t vocab_size,
                   Error *err)
{
    size_t n = (size_t)options->max_num_seqs;
    DrafterNeeds needs = drafter_needs(drafter);
    *d = (Drafts){ .drafter = drafter,
                   .options = options,
                   .scheduler = scheduler,
                   .vocab_size = vocab_size,
                   .spare = groups_spare(needs.groups, needs.n_groups) };
    d->trees = mem_alloc_array(n, sizeof d->trees[0]);
    d->jobs = mem_alloc_array(n, sizeof d->jobs[0]);
    d->rules = mem_alloc_array(n, sizeof d->rules[0]);
    d->histories = mem_alloc_array(n, sizeof d->histories[0]);
    Status s = d->trees && d->jobs && d->rules && d->histories ? OK : error_set(err, ERR_NOMEM, "no memory for drafts");
    for (size_t i = 0; !s && i < n; i++)
        s = tree_alloc(&d->trees[i], options->draft_nodes > 1 ? options->draft_nodes : 1, err);
    if (s) drafts_close(d);
    return s;
}

void drafts_close(Drafts *d)
{
    for (int32_t i = 0; d->trees && i < d->options->max_num_seqs; i++) tree_free(&d->trees[i]);
    mem_free(d->trees);
    mem_free(d->jobs);
    mem_free(d->rules);
    mem_free(d->histories);
    *d = (Drafts){ 0 };
}

/* Levels below the anchor that may be drafted; 0 = none. */
static int32_t depth_for(const Drafts *d, const Sequence *seq)
{
    if (!sequence_is_drafted(seq) || !sequence_has_output(seq)) return 0;
    int32_t depth = seq->limit - seq->n_ids - 1;
    if (depth > d->options->draft_depth) depth = d->options->draft_depth;
    return depth < MAX_DEPTH - 1 ? depth : MAX_DEPTH - 1;
}

static void job_init(Drafts *d, DraftJob *job, const Share *share, int32_t max_nodes)
{
    const Sequence *seq = share->seq;
    const GenerateRequest *g = &seq->request->g;
    History *history = &d->histories[job - d->jobs];
    RowRule *rule = &d->rules[job - d->jobs];
    sequence_history(seq, share->tree->token, 1, history);
    sequence_rule(seq, seq->n_ids, d->options, history, rule);
    *job = (DraftJob){ .slot = seq->slot,
                       .n_committed = seq->n_committed,
                       .anchor = seq->ids[seq->n_ids - 1],
                       .request_id = g->id,
                       .choice = seq->choice,
                       .max_nodes = max_nodes,
                       .max_depth = depth_for(d, seq),
                       .ids = seq->ids,
                       .draw = { g->seed, (uint32_t)seq->choice },
                       .temperature = g->params.temperature,
                       .rule = rule,
                       .tree = share->tree };
}

/* Jobs for all that may draft; returns how many. */
static int32_t make_jobs(Drafts *d, const Share *shares, int32_t n)
{
    int32_t n_wanting = 0, n_jobs = 0;
    for (int32_t i = 0; i < n; i++) n_wanting += depth_for(d, shares[i].seq) > 0;
    int32_t rows = scheduler_draft_rows(d->scheduler, n, n_wanting);
    if (rows <= 0) return 0;
    int32_t entries = rows + 1 > d->spare ? rows + 1 : d->spare;
    for (int32_t i = 0; i < n; i++) {
        const Sequence *seq = shares[i].seq;
        if (depth_for(d, seq) <= 0) continue;
        if (block_table_reserve(&d->scheduler->table, seq->slot, seq->n_committed + entries))
            continue; /* nobody is preempted for a guess */
        job_init(d, &d->jobs[n_jobs++], &shares[i], rows + 1);
    }
    return n_jobs;
}

/* A drafter's tree is input: sizes first, since tree_check trusts them. */
static bool is_proper(const Drafts *d, const DraftJob *job)
{
    const Tree *t = job->tree;
    if (t->n_nodes < 1 || t->n_nodes > job->max_nodes || t->token[0] != job->anchor) return false;
    for (int32_t i = 0; i < t->n_nodes; i++)
        if (t->token[i] < 0 || t->token[i] >= d->vocab_size || t->depth[i] > job->max_depth) return false;
    return tree_check(t);
}

/* Said once: it may go on at every step, and the counter tells the rest. */
static void count_failure(Drafts *d, const char *why)
{
    d->n_failed++;
    if (d->has_warned) return;
    d->has_warned = true;
    log_warn("engine", "drafter %s failed, the step went on without its drafts: %s; from now on failures are only counted",
             d->drafter->name, why);
}

void drafts_make(Drafts *d, Stream *st, Share *shares, int32_t n)
{
    int32_t n_jobs = d->drafter ? make_jobs(d, shares, n) : 0;
    if (n_jobs == 0) return;
    Error why = { 0 };
    Status s = d->drafter->draft(d->drafter, st, d->jobs, n_jobs, &why);
    for (int32_t i = 0; i < n_jobs; i++) {
        if (!s && is_proper(d, &d->jobs[i])) continue;
        tree_start(d->jobs[i].tree, d->jobs[i].anchor);
        count_failure(d, s ? why.text : "what it proposed is no tree of known tokens within the limits");
    }
}
