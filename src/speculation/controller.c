/* The controller maximises tokens per millisecond of a pass that all decoding sequences share.
 *
 *     expected tokens   sum over sequences of 1 + expected accepted drafts (method, width)
 *     milliseconds      pass(rows of all, sequences) + draft(method) for each method in use
 *
 * A method costs its draft once, however many sequences use it, so sets of methods are compared: the best single one,
 * then the best addition while that helps. Within a set rows go, one step after the other, to whichever sequence gains
 * most by it (gains of a sequence fall with its width), and the best prefix of that order is taken: every anchor has
 * its row, and the sum is what counts.
 *
 * Trials. Families that the plan does not use are tried now and then, because text changes and what was never seen is
 * not known: the one whose trial is worth most beyond its cost, if the sequence has saved up that cost. Worth: the
 * chance that it is better, times what that would save over the tokens to come, times what one round tells of it.
 * Savings are a small share of all tokens, so trials of what is nearly as good come often and dear ones rarely, and all
 * of them together cost at most that share. What a sequence has not used for a while is idle, and trying that is a
 * probe. One that does not pay shuts idle families for PROBE_TOKENS tokens, so useless probes are that rare by
 * construction.
 *
 * Credit. Losses against plain decoding are counted per sequence, in plain steps: a draft is paid from a credit that is
 * small, fills up by what drafts gain, and otherwise slowly. So no run of bad luck costs more than 3 % of 256 plain
 * steps.
 *
 * A draft that hits nothing is most often an accident, and belief moves by what it weighs. Where one round alone
 * makes the end of hitting more likely than an accident, that family is off in the very next pass, and then judged
 * like any other. */
#include "speculation/controller.h"

#include "base/memory.h"
#include "speculation/cost.h"
#include "speculation/hits.h"
#include "speculation/texts.h"

#include <math.h>
#include <string.h>

enum { PROBE_TOKENS = 64, HORIZON_TOKENS = 128, IDLE_ROUNDS = 20, CATCH_UP_TOKENS = 32, PLAIN_PASSES = 2000 };
enum { FEW_BIDS = 8, TRIAL_BIDS = 16 }; /* of big batches not all are looked at so closely in one pass */
static const double full_credit = 5.8, credit_per_token = 1.2 / 256; /* 7 plain steps in 256 tokens, below 3 % */
static const double first_draft_share = 0.1; /* of a pass, until a draft was timed */
static const double trial_insight = 0.15, trial_hope = 0.2, least_trial = 0.02, least_belief = 0.5;
static const double full_savings = 2, first_savings = 1.5, savings_per_token = 0.005; /* plain steps, for trials */

typedef struct Method {
    const DraftMethod *face;
    int32_t family;
    Cost    cost;               /* of a draft: rows are nodes a job, sequences are jobs */
    HitCheck check;
    double  catch_up_ms;        /* a token that the drafter has still to take in */
} Method;

/* What is known of the sequence in a slot. */
typedef struct Seat {
    TextBelief text;
    HitBelief belief[MAX_METHODS];      /* by family */
    int32_t   idle_tokens[MAX_METHODS]; /* since the family drafted; before its first draft the prompt counts */
    int32_t   idle_rounds[MAX_METHODS];
    bool      is_probe;                 /* the plan at hand is one */
    int32_t   trial;                    /* family that is being tried since a probe; -1 = none */
    double    trial_gain;               /* of it, in plain steps */
    int32_t   since_useless;            /* tokens since a trial was in the red */
    double    credit, savings;          /* plain steps: what drafts may lose, what trials may cost */
} Seat;

/* A width that a sequence may have: more nodes than the corner before, at a lower gain each. */
typedef struct Corner {
    int16_t n_nodes, method; /* method -1: the anchor alone */
    float   gain;            /* expected accepted drafts */
} Corner;

enum { MAX_CORNERS = 1 + MAX_METHODS * HIT_WIDTHS };

/* A sequence while a plan is made. */
typedef struct Bid {
    DraftWish *wish;
    uint32_t usable;                       /* methods, as bits */
    float    gain[MAX_METHODS][HIT_WIDTHS];
    int8_t   n_widths[MAX_METHODS];
    double   extra_ms[MAX_METHODS];        /* this round's share of catching up */
    int32_t  n_corners, at;                /* corner[at] is what it has */
    Corner   corner[MAX_CORNERS];
} Bid;

/* Rows and drafts of a plan in the making. */
typedef struct Load {
    int32_t n_seqs, n_other, n_rows;       /* n_rows: of the decoding sequences */
    int32_t n_jobs[MAX_METHODS], n_nodes[MAX_METHODS];
    double  extra_ms, tokens;
} Load;

