/* The engine's face: what requests get, whatever runs beside them, and how they end. Over the fake model, whose logits
 * hash what was read from the caches; see rig.h. */
#include "rig.h"

#include "base/memory.h"
#include "engine/plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- equalities ---- */

/* Requests that differ in everything that choosing looks at. */
static GenerateRequest varied_request(uint64_t id, int32_t *prompt)
{
    GenerateRequest g = rig_request(id, prompt, 1 + (int32_t)(id * 7 % 40), 10 + (int32_t)(id * 11 % 60));
    g.stop_ids[0] = 3;
    g.stop_ids[1] = 17;
    g.n_stop_ids = 2;
    g.min_tokens = (int32_t)(id % 4) * 3;
    g.ignore_eos = id % 5 == 0;
    g.params.temperature = id % 3 == 0 ? 0 : 0.5f * (float)(id % 3);
    if (id % 4 == 1) g.params.repetition_penalty = 1.3f;
    if (id % 4 == 2) g.params.presence_penalty = 0.7f, g.params.frequency_penalty = 0.2f;
    if (id % 4 == 3) g.params.top_k = 10, g.params.top_p = 0.9f;
    return g;
}

enum { N_VARIED = 16 };

static void assert_all_true(Rig *rig, Request *requests[N_VARIED], int32_t prompts[N_VARIED][64])
{
    RigRecord truth;
    for (uint64_t id = 0; id < N_VARIED; id++) {
        GenerateRequest g = varied_request(id, prompts[id]);
        rig_truth(rig, &g, 0, &truth);
        const RigRecord *got = rig_record(rig, id, 0);
        rig_assert_equal(got, &truth);
        assert_int_equal(request_count(requests[id], 0), truth.n);
        assert_memory_equal(request_tokens(requests[id], 0), truth.tokens, (size_t)truth.n * sizeof truth.tokens[0]);
    }
}

/* All at once through an engine of these options: every request gets what plain choosing gives. */
static void check_batch_of(const RigOptions *options, EngineStats *stats)
{
    Rig rig;
    Request *requests[N_VARIED];
    int32_t prompts[N_VARIED][64];
    rig_open(&rig, options);
    for (uint64_t id = 0; id < N_VARIED; id++) {
        GenerateRequest g = varied_request(id, prompts[id]);
        requests[id] = rig_submit(&rig, &g);
    }
    for (int i = 0; i < N_VARIED; i++) rig_finish(&rig, requests[i]);
    assert_all_true(&rig, requests, prompts);
    *stats = engine_stats(rig.engine);
    assert_int_equal(stats->running + stats->waiting + stats->blocks_used, 0);
    assert_int_equal(stats->requests_done, N_VARIED);
    for (int i = 0; i < N_VARIED; i++) request_close(requests[i]);
    rig_close(&rig);
}

static void test_alone_is_truth(void **state)
{
    EngineStats stats;
    check_batch_of(&(RigOptions){ .engine = { .max_num_seqs = 1, .max_num_batched_tokens = 1, .prefill_chunk = 1 } },
                   &stats);
}

static void test_batch_is_truth(void **state)
{
    EngineStats stats;
    for (int chunk = 0; chunk < 8; chunk++) {
        check_batch_of(&(RigOptions){ .engine = { .prefill_chunk = chunk } }, &stats);
        check_batch_of(
            &(RigOptions){ .engine = { .prefill_chunk = chunk, .max_num_seqs = 16, .block_size = 1 + chunk } }, &stats);
    }
}

static void test_preempted_is_truth(void **state)
{
    EngineStats stats;
    check_batch_of(&(RigOptions){ .engine = { .max_num_seqs = 8, .n_blocks = 33 } }, &stats);
    assert_true(stats.preemptions > 3);
}

static void test_drafted_is_truth(void **state)
{
    EngineStats stats;
    static const double p_true[] = { 0, 0.5, 1 };
    for (int i = 0; i < 24; i++) {
        RigOptions o = {
            .engine = { .max_num_seqs = 1 + i % 5,
                        .draft_nodes = 2 + 3 * i,
                        .draft_depth = 1 + 2 * i,
                        .prefill_chunk = i % 4 },
            .drafts = true,
            .drafter = { .seed = (uint64_t)i, .p_true = p_true[i % 3], .chain = i % 2, .wants_features = i % 4 == 0 }
        };
        o.engine.max_num_batched_tokens = 16 + 20 * i;
        check_batch_of(&o, &stats);
        assert_true(stats.draft_tokens > 0 && stats.failed_drafts == 0);
        assert_true(p_true[i % 3] == 0 || stats.accepted_tokens > 0);
    }
}

