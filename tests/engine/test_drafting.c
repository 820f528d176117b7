/* Drafting as requests meet it: what they get is what plain decoding gives, whoever drafts, dies or never hits; the law of
 * what is drawn is the model's; and in simulated time drafting costs nothing where it does not pay. */
#include "rig.h"

#include "speculation/draft_auto.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* ---- simulated time: a pass of n rows takes 1 + slope * (n - 1) ms, a draft draft_ms ---- */

static struct {
    double now, slope, draft_ms;
    void   (*forward)(Model *m, Stream *st, Batch *batch);
    Status (*draft)(Drafter *d, Stream *st, DraftJob *jobs, int n, Error *err);
} timed;

static double timed_clock(void *ctx)
{
    return timed.now;
}

static void timed_forward(Model *m, Stream *st, Batch *batch)
{
    timed.forward(m, st, batch);
    timed.now += 1 + timed.slope * (batch->n_rows - 1);
}

static Status timed_draft(Drafter *d, Stream *st, DraftJob *jobs, int n, Error *err)
{
    timed.now += timed.draft_ms;
    return timed.draft(d, st, jobs, n, err);
}

/* A controller decides unless `fixed`. */
static void open_timed(Rig *rig, RigOptions o, bool fixed, double slope, double draft_ms)
{
    o.engine.adapts_drafts = !fixed;
    o.drafts = true;
    o.engine.hooks.clock_ms = timed_clock;
    if (!o.engine.draft_nodes) o.engine.draft_nodes = 9;
    if (!o.engine.draft_depth) o.engine.draft_depth = 8;
    rig_open(rig, &o);
    timed.now = 0;
    timed.slope = slope;
    timed.draft_ms = draft_ms;
    timed.forward = rig->model->forward;
    timed.draft = rig->drafter->draft;
    rig->model->forward = timed_forward;
    rig->drafter->draft = timed_draft;
}

static void assert_truth(const Rig *rig, const GenerateRequest *g)
{
    static RigRecord truth;
    for (int32_t c = 0; c < g->n_choices; c++) {
        rig_truth(rig, g, c, &truth);
        rig_assert_equal(rig_record(rig, g->id, c), &truth);
    }
}

/* Runs requests of `each` tokens one after the other until `total` tokens came; all are the truth. Simulated ms. */
static double run_requests(Rig *rig, int32_t total, int32_t each)
{
    static uint64_t id;
    int32_t prompt[8];
    double start = timed.now;
    for (int32_t n = 0; n < total; n += each) {
        GenerateRequest g = rig_request(id++ % RIG_MAX_REQUESTS, prompt, 8, each);
        Request *r = rig_submit(rig, &g);
        rig_finish(rig, r);
        assert_truth(rig, &g);
        request_close(r);
    }
    return timed.now - start;
}

/* ---- what pays ---- */

static void test_good_drafts_are_used(void **state)
{
    Rig rig;
    open_timed(&rig, (RigOptions){ .engine = { .max_model_len = 256 }, .drafter = { .p_true = 1, .chain = true } }, false, 0.05, 0.1);
    run_requests(&rig, 200, 200);
    double ms = run_requests(&rig, 400, 200);
    EngineStats s = engine_stats(rig.engine);
    printf("perfect chains: %.2f times as fast as plain, %.2f tokens a round\n", 400 / ms,
           1 + (double)s.methods[0].counts.accepted_tokens / (double)s.methods[0].counts.rounds);
    assert_true(ms < 400 / 1.5);
    assert_int_equal(s.n_methods, 1);
    assert_int_equal(s.methods[0].counts.accepted_tokens, s.accepted_tokens);
    assert_int_equal(s.methods[0].counts.draft_tokens, s.draft_tokens);
    for (int d = 1; d < MAX_DEPTH; d++) assert_int_equal(s.methods[0].counts.accepted[d], s.methods[0].counts.reached[d]);
    rig_close(&rig);
}

