/* Buf: limits and first failures; the JSON writers, read back by jansson. */
#include "base/buf.h"
#include "base/memory.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void limit_is_kept(void **state)
{
    for (size_t limit = 0; limit < 300; limit += 7) {
        Buf b;
        buf_init(&b, limit);
        for (size_t i = 0; i < limit; i++) buf_append(&b, "x", 1);
        assert_false(b.failed);
        assert_int_equal(b.len, limit);
        if (b.data) assert_int_equal(b.data[b.len], 0);
        buf_append(&b, "y", 1);
        assert_true(b.failed);
        assert_int_equal(b.len, limit);
        buf_free(&b);
    }
}

/* After a failure nothing more is appended, so what is there is a true beginning. */
static void failure_stays(void **state)
{
    Buf b;
    buf_init(&b, 10);
    buf_text(&b, "12345678");
    buf_text(&b, "abc");
    assert_true(b.failed);
    buf_text(&b, "z");
    buf_printf(&b, "%d", 1);
    buf_json_int(&b, 1);
    buf_reserve(&b, 1);
    assert_string_equal(b.data, "12345678");
    buf_clear(&b);
    assert_false(b.failed);
    buf_printf(&b, "%s", "0123456789");
    assert_false(b.failed);
    assert_string_equal(b.data, "0123456789");
    buf_free(&b);
    buf_free(&b);

    buf_init(&b, SIZE_MAX);
    buf_reserve(&b, SIZE_MAX);
    assert_true(b.failed);
    buf_free(&b);
}

static void no_memory(void **state)
{
    Buf b;
    buf_init(&b, 1000);
    mem_fail_at(1);
    buf_text(&b, "x");
    assert_true(b.failed);
    assert_null(b.data);
    buf_free(&b);
    buf_text(&b, "kept");
    mem_fail_at(1);
    buf_printf(&b, "%200d", 1);
    mem_fail_at(0);
    assert_true(b.failed);
    assert_string_equal(b.data, "kept");
    buf_free(&b);
}

static void printing(void **state)
{
    Buf b;
    buf_init(&b, 100000);
    for (int i = 0; i < 1000; i++) buf_printf(&b, "%d,", i);
    assert_int_equal(b.len, 3890);
    assert_memory_equal(b.data, "0,1,2,3,", 8);
    uint64_t before = mem_count();
    buf_clear(&b);
    for (int i = 0; i < 1000; i++) buf_printf(&b, "%d,", i);
    assert_int_equal(mem_count(), before); /* the memory was kept */
    buf_append(&b, NULL, 0);
    buf_free(&b);
}

static void strings(void **state)
{
    static const struct {
        const char *text;
        size_t      n;
        const char *json;
    } cases[] = {
        { "", 0, "\"\"" },
        { "plain", 5, "\"plain\"" },
        { "a\"b\\c/", 6, "\"a\\\"b\\\\c/\"" },
        { "\b\f\n\r\t", 5, "\"\\b\\f\\n\\r\\t\"" },
        { "\0\x01\x1f\x7f", 4, "\"\\u0000\\u0001\\u001f\x7f\"" },
        { "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9, "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"" },
        { "\xff", 1, "\"\xef\xbf\xbd\"" },
        { "a\x80" "b", 3, "\"a\xef\xbf\xbd" "b\"" },
        { "\xc0\xaf", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\"" },         /* overlong / */
        { "\xed\xa0\x80", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"" }, /* a surrogate */
        { "\xe2\x82", 2, "\"\xef\xbf\xbd\"" },                       /* one half character, one sign */
        { "\xf0\x9f\x98", 3, "\"\xef\xbf\xbd\"" },
        { "\xf0\x9f\x98z", 4, "\"\xef\xbf\xbdz\"" },
        { "\xf4\x90\x80\x80", 4, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"" },
        { "\xe0\x80\xaf", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"" },
        { "\xc3\"", 2, "\"\xef\xbf\xbd\\\"\"" },                    /* the quote is not swallowed */
        { "\xe2\x82\n", 3, "\"\xef\xbf\xbd\\n\"" },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        Buf b;
        buf_init(&b, 1000);
        buf_json_string(&b, cases[i].text, cases[i].n);
        assert_string_equal(b.data, cases[i].json);
        buf_free(&b);
    }
}