static void test_drafted_and_preempted_is_truth(void **state)
{
    EngineStats stats;
    RigOptions o = { .engine = { .max_num_seqs = 8,
                                 .n_blocks = 40,
                                 .draft_nodes = 12,
                                 .draft_depth = 8,
                                 .max_num_batched_tokens = 100 },
                     .drafts = true,
                     .drafter = { .seed = 5, .p_true = 0.7 } };
    check_batch_of(&o, &stats);
    assert_true(stats.preemptions > 3 && stats.accepted_tokens > 10);
}

static void test_bad_drafts_are_no_drafts(void **state)
{
    EngineStats stats;
    RigOptions o = {
        .engine = { .max_num_seqs = 4, .draft_nodes = 12, .draft_depth = 8, .max_num_batched_tokens = 100 },
        .drafts = true,
        .drafter = { .seed = 5, .p_true = 0.7, .p_broken = 0.4, .p_fail = 0.2 }
    };
    check_batch_of(&o, &stats);
    assert_true(stats.failed_drafts > 10 && stats.accepted_tokens > 10);
}

/* Every broken tree is seen as such, and no proper one. */
static void test_bad_drafts_are_counted(void **state)
{
    Rig rig;
    int32_t prompt[8];
    rig_open(&rig, &(RigOptions){ .drafts = true,
                                  .engine = { .draft_nodes = 30, .draft_depth = 6 },
                                  .drafter = { .p_true = 0.5, .p_broken = 0.25 } });
    for (uint64_t id = 0; id < 10; id++) {
        GenerateRequest g = rig_request(id, prompt, 8, 100);
        Request *r = rig_submit(&rig, &g);
        rig_finish(&rig, r);
        request_close(r);
    }
    uint64_t broken = fake_drafter_counts(rig.drafter).broken_trees;
    assert_true(broken > 100);
    assert_int_equal(engine_stats(rig.engine).failed_drafts, broken);
    rig_close(&rig);
}

/* What goes to stderr until heard() gives it back. */
static FILE *listen_to_log(int *saved)
{
    FILE *f = tmpfile();
    assert_non_null(f);
    fflush(stderr);
    *saved = dup(STDERR_FILENO);
    dup2(fileno(f), STDERR_FILENO);
    return f;
}

static void heard(FILE *f, int saved, char *text, size_t max)
{
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(f);
    text[fread(text, 1, max - 1, f)] = 0;
    fclose(f);
}

/* A drafter that never works costs nothing but its work, and is not passed over in silence. */
static void test_failing_drafter_is_said_once(void **state)
{
    Rig rig;
    int32_t prompt[8];
    int saved;
    char text[4096];
    static const char reason[] = "the fake drafter was told to fail";
    rig_open(&rig, &(RigOptions){ .drafts = true, .engine = { .draft_nodes = 6, .draft_depth = 4 }, .drafter = { .p_fail = 1 } });
    FILE *f = listen_to_log(&saved);
    GenerateRequest g = rig_request(1, prompt, 8, 20);
    Request *r = rig_submit(&rig, &g);
    rig_finish(&rig, r);
    heard(f, saved, text, sizeof text);
    const char *first = strstr(text, reason);
    assert_true(first && strstr(text, "warn"));
    const char *second = strstr(first + 1, reason); /* switched off */
    assert_non_null(second);
    assert_null(strstr(second + 1, reason));
    EngineStats stats = engine_stats(rig.engine); /* off after eight calls */
    assert_int_equal(stats.failed_drafts, 8);
    assert_non_null(strstr(stats.methods[0].off, reason));
    request_close(r);
    rig_close(&rig);
}

static void test_choices_are_truth(void **state)
{
    Rig rig;
    RigRecord truth;
    int32_t prompt[16];
    rig_open(&rig, &(RigOptions){ .drafts = true,
                                  .engine = { .draft_nodes = 6, .draft_depth = 4 },
                                  .drafter = { .p_true = 0.5 } });
    GenerateRequest g = rig_request(9, prompt, 16, 30);
    g.params.temperature = 1;
    g.n_choices = 7; /* more than slots */
    Request *r = rig_submit(&rig, &g);
    rig_finish(&rig, r);
    for (int32_t c = 0; c < g.n_choices; c++) {
        rig_truth(&rig, &g, c, &truth);
        rig_assert_equal(rig_record(&rig, 9, c), &truth);
        assert_int_equal(request_finish(r, c), FINISH_LENGTH);
    }
    assert_memory_not_equal(request_tokens(r, 0), request_tokens(r, 1), 30 * sizeof(int32_t));
    request_close(r);
    rig_close(&rig);
}

