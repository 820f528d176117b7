/* Files: limits, what is not a file, all-or-nothing writing, paths. */
#include "base/file.h"
#include "base/memory.h"
#include "support/starve.h"
#include "support/temp_dir.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct Fixture {
    TempDir dir;
    char   *data;
    size_t  n;
    Error   err;
} Fixture;

static int open_fixture(void **state)
{
    static Fixture f;
    f = (Fixture){ 0 };
    temp_dir_open(&f.dir);
    *state = &f;
    return 0;
}

static int close_fixture(void **state)
{
    Fixture *f = *state;
    mem_free(f->data);
    temp_dir_close(&f->dir);
    return 0;
}

static void whole_files(void **state)
{
    Fixture *f = *state;
    static char big[300000];
    for (size_t i = 0; i < sizeof big; i++) big[i] = (char)(i * 7);
    static const size_t sizes[] = { 0, 1, 63, 64, 65, 4096, 300000 };
    for (int i = 0; i < COUNT(sizes); i++) {
        const char *path = temp_write(&f->dir, "a", big, sizes[i]);
        assert_int_equal(file_read(path, sizes[i], &f->data, &f->n, &f->err), OK);
        assert_int_equal(f->n, sizes[i]);
        assert_memory_equal(f->data, big, sizes[i]);
        assert_int_equal(f->data[f->n], 0);
        mem_free(f->data);
        f->data = NULL;
    }
}

/* Files of /proc say that they are empty. */
static void length_unknown_before_reading(void **state)
{
    Fixture *f = *state;
    assert_int_equal(file_read("/proc/self/status", 1 << 20, &f->data, &f->n, &f->err), OK);
    assert_true(f->n > 100);
    assert_int_equal(strlen(f->data), f->n);
    mem_free(f->data);
    assert_int_equal(file_read("/proc/self/status", SIZE_MAX, &f->data, &f->n, &f->err), OK); /* takes what it needs */
    mem_free(f->data);
    assert_int_equal(file_read("/proc/self/status", 100, &f->data, &f->n, &f->err), ERR_INPUT);
    assert_null(f->data);
    assert_int_equal(f->n, 0);
}

static void not_a_file(void **state)
{
    Fixture *f = *state;
    const char *fifo = temp_path(&f->dir, "fifo");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    const char *file = temp_write(&f->dir, "file", "x", 1);
    char below[600];
    snprintf(below, sizeof below, "%s/below", file);
    const struct {
        const char *path;
        Status      status;
        const char *says;
    } cases[] = {
        { f->dir.path, ERR_INPUT, "is a directory" },
        { "/dev/null", ERR_INPUT, "not a regular file" },
        { "/dev/zero", ERR_INPUT, "not a regular file" },
        { fifo, ERR_INPUT, "not a regular file" }, /* and nobody waits for its writer */
        { temp_path(&f->dir, "absent"), ERR_NOT_FOUND, "there is no file" },
        { below, ERR_NOT_FOUND, "there is no file" },
        { "", ERR_NOT_FOUND, "there is no file" },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        error_clear(&f->err);
        assert_int_equal(file_read(cases[i].path, 1000, &f->data, &f->n, &f->err), cases[i].status);
        assert_non_null(strstr(f->err.text, cases[i].says));
        assert_null(f->data);
    }
}

static void too_large(void **state)
{
    Fixture *f = *state;
    const char *path = temp_write(&f->dir, "a", "12345", 5);
    for (size_t max = 0; max < 5; max++) {
        error_clear(&f->err);
        assert_int_equal(file_read(path, max, &f->data, &f->n, &f->err), ERR_INPUT);
        assert_non_null(strstr(f->err.text, "larger than"));
    }
}

static void writing_is_all_or_nothing(void **state)
{
    Fixture *f = *state;
    const char *path = temp_path(&f->dir, "a");
    assert_int_equal(file_write_atomic(path, "first", 5, &f->err), OK);
    assert_int_equal(file_write_atomic(path, "second", 6, &f->err), OK);
    const FilePart parts[] = { { "ab", 2 }, { NULL, 0 }, { "cde", 3 } };
    assert_int_equal(file_write_parts(temp_path(&f->dir, "b"), parts, 3, &f->err), OK);
    assert_int_equal(file_read(path, 100, &f->data, &f->n, &f->err), OK);
    assert_string_equal(f->data, "second");
    mem_free(f->data);
    assert_int_equal(file_read(temp_path(&f->dir, "b"), 100, &f->data, &f->n, &f->err), OK);
    assert_string_equal(f->data, "abcde");
    assert_int_equal(temp_count(&f->dir), 2); /* no temporary file stays */
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_mode & S_IRUSR);
}

