/* The controller in simulated time: a machine and drafters whose costs and hits are known exactly (draft_world.h),
 * so that what it decides can be compared with the best that could have been decided. Seeds are printed; give one as
 * argument. */
#include "speculation/controller.h"
#include "base/memory.h"
#include "draft_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { SLOTS = 8, TOKENS = 256, PROBE_TOKENS = 64, IDLE_ROUNDS = 20 };

static uint64_t first_seed = 20260101;

/* ---- a controller by hand ---- */

static Controller *open_controller(const DraftMethod *methods, int32_t n)
{
    Controller *c;
    Error err = { 0 };
    ControllerOptions options = { .n_slots = SLOTS, .n_methods = n, .methods = methods };
    assert_int_equal(controller_open(&c, &options, &err), OK);
    return c;
}

static DraftWish wish_of(int32_t slot)
{
    DraftWish wish = { .slot = slot, .max_nodes = 65, .max_depth = MAX_DEPTH - 1, .n_left = 1000, .only_method = -1 };
    for (int m = 0; m < MAX_METHODS; m++) wish.foreseen[m] = -1;
    return wish;
}

static DraftRound round_of(const DraftWish *wish, int32_t n_accepted)
{
    bool drafts = wish->method >= 0;
    return (DraftRound){ .slot = wish->slot, .method = wish->method, .n_asked = wish->n_nodes, .n_nodes = wish->n_nodes,
                         .n_depth = drafts ? wish->n_nodes - 1 : 0, .n_accepted = n_accepted, .n_emitted = n_accepted + 1,
                         .n_spine = drafts ? wish->n_nodes - 1 : 0, .n_spine_accepted = n_accepted };
}

/* One round of a chain drafter in slot 0: plan, `hits` drafts accepted at most, a pass of 1 + slope * (rows - 1) ms. */
static DraftWish one_round(Controller *c, int32_t hits, double slope, double draft_ms)
{
    DraftWish wish = wish_of(0);
    controller_plan(c, &wish, 1, 0, 64);
    DraftRound round = round_of(&wish, wish.n_nodes - 1 < hits ? wish.n_nodes - 1 : hits);
    PassReport report = { .n_rows = wish.n_nodes, .draft_ms = wish.method < 0 ? 0 : draft_ms,
                          .pass_ms = 1 + slope * (wish.n_nodes - 1), .n_rounds = 1, .rounds = &round };
    controller_learn(c, &report);
    return wish;
}

static const DraftMethod chain16 = { .name = "block", .max_nodes = 16, .max_depth = 15 };

/* The first pass is plain: without it there is nothing to compare with. */
static void test_plain_comes_first(void **state)
{
    Controller *c = open_controller(&chain16, 1);
    controller_begin(c, 0, 10);
    assert_int_equal(one_round(c, 15, 0.01, 0.1).n_nodes, 1);
    assert_true(one_round(c, 15, 0.01, 0.1).n_nodes > 1);
    controller_close(c);
}

/* Always right and nearly free: as wide as it goes. Right twice a round and steep: two. Never right: plain. */
static void test_width_follows_cost_and_hits(void **state)
{
    static const struct {
        int32_t hits;
        double  slope;
        int32_t low, high;
    } cases[] = { { 15, 0.01, 16, 16 }, { 15, 0.3, 16, 16 }, { 2, 0.1, 3, 4 }, { 2, 0.3, 3, 3 }, { 0, 0.01, 1, 1 }, { 0, 0.3, 1, 1 } };
    for (int i = 0; i < COUNT(cases); i++) {
        Controller *c = open_controller(&chain16, 1);
        int32_t nodes = 0, n_wrong = 0;
        for (int request = 0; request < 4; request++) {
            controller_begin(c, 0, 10);
            for (int k = 0; k < 100; k++) {
                nodes = one_round(c, cases[i].hits, cases[i].slope, 0.05).n_nodes;
                n_wrong += request == 3 && (nodes < cases[i].low || nodes > cases[i].high);
            }
        }
        if (n_wrong > 12) fail_msg("hits %d, slope %.2f: width %d, %d of 100 wrong", cases[i].hits, cases[i].slope, nodes, n_wrong);
        controller_close(c);
    }
}

