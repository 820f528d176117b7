/* A table of levels, and what follows from a level.
 *
 * Level k hits at depth d with logit  logit(level[k]) + shift[d]:  the shift is how this drafter fades with depth,
 * learnt over all requests.
 *
 * Trees. The second, third ... guess of a row is taken to hit with a falling share of the first one's chance, and below
 * such a guess the drafter is off its path and hits less. From that the best tree of n nodes follows for every level,
 * and what each width adds to the one before. Real drafters differ, so what a width adds is corrected by the accepted
 * nodes counted there: nodes are numbered as they grew, hence one walked tree tells about all smaller ones. Its line of
 * first guesses is a chain, from which the level is learnt, so that chains and trees of one network agree on it.
 *
 * What remains wrong is measured: accepted over promised, for each method at each level (HitCheck). Measurements
 * fade, also while a method is not used, and what is little known is taken for a little better than it was. So a
 * method that was once misjudged is tried again. */
#include "speculation/hits.h"

#include <math.h>
#include <string.h>

static const double level[HIT_LEVELS] = { 0.002, 0.08, 0.17, 0.26, 0.36, 0.46, 0.56, 0.65,
                                          0.74, 0.82, 0.88, 0.93, 0.965, 0.99, 0.999 };
static const double next_guess = 0.85, off_path = 0.6; /* trees, see above; near what two small trained pairs showed */
static const double memory = 0.998; /* a round */
static const double check_drafts = 10, check_hope = 0.6;
static const double idle_memory = 0.996; /* a token */
enum { TREE_RANKS = 12, STALE_ROUNDS = 500, YOUNG_ROUNDS = 32, YOUNG_TOKENS = 4000 };

/* ---- widths ---- */

static const int16_t tree_nodes[HIT_WIDTHS] = { 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 17, 20, 24, 28,
                                                32, 33, 40, 48, 56, 64, 65, 80, 96,
                                                128, 160, 192, 256, 384, 512, 1024 };

int32_t hits_nodes(bool is_tree, int w)
{
    return is_tree ? tree_nodes[w] : w + 2;
}

int hits_width(bool is_tree, int32_t n_nodes)
{
    int w = HIT_WIDTHS - 1;
    while (w >= 0 && hits_nodes(is_tree, w) > n_nodes) w--;
    return w;
}

/* ---- tables ---- */

/* The chance p with its logit moved by `shift`. */
static double shifted(double p, double shift)
{
    double x = p * exp(shift);
    return x / (1 - p + x);
}

static double hit_chance(const HitLaw *law, int k, int depth)
{
    return shifted(level[k], law->shift[depth]);
}

static void make_chains(HitLaw *law)
{
    for (int k = 0; k < HIT_LEVELS; k++) {
        double reach = 1, sum = 0;
        law->reach[k][0] = 1;
        for (int d = 1; d < MAX_DEPTH; d++) {
            reach *= hit_chance(law, k, d);
            sum += reach;
            law->reach[k][d] = (float)reach;
            law->chain[k][d - 1] = (float)sum; /* d + 1 nodes are width d - 1 */
        }
        law->chain[k][HIT_WIDTHS - 1] = (float)sum;
    }
}

/* A node of the model tree that may come next: a guess of some rank below a node of this chance. */
typedef struct Bud {
    float  chance, parent;
    int8_t depth, rank;
    bool   is_off; /* below a guess that was not the first */
} Bud;

enum { MAX_BUDS = 1024 };

static double rank_chance(double first, int rank)
{
    return first * pow(next_guess * (1 - first), rank);
}

static Bud bud_make(const HitLaw *law, int k, double parent, int depth, int rank, bool is_off)
{
    double first = hit_chance(law, k, depth) * (is_off ? off_path : 1);
    return (Bud){ (float)(parent * rank_chance(first, rank)), (float)parent, (int8_t)depth, (int8_t)rank, is_off };
}