/* A thousand rounds of guesses that never hit (but by accident, one in 64): as fast as plain, less what probing costs. */
static void test_useless_drafts_are_not(void **state)
{
    Rig rig;
    open_timed(&rig, (RigOptions){ .engine = { .max_model_len = 256 }, .drafter = { .p_true = 0, .chain = true } }, false, 0.1, 0.2);
    double ms = run_requests(&rig, 1000, 200);
    const EngineStats s = engine_stats(rig.engine);
    printf("useless drafts: %.2f %% slower than plain, %lld rounds drafted of %llu\n", ms / 10 - 100,
           (long long)s.methods[0].counts.rounds, (unsigned long long)s.steps);
    assert_true(ms < 1030);
    assert_true(s.methods[0].counts.rounds < 60);
    rig_close(&rig);
}

/* Where nothing pays, plans pause; a request that states its width is drafted in every round all the same. */
static void test_stated_widths_do_not_wait(void **state)
{
    Rig rig;
    int32_t prompt[8];
    open_timed(&rig, (RigOptions){ .drafter = { .p_true = 0, .chain = true } }, false, 0.1, 0.2);
    for (int is_stated = 0; is_stated < 2; is_stated++) {
        GenerateRequest g = rig_request((uint64_t)is_stated, prompt, 8, 10);
        g.draft_nodes = is_stated ? 5 : 0;
        snprintf(g.draft_method, sizeof g.draft_method, "fake");
        uint64_t before = fake_drafter_counts(rig.drafter).jobs;
        rig.engine->step.drafts.n_unplanned = 20;
        Request *r = rig_submit(&rig, &g);
        rig_finish(&rig, r);
        assert_truth(&rig, &g);
        uint64_t n = fake_drafter_counts(rig.drafter).jobs - before;
        if (is_stated) assert_in_range(n, 7, 8); /* a lucky guess saves a round; the last one has no room */
        else assert_int_equal(n, 0);
        request_close(r);
    }
    rig_close(&rig);
}

/* ---- drafters that die ---- */

static void test_killed_drafter(void **state)
{
    for (int adapts = 0; adapts < 2; adapts++) {
        Rig rig;
        int32_t prompt[8];
        open_timed(&rig, (RigOptions){ .engine = { .max_model_len = 256 }, .drafter = { .p_true = 1, .chain = true, .dies_after = 10 } }, !adapts, 0.02, 0.1);
        GenerateRequest g = rig_request(1, prompt, 8, 240);
        Request *r = rig_submit(&rig, &g);
        rig_finish(&rig, r);
        assert_truth(&rig, &g);
        EngineStats s = engine_stats(rig.engine);
        assert_int_equal(fake_drafter_counts(rig.drafter).jobs, 10 + s.failed_drafts);
        assert_non_null(strstr(s.methods[0].off, "the fake drafter was told to fail"));
        assert_int_equal(s.methods[0].failed_drafts, s.failed_drafts);
        double ms = run_requests(&rig, 200, 200); /* plain again, to the last bit of time */
        assert_true(fabs(ms - (200 + timed.slope * 7)) < 1e-9);
        request_close(r);
        rig_close(&rig);
    }
}

/* Failures count by network, whichever of its methods was asked; one that works in between begins the count anew. */
static void test_failures_count_by_network(void **state)
{
    static const char *const methods[] = { "one", "other" };
    Rig rig;
    int32_t prompt[8];
    rig_open(&rig, &(RigOptions){ .drafts = true, .engine = { .draft_nodes = 5, .draft_depth = 4 },
                                  .drafter = { .p_fail = 1, .chain = true, .name = methods[0], .second = methods[1] } });
    for (int i = 0; i < 2; i++) { /* six passes each, the last has no room for a draft: five calls */
        GenerateRequest g = rig_request((uint64_t)i, prompt, 8, 7);
        snprintf(g.draft_method, sizeof g.draft_method, "%s", methods[i]);
        Request *r = rig_submit(&rig, &g);
        rig_finish(&rig, r);
        assert_truth(&rig, &g);
        EngineStats s = engine_stats(rig.engine);
        for (int m = 0; m < 2; m++) assert_int_equal(s.methods[m].off[0] != 0, i == 1);
        assert_int_equal(s.failed_drafts, i ? 8 : 5);
        request_close(r);
    }
    rig_close(&rig);
}