struct Controller {
    int32_t n_slots, n_methods, n_families;
    Method  method[MAX_METHODS];
    HitLaw  law[MAX_METHODS];              /* by family */
    TextLaw texts;
    Cost    pass, mixed;                   /* mixed: with rows of prompts beside */
    int64_t plain_at[COST_SEQS];           /* by concurrency: when a pass without drafts was last timed; 0 = never */
    Seat   *seats;                         /* [n_slots] */
    Bid    *bids;                          /* [n_slots] */
    int32_t *heap;                         /* [n_slots] bids, the one with the best next step first */
    int32_t n_heap;
    int32_t first_trial;                   /* bid to begin with */
};

/* ---- open ---- */

static void adopt_methods(Controller *c, const ControllerOptions *o)
{
    int32_t names[MAX_METHODS];
    int32_t max_tree[MAX_METHODS] = { 0 };
    for (int32_t m = 0; m < o->n_methods; m++) {
        int32_t f = 0;
        while (f < c->n_families && names[f] != o->methods[m].family) f++;
        if (f == c->n_families) names[c->n_families++] = o->methods[m].family;
        if (o->methods[m].is_tree && o->methods[m].max_nodes > max_tree[f]) max_tree[f] = o->methods[m].max_nodes;
        c->method[m] = (Method){ .face = &o->methods[m], .family = f };
        cost_init(&c->method[m].cost, 1, 0);
        hits_check_init(&c->method[m].check);
    }
    for (int32_t f = 0; f < c->n_families; f++) hits_init(&c->law[f], max_tree[f]);
    texts_init(&c->texts, c->n_families);
}

Status controller_open(Controller **out, const ControllerOptions *options, Error *err)
{
    *out = NULL;
    CHECK(options->n_methods >= 1 && options->n_methods <= MAX_METHODS && options->n_slots >= 1);
    size_t n = (size_t)options->n_slots;
    Controller *c = mem_alloc(sizeof *c);
    if (c) c->seats = mem_alloc_array(n, sizeof c->seats[0]);
    if (c) c->bids = mem_alloc_array(n, sizeof c->bids[0]);
    if (c) c->heap = mem_alloc_array(n, sizeof c->heap[0]);
    if (!c || !c->seats || !c->bids || !c->heap) {
        controller_close(c);
        return error_set(err, ERR_NOMEM, "no memory to control drafts of %d sequences", options->n_slots);
    }
    double ms = options->pass_ms > 0 ? options->pass_ms : 20;
    c->n_slots = options->n_slots;
    c->n_methods = options->n_methods;
    adopt_methods(c, options);
    cost_init(&c->pass, ms, 0.03);
    cost_init(&c->mixed, ms, 0.03);
    *out = c;
    return OK;
}

void controller_close(Controller *c)
{
    if (!c) return;
    mem_free(c->seats);
    mem_free(c->bids);
    mem_free(c->heap);
    mem_free(c);
}

size_t controller_bytes(const ControllerOptions *options)
{
    return sizeof(Controller) + (size_t)options->n_slots * (sizeof(Seat) + sizeof(Bid) + sizeof(int32_t));
}

void controller_begin(Controller *c, int32_t slot, int32_t n_prompt)
{
    CHECK(slot >= 0 && slot < c->n_slots);
    Seat *seat = &c->seats[slot];
    texts_end(&c->texts, &seat->text); /* of the sequence before */
    *seat = (Seat){ .credit = full_credit, .savings = first_savings, .trial = -1, .since_useless = PROBE_TOKENS };
    texts_begin(&c->texts, &seat->text);
    for (int32_t f = 0; f < c->n_families; f++) {
        texts_levels(&seat->text, f, seat->belief[f].p);
        seat->belief[f].offers = c->law[f].offers;
        seat->idle_tokens[f] = n_prompt;
    }
}

/* ---- prices ---- */

static double pass_ms(const Controller *c, int32_t n_rows, int32_t n_other, int32_t n_seqs)
{
    bool is_mixed = n_other > 0 && c->mixed.n_measured > 0;
    return cost_of(is_mixed ? &c->mixed : &c->pass, n_rows + n_other, n_seqs);
}

/* What plain decoding costs must be known, and not from long ago: everything is compared with it. */
static bool plain_is_known(const Controller *c, int32_t n_seqs)
{
    int64_t at = c->plain_at[cost_seqs_bucket(n_seqs)];
    return at > 0 && c->pass.n_measured - at < PLAIN_PASSES;
}

