/* The compiled tokenizer: found again, rebuilt when stale or damaged, never trusted. */
#include "unit/text_fixture.h"

#include "text/tokenizer_image_impl.h"
#include "unit/random.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static const char probe[] = "<|im_start|>user\nDon't return 12 é<|im_end|>";

typedef struct Place { /* a model directory and a cache directory */
    TempDir model, cache;
} Place;

static void place_open(Place *p)
{
    char *text;
    size_t n;
    Error err = { 0 };
    temp_dir_open(&p->model);
    temp_dir_open(&p->cache);
    assert_int_equal(file_read(source_tree("models/nano/tokenizer.json"), 1 << 24, &text, &n, &err), OK);
    temp_write(&p->model, "tokenizer.json", text, n);
    mem_free(text);
}

static void place_close(Place *p)
{
    temp_dir_close(&p->model);
    temp_dir_close(&p->cache);
}

static void check_works(const Place *p, const Ids *want)
{
    Error err = { 0 };
    Ids got = { 0 };
    Tokenizer *t = tokenizer_in(p->model.path, p->cache.path);
    assert_int_equal(encode(t, probe, strlen(probe), false, 1000, &got, &err), OK);
    assert_int_equal(got.n, want->n);
    assert_memory_equal(got.ids, want->ids, (size_t)want->n * sizeof *want->ids);
    ids_free(&got);
    tokenizer_close(t);
}

static Ids expected_ids(void)
{
    Error err = { 0 };
    Ids ids = { 0 };
    Tokenizer *t = tokenizer_in(source_tree("models/nano"), NULL);
    assert_int_equal(encode(t, probe, strlen(probe), false, 1000, &ids, &err), OK);
    tokenizer_close(t);
    return ids;
}

/* The only file in the cache. */
static const char *cache_file(const Place *p)
{
    static char path[200];
    char real[4096], name[64] = "tokenizer-";
    uint8_t sha[32];
    assert_non_null(realpath(temp_path(&p->model, "tokenizer.json"), real));
    assert_true(bytes_sha(real, strlen(real), sha));
    for (int i = 0; i < 8; i++) snprintf(name + 10 + 2 * i, 3, "%02x", sha[i]);
    snprintf(path, sizeof path, "%s/%s.bin", p->cache.path, name);
    assert_true(file_exists(path));
    return path;
}

static ino_t inode_of(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st.st_ino;
}

static void is_kept_and_found_again(void **state)
{
    Place p;
    Ids want = expected_ids();
    place_open(&p);
    check_works(&p, &want);
    assert_int_equal(temp_count(&p.cache), 1);
    ino_t first = inode_of(cache_file(&p));
    check_works(&p, &want);
    assert_int_equal(inode_of(cache_file(&p)), first); /* read, not written */
    place_close(&p);
    ids_free(&want);
}

