#include "rig.h"
#include "support/row_hash.h"

#include "base/memory.h"
#include "engine/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void on_row(void *ctx, uint64_t id, int32_t choice, int32_t index, const float *logits, int32_t vocab,
                   int32_t token)
{
    Rig *rig = ctx;
    RigRecord *r = &rig->records[id * MAX_CHOICES + (uint64_t)choice];
    if (r->n == 0) r->first_index = index;
    CHECK(r->n < RIG_MAX_TOKENS && index == r->first_index + r->n);
    r->tokens[r->n] = token;
    r->logits_hash[r->n++] = row_hash(logits, vocab);
}

static void fill_defaults(EngineOptions *o, Rig *rig)
{
    if (!o->max_num_seqs) o->max_num_seqs = 4;
    if (!o->max_num_batched_tokens) o->max_num_batched_tokens = 64;
    if (!o->max_model_len) o->max_model_len = 128;
    if (!o->block_size) o->block_size = 4;
    if (!o->n_blocks) o->n_blocks = o->max_num_seqs * (o->max_model_len / o->block_size + 8);
    if (!o->max_waiting) o->max_waiting = 64;
    o->hooks.row = on_row;
    o->hooks.ctx = rig;
}

Status rig_open_raw(Rig *rig, const RigOptions *options, Error *err)
{
    RigOptions o = *options;
    *rig = (Rig){ 0 };
    fill_defaults(&o.engine, rig);
    rig->model_options = (FakeModelOptions){ .vocab_size = RIG_VOCAB,
                                             .seed = 7,
                                             .poison = o.poison_after ? RIG_POISON : -1,
                                             .poison_after = o.poison_after,
                                             .limits = plan_limits(&o.engine) };
    o.drafter.model = rig->model_options;
    o.drafter.depth = o.engine.draft_depth;
    rig->records = mem_alloc_array((size_t)RIG_MAX_REQUESTS * MAX_CHOICES, sizeof rig->records[0]);
    Status s = rig->records ? OK : error_set(err, ERR_NOMEM, "no memory for records");
    if (!s) s = backend_open_cpu(&rig->backend, &(BackendOptions){ .n_workers = 1 }, err);
    if (!s) s = fake_model_open(&rig->model, rig->backend, &rig->model_options, err);
    rig->drafter = o.own;
    if (!s && o.drafts) s = fake_drafter_open(&rig->drafter, &o.drafter, err);
    if (!s) s = engine_open(&rig->engine, rig->model, rig->backend, rig->drafter, &o.engine, err);
    if (!s) return OK;
    model_close(rig->model);
    drafter_close(rig->drafter);
    rig_close(rig);
    return s;
}

void rig_open(Rig *rig, const RigOptions *options)
{
    Error err = { 0 };
    if (rig_open_raw(rig, options, &err)) fail_msg("%s", err.text);
}

void rig_close(Rig *rig)
{
    engine_close(rig->engine);
    backend_close(rig->backend);
    mem_free(rig->records);
    *rig = (Rig){ 0 };
}

GenerateRequest rig_request(uint64_t id, int32_t *prompt, int32_t n_prompt, int32_t max_tokens)
{
    uint64_t x = id * 2862933555777941757u + 3037000493u;
    for (int32_t i = 0; i < n_prompt; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        prompt[i] = (int32_t)(x >> 33) % (RIG_POISON - 1);
    }
    return (GenerateRequest){ .id = id,
                              .prompt = prompt,
                              .n_prompt = n_prompt,
                              .n_choices = 1,
                              .max_tokens = max_tokens,
                              .params = { .temperature = 0, .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1 },
                              .seed = id * 31 };
}

Request *rig_submit(Rig *rig, const GenerateRequest *g)
{
    Error err = { 0 };
    Request *r = NULL;
    memset(&rig->records[g->id * MAX_CHOICES], 0, MAX_CHOICES * sizeof rig->records[0]);
    if (engine_submit(rig->engine, g, NULL, NULL, &r, &err)) fail_msg("%s", err.text);
    return r;
}

/* Pools, tables and lists agree; every running sequence has blocks for what it committed and none beyond its known tokens. */
static void recount(const Rig *rig)
{
    const Scheduler *s = &rig->engine->scheduler;
    assert_true(scheduler_check(s));
    for (int32_t i = 0; i < s->n_running; i++)
        assert_true(s->table.n_used[s->running[i]->slot] >=
                    block_table_blocks_for(&s->table, s->running[i]->n_committed));
    assert_in_range(atomic_load(&rig->engine->n_waiting), 0, rig->engine->options.max_waiting);
}

void rig_step(Rig *rig)
{
    engine_step(rig->engine);
    recount(rig);
}

void rig_finish(Rig *rig, Request *r)
{
    for (int steps = 0; !request_done(r); steps++) {
        assert_true(steps < 100000);
        rig_step(rig);
    }
}

const RigRecord *rig_record(const Rig *rig, uint64_t id, int32_t choice)
{
    return &rig->records[id * MAX_CHOICES + (uint64_t)choice];
}

void rig_assert_equal(const RigRecord *a, const RigRecord *b)
{
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->first_index, b->first_index);
    assert_memory_equal(a->tokens, b->tokens, (size_t)a->n * sizeof a->tokens[0]);
    assert_memory_equal(a->logits_hash, b->logits_hash, (size_t)a->n * sizeof a->logits_hash[0]);
}

static bool is_stop(const GenerateRequest *g, int32_t token)
{
    for (int32_t i = 0; i < g->n_stop_ids; i++)
        if (!g->ignore_eos && g->stop_ids[i] == token) return true;
    return false;
}

void rig_truth(const Rig *rig, const GenerateRequest *g, int32_t choice, RigRecord *out)
{
    int32_t ids[2 * RIG_MAX_TOKENS];
    float logits[RIG_VOCAB];
    Chooser *chooser;
    Error err = { 0 };
    assert_int_equal(chooser_open(&chooser, RIG_VOCAB, &err), OK);
    numeric_mode_enter();
    memcpy(ids, g->prompt, (size_t)g->n_prompt * sizeof ids[0]);
    *out = (RigRecord){ .first_index = g->n_prompt };
    int32_t room = rig->engine->options.max_model_len - g->n_prompt, most = g->max_tokens ? g->max_tokens : room;
    while (out->n < most) {
        int32_t n = g->n_prompt + out->n;
        fake_model_logits(&rig->model_options, ids, n, logits);
        History history = { .prompt = ids, .n_prompt = g->n_prompt, .output = ids + g->n_prompt, .n_output = out->n };
        RowRule rule = { .forced = -1, .params = &g->params, .history = &history };
        if (out->n < g->min_tokens && !g->ignore_eos) {
            rule.banned = g->stop_ids;
            rule.n_banned = g->n_stop_ids;
        }
        Choice c;
        choose(chooser, logits, &rule, (DrawKey){ g->seed, (uint32_t)choice }, (uint32_t)n, &c);
        if (!c.is_finite) break;
        ids[n] = out->tokens[out->n] = c.token;
        out->logits_hash[out->n++] = row_hash(logits, RIG_VOCAB);
        if (is_stop(g, c.token)) break;
    }
    chooser_close(chooser);
}