/* What earlier requests taught holds from the first round of the next. */
static void test_priors_are_carried(void **state)
{
    for (int32_t hits = 0; hits <= 15; hits += 15) {
        Controller *c = open_controller(&chain16, 1);
        for (int request = 0; request < 8; request++) {
            controller_begin(c, 0, 10);
            for (int k = 0; k < 60; k++) one_round(c, hits, 0.1, 0.1);
        }
        controller_begin(c, 0, 10);
        int32_t n_right = 0;
        for (int k = 0; k < 10; k++) n_right += one_round(c, hits, 0.1, 0.1).n_nodes == hits + 1;
        if (n_right < 8) fail_msg("%d of 10 first rounds are right with %d hits", n_right, hits);
        controller_close(c);
    }
}

typedef struct Fall {
    int32_t n_rounds; /* still drafted for after hits have stopped altogether */
    double  lost_ms;  /* against plain decoding, of 1 ms a token */
} Fall;

/* Hits were `hit` likely before. */
static Fall fall_from(double hit, Random *r)
{
    Controller *c = open_controller(&chain16, 1);
    Fall fall = { 0 };
    for (int request = 0; request < 3; request++) {
        controller_begin(c, 0, 10);
        for (int k = 0; k < 40; k++) {
            int32_t hits = 0;
            while (hits < 15 && random_unit(r) < hit) hits++;
            one_round(c, hits, 0.1, 0.1);
        }
    }
    for (; fall.n_rounds < 50; fall.n_rounds++) {
        int32_t nodes = one_round(c, 0, 0.1, 0.1).n_nodes;
        if (nodes == 1) break;
        fall.lost_ms += 0.1 + 0.1 * (nodes - 1);
    }
    controller_close(c);
    return fall;
}

/* Off in one round where drafts were always right. Where they missed by accident before, a miss is no news: width
 * shrinks with belief, down to single guesses for a while, and a few plain steps are lost in all. */
static void test_collapse_turns_drafting_off(void **state)
{
    static const double before[] = { 1, 0.97, 0.9, 0.8, 0.7 };
    Random r = { first_seed };
    for (int i = 0; i < COUNT(before); i++) {
        Fall most = { 0 };
        for (int k = 0; k < 20; k++) {
            Fall fall = fall_from(before[i], &r);
            if (fall.n_rounds > most.n_rounds) most.n_rounds = fall.n_rounds;
            most.lost_ms = fmax(most.lost_ms, fall.lost_ms);
        }
        printf("hits collapse from %.2f: off after at most %d rounds, %.1f plain steps lost\n", before[i], most.n_rounds, most.lost_ms);
        assert_true(most.n_rounds <= (before[i] == 1 ? 1 : 20) && most.lost_ms < 6.4);
    }
}

/* ---- limits ---- */

static void teach(Controller *c, int32_t slot, int32_t method, int32_t hits, int32_t n_rounds)
{
    for (int k = 0; k < n_rounds; k++) {
        DraftWish wish = wish_of(slot);
        wish.only_method = method;
        wish.fixed_nodes = k == 0 ? 0 : 8;
        if (k > 0) controller_plan(c, &wish, 1, 0, 64);
        else wish.method = -1, wish.n_nodes = 1;
        DraftRound round = round_of(&wish, k ? hits : 0);
        PassReport report = { .n_rows = wish.n_nodes, .draft_ms = 0.05, .pass_ms = 1 + 0.02 * (wish.n_nodes - 1), .n_rounds = 1, .rounds = &round };
        controller_learn(c, &report);
    }
}

static void test_limits_are_kept(void **state)
{
    DraftMethod methods[] = { chain16, { .name = "tree", .family = 1, .is_tree = true, .max_nodes = 65, .max_depth = 15 } };
    Controller *c = open_controller(methods, 2);
    controller_begin(c, 0, 10);
    teach(c, 0, 0, 7, 20);
    for (int32_t most = 1; most <= 20; most++) {
        DraftWish wish = wish_of(0);
        wish.max_nodes = most;
        controller_plan(c, &wish, 1, 0, 64);
        assert_in_range(wish.n_nodes, most > 1 ? 2 : 1, most);
        wish = wish_of(0);
        wish.max_depth = most - 1;
        wish.only_method = 0;
        controller_plan(c, &wish, 1, 0, 64);
        assert_in_range(wish.n_nodes, most > 1 ? 2 : 1, most);
        wish = wish_of(0);
        controller_plan(c, &wish, 1, 0, most - 1);
        assert_in_range(wish.n_nodes, 1, most);
        wish = wish_of(0);
        wish.foreseen[0] = most - 1;
        wish.only_method = 0;
        controller_plan(c, &wish, 1, 0, 64);
        assert_in_range(wish.n_nodes, most > 1 ? 2 : 1, most);
    }
    strcpy(methods[0].off, "for this test");
    DraftWish wish = wish_of(0);
    controller_plan(c, &wish, 1, 0, 64);
    assert_int_not_equal(wish.method, 0);
    wish.only_method = 0;
    controller_plan(c, &wish, 1, 0, 64);
    assert_int_equal(wish.method, -1);
    controller_close(c);
}

