/* Drafts: what a drafter says is a guess, so everything about it is checked and nothing about it can fail a request.
 *
 *     shares ──offers──> foresee ──> plan: method, width ──blocks──> jobs ──one call a network──> trees, checked
 *
 * Before the call each job has its blocks: entries behind n_committed for every node, and for what the drafter writes into
 * groups of its own. A job that gets none decodes plainly. Depth: with the anchor at place P and at most N tokens in all,
 * N - P - 2 accepted drafts leave the bonus token the last place (docs/spec/speculation.md 1.5); here P + 1 == n_ids.
 * A network whose calls fail FAILED_CALLS times in a row is switched off for good: its methods say why. */
#include "engine/drafts.h"

#include "base/log.h"
#include "base/memory.h"
#include "cache/group_memory.h"
#include "engine/choosing.h"

#include <stdio.h>

enum { FAILED_CALLS = 8 };

int32_t drafts_max_entries(const DrafterNeeds *drafter, const EngineOptions *options)
{
    int32_t spare = groups_spare(drafter->groups, drafter->n_groups);
    return options->draft_nodes > spare ? options->draft_nodes : spare;
}

/* ---- opening ---- */

static ControllerOptions controller_options(const EngineOptions *o, const DraftMethod *methods, int32_t n)
{
    return (ControllerOptions){ .n_slots = o->max_num_seqs, .n_methods = n, .methods = methods };
}

static Status open_controller(Drafts *d, Error *err)
{
    if (!d->drafter || !d->options->adapts_drafts) return OK;
    ControllerOptions options = controller_options(d->options, d->methods, d->n_methods);
    Status s = controller_open(&d->controller, &options, err);
    d->scheduler->controller = d->controller;
    return s;
}

static bool take_arrays(Drafts *d)
{
    size_t n = (size_t)d->options->max_num_seqs;
    d->trees = mem_alloc_array(n, sizeof d->trees[0]);
    d->wishes = mem_alloc_array(n, sizeof d->wishes[0]);
    d->offers = mem_alloc_array(n, sizeof d->offers[0]);
    d->jobs = mem_alloc_array(n, sizeof d->jobs[0]);
    d->rules = mem_alloc_array(n, sizeof d->rules[0]);
    d->histories = mem_alloc_array(n, sizeof d->histories[0]);
    d->rounds = mem_alloc_array(n, sizeof d->rounds[0]);
    d->round_nodes = mem_alloc_array(n, MAX_DEPTH * sizeof d->round_nodes[0]);
    return d->trees && d->wishes && d->offers && d->jobs && d->rules && d->histories && d->rounds && d->round_nodes;
}

size_t drafts_bytes(const EngineOptions *o)
{
    ControllerOptions options = controller_options(o, NULL, MAX_METHODS);
    size_t a_slot = sizeof(Tree) + sizeof(DraftWish) + 2 * sizeof(DraftJob) + sizeof(RowRule) + sizeof(History) +
                    sizeof(DraftRound) + MAX_DEPTH * sizeof(int32_t);
    return (size_t)o->max_num_seqs * a_slot + (o->adapts_drafts ? controller_bytes(&options) : 0);
}

Status drafts_open(Drafts *d, Drafter *drafter, Scheduler *scheduler, const EngineOptions *options, int32_t vocab_size,
                   Error *err)
{
    DrafterNeeds needs = drafter_needs(drafter);
    *d = (Drafts){ .drafter = drafter,
                   .options = options,
                   .scheduler = scheduler,
                   .vocab_size = vocab_size,
                   .spare = groups_spare(needs.groups, needs.n_groups) };
    if (drafter) d->n_methods = drafter_methods(drafter, d->methods);
    Status s = take_arrays(d) ? OK : error_set(err, ERR_NOMEM, "no memory for drafts");
    for (int32_t i = 0; !s && i < options->max_num_seqs; i++)
        s = tree_alloc(&d->trees[i], options->draft_nodes > 1 ? options->draft_nodes : 1, err);
    if (!s) s = open_controller(d, err);
    if (s) drafts_close(d);
    return s;
}

