/* Draft trees: adding, finding, paths, and the check that the engine relies on. */
#include "base/memory.h"
#include "random.h"
#include "speculation/tree.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static Tree tree_of(int32_t max_nodes)
{
    Tree t;
    Error err = { 0 };
    assert_int_equal(tree_alloc(&t, max_nodes, &err), OK);
    tree_start(&t, 100);
    return t;
}

/*  100 ── 1 ── 3
 *     │   └─── 4 ── 5
 *     └── 2 ── 3            numbers are tokens, added 1 2 3 3' 4 5 */
static Tree example(void)
{
    Tree t = tree_of(8);
    assert_int_equal(tree_add(&t, 0, 1, -0.1f), 1);
    assert_int_equal(tree_add(&t, 0, 2, -0.2f), 2);
    assert_int_equal(tree_add(&t, 1, 3, -0.3f), 3);
    assert_int_equal(tree_add(&t, 2, 3, -0.4f), 4);
    assert_int_equal(tree_add(&t, 1, 4, -0.5f), 5);
    assert_int_equal(tree_add(&t, 5, 5, -0.6f), 6);
    return t;
}

static void nodes_are_found_by_token(void **state)
{
    Tree t = example();
    assert_true(tree_check(&t));
    assert_int_equal(t.n_nodes, 7);
    assert_int_equal(tree_child(&t, 0, 1), 1);
    assert_int_equal(tree_child(&t, 0, 3), -1);
    assert_int_equal(tree_child(&t, 1, 3), 3);
    assert_int_equal(tree_child(&t, 2, 3), 4);
    assert_int_equal(tree_child(&t, 6, 5), -1);
    assert_int_equal(t.depth[6], 3);
    assert_true(t.score[6] == -0.6f);
    assert_false(tree_is_chain(&t));
    tree_free(&t);
}

static void equal_siblings_are_one_node(void **state)
{
    Tree t = example();
    assert_int_equal(tree_add(&t, 1, 4, -9), 5);
    assert_int_equal(t.n_nodes, 7);
    assert_true(t.score[5] == -0.5f);
    tree_free(&t);
}

static void paths_lead_from_the_anchor(void **state)
{
    static const int32_t want[] = { 0, 1, 5, 6 };
    Tree t = example();
    int32_t path[MAX_DEPTH];
    tree_path(&t, 6, path);
    assert_memory_equal(path, want, sizeof want);
    for (int i = 4; i < MAX_DEPTH; i++) assert_int_equal(path[i], -1);
    tree_path(&t, 0, path);
    assert_int_equal(path[0], 0);
    assert_int_equal(path[1], -1);
    tree_free(&t);
}

static void full_trees_take_nothing(void **state)
{
    Tree t = tree_of(3);
    assert_int_equal(tree_add(&t, 0, 1, 0), 1);
    assert_int_equal(tree_add(&t, 0, 2, 0), 2);
    assert_int_equal(tree_add(&t, 0, 3, 0), -1);
    assert_int_equal(tree_add(&t, 0, 2, 0), 2); /* what is there is still found */
    assert_int_equal(t.n_nodes, 3);
    tree_start(&t, 5);
    assert_int_equal(t.n_nodes, 1);
    assert_int_equal(tree_add(&t, 0, 3, 0), 1);
    tree_free(&t);
}

static void chains_end_at_the_greatest_depth(void **state)
{
    Tree t = tree_of(MAX_DEPTH + 5);
    for (int32_t i = 0; i < MAX_DEPTH - 1; i++) assert_int_equal(tree_add(&t, i, i, 0), i + 1);
    assert_int_equal(tree_add(&t, MAX_DEPTH - 1, 7, 0), -1);
    assert_int_equal(t.n_nodes, MAX_DEPTH);
    assert_true(tree_is_chain(&t) && tree_check(&t));
    int32_t path[MAX_DEPTH];
    tree_path(&t, MAX_DEPTH - 1, path);
    for (int i = 0; i < MAX_DEPTH; i++) assert_int_equal(path[i], i);
    assert_true(tree_add(&t, MAX_DEPTH - 2, 70, 0) > 0); /* a sibling of the last one has room */
    assert_false(tree_is_chain(&t));
    tree_free(&t);
}

static void check_sees_each_fault(void **state)
{
    Tree t = example();
    int32_t *fields[] = { &t.parent[0], &t.depth[0], &t.parent[3], &t.parent[3],
                          &t.depth[4],  &t.token[2], &t.n_nodes,   &t.n_nodes };
    int32_t faults[] = { 0, 1, 3, -1, 3, 1, 0, 9 };
    for (int i = 0; i < COUNT(fields); i++) {
        int32_t right = *fields[i];
        *fields[i] = faults[i];
        assert_false(tree_check(&t));
        *fields[i] = right;
        assert_true(tree_check(&t));
    }
    tree_free(&t);
}

static void random_trees_pass(void **state)
{
    Random r = { 21 };
    for (int k = 0; k < 200; k++) {
        Tree t = tree_of(1 + random_below(&r, 200));
        for (int i = 0; i < 300; i++) {
            int32_t parent = random_below(&r, t.n_nodes), before = t.n_nodes;
            int32_t node = tree_add(&t, parent, random_below(&r, 6), 0);
            if (node < 0) assert_true(before == t.max_nodes || t.depth[parent] == MAX_DEPTH - 1);
            if (node >= 0) assert_int_equal(t.parent[node], parent);
        }
        assert_true(tree_check(&t));
        int32_t path[MAX_DEPTH], node = random_below(&r, t.n_nodes);
        tree_path(&t, node, path);
        assert_int_equal(path[t.depth[node]], node);
        for (int d = t.depth[node]; d > 0; d--) assert_int_equal(t.parent[path[d]], path[d - 1]);
        tree_free(&t);
    }
}

static void sizes_and_memory_are_checked(void **state)
{
    static const int32_t sizes[] = { 0, -1, TREE_MAX_NODES + 1 };
    for (int i = 0; i < COUNT(sizes); i++) {
        Tree t;
        Error err = { 0 };
        assert_int_equal(tree_alloc(&t, sizes[i], &err), ERR_UNSUPPORTED);
        tree_free(&t);
    }
    for (int nth = 1; nth <= 4; nth++) {
        Tree t;
        Error err = { 0 };
        mem_fail_at(nth);
        assert_int_equal(tree_alloc(&t, 10, &err), ERR_NOMEM);
        assert_null(t.token);
    }
    mem_fail_at(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_are_found_by_token),
        cmocka_unit_test(equal_siblings_are_one_node),
        cmocka_unit_test(paths_lead_from_the_anchor),
        cmocka_unit_test(full_trees_take_nothing),
        cmocka_unit_test(chains_end_at_the_greatest_depth),
        cmocka_unit_test(check_sees_each_fault),
        cmocka_unit_test(random_trees_pass),
        cmocka_unit_test(sizes_and_memory_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
