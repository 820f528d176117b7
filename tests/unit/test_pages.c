/* Memory in large pages: where pieces begin, what is in them, what is left when they are gone. */
#include "backend/cpu/pages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MB = 1 << 20, LINE = 64 };

static const size_t sizes[] = { 1, 4095, MB - 1, MB, MB + 1, 2 * MB - 1, 2 * MB, 2 * MB + 1, 2 * MB + 4096, 5 * MB + 65537 };
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

/* Address space of the program, in pages; without memory of its own. */
static long mapped_pages(void)
{
    char text[128] = { 0 };
    int fd = open("/proc/self/statm", O_RDONLY);
    assert_true(read(fd, text, sizeof text - 1) > 0);
    close(fd);
    return strtol(text, NULL, 10);
}

static void zeroed_aligned_and_whole(void **state)
{
    for (int i = 0; i < N_SIZES; i++) {
        const size_t n = sizes[i];
        uint8_t *p = pages_alloc(n);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % (n < MB ? LINE : 2 * MB), 0);
        for (size_t at = 0; at < n; at++) assert_true(p[at] == 0);
        pages_touch(p, n);
        for (size_t at = 0; at < n; at++) p[at] = 0xff;
        assert_int_equal(pages_bytes(p), n);
        assert_true(pages_held(n) >= n && pages_held(n) < n + 4096);
        pages_free(p);
    }
    pages_free(NULL);
}

/* The header's page is whole even where a page has 64 KB: mincore(2) knows of holes. */
static void header_has_a_page(void **state)
{
    enum { PAGE = 64 << 10 };
    unsigned char there[PAGE / 4096];
    for (int i = 0; i < N_SIZES; i++) {
        if (sizes[i] < MB) continue;
        char *p = pages_alloc(sizes[i]);
        assert_non_null(p);
        assert_int_equal(mincore(p - PAGE, PAGE, there), 0);
        pages_free(p);
    }
}

/* Pieces of a megabyte and more give their address space back, edges included. */
static void nothing_is_left(void **state)
{
    enum { TIMES = 200 };
    const long before = mapped_pages();
    for (int t = 0; t < TIMES; t++) {
        for (int i = 0; i < N_SIZES; i++) {
            if (sizes[i] < MB) continue;
            void *p = pages_alloc(sizes[i]), *q = pages_alloc(sizes[i]);
            assert_non_null(p);
            assert_non_null(q);
            pages_free(p);
            pages_free(q);
        }
    }
    assert_int_equal(mapped_pages(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(zeroed_aligned_and_whole), cmocka_unit_test(header_has_a_page),
                                       cmocka_unit_test(nothing_is_left) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
