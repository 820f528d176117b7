/* The door to malloc: zeroed, counted, failing when told; products that do not wrap. */
#include "base/error.h"
#include "base/memory.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

static void blocks_are_zeroed(void **state)
{
    for (size_t n = 0; n < 3000; n += 97) {
        unsigned char *p = mem_alloc(n);
        assert_non_null(p);
        for (size_t i = 0; i < n; i++) assert_int_equal(p[i], 0);
        memset(p, 0xa5, n);
        mem_free(p);
    }
    int *a = mem_alloc_array(10, sizeof *a);
    assert_int_equal(a[9], 0);
    a[9] = 7;
    a = mem_realloc(a, 1000 * sizeof *a);
    assert_int_equal(a[9], 7);
    mem_free(a);
    mem_free(NULL);
}

static void impossible_sizes_give_null(void **state)
{
    assert_null(mem_alloc_array(SIZE_MAX, 2));
    assert_null(mem_alloc_array(SIZE_MAX / 8 + 1, 8));
    assert_null(mem_alloc_array((size_t)1 << 33, (size_t)1 << 33));
    assert_null(mem_strndup("x", SIZE_MAX));
}

static void products(void **state)
{
    static const struct {
        size_t a, b, product;
        bool   fits;
    } cases[] = {
        { 0, 0, 0, true },
        { 0, SIZE_MAX, 0, true },
        { 1, SIZE_MAX, SIZE_MAX, true },
        { 3, 5, 15, true },
        { (size_t)1 << 32, ((size_t)1 << 32) - 1, ((size_t)1 << 32) * (((size_t)1 << 32) - 1), true },
        { (size_t)1 << 32, (size_t)1 << 32, 0, false },
        { SIZE_MAX, SIZE_MAX, 0, false },
        { SIZE_MAX / 3 + 1, 3, 0, false },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        size_t out = 1;
        assert_int_equal(size_mul(cases[i].a, cases[i].b, &out), cases[i].fits);
        assert_int_equal(size_mul(cases[i].b, cases[i].a, &out), cases[i].fits);
        if (cases[i].fits) assert_true(out == cases[i].product);
    }
}

static void sums(void **state)
{
    size_t out;
    assert_true(size_add(SIZE_MAX - 1, 1, &out));
    assert_true(out == SIZE_MAX);
    assert_false(size_add(SIZE_MAX, 1, &out));
    assert_false(size_add(SIZE_MAX, SIZE_MAX, &out));
    assert_true(size_add(0, 0, &out));
    assert_true(out == 0);
}

static void calls_are_counted(void **state)
{
    uint64_t before = mem_count();
    void *p = mem_alloc(1);
    p = mem_realloc(p, 2);
    char *s = mem_strdup("text");
    mem_free(p);
    mem_free(s);
    assert_int_equal(mem_count() - before, 3);
}

static void the_nth_call_fails_once(void **state)
{
    for (int n = 1; n < 5; n++) {
        mem_fail_at(n);
        for (int i = 1; i < 8; i++) {
            void *p = mem_alloc(8);
            assert_int_equal(p == NULL, i == n);
            mem_free(p);
        }
    }
    mem_fail_at(1);
    mem_fail_at(0);
    void *p = mem_alloc(8);
    assert_non_null(p);
    mem_fail_at(1);
    assert_null(mem_realloc(p, 16)); /* the old block stays */
    mem_free(p);
    mem_fail_at(1);
    assert_null(mem_strdup("x"));
}

static void copies(void **state)
{
    char *s = mem_strndup("ab\0cd", 5);
    assert_memory_equal(s, "ab\0cd", 6);
    mem_free(s);
    s = mem_strdup("");
    assert_string_equal(s, "");
    mem_free(s);
    assert_null(mem_strdup(NULL));
    s = mem_strndup(NULL, 0);
    assert_string_equal(s, "");
    mem_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_zeroed), cmocka_unit_test(impossible_sizes_give_null),
        cmocka_unit_test(products),          cmocka_unit_test(sums),
        cmocka_unit_test(calls_are_counted), cmocka_unit_test(the_nth_call_fails_once),
        cmocka_unit_test(copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
