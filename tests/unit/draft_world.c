/* See draft_world.h. Chains are Bernoulli trials down the depths. Trees are the best-first trees of the true chances, and the
 * true token of a row has a rank: if a node of that rank hangs there, the walk goes on. */
#include "draft_world.h"

#include <string.h>

enum { BLOCK_DEPTH = 15, MAX_BUDS = 8 * WORLD_NODES };

static double between(Random *r, double low, double high)
{
    return low + (high - low) * random_unit(r);
}

static double logit(double p)
{
    return log(p / (1 - p));
}

/* ---- what passes take ---- */

/* Flat, linear, with a cliff and a plain behind it, or with a bend. */
static void make_passes(World *w, Random *r)
{
    double one = exp(between(r, 0, 4)), slope = between(r, 0, 0.02), cliff = 0, steep = slope;
    int32_t bend = WORLD_NODES, kind = random_below(r, 4);
    if (kind == 0) slope = steep = between(r, 0, 0.012);
    if (kind == 1) slope = steep = exp(between(r, log(0.015), log(0.35)));
    if (kind >= 2) bend = kind == 2 ? 4 << random_below(r, 3) : 4 + random_below(r, 12);
    if (kind == 2) cliff = between(r, 0.15, 0.8), steep = slope + between(r, 0, 0.05);
    if (kind == 3) steep = slope + between(r, 0.05, 0.3);
    for (int32_t n = 1; n < WORLD_NODES; n++) {
        int32_t before = n < bend ? n : bend;
        w->pass_ms[n] = one * (1 + slope * (before - 1) + (n > bend ? cliff + steep * (n - bend) : 0));
    }
}

double world_draft_ms(const World *w, int32_t m, int32_t n_nodes)
{
    return m < 0 || n_nodes < 2 ? 0 : w->draft_ms[m] + w->node_ms[m] * (n_nodes - 1);
}

double world_round_ms(const World *w, int32_t m, int32_t n_nodes)
{
    return w->pass_ms[n_nodes] + world_draft_ms(w, m, n_nodes);
}

/* ---- trees ---- */

static double rank_chance(const HitRates *h, int32_t depth, bool below_off, int32_t rank)
{
    double first = h->first[depth] * (below_off ? h->off_path : 1);
    return first * pow(h->next * (1 - first), rank);
}

static WorldNode bud_of(const HitRates *h, const WorldNode *parent, int32_t parent_idx, int32_t rank)
{
    WorldNode bud = { .parent_chance = parent->chance, .parent = parent_idx, .depth = parent->depth + 1, .rank = rank,
                      .is_off = parent->is_off || rank > 0 };
    bud.chance = parent->chance * rank_chance(h, bud.depth, parent->is_off, rank);
    return bud;
}

static int32_t grow(const HitRates *h, int32_t n_nodes, WorldNode tree[WORLD_NODES])
{
    WorldNode buds[MAX_BUDS];
    int32_t n = 1, n_buds = 1;
    tree[0] = (WorldNode){ .chance = 1, .parent = -1 };
    buds[0] = bud_of(h, &tree[0], 0, 0);
    while (n < n_nodes && n_buds > 0) {
        int32_t best = 0;
        for (int32_t i = 1; i < n_buds; i++)
            if (buds[i].chance > buds[best].chance) best = i;
        WorldNode node = tree[n] = buds[best];
        buds[best] = buds[--n_buds];
        if (node.rank + 1 < WORLD_RANKS) buds[n_buds++] = bud_of(h, &tree[node.parent], node.parent, node.rank + 1);
        if (node.depth < BLOCK_DEPTH) buds[n_buds++] = bud_of(h, &tree[n], n, 0);
        n++;
    }
    return n;
}

/* ---- rounds ---- */

static void play_chain(const HitRates *h, Random *r, int32_t n_nodes, WorldRound *out)
{
    *out = (WorldRound){ .n_depth = n_nodes - 1, .n_spine = n_nodes - 1 };
    while (out->n_accepted < n_nodes - 1 && random_unit(r) < h->first[out->n_accepted + 1]) {
        out->nodes[out->n_accepted] = out->n_accepted + 1;
        out->n_accepted++;
    }
    out->n_spine_accepted = out->n_accepted;
}

static int32_t true_rank(const HitRates *h, Random *r, int32_t depth, bool below_off)
{
    double x = random_unit(r);
    for (int32_t rank = 0; rank < WORLD_RANKS; rank++) {
        x -= rank_chance(h, depth, below_off, rank);
        if (x < 0) return rank;
    }
    return WORLD_RANKS;
}