static void test_no_speculation(void **state)
{
    Rig rig;
    int32_t prompt[8];
    rig_open(&rig, &(RigOptions){
                       .drafts = true, .engine = { .draft_nodes = 6, .draft_depth = 4 }, .drafter = { .p_true = 1 } });
    GenerateRequest g = rig_request(1, prompt, 8, 20);
    g.no_speculation = true;
    Request *r = rig_submit(&rig, &g);
    rig_finish(&rig, r);
    assert_int_equal(fake_drafter_counts(rig.drafter).jobs, 0);
    assert_int_equal(fake_drafter_counts(rig.drafter).observed, 0);
    RequestTimings t = request_timings(r);
    assert_int_equal(t.steps, 19); /* the first token came with the prompt */
    assert_int_equal(t.draft_tokens + t.accepted_tokens, 0);
    request_close(r);
    rig_close(&rig);
}

/* Beside one that is drafted, with slots that change hands: the fake drafter checks that it is told all of a sequence or
 * nothing. Without room for a node nobody is. */
static void test_drafters_hear_of_what_they_draft(void **state)
{
    for (int nodes = 1; nodes <= 6; nodes += 5) {
        Rig rig;
        int32_t prompt[4][8];
        Request *r[4];
        rig_open(&rig, &(RigOptions){ .drafts = true,
                                      .engine = { .max_num_seqs = 2, .draft_nodes = nodes, .draft_depth = 4 },
                                      .drafter = { .p_true = 0.5, .wants_features = nodes > 1 } });
        for (int i = 0; i < 4; i++) {
            GenerateRequest g = rig_request((uint64_t)i + 1, prompt[i], 8, 20 + i);
            g.no_speculation = i % 2 == 0;
            r[i] = rig_submit(&rig, &g);
        }
        for (int i = 0; i < 4; i++) {
            rig_finish(&rig, r[i]);
            RequestTimings t = request_timings(r[i]);
            assert_int_equal(t.draft_tokens > 0, nodes > 1 && i % 2 == 1);
            request_close(r[i]);
        }
        uint64_t observed = fake_drafter_counts(rig.drafter).observed;
        if (nodes == 1) assert_int_equal(observed, 0);
        else assert_in_range(observed, 2 * 8 + 1, 2 * (8 + 25)); /* not of four sequences */
        rig_close(&rig);
    }
}

/* With perfect chains, what is accepted is counted once, and steps shrink accordingly. */
static void test_drafts_save_steps(void **state)
{
    Rig rig;
    int32_t prompt[8];
    rig_open(&rig, &(RigOptions){ .drafts = true,
                                  .engine = { .draft_nodes = 9, .draft_depth = 8 },
                                  .drafter = { .p_true = 1, .chain = true } });
    GenerateRequest g = rig_request(1, prompt, 8, 60);
    Request *r = rig_submit(&rig, &g);
    rig_finish(&rig, r);
    RequestTimings t = request_timings(r);
    assert_int_equal(request_count(r, 0), 60);
    assert_int_equal(1 + t.steps + t.accepted_tokens, 60);
    assert_int_equal(t.accepted_tokens, t.draft_tokens); /* none was proposed beyond the length limit */
    assert_true(t.steps < 30);
    request_close(r);
    rig_close(&rig);
}

/* Drafters are told the choice's own draw: one that knows it all is always right. */
static void test_drafts_know_the_draw(void **state)
{
    Rig rig;
    int32_t prompt[8];
    rig_open(&rig, &(RigOptions){ .drafts = true,
                                  .engine = { .draft_nodes = 9, .draft_depth = 8 },
                                  .drafter = { .p_true = 1, .chain = true } });
    GenerateRequest g = rig_request(1, prompt, 8, 60);
    g.n_choices = 3;
    g.params.temperature = 1.5f;
    g.params.repetition_penalty = 1.2f;
    Request *r = rig_submit(&rig, &g);
    rig_finish(&rig, r);
    RequestTimings t = request_timings(r);
    assert_true(t.draft_tokens > 60);
    assert_int_equal(t.accepted_tokens, t.draft_tokens);
    request_close(r);
    rig_close(&rig);
}

/* ---- how requests end ---- */