/* A sequence's part of a plain step. */
static double plain_ms(const Controller *c, int32_t n_seqs)
{
    return pass_ms(c, n_seqs, 0, n_seqs) / n_seqs;
}

/* n_nodes: of all jobs. */
static double draft_ms(const Controller *c, int32_t m, int32_t n_nodes, int32_t n_jobs)
{
    const Cost *cost = &c->method[m].cost;
    if (n_jobs == 0) return 0;
    if (cost->n_measured == 0) return first_draft_share * cost_of(&c->pass, 1, 1);
    return cost_of(cost, (n_nodes + n_jobs / 2) / n_jobs, n_jobs);
}

static double load_ms(const Controller *c, const Load *load)
{
    double ms = pass_ms(c, load->n_rows, load->n_other, load->n_seqs) + load->extra_ms;
    for (int32_t m = 0; m < c->n_methods; m++) ms += draft_ms(c, m, load->n_nodes[m], load->n_jobs[m]);
    return ms;
}

/* One sequence goes from `from` to `to`. */
static void load_move(Load *load, const Bid *bid, Corner from, Corner to)
{
    load->n_rows += to.n_nodes - from.n_nodes;
    load->tokens += (double)(to.gain - from.gain);
    if (from.method >= 0) {
        load->n_jobs[from.method]--;
        load->n_nodes[from.method] -= from.n_nodes;
        load->extra_ms -= bid->extra_ms[from.method];
    }
    if (to.method >= 0) {
        load->n_jobs[to.method]++;
        load->n_nodes[to.method] += to.n_nodes;
        load->extra_ms += bid->extra_ms[to.method];
    }
}

/* ---- what a sequence may get ---- */

static bool is_idle(const Seat *seat, int32_t family)
{
    return seat->idle_rounds[family] >= IDLE_ROUNDS;
}

static bool is_offered(const Controller *c, const DraftWish *wish, int32_t m)
{
    return wish->max_nodes > 1 && wish->max_depth > 0 && !c->method[m].face->off[0] && wish->foreseen[m] != 0 &&
           (wish->only_method < 0 || wish->only_method == m);
}

/* Nodes that its limits leave it. */
static int32_t most_nodes(const Controller *c, const DraftWish *wish, int32_t m)
{
    const DraftMethod *face = c->method[m].face;
    int32_t most = wish->max_nodes < face->max_nodes ? wish->max_nodes : face->max_nodes;
    if (!face->is_tree && most > wish->max_depth + 1) most = wish->max_depth + 1;
    if (wish->foreseen[m] >= 0 && most > wish->foreseen[m] + 1) most = wish->foreseen[m] + 1;
    return most;
}

/* Accepted drafts to expect, by a belief of this sequence or a part of it. */
static double gain_of(const Controller *c, const DraftWish *wish, int32_t m, const HitBelief *b, int w)
{
    const Method *method = &c->method[m];
    double sure = wish->foreseen[m] >= 0 ? 1 : c->seats[wish->slot].belief[method->family].offers;
    double gain = sure * hits_expect(&c->law[method->family], &method->check, b, method->face->is_tree, w);
    return gain < wish->max_depth ? gain : wish->max_depth;
}

static void bid_gains(const Controller *c, Bid *bid, int32_t m)
{
    const DraftWish *wish = bid->wish;
    const Seat *seat = &c->seats[wish->slot];
    const Method *method = &c->method[m];
    int n = hits_width(method->face->is_tree, most_nodes(c, wish, m)) + 1;
    for (int w = 0; w < n; w++) bid->gain[m][w] = (float)gain_of(c, wish, m, &seat->belief[method->family], w);
    bid->n_widths[m] = (int8_t)n;
    /* Catching up is paid once and serves for a while: a round's share of it. */
    int32_t n_idle = seat->idle_tokens[method->family];
    bid->extra_ms[m] = n_idle >= CATCH_UP_TOKENS ? method->catch_up_ms * n_idle * 4 / HORIZON_TOKENS : 0;
}

static void bid_open(const Controller *c, Bid *bid, DraftWish *wish)
{
    const Seat *seat = &c->seats[wish->slot];
    bid->wish = wish;
    bid->usable = 0;
    for (int32_t m = 0; m < c->n_methods; m++) {
        int32_t f = c->method[m].family;
        bid->n_widths[m] = 0;
        if (!is_offered(c, wish, m)) continue;
        bid_gains(c, bid, m);
        if (bid->n_widths[m] > 0 && !is_idle(seat, f) && !seat->belief[f].has_collapsed) bid->usable |= 1u << m;
    }
}

