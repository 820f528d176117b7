/* Random traffic: arrivals, cancels, stops, preemptions, drafts of random shapes and broken ones, over random engine
 * options. After every step pools and tables are recounted; every token and logit hash is compared with plain choosing.
 * The seed is printed; give one as the argument to run it alone. */
#include "rig.h"

#include "engine/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_SEEDS = 30, N_ARRIVALS = 60, MAX_LIVE = 24, MAX_PROMPT = 60 };

typedef struct Live {
    Request *request;
    GenerateRequest g;
    int32_t prompt[MAX_PROMPT];
    bool was_cut; /* cancelled or stopped: its tokens are a beginning of the truth */
} Live;

static uint64_t first_seed = 1;
static int n_seeds = N_SEEDS;
static uint64_t rng;

static int32_t below(int32_t n)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((rng >> 33) % (uint64_t)n);
}

static RigOptions random_options(void)
{
    static const double chances[] = { 0, 0.3, 0.9, 1 };
    int32_t seqs = 1 + below(8), len = 80 + below(60), block = 1 + below(9), full = (len + block - 1) / block;
    RigOptions o = { .engine = { .max_num_seqs = seqs,
                                 .max_num_batched_tokens = seqs + below(80),
                                 .max_model_len = len,
                                 .block_size = block,
                                 .n_blocks = full + below(full * seqs),
                                 .prefill_chunk = below(3) ? below(20) : 0,
                                 .max_waiting = 4 + below(20) },
                     .drafts = below(4) > 0,
                     .poison_after = 40 };
    if (o.drafts) {
        o.engine.draft_nodes = 2 + below(40);
        o.engine.draft_depth = 1 + below(MAX_DEPTH);
        o.engine.adapts_drafts = below(2);
        o.drafter = (FakeDrafterOptions){ .seed = rng,
                                          .p_true = chances[below(4)],
                                          .p_broken = below(2) * 0.2,
                                          .p_fail = below(2) * 0.1,
                                          .chain = below(2),
                                          .wants_features = below(2) };
    }
    return o;
}

static void arrive(Rig *rig, Live *live, uint64_t id)
{
    int32_t n_prompt = 1 + below(MAX_PROMPT), room = rig->engine->options.max_model_len - n_prompt;
    Error err = { 0 };
    live->g = rig_request(id, live->prompt, n_prompt, below(4) ? 1 + below(room) : 0);
    live->was_cut = false;
    if (below(12) == 0) live->prompt[0] = RIG_POISON;
    live->g.n_choices = below(3) ? 1 : 1 + below(5);
    live->g.params.temperature = below(2) ? 0 : 1;
    live->g.params.repetition_penalty = below(2) ? 1 : 1.2f;
    live->g.params.n_logprobs = below(3) - 1;
    live->g.prompt_logprobs = below(5) == 0;
    live->g.no_speculation = below(6) == 0;
    live->g.n_stop_ids = below(3);
    for (int32_t i = 0; i < live->g.n_stop_ids; i++) live->g.stop_ids[i] = below(RIG_VOCAB);
    memset(&rig->records[id * MAX_CHOICES], 0, MAX_CHOICES * sizeof rig->records[0]);
    Status s = engine_submit(rig->engine, &live->g, NULL, NULL, &live->request, &err);
    assert_true(s == OK || s == ERR_FULL);
}

static void check_choice(Rig *rig, const Live *live, int32_t c)
{
    static RigRecord truth;
    const RigRecord *got = rig_record(rig, live->g.id, c);
    rig_truth(rig, &live->g, c, &truth);
    FinishReason why = request_finish(live->request, c);
    int32_t n = request_count(live->request, c);
    assert_int_equal(n, got->n);
    assert_true(n <= truth.n);
    assert_memory_equal(got->tokens, truth.tokens, (size_t)n * sizeof truth.tokens[0]);
    assert_memory_equal(got->logits_hash, truth.logits_hash, (size_t)n * sizeof truth.logits_hash[0]);
    assert_memory_equal(request_tokens(live->request, c), truth.tokens, (size_t)n * sizeof truth.tokens[0]);
    if (why == FINISH_LENGTH || (why == FINISH_STOP && !live->was_cut)) assert_int_equal(n, truth.n);
    if (why == FINISH_ERROR) assert_int_equal(live->prompt[0], RIG_POISON);
    if (why == FINISH_CANCELLED) assert_true(live->was_cut);
}

static void check_falls_together(const Request *r, int32_t n_choices)
{
    for (int32_t c = 0; c < n_choices; c++)
        if (request_finish(r, c) == FINISH_ERROR) assert_true(request_done(r));
}

static void leave(Rig *rig, Live *live)
{
    for (int32_t c = 0; c < live->g.n_choices; c++) check_choice(rig, live, c);
    request_close(live->request);
    live->request = NULL;
}

static void disturb(Live *live)
{
    int32_t what = below(150);
    if (what == 0) request_cancel(live->request);
    if (what == 1) request_stop_choice(live->request, below(live->g.n_choices));
    if (what <= 1) live->was_cut = true;
}

static void run_seed(uint64_t seed)
{
    static Live live[MAX_LIVE];
    Rig rig;
    rng = seed * 7919;
    RigOptions o = random_options();
    rig_open(&rig, &o);
    int n_arrived = 0, n_live = 0;
    for (int step = 0; n_arrived < N_ARRIVALS || n_live > 0; step++) {
        assert_true(step < 200000);
        for (int i = 0; i < MAX_LIVE; i++) {
            if (!live[i].request && n_arrived < N_ARRIVALS && below(10) == 0)
                arrive(&rig, &live[i], (uint64_t)n_arrived++);
            if (live[i].request) disturb(&live[i]);
        }
        rig_step(&rig);
        n_live = 0;
        for (int i = 0; i < MAX_LIVE; i++) {
            if (live[i].request) check_falls_together(live[i].request, live[i].g.n_choices);
            if (live[i].request && request_done(live[i].request)) leave(&rig, &live[i]);
            n_live += live[i].request != NULL;
        }
    }
    EngineStats s = engine_stats(rig.engine);
    assert_int_equal(s.running + s.waiting + s.blocks_used, 0);
    printf("seed %llu: %llu steps, %llu preemptions, %llu of %llu drafts accepted, %llu thrown away\n",
           (unsigned long long)seed, (unsigned long long)s.steps, (unsigned long long)s.preemptions,
           (unsigned long long)s.accepted_tokens, (unsigned long long)s.draft_tokens,
           (unsigned long long)s.failed_drafts);
    rig_close(&rig);
}

static void test_random_traffic(void **state)
{
    for (int i = 0; i < n_seeds; i++) run_seed(first_seed + (uint64_t)i);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        first_seed = strtoull(argv[1], NULL, 10);
        n_seeds = argc > 2 ? atoi(argv[2]) : 1;
    }
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_random_traffic) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