static void test_finish_reasons(void **state)
{
    Rig rig;
    RigRecord plain;
    int32_t prompt[8];
    rig_open(&rig, &(RigOptions){ 0 });
    GenerateRequest g = rig_request(2, prompt, 8, 40);
    rig_truth(&rig, &g, 0, &plain);

    Request *r = rig_submit(&rig, &g);
    rig_finish(&rig, r);
    assert_int_equal(request_finish(r, 0), FINISH_LENGTH);
    assert_int_equal(request_count(r, 0), 40);
    assert_int_equal(request_error(r, NULL), OK);
    request_close(r);

    int32_t at = 0;
    while (plain.tokens[at] != plain.tokens[12]) at++; /* the token may occur earlier */
    g.stop_ids[0] = plain.tokens[12];
    g.n_stop_ids = 1;
    r = rig_submit(&rig, &g);
    rig_finish(&rig, r);
    assert_int_equal(request_finish(r, 0), FINISH_STOP);
    assert_int_equal(request_count(r, 0), at + 1);
    assert_int_equal(request_tokens(r, 0)[at], plain.tokens[12]);
    request_close(r);

    g.ignore_eos = true;
    r = rig_submit(&rig, &g);
    rig_finish(&rig, r);
    assert_int_equal(request_finish(r, 0), FINISH_LENGTH);
    request_close(r);

    g.ignore_eos = false;
    g.min_tokens = 30;
    r = rig_submit(&rig, &g);
    rig_finish(&rig, r);
    for (int32_t i = 0; i < 30; i++) assert_int_not_equal(request_tokens(r, 0)[i], plain.tokens[12]);
    assert_true(request_count(r, 0) >= 30);
    request_close(r);

    g = rig_request(3, prompt, 8, 0); /* to the end of the context */
    r = rig_submit(&rig, &g);
    rig_finish(&rig, r);
    assert_int_equal(request_count(r, 0), 120);
    assert_int_equal(request_finish(r, 0), FINISH_LENGTH);
    request_close(r);
    rig_close(&rig);
}

static void test_cancel_and_stop_choice(void **state)
{
    Rig rig;
    int32_t prompt[8];
    Error err = { 0 };
    rig_open(&rig, &(RigOptions){ 0 });
    GenerateRequest g = rig_request(4, prompt, 8, 100);
    g.n_choices = 2;
    Request *r = rig_submit(&rig, &g);
    for (int i = 0; i < 5; i++) rig_step(&rig);
    request_stop_choice(r, 1);
    int32_t n = request_count(r, 1);
    assert_int_equal(n, 5);
    rig_step(&rig);
    assert_int_equal(request_finish(r, 1), FINISH_STOP);
    assert_int_equal(request_count(r, 1), n);
    assert_int_equal(request_finish(r, 0), FINISH_NONE);
    assert_false(request_done(r));
    assert_int_equal(request_count(r, 0), n + 1);
    request_cancel(r);
    rig_step(&rig);
    assert_int_equal(request_finish(r, 0), FINISH_CANCELLED);
    assert_int_equal(request_count(r, 0), n + 1);
    assert_int_equal(request_error(r, &err), ERR_CANCELLED);
    assert_true(request_done(r));
    assert_int_equal(engine_stats(rig.engine).blocks_used, 0);
    assert_false(engine_step(rig.engine));
    request_close(r);
    rig_close(&rig);
}

/* Cancelled before it was ever seen, and while it waits for a slot. */
static void test_cancel_waiting(void **state)
{
    Rig rig;
    int32_t prompt[8];
    rig_open(&rig, &(RigOptions){ .engine = { .max_num_seqs = 1 } });
    GenerateRequest a = rig_request(1, prompt, 8, 50), b = rig_request(2, prompt, 8, 50),
                    c = rig_request(3, prompt, 8, 50);
    Request *running = rig_submit(&rig, &a), *waiting = rig_submit(&rig, &b), *unseen;
    rig_step(&rig);
    assert_int_equal(engine_stats(rig.engine).waiting, 1);
    request_cancel(waiting);
    unseen = rig_submit(&rig, &c);
    request_close(unseen); /* lets go at once: the engine frees it */
    rig_step(&rig);
    assert_int_equal(request_finish(waiting, 0), FINISH_CANCELLED);
    assert_int_equal(request_count(waiting, 0), 0);
    assert_int_equal(engine_stats(rig.engine).waiting, 0);
    assert_int_equal(request_finish(running, 0), FINISH_NONE);
    request_close(running);
    request_close(waiting);
    rig_close(&rig);
}