/* Width w of method m. */
static Corner width_of(const Controller *c, const Bid *bid, int32_t m, int w)
{
    return (Corner){ (int16_t)hits_nodes(c->method[m].face->is_tree, w), (int16_t)m, bid->gain[m][w] };
}

/* Keeps the corners concave: a width that lies under the line between its neighbours is never the best one. */
static void corner_add(Bid *bid, Corner new)
{
    while (bid->n_corners > 1) {
        Corner a = bid->corner[bid->n_corners - 2], b = bid->corner[bid->n_corners - 1];
        float wide = (float)(new.n_nodes - a.n_nodes), narrow = (float)(b.n_nodes - a.n_nodes);
        if ((b.gain - a.gain) * wide > (new.gain - a.gain) * narrow) break;
        bid->n_corners--;
    }
    if (new.gain > bid->corner[bid->n_corners - 1].gain) bid->corner[bid->n_corners++] = new;
}

/* Widths of all methods of the set, by rising number of nodes; of equal ones the better. */
static void bid_corners(const Controller *c, Bid *bid, uint32_t set)
{
    int at[MAX_METHODS] = { 0 };
    bid->corner[0] = (Corner){ 1, -1, 0 };
    bid->n_corners = 1;
    bid->at = 0;
    set &= bid->usable;
    for (;;) {
        Corner next = { INT16_MAX, -1, 0 };
        for (int32_t m = 0; m < c->n_methods; m++) {
            if (!(set >> m & 1) || at[m] >= bid->n_widths[m]) continue;
            Corner corner = width_of(c, bid, m, at[m]);
            bool is_better = corner.n_nodes == next.n_nodes ? corner.gain > next.gain : corner.n_nodes < next.n_nodes;
            if (is_better) next = corner;
        }
        if (next.method < 0) return;
        for (int32_t m = 0; m < c->n_methods; m++) {
            if (!(set >> m & 1) || at[m] >= bid->n_widths[m]) continue;
            at[m] += hits_nodes(c->method[m].face->is_tree, at[m]) == next.n_nodes;
        }
        corner_add(bid, next);
    }
}

/* ---- sharing rows ---- */

static double next_slope(const Controller *c, int32_t i)
{
    const Bid *bid = &c->bids[i];
    if (bid->at + 1 >= bid->n_corners) return -1;
    Corner a = bid->corner[bid->at], b = bid->corner[bid->at + 1];
    return (double)(b.gain - a.gain) / (b.n_nodes - a.n_nodes);
}

static void heap_sink(Controller *c, int32_t at)
{
    int32_t moved = c->heap[at];
    double slope = next_slope(c, moved);
    for (int32_t child = 2 * at + 1; child < c->n_heap; at = child, child = 2 * at + 1) {
        if (child + 1 < c->n_heap && next_slope(c, c->heap[child + 1]) > next_slope(c, c->heap[child])) child++;
        if (next_slope(c, c->heap[child]) <= slope) break;
        c->heap[at] = c->heap[child];
    }
    c->heap[at] = moved;
}

static void heap_fill(Controller *c, int32_t n)
{
    c->n_heap = n;
    for (int32_t i = 0; i < n; i++) c->heap[i] = i;
    for (int32_t i = n / 2; i-- > 0;) heap_sink(c, i);
}

/* Deals rows, one corner at a time, to whoever gains most by it; stops after max_steps, or when nobody gains or no
 * rows are left. Returns the best rate met and after how many steps. Looking at the price is the dear part, so big
 * batches look at some moments only. */
static double deal(Controller *c, const Load *start, int32_t n, int32_t max_draft_rows, uint32_t set, int32_t max_steps,
                   int32_t *n_best)
{
    Load load = *start;
    double best = load.tokens / load_ms(c, &load);
    int32_t stride = 1 + n / 16;
    *n_best = 0;
    for (int32_t i = 0; i < n; i++) bid_corners(c, &c->bids[i], set);
    heap_fill(c, n);
    for (int32_t step = 1; n > 0 && step <= max_steps && next_slope(c, c->heap[0]) > 0; step++) {
        Bid *bid = &c->bids[c->heap[0]];
        Corner from = bid->corner[bid->at], to = bid->corner[bid->at + 1];
        if (load.n_rows + to.n_nodes - from.n_nodes - start->n_rows > max_draft_rows) break;
        load_move(&load, bid, from, to);
        bid->at++;
        heap_sink(c, 0);
        double rate = step % stride ? 0 : load.tokens / load_ms(c, &load);
        if (rate <= best) continue;
        best = rate;
        *n_best = step;
    }
    return best;
}

