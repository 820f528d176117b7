/* The line that is drawn while a model loads. */
#include "base/buf.h"
#include "cli/progress.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pty.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const uint64_t GIB = 1 << 30;

static void test_lines(void **state)
{
    char line[256];
    progress_format(line, sizeof line, "weights", 2 * GIB, 8 * GIB, 4, 120);
    assert_string_equal(line, "loading [####............]  25 %  2.00 of 8.00 GiB  0.50 GiB/s  12 s left");
    progress_format(line, sizeof line, "weights", GIB, 201 * GIB, 1, 120);
    assert_string_equal(line, "loading [................]   0 %  1.0 of 201.0 GiB  1.00 GiB/s  3:20 min left");
    progress_format(line, sizeof line, "weights", GIB, 7201 * GIB, 1, 120);
    assert_non_null(strstr(line, "2:00 h left"));
    progress_format(line, sizeof line, "weights", 8 * GIB, 8 * GIB, 4, 120);
    assert_string_equal(line, "loading: 8.00 GiB of weights are here, preparing");
    progress_format(line, sizeof line, "tokenizer", 0, 0, 0, 120);
    assert_string_equal(line, "loading: tokenizer");
}

static void test_before_the_first_byte(void **state)
{
    char line[256];
    progress_format(line, sizeof line, "weights", 0, GIB, 0, 120); /* no rate, so no time either */
    assert_string_equal(line, "loading [................]   0 %  0.00 of 1.00 GiB");
}

static void test_a_narrow_terminal(void **state)
{
    char line[256];
    for (int columns = 0; columns < 60; columns++) {
        progress_format(line, sizeof line, "weights", GIB, 3 * GIB, 1, columns);
        assert_int_equal(strlen(line), columns > 1 ? columns - 1 : 0);
    }
}

/* stderr replaced by a terminal, or by something else. */
static int swap_stderr(int fd)
{
    int old = dup(STDERR_FILENO);
    assert_true(dup2(fd, STDERR_FILENO) >= 0);
    return old;
}

static void restore_stderr(int old)
{
    dup2(old, STDERR_FILENO);
    close(old);
}

static void read_until(int fd, Buf *text, const char *mark)
{
    char bytes[256];
    while (!text->data || !strstr(text->data, mark)) {
        ssize_t n = read(fd, bytes, sizeof bytes);
        if (n <= 0) fail_msg("no \"%s\" was drawn", mark);
        buf_append(text, bytes, (size_t)n);
    }
}

static void test_a_terminal_is_drawn_on_and_left_clean(void **state)
{
    StackProgress progress = { .stage = "weights", .done_bytes = GIB, .total_bytes = 4 * GIB };
    int master, slave;
    Buf text;
    buf_init(&text, 1 << 20);
    setenv("TERM", "xterm", 1);
    assert_int_equal(openpty(&master, &slave, NULL, NULL, NULL), 0);
    int old = swap_stderr(slave);
    Progress *p = progress_begin(&progress);
    assert_non_null(p);
    read_until(master, &text, "[####............]  25 %  1.00 of 4.00 GiB");
    progress_end(p);
    buf_clear(&text);
    read_until(master, &text, "\r\033[K");
    restore_stderr(old);
    close(master);
    close(slave);
    buf_free(&text);
}

static void test_quiet_where_nothing_can_be_drawn(void **state)
{
    StackProgress progress = { .stage = "weights" };
    int fds[2], master, slave;
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(openpty(&master, &slave, NULL, NULL, NULL), 0);
    int old = swap_stderr(fds[1]);
    Progress *on_a_pipe = progress_begin(&progress);
    dup2(slave, STDERR_FILENO);
    setenv("TERM", "dumb", 1);
    Progress *on_a_typewriter = progress_begin(&progress);
    restore_stderr(old);
    assert_null(on_a_pipe);
    assert_null(on_a_typewriter);
    progress_end(NULL);
    close(fds[0]);
    close(fds[1]);
    close(master);
    close(slave);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_before_the_first_byte),
        cmocka_unit_test(test_a_narrow_terminal),
        cmocka_unit_test(test_a_terminal_is_drawn_on_and_left_clean),
        cmocka_unit_test(test_quiet_where_nothing_can_be_drawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
