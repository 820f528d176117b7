/* Prompt lookup against a search through the whole text, over many requests, slots and lengths. */
#include "base/memory.h"
#include "random.h"
#include "speculation/draft_ngram.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

enum { MAX_LEN = 2000, N_SLOTS = 3 };

static Drafter *open_ngram(NgramOptions options)
{
    Drafter *d = NULL;
    Error err = { 0 };
    if (drafter_open_ngram(&d, &options, &err)) fail_msg("%s", err.text);
    return d;
}

static Tree tree_of(int32_t max_nodes)
{
    Tree t;
    Error err = { 0 };
    assert_int_equal(tree_alloc(&t, max_nodes, &err), OK);
    return t;
}

static DraftJob job_of(const int32_t *ids, int32_t n_ids, int32_t slot, Tree *tree)
{
    return (DraftJob){ .slot = slot,
                       .n_committed = n_ids - 1,
                       .anchor = ids[n_ids - 1],
                       .max_nodes = 16,
                       .max_depth = MAX_DEPTH - 1,
                       .ids = ids,
                       .tree = tree };
}

static void draft(Drafter *d, DraftJob *jobs, int n)
{
    Error err = { 0 };
    assert_int_equal(d->draft(d, NULL, jobs, n, &err), OK);
    for (int i = 0; i < n; i++) assert_true(tree_check(jobs[i].tree) && tree_is_chain(jobs[i].tree));
}

/* Place behind the latest occurrence, before the end, of the longest ending that has one. */
static int32_t search(const int32_t *ids, int32_t n_ids, int32_t min_n, int32_t max_n)
{
    for (int32_t n = max_n; n >= min_n; n--) {
        for (int32_t place = n_ids - 1; place >= n && n < n_ids; place--) {
            if (!memcmp(ids + place - n, ids + n_ids - n, (size_t)n * sizeof *ids)) return place;
        }
    }
    return 0;
}

static void check_draft(const Tree *tree, const int32_t *ids, int32_t n_ids, int32_t place, int32_t n_wanted)
{
    assert_int_equal(tree->token[0], ids[n_ids - 1]);
    assert_int_equal(tree->n_nodes - 1, place ? n_wanted : 0);
    for (int32_t k = 0; k < tree->n_nodes - 1; k++) {
        int32_t from = place + k;
        while (from >= n_ids) from -= n_ids - place; /* the text from `place` to the end repeats */
        assert_int_equal(tree->token[k + 1], ids[from]);
    }
}

/* A text over few ids repeats itself by chance, at all lengths. */
static void fill_text(int32_t *ids, int32_t n, int32_t n_ids, uint64_t seed)
{
    Random r = { seed };
    for (int32_t i = 0; i < n; i++) ids[i] = random_below(&r, n_ids);
}

static void drafts_are_what_a_search_finds(void **state)
{
    static const int32_t lengths[][2] = { { 2, 4 }, { 1, 1 }, { 3, 3 }, { 1, NGRAM_LONGEST } },
                         vocabs[] = { 2, 5, 20, 100000 };
    static int32_t ids[N_SLOTS][MAX_LEN];
    Random r = { 61 };
    Tree tree = tree_of(40);
    int n_found = 0;
    for (int k = 0; k < COUNT(lengths) * COUNT(vocabs); k++) {
        const int32_t *length = lengths[k % COUNT(lengths)];
        Drafter *d = open_ngram(
            (NgramOptions){ .n_slots = N_SLOTS, .max_model_len = MAX_LEN, .min_n = length[0], .max_n = length[1] });
        for (int request = 0; request < 4; request++) { /* slots are used again */
            for (int slot = 0; slot < N_SLOTS; slot++) {
                fill_text(ids[slot], MAX_LEN, vocabs[k / COUNT(lengths)], random_bits(&r));
                d->begin(d, slot, (uint64_t)request, 0);
            }
            for (int32_t n_ids = 1; n_ids <= MAX_LEN; n_ids += 1 + random_below(&r, 60)) {
                int slot = random_below(&r, N_SLOTS);
                DraftJob job = job_of(ids[slot], n_ids, slot, &tree);
                draft(d, &job, 1);
                int32_t place = search(ids[slot], n_ids, length[0], length[1]);
                check_draft(&tree, ids[slot], n_ids, place, 15);
                n_found += place > 0;
            }
            d->forget(d, request % N_SLOTS);
        }
        drafter_close(d);
    }
    print_message("%d drafts\n", n_found);
    assert_true(n_found > 500);
    tree_free(&tree);
}