static void test_poisoned_request(void **state)
{
    Rig rig;
    RigRecord truth;
    int32_t bad_prompt[8], good_prompt[8], scored_prompt[30];
    Error err = { 0 };
    rig_open(&rig, &(RigOptions){ .poison_after = 20,
                                  .drafts = true,
                                  .engine = { .draft_nodes = 6, .draft_depth = 5 },
                                  .drafter = { .p_true = 0.8 } });
    GenerateRequest bad = rig_request(1, bad_prompt, 8, 40), good = rig_request(2, good_prompt, 8, 40),
                    scored = rig_request(3, scored_prompt, 30, 5);
    bad_prompt[0] = scored_prompt[0] = RIG_POISON;
    bad.n_choices = 3;
    bad.params.temperature = 1;
    scored.prompt_logprobs = true;
    Request *b = rig_submit(&rig, &bad), *g = rig_submit(&rig, &good), *s = rig_submit(&rig, &scored);
    while (request_finish(b, 0) == FINISH_NONE && request_finish(b, 1) == FINISH_NONE &&
           request_finish(b, 2) == FINISH_NONE)
        rig_step(&rig);
    assert_true(request_done(b)); /* its choices are at different places, but fall together */
    rig_finish(&rig, g);
    rig_finish(&rig, s);
    for (int32_t c = 0; c < 3; c++) {
        rig_truth(&rig, &bad, c, &truth);
        assert_int_equal(truth.n, 12);
        assert_int_equal(request_finish(b, c), FINISH_ERROR);
        assert_true(request_count(b, c) <= 12);
        assert_memory_equal(request_tokens(b, c), truth.tokens, (size_t)request_count(b, c) * sizeof(int32_t));
    }
    assert_int_equal(request_error(b, &err), ERR_NUMERIC);
    assert_int_equal(request_finish(s, 0), FINISH_ERROR);
    assert_int_equal(request_count(s, 0), 0);
    rig_truth(&rig, &good, 0, &truth);
    rig_assert_equal(rig_record(&rig, 2, 0), &truth);
    assert_int_equal(request_finish(g, 0), FINISH_LENGTH);
    EngineStats stats = engine_stats(rig.engine);
    assert_int_equal(stats.requests_failed, 2);
    assert_int_equal(stats.requests_done, 3);
    assert_int_equal(stats.blocks_used, 0);
    request_close(b);
    request_close(g);
    request_close(s);
    rig_close(&rig);
}

static void test_close_ends_requests(void **state)
{
    Rig rig;
    int32_t prompt[8];
    Error err = { 0 };
    rig_open(&rig, &(RigOptions){ .engine = { .max_num_seqs = 1 } });
    GenerateRequest g = rig_request(1, prompt, 8, 50);
    Request *running = rig_submit(&rig, &g), *waiting, *unseen;
    g.id = 2;
    waiting = rig_submit(&rig, &g);
    rig_step(&rig);
    rig_step(&rig);
    g.id = 3;
    unseen = rig_submit(&rig, &g);
    rig_close(&rig);
    assert_int_equal(request_count(running, 0), 2);
    Request *all[] = { running, waiting, unseen };
    for (int i = 0; i < COUNT(all); i++) {
        assert_true(request_done(all[i]));
        assert_int_equal(request_finish(all[i], 0), FINISH_CANCELLED);
        error_clear(&err);
        assert_int_equal(request_error(all[i], &err), ERR_CANCELLED);
        assert_non_null(strstr(err.text, "stopping"));
        assert_false(request_wait(all[i], 0) && request_wait(all[i], -1)); /* a second wait returns at once */
        request_close(all[i]);                                             /* after the engine is gone */
    }
}

/* ---- logprobs ---- */

static double log_softmax(const float *logits, int32_t token)
{
    double sum = 0;
    for (int32_t v = 0; v < RIG_VOCAB; v++) sum += exp(logits[v]);
    return logits[token] - log(sum);
}

static void test_logprobs(void **state)
{
    int32_t prompt[20], ids[60];
    float logits[RIG_VOCAB];
    for (int drafts = 0; drafts < 2; drafts++) {
        Rig rig;
        rig_open(&rig, &(RigOptions){ .drafts = drafts,
                                      .engine = { .draft_nodes = 8, .draft_depth = 5 },
                                      .drafter = { .p_true = 0.8 } });
        GenerateRequest g = rig_request(5, prompt, 20, 30);
        g.params.n_logprobs = 3;
        g.params.temperature = 0.8f;
        Request *r = rig_submit(&rig, &g);
        rig_finish(&rig, r);
        memcpy(ids, prompt, sizeof prompt);
        memcpy(ids + 20, request_tokens(r, 0), 30 * sizeof ids[0]);
        for (int32_t i = 0; i < 30; i++) {
            const TokenLogprob *lp = &request_logprobs(r, 0)[i];
            fake_model_logits(&rig.model_options, ids, 20 + i, logits);
            assert_float_equal(lp->logprob, log_softmax(logits, ids[20 + i]), 1e-5);
            assert_int_equal(lp->n_top, 3);
            for (int t = 0; t < 3; t++)
                assert_float_equal(lp->top_logprob[t], log_softmax(logits, lp->top_id[t]), 1e-5);
        }
        assert_null(request_prompt_logprobs(r));
        request_close(r);
        rig_close(&rig);
    }
}

static void check_prompt_logprobs(const RigOptions *options, int32_t n_choices)
{
    Rig rig;
    int32_t prompt[90];
    float logits[RIG_VOCAB];
    rig_open(&rig, options);
    GenerateRequest g = rig_request(5, prompt, 90, 4);
    g.prompt_logprobs = true;
    g.params.n_logprobs = 2;
    g.n_choices = n_choices;
    Request *r = rig_submit(&rig, &g);
    bool any = false;
    while (!any) {
        rig_step(&rig);
        for (int32_t c = 0; c < n_choices; c++) any |= request_count(r, c) > 0;
    }
    for (int32_t i = 1; i < 90; i++) { /* complete at the first token of whichever choice */
        fake_model_logits(&rig.model_options, prompt, i, logits);
        assert_float_equal(request_prompt_logprobs(r)[i].logprob, log_softmax(logits, prompt[i]), 1e-5);
        assert_int_equal(request_prompt_logprobs(r)[i].n_top, 2);
    }
    rig_finish(&rig, r);
    request_close(r);
    rig_close(&rig);
}

