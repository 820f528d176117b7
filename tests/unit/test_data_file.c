/* Files of weights: what is staged past the page cache, or out of it, is what the file holds, wherever it begins and ends. */
#include "base/error.h"
#include "base/memory.h"
#include "support/temp_dir.h"
#include "tensor/data_file.h"
#include "unit/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <fcntl.h>
#include <unistd.h>

enum { FILE_BYTES = 3 * 65536 + 1234, ROOM = 1 << 19 };

static uint8_t *content, *block, *staging; /* staging: the first page in block */

static void write_file(const char *path, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, content, n), n);
    assert_int_equal(fsync(fd), 0);
    close(fd);
}

static void forget(const DataFile *f)
{
    posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
}

/* Everything that is staged is compared, and nothing is written behind the room that was asked for. */
static void check_stage(DataFile *f, uint64_t offset, size_t n)
{
    Error err = { 0 };
    void *at = NULL;
    const size_t room = data_file_room(n);
    assert_true(room <= ROOM);
    memset(staging + room, 0x5a, 64);
    if (data_file_stage(f, offset, n, staging, &at, &err)) fail_msg("%s", err.text);
    if (n > 0 && memcmp(at, content + offset, n) != 0) fail_msg("%zu bytes at %llu differ", n, (unsigned long long)offset);
    assert_true((uint8_t *)at >= staging && (uint8_t *)at + n <= staging + room);
    for (int i = 0; i < 64; i++) assert_int_equal(staging[room + (size_t)i], 0x5a);
}

static void any_place_and_length(void **state)
{
    static const uint64_t places[] = { 0, 1, 4095, 4096, 4097, 8191, 65536, FILE_BYTES - 4097, FILE_BYTES - 1, FILE_BYTES };
    static const size_t lengths[] = { 0, 1, 2, 4094, 4095, 4096, 4097, 8192, 65537, FILE_BYTES };
    enum { SEED = 17 };
    DataFile f;
    Error err = { 0 };
    Random r = { SEED };
    const char *path = temp_path(*state, "data");
    write_file(path, FILE_BYTES);
    assert_int_equal(data_file_open(&f, path, &err), OK);
    for (int is_warm = 0; is_warm < 2; is_warm++)
        for (int i = 0; i < COUNT(places); i++)
            for (int k = 0; k < COUNT(lengths); k++) {
                if (!is_warm) forget(&f);
                if (lengths[k] <= FILE_BYTES - places[i]) check_stage(&f, places[i], lengths[k]);
            }
    for (int i = 0; i < 200; i++) {
        uint64_t offset = (uint64_t)random_below(&r, FILE_BYTES);
        if (i % 2) forget(&f);
        check_stage(&f, offset, (size_t)random_below(&r, (int32_t)(FILE_BYTES - offset) + 1));
    }
    data_file_close(&f);
}

/* Where a file system or a system call will have nothing of it. */
static void without_direct_reading(void **state)
{
    DataFile f;
    Error err = { 0 };
    const char *path = temp_path(*state, "data");
    write_file(path, FILE_BYTES);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(data_file_open(&f, path, &err), OK);
        if (i == 0) f.refuses_direct = true;
        else f.sees_cache = false;
        forget(&f);
        check_stage(&f, 4095, 70000);
        check_stage(&f, FILE_BYTES - 5000, 5000);
        data_file_close(&f);
    }
    char name[64];
    snprintf(name, sizeof name, "/dev/shm/tandem-test-data-%d", (int)getpid()); /* no disk below */
    FILE *memory = fopen(name, "wb");
    if (!memory) return;
    assert_int_equal(fwrite(content, 1, FILE_BYTES, memory), FILE_BYTES);
    fclose(memory);
    assert_int_equal(data_file_open(&f, name, &err), OK);
    check_stage(&f, 123, 100000);
    data_file_close(&f);
    unlink(name);
}

/* The name belongs to another file by now: the one that was opened is read. */
static void replaced(void **state)
{
    DataFile f;
    Error err = { 0 };
    const char *path = temp_path(*state, "data"), *other = temp_path(*state, "other");
    write_file(path, FILE_BYTES);
    assert_int_equal(data_file_open(&f, path, &err), OK);
    forget(&f);
    content[5000] ^= 1;
    write_file(other, FILE_BYTES);
    content[5000] ^= 1;
    assert_int_equal(rename(other, path), 0);
    check_stage(&f, 0, FILE_BYTES);
    data_file_close(&f);
}

static void shorter(void **state)
{
    static const size_t left[] = { 0, 1, 4096, 65536, FILE_BYTES - 1 };
    for (int i = 0; i < COUNT(left); i++) {
        DataFile f;
        Error err = { 0 };
        void *at;
        const char *path = temp_path(*state, "data");
        write_file(path, FILE_BYTES);
        assert_int_equal(data_file_open(&f, path, &err), OK);
        assert_int_equal(truncate(path, (off_t)left[i]), 0);
        assert_int_equal(data_file_stage(&f, 100, FILE_BYTES - 100, staging, &at, &err), ERR_IO);
        assert_non_null(strstr(err.text, "became shorter"));
        error_clear(&err);
        assert_int_equal(data_file_check_size(&f, &err), ERR_IO);
        data_file_close(&f);
    }
}

static int open_all(void **state)
{
    static TempDir t;
    Random r = { 4 };
    temp_dir_open(&t);
    *state = &t;
    content = mem_alloc(FILE_BYTES);
    block = mem_alloc(ROOM + 2 * DATA_FILE_PAGE);
    if (!content || !block) return 1;
    staging = (uint8_t *)(((uintptr_t)block + DATA_FILE_PAGE - 1) & ~(uintptr_t)(DATA_FILE_PAGE - 1));
    for (size_t i = 0; i < FILE_BYTES; i++) content[i] = (uint8_t)random_bits(&r);
    return 0;
}

static int close_all(void **state)
{
    temp_dir_close(*state);
    mem_free(content);
    mem_free(block);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(any_place_and_length), cmocka_unit_test(without_direct_reading), cmocka_unit_test(replaced), cmocka_unit_test(shorter) };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
