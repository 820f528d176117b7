/* Drafts at temperature above 0: are guesses better ranked by the noise of the draw? Texts are drawn from the target,
 * then every round of every drafter is replayed over them; nothing else decides how many tokens a round gains.
 *
 * Without an argument a few prompts, which shows that coupling works. With "all": 48 prompts of 96 tokens, three
 * temperatures, both pairs. */
#include "sampling/choose.h"
#include "speculation/draft_dflash.h"
#include "support/draft_rig.h"
#include "support/golden.h"

#include "base/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

enum { N_TOKENS = 96 };

static void assert_ok(Status s, const Error *err)
{
    if (s) fail_msg("%s", err->text);
}

/* Continuations drawn by the request's noise: tokens[i][k] stands at place n_prompt + k. */
typedef struct Drawn {
    int32_t tokens[TRACE_MAX][N_TOKENS];
    float   temperature;
    int32_t n; /* texts */
} Drawn;

static DrawKey key_of(int32_t text)
{
    return (DrawKey){ 7000 + (uint64_t)text, 0 };
}

static int32_t draw(Chooser *chooser, const float *logits, float temperature, int32_t text, int32_t index)
{
    SampleParams params = { .temperature = temperature, .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1 };
    RowRule rule = { .forced = -1, .params = &params };
    Choice choice;
    choose(chooser, logits, &rule, key_of(text), (uint32_t)index, &choice);
    assert_true(choice.is_finite);
    return choice.token;
}

static void draw_texts(DraftRig *rig, const Traces *t, Drawn *out)
{
    Chooser *chooser = NULL;
    Error err = { 0 };
    BatchBuilder *b = rig->builder;
    assert_ok(chooser_open(&chooser, rig->model->info.vocab_size, &err), &err);
    for (int32_t i = 0; i < out->n; i++) {
        const Trace *trace = &t->item[i];
        builder_clear(b, i);
        builder_begin(b);
        builder_want(b, builder_line(b, i, trace->prompt, trace->n_prompt) + trace->n_prompt - 1, 1);
        builder_forward(b);
        out->tokens[i][0] = draw(chooser, builder_logits(b, 0), out->temperature, i, trace->n_prompt);
    }
    for (int32_t k = 1; k < N_TOKENS; k++) {
        builder_begin(b);
        for (int32_t i = 0; i < out->n; i++) builder_want(b, builder_line(b, i, &out->tokens[i][k - 1], 1), 1);
        builder_forward(b);
        for (int32_t i = 0; i < out->n; i++)
            out->tokens[i][k] = draw(chooser, builder_logits(b, i), out->temperature, i, t->item[i].n_prompt + k);
    }
    chooser_close(chooser);
}

/* Tokens a round gains, over all rounds of all texts. */
static double gain(DraftRig *rig, const Traces *t, const Drawn *texts, int32_t method, int32_t max_nodes)
{
    int32_t at[TRACE_MAX], n_rounds = 0, n_live = texts->n;
    for (int32_t i = 0; i < texts->n; i++) {
        at[i] = 1;
        draft_rig_begin(rig, i);
        draft_rig_run(rig, &(DraftRigLine){ i, t->item[i].n_prompt, t->item[i].prompt }, 1);
    }
    while (n_live > 0) {
        DraftJob jobs[TRACE_MAX];
        DraftRigLine lines[TRACE_MAX];
        Error err = { 0 };
        int n = 0;
        for (int32_t i = 0; i < texts->n; i++) {
            if (at[i] >= N_TOKENS) continue;
            jobs[n] = draft_rig_job(rig, i, texts->tokens[i][at[i] - 1]);
            jobs[n].method = method;
            jobs[n].max_nodes = max_nodes;
            jobs[n].draw = key_of(i);
            jobs[n++].temperature = texts->temperature;
        }
        n_live = n;
        if (n == 0) break;
        assert_ok(rig->drafter->draft(rig->drafter, backend_stream(rig->backend), jobs, n, &err), &err);
        for (int k = 0; k < n; k++) {
            int32_t i = jobs[k].slot, left = N_TOKENS - at[i];
            int32_t gained = 1 + draft_rig_accepted(jobs[k].tree, texts->tokens[i] + at[i], left);
            if (gained > left) gained = left;
            lines[k] = (DraftRigLine){ i, gained, texts->tokens[i] + at[i] - 1 };
            at[i] += gained;
        }
        n_rounds += n;
        draft_rig_run(rig, lines, n);
    }
    return (double)(N_TOKENS - 1) * texts->n / n_rounds;
}

