/* Drafts by the trained DFlash networks: round by round against the published programs, and the same drafts however a
 * sequence came to where it is.
 *
 * Without an argument: the 12 traces. With "all" (suite slow): the 48 references. */
#include "speculation/draft_dflash.h"
#include "support/draft_rig.h"
#include "support/golden.h"
#include "support/rounds.h"

#include "base/memory.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

static void assert_ok(Status s, const Error *err)
{
    if (s) fail_msg("%s", err->text);
}

typedef struct Pair {
    const char *key, *target, *drafter;
} Pair;
static const Pair pairs[] = { { "plain", "models/nano-plain", "models/nano-plain-DFlash" },
                              { "hybrid", "models/nano", "models/nano-DFlash" } };

static DflashOptions options_of(DraftRig *rig, const Pair *pair, char dir[4096])
{
    Error err = { 0 };
    assert_ok(source_path(dir, 4096, pair->drafter, &err), &err);
    return (DflashOptions){ .dir = dir, .backend = rig->backend, .target = rig->model, .n_slots = rig->options.n_slots,
                            .methods = DFLASH_CHAIN | DFLASH_TREE | DFLASH_SPINE };
}

static void open_pair(DraftRig *rig, const Pair *pair, const DraftRigOptions *sizes)
{
    Error err = { 0 };
    char dir[4096];
    Drafter *drafter = NULL;
    DraftRigOptions o = *sizes;
    o.target = pair->target;
    assert_ok(draft_rig_open(rig, &o, &err), &err);
    DflashOptions options = options_of(rig, pair, dir);
    assert_ok(drafter_open_dflash(&drafter, &options, &err), &err);
    draft_rig_attach(rig, drafter);
}

static void draft(DraftRig *rig, DraftJob *jobs, int n)
{
    Error err = { 0 };
    assert_ok(rig->drafter->draft(rig->drafter, backend_stream(rig->backend), jobs, n, &err), &err);
    for (int i = 0; i < n; i++) assert_true(tree_check(jobs[i].tree));
}

/* ---- rounds of the reference ---- */

enum { CHAIN, TREE }; /* methods in the order of options_of() */

typedef struct Method {
    const char *name;
    int32_t     method, budget;
} Method;
static const Method methods[] = { { "dflash", CHAIN, 15 }, { "15", TREE, 15 }, { "32", TREE, 32 }, { "64", TREE, 64 } };

/* Where one trace stands: tokens [0, at) of the continuation are chosen, [0, at - 1) of them committed. */
typedef struct Progress {
    const Rounds *rounds;
    int32_t       at, n_rounds;
} Progress;

/* One round of every trace that is not at its end, all in one draft and one pass. Returns how many there were. */
static int step_all(DraftRig *rig, const Traces *t, const Method *m, Progress *p)
{
    DraftJob jobs[TRACE_MAX];
    DraftRigLine lines[TRACE_MAX];
    int n = 0;
    for (int32_t i = 0; i < t->n; i++) {
        if (p[i].at >= t->item[i].n_greedy) continue;
        jobs[n] = draft_rig_job(rig, i, t->item[i].greedy[p[i].at - 1]);
        jobs[n].method = m->method;
        jobs[n++].max_nodes = m->budget + 1;
    }
    if (n) draft(rig, jobs, n);
    for (int k = 0; k < n; k++) {
        int32_t i = jobs[k].slot;
        const int32_t *truth = t->item[i].greedy + p[i].at;
        int32_t left = t->item[i].n_greedy - p[i].at, accepted = draft_rig_accepted(jobs[k].tree, truth, left);
        int32_t gained = accepted + 1 < left ? accepted + 1 : left;
        if (gained != p[i].rounds->gained[p[i].n_rounds])
            fail_msg("%s, trace %d: round %d from token %d gains %d, the reference's %d", m->name, i, p[i].n_rounds,
                     p[i].at, gained, p[i].rounds->gained[p[i].n_rounds]);
        lines[k] = (DraftRigLine){ i, gained, truth - 1 };
        p[i].at += gained;
        p[i].n_rounds++;
    }
    if (n) draft_rig_run(rig, lines, n);
    return n;
}

static int replay(DraftRig *rig, const Traces *t, const RoundsList *rounds, const Method *m)
{
    Progress p[TRACE_MAX];
    int n_rounds = 0, n;
    for (int32_t i = 0; i < t->n; i++) {
        p[i] = (Progress){ .rounds = &rounds->item[i], .at = 1 };
        draft_rig_begin(rig, i);
        draft_rig_run(rig, &(DraftRigLine){ i, t->item[i].n_prompt, t->item[i].prompt }, 1);
    }
    while ((n = step_all(rig, t, m, p)) > 0) n_rounds += n;
    for (int32_t i = 0; i < t->n; i++) assert_int_equal(p[i].n_rounds, rounds->item[i].n);
    return n_rounds;
}

static void replay_file(const char *file)
{
    for (int i = 0; i < COUNT(pairs); i++) {
        Error err = { 0 };
        Traces *t = NULL;
        DraftRig rig;
        assert_ok(traces_open(&t, file, pairs[i].key, &err), &err);
        open_pair(&rig, &pairs[i], &(DraftRigOptions){ .dtype = DT_F32, .n_slots = t->n, .max_tokens = 192,
                                                         .max_rows = t->n * 16 });
        for (int k = 0; k < COUNT(methods); k++) {
            RoundsList *rounds = NULL;
            assert_ok(rounds_open(&rounds, file, pairs[i].key, methods[k].name, &err), &err);
            int n = replay(&rig, t, rounds, &methods[k]);
            print_message("%s, %s: %d rounds of %d texts as the reference's, %.3f tokens each\n", pairs[i].key,
                          methods[k].name, n, t->n, 95.0 * t->n / n);
            rounds_free(rounds);
        }
        draft_rig_close(&rig);
        traces_free(t);
    }
}

static void test_traces(void **state)
{
    replay_file("nano_traces.json");
}

static void test_reference(void **state)
{
    replay_file("nano_reference.json");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest quick[] = { cmocka_unit_test(test_traces) };
    const struct CMUnitTest all[] = { cmocka_unit_test(test_reference) };
    numeric_mode_enter();
    if (argc > 1 && strcmp(argv[1], "all") == 0) return cmocka_run_group_tests_name("dflash, all", all, NULL, NULL);
    return cmocka_run_group_tests_name("dflash", quick, NULL, NULL);
}
