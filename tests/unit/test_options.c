/* Flags, environment and .env: who wins, what is refused, with which words. */
#include "cli/options.h"
#include "support/temp_dir.h"

#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { MAX_WORDS = 16 };

typedef struct Parsed {
    Options o;
    Status  status;
    Error   err;
    bool    done;
    char    out[8192], notes[1024];
} Parsed;

/* words: separated by blanks; env: entries separated by '|'. */
static void parse(Parsed *p, const char *words, const char *env)
{
    static char text[1024], env_text[1024];
    char *argv[MAX_WORDS + 1] = { "tandem" }, *entries[MAX_WORDS + 1] = { NULL };
    int argc = 1, n = 0;
    snprintf(text, sizeof text, "%s", words);
    snprintf(env_text, sizeof env_text, "%s", env);
    for (char *rest = text, *w; (w = strsep(&rest, " ")) && argc < MAX_WORDS;)
        if (*w) argv[argc++] = w;
    for (char *rest = env_text, *w; (w = strsep(&rest, "|")) && n < MAX_WORDS;)
        if (*w) entries[n++] = w;
    *p = (Parsed){ .status = OK };
    FILE *out = fmemopen(p->out, sizeof p->out, "w"), *notes = fmemopen(p->notes, sizeof p->notes, "w");
    p->status = options_parse(&p->o, argc, argv, entries, out, notes, &p->done, &p->err);
    fclose(out);
    fclose(notes);
}

static int enter_dir(void **state)
{
    static TempDir dir;
    temp_dir_open(&dir);
    *state = &dir;
    return chdir(dir.path);
}
static int leave_dir(void **state)
{
    int rc = chdir("/");
    temp_dir_close((TempDir *)*state);
    return rc;
}
static void write_env(const char *text)
{
    Error err = { 0 };
    assert_int_equal(file_write_atomic(".env", text, strlen(text), &err), OK);
}

static void test_precedence(void **state)
{
    Parsed p;
    write_env("# comment\nexport TANDEM_PORT=1001\nTANDEM_HOST=\"1.2.3.4\"\nTANDEM_SEED=7\nOTHER=1\n");
    parse(&p, "serve nano", "");
    assert_int_equal(p.status, OK);
    assert_int_equal(p.o.port, 1001);
    assert_string_equal(p.o.host, "1.2.3.4");
    options_free(&p.o);
    parse(&p, "serve nano", "TANDEM_PORT=1002");
    assert_int_equal(p.o.port, 1002);
    assert_int_equal(p.o.seed, 7);
    options_free(&p.o);
    parse(&p, "serve nano --port 1003 --port 1004", "TANDEM_PORT=1002");
    assert_int_equal(p.o.port, 1004); /* the last counts */
    options_free(&p.o);
    parse(&p, "serve nano --port 1003", "TANDEM_PORT=1002|EXTRA_ARGS=--port 1005 --host ::1");
    assert_int_equal(p.o.port, 1005);
    options_free(&p.o);
}

static void test_keys_of_the_strongest_place(void **state)
{
    Parsed p;
    write_env("TANDEM_API_KEY=from-file\n");
    parse(&p, "serve nano", "");
    assert_int_equal(p.o.n_api_keys, 1);
    assert_string_equal(p.o.api_keys[0], "from-file");
    options_free(&p.o);
    parse(&p, "serve nano", "TANDEM_API_KEY=from-env");
    assert_int_equal(p.o.n_api_keys, 1);
    assert_string_equal(p.o.api_keys[0], "from-env");
    options_free(&p.o);
    parse(&p, "serve nano --api-key a --api-key b", "TANDEM_API_KEY=from-env");
    assert_int_equal(p.o.n_api_keys, 2);
    assert_string_equal(p.o.api_keys[1], "b");
    options_free(&p.o);
}

static void test_aliases_and_forms(void **state)
{
    Parsed p;
    parse(&p, "serve nano --context-length=512 --tp-size 1 --mem-fraction-static 0.5", "");
    assert_int_equal(p.status, OK);
    assert_int_equal(p.o.max_model_len, 512);
    assert_true(p.o.memory_utilization == 0.5);
    options_free(&p.o);
    parse(&p, "run nano -n5 -p -x", "");
    assert_int_equal(p.o.n_tokens, 5);
    assert_string_equal(p.o.prompt, "-x");
    options_free(&p.o);
    parse(&p, "serve nano --enforce-eager", "");
    assert_int_equal(p.status, OK);
    assert_non_null(strstr(p.notes, "--enforce-eager is ignored"));
    options_free(&p.o);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *words, *says;
    } cases[] = {
        { "run nano --temprature 1", "did you mean --temperature?" },
        { "serv nano", "did you mean serve?" },
        { "xyzzyx nano", "there is no command" },
        { "run nano --temperature 7", "--temperature must be a number in [0, 2], got \"7\"" },
        { "run nano -n two", "must be a whole number" },
        { "serve nano --port", "--port needs a value" },
        { "run", "which MODEL?" },
        { "run nano nano-plain", "one MODEL is enough" },
        { "run nano --port 1", "there is no flag --port" },
        { "serve nano --no-auth=maybe", "takes no value" },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        Parsed p;
        parse(&p, cases[i].words, "");
        assert_int_equal(p.status, ERR_USAGE);
        if (!strstr(p.err.text, cases[i].says)) fail_msg("%s: %s", cases[i].words, p.err.text);
        options_free(&p.o);
    }
}

static void test_bad_settings_name_their_place(void **state)
{
    Parsed p;
    parse(&p, "serve nano", "TANDEM_PORT=many");
    assert_int_equal(p.status, ERR_USAGE);
    assert_non_null(strstr(p.err.text, "TANDEM_PORT"));
    options_free(&p.o);
    write_env("TANDEM_PORT=many\n");
    parse(&p, "serve nano", "");
    assert_non_null(strstr(p.err.text, ".env"));
    options_free(&p.o);
}

static void test_help(void **state)
{
    Parsed p;
    parse(&p, "--help", "");
    assert_true(p.done && p.status == OK);
    assert_non_null(strstr(p.out, "tandem serve MODEL"));
    parse(&p, "serve --help", "");
    assert_true(p.done && p.status == OK);
    assert_non_null(strstr(p.out, "--max-model-len N"));
    assert_null(strstr(p.out, "--prompts"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_precedence, enter_dir, leave_dir),
        cmocka_unit_test_setup_teardown(test_keys_of_the_strongest_place, enter_dir, leave_dir),
        cmocka_unit_test_setup_teardown(test_aliases_and_forms, enter_dir, leave_dir),
        cmocka_unit_test_setup_teardown(test_refusals, enter_dir, leave_dir),
        cmocka_unit_test_setup_teardown(test_bad_settings_name_their_place, enter_dir, leave_dir),
        cmocka_unit_test_setup_teardown(test_help, enter_dir, leave_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