/* One that hits far less often than its kind does is pointed at; one that does its part is not. */
static void test_wrong_drafter_is_suspected(void **state)
{
    for (int is_good = 0; is_good < 2; is_good++) {
        Rig rig;
        open_timed(&rig, (RigOptions){ .engine = { .max_model_len = 256 }, .drafter = { .p_true = is_good ? 0.4 : 0.02, .chain = true, .expected_first = 0.3f } },
                   true, 0.1, 0.2);
        run_requests(&rig, 400, 200);
        EngineStats s = engine_stats(rig.engine);
        assert_true(s.methods[0].counts.reached[1] > 100);
        assert_int_equal(s.methods[0].is_suspect, !is_good);
        assert_int_equal(s.methods[0].off[0], 0);
        rig_close(&rig);
    }
}

/* ---- two networks ---- */

static void open_pair(Rig *rig, FakeDrafterOptions a, FakeDrafterOptions b, EngineOptions engine)
{
    Drafter *child[2], *both;
    Error err = { 0 };
    a.model = b.model = (FakeModelOptions){ .vocab_size = RIG_VOCAB, .seed = 7, .poison = -1 };
    a.seed = 1;
    b.seed = 2;
    a.name = "first";
    b.name = "second";
    a.wants_features = b.wants_features = true; /* four columns of taps, two each */
    assert_int_equal(fake_drafter_open(&child[0], &a, &err), OK);
    assert_int_equal(fake_drafter_open(&child[1], &b, &err), OK);
    assert_int_equal(drafter_open_auto(&both, child, 2, &err), OK);
    rig_open(rig, &(RigOptions){ .own = both, .engine = engine });
}

/* Sixteen requests in a batch of eight, each by a method of its own, some by none; each network keeps its own cache and
 * features (the fake drafter checks them). */
static void test_methods_mix_in_a_batch(void **state)
{
    Rig rig;
    int32_t prompt[16][8];
    GenerateRequest g[16];
    Request *r[16];
    open_pair(&rig, (FakeDrafterOptions){ .p_true = 0.8, .chain = true }, (FakeDrafterOptions){ .p_true = 0.6 },
              (EngineOptions){ .max_num_seqs = 8, .max_num_batched_tokens = 100, .draft_nodes = 9, .draft_depth = 6 });
    static const char *const methods[] = { "first", "second", "first", "" };
    for (int i = 0; i < 16; i++) {
        g[i] = rig_request((uint64_t)i, prompt[i], 8, 40 + i);
        g[i].params.temperature = i % 3 ? 1 : 0;
        g[i].no_speculation = i % 4 == 3;
        g[i].draft_nodes = i % 4 == 2 ? 3 : 0;
        snprintf(g[i].draft_method, sizeof g[i].draft_method, "%s", methods[i % 4]);
        r[i] = rig_submit(&rig, &g[i]);
    }
    for (int i = 0; i < 16; i++) {
        rig_finish(&rig, r[i]);
        assert_truth(&rig, &g[i]);
        RequestTimings t = request_timings(r[i]);
        assert_int_equal(t.drafts[0].rounds > 0, i % 2 == 0);
        assert_int_equal(t.drafts[1].rounds > 0, i % 4 == 1);
        assert_int_equal(t.drafts[0].draft_tokens + t.drafts[1].draft_tokens, t.draft_tokens);
        assert_int_equal(t.drafts[0].accepted_tokens + t.drafts[1].accepted_tokens, t.accepted_tokens);
        if (i % 4 == 2) assert_true(t.drafts[0].draft_tokens <= 2 * t.drafts[0].rounds);
        request_close(r[i]);
    }
    rig_close(&rig);
}

