/* The walk: over any tree it yields what plain decoding yields, and looks at no row that it need not look at. */
#include "random.h"
#include "speculation/verify.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

enum { VOCAB = 4 };

/* A target whose next token is a function of all tokens before it. */
static int32_t next_token(uint64_t prefix)
{
    Random r = { prefix };
    return random_below(&r, VOCAB);
}
static uint64_t extend(uint64_t prefix, int32_t token)
{
    Random r = { prefix * 31 + (uint64_t)token };
    return random_bits(&r);
}

typedef struct Target {
    const Tree *tree;
    uint64_t    prefix;      /* before the anchor */
    int32_t     n_asked, broken_node, stop_token, stop_depth;
    bool        is_asked[200];
} Target;

static void choose_at(void *ctx, int32_t node, const int32_t *path, int32_t depth, Choice *out)
{
    Target *t = ctx;
    uint64_t prefix = t->prefix;
    assert_int_equal(path[0], 0);
    assert_int_equal(path[depth], node);
    assert_int_equal(t->tree->depth[node], depth);
    for (int32_t d = 0; d <= depth; d++) {
        if (d > 0) assert_int_equal(t->tree->parent[path[d]], path[d - 1]);
        prefix = extend(prefix, t->tree->token[path[d]]);
    }
    assert_false(t->is_asked[node]);
    t->is_asked[node] = true;
    t->n_asked++;
    *out = (Choice){ .token = -1 };
    if (node == t->broken_node) return;
    *out = (Choice){ .token = next_token(prefix), .is_finite = true, .logprob = (float)depth };
}

static bool stop_at(void *ctx, int32_t token, int32_t depth)
{
    const Target *t = ctx;
    return token == t->stop_token || depth == t->stop_depth;
}

static Tree random_tree(Random *r, int32_t n)
{
    Tree t;
    Error err = { 0 };
    assert_int_equal(tree_alloc(&t, n, &err), OK);
    tree_start(&t, random_below(r, VOCAB));
    for (int tries = 0; t.n_nodes < n && tries < 1000; tries++) {
        int32_t parent = random_below(r, 2) ? t.n_nodes - 1 : random_below(r, t.n_nodes);
        tree_add(&t, parent, random_below(r, VOCAB), 0);
    }
    return t;
}

static void walk_is_plain_decoding(void **state)
{
    Random r = { 31 };
    int64_t n_deep = 0;
    for (int k = 0; k < 3000; k++) {
        Tree t = random_tree(&r, 1 + random_below(&r, 100));
        Target target = {
            .tree = &t, .prefix = random_bits(&r), .broken_node = -1, .stop_token = -1, .stop_depth = -1
        };
        Walk walk;
        verify_walk(&t, choose_at, k % 2 ? stop_at : NULL, &target, &walk);
        assert_false(walk.failed);
        assert_in_range(walk.n_path, 1, MAX_DEPTH);
        assert_int_equal(target.n_asked, walk.n_path);
        uint64_t prefix = target.prefix;
        int32_t token = t.token[0];
        for (int32_t d = 0; d < walk.n_path; d++) { /* one token after the other, as without a draft */
            assert_int_equal(t.token[walk.path[d]], token);
            prefix = extend(prefix, token);
            token = next_token(prefix);
            assert_int_equal(walk.chosen[d].token, token);
            assert_true(walk.chosen[d].logprob == (float)d);
        }
        assert_int_equal(tree_child(&t, walk.path[walk.n_path - 1], token), -1); /* it ended because it had to */
        n_deep += walk.n_path > 3;
        tree_free(&t);
    }
    assert_true(n_deep > 100);
}

/* A chain of the very tokens that the target chooses. */
static Tree right_chain(Target *target, int32_t n)
{
    Tree t;
    Error err = { 0 };
    assert_int_equal(tree_alloc(&t, n, &err), OK);
    tree_start(&t, 2);
    uint64_t prefix = extend(target->prefix, 2);
    for (int32_t i = 1; i < n; i++) {
        int32_t token = next_token(prefix);
        assert_int_equal(tree_add(&t, i - 1, token, 0), i);
        prefix = extend(prefix, token);
    }
    return t;
}

static void whole_chains_are_accepted(void **state)
{
    for (int32_t n = 1; n <= MAX_DEPTH; n++) {
        Target target = { .prefix = (uint64_t)n, .broken_node = -1 };
        Tree t = right_chain(&target, n);
        target.tree = &t;
        Walk walk;
        verify_walk(&t, choose_at, NULL, &target, &walk);
        assert_int_equal(walk.n_path, n);
        for (int32_t i = 0; i < n; i++) assert_int_equal(walk.path[i], i);
        tree_free(&t);
    }
}

static void stops_end_the_walk(void **state)
{
    for (int32_t depth = 0; depth < 10; depth++) {
        Target target = { .prefix = 5, .broken_node = -1, .stop_token = -1, .stop_depth = depth };
        Tree t = right_chain(&target, 12);
        target.tree = &t;
        Walk walk;
        verify_walk(&t, choose_at, stop_at, &target, &walk);
        assert_int_equal(walk.n_path, depth + 1); /* though a child bears the token chosen there */
        assert_int_equal(walk.chosen[depth].token, t.token[depth + 1]);
        assert_int_equal(target.n_asked, depth + 1);
        tree_free(&t);
    }
}

static void stop_tokens_end_the_walk(void **state)
{
    Target target = { .prefix = 9, .broken_node = -1, .stop_depth = -1 };
    Tree t = right_chain(&target, 12);
    target.tree = &t;
    target.stop_token = t.token[3];
    int32_t first = 1;
    while (t.token[first] != target.stop_token) first++;
    Walk walk;
    verify_walk(&t, choose_at, stop_at, &target, &walk);
    assert_int_equal(walk.n_path, first); /* the stop id is the bonus; its row is not on the path */
    assert_int_equal(walk.chosen[first - 1].token, target.stop_token);
    tree_free(&t);
}

static void broken_rows_fail_only_when_reached(void **state)
{
    for (int32_t broken = 0; broken < 12; broken++) {
        Target target = { .prefix = 7, .broken_node = broken, .stop_token = -1, .stop_depth = 8 };
        Tree t = right_chain(&target, 12);
        target.tree = &t;
        Walk walk;
        verify_walk(&t, choose_at, stop_at, &target, &walk);
        assert_int_equal(walk.failed, broken <= 8);
        assert_int_equal(walk.n_path, broken <= 8 ? broken + 1 : 9);
        tree_free(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(walk_is_plain_decoding),
        cmocka_unit_test(whole_chains_are_accepted),
        cmocka_unit_test(stops_end_the_walk),
        cmocka_unit_test(stop_tokens_end_the_walk),
        cmocka_unit_test(broken_rows_fail_only_when_reached),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