typedef struct Pair {
    const char *key, *target, *drafter;
} Pair;
static const Pair pairs[] = { { "plain", "models/nano-plain", "models/nano-plain-DFlash" },
                              { "hybrid", "models/nano", "models/nano-DFlash" } };

static void attach(DraftRig *rig, const Pair *pair, bool is_uncoupled)
{
    Error err = { 0 };
    char dir[4096];
    Drafter *drafter = NULL;
    assert_ok(source_path(dir, sizeof dir, pair->drafter, &err), &err);
    DflashOptions options = { .dir = dir,
                              .backend = rig->backend,
                              .target = rig->model,
                              .n_slots = rig->options.n_slots,
                              .methods = DFLASH_CHAIN | DFLASH_TREE,
                              .is_uncoupled = is_uncoupled };
    assert_ok(drafter_open_dflash(&drafter, &options, &err), &err);
    draft_rig_attach(rig, drafter);
}

typedef struct Width {
    const char *name;
    int32_t     method, max_nodes;
} Width;
static const Width widths[] = { { "chain", 0, 16 }, { "tree 15", 1, 16 }, { "tree 32", 1, 33 }, { "tree 64", 1, 65 } };

static void compare(const Pair *pair, int32_t n_texts, float temperature)
{
    static Drawn texts;
    double gains[2][COUNT(widths)];
    Error err = { 0 };
    Traces *t = NULL;
    DraftRig rig;
    texts.n = n_texts;
    texts.temperature = temperature;
    assert_ok(traces_open(&t, "nano_reference.json", pair->key, &err), &err);
    DraftRigOptions sizes = { .target = pair->target, .dtype = DT_BF16, .n_slots = n_texts, .max_tokens = 192,
                              .max_rows = n_texts * 16 < 128 ? 128 : n_texts * 16 };
    assert_ok(draft_rig_open(&rig, &sizes, &err), &err);
    for (int u = 0; u < 2; u++) {
        attach(&rig, pair, u);
        if (u == 0) draw_texts(&rig, t, &texts);
        for (int w = 0; w < COUNT(widths); w++)
            gains[u][w] = gain(&rig, t, &texts, widths[w].method, widths[w].max_nodes);
        draft_rig_detach(&rig);
    }
    for (int w = 0; w < COUNT(widths); w++) {
        print_message("%-6s T = %.1f %-8s tokens a round: coupled %.3f, uncoupled %.3f (%+.1f %%)\n", pair->key,
                      (double)temperature, widths[w].name, gains[0][w], gains[1][w],
                      100 * (gains[0][w] / gains[1][w] - 1));
        assert_true(gains[0][w] >
                    gains[1][w] * (widths[w].method ? 1 : 0.98)); /* a chain's gain at 0.7 is within chance */
    }
    draft_rig_close(&rig);
    traces_free(t);
}

static void test_few(void **state)
{
    compare(&pairs[0], 6, 1.0f);
}

static void test_table(void **state)
{
    static const float temperatures[] = { 0.7f, 1.0f, 1.3f };
    for (int p = 0; p < COUNT(pairs); p++)
        for (int i = 0; i < COUNT(temperatures); i++) compare(&pairs[p], 48, temperatures[i]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest quick[] = { cmocka_unit_test(test_few) };
    const struct CMUnitTest all[] = { cmocka_unit_test(test_table) };
    numeric_mode_enter();
    if (argc > 1 && strcmp(argv[1], "all") == 0) return cmocka_run_group_tests_name("coupling, all", all, NULL, NULL);
    return cmocka_run_group_tests_name("coupling", quick, NULL, NULL);
}
