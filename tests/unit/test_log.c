/* Log lines: level, form, one line an event whatever the text holds. */
#include "base/error.h"
#include "base/log.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int saved = -1, reading = -1;

/* Standard error into a pipe ... */
static void begin_capture(void)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    saved = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    reading = ends[0];
    fcntl(reading, F_SETFL, O_NONBLOCK);
}

/* ... and what went into it. */
static const char *end_capture(void)
{
    static char text[8192];
    ssize_t n = read(reading, text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(reading);
    return text;
}

static void lines_have_a_form(void **state)
{
    log_level_set(LOG_INFO);
    begin_capture();
    log_info("engine", "loaded n=%d", 3);
    log_debug("engine", "not wanted");
    log_error("http", "two\nlines\t.");
    const char *text = end_capture();
    double seconds;
    char level[8], rest[100];
    assert_int_equal(sscanf(text, "%lf %7s %99[^\n]", &seconds, level, rest), 3);
    assert_true(seconds >= 0 && seconds < 3600);
    assert_string_equal(level, "info");
    assert_string_equal(rest, "engine: loaded n=3");
    assert_null(strstr(text, "not wanted"));
    assert_non_null(strstr(text, " error http: two lines .\n"));
    int n_lines = 0;
    for (const char *c = text; *c; c++) n_lines += *c == '\n';
    assert_int_equal(n_lines, 2);
}

static void long_lines_are_cut(void **state)
{
    char text[5000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    log_level_set(LOG_INFO);
    begin_capture();
    log_warn("a", "%s", text);
    const char *got = end_capture();
    size_t n = strlen(got);
    assert_true(n > 1000 && n <= 2048);
    assert_int_equal(got[n - 1], '\n');
}

/* The environment said "debug" before the first line (see main): a default does not beat it, a set does. */
static void levels(void **state)
{
    log_level_default(LOG_ERROR);
    begin_capture();
    log_debug("a", "seen");
    assert_non_null(strstr(end_capture(), "seen"));
    log_level_set(LOG_ERROR);
    begin_capture();
    log_warn("a", "unseen");
    assert_string_equal(end_capture(), "");
}

int main(void)
{
    setenv("TANDEM_LOG_LEVEL", "debug", 1);
    unsetenv("JOURNAL_STREAM");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels), /* first: the environment is read once */
        cmocka_unit_test(lines_have_a_form),
        cmocka_unit_test(long_lines_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