static void test_prompt_logprobs(void **state)
{
    check_prompt_logprobs(&(RigOptions){ 0 }, 1);
    check_prompt_logprobs(&(RigOptions){ .engine = { .max_num_batched_tokens = 200, .prefill_chunk = 7 } }, 3);
    check_prompt_logprobs(&(RigOptions){ .engine = { .max_num_batched_tokens = 200 } }, 3); /* more rows than outputs */
}

/* Ids from n_valid on are padding: outside the sum, not among the alternatives, and impossible themselves. */
static void test_prompt_logprobs_of_a_padded_vocabulary(void **state)
{
    enum { N_VALID = 20 };
    Rig rig;
    int32_t prompt[60], n_padded = 0;
    float logits[RIG_VOCAB];
    rig_open(&rig, &(RigOptions){ .engine = { .n_valid = N_VALID } });
    GenerateRequest g = rig_request(5, prompt, 60, 4);
    g.prompt_logprobs = true;
    g.params.n_logprobs = 5;
    Request *r = rig_submit(&rig, &g);
    rig_finish(&rig, r);
    for (int32_t i = 1; i < 60; i++) {
        const TokenLogprob *lp = &request_prompt_logprobs(r)[i];
        double sum = 0;
        fake_model_logits(&rig.model_options, prompt, i, logits);
        for (int32_t k = 0; k < N_VALID; k++) sum += exp((double)logits[k]);
        if (prompt[i] < N_VALID) assert_float_equal(lp->logprob, (double)logits[prompt[i]] - log(sum), 1e-5);
        else assert_true(lp->logprob == -INFINITY && ++n_padded);
        assert_int_equal(lp->n_top, 5);
        for (int t = 0; t < 5; t++) {
            assert_in_range(lp->top_id[t], 0, N_VALID - 1);
            assert_float_equal(lp->top_logprob[t], (double)logits[lp->top_id[t]] - log(sum), 1e-5);
        }
    }
    assert_in_range(n_padded, 10, 50);
    request_close(r);
    rig_close(&rig);
}

/* ---- limits ---- */

static void expect_refusal(Rig *rig, const GenerateRequest *g, Status status, const char *param)
{
    Error err = { 0 };
    Request *r = (Request *)rig;
    assert_int_equal(engine_submit(rig->engine, g, NULL, NULL, &r, &err), status);
    assert_null(r);
    assert_string_equal(err.param, param);
    assert_true(strlen(err.text) > 10);
}

static void test_bad_requests(void **state)
{
    Rig rig;
    int32_t prompt[200];
    rig_open(&rig, &(RigOptions){ 0 });
    GenerateRequest ok = rig_request(1, prompt, 10, 10), g = ok;
    g.n_prompt = 0;
    expect_refusal(&rig, &g, ERR_INPUT, "prompt");
    g = rig_request(1, prompt, 128, 0);
    expect_refusal(&rig, &g, ERR_INPUT, "prompt");
    g = ok, g.max_tokens = 119;
    expect_refusal(&rig, &g, ERR_INPUT, "max_tokens");
    g = ok, g.max_tokens = -1;
    expect_refusal(&rig, &g, ERR_INPUT, "max_tokens");
    g = ok, g.min_tokens = 11;
    expect_refusal(&rig, &g, ERR_INPUT, "min_tokens");
    g = ok, g.n_choices = 0;
    expect_refusal(&rig, &g, ERR_INPUT, "n");
    g = ok, g.n_choices = MAX_CHOICES + 1;
    expect_refusal(&rig, &g, ERR_INPUT, "n");
    g = ok, g.n_stop_ids = MAX_STOP_IDS + 1;
    expect_refusal(&rig, &g, ERR_INPUT, "stop_token_ids");
    g = ok, g.n_stop_ids = 1, g.stop_ids[0] = RIG_VOCAB;
    expect_refusal(&rig, &g, ERR_INPUT, "stop_token_ids");
    g = ok, g.params.temperature = 7;
    expect_refusal(&rig, &g, ERR_INPUT, "temperature");
    prompt[3] = RIG_VOCAB;
    expect_refusal(&rig, &ok, ERR_INPUT, "prompt");
    assert_int_equal(engine_stats(rig.engine).waiting, 0);
    rig_close(&rig);
}