/* The best set of methods, built up one by one; leaves each bid at the corner it gets. Returns the rate. */
static double share_out(Controller *c, const Load *start, int32_t n, int32_t max_draft_rows)
{
    uint32_t set = 0;
    int32_t n_steps = 0, n_best;
    double best = start->tokens / load_ms(c, start);
    for (int32_t addition = 0; addition >= 0 && (set == 0 || n > 1);) {
        addition = -1;
        for (int32_t m = 0; m < c->n_methods; m++) {
            double rate = set >> m & 1 ? 0 : deal(c, start, n, max_draft_rows, set | 1u << m, INT32_MAX, &n_best);
            if (rate <= best || n_best == 0) continue;
            best = rate;
            addition = m;
            n_steps = n_best;
        }
        if (addition >= 0) set |= 1u << addition;
    }
    deal(c, start, n, max_draft_rows, set, n_steps, &n_best);
    return best;
}

/* Widths left out because they lie under a line may be best after all, where the price has a cliff. Returns the
 * rate. */
static double settle(const Controller *c, Bid *bid, Load *load, int32_t max_rows, double rate)
{
    Corner *at = &bid->corner[bid->at];
    int32_t m = at->method;
    for (int w = 0; m >= 0 && w < bid->n_widths[m]; w++) {
        Load other = *load;
        Corner corner = width_of(c, bid, m, w);
        load_move(&other, bid, *at, corner);
        double new_rate = other.tokens / load_ms(c, &other);
        if (other.n_rows > max_rows || new_rate <= rate) continue;
        rate = new_rate;
        *at = corner;
        *load = other;
    }
    return rate;
}

/* ---- trials ---- */

typedef struct Trial {
    Corner corner;
    double cost, value; /* tokens */
    bool   is_probe;    /* idle, or hardly believed in: if it is useless, there must be none for a while */
} Trial;

/* A sequence without its drafts. */
typedef struct Rest {
    Load    load;
    int32_t max_rows;
    double  rate, least;  /* tokens for a millisecond; milliseconds of this load */
    double  now;          /* net tokens a round that its plan gives it */
} Rest;

static Rest rest_of(const Controller *c, const Load *load, const Bid *bid, double rate, int32_t max_rows)
{
    Rest rest = { .load = *load, .rate = rate, .max_rows = max_rows };
    load_move(&rest.load, bid, bid->corner[bid->at], bid->corner[0]);
    rest.least = load_ms(c, &rest.load);
    rest.now = (double)bid->corner[bid->at].gain - rate * (load_ms(c, load) - rest.least);
    return rest;
}

/* Share of a token that is saved for each token, if rounds of this gain and price take the place of the plan's. */
static double saved(const Rest *rest, double gain, double price)
{
    return (gain - price - rest->now) / (1 + gain);
}

/* The best part of a belief. */
static HitBelief hopes_of(const HitBelief *b)
{
    HitBelief hope = { .offers = b->offers };
    double left = trial_hope;
    for (int k = HIT_LEVELS - 1; k >= 0; k--) {
        double part = b->p[k] < left ? b->p[k] : left;
        hope.p[k] = part / trial_hope;
        left -= part;
    }
    return hope;
}

/* What method m could give. The width is the one that would be right if hopes come true; the value is what each level
 * would save over the tokens to come, at the width right for it. */
static Trial trial_of(const Controller *c, const Rest *rest, const Bid *bid, int32_t m)
{
    const Method *method = &c->method[m];
    const HitLaw *law = &c->law[method->family];
    const HitBelief *b = &c->seats[bid->wish->slot].belief[method->family];
    HitBelief hope = hopes_of(b);
    double steps = 1 / (rest->rate * plain_ms(c, rest->load.n_seqs)); /* plain ones, for a token of price */
    double most_saved[HIT_LEVELS] = { 0 }, most_hoped = -INFINITY;
    Trial t = { .cost = INFINITY };
    for (int w = 0; w < bid->n_widths[m]; w++) {
        Load with = rest->load;
        Corner corner = width_of(c, bid, m, w);
        load_move(&with, bid, bid->corner[0], corner);
        if (with.n_rows > rest->max_rows) break;
        double price = rest->rate * (load_ms(c, &with) - rest->least);
        double hoped = saved(rest, gain_of(c, bid->wish, m, &hope, w), price);
        if (hoped > most_hoped) t = (Trial){ .corner = corner, .cost = rest->now - ((double)corner.gain - price),
                                             .is_probe = (double)corner.gain < least_belief * price * steps };
        most_hoped = fmax(most_hoped, hoped);
        for (int k = 0; k < HIT_LEVELS; k++) {
            double gain = b->offers * hits_expect_at(law, &method->check, method->face->is_tree, k, w);
            most_saved[k] = fmax(most_saved[k], saved(rest, gain, price));
        }
    }
    for (int k = 0; k < HIT_LEVELS; k++) t.value += b->p[k] * most_saved[k];
    t.value *= trial_insight * (bid->wish->n_left < HORIZON_TOKENS ? bid->wish->n_left : HORIZON_TOKENS);
    t.cost = fmax(t.cost, least_trial);
    t.is_probe |= is_idle(&c->seats[bid->wish->slot], method->family);
    return t;
}