/* Other times but the same bytes: taken, and the times noted. */
static void a_touched_source_is_recognised(void **state)
{
    Place p;
    Ids want = expected_ids();
    place_open(&p);
    check_works(&p, &want);
    const struct timespec times[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
    assert_int_equal(utimensat(AT_FDCWD, temp_path(&p.model, "tokenizer.json"), times, 0), 0);
    ino_t before = inode_of(cache_file(&p));
    check_works(&p, &want);
    ino_t noted = inode_of(cache_file(&p));
    assert_int_not_equal(noted, before);
    check_works(&p, &want);
    assert_int_equal(inode_of(cache_file(&p)), noted);
    place_close(&p);
    ids_free(&want);
}

/* The same size and even the same mtime, other bytes: ids of two tokens are exchanged. */
static void a_changed_source_is_compiled_again(void **state)
{
    Place p;
    Error err = { 0 };
    Ids want = expected_ids(), got = { 0 };
    place_open(&p);
    check_works(&p, &want);
    const char *path = temp_path(&p.model, "tokenizer.json");
    struct stat st;
    char *text;
    size_t n;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(file_read(path, 1 << 24, &text, &n, &err), OK);
    char *a = strstr(text, "\"<|im_start|>\""), *b = strstr(text, "\"<|im_end|>\"");
    assert_non_null(a);
    assert_non_null(b);
    memcpy(a, "\"<|in_start|>\"", 14);
    temp_write(&p.model, "tokenizer.json", text, n);
    const struct timespec times[2] = { st.st_mtim, st.st_mtim };
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    Tokenizer *t = tokenizer_in(p.model.path, p.cache.path);
    assert_int_equal(encode(t, probe, strlen(probe), false, 1000, &got, &err), OK);
    assert_true(got.n > want.n); /* <|im_start|> is no token any more */
    tokenizer_close(t);
    mem_free(text);
    ids_free(&got);
    ids_free(&want);
    place_close(&p);
}

/* Cut at many places, a byte flipped at many places, another version, an empty file. */
static void damage_is_repaired(void **state)
{
    Place p;
    Error err = { 0 };
    Ids want = expected_ids();
    char *image;
    size_t n;
    place_open(&p);
    check_works(&p, &want);
    char name[200];
    snprintf(name, sizeof name, "%s", cache_file(&p));
    assert_int_equal(file_read(name, 1 << 24, &image, &n, &err), OK);
    Random r = { 7 };
    for (int round = 0; round < 40; round++) {
        size_t at = round < 20 ? (size_t)random_below(&r, 200) : (size_t)random_below(&r, (int32_t)n);
        size_t keep = round % 2 ? n : at;
        if (round % 2) image[at] ^= (char)(1 << random_below(&r, 8)); /* stays: damage upon damage */
        assert_int_equal(file_write_atomic(name, image, keep, &err), OK);
        check_works(&p, &want);
    }
    mem_free(image);
    place_close(&p);
    ids_free(&want);
}

/* With a right checksum over wrong contents the image is refused or can be used without harm. */
static void forged_images_do_no_harm(void **state)
{
    Place p;
    Error err = { 0 };
    Ids want = expected_ids();
    char *image;
    size_t n;
    int opened = 0;
    place_open(&p);
    check_works(&p, &want);
    assert_int_equal(file_read(cache_file(&p), 1 << 24, &image, &n, &err), OK);
    Random r = { 11 };
    for (int round = 0; round < 600; round++) {
        char *forged = mem_alloc(n);
        memcpy(forged, image, n);
        for (int k = random_below(&r, 4); k >= 0; k--) {
            size_t at = (size_t)(round % 3 ? random_below(&r, (int32_t)n) : 16 + random_below(&r, 176));
            uint32_t values[] = { 0,          0xFFFFFFFF,
                                  0x7FFFFFFF, (uint32_t)random_bits(&r),
                                  4096,       (uint32_t)random_below(&r, 5000) };
            memcpy(forged + at / 4 * 4, &values[random_below(&r, COUNT(values))], 4);
        }
        size_t keep = round % 10 ? n : n / 8 * 8 - 8 * (size_t)random_below(&r, 100);
        image_seal(forged, keep);
        Vocab vocab;
        Error ignored = { 0 };
        if (image_open(&vocab, forged, keep, "forged", &ignored) == OK) {
            Bpe bpe;
            BpeWork work = { 0 };
            IdList ids = { .max = 1 << 20 };
            AddedTokens added;
            size_t at, len;
            opened++;
            bpe_open(&bpe, &vocab);
            assert_int_equal(added_tokens_open(&added, &vocab, TOKEN_ADDED, TOKEN_ADDED, &ignored), OK);
            bpe_encode(&bpe, &work, probe, strlen(probe), &ids);
            bpe_encode(&bpe, &work, "return", 6, &ids);
            added_tokens_find(&added, probe, strlen(probe), 0, &at, &len);
            for (int64_t i = 0; i < ids.n; i++) assert_true(ids.ids[i] >= 0 && ids.ids[i] < vocab.n_ids);
            mem_free(ids.ids);
            bpe_work_free(&work);
            added_tokens_close(&added);
        }
        mem_free(forged);
    }
    assert_true(opened > 50);
    mem_free(image);
    place_close(&p);
    ids_free(&want);
}

/* No place to keep it: a file where a directory must be. */
static void does_without_a_cache(void **state)
{
    Place p;
    Ids want = expected_ids();
    place_open(&p);
    temp_write(&p.cache, "file", "x", 1);
    const char *nowhere = temp_path(&p.cache, "file/below");
    Tokenizer *t = tokenizer_in(p.model.path, nowhere);
    tokenizer_close(t);
    t = tokenizer_in(p.model.path, "");
    tokenizer_close(t);
    assert_int_equal(temp_count(&p.cache), 1);
    place_close(&p);
    ids_free(&want);
}

static void default_directory(void **state)
{
    char dir[64], before_xdg[4096], before_home[4096];
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    snprintf(before_xdg, sizeof before_xdg, "%s", xdg ? xdg : "");
    snprintf(before_home, sizeof before_home, "%s", home ? home : "");
    setenv("XDG_CACHE_HOME", "/x", 1);
    tokenizer_default_cache_dir(dir, sizeof dir);
    assert_string_equal(dir, "/x/tandem");
    tokenizer_default_cache_dir(dir, 5); /* does not fit */
    assert_string_equal(dir, "");
    setenv("XDG_CACHE_HOME", "relative", 1);
    setenv("HOME", "/h", 1);
    tokenizer_default_cache_dir(dir, sizeof dir);
    assert_string_equal(dir, "/h/.cache/tandem");
    unsetenv("HOME");
    tokenizer_default_cache_dir(dir, sizeof dir);
    assert_string_equal(dir, "");
    if (xdg) setenv("XDG_CACHE_HOME", before_xdg, 1);
    else unsetenv("XDG_CACHE_HOME");
    if (home) setenv("HOME", before_home, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_kept_and_found_again),
        cmocka_unit_test(a_touched_source_is_recognised),
        cmocka_unit_test(a_changed_source_is_compiled_again),
        cmocka_unit_test(damage_is_repaired),
        cmocka_unit_test(forged_images_do_no_harm),
        cmocka_unit_test(does_without_a_cache),
        cmocka_unit_test(default_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