static void test_queue_full(void **state)
{
    Rig rig;
    int32_t prompt[8];
    Request *r[8];
    rig_open(&rig, &(RigOptions){ .engine = { .max_num_seqs = 2, .max_waiting = 3 } });
    GenerateRequest g = rig_request(1, prompt, 8, 5);
    for (int i = 0; i < 3; i++, g.id++) r[i] = rig_submit(&rig, &g);
    expect_refusal(&rig, &g, ERR_FULL, "");
    rig_step(&rig); /* two run now: two more may wait */
    for (int i = 3; i < 5; i++, g.id++) r[i] = rig_submit(&rig, &g);
    expect_refusal(&rig, &g, ERR_FULL, "");
    for (int i = 0; i < 5; i++) rig_finish(&rig, r[i]);
    for (int i = 0; i < 5; i++) request_close(r[i]);
    rig_close(&rig);
}

static void test_request_memory_is_bounded(void **state)
{
    Rig rig;
    int32_t prompt[8];
    Request *first = NULL, *second = NULL;
    rig_open(&rig, &(RigOptions){ .engine = { .max_request_bytes = 48000 } });
    GenerateRequest g = rig_request(1, prompt, 8, 100), big = g;
    g.params.n_logprobs = 5;
    big.params.n_logprobs = 5;
    big.n_choices = 4;
    expect_refusal(&rig, &big, ERR_INPUT, "max_tokens");
    first = rig_submit(&rig, &g);
    g.id = 2;
    second = rig_submit(&rig, &g);
    g.id = 3;
    expect_refusal(&rig, &g, ERR_FULL, "");
    request_close(first);
    rig_step(&rig); /* the engine lets go too */
    first = rig_submit(&rig, &g);
    request_close(first);
    request_close(second);
    rig_close(&rig);
}

static void test_bad_options(void **state)
{
    EngineOptions good = { .max_num_seqs = 2,
                           .max_num_batched_tokens = 8,
                           .max_model_len = 32,
                           .block_size = 4,
                           .n_blocks = 8,
                           .max_waiting = 4 };
    EngineOptions bad[] = { good, good, good, good, good, good };
    bad[0].max_num_seqs = 0;
    bad[1].max_num_batched_tokens = 1;
    bad[2].n_blocks = 7; /* not one sequence of full length */
    bad[3].block_size = 0;
    bad[4].max_waiting = 0;
    bad[5].draft_nodes = TREE_MAX_NODES + 1;
    Backend *backend;
    Error err = { 0 };
    assert_int_equal(backend_open_cpu(&backend, &(BackendOptions){ .n_workers = 1 }, &err), OK);
    for (int i = 0; i < COUNT(bad); i++) {
        Model *model;
        Engine *engine = (Engine *)backend;
        FakeModelOptions mo = { .vocab_size = RIG_VOCAB, .poison = -1, .limits = { 8, 8, 2, 8 } };
        assert_int_equal(fake_model_open(&model, backend, &mo, &err), OK);
        error_clear(&err);
        assert_int_equal(engine_open(&engine, model, backend, NULL, &bad[i], &err), ERR_USAGE);
        assert_null(engine);
        assert_true(err.param[0]);
        model_close(model);
        error_clear(&err);
    }
    backend_close(backend);
}

/* ---- scheduling ---- */

static void test_pass_limits(void **state)
{
    Rig rig;
    int32_t prompts[4][100];
    Request *r[4];
    rig_open(&rig, &(RigOptions){ .engine = { .max_num_batched_tokens = 50, .prefill_chunk = 20 } });
    for (uint64_t i = 0; i < 4; i++) {
        GenerateRequest g = rig_request(i, prompts[i], 100, 10);
        r[i] = rig_submit(&rig, &g);
    }
    rig_step(&rig);
    FakeModelCounts c = fake_model_counts(rig.model);
    assert_int_equal(c.most_rows, 50); /* 20 + 20 + 10 */
    assert_int_equal(c.most_seqs, 3);
    assert_int_equal(c.most_prompt_rows, 20);
    for (int i = 0; i < 4; i++) rig_finish(&rig, r[i]);
    for (int i = 0; i < 4; i++) request_close(r[i]);
    rig_close(&rig);
}