static void test_one_of_two_dies(void **state)
{
    Rig rig;
    int32_t prompt[2][8];
    open_pair(&rig, (FakeDrafterOptions){ .p_true = 1, .chain = true, .dies_after = 3 }, (FakeDrafterOptions){ .p_true = 1, .chain = true },
              (EngineOptions){ .max_num_seqs = 2, .draft_nodes = 5, .draft_depth = 4 });
    Request *r[2];
    GenerateRequest g[2];
    for (int i = 0; i < 2; i++) {
        g[i] = rig_request((uint64_t)i, prompt[i], 8, 100);
        snprintf(g[i].draft_method, sizeof g[i].draft_method, "%s", i ? "second" : "first");
        r[i] = rig_submit(&rig, &g[i]);
    }
    for (int i = 0; i < 2; i++) {
        rig_finish(&rig, r[i]);
        assert_truth(&rig, &g[i]);
    }
    EngineStats s = engine_stats(rig.engine);
    assert_true(s.methods[0].off[0] && !s.methods[1].off[0]);
    assert_int_equal(s.methods[0].failed_drafts, 8);
    assert_int_equal(s.methods[1].failed_drafts, 0);
    assert_true(request_timings(r[0]).drafts[0].rounds <= 3);
    assert_true(request_timings(r[1]).drafts[1].accepted_tokens >= 50);
    for (int i = 0; i < 2; i++) request_close(r[i]);
    rig_close(&rig);
}

/* ---- what a request may ask for ---- */

static void test_what_a_request_may_ask(void **state)
{
    Rig rig;
    int32_t prompt[8];
    open_pair(&rig, (FakeDrafterOptions){ .p_true = 1 }, (FakeDrafterOptions){ .p_true = 1 }, (EngineOptions){ .draft_nodes = 5, .draft_depth = 4 });
    int32_t n_methods;
    const DraftMethod *methods = engine_methods(rig.engine, &n_methods);
    assert_int_equal(n_methods, 2);
    assert_string_equal(methods[1].name, "second");
    static const struct {
        const char *method;
        int32_t     nodes;
        bool        none;
        Status      status;
        const char *says;
    } cases[] = { { "second", 5, false, OK, "" },
                  { "", 6, false, ERR_INPUT, "1 to 4" },
                  { "", 1, false, ERR_INPUT, "1 to 4" },
                  { "", -3, false, ERR_INPUT, "1 to 4" },
                  { "third", 0, false, ERR_INPUT, "drafts by first, second" },
                  { "third", 77, true, OK, "" } };
    for (int i = 0; i < COUNT(cases); i++) {
        GenerateRequest g = rig_request(3, prompt, 8, 4);
        Error err = { 0 };
        Request *r = NULL;
        snprintf(g.draft_method, sizeof g.draft_method, "%s", cases[i].method);
        g.draft_nodes = cases[i].nodes;
        g.no_speculation = cases[i].none;
        assert_int_equal(engine_submit(rig.engine, &g, NULL, NULL, &r, &err), cases[i].status);
        assert_non_null(strstr(err.text, cases[i].says));
        if (cases[i].status) assert_string_equal(err.param, "speculation");
        if (r) request_cancel(r);
        if (r) request_close(r);
    }
    rig_close(&rig);
}

/* ---- rows are legal on their own path ---- */

static uint64_t dice_state;

static int32_t dice(int32_t n)
{
    dice_state = dice_state * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((dice_state >> 33) % (uint64_t)n);
}