static void bud_push(Bud *heap, int *n, Bud bud)
{
    if (*n == MAX_BUDS) return;
    int i = (*n)++;
    for (; i > 0 && heap[(i - 1) / 2].chance < bud.chance; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = bud;
}

static Bud bud_pop(Bud *heap, int *n)
{
    Bud best = heap[0], last = heap[--*n];
    int i = 0;
    for (int child = 1; child < *n; i = child, child = 2 * i + 1) {
        if (child + 1 < *n && heap[child + 1].chance > heap[child].chance) child++;
        if (heap[child].chance <= last.chance) break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return best;
}

/* Best-first, as ddtree.c does it, on chances that the level implies. */
static void make_tree(HitLaw *law, int k)
{
    Bud heap[MAX_BUDS];
    int n_buds = 0, w = 0;
    double sum = 0;
    memset(law->added[k], 0, sizeof law->added[k]);
    bud_push(heap, &n_buds, bud_make(law, k, 1, 1, 0, false));
    for (int n_nodes = 2; n_nodes <= law->max_tree_nodes && n_buds > 0; n_nodes++) {
        Bud b = bud_pop(heap, &n_buds);
        sum += (double)b.chance;
        if (b.rank + 1 < TREE_RANKS) bud_push(heap, &n_buds, bud_make(law, k, b.parent, b.depth, b.rank + 1, b.is_off));
        if (b.depth + 1 < MAX_DEPTH)
            bud_push(heap, &n_buds, bud_make(law, k, b.chance, b.depth + 1, 0, b.is_off || b.rank > 0));
        if (n_nodes < tree_nodes[w]) continue;
        law->added[k][w++] = (float)sum;
        sum = 0;
    }
}

/* What the model promises, times what was found; widths never seen are like the widest that was. */
static void correct_trees(HitLaw *law)
{
    double sum[HIT_LEVELS] = { 0 }, ratio = 1;
    for (int w = 0; w < HIT_WIDTHS; w++) {
        if (law->tree_expected[w] > 0) ratio = (law->tree_hits[w] + 2) / (law->tree_expected[w] + 2);
        for (int k = 0; k < HIT_LEVELS; k++) {
            sum[k] += ratio * (double)law->added[k][w];
            law->tree[k][w] = (float)sum[k];
        }
    }
}

static void make_tables(HitLaw *law)
{
    law->n_stale = 0;
    make_chains(law);
    for (int k = 0; law->max_tree_nodes > 1 && k < HIT_LEVELS; k++) make_tree(law, k);
    correct_trees(law);
}

void hits_init(HitLaw *law, int32_t max_tree_nodes)
{
    *law = (HitLaw){ .offers = 1, .max_tree_nodes = max_tree_nodes };
    make_tables(law);
}

double hits_expect_at(const HitLaw *law, const HitCheck *check, bool is_tree, int k, int w)
{
    return check->ratio[k] * (double)(is_tree ? law->tree : law->chain)[k][w];
}

double hits_expect(const HitLaw *law, const HitCheck *check, const HitBelief *b, bool is_tree, int w)
{
    double sum = 0;
    for (int k = 0; k < HIT_LEVELS; k++) sum += b->p[k] * hits_expect_at(law, check, is_tree, k, w);
    return sum;
}

/* ---- the check of what was promised ---- */

/* Neighbours count half: levels are close. */
static void make_ratios(HitCheck *check)
{
    for (int k = 0; k < HIT_LEVELS; k++) {
        double accepted = check_drafts, promised = check_drafts;
        for (int i = k > 0 ? k - 1 : 0; i <= k + 1 && i < HIT_LEVELS; i++) {
            accepted += (i == k ? 1 : 0.5) * check->accepted[i];
            promised += (i == k ? 1 : 0.5) * check->promised[i];
        }
        check->ratio[k] = accepted / promised + check_hope / sqrt(promised);
    }
}

void hits_check_init(HitCheck *check)
{
    *check = (HitCheck){ 0 };
    make_ratios(check);
}

static void fade(double *values, int n)
{
    for (int i = 0; i < n; i++) values[i] *= memory;
}

void hits_check_fade(HitCheck *check)
{
    fade(check->accepted, HIT_LEVELS);
    fade(check->promised, HIT_LEVELS);
    make_ratios(check);
}

void hits_check_learn(const HitLaw *law, HitCheck *check, const HitBelief *b, const HitRound *r)
{
    int w = hits_width(r->is_tree, r->n_nodes);
    if (w < 0 || r->is_cut) return;
    double promised[HIT_LEVELS], all = 1e-9;
    for (int k = 0; k < HIT_LEVELS; k++) {
        promised[k] = b->p[k] * (double)(r->is_tree ? law->tree : law->chain)[k][w];
        all += promised[k];
    }
    fade(check->accepted, HIT_LEVELS);
    fade(check->promised, HIT_LEVELS);
    for (int k = 0; k < HIT_LEVELS; k++) {
        check->promised[k] += promised[k];
        check->accepted[k] += r->n_accepted * promised[k] / all;
    }
    make_ratios(check);
}

/* ---- learning ---- */

void hits_idle(const HitLaw *law, HitBelief *b, int32_t n_tokens)
{
    b->has_collapsed = false;
    b->offers = law->offers + (b->offers - law->offers) * pow(idle_memory, n_tokens);
}

static double seen_chance(const HitLaw *law, int k, const HitRound *r)
{
    double chance = (double)law->reach[k][r->n_spine_accepted];
    if (r->n_spine_accepted < r->n_spine && !r->is_cut) chance -= (double)law->reach[k][r->n_spine_accepted + 1];
    return chance > 1e-4 ? chance : 1e-4; /* nothing is impossible: a model is only a model */
}

void hits_seen(const HitLaw *law, const HitRound *r, double seen[HIT_LEVELS])
{
    for (int k = 0; k < HIT_LEVELS; k++) seen[k] = seen_chance(law, k, r);
}

/* Newton's step of a shift towards what explains a hit or a miss; chance[k]: of the hit at each level. */
static void learn_shift(double *shift, double *n, const HitBelief *b, const double chance[HIT_LEVELS], bool is_hit)
{
    double hit = 0, spread = 0;
    for (int k = 0; k < HIT_LEVELS; k++) {
        hit += b->p[k] * chance[k];
        spread += b->p[k] * chance[k] * (1 - chance[k]);
    }
    *shift += (is_hit - hit) / (spread > 0.05 ? spread : 0.05) / (*n + 30);
    *shift = fmin(fmax(*shift, -4), 4);
    *n += *n < 400;
}

/* Depth by depth: did it hit more often than the belief said? The first level of a chain is what levels are made of. */
static void learn_spine(HitLaw *law, const HitBelief *b, const HitRound *r)
{
    double chance[HIT_LEVELS];
    for (int d = 2; d <= r->n_spine_accepted + (r->n_spine_accepted < r->n_spine && !r->is_cut); d++) {
        for (int k = 0; k < HIT_LEVELS; k++) chance[k] = hit_chance(law, k, d);
        learn_shift(&law->shift[d], &law->n_shift[d], b, chance, d <= r->n_spine_accepted);
    }
}

static void learn_tree(HitLaw *law, const HitBelief *b, const HitRound *r)
{
    int32_t n = 0;
    for (int w = 0; w <= hits_width(true, r->n_nodes); w++) {
        double hits = 0, expected = 0;
        for (; n < r->n_accepted && r->nodes[n] < tree_nodes[w]; n++) hits++;
        for (int k = 0; k < HIT_LEVELS; k++) expected += b->p[k] * (double)law->added[k][w];
        law->tree_hits[w] += hits;
        law->tree_expected[w] += expected;
    }
    correct_trees(law);
}

void hits_learn(HitLaw *law, HitBelief *b, const HitRound *r)
{
    b->offers += 0.1 * ((r->n_nodes > 1) - b->offers);
    law->offers += 0.01 * ((r->n_nodes > 1) - law->offers);
    if (r->n_nodes <= 1) return;
    learn_spine(law, b, r);
    fade(law->tree_hits, HIT_WIDTHS);
    fade(law->tree_expected, HIT_WIDTHS);
    if (r->is_tree && !r->is_cut) learn_tree(law, b, r);
    if (law->n_young < YOUNG_TOKENS) law->n_young += r->n_accepted + 1;
    if (++law->n_stale >= (law->n_young < YOUNG_TOKENS ? YOUNG_ROUNDS : STALE_ROUNDS)) make_tables(law);
}
