/* JSON under our limits: what is refused, with which sentence, and in bounded time and stack. */
#include "base/json.h"
#include "base/memory.h"
#include "support/starve.h"
#include "support/temp_dir.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

static json_t *parse(const char *text)
{
    json_t *j;
    Error err = { 0 };
    assert_int_equal(json_parse(&j, text, strlen(text), "text", &err), OK);
    assert_string_equal(err.text, "");
    return j;
}

static void refused_texts(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        { "", "not valid JSON" },
        { " ", "not valid JSON" },
        { "{", "not valid JSON" },
        { "{\"a\":1", "not valid JSON" },
        { "{\"a\":1} x", "line 1" },
        { "{\"a\":1}{}", "not valid JSON" },
        { "[1,]", "not valid JSON" },
        { "{\"a\":1,}", "not valid JSON" },
        { "{\"a\" 1}", "not valid JSON" },
        { "{a:1}", "not valid JSON" },
        { "{'a':1}", "not valid JSON" },
        { "[01]", "not valid JSON" },
        { "[+1]", "not valid JSON" },
        { "[.5]", "not valid JSON" },
        { "[1.]", "not valid JSON" },
        { "[NaN]", "not valid JSON" },
        { "[Infinity]", "not valid JSON" },
        { "[1e999]", "overflow" },
        { "[-1e999]", "overflow" },
        { "[123456789012345678901234567890]", "too big" },
        { "[\"\xff\"]", "unable to decode byte" },
        { "[\"\xc0\xaf\"]", "unable to decode byte" },
        { "[\"\xed\xa0\x80\"]", "unable to decode byte" },
        { "[\"\xe2\x82\"]", "unable to decode byte" },
        { "[\"\\ud800\"]", "not valid JSON" },
        { "[\"\\ud800\\u0041\"]", "not valid JSON" },
        { "[\"\\udc00\"]", "not valid JSON" },
        { "[\"\\u0000\"]", "not valid JSON" },
        { "[\"\\x\"]", "not valid JSON" },
        { "[\"a\nb\"]", "not valid JSON" },
        { "{\"a\":1,\"a\":2}", "duplicate" },
        { "{\"b\":{\"a\":1,\"c\":0,\"a\":1}}", "duplicate" },
        { "[1]]", "not valid JSON" },
        { "]", "not valid JSON" },
        { "tru", "not valid JSON" },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        json_t *j = (json_t *)&cases;
        Error err = { 0 };
        assert_int_equal(json_parse(&j, cases[i].text, strlen(cases[i].text), "the body", &err), ERR_INPUT);
        assert_null(j);
        if (!strstr(err.text, cases[i].says)) fail_msg("%s: %s", cases[i].text, err.text);
        assert_int_equal(strncmp(err.text, "the body ", 9), 0);
    }
}

static void place_is_named(void **state)
{
    json_t *j;
    Error err = { 0 };
    const char *text = "{\n \"a\": 1,\n \"b\": oops\n}";
    assert_int_equal(json_parse(&j, text, strlen(text), "f.json", &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "line 3, column"));
}

/* A NUL byte in the middle is not the end of the text. */
static void bytes_after_nul_count(void **state)
{
    json_t *j;
    Error err = { 0 };
    assert_int_equal(json_parse(&j, "{}\0x", 4, "text", &err), ERR_INPUT);
}

static void depth(void **state)
{
    enum { DEEP = 200000 };
    static char text[2 * DEEP + 1];
    static const char pairs[][2] = { { '[', ']' }, { '{', '}' } };
    for (int kind = 0; kind < COUNT(pairs); kind++) {
        for (int closed = 0; closed < 2; closed++) {
            memset(text, pairs[kind][0], DEEP);
            memset(text + DEEP, pairs[kind][1], DEEP);
            json_t *j;
            Error err = { 0 };
            assert_int_equal(json_parse(&j, text, closed ? 2 * DEEP : DEEP, "text", &err), ERR_INPUT);
            assert_string_equal(err.text, "text nests deeper than 64 levels");
        }
    }
    for (int n = JSON_MAX_DEPTH; n <= JSON_MAX_DEPTH + 1; n++) {
        memset(text, '[', (size_t)n);
        memset(text + n, ']', (size_t)n);
        json_t *j;
        Status status = json_parse(&j, text, 2 * (size_t)n, "text", NULL);
        assert_int_equal(status, n <= JSON_MAX_DEPTH ? OK : ERR_INPUT);
        json_decref(j);
    }
}

