/* Where a model lies: bundled, a directory, the Hugging Face cache; names that must not lead anywhere else. */
#include "base/error.h"
#include "models/config.h"
#include "support/temp_dir.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int open_dir(void **state)
{
    static TempDir t;
    temp_dir_open(&t);
    static const char *const variables[] = { "TANDEM_MODELS", "HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME" };
    for (int i = 0; i < COUNT(variables); i++) unsetenv(variables[i]);
    setenv("HOME", t.path, 1);
    *state = &t;
    return 0;
}

static int close_dir(void **state)
{
    temp_dir_close(*state);
    return 0;
}

static void expect_found(const char *name, const char *dir)
{
    char got[4096];
    Error err = { 0 };
    if (model_find(name, got, sizeof got, &err) != OK) fail_msg("%s: %s", name, err.text);
    assert_string_equal(got, dir);
}

static void expect_lost(const char *name, Status status, const char *says)
{
    char got[4096];
    Error err = { 0 };
    Status s = model_find(name, got, sizeof got, &err);
    if (s != status || !strstr(err.text, says))
        fail_msg("%s: %d \"%s\", want %d \"%s\"", name, s, err.text, status, says);
}

static void make_dir(const TempDir *t, const char *name)
{
    assert_int_equal(mkdir(temp_path(t, name), 0700), 0);
}

static void bundled_models_and_directories(void **state)
{
    const TempDir *t = *state;
    make_dir(t, "models");
    make_dir(t, "models/nano");
    make_dir(t, "own");
    expect_lost("nano-test", ERR_NOT_FOUND, "there is no model nano-test");
    setenv("TANDEM_MODELS", temp_path(t, "models"), 1);
    expect_found("nano", temp_path(t, "models/nano"));
    expect_found(temp_path(t, "own"), temp_path(t, "own"));
    expect_found(".", "."); /* a name with a dot in front is never a bundled one */
    expect_found("..", "..");
    expect_lost("", ERR_INPUT, "is empty");
    expect_lost("nano-test", ERR_NOT_FOUND, "there is no model nano-test");
    expect_lost(temp_path(t, "absent/dir"), ERR_NOT_FOUND, "there is no model");
    expect_found(temp_write(t, "m.gguf", "GGUF", 4), temp_path(t, "m.gguf")); /* what is in it is seen later */
    expect_lost(temp_write(t, "m.safetensors", "", 0), ERR_INPUT, "is a file; give the directory");
    char small[4];
    assert_int_equal(model_find("nano", small, sizeof small, NULL), ERR_NOT_FOUND);
}

/* build/tandem beside models/, and bin/tandem beside share/: a copy of this program asks from there, through
 * an emulator where the test runs in one. */
static void beside_the_program(void **state)
{
    const TempDir *t = *state;
    char command[2048];
    static const char *const layouts[][3] = {
        { "build", "models/nano-test", "/build/../models/nano-test" },
        { "bin", "share/tandem/models/nano-test", "/bin/../share/tandem/models/nano-test" },
    };
    for (int i = 0; i < COUNT(layouts); i++) {
        char self[1024];
        ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
        assert_true(n > 0);
        self[n] = '\0';
        snprintf(command, sizeof command, "mkdir -p %s/%s %s/%s && cp %s %s/%s/t && "
                 "$MESON_EXE_WRAPPER %s/%s/t --find nano-test > %s/out",
                 t->path, layouts[i][0], t->path, layouts[i][1], self, t->path, layouts[i][0], t->path, layouts[i][0],
                 t->path);
        assert_int_equal(system(command), 0);
        char want[256], got[256] = "";
        snprintf(want, sizeof want, "%s%s", t->path, layouts[i][2]);
        FILE *f = fopen(temp_path(t, "out"), "r");
        assert_non_null(f);
        assert_int_equal(fscanf(f, "%255s", got), 1);
        fclose(f);
        assert_string_equal(got, want);
        snprintf(command, sizeof command, "rm -r %s/models %s/share 2> /dev/null; true", t->path, t->path);
        assert_int_equal(system(command), 0);
    }
}

static void make_repo(const TempDir *t, const char *hub, const char *commit)
{
    char path[256];
    snprintf(path, sizeof path, "mkdir -p %s/%s/models--own--tiny/refs %s/%s/models--own--tiny/snapshots/abc123",
             t->path, hub, t->path, hub);
    assert_int_equal(system(path), 0);
    snprintf(path, sizeof path, "%s/models--own--tiny/refs/main", hub);
    temp_write(t, path, commit, strlen(commit));
}

static void hugging_face_cache(void **state)
{
    const TempDir *t = *state;
    char want[256];
    expect_lost("own/tiny", ERR_NOT_FOUND, "/.cache/huggingface/hub");
    static const struct {
        const char *variable, *value, *hub;
    } places[] = { /* each beats the ones before */
        { "HOME", "", ".cache/huggingface/hub" },
        { "XDG_CACHE_HOME", "/xdg", "xdg/huggingface/hub" },
        { "HF_HOME", "/home", "home/hub" },
        { "HF_HUB_CACHE", "/cache", "cache" },
    };
    for (int i = 0; i < COUNT(places); i++) {
        char value[128];
        snprintf(value, sizeof value, "%s%s", t->path, places[i].value);
        setenv(places[i].variable, value, 1);
        make_repo(t, places[i].hub, "abc123\n");
        snprintf(want, sizeof want, "%s/%s/models--own--tiny/snapshots/abc123", t->path, places[i].hub);
        expect_found("own/tiny", want);
    }
    static const char *const commits[] = { "../../../x", "", "a/b", ".", "\n", "a b" };
    for (int i = 0; i < COUNT(commits); i++) {
        make_repo(t, "cache", commits[i]);
        char got[4096];
        assert_int_not_equal(model_find("own/tiny", got, sizeof got, NULL), OK);
    }
    make_repo(t, "cache", "def456");
    expect_lost("own/tiny", ERR_NOT_FOUND, "has no snapshot def456");
    unlink(temp_path(t, "cache/models--own--tiny/refs/main"));
    expect_lost("own/tiny", ERR_NOT_FOUND, "refs/main");
    static const char *const odd[] = { "own/",       "/tiny",     "own/../tiny", "../own",
                                       "own/tiny/x", "o wn/tiny", "own/t\niny",  ".own/tiny" };
    for (int i = 0; i < COUNT(odd); i++) expect_lost(odd[i], ERR_NOT_FOUND, "there is no model");
}

/* --find NAME: prints what model_find says, for beside_the_program. */
static int find_main(const char *name)
{
    char dir[4096];
    if (model_find(name, dir, sizeof dir, NULL) != OK) return 1;
    puts(dir);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--find") == 0) return find_main(argv[2]);
#define IN_DIR(name) cmocka_unit_test_setup_teardown(name, open_dir, close_dir)
    const struct CMUnitTest tests[] = {
        IN_DIR(bundled_models_and_directories),
        IN_DIR(beside_the_program),
        IN_DIR(hugging_face_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
