/* Status and Error: first failure wins, one printable line, cut between characters; CHECK. */
#include "base/error.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

static void first_failure_wins(void **state)
{
    Error err = { 0 };
    assert_int_equal(error_set(&err, ERR_INPUT, "a %d", 1), ERR_INPUT);
    assert_int_equal(error_set(&err, ERR_IO, "b"), ERR_IO); /* what was asked for comes back all the same */
    assert_int_equal(err.status, ERR_INPUT);
    assert_string_equal(err.text, "a 1");
    assert_string_equal(err.param, "");
    error_clear(&err);
    assert_int_equal(err.status, OK);
    assert_int_equal(error_set_param(&err, ERR_INPUT, "top_p", "top_p must be in [0, 1], got %d", 7), ERR_INPUT);
    assert_string_equal(err.param, "top_p");
    assert_string_equal(err.text, "top_p must be in [0, 1], got 7");
}

static void null_is_allowed(void **state)
{
    assert_int_equal(error_set(NULL, ERR_FULL, "x"), ERR_FULL);
    assert_int_equal(error_set_param(NULL, ERR_FULL, "p", "x"), ERR_FULL);
    error_prefix(NULL, "x");
    error_clear(NULL);
    Error err = { 0 };
    error_set_param(&err, ERR_INPUT, NULL, "x");
    assert_string_equal(err.param, "");
}

static void prefix_goes_in_front(void **state)
{
    Error err = { 0 };
    error_prefix(&err, "nothing");
    assert_int_equal(err.status, OK);
    assert_string_equal(err.text, "");
    error_set(&err, ERR_INPUT, "inner");
    error_prefix(&err, "file %s", "a.json");
    error_prefix(&err, "outer");
    assert_string_equal(err.text, "outer: file a.json: inner");
}

static void too_long_is_cut(void **state)
{
    char text[4000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    Error err = { 0 };
    error_set_param(&err, ERR_INPUT, text, "%s", text);
    assert_int_equal(strlen(err.text), ERROR_TEXT_BYTES - 1);
    assert_int_equal(strlen(err.param), sizeof err.param - 1);
    error_prefix(&err, "%s", text);
    assert_int_equal(strlen(err.text), ERROR_TEXT_BYTES - 1);
}

/* Whatever the place of the cut, no half character stays. */
static void cut_keeps_characters_whole(void **state)
{
    static const char *const characters[] = { "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80" };
    for (int k = 0; k < COUNT(characters); k++) {
        for (int shift = 0; shift < 4; shift++) {
            char text[4000] = "xxxx";
            for (size_t at = (size_t)shift; at + 8 < sizeof text; at += strlen(characters[k]))
                strcpy(text + at, characters[k]);
            Error err = { 0 };
            error_set(&err, ERR_INPUT, "%s", text);
            size_t n = strlen(err.text), size = strlen(characters[k]);
            assert_true(n > ERROR_TEXT_BYTES - 5);
            assert_int_equal((n - (size_t)shift) % size, 0);
        }
    }
}

static void one_line(void **state)
{
    Error err = { 0 };
    error_set(&err, ERR_INPUT, "a\nb\tc\x01\x7f" "d");
    assert_string_equal(err.text, "a b c  d");
}

static jmp_buf back;
static int check_line;
static char check_text[100];

static void see(const char *file, int line, const char *condition)
{
    check_line = line;
    strncpy(check_text, condition, sizeof check_text - 1);
    longjmp(back, 1);
}

static void check_calls_the_handler(void **state)
{
    check_handler_set(see);
    if (setjmp(back) == 0) {
        CHECK(1 + 1 == 2);
        CHECK(1 + 1 == 3);
        fail();
    }
    check_handler_set(NULL);
    assert_string_equal(check_text, "1 + 1 == 3");
    assert_true(check_line > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_failure_wins),         cmocka_unit_test(null_is_allowed),
        cmocka_unit_test(prefix_goes_in_front),       cmocka_unit_test(too_long_is_cut),
        cmocka_unit_test(cut_keeps_characters_whole), cmocka_unit_test(one_line),
        cmocka_unit_test(check_calls_the_handler),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