/* Methods of the family at work are compared by their checks. */
static bool may_try(const Controller *c, const Bid *bid, int32_t m)
{
    const Seat *seat = &c->seats[bid->wish->slot];
    int32_t f = c->method[m].family, used = bid->corner[bid->at].method;
    if (bid->n_widths[m] == 0 || seat->belief[f].has_collapsed) return false;
    return used < 0 || c->method[used].family != f;
}

/* At most one sequence a pass tries, the one where it is worth most; if it is too dear yet, savings are kept for it. */
static void add_trial(Controller *c, const Load *load, int32_t n, double rate, int32_t max_rows)
{
    Trial best = { .value = 0 };
    const Bid *who = NULL;
    for (int32_t i = 0; i < n && i < TRIAL_BIDS; i++) {
        const Bid *bid = &c->bids[(c->first_trial + i) % n];
        Rest rest = rest_of(c, load, bid, rate, max_rows);
        for (int32_t m = 0; m < c->n_methods; m++) {
            if (!may_try(c, bid, m)) continue;
            Trial t = trial_of(c, &rest, bid, m);
            if (t.is_probe && c->seats[bid->wish->slot].since_useless < PROBE_TOKENS) continue;
            if (t.value - t.cost <= best.value - best.cost) continue;
            best = t;
            who = bid;
        }
    }
    c->first_trial = n > TRIAL_BIDS ? (c->first_trial + TRIAL_BIDS) % n : 0;
    Seat *seat = who ? &c->seats[who->wish->slot] : NULL;
    if (!who || best.cost > seat->savings) return;
    seat->savings -= best.cost;
    seat->is_probe = best.is_probe;
    who->wish->method = best.corner.method;
    who->wish->n_nodes = best.corner.n_nodes;
    who->wish->is_probe = true;
}

/* ---- the plan ---- */

static Load load_of(const DraftWish *wishes, int32_t n, int32_t n_other)
{
    Load load = { .n_seqs = n, .n_other = n_other };
    for (int32_t i = 0; i < n; i++) {
        load.n_rows += wishes[i].n_nodes;
        if (wishes[i].method < 0) continue;
        load.n_jobs[wishes[i].method]++;
        load.n_nodes[wishes[i].method] += wishes[i].n_nodes;
    }
    return load;
}

/* What the drafts of a sequence cost, in plain steps: its part of the draft and of the rows beyond the anchors. */
static double stake_of(const Controller *c, const Load *load, int32_t m, int32_t n_nodes, double pass, double draft)
{
    int32_t n_drafts = load->n_rows - load->n_seqs;
    double rows = pass - pass_ms(c, load->n_seqs, load->n_other, load->n_seqs);
    double ms = draft / load->n_jobs[m] + (rows > 0 && n_drafts > 0 ? rows * (n_nodes - 1) / n_drafts : 0);
    return ms / plain_ms(c, load->n_seqs);
}

/* Narrower until the credit covers the loss of all of it. */
static void keep_in_credit(const Controller *c, DraftWish *wish, const Load *load)
{
    int32_t m = wish->method;
    double pass = pass_ms(c, load->n_rows, load->n_other, load->n_seqs);
    double draft = draft_ms(c, m, load->n_nodes[m], load->n_jobs[m]);
    Seat *seat = &c->seats[wish->slot];
    while (wish->n_nodes > 1 && stake_of(c, load, m, wish->n_nodes, pass, draft) > seat->credit) wish->n_nodes /= 2;
    if (wish->n_nodes > 1) return;
    wish->method = -1;
    wish->is_probe = seat->is_probe = false;
}