static void test_fixed_widths(void **state)
{
    DraftMethod methods[] = { chain16, { .name = "steps", .family = 1, .max_nodes = 5, .max_depth = 4 } };
    Controller *c = open_controller(methods, 2);
    DraftWish wishes[3];
    for (int32_t i = 0; i < 3; i++) {
        controller_begin(c, i, 10);
        wishes[i] = wish_of(i);
        wishes[i].only_method = i % 2;
        wishes[i].fixed_nodes = 6;
    }
    for (int32_t rows = 0; rows < 20; rows++) {
        controller_plan(c, wishes, 3, 0, rows);
        int32_t left = rows;
        for (int32_t i = 0; i < 3; i++) {
            int32_t nodes = left + 1 < 6 ? left + 1 : 6;
            if (i == 1 && nodes > 5) nodes = 5;
            assert_int_equal(wishes[i].n_nodes, nodes);
            assert_int_equal(wishes[i].method, nodes > 1 ? i % 2 : -1);
            left -= nodes - 1;
        }
    }
    controller_close(c);
}

/* ---- the sum over a batch ---- */

/* Tokens per ms that the controller itself expects of this plan. */
static double rate_of(const Controller *c, const DraftWish *wishes, int32_t n, const double draft_ms[2])
{
    double tokens = 0, ms = 0;
    int32_t rows = 0;
    bool used[2] = { false, false };
    for (int32_t i = 0; i < n; i++) {
        rows += wishes[i].n_nodes;
        tokens += wishes[i].method < 0 ? 1 : controller_expected(c, wishes[i].slot, wishes[i].method, wishes[i].n_nodes);
        if (wishes[i].method >= 0) used[wishes[i].method] = true;
    }
    for (int m = 0; m < 2; m++) ms += used[m] ? draft_ms[m] : 0;
    return tokens / (ms + controller_pass_ms(c, rows, n));
}

/* All plans of 3 sequences with 2 methods of up to 6 nodes. */
static double best_rate(const Controller *c, const double draft_ms[2])
{
    double best = 0;
    for (int32_t code = 0; code < 11 * 11 * 11; code++) {
        DraftWish wishes[3];
        for (int32_t i = 0, x = code; i < 3; i++, x /= 11) {
            wishes[i] = wish_of(i);
            wishes[i].method = x % 11 == 0 ? -1 : (x % 11 - 1) / 5;
            wishes[i].n_nodes = x % 11 == 0 ? 1 : (x % 11 - 1) % 5 + 2;
        }
        best = fmax(best, rate_of(c, wishes, 3, draft_ms));
    }
    return best;
}

