/* Arenas: aligned, zeroed also after a reset, never over the limit; a step arena allocates once. */
#include "base/arena.h"
#include "base/memory.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

static void aligned_zeroed_apart(void **state)
{
    Arena a;
    arena_init(&a, 256, 1 << 20);
    unsigned char *last = NULL;
    for (size_t n = 0; n < 700; n += 13) {
        unsigned char *p = arena_alloc(&a, n);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        assert_ptr_not_equal(p, last);
        for (size_t i = 0; i < n; i++) assert_int_equal(p[i], 0);
        memset(p, 0xff, n); /* an overlap would show as a byte that is not zero */
        last = p;
    }
    assert_true(a.used <= a.limit);
    arena_free(&a);
}

static void limit_is_kept(void **state)
{
    Arena a;
    arena_init(&a, 64, 640);
    for (int i = 0; i < 10; i++) assert_non_null(arena_alloc(&a, 64));
    assert_null(arena_alloc(&a, 1));
    assert_null(arena_alloc(&a, 0)); /* even an empty block is a place */
    assert_int_equal(a.used, 640);
    arena_reset(&a);
    assert_null(arena_alloc(&a, 641));
    assert_non_null(arena_alloc(&a, 640));
    arena_free(&a);
}

static void impossible_sizes_give_null(void **state)
{
    Arena a;
    arena_init(&a, 64, SIZE_MAX);
    assert_null(arena_alloc(&a, SIZE_MAX));
    assert_null(arena_alloc(&a, SIZE_MAX - 63));
    assert_null(arena_alloc(&a, SIZE_MAX - 200));
    assert_null(arena_alloc_array(&a, SIZE_MAX / 2, 3));
    assert_null(arena_array(&a, uint64_t, SIZE_MAX / 8 + 1));
    assert_null(arena_strndup(&a, "x", SIZE_MAX));
    assert_int_equal(a.used, 0);
    arena_free(&a);
}

static void nothing_before_the_first_use(void **state)
{
    Arena a;
    uint64_t before = mem_count();
    arena_init(&a, 4096, 4096);
    arena_reset(&a);
    assert_int_equal(mem_count(), before);
    arena_free(&a);
    arena_free(&a);
}

static void a_step_arena_allocates_once(void **state)
{
    Arena a;
    arena_init(&a, 10000, 10000);
    assert_non_null(arena_alloc(&a, 1));
    uint64_t before = mem_count();
    for (int step = 0; step < 100; step++) {
        arena_reset(&a);
        int32_t *p = arena_array(&a, int32_t, 2000);
        assert_non_null(p);
        for (int i = 0; i < 2000; i++) assert_int_equal(p[i], 0);
        memset(p, 0x5a, 8000);
        assert_non_null(arena_alloc(&a, 1900));
        assert_null(arena_alloc(&a, 1000));
    }
    assert_int_equal(mem_count(), before);
    arena_free(&a);
}

static void chunks_grow(void **state)
{
    Arena a;
    arena_init(&a, 64, (size_t)1 << 24);
    uint64_t before = mem_count();
    for (int i = 0; i < 100000; i++) assert_non_null(arena_alloc(&a, 100));
    assert_true(mem_count() - before < 30); /* doubling: a few chunks for 12.8 MB */
    arena_reset(&a);
    assert_non_null(a.head);
    arena_free(&a);
}

static void text(void **state)
{
    Arena a;
    arena_init(&a, 64, 4096);
    char *s = arena_strndup(&a, "ab\0cd", 5);
    assert_memory_equal(s, "ab\0cd", 6);
    assert_string_equal(arena_strndup(&a, NULL, 0), "");
    assert_string_equal(arena_printf(&a, "%s-%d", "x", 42), "x-42");
    char *wide = arena_printf(&a, "%500d", 1);
    assert_int_equal(strlen(wide), 500);
    assert_null(arena_printf(&a, "%5000d", 1));
    arena_free(&a);
}

static void no_memory(void **state)
{
    Arena a;
    arena_init(&a, 64, 4096);
    mem_fail_at(1);
    assert_null(arena_alloc(&a, 10));
    assert_int_equal(a.used, 0);
    char *first = arena_alloc(&a, 10);
    assert_non_null(first);
    strcpy(first, "kept");
    mem_fail_at(1);
    assert_null(arena_alloc(&a, 2000));
    assert_non_null(arena_alloc(&a, 2000));
    assert_string_equal(first, "kept");
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(aligned_zeroed_apart),         cmocka_unit_test(limit_is_kept),
        cmocka_unit_test(impossible_sizes_give_null),   cmocka_unit_test(nothing_before_the_first_use),
        cmocka_unit_test(a_step_arena_allocates_once),  cmocka_unit_test(chunks_grow),
        cmocka_unit_test(text),                         cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
