/* The history file: what was appended is what is loaded, whoever else appended in between; a long file is cut. */
#include "cli/line_history.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/memory.h"
#include "support/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct Seen {
    int  n;
    char first[64], last[64];
} Seen;

static void see(void *ctx, const char *text)
{
    Seen *seen = ctx;
    snprintf(seen->n++ ? seen->last : seen->first, sizeof seen->last, "%s", text);
}

static Seen load(const char *path)
{
    Seen seen = { .n = 0 };
    history_load(path, see, &seen);
    return seen;
}

static void test_entries_come_back(void **state)
{
    TempDir dir;
    temp_dir_open(&dir);
    char path[4096];
    struct stat file;
    snprintf(path, sizeof path, "%s/new/folder/history", dir.path);
    assert_int_equal(load(path).n, 0);
    history_append(path, "C:\\new\nüber 语\\");
    history_append(path, "second");
    Seen seen = load(path);
    assert_int_equal(seen.n, 2);
    assert_string_equal(seen.first, "C:\\new\nüber 语\\");
    assert_string_equal(seen.last, "second");
    assert_int_equal(stat(path, &file), 0);
    assert_int_equal(file.st_mode & 0777, 0600); /* what people ask is nobody else's business */
    temp_dir_close(&dir);
}

static void test_a_long_file_is_cut(void **state)
{
    enum { N = 4 * HISTORY_MAX_ENTRIES + 1 };
    TempDir dir;
    temp_dir_open(&dir);
    char path[4096];
    Buf text;
    Error err = { .status = OK };
    snprintf(path, sizeof path, "%s/history", dir.path);
    buf_init(&text, SIZE_MAX);
    for (int i = 0; i < N; i++) buf_printf(&text, "line %d\n", i);
    assert_int_equal(file_write_atomic(path, text.data, text.len, &err), OK);
    for (int round = 0; round < 2; round++) { /* the second time from the shorter file */
        Seen seen = load(path);
        assert_int_equal(seen.n, HISTORY_MAX_ENTRIES);
        assert_string_equal(seen.first, "line 3001");
        assert_string_equal(seen.last, "line 4000");
    }
    struct stat file;
    assert_int_equal(stat(path, &file), 0);
    assert_int_equal(file.st_size, HISTORY_MAX_ENTRIES * strlen("line 3001\n"));
    buf_free(&text);
    temp_dir_close(&dir);
}

static void test_where_it_lies(void **state)
{
    char path[64];
    setenv("XDG_STATE_HOME", "/state", 1);
    history_default_path(path, sizeof path);
    assert_string_equal(path, "/state/tandem/chat_history");
    setenv("XDG_STATE_HOME", "relative", 1); /* to be ignored, says the specification */
    setenv("HOME", "/home/me", 1);
    history_default_path(path, sizeof path);
    assert_string_equal(path, "/home/me/.local/state/tandem/chat_history");
    unsetenv("HOME");
    history_default_path(path, sizeof path);
    assert_string_equal(path, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_entries_come_back),
        cmocka_unit_test(test_a_long_file_is_cut),
        cmocka_unit_test(test_where_it_lies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