static void test_sum_is_the_most_there_is(void **state)
{
    Random r = { first_seed };
    double worst = 1;
    for (int k = 0; k < 60; k++) {
        DraftMethod methods[] = { { .name = "a", .max_nodes = 6, .max_depth = 5 }, { .name = "b", .family = 1, .max_nodes = 6, .max_depth = 5 } };
        Controller *c = open_controller(methods, 2);
        double draft_ms[2] = { 0.02 + 0.3 * random_unit(&r), 0.02 + 0.3 * random_unit(&r) }, slope = 0.3 * random_unit(&r), hit[3][2];
        for (int i = 0; i < 6; i++) hit[i / 2][i % 2] = random_unit(&r);
        for (int32_t i = 0; i < 3; i++) controller_begin(c, i, 1);
        for (int pass = 0; pass < 60; pass++) { /* all widths of passes, both methods in turn */
            DraftWish wishes[3];
            DraftRound rounds[3];
            int32_t m = pass % 2, rows = 0, width = pass < 4 ? 1 : 1 + (pass / 2) % 6;
            for (int32_t i = 0; i < 3; i++) {
                wishes[i] = wish_of(i);
                wishes[i].method = width > 1 ? m : -1;
                wishes[i].n_nodes = width;
                int32_t hits = 0;
                while (hits < width - 1 && random_unit(&r) < hit[i][m]) hits++;
                rounds[i] = round_of(&wishes[i], hits);
                rounds[i].n_emitted = 20; /* so that all of it was paid for */
                rows += width;
            }
            PassReport report = { .n_rows = rows, .draft_ms = width > 1 ? draft_ms[m] : 0, .pass_ms = 1 + slope * (rows - 3), .n_rounds = 3, .rounds = rounds };
            controller_learn(c, &report);
        }
        DraftWish wishes[3] = { wish_of(0), wish_of(1), wish_of(2) };
        for (int32_t i = 0; i < 3; i++) wishes[i].n_left = 1; /* so late nothing is tried just to know it */
        controller_plan(c, wishes, 3, 0, 64);
        double ratio = rate_of(c, wishes, 3, draft_ms) / best_rate(c, draft_ms);
        if (ratio < worst) worst = ratio;
        controller_close(c);
    }
    printf("plans of three sequences: at least %.3f of the best of all %d plans\n", worst, 11 * 11 * 11);
    assert_true(worst > 0.93);
}

/* ---- simulated requests ---- */

typedef struct Outcome {
    double  ms[2], expected[2]; /* by segment: time, and the tokens that its choices are worth on average */
    double  total_ms;
    int32_t n_tokens, n_drafted, n_useless;
    bool    is_too_often;       /* two useless probes started less than PROBE_TOKENS tokens apart */
} Outcome;

/* Probes as they look from outside: a family that drafted nothing for IDLE_ROUNDS rounds drafts again, until it
 * stops. It was useless if plain decoding would have given more in its time (a quarter of a step is noise of the
 * clock). */
typedef struct Watch {
    int32_t round, last_use[MAX_METHODS], family, start, last_useless;
    double  gain;
} Watch;

static void watch_end(Watch *watch, Outcome *out)
{
    if (watch->family >= 0 && watch->gain < -0.25) {
        out->n_useless++;
        out->is_too_often |= watch->start - watch->last_useless < PROBE_TOKENS;
        watch->last_useless = watch->start;
    }
    watch->family = -1;
}

static void watch_round(Watch *watch, Outcome *out, int32_t family, double gain)
{
    watch->round++;
    if (watch->family >= 0 && watch->family != family) watch_end(watch, out);
    if (family < 0) return;
    if (watch->round - watch->last_use[family] > IDLE_ROUNDS) {
        watch->family = family;
        watch->start = out->n_tokens;
        watch->gain = 0;
    }
    watch->last_use[family] = watch->round;
    if (watch->family == family) watch->gain += gain;
}

/* One request of TOKENS tokens: text[0] up to token `change`, then text[1]. Times are told with 5 % of noise. */
static void run_request(const World *w, Controller *c, Random *r, const int32_t text[2], int32_t change, Outcome *out)
{
    Watch watch = { .family = -1, .last_useless = -PROBE_TOKENS };
    *out = (Outcome){ 0 };
    controller_begin(c, 0, 50);
    while (out->n_tokens < TOKENS) {
        int segment = out->n_tokens >= change;
        DraftWish wish = wish_of(0);
        wish.n_left = TOKENS - out->n_tokens;
        controller_plan(c, &wish, 1, 0, WORLD_NODES - 2);
        int32_t m = wish.method;
        WorldRound played = { 0 };
        if (m >= 0) world_play(w, r, text[segment], m, wish.n_nodes, &played);
        double draft_ms = world_draft_ms(w, m, wish.n_nodes), ms = draft_ms + w->pass_ms[wish.n_nodes];
        DraftRound round = { .method = m, .n_asked = wish.n_nodes, .n_nodes = wish.n_nodes, .n_depth = played.n_depth,
                             .n_accepted = played.n_accepted, .n_emitted = played.n_accepted + 1, .nodes = played.nodes,
                             .n_spine = played.n_spine, .n_spine_accepted = played.n_spine_accepted };
        PassReport report = { .n_rows = wish.n_nodes, .draft_ms = draft_ms * (0.95 + 0.1 * random_unit(r)),
                              .pass_ms = w->pass_ms[wish.n_nodes] * (0.95 + 0.1 * random_unit(r)), .n_rounds = 1, .rounds = &round };
        controller_learn(c, &report);
        watch_round(&watch, out, m < 0 ? -1 : w->method[m].family, round.n_emitted - ms / w->pass_ms[1]);
        out->ms[segment] += ms;
        out->expected[segment] += m < 0 ? 1 : w->expected[text[segment]][m][wish.n_nodes];
        out->total_ms += ms;
        out->n_tokens += round.n_emitted;
        out->n_drafted += m >= 0;
    }
    watch_end(&watch, out);
}