/* A request's own width is taken as it is, as far as limits and rows go. */
static void take_fixed(Controller *c, const Bid *bid, double *tokens, int32_t *max_draft_rows)
{
    DraftWish *wish = bid->wish;
    int32_t m = wish->only_method;
    if (m < 0 || bid->n_widths[m] == 0) return;
    int32_t most = most_nodes(c, wish, m), nodes = wish->fixed_nodes < most ? wish->fixed_nodes : most;
    if (nodes > *max_draft_rows + 1) nodes = *max_draft_rows + 1;
    if (nodes <= 1) return;
    wish->method = m;
    wish->n_nodes = nodes;
    *max_draft_rows -= nodes - 1;
    *tokens += (double)bid->gain[m][hits_width(c->method[m].face->is_tree, nodes)];
}

/* Of wishes without a width of their own; returns how many. */
static int32_t open_bids(Controller *c, DraftWish *wishes, int32_t n, double *tokens, int32_t *max_draft_rows)
{
    int32_t n_bids = 0;
    for (int32_t i = 0; i < n; i++) {
        DraftWish *wish = &wishes[i];
        Bid *bid = &c->bids[n_bids];
        wish->method = -1;
        wish->n_nodes = 1;
        wish->is_probe = c->seats[wish->slot].is_probe = false;
        if (wish->max_nodes <= 1) continue;
        bid_open(c, bid, wish);
        if (wish->fixed_nodes > 0) take_fixed(c, bid, tokens, max_draft_rows);
        else n_bids++;
    }
    return n_bids;
}

void controller_plan(Controller *c, DraftWish *wishes, int32_t n, int32_t n_other, int32_t max_draft_rows)
{
    double tokens = n;
    int32_t n_bids = open_bids(c, wishes, n, &tokens, &max_draft_rows);
    if (n_bids == 0 || (n_other == 0 && !plain_is_known(c, n))) return;
    Load load = load_of(wishes, n, n_other);
    load.tokens = tokens;
    int32_t max_rows = load.n_rows + max_draft_rows;
    double rate = share_out(c, &load, n_bids, max_draft_rows);
    for (int32_t i = 0; i < n_bids; i++) {
        const Bid *bid = &c->bids[i];
        load_move(&load, bid, bid->corner[0], bid->corner[bid->at]);
    }
    for (int32_t i = 0; i < n_bids && n_bids <= FEW_BIDS; i++) rate = settle(c, &c->bids[i], &load, max_rows, rate);
    for (int32_t i = 0; i < n_bids; i++) {
        Corner got = c->bids[i].corner[c->bids[i].at];
        c->bids[i].wish->method = got.method;
        c->bids[i].wish->n_nodes = got.n_nodes;
    }
    add_trial(c, &load, n_bids, rate, max_rows);
    load = load_of(wishes, n, n_other);
    for (int32_t i = 0; i < n_bids; i++)
        if (c->bids[i].wish->method >= 0) keep_in_credit(c, c->bids[i].wish, &load);
}

/* ---- learning ---- */

/* Drafts of several methods are timed together: each takes its part of the surprise. One that had much to take in
 * first is no measure of the draft itself. */
static void learn_drafts(Controller *c, const PassReport *r)
{
    int32_t n_jobs[MAX_METHODS] = { 0 }, n_nodes[MAX_METHODS] = { 0 }, n_idle[MAX_METHODS] = { 0 };
    double expected = 0;
    for (int32_t i = 0; i < r->n_rounds; i++) {
        const DraftRound *round = &r->rounds[i];
        if (round->method < 0) continue;
        int32_t idle = c->seats[round->slot].idle_tokens[c->method[round->method].family];
        n_jobs[round->method]++;
        n_nodes[round->method] += round->n_asked;
        n_idle[round->method] += idle >= CATCH_UP_TOKENS ? idle : 0;
    }
    for (int32_t m = 0; m < c->n_methods; m++) expected += draft_ms(c, m, n_nodes[m], n_jobs[m]);
    for (int32_t m = 0; m < c->n_methods; m++) {
        if (n_jobs[m] == 0) continue;
        Method *method = &c->method[m];
        double usual = draft_ms(c, m, n_nodes[m], n_jobs[m]), ms = r->draft_ms * usual / expected;
        if (n_idle[m]) method->catch_up_ms += 0.3 * (fmax(ms - usual, 0) / n_idle[m] - method->catch_up_ms);
        else cost_took(&method->cost, (n_nodes[m] + n_jobs[m] / 2) / n_jobs[m], n_jobs[m], ms);
    }
}