/* Penalties, bias, bans, stops, lengths, choices: whatever may differ from row to row. */
static GenerateRequest random_request(uint64_t id, int32_t *prompt, LogitBias bias[4])
{
    GenerateRequest g = rig_request(id, prompt, 8, 1 + dice(40));
    g.n_choices = 1 + dice(3);
    g.params.temperature = dice(3) ? 0.3f + 0.1f * (float)dice(12) : 0;
    g.params.top_k = dice(3) ? 0 : 1 + dice(20);
    g.params.top_p = dice(3) ? 1 : 0.5f + 0.05f * (float)dice(10);
    g.params.min_p = dice(3) ? 0 : 0.02f * (float)dice(10);
    g.params.repetition_penalty = dice(2) ? 1 : 1.3f;
    g.params.presence_penalty = dice(2) ? 0 : 1.5f;
    g.params.frequency_penalty = dice(2) ? 0 : 0.7f;
    g.params.n_logprobs = dice(6) - 1;
    g.params.n_bias = dice(5);
    for (int32_t i = 0; i < g.params.n_bias; i++) bias[i] = (LogitBias){ 13 * i + dice(13), (float)(dice(9) - 4) };
    g.params.bias = bias;
    g.n_stop_ids = dice(4);
    for (int32_t i = 0; i < g.n_stop_ids; i++) g.stop_ids[i] = dice(RIG_VOCAB);
    g.min_tokens = dice(2) ? 0 : dice(g.max_tokens);
    g.ignore_eos = dice(5) == 0;
    return g;
}

static void assert_same_answers(const Request *a, const Request *b, int32_t n_choices)
{
    for (int32_t c = 0; c < n_choices; c++) {
        int32_t n = request_count(a, c);
        assert_int_equal(request_count(b, c), n);
        assert_int_equal(request_finish(a, c), request_finish(b, c));
        assert_memory_equal(request_tokens(a, c), request_tokens(b, c), (size_t)n * sizeof(int32_t));
        assert_int_equal(!request_logprobs(a, c), !request_logprobs(b, c));
        if (request_logprobs(a, c)) assert_memory_equal(request_logprobs(a, c), request_logprobs(b, c), (size_t)n * sizeof(TokenLogprob));
    }
}

static void test_rows_are_legal_on_their_path(void **state)
{
    Rig rig;
    int32_t prompt[8];
    LogitBias bias[4];
    int64_t n_accepted = 0, n_stopped = 0;
    open_pair(&rig, (FakeDrafterOptions){ .p_true = 0.95, .chain = true }, (FakeDrafterOptions){ .p_true = 0.8 },
              (EngineOptions){ .max_num_seqs = 8, .max_num_batched_tokens = 100, .draft_nodes = 9, .draft_depth = 8 });
    dice_state = 20260101;
    for (uint64_t k = 0; k < 200; k++) {
        GenerateRequest g = random_request(k % 256, prompt, bias), plain = g;
        plain.no_speculation = true;
        plain.id += 256;
        snprintf(g.draft_method, sizeof g.draft_method, "%s", k % 2 ? "second" : "first");
        Request *drafted = rig_submit(&rig, &g), *other = rig_submit(&rig, &plain);
        rig_finish(&rig, drafted);
        rig_finish(&rig, other);
        assert_same_answers(drafted, other, g.n_choices);
        n_accepted += request_timings(drafted).accepted_tokens;
        n_stopped += request_finish(drafted, 0) == FINISH_STOP;
        request_close(drafted);
        request_close(other);
    }
    printf("200 requests with every kind of rule: %lld drafts accepted, %lld first choices stopped\n", (long long)n_accepted, (long long)n_stopped);
    assert_true(n_accepted > 2000 && n_stopped > 30);
    rig_close(&rig);
}

/* ---- the law of what is drawn ---- */

/* Each drawn token has its place in (0, 1): the mass of the ids below it, and a part of its own by an independent die. If
 * tokens are drawn from the model's law these are uniform and independent. */
enum { BINS = 100, PAIR_BINS = 34, DRAWS = 200000 };

typedef struct Law {
    int64_t n, bins[BINS], n_pairs, pairs[PAIR_BINS][PAIR_BINS];
    double  before;
    int32_t last_index;
} Law;
static Law law;