static void play_tree(const HitRates *h, Random *r, const WorldNode *tree, int32_t n, WorldRound *out)
{
    int32_t at = 0;
    *out = (WorldRound){ 0 };
    for (int32_t i = 1; i < n; i++) {
        if (tree[i].depth > out->n_depth) out->n_depth = tree[i].depth;
        out->n_spine += !tree[i].is_off;
    }
    while (at >= 0 && tree[at].depth < BLOCK_DEPTH) {
        int32_t rank = true_rank(h, r, tree[at].depth + 1, tree[at].is_off), child = n - 1;
        while (child > 0 && (tree[child].parent != at || tree[child].rank != rank)) child--;
        if (child == 0) return;
        out->nodes[out->n_accepted++] = at = child;
        out->n_spine_accepted += !tree[at].is_off;
    }
}

void world_play(const World *w, Random *r, int32_t text, int32_t m, int32_t n_nodes, WorldRound *out)
{
    const HitRates *h = &w->rates[text][w->method[m].family];
    int32_t n = w->n_grown[text][m];
    if (w->method[m].is_tree) play_tree(h, r, w->tree[text][m], n_nodes < n ? n_nodes : n, out);
    else play_chain(h, r, n_nodes, out);
}

/* ---- drafters ---- */

static void add_method(World *w, const char *name, int32_t family, int32_t max_nodes, bool is_tree, double draft_ms, double node_ms)
{
    int32_t m = w->n_methods++;
    w->method[m] = (DraftMethod){ .name = name, .family = family, .is_tree = is_tree, .max_nodes = max_nodes,
                                  .max_depth = is_tree ? BLOCK_DEPTH : max_nodes - 1 };
    w->draft_ms[m] = draft_ms;
    w->node_ms[m] = node_ms;
}

static void make_methods(World *w, Random *r, bool one_network)
{
    static const int32_t budgets[] = { 16, 33, 65 };
    double one = w->pass_ms[1];
    int32_t kinds = one_network ? 1 << random_below(r, 3) : 1 + random_below(r, 7);
    if (kinds & 1) add_method(w, "steps", w->n_families++, 4 + random_below(r, 5), false, 0, one * between(r, 0.02, 0.1));
    if (kinds & 2) {
        double ms = one * between(r, 0.04, 0.25);
        add_method(w, "block", w->n_families, 16, false, ms, 0);
        if (random_below(r, 2)) add_method(w, "tree", w->n_families, budgets[random_below(r, 3)], true, 1.05 * ms, 0);
        w->n_families++;
    }
    if (kinds & 4) add_method(w, "cheap", w->n_families++, 16, false, one * between(r, 0.001, 0.02), 0);
}

static void make_rates(World *w, Random *r, WorldChange change)
{
    double shift = change == HARDER ? between(r, -2.5, -0.7) : change == EASIER ? between(r, 0.5, 1.5) : 0;
    int32_t dying = random_below(r, w->n_families);
    for (int32_t f = 0; f < w->n_families; f++) {
        double usual = logit(between(r, 0.35, 0.93)), fade = random_below(r, 2) ? 1 : between(r, 0.95, 1);
        double next = between(r, 0.6, 0.95), off_path = between(r, 0.3, 0.9);
        for (int32_t text = 0; text < WORLD_TEXTS; text++) {
            HitRates *h = &w->rates[text][f];
            double x = usual + between(r, -0.4, 0.4) + (text == 3 ? shift : 0), first = fmin(1 / (1 + exp(-x)), 0.97);
            if (text == 4 || (text == 3 && (change == ALL_DIE || (change == ONE_DIES && f == dying)))) first = 0;
            *h = (HitRates){ .next = next, .off_path = off_path };
            for (int32_t d = 1; d < MAX_DEPTH; d++, first *= fade) h->first[d] = first;
        }
    }
}

static void fill_expected(World *w)
{
    for (int32_t text = 0; text < WORLD_TEXTS; text++) {
        for (int32_t m = 0; m < w->n_methods; m++) {
            const HitRates *h = &w->rates[text][w->method[m].family];
            double *expected = w->expected[text][m], reach = 1;
            const WorldNode *tree = w->tree[text][m];
            int32_t n = w->n_grown[text][m] = w->method[m].is_tree ? grow(h, w->method[m].max_nodes, w->tree[text][m]) : 0;
            expected[1] = 1;
            for (int32_t i = 1; i < w->method[m].max_nodes; i++) {
                reach = !w->method[m].is_tree ? reach * h->first[i] : i < n ? tree[i].chance : 0;
                expected[i + 1] = expected[i] + reach;
            }
        }
    }
}

void world_make(World *w, Random *r, bool one_network, WorldChange change)
{
    memset(w, 0, sizeof *w);
    make_passes(w, r);
    make_methods(w, r, one_network);
    make_rates(w, r, change);
    fill_expected(w);
}
