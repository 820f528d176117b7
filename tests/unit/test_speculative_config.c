/* --speculative-config and SGLang's flags: the same thing said in several ways, and what is refused. */
#include "speculation/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static SpeculativeConfig good(const char *json)
{
    SpeculativeConfig c;
    Error err = { 0 };
    if (speculative_config_parse(&c, json, strlen(json), &err)) fail_msg("%s: %s", json, err.text);
    return c;
}

static void test_keys_in_any_order(void **state)
{
    SpeculativeConfig c = good("{\"num_speculative_tokens\": 5, \"model\": \"x/y-DFlash\", \"method\": \"dflash\"}");
    assert_int_equal(c.method, SPEC_DFLASH);
    assert_int_equal(c.num_speculative_tokens, 5);
    assert_string_equal(c.model, "x/y-DFlash");
    c = good("{\"tree\": \"spine\", \"tree_budget\": 22, \"method\": \"ddtree\", \"coupled\": false}");
    assert_true(c.method == SPEC_DDTREE && c.spine && c.tree_budget == 22 && c.is_uncoupled);
    assert_int_equal(good("{}").method, SPEC_AUTO);
    assert_int_equal(good("{\"method\": \"nextn\"}").method, SPEC_MTP);
    assert_int_equal(good("{\"method\": \"none\"}").method, SPEC_NONE);
    assert_int_equal(good("{\"method\": \"dflash\", \"model\": \"some/Model-DDTree\"}").method, SPEC_DDTREE);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *json, *says;
    } cases[] = {
        { "{\"method\": \"eagle9\"}", "method must be" },
        { "{\"methd\": \"mtp\"}", "no key \"methd\"" },
        { "{\"num_speculative_tokens\": 0}", "num_speculative_tokens must be in [1, 31]" },
        { "{\"num_speculative_tokens\": 32}", "num_speculative_tokens" },
        { "{\"tree_budget\": 0}", "tree_budget" },
        { "{\"tree\": \"oak\"}", "best-first or spine" },
        { "{\"tree\": \"spine\", \"method\": \"mtp\"}", "goes with method ddtree" },
        { "[]", "must be a JSON object" },
        { "{\"method\": \"mtp\"", "--speculative-config" },
        { "{\"method\": 3}", "method" },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        SpeculativeConfig c;
        Error err = { 0 };
        assert_int_equal(speculative_config_parse(&c, cases[i].json, strlen(cases[i].json), &err), ERR_USAGE);
        if (!strstr(err.text, cases[i].says)) fail_msg("%s: %s", cases[i].json, err.text);
    }
}

static void test_sglang(void **state)
{
    SpeculativeConfig c;
    Error err = { 0 };
    SglangSpeculation nextn = { .algorithm = "NEXTN", .num_steps = 3, .eagle_topk = 1, .num_draft_tokens = 4 };
    assert_int_equal(speculative_config_sglang(&c, &nextn, &err), OK);
    assert_true(c.method == SPEC_MTP && c.num_speculative_tokens == 3);
    SglangSpeculation tree = { .algorithm = "DFLASH", .draft_model_path = "a/b-DDTree", .num_draft_tokens = 23 };
    assert_int_equal(speculative_config_sglang(&c, &tree, &err), OK);
    assert_true(c.method == SPEC_DDTREE && c.tree_budget == 22);
    SglangSpeculation wide = { .algorithm = "NEXTN", .eagle_topk = 4 };
    assert_int_equal(speculative_config_sglang(&c, &wide, &err), ERR_UNSUPPORTED);
    SglangSpeculation many = { .algorithm = "NGRAM", .num_draft_tokens = 64 };
    err = (Error){ 0 };
    assert_int_equal(speculative_config_sglang(&c, &many, &err), ERR_USAGE);
    assert_non_null(strstr(err.text, "at most 31"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys_in_any_order),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_sglang),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