/* Brackets in strings do not count, whatever stands before the quote. */
static void depth_knows_strings(void **state)
{
    static char text[4096];
    int n = snprintf(text, sizeof text, "[\"\\\\\", \"\\\"");
    memset(text + n, '[', 1000);
    snprintf(text + n + 1000, sizeof text - 2000, "\"]");
    json_decref(parse(text));
}

static void getters(void **state)
{
    json_t *j = parse("{\"b\":true,\"i\":-7,\"d\":0.5,\"whole\":16.0,\"s\":\"text\",\"a\":[1],\"o\":{},\"null\":null}");
    bool b = false;
    int64_t i = 1;
    double d = 1;
    const char *s = "old";
    json_t *a = NULL, *o = NULL;
    Error err = { 0 };
    assert_int_equal(json_get_bool(j, "b", &b, &err), OK);
    assert_true(b);
    assert_int_equal(json_get_int(j, "i", INT64_MIN, INT64_MAX, &i, &err), OK);
    assert_int_equal(i, -7);
    assert_int_equal(json_get_int(j, "whole", 0, 16, &i, &err), OK);
    assert_int_equal(i, 16);
    assert_int_equal(json_get_double(j, "d", 0, 1, &d, &err), OK);
    assert_true(d == 0.5);
    assert_int_equal(json_get_double(j, "i", -7, -7, &d, &err), OK);
    assert_true(d == -7);
    assert_int_equal(json_get_string(j, "s", &s, &err), OK);
    assert_string_equal(s, "text");
    assert_int_equal(json_get_array(j, "a", &a, &err), OK);
    assert_int_equal(json_array_size(a), 1);
    assert_int_equal(json_get_object(j, "o", &o, &err), OK);
    assert_non_null(o);
    assert_true(json_has(j, "b"));
    assert_false(json_has(j, "null"));
    assert_false(json_has(j, "absent"));
    assert_false(json_has(NULL, "absent"));
    assert_int_equal(err.status, OK);
    json_decref(j);
}

static void missing_keys_leave_the_default(void **state)
{
    json_t *j = parse("{\"null\":null}");
    static const char *const keys[] = { "absent", "null" };
    for (int k = 0; k < COUNT(keys); k++) {
        bool b = true;
        int64_t i = 42;
        double d = 4.5;
        const char *s = "default";
        json_t *v = j;
        assert_int_equal(json_get_bool(j, keys[k], &b, NULL), OK);
        assert_int_equal(json_get_int(j, keys[k], 0, 1, &i, NULL), OK);
        assert_int_equal(json_get_double(j, keys[k], 0, 1, &d, NULL), OK);
        assert_int_equal(json_get_string(j, keys[k], &s, NULL), OK);
        assert_int_equal(json_get_array(j, keys[k], &v, NULL), OK);
        assert_int_equal(json_get_object(j, keys[k], &v, NULL), OK);
        assert_true(b && i == 42 && d == 4.5 && v == j);
        assert_string_equal(s, "default");
    }
    json_decref(j);
}

enum Kind { BOOL, INT, DOUBLE, STRING, ARRAY, OBJECT };

static Status get(const json_t *j, enum Kind kind, double min, double max, Error *err)
{
    bool b;
    int64_t i;
    double d;
    const char *s;
    json_t *v;
    switch (kind) {
    case BOOL: return json_get_bool(j, "key", &b, err);
    case INT:
        return json_get_int(j, "key", isinf(min) ? INT64_MIN : (int64_t)min, isinf(max) ? INT64_MAX : (int64_t)max, &i,
                            err);
    case DOUBLE: return json_get_double(j, "key", min, max, &d, err);
    case STRING: return json_get_string(j, "key", &s, err);
    case ARRAY: return json_get_array(j, "key", &v, err);
    case OBJECT: return json_get_object(j, "key", &v, err);
    }
    return OK;
}