/* Drafts leave room for prompts: a long prompt gets on while others are drafted for with many rows. */
static void test_drafts_do_not_starve_prompts(void **state)
{
    Rig rig;
    int32_t prompt[8], long_prompt[100];
    rig_open(&rig, &(RigOptions){ .drafts = true,
                                  .engine = { .max_num_batched_tokens = 40, .draft_nodes = 40, .draft_depth = 30 },
                                  .drafter = { .p_true = 0 } });
    GenerateRequest a = rig_request(1, prompt, 8, 100), b = rig_request(2, long_prompt, 100, 4);
    Request *drafted = rig_submit(&rig, &a);
    for (int i = 0; i < 3; i++) rig_step(&rig);
    Request *late = rig_submit(&rig, &b);
    int n = 0;
    int32_t n_other;
    assert_int_equal(scheduler_draft_rows(&rig.engine->scheduler, 1, &n_other), 39);
    assert_int_equal(n_other, 0);
    for (; request_count(late, 0) == 0; n++) {
        rig_step(&rig);
        int32_t rows = scheduler_draft_rows(&rig.engine->scheduler, 1, &n_other); /* half of what the anchor leaves */
        assert_int_equal(rows, request_count(late, 0) ? rows : 19);
        if (!request_count(late, 0)) assert_in_range(n_other, 2, 39);
    }
    assert_in_range(n, 1, 6);
    request_close(drafted);
    request_close(late);
    rig_close(&rig);
}

/* Who would be preempted at once by those that already run is not let in. */
static void test_newcomers_leave_room_to_grow(void **state)
{
    Rig rig;
    int32_t prompt[8], long_prompt[19];
    rig_open(&rig, &(RigOptions){ .engine = { .max_model_len = 32, .n_blocks = 8 } });
    GenerateRequest a = rig_request(1, prompt, 8, 24), b = rig_request(2, long_prompt, 19, 5);
    Request *first = rig_submit(&rig, &a);
    rig_step(&rig); /* holds 2 blocks, soon 3: 5 are left, just what the other wants */
    rig_step(&rig);
    Request *second = rig_submit(&rig, &b);
    rig_finish(&rig, first);
    rig_finish(&rig, second);
    assert_int_equal(engine_stats(rig.engine).preemptions, 0);
    request_close(first);
    request_close(second);
    rig_close(&rig);
}

static void count_notify(void *ctx)
{
    ++*(int *)ctx;
}

static void test_notify_and_timings(void **state)
{
    Rig rig;
    int32_t prompt[8];
    int n = 0;
    Error err = { 0 };
    Request *r;
    rig_open(&rig, &(RigOptions){ 0 });
    GenerateRequest g = rig_request(1, prompt, 8, 10);
    assert_int_equal(engine_submit(rig.engine, &g, count_notify, &n, &r, &err), OK);
    rig_finish(&rig, r);
    assert_int_equal(n, 10);
    RequestTimings t = request_timings(r);
    assert_true(t.queue_ms >= 0 && t.prefill_ms > 0 && t.decode_ms > 0);
    assert_int_equal(t.steps, 9);
    request_close(r);
    assert_int_equal(engine_submit(rig.engine, &g, count_notify, &n, &r, &err), OK);
    request_close(r); /* nobody is told any more */
    rig_step(&rig);
    assert_int_equal(n, 10);
    rig_close(&rig);
}

static void test_padding_is_never_chosen(void **state)
{
    Rig rig;
    int32_t prompt[8];
    rig_open(&rig, &(RigOptions){ .engine = { .n_valid = 20 } });
    GenerateRequest g = rig_request(1, prompt, 8, 100);
    g.params.temperature = 2;
    Request *r = rig_submit(&rig, &g);
    rig_finish(&rig, r);
    for (int32_t i = 0; i < 100; i++) assert_in_range(request_tokens(r, 0)[i], 0, 19);
    request_close(r);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone_is_truth),
        cmocka_unit_test(test_batch_is_truth),
        cmocka_unit_test(test_preempted_is_truth),
        cmocka_unit_test(test_drafted_is_truth),
        cmocka_unit_test(test_drafted_and_preempted_is_truth),
        cmocka_unit_test(test_bad_drafts_are_no_drafts),
        cmocka_unit_test(test_bad_drafts_are_counted),
        cmocka_unit_test(test_failing_drafter_is_said_once),
        cmocka_unit_test(test_choices_are_truth),
        cmocka_unit_test(test_no_speculation),
        cmocka_unit_test(test_drafters_hear_of_what_they_draft),
        cmocka_unit_test(test_drafts_save_steps),
        cmocka_unit_test(test_drafts_know_the_draw),
        cmocka_unit_test(test_finish_reasons),
        cmocka_unit_test(test_cancel_and_stop_choice),
        cmocka_unit_test(test_cancel_waiting),
        cmocka_unit_test(test_poisoned_request),
        cmocka_unit_test(test_close_ends_requests),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_prompt_logprobs),
        cmocka_unit_test(test_prompt_logprobs_of_a_padded_vocabulary),
        cmocka_unit_test(test_bad_requests),
        cmocka_unit_test(test_queue_full),
        cmocka_unit_test(test_request_memory_is_bounded),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_pass_limits),
        cmocka_unit_test(test_drafts_do_not_starve_prompts),
        cmocka_unit_test(test_newcomers_leave_room_to_grow),
        cmocka_unit_test(test_notify_and_timings),
        cmocka_unit_test(test_padding_is_never_chosen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