static void latest_of_the_longest_wins(void **state)
{
    /*                      0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 */
    static const int32_t ids[] = { 1, 2, 3, 4, 50, 2, 3, 60, 9, 2, 3, 70, 1, 2, 3 };
    Tree tree = tree_of(8);
    Drafter *d = open_ngram((NgramOptions){ .n_slots = 1, .max_model_len = 100 });
    d->begin(d, 0, 1, 0);
    DraftJob job = job_of(ids, 7, 0, &tree); /* ... 2 3 */
    draft(d, &job, 1);
    assert_int_equal(tree.token[1], 4);
    job = job_of(ids, 11, 0, &tree); /* the later 2 3 */
    draft(d, &job, 1);
    assert_int_equal(tree.token[1], 60);
    job = job_of(ids, 15, 0, &tree); /* 1 2 3 is longer, though older */
    draft(d, &job, 1);
    assert_int_equal(tree.token[1], 4);
    assert_int_equal(tree.token[2], 50);
    drafter_close(d);
    tree_free(&tree);
}

static void periods_go_on(void **state)
{
    static const int32_t ids[] = { 9, 8, 1, 2, 3, 1, 2, 3 }, want[] = { 1, 2, 3, 1, 2, 3, 1, 2, 3, 1 };
    Tree tree = tree_of(11);
    Drafter *d = open_ngram((NgramOptions){ .n_slots = 1, .max_model_len = 100 });
    DraftJob job = job_of(ids, COUNT(ids), 0, &tree);
    draft(d, &job, 1);
    assert_int_equal(tree.n_nodes, 11);
    assert_memory_equal(tree.token + 1, want, sizeof want);
    drafter_close(d);
    tree_free(&tree);
}

static void limits_hold(void **state)
{
    int32_t ids[60];
    for (int i = 0; i < COUNT(ids); i++) ids[i] = i % 3;
    Tree tree = tree_of(20);
    Drafter *d = open_ngram((NgramOptions){ .n_slots = 1, .max_model_len = 50, .max_tokens = 7 });
    DraftJob job = job_of(ids, 30, 0, &tree);
    draft(d, &job, 1);
    assert_int_equal(tree.n_nodes - 1, 7);
    job.max_nodes = 5;
    draft(d, &job, 1);
    assert_int_equal(tree.n_nodes - 1, 4);
    job.max_depth = 3;
    draft(d, &job, 1);
    assert_int_equal(tree.n_nodes - 1, 3);
    job.max_depth = 0;
    draft(d, &job, 1);
    assert_int_equal(tree.n_nodes - 1, 0);
    job = job_of(ids, 51, 0, &tree); /* longer than it was opened for */
    draft(d, &job, 1);
    assert_int_equal(tree.n_nodes - 1, 0);
    drafter_close(d);
    d = open_ngram((NgramOptions){ .n_slots = 1, .max_model_len = 50 });
    job = job_of(ids, 30, 0, &tree);
    job.max_nodes = 64;
    draft(d, &job, 1);
    assert_int_equal(tree.n_nodes, 20); /* room of the tree */
    drafter_close(d);
    tree_free(&tree);
}

/* A slot whose request changed without a word: guesses may be poor, never wrong in kind. */
static void stale_index_does_no_harm(void **state)
{
    static int32_t a[MAX_LEN], b[MAX_LEN];
    fill_text(a, MAX_LEN, 4, 71);
    fill_text(b, MAX_LEN, 4, 72);
    Random r = { 73 };
    Tree tree = tree_of(16);
    Drafter *d = open_ngram((NgramOptions){ .n_slots = 1, .max_model_len = MAX_LEN });
    for (int k = 0; k < 500; k++) {
        const int32_t *ids = k % 2 ? a : b;
        int32_t n_ids = 1 + random_below(&r, MAX_LEN);
        DraftJob job = job_of(ids, n_ids, 0, &tree);
        draft(d, &job, 1);
        for (int32_t i = 0; i < tree.n_nodes; i++) assert_in_range(tree.token[i], 0, 3);
    }
    drafter_close(d);
    tree_free(&tree);
}