static void writing_where_one_cannot(void **state)
{
    Fixture *f = *state;
    char below[600];
    snprintf(below, sizeof below, "%s/below", temp_write(&f->dir, "file", "x", 1));
    char endless[5000];
    memset(endless, 'x', sizeof endless);
    endless[sizeof endless - 1] = '\0';
    const char *fifo = temp_path(&f->dir, "fifo"); /* stands for /dev/null, which no test should put at risk */
    assert_int_equal(mkfifo(fifo, 0600), 0);
    const char *const paths[] = { f->dir.path, fifo, below, "/absent-directory/a", endless, "" };
    for (int i = 0; i < COUNT(paths); i++) {
        error_clear(&f->err);
        assert_int_not_equal(file_write_atomic(paths[i], "x", 1, &f->err), OK);
        assert_int_equal(strncmp(f->err.text, "cannot write", 12), 0);
    }
    struct stat st;
    assert_int_equal(stat(fifo, &st), 0);
    assert_true(S_ISFIFO(st.st_mode)); /* a rename over it would have replaced it */
    assert_int_equal(temp_count(&f->dir), 2);
}

/* A full disk, played by a limit on file sizes: the old file stays, no half of the new one does. */
static void failed_write_cleans_up(void **state)
{
    Fixture *f = *state;
    static const char large[5000];
    const char *path = temp_write(&f->dir, "a", "old", 3);
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 1000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    Status status = file_write_atomic(path, large, sizeof large, &f->err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(status, ERR_IO);
    assert_non_null(strstr(f->err.text, "cannot write"));
    assert_int_equal(temp_count(&f->dir), 1);
    assert_int_equal(file_read(path, 100, &f->data, &f->n, &f->err), OK);
    assert_string_equal(f->data, "old");
}

static void directories(void **state)
{
    Fixture *f = *state;
    assert_int_equal(dir_make(temp_path(&f->dir, "a/b/c"), &f->err), OK);
    assert_int_equal(dir_make(temp_path(&f->dir, "a/b/c/"), &f->err), OK);
    assert_true(dir_exists(temp_path(&f->dir, "a/b/c")));
    assert_false(file_exists(temp_path(&f->dir, "a/b/c")));
    struct stat st;
    assert_int_equal(stat(temp_path(&f->dir, "a/b"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);

    temp_write(&f->dir, "file", "x", 1);
    assert_true(file_exists(temp_path(&f->dir, "file")));
    assert_false(dir_exists(temp_path(&f->dir, "file")));
    static const char *const bad[] = { "file", "file/below" };
    for (int i = 0; i < COUNT(bad); i++) {
        error_clear(&f->err);
        assert_int_equal(dir_make(temp_path(&f->dir, bad[i]), &f->err), ERR_IO);
        assert_non_null(strstr(f->err.text, "cannot make the directory"));
    }
    error_clear(&f->err);
    assert_int_equal(dir_make("", &f->err), ERR_INPUT);
}

static void paths(void **state)
{
    char out[8];
    Error err = { 0 };
    assert_int_equal(path_join(out, sizeof out, "ab", "cd", &err), OK);
    assert_string_equal(out, "ab/cd");
    assert_int_equal(path_join(out, sizeof out, "/", "cd", &err), OK);
    assert_string_equal(out, "/cd");
    assert_int_equal(path_join(out, sizeof out, "ab/", "cdef", &err), OK);
    assert_int_equal(path_join(out, sizeof out, "ab", "cdefg", &err), ERR_INPUT);
    assert_string_equal(out, "");
    assert_non_null(strstr(err.text, "longer than 8 bytes"));
}

static void lfs_pointers(void **state)
{
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:1234\nsize 12\n";
    assert_true(file_is_lfs_pointer(pointer, sizeof pointer - 1));
    assert_false(file_is_lfs_pointer(pointer, 20));
    assert_false(file_is_lfs_pointer("", 0));
    assert_false(file_is_lfs_pointer("{\"version\": \"https://git-lfs.github.com/spec/v1\"}", 49));
}

static void no_memory(void **state)
{
    Fixture *f = *state;
    Error err = { 0 };
    Status status;
    STARVE(status, status = file_read("/proc/self/status", 1 << 20, &f->data, &f->n, &err),
           (mem_free(f->data), f->data = NULL));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_fixture, close_fixture)
    const struct CMUnitTest tests[] = {
        TEST(whole_files),
        TEST(length_unknown_before_reading),
        TEST(not_a_file),
        TEST(too_large),
        TEST(writing_is_all_or_nothing),
        TEST(writing_where_one_cannot),
        TEST(failed_write_cleans_up),
        TEST(directories),
        TEST(paths),
        TEST(lfs_pointers),
        TEST(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
