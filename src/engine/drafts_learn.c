/* What became of drafts: told to the controller, counted by method and depth for the request and for the engine, and
 * compared with what such drafters usually do. A network that was trained for the model guesses the next token right more
 * often than expected_first; one of the right shape that belongs to another model hardly ever does. Three standard
 * deviations below count as news. */
#include "engine/drafts.h"

#include "base/log.h"

#include <math.h>

enum { SUSPECT_ROUNDS = 32, MAX_UNPLANNED = 32 };

static int32_t depth_of(const Tree *tree)
{
    int32_t deepest = 0;
    for (int32_t i = 1; i < tree->n_nodes; i++)
        if (tree->depth[i] > deepest) deepest = tree->depth[i];
    return deepest;
}

/* How far the path keeps to the line of first guesses. */
static int32_t spine_hits(const Tree *tree, const int32_t *nodes, int32_t n, int32_t *n_spine)
{
    int32_t spine[MAX_DEPTH], hits = 0;
    *n_spine = tree_spine(tree, spine);
    while (hits < n && hits < *n_spine && nodes[hits] == spine[hits + 1]) hits++;
    return hits;
}

static DraftRound round_of(const Share *share, int32_t *nodes)
{
    int32_t n_accepted = share->is_certain ? 0 : share->n_path - 1, n_spine = 0;
    for (int32_t k = 0; k < n_accepted; k++) nodes[k] = share->path_rows[k + 1] - share->first_row;
    int32_t hits = spine_hits(share->tree, nodes, n_accepted, &n_spine);
    return (DraftRound){ .slot = share->seq->slot,
                         .method = share->method,
                         .n_asked = share->n_asked,
                         .n_nodes = share->tree->n_nodes,
                         .n_depth = depth_of(share->tree),
                         .n_accepted = n_accepted,
                         .n_emitted = share->n_emitted,
                         .n_spine = n_spine,
                         .n_spine_accepted = hits,
                         .nodes = nodes,
                         .is_cut = share->seq->ended != FINISH_NONE };
}

static void count_round(DraftCounts *c, const DraftRound *r)
{
    c->rounds++;
    c->draft_tokens += r->n_nodes - 1;
    c->accepted_tokens += r->n_accepted;
    for (int32_t depth = 1; depth <= r->n_depth; depth++) c->reached[depth]++;
    for (int32_t depth = 1; depth <= r->n_accepted; depth++) c->accepted[depth]++;
}

static void suspect(Drafts *d, int32_t method)
{
    const DraftMethod *m = &d->methods[method];
    MethodState *state = &d->states[method];
    const DraftCounts *c = &state->counts;
    double n = c->reached[1], p = (double)m->expected_first;
    if (state->is_suspect || n < SUSPECT_ROUNDS || c->accepted[1] >= n * p - 3 * sqrt(n * p * (1 - p))) return;
    state->is_suspect = true;
    log_warn("engine", "drafter %s guessed %.0f %% of next tokens, at least %.0f %% are usual: its file (fingerprint %016llx) may belong "
             "to another model", m->name, 100.0 * c->accepted[1] / c->reached[1], 100 * p, (unsigned long long)m->fingerprint);
}

/* See is_drafted_now() in drafts.c. */
static void pause_planning(Drafts *d, double pass_ms)
{
    double passes = pass_ms > 0 ? 100 * d->plan_ms / pass_ms : 0;
    d->n_unplanned = passes < 2 ? 0 : passes < MAX_UNPLANNED ? (int32_t)passes : MAX_UNPLANNED;
    d->was_plain = false;
}

void drafts_learn(Drafts *d, const Share *shares, int32_t n, double draft_ms, double pass_ms)
{
    PassReport report = { .draft_ms = draft_ms, .pass_ms = pass_ms, .rounds = d->rounds };
    for (int32_t i = 0; i < n && d->drafter; i++) {
        const Share *share = &shares[i];
        report.n_rows += share->n_rows;
        if (share->phase == SEQ_PROMPT) {
            report.n_other += share->n_rows;
            continue;
        }
        DraftRound *round = &d->rounds[report.n_rounds];
        *round = round_of(share, d->round_nodes + (size_t)report.n_rounds * MAX_DEPTH);
        report.n_rounds++;
        if (round->n_nodes < 2) continue;
        count_round(&share->seq->request->counted.drafts[round->method], round);
        count_round(&d->states[round->method].counts, round);
        suspect(d, round->method);
    }
    if (d->controller && report.n_rounds) controller_learn(d->controller, &report);
    if (d->controller && d->was_plain) pause_planning(d, pass_ms);
}