void drafts_close(Drafts *d)
{
    for (int32_t i = 0; d->trees && i < d->options->max_num_seqs; i++) tree_free(&d->trees[i]);
    void *arrays[] = { d->trees, d->wishes, d->offers, d->jobs, d->rules, d->histories, d->rounds, d->round_nodes };
    for (int i = 0; i < COUNT(arrays); i++) mem_free(arrays[i]);
    if (d->controller) d->scheduler->controller = NULL;
    controller_close(d->controller);
    *d = (Drafts){ 0 };
}

/* ---- who, how, how wide ---- */

/* Levels below the anchor that may be drafted; 0 = none. */
static int32_t depth_for(const Drafts *d, const Sequence *seq)
{
    if (!sequence_is_drafted(seq) || !sequence_has_output(seq)) return 0;
    int32_t depth = seq->limit - seq->n_ids - 1;
    if (depth > d->options->draft_depth) depth = d->options->draft_depth;
    return depth < MAX_DEPTH - 1 ? depth : MAX_DEPTH - 1;
}

/* The job of a sequence that may be drafted; method and width are decided later. */
static void make_offer(Drafts *d, int32_t i, const Share *share, int32_t max_depth)
{
    const Sequence *seq = share->seq;
    const GenerateRequest *g = &seq->request->g;
    sequence_history(seq, share->tree->token, 1, &d->histories[i]);
    sequence_rule(seq, seq->n_ids, d->options, &d->histories[i], &d->rules[i]);
    d->offers[i] = (DraftJob){ .slot = seq->slot,
                               .n_committed = seq->n_committed,
                               .anchor = seq->ids[seq->n_ids - 1],
                               .request_id = g->id,
                               .choice = seq->choice,
                               .max_nodes = d->options->draft_nodes,
                               .max_depth = max_depth,
                               .ids = seq->ids,
                               .draw = { g->seed, (uint32_t)seq->choice },
                               .temperature = g->params.temperature,
                               .rule = &d->rules[i],
                               .tree = share->tree };
}

static void foresee(Drafts *d, DraftJob *offer, DraftWish *wish)
{
    for (int32_t m = 0; m < d->n_methods; m++) {
        wish->foreseen[m] = -1;
        if (!d->drafter->foresee || d->methods[m].off[0]) continue;
        offer->method = m;
        wish->foreseen[m] = d->drafter->foresee(d->drafter, offer);
    }
}

/* Returns whether it may be drafted. */
static bool make_wish(Drafts *d, int32_t i, const Share *share)
{
    const Sequence *seq = share->seq;
    const Request *r = seq->request;
    int32_t depth = depth_for(d, seq);
    d->wishes[i] = (DraftWish){ .slot = seq->slot, .max_nodes = depth > 0 ? d->options->draft_nodes : 1, .max_depth = depth,
                                .n_left = seq->limit - seq->n_ids, .only_method = r->only_method,
                                .fixed_nodes = r->g.draft_nodes, .method = -1, .n_nodes = 1 };
    if (depth <= 0) return false;
    make_offer(d, i, share, depth);
    foresee(d, &d->offers[i], &d->wishes[i]);
    return true;
}

/* Everybody by its own or the first method, rows divided evenly. */
static void plan_all(const Drafts *d, DraftWish *wishes, int32_t n, int32_t n_wanting, int32_t max_rows)
{
    for (int32_t i = 0; i < n; i++) {
        DraftWish *w = &wishes[i];
        int32_t m = w->only_method >= 0 ? w->only_method : 0, nodes = max_rows / n_wanting + 1;
        if (nodes > w->max_nodes) nodes = w->max_nodes;
        if (w->fixed_nodes && nodes > w->fixed_nodes) nodes = w->fixed_nodes;
        if (nodes < 2 || d->methods[m].off[0]) continue;
        w->method = m;
        w->n_nodes = nodes;
    }
}

/* Returns how many of the n shares are to be drafted. */
static int32_t plan_drafts(Drafts *d, const Share *shares, int32_t n)
{
    int32_t n_wanting = 0, n_drafted = 0, n_other = 0;
    for (int32_t i = 0; i < n; i++) n_wanting += make_wish(d, i, &shares[i]);
    int32_t rows = scheduler_draft_rows(d->scheduler, n, &n_other);
    if (n_wanting == 0 || rows <= 0) return 0;
    if (d->controller)
        controller_plan(d->controller, d->wishes, n, n_other, rows);
    else
        plan_all(d, d->wishes, n, n_wanting, rows);
    for (int32_t i = 0; i < n; i++) n_drafted += d->wishes[i].n_nodes > 1;
    return n_drafted;
}