/* Any bytes whatever give a string that a strict parser takes. */
static void random_bytes_give_valid_json(void **state)
{
    unsigned seed = 20260801;
    print_message("seed %u\n", seed);
    srand(seed);
    Buf b;
    buf_init(&b, 10000);
    for (int round = 0; round < 20000; round++) {
        char bytes[24];
        size_t n = (size_t)rand() % sizeof bytes;
        for (size_t i = 0; i < n; i++) bytes[i] = (char)(rand() % 3 ? 0x80 | rand() : rand());
        buf_clear(&b);
        buf_json_string(&b, bytes, n);
        json_t *j = json_loadb(b.data, b.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        assert_non_null(j);
        json_decref(j);
    }
    buf_free(&b);
}

static void integers(void **state)
{
    Buf b;
    buf_init(&b, 100);
    buf_json_int(&b, INT64_MIN);
    buf_text(&b, " ");
    buf_json_int(&b, INT64_MAX);
    assert_string_equal(b.data, "-9223372036854775808 9223372036854775807");
    buf_free(&b);
}

static void doubles(void **state)
{
    static const struct {
        double      value;
        const char *json;
    } cases[] = {
        { 0, "0" },           { -0.0, "-0" },       { 1, "1" },
        { 0.1, "0.1" },       { -2.5, "-2.5" },     { 1.0 / 3, "0.3333333333333333" },
        { 1e21, "1e+21" },    { 1e-7, "1e-07" },    { 5e-324, "4.94065645841247e-324" },
        { 0.1f, "0.10000000149011612" },            { DBL_MAX, "1.7976931348623157e+308" },
        { 9007199254740993.0, "9007199254740992" }, { 0.1 + 0.2, "0.30000000000000004" },
        { INFINITY, "null" }, { -INFINITY, "null" }, { NAN, "null" },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        Buf b;
        buf_init(&b, 100);
        buf_json_double(&b, cases[i].value);
        assert_string_equal(b.data, cases[i].json);
        buf_free(&b);
    }
}

static void doubles_read_back(void **state)
{
    uint64_t seed = 88172645463325252u, x = seed;
    print_message("seed %llu\n", (unsigned long long)seed);
    Buf b;
    buf_init(&b, 100);
    for (int i = 0; i < 100000; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        double value;
        memcpy(&value, &x, sizeof value);
        if (!isfinite(value)) continue;
        buf_clear(&b);
        buf_json_double(&b, value);
        assert_true(b.len < 32);
        assert_true(strtod(b.data, NULL) == value);
    }
    buf_free(&b);
}

static void strs(void **state)
{
    assert_true(str_equal(STR("ab"), str_of("ab")));
    assert_false(str_equal(STR("ab"), STR("abc")));
    assert_false(str_equal(STR("ab"), STR("ac")));
    assert_true(str_equal(STR(""), str_of(NULL)));
    assert_true(str_starts(STR("abc"), STR("ab")));
    assert_true(str_starts(STR("abc"), STR("")));
    assert_true(str_starts(STR("abc"), STR("abc")));
    assert_false(str_starts(STR("ab"), STR("abc")));
    assert_false(str_starts(STR("xab"), STR("ab")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limit_is_kept),     cmocka_unit_test(failure_stays),
        cmocka_unit_test(no_memory),         cmocka_unit_test(printing),
        cmocka_unit_test(strings),           cmocka_unit_test(random_bytes_give_valid_json),
        cmocka_unit_test(integers),          cmocka_unit_test(doubles),
        cmocka_unit_test(doubles_read_back), cmocka_unit_test(strs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