static void learn_hits(Controller *c, Seat *seat, const DraftRound *round)
{
    const Method *method = &c->method[round->method];
    HitLaw *law = &c->law[method->family];
    HitBelief *b = &seat->belief[method->family];
    HitRound shown = { .is_tree = method->face->is_tree, .n_nodes = round->n_nodes, .n_depth = round->n_depth,
                       .n_accepted = round->n_accepted, .n_spine = round->n_spine,
                       .n_spine_accepted = round->n_spine_accepted, .nodes = round->nodes, .is_cut = round->is_cut };
    double seen[HIT_LEVELS];
    for (int32_t m = 0; m < c->n_methods; m++) {
        if (m == round->method) hits_check_learn(law, &c->method[m].check, b, &shown);
        else if (c->method[m].family == method->family) hits_check_fade(&c->method[m].check);
    }
    hits_seen(law, &shown, seen);
    int32_t drafted = shown.n_nodes > 1 ? method->family : -1;
    double change = texts_learn(&c->texts, &seat->text, drafted, seen, round->n_emitted);
    texts_levels(&seat->text, method->family, b->p);
    hits_learn(law, b, &shown);
    b->has_collapsed = shown.n_nodes > 1 && shown.n_spine_accepted == 0 && change > 0.5;
}

/* A probe goes on as long as its family is used; while it has lost more than it gained, it is a useless one. */
static void learn_trial(Seat *seat, int32_t used, double gain)
{
    if (seat->is_probe) {
        seat->trial = used;
        seat->trial_gain = 0;
    } else if (seat->trial != used) {
        seat->trial = -1;
    }
    seat->is_probe = false;
    if (seat->trial < 0) return;
    seat->trial_gain += gain;
    if (seat->trial_gain < 0) seat->since_useless = 0;
}

static void learn_round(Controller *c, const DraftRound *round, double stake)
{
    Seat *seat = &c->seats[round->slot];
    int32_t used = round->method >= 0 ? c->method[round->method].family : -1;
    if (used >= 0) learn_hits(c, seat, round);
    else texts_learn(&c->texts, &seat->text, -1, NULL, round->n_emitted);
    seat->since_useless += round->n_emitted;
    seat->savings = fmin(seat->savings + savings_per_token * round->n_emitted, full_savings);
    for (int32_t f = 0; f < c->n_families; f++) {
        texts_levels(&seat->text, f, seat->belief[f].p);
        if (f != used) hits_idle(&c->law[f], &seat->belief[f], round->n_emitted);
        seat->idle_tokens[f] = f == used ? 0 : seat->idle_tokens[f] + round->n_emitted;
        seat->idle_rounds[f] = f == used ? 0 : seat->idle_rounds[f] + 1;
    }
    double gain = round->n_emitted - 1 - stake;
    learn_trial(seat, used, gain);
    seat->credit = fmin(seat->credit + credit_per_token * round->n_emitted + gain, full_credit);
}

void controller_learn(Controller *c, const PassReport *r)
{
    if (r->n_rounds == 0) return; /* prompts alone: nothing was decided */
    Load load = { .n_seqs = r->n_rounds, .n_other = r->n_other, .n_rows = r->n_rows - r->n_other };
    for (int32_t i = 0; i < r->n_rounds; i++)
        if (r->rounds[i].method >= 0) load.n_jobs[r->rounds[i].method]++;
    int32_t n_jobs = 0;
    for (int32_t m = 0; m < c->n_methods; m++) n_jobs += load.n_jobs[m];
    if (n_jobs) learn_drafts(c, r);
    cost_took(r->n_other ? &c->mixed : &c->pass, r->n_rows, r->n_rounds, r->pass_ms);
    if (n_jobs == 0 && r->n_other == 0) c->plain_at[cost_seqs_bucket(r->n_rounds)] = c->pass.n_measured;
    for (int32_t i = 0; i < r->n_rounds; i++) {
        const DraftRound *round = &r->rounds[i];
        double stake = 0;
        if (round->method >= 0) {
            double draft = r->draft_ms * load.n_jobs[round->method] / n_jobs;
            stake = stake_of(c, &load, round->method, round->n_nodes, r->pass_ms, draft);
        }
        learn_round(c, round, stake);
    }
}

/* ---- questions ---- */

double controller_pass_ms(const Controller *c, int32_t n_rows, int32_t n_seqs)
{
    return cost_of(&c->pass, n_rows, n_seqs);
}

double controller_expected(const Controller *c, int32_t slot, int32_t method, int32_t n_nodes)
{
    const Method *m = &c->method[method];
    const HitBelief *b = &c->seats[slot].belief[m->family];
    int w = hits_width(m->face->is_tree, n_nodes);
    return w < 0 ? 1 : 1 + b->offers * hits_expect(&c->law[m->family], &m->check, b, m->face->is_tree, w);
}