/* ---- drafting ---- */

/* Nobody is preempted for a guess. */
static bool has_blocks(Drafts *d, const DraftJob *offer, int32_t n_nodes)
{
    int32_t entries = n_nodes > d->spare ? n_nodes : d->spare;
    return block_table_reserve(&d->scheduler->table, offer->slot, offer->n_committed + entries) == OK;
}

/* Jobs of one network behind jobs[0 .. n_before); returns how many there are then. */
static int32_t gather_jobs(Drafts *d, Share *shares, int32_t n, int32_t family, int32_t n_before)
{
    for (int32_t i = 0; i < n; i++) {
        const DraftWish *w = &d->wishes[i];
        if (w->n_nodes < 2 || d->methods[w->method].family != family || !has_blocks(d, &d->offers[i], w->n_nodes)) continue;
        DraftJob *job = &d->jobs[n_before++];
        *job = d->offers[i];
        job->method = w->method;
        job->max_nodes = w->n_nodes;
        shares[i].method = w->method;
        shares[i].n_asked = w->n_nodes;
    }
    return n_before;
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

static void count_failure(Drafts *d, int32_t method, const char *why)
{
    MethodState *state = &d->states[method];
    d->n_failed++;
    if (state->n_failed++ == 0) /* it may go on at every step, and the counter tells the rest */
        log_warn("engine", "drafter %s failed, the step went on without its drafts: %s; from now on failures are only counted",
                 d->methods[method].name, why);
}

static void switch_off(Drafts *d, int32_t family, const char *why)
{
    for (int32_t m = 0; m < d->n_methods; m++) {
        if (d->methods[m].family != family || d->methods[m].off[0]) continue;
        snprintf(d->methods[m].off, sizeof d->methods[m].off, "failed %d times in a row: %.110s", FAILED_CALLS, why);
        log_warn("engine", "drafter %s is switched off until the next start: %s", d->methods[m].name, d->methods[m].off);
    }
}

/* One call for all jobs of a network. It failed if it said so or if none of its trees is one. */
static void draft_family(Drafts *d, Stream *st, int32_t family, DraftJob *jobs, int32_t n)
{
    Error why = { 0 };
    int32_t n_good = 0, *n_failed_calls = &d->n_failed_calls[family];
    Status s = d->drafter->draft(d->drafter, st, jobs, n, &why);
    if (!s) snprintf(why.text, sizeof why.text, "what it proposed is no tree of known tokens within the limits");
    for (int32_t i = 0; i < n; i++) {
        if (!s && is_proper(d, &jobs[i])) {
            n_good++;
            continue;
        }
        tree_start(jobs[i].tree, jobs[i].anchor);
        count_failure(d, jobs[i].method, why.text);
    }
    *n_failed_calls = n_good ? 0 : *n_failed_calls + 1;
    if (*n_failed_calls >= FAILED_CALLS) switch_off(d, family, why.text);
}

/* What a request states is done whether it pays or not. */
static bool has_stated_width(const Share *shares, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (shares[i].seq->request->g.draft_nodes) return true;
    return false;
}

/* Thinking takes time too, which counts where passes are short: when nothing was worth a draft, some passes are plain
 * without a plan, so that plans take a hundredth of the time at most. */
static bool is_drafted_now(Drafts *d, const Share *shares, int32_t n)
{
    if (d->n_unplanned > 0 && !has_stated_width(shares, n)) {
        d->n_unplanned--;
        return false;
    }
    double start = drafts_clock_ms(d->options);
    bool is_drafted = plan_drafts(d, shares, n) > 0;
    d->plan_ms = drafts_clock_ms(d->options) - start;
    d->was_plain = !is_drafted;
    return is_drafted;
}

double drafts_make(Drafts *d, Stream *st, Share *shares, int32_t n)
{
    if (!d->drafter || !is_drafted_now(d, shares, n)) return 0;
    double start = drafts_clock_ms(d->options);
    for (int32_t family = 0, first = 0; family < d->n_methods; family++) {
        int32_t end = gather_jobs(d, shares, n, family, first);
        if (end > first) draft_family(d, st, family, d->jobs + first, end - first);
        first = end;
    }
    return drafts_clock_ms(d->options) - start;
}