static void note_draw(void *ctx, uint64_t id, int32_t choice, int32_t index, const float *logits, int32_t vocab, int32_t token)
{
    double sum = 0, below = 0;
    for (int32_t v = 0; v < vocab; v++) sum += exp((double)logits[v]);
    for (int32_t v = 0; v < token; v++) below += exp((double)logits[v]);
    double own = exp((double)logits[token]), u = (below + own * (dice(1 << 30) + 0.5) / (1 << 30)) / sum;
    law.n++;
    law.bins[(int)(u * BINS)]++;
    if (index == law.last_index + 1) {
        law.n_pairs++;
        law.pairs[(int)(law.before * PAIR_BINS)][(int)(u * PAIR_BINS)]++;
    }
    law.before = u;
    law.last_index = index;
}

static double chi_square(const int64_t *counts, int n_bins, int64_t n)
{
    double x = 0, expected = (double)n / n_bins;
    for (int i = 0; i < n_bins; i++) x += ((double)counts[i] - expected) * ((double)counts[i] - expected) / expected;
    return x;
}

/* A chi-square with this many degrees of freedom is below this but once in 10,000 times (normal approximation of the cube
 * root, Wilson and Hilferty 1931). */
static double chi_limit(int degrees)
{
    double d = degrees, z = 3.72, t = 1 - 2 / (9 * d) + z * sqrt(2 / (9 * d));
    return d * t * t * t;
}

static void test_law_of_drafted_draws(void **state)
{
    int32_t prompt[8];
    for (int chain = 0; chain < 2; chain++) {
        Rig rig;
        law = (Law){ .last_index = -1 };
        dice_state = 11;
        rig_open(&rig, &(RigOptions){ .drafts = true,
                                      .engine = { .max_num_seqs = 1, .max_model_len = 256, .draft_nodes = 7, .draft_depth = 6 },
                                      .drafter = { .p_true = 0.7, .chain = chain } });
        rig.engine->options.hooks = (EngineHooks){ note_draw, NULL, NULL };
        for (uint64_t k = 0; law.n < DRAWS; k++) {
            GenerateRequest g = rig_request(k, prompt, 8, 240);
            Error err = { 0 };
            Request *r = NULL;
            g.params.temperature = 1;
            assert_int_equal(engine_submit(rig.engine, &g, NULL, NULL, &r, &err), OK);
            while (!request_done(r)) engine_step(rig.engine);
            request_close(r);
        }
        EngineStats s = engine_stats(rig.engine);
        double one = chi_square(law.bins, BINS, law.n), two = chi_square(law.pairs[0], PAIR_BINS * PAIR_BINS, law.n_pairs);
        printf("%s: %lld draws, %.0f %% of them accepted drafts: chi-square %.1f of %d degrees; adjacent pairs %.1f of %d\n",
               chain ? "chains" : "trees", (long long)law.n, 100.0 * (double)s.accepted_tokens / (double)law.n, one, BINS - 1, two,
               PAIR_BINS * PAIR_BINS - 1);
        assert_true(s.accepted_tokens > DRAWS / 4);
        assert_true(one < chi_limit(BINS - 1) && two < chi_limit(PAIR_BINS * PAIR_BINS - 1));
        rig_close(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_drafts_are_used),      cmocka_unit_test(test_useless_drafts_are_not),
        cmocka_unit_test(test_stated_widths_do_not_wait), cmocka_unit_test(test_killed_drafter),            cmocka_unit_test(test_methods_mix_in_a_batch),
        cmocka_unit_test(test_failures_count_by_network),
        cmocka_unit_test(test_wrong_drafter_is_suspected), cmocka_unit_test(test_one_of_two_dies),           cmocka_unit_test(test_what_a_request_may_ask),
        cmocka_unit_test(test_rows_are_legal_on_their_path), cmocka_unit_test(test_law_of_drafted_draws),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
