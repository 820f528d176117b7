/* Blocks, tables, slots and the memory of groups. */
#include "base/memory.h"
#include "cache/block_table.h"
#include "cache/group_memory.h"
#include "cache/slot_pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void test_pool_all_or_nothing(void **state)
{
    BlockPool *p;
    int32_t ids[10];
    assert_int_equal(block_pool_open(&p, 10, NULL), OK);
    assert_int_equal(block_pool_take(p, 7, ids), OK);
    assert_int_equal(block_pool_take(p, 4, ids + 7), ERR_FULL);
    assert_int_equal(block_pool_free_count(p), 3);
    assert_int_equal(block_pool_take(p, 3, ids + 7), OK);
    for (int i = 0; i < 10; i++) assert_in_range(ids[i], 1, 10); /* never the dump block */
    assert_true(block_pool_check(p));
    block_pool_give(p, ids, 10);
    assert_int_equal(block_pool_free_count(p), 10);
    assert_true(block_pool_check(p));
    block_pool_close(p);
    block_pool_close(NULL);
}

static void test_pool_shared_blocks(void **state)
{
    BlockPool *p;
    int32_t id;
    assert_int_equal(block_pool_open(&p, 2, NULL), OK);
    assert_int_equal(block_pool_take(p, 1, &id), OK);
    block_pool_share(p, id);
    block_pool_give(p, &id, 1);
    assert_int_equal(block_pool_references(p, id), 1);
    assert_int_equal(block_pool_free_count(p), 1);
    block_pool_give(p, &id, 1);
    assert_int_equal(block_pool_free_count(p), 2);
    block_pool_close(p);
}

static jmp_buf after_check;
static void on_check(const char *file, int line, const char *condition)
{
    longjmp(after_check, 1);
}

/* Giving a block twice is our own bug and stops at once. */
static void test_pool_double_give(void **state)
{
    BlockPool *p;
    int32_t id;
    assert_int_equal(block_pool_open(&p, 2, NULL), OK);
    assert_int_equal(block_pool_take(p, 1, &id), OK);
    block_pool_give(p, &id, 1);
    check_handler_set(on_check);
    bool stopped = setjmp(after_check) != 0;
    if (!stopped) block_pool_give(p, &id, 1);
    check_handler_set(NULL);
    assert_true(stopped);
    block_pool_close(p);
}

static void test_table_random(void **state)
{
    Backend *backend;
    BlockTable t;
    BlockTableShape shape = { .n_slots = 5, .n_blocks = 23, .block_size = 3, .max_entries = 40 };
    assert_int_equal(backend_open_cpu(&backend, &(BackendOptions){ .n_workers = 1 }, NULL), OK);
    assert_int_equal(block_table_open(&t, backend, &shape, NULL), OK);
    assert_int_equal(t.max_blocks, 14);
    srand(1);
    int n_full = 0;
    for (int i = 0; i < 20000; i++) {
        int32_t slot = rand() % 5, n = rand() % 41, had = t.n_used[slot], free_before = block_pool_free_count(t.pool);
        if (rand() % 2) {
            block_table_trim(&t, slot, n);
            assert_true(t.n_used[slot] <= (n + 2) / 3);
        } else if (block_table_reserve(&t, slot, n)) {
            n_full++;
            assert_int_equal(t.n_used[slot], had);
            assert_int_equal(block_pool_free_count(t.pool), free_before);
        } else {
            assert_true(t.n_used[slot] >= (n + 2) / 3);
            for (int32_t e = 0; e < n; e++) assert_true(block_table_store(&t, slot, e) >= 3);
        }
        assert_true(block_table_check(&t));
    }
    assert_true(n_full > 100);
    block_table_close(&t);
    backend_close(backend);
}

static void test_slots(void **state)
{
    SlotPool p;
    assert_int_equal(slot_pool_open(&p, 3, NULL), OK);
    int32_t a = slot_pool_take(&p), b = slot_pool_take(&p), c = slot_pool_take(&p);
    assert_int_equal((1 << a) | (1 << b) | (1 << c), 7);
    assert_int_equal(slot_pool_take(&p), -1);
    slot_pool_give(&p, b);
    assert_int_equal(slot_pool_take(&p), b);
    slot_pool_close(&p);
}

static const CacheGroup groups[] = {
    { .name = "kv", .kind = CACHE_PER_TOKEN, .tokens_per_entry = 1, .spare = 9, .n_layers = 3, .entry_bytes = 10 },
    { .name = "state", .kind = CACHE_PER_SEQ, .tokens_per_entry = 1, .n_layers = 2, .entry_bytes = 100 },
    { .name = "mtp_kv", .kind = CACHE_PER_TOKEN, .tokens_per_entry = 1, .spare = 4, .n_layers = 1, .entry_bytes = 7 },
};

static void test_group_bytes(void **state)
{
    CacheShape shape = { .n_slots = 5, .n_blocks = 11, .block_size = 4 };
    assert_int_equal(group_bytes(&groups[0], &shape), 3 * 12 * 4 * 10);
    assert_int_equal(group_bytes(&groups[1], &shape), 2 * 5 * 100);
    assert_int_equal(groups_block_bytes(groups, 3, 4), 4 * (30 + 7));
    assert_int_equal(groups_slot_bytes(groups, 3), 200);
    assert_int_equal(groups_spare(groups, 3), 9);
    CacheGroup absurd = groups[0];
    absurd.entry_bytes = SIZE_MAX / 8;
    assert_true(group_bytes(&absurd, &shape) == SIZE_MAX);
}

static void test_groups_alloc(void **state)
{
    Backend *backend;
    BlockTable t;
    CacheMemory memory[MAX_GROUPS];
    CacheShape shape = { .n_slots = 5, .n_blocks = 11, .block_size = 4 };
    Error err = { 0 };
    assert_int_equal(backend_open_cpu(&backend, &(BackendOptions){ .n_workers = 1 }, NULL), OK);
    assert_int_equal(block_table_open(&t, backend, &(BlockTableShape){ 5, 11, 4, 20 }, NULL), OK);
    size_t before = backend_bytes(backend);
    assert_int_equal(groups_alloc(memory, groups, 3, &shape, &t, &err), OK);
    assert_ptr_equal(memory[0].block_table, t.blocks);
    assert_ptr_equal(memory[2].block_table, t.blocks);
    assert_null(memory[1].block_table);
    assert_int_equal(memory[0].layer_bytes, 12 * 4 * 10);
    groups_free(memory, 3, backend);
    CacheGroup bad[2] = { groups[0], groups[0] };
    bad[1].tokens_per_entry = 4;
    assert_int_equal(groups_alloc(memory, bad, 2, &shape, &t, &err), ERR_UNSUPPORTED);
    assert_int_equal(backend_bytes(backend), before); /* the first was given back */
    error_clear(&err);
    bad[1] = groups[0];
    bad[1].entry_bytes = SIZE_MAX / 8;
    assert_int_equal(groups_alloc(memory, bad, 2, &shape, &t, &err), ERR_NOMEM);
    assert_int_equal(backend_bytes(backend), before);
    block_table_close(&t);
    backend_close(backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool_all_or_nothing),
        cmocka_unit_test(test_pool_shared_blocks),
        cmocka_unit_test(test_pool_double_give),
        cmocka_unit_test(test_table_random),
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_group_bytes),
        cmocka_unit_test(test_groups_alloc),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