static void wrong_values_are_named(void **state)
{
    static const struct {
        enum Kind   kind;
        double      min, max;
        const char *value, *says;
    } cases[] = {
        { BOOL, 0, 0, "1", "key must be true or false, got 1" },
        { BOOL, 0, 0, "\"yes\"", "key must be true or false, got \"yes\"" },
        { INT, 0, 9, "\"hot\"", "key must be an integer, got \"hot\"" },
        { INT, 0, 9, "1.5", "key must be an integer, got 1.5" },
        { INT, 0, 9, "[1]", "key must be an integer, got an array" },
        { INT, 0, 9, "10", "key must be in [0, 9], got 10" },
        { INT, 0, 9, "-1", "key must be in [0, 9], got -1" },
        { INT, 0, 9, "1e18", "key must be in [0, 9], got 1e+18" },
        { INT, 0, INFINITY, "1e300", "key must be a 64-bit integer, got 1e+300" },
        { INT, 0, INFINITY, "9223372036854775808.0", "key must be a 64-bit integer, got 9.223372036854776e+18" },
        { INT, 0, INFINITY, "-9223372036854775808.0", "key must be a 64-bit integer, got -9.223372036854776e+18" },
        { INT, 1, INFINITY, "0", "key must be at least 1, got 0" },
        { INT, -INFINITY, 5, "6", "key must be at most 5, got 6" },
        { INT, -INFINITY, 5, "9223372036854775807", "key must be at most 5, got 9223372036854775807" },
        { DOUBLE, 0, 2, "7", "key must be in [0, 2], got 7" },
        { DOUBLE, 0, 2, "-0.5", "key must be in [0, 2], got -0.5" },
        { DOUBLE, 0, INFINITY, "-0.5", "key must be at least 0, got -0.5" },
        { DOUBLE, -INFINITY, 0.1, "0.25", "key must be at most 0.1, got 0.25" },
        { DOUBLE, 0, 2, "\"hot\"", "key must be a number, got \"hot\"" },
        { DOUBLE, 0, 2, "true", "key must be a number, got true" },
        { STRING, 0, 0, "false", "key must be a string, got false" },
        { STRING, 0, 0, "{}", "key must be a string, got an object" },
        { ARRAY, 0, 0, "3", "key must be an array, got 3" },
        { OBJECT, 0, 0, "[]", "key must be an object, got an array" },
        { OBJECT, 0, 0, "\"0123456789012345678901234567890123456789abc\"",
          "key must be an object, got \"0123456789012345678901234567890123456789...\"" },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        char text[200];
        snprintf(text, sizeof text, "{\"key\":%s}", cases[i].value);
        json_t *j = parse(text);
        Error err = { 0 };
        assert_int_equal(get(j, cases[i].kind, cases[i].min, cases[i].max, &err), ERR_INPUT);
        assert_string_equal(err.text, cases[i].says);
        assert_string_equal(err.param, "key");
        json_decref(j);
    }
}

static void files(void **state)
{
    TempDir t;
    temp_dir_open(&t);
    json_t *j;
    Error err = { 0 };
    const char *good = temp_write(&t, "good.json", "{\"a\":[1,2]}", 11);
    assert_int_equal(json_parse_file(&j, good, 11, &err), OK);
    json_decref(j);
    assert_int_equal(json_parse_file(&j, good, 10, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "larger than 10 bytes"));
    assert_null(j);

    error_clear(&err);
    assert_int_equal(json_parse_file(&j, temp_path(&t, "absent.json"), 100, &err), ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "absent.json"));

    error_clear(&err);
    assert_int_equal(json_parse_file(&j, temp_write(&t, "bad.json", "{", 1), 100, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "bad.json is not valid JSON at line 1"));

    error_clear(&err);
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n";
    assert_int_equal(json_parse_file(&j, temp_write(&t, "lfs.json", pointer, sizeof pointer - 1), 1000, &err),
                     ERR_INPUT);
    assert_non_null(strstr(err.text, "run git lfs pull"));
    temp_dir_close(&t);
}

static void no_memory(void **state)
{
    static const char text[] = "{\"a\":[1,2.5,true,null,\"text \\u00e9\"],\"b\":{\"c\":{\"d\":[[],{}]}},"
                               "\"long\":\"01234567890123456789012345678901234567890123456789\"}";
    json_t *j;
    Error err = { 0 };
    Status status;
    STARVE(status, status = json_parse(&j, text, sizeof text - 1, "text", &err), json_decref(j));

    TempDir t;
    temp_dir_open(&t);
    const char *path = temp_write(&t, "a.json", text, sizeof text - 1);
    STARVE(status, status = json_parse_file(&j, path, 1000, &err), json_decref(j));
    temp_dir_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_texts),
        cmocka_unit_test(place_is_named),
        cmocka_unit_test(bytes_after_nul_count),
        cmocka_unit_test(depth),
        cmocka_unit_test(depth_knows_strings),
        cmocka_unit_test(getters),
        cmocka_unit_test(missing_keys_leave_the_default),
        cmocka_unit_test(wrong_values_are_named),
        cmocka_unit_test(files),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