/* Of one choice kept for the whole request; method -1 = plain. */
static double fixed_ms(const World *w, const int32_t text[2], int32_t change, int32_t m, int32_t n_nodes)
{
    double ms = world_round_ms(w, m, n_nodes);
    if (m < 0) return TOKENS * ms;
    return ms * (change / w->expected[text[0]][m][n_nodes] + (TOKENS - change) / w->expected[text[1]][m][n_nodes]);
}

static double best_fixed_ms(const World *w, const int32_t text[2], int32_t change)
{
    double best = fixed_ms(w, text, change, -1, 1);
    for (int32_t m = 0; m < w->n_methods; m++)
        for (int32_t n = 2; n <= w->method[m].max_nodes; n++) best = fmin(best, fixed_ms(w, text, change, m, n));
    return best;
}

/* Time of the choices made, by what they are worth on average: luck with the dice is no merit and no fault. */
static double worth_ms(const Outcome *o, int32_t change)
{
    double ms = 0;
    for (int segment = 0; segment < 2; segment++) {
        int32_t n = segment ? TOKENS - change : change;
        ms += o->expected[segment] > 0 ? n * o->ms[segment] / o->expected[segment] : 0;
    }
    return ms;
}

enum { SCENARIOS = 200, WARM_REQUESTS = 32, RUNS = 8 };

typedef struct Tally {
    double  mean, regret[SCENARIOS], worst_below; /* below plain, really taken time: share of it */
    int32_t n_useless, n_too_often, n_requests;
} Tally;