static void several_jobs_are_several_texts(void **state)
{
    static int32_t ids[N_SLOTS][200];
    Tree trees[N_SLOTS];
    DraftJob jobs[N_SLOTS];
    Drafter *d = open_ngram((NgramOptions){ .n_slots = N_SLOTS, .max_model_len = 200 });
    for (int i = 0; i < N_SLOTS; i++) {
        fill_text(ids[i], 200, 3, (uint64_t)i);
        trees[i] = tree_of(16);
        jobs[i] = job_of(ids[i], 200 - i, i, &trees[i]);
    }
    draft(d, jobs, N_SLOTS);
    for (int i = 0; i < N_SLOTS; i++) {
        check_draft(&trees[i], ids[i], 200 - i, search(ids[i], 200 - i, 2, 4), 15);
        tree_free(&trees[i]);
    }
    drafter_close(d);
}

static void memory_is_planned_and_constant(void **state)
{
    static int32_t ids[MAX_LEN];
    fill_text(ids, MAX_LEN, 10, 81);
    NgramOptions options = { .n_slots = 2, .max_model_len = MAX_LEN };
    assert_in_range(drafter_ngram_bytes(&options), 2 * MAX_LEN * 3 * 6, 2 * MAX_LEN * 3 * 6 + 500);
    NgramOptions huge = { .n_slots = INT32_MAX, .max_model_len = 1 << 30 };
    assert_true(drafter_ngram_bytes(&huge) > (size_t)1 << 60);
    Tree tree = tree_of(16);
    Drafter *d = open_ngram(options);
    CacheGroup groups[MAX_GROUPS];
    ModelInfo any = { 0 };
    Error err = { 0 };
    assert_string_equal(d->name, "ngram");
    assert_int_equal(d->groups(d, groups), 0);
    assert_int_equal(d->fits(d, &any, &err), OK);
    d->bind(d, NULL);
    d->observe(d, NULL, NULL, NULL, 0);
    uint64_t before = mem_count();
    d->begin(d, 1, 5, 0);
    for (int32_t n_ids = 1; n_ids <= MAX_LEN; n_ids++) {
        DraftJob job = job_of(ids, n_ids, 1, &tree);
        draft(d, &job, 1);
    }
    d->forget(d, 1);
    assert_int_equal(mem_count() - before, 0);
    drafter_close(d);
    for (int nth = 1;; nth++) {
        mem_fail_at(nth);
        Status s = drafter_open_ngram(&d, &options, &err);
        mem_fail_at(0);
        if (!s) break;
        assert_int_equal(s, ERR_NOMEM);
        assert_null(d);
    }
    drafter_close(d);
    tree_free(&tree);
}

static void bad_options_are_refused(void **state)
{
    static const NgramOptions bad[] = {
        { .n_slots = 1, .max_model_len = 10, .min_n = 5, .max_n = 4 },
        { .n_slots = 1, .max_model_len = 10, .min_n = -1 },
        { .n_slots = 1, .max_model_len = 10, .max_n = NGRAM_LONGEST + 1 },
        { .n_slots = 0, .max_model_len = 10 },
        { .n_slots = 1, .max_model_len = 0 },
        { .n_slots = 1, .max_model_len = 10, .max_tokens = -1 },
    };
    for (int i = 0; i < COUNT(bad); i++) {
        Drafter *d = NULL;
        Error err = { 0 };
        assert_int_equal(drafter_open_ngram(&d, &bad[i], &err), ERR_INPUT);
        assert_null(d);
        assert_true(strlen(err.text) > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_are_what_a_search_finds),
        cmocka_unit_test(latest_of_the_longest_wins),
        cmocka_unit_test(periods_go_on),
        cmocka_unit_test(limits_hold),
        cmocka_unit_test(stale_index_does_no_harm),
        cmocka_unit_test(several_jobs_are_several_texts),
        cmocka_unit_test(memory_is_planned_and_constant),
        cmocka_unit_test(bad_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
