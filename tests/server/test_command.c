/* What flags become: who drafts when nothing is said, and what is said when that does not fit into memory. */
#include "cli/command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char model_dir[4096];

static StackOptions options_of(Command command, const char *config)
{
    Options o = { .command = command, .model = model_dir, .speculative_config = config };
    StackOptions so;
    Error err = { 0 };
    if (command_stack_options(&o, &so, &err)) fail_msg("%s", err.text);
    return so;
}

static void test_who_drafts_by_default(void **state)
{
    static const Command people[] = { CMD_SERVE, CMD_CHAT, CMD_PLAN }, measuring[] = { CMD_RUN, CMD_BENCH, CMD_VERIFY, CMD_LOGITS };
    for (int i = 0; i < COUNT(people); i++) {
        assert_int_equal(options_of(people[i], NULL).speculation.method, SPEC_AUTO);
        assert_int_equal(options_of(people[i], "{\"method\": \"none\"}").speculation.method, SPEC_NONE);
        assert_int_equal(options_of(people[i], "{\"method\": \"mtp\"}").speculation.method, SPEC_MTP);
    }
    for (int i = 0; i < COUNT(measuring); i++) assert_int_equal(options_of(measuring[i], NULL).speculation.method, SPEC_NONE);
}

static void test_sglang_flags_are_a_word_about_it(void **state)
{
    Options o = { .command = CMD_SERVE, .model = model_dir, .speculative_algorithm = "none" };
    StackOptions so;
    Error err = { 0 };
    assert_int_equal(command_stack_options(&o, &so, &err), OK);
    assert_int_equal(so.speculation.method, SPEC_NONE);
    o.speculative_config = "{}";
    assert_int_equal(command_stack_options(&o, &so, &err), ERR_USAGE);
}

static void test_types_of_the_cache(void **state)
{
    static const char *const names[] = { NULL, "auto", "bfloat16", "bf16", "float32", "fp8", "fp8_e4m3" };
    static const DType types[] = { DT_NONE, DT_NONE, DT_BF16, DT_BF16, DT_F32, DT_F8_E4M3, DT_F8_E4M3 };
    StackOptions so;
    Error err = { 0 };
    Options o = { .command = CMD_SERVE, .model = model_dir };
    for (int i = 0; i < COUNT(names); i++) {
        o.kv_cache_dtype = names[i];
        assert_int_equal(command_stack_options(&o, &so, &err), OK);
        assert_int_equal(so.kv_dtype, types[i]);
        assert_int_equal(stack_model_options(&so).kv_dtype, types[i]);
    }
    o.kv_cache_dtype = "fp8_e5m2";
    assert_int_equal(command_stack_options(&o, &so, &err), ERR_USAGE);
    assert_non_null(strstr(err.text, "--kv-cache-dtype must be one of auto"));
}

/* The least memory with which these options have a plan, to a MB. */
static uint64_t least_bytes(StackOptions so)
{
    uint64_t low = 0, high = (uint64_t)1 << 40;
    while (high - low > 1 << 20) {
        Plan plan;
        so.available_bytes = low + (high - low) / 2;
        if (stack_plan(&so, model_dir, &plan, NULL) == OK) high = so.available_bytes;
        else low = so.available_bytes;
    }
    return high;
}

static void test_a_plan_that_drafts_do_not_fit(void **state)
{
    StackOptions drafted = options_of(CMD_SERVE, NULL), plain = options_of(CMD_SERVE, "{\"method\": \"none\"}");
    Plan plan;
    Error err = { 0 };
    drafted.max_model_len = plain.max_model_len = 64;
    uint64_t least = least_bytes(plain);
    drafted.available_bytes = least;
    Status s = stack_plan(&drafted, model_dir, &plan, &err);
    assert_int_equal(command_explain_plan(&drafted, s, &err), ERR_PLAN);
    assert_non_null(strstr(err.text, "needs"));
    assert_non_null(strstr(err.text, "without drafts (--speculative-config '{\"method\": \"none\"}') it fits"));

    error_clear(&err); /* where nothing helps, nothing is promised */
    drafted.available_bytes = least / 2;
    s = stack_plan(&drafted, model_dir, &plan, &err);
    assert_int_equal(command_explain_plan(&drafted, s, &err), ERR_PLAN);
    assert_null(strstr(err.text, "without drafts"));
    assert_int_equal(command_explain_plan(&drafted, OK, &err), OK);
}

int main(void)
{
    const char *root = getenv("TANDEM_SOURCE_ROOT");
    snprintf(model_dir, sizeof model_dir, "%s/models/nano", root ? root : ".");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_drafts_by_default),
        cmocka_unit_test(test_sglang_flags_are_a_word_about_it),
        cmocka_unit_test(test_types_of_the_cache),
        cmocka_unit_test(test_a_plan_that_drafts_do_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