/* A server that has answered some requests of its usual kind gets requests whose text changes on the way. */
static double run_scenario(uint64_t seed, bool one_network, Tally *tally)
{
    static World w;
    Random r = { seed };
    Outcome out;
    WorldChange kind = (WorldChange)random_below(&r, N_CHANGES);
    world_make(&w, &r, one_network, kind);
    Controller *c = open_controller(w.method, w.n_methods);
    for (int k = 0; k < WARM_REQUESTS; k++) {
        int32_t text[2] = { random_below(&r, 3), random_below(&r, 8) ? random_below(&r, 3) : 3 + random_below(&r, 2) };
        run_request(&w, c, &r, text, random_below(&r, TOKENS), &out);
    }
    int32_t text[2] = { 0, 3 }, change = TOKENS / 4 + random_below(&r, TOKENS / 2);
    double ms = 0;
    for (int run = 0; run < RUNS; run++) {
        run_request(&w, c, &r, text, change, &out);
        ms += worth_ms(&out, change) / RUNS;
        tally->worst_below = fmax(tally->worst_below, out.total_ms / (out.n_tokens * w.pass_ms[1]) - 1);
        tally->n_useless += out.n_useless;
        tally->n_too_often += out.is_too_often;
        tally->n_requests++;
    }
    controller_close(c);
    return ms / best_fixed_ms(&w, text, change) - 1;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void run_scenarios(bool one_network, Tally *t)
{
    *t = (Tally){ .worst_below = -1 };
    for (int i = 0; i < SCENARIOS; i++) {
        t->regret[i] = run_scenario(first_seed * 1000 + (uint64_t)i, one_network, t);
        t->mean += t->regret[i] / SCENARIOS;
    }
    qsort(t->regret, SCENARIOS, sizeof t->regret[0], compare_doubles);
    printf("%s, %d scenarios from seed %llu: regret mean %.2f %%, median %.2f, 90th %.2f, 95th %.2f, worst %.2f; below plain at worst "
           "%.2f %%; useless probes %.2f a request, too close in %d of %d\n",
           one_network ? "one network" : "up to three networks", SCENARIOS, (unsigned long long)first_seed, 100 * t->mean,
           100 * t->regret[SCENARIOS / 2], 100 * t->regret[SCENARIOS * 9 / 10], 100 * t->regret[SCENARIOS * 95 / 100],
           100 * t->regret[SCENARIOS - 1], 100 * t->worst_below, (double)t->n_useless / t->n_requests, t->n_too_often, t->n_requests);
}

/* The goal is 3 % in each scenario, and this is what holds, over the seeds 1 to 5 and 20260101 to 20260105: with one
 * network the 95th percentile is 0.7 to 1.4 % and the worst of 200 is 1.9 to 9.1 %; with up to three it is 2.4 to
 * 3.7 % and the worst 5.6 to 15.6 %. Some of that is luck: text is random and a scenario is eight requests, no more
 * because the controller learns from each. Averaged over five repetitions from the start 21 of 400 scenarios are
 * above 3 %, instead of 26. The rest is mostly text that turns easier for a drafter that is idle: a trial costs, and
 * one round tells little. (One that knew the five texts and all prices exactly, and took what is best by that, was
 * above 3 % in 3 and 5 of 200.) */
static void test_regret_of_one_network(void **state)
{
    Tally t;
    run_scenarios(true, &t);
    assert_true(t.mean < -0.01 && t.regret[SCENARIOS * 9 / 10] < 0.015 && t.regret[SCENARIOS * 95 / 100] < 0.025);
    assert_true(t.worst_below < 0.03);
    assert_int_equal(t.n_too_often, 0);
}

static void test_regret_of_several_networks(void **state)
{
    Tally t;
    run_scenarios(false, &t);
    assert_true(t.mean < -0.01 && t.regret[SCENARIOS * 9 / 10] < 0.03 && t.regret[SCENARIOS * 95 / 100] < 0.045);
    assert_true(t.worst_below < 0.03);
    assert_int_equal(t.n_too_often, 0);
}

/* ---- life ---- */

/* A drafter that never hits: after a thousand rounds hardly anything was lost, and it is tried rarely. */
static void test_a_thousand_rounds_of_nothing(void **state)
{
    Controller *c = open_controller(&chain16, 1);
    double ms = 0;
    int32_t n_drafted = 0;
    controller_begin(c, 0, 10);
    for (int k = 0; k < 1000; k++) {
        DraftWish wish = one_round(c, 0, 0.1, 0.1);
        ms += 1 + 0.1 * (wish.n_nodes - 1) + (wish.n_nodes > 1 ? 0.1 : 0);
        n_drafted += wish.n_nodes > 1;
    }
    printf("a thousand rounds without a hit: %d drafted, %.2f %% slower than plain\n", n_drafted, ms / 10 - 100);
    assert_true(ms < 1020 && n_drafted <= 8 + 1000 / 64);
    controller_close(c);
}

static void test_same_reports_same_plans(void **state)
{
    static World w;
    Outcome out[2];
    for (int k = 0; k < 2; k++) {
        Random r = { first_seed };
        world_make(&w, &r, false, HARDER);
        Controller *c = open_controller(w.method, w.n_methods);
        uint64_t before = mem_count();
        int32_t text[2] = { 0, 3 };
        for (int i = 0; i < 10; i++) run_request(&w, c, &r, text, 100, &out[k]);
        assert_int_equal(mem_count(), before); /* allocates only in open */
        controller_close(c);
    }
    assert_memory_equal(&out[0], &out[1], sizeof out[0]);
}

static void test_memory_fails(void **state)
{
    ControllerOptions options = { .n_slots = SLOTS, .n_methods = 1, .methods = &chain16 };
    for (int i = 1; i <= 4; i++) {
        Controller *c = (Controller *)&options;
        Error err = { 0 };
        mem_fail_at(i);
        assert_int_equal(controller_open(&c, &options, &err), ERR_NOMEM);
        assert_null(c);
        mem_fail_at(0);
    }
    controller_close(NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_comes_first),
        cmocka_unit_test(test_width_follows_cost_and_hits),
        cmocka_unit_test(test_priors_are_carried),
        cmocka_unit_test(test_collapse_turns_drafting_off),
        cmocka_unit_test(test_limits_are_kept),
        cmocka_unit_test(test_fixed_widths),
        cmocka_unit_test(test_sum_is_the_most_there_is),
        cmocka_unit_test(test_regret_of_one_network),
        cmocka_unit_test(test_regret_of_several_networks),
        cmocka_unit_test(test_a_thousand_rounds_of_nothing),
        cmocka_unit_test(test_same_reports_same_plans),
        cmocka_unit_test(test_memory_fails),
    };
    if (argc > 1) first_seed = strtoull(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
