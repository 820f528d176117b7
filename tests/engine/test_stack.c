/* The stack on the bundled models: what it finds out, how it answers, what it leaves behind when it fails. */
#include "base/file.h"
#include "base/memory.h"
#include "engine/stack.h"
#include "support/fake_drafter.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char dir[4096];

static StackOptions options_of(const char *model)
{
    snprintf(dir, sizeof dir, "%s/models/%s", getenv("TANDEM_SOURCE_ROOT"), model);
    return (StackOptions){ .model = dir, .backend = { .n_workers = 1 } };
}

static void open_stack(Stack *s, const StackOptions *o)
{
    Error err = { 0 };
    if (stack_open(s, o, NULL, &err)) fail_msg("%s", err.text);
}

static void test_what_it_finds(void **state)
{
    Stack s;
    SampleParams p;
    StackOptions o = options_of("nano/");
    open_stack(&s, &o);
    assert_string_equal(s.served_name, "nano");
    assert_int_equal(s.max_model_len, 4096);
    assert_int_equal(strlen(s.fingerprint), 19);
    assert_memory_equal(s.fingerprint, "td-", 3);
    assert_non_null(s.chat_template);
    assert_true(s.n_stop_ids >= 2);
    for (int32_t i = 0; i < s.n_stop_ids; i++)
        for (int32_t j = 0; j < i; j++) assert_int_not_equal(s.stop_ids[i], s.stop_ids[j]);
    const char *eos = tokenizer_special(s.tokenizer, "eos_token");
    bool has_eos = false;
    for (int32_t i = 0; i < s.n_stop_ids; i++) has_eos |= s.stop_ids[i] == tokenizer_find(s.tokenizer, eos);
    assert_true(has_eos);
    assert_int_equal(engine_options(s.engine)->n_valid, tokenizer_vocab_size(s.tokenizer));
    assert_int_equal(engine_options(s.engine)->max_num_seqs, 8);
    stack_default_params(&s, &p);
    assert_float_equal(p.temperature, 1, 0); /* its generation_config says nothing */
    assert_int_equal(sample_params_check(&p, s.config.vocab_size, NULL), OK);
    stack_close(&s);
}

static void test_default_params(void **state)
{
    SampleParams p;
    Stack s = { 0 };
    s.config = (ModelConfig){
        .has_do_sample = true, .do_sample = true, .has_top_p = true, .top_p = 0.95f, .has_top_k = true, .top_k = 20
    };
    stack_default_params(&s, &p);
    assert_float_equal(p.temperature, 1, 0);
    assert_float_equal(p.top_p, 0.95f, 0);
    assert_int_equal(p.top_k, 20);
    s.config.has_temperature = true;
    s.config.temperature = 0.6f;
    stack_default_params(&s, &p);
    assert_float_equal(p.temperature, 0.6f, 0);
    s.config.do_sample = false;
    stack_default_params(&s, &p);
    assert_float_equal(p.temperature, 0, 0);
}

/* Whatever a model's files say, a request that leaves it at that is no bad request. */
static void test_default_params_are_in_range(void **state)
{
    static const struct {
        float temperature, top_p, min_p, repetition_penalty;
    } given[] = { { 100, 0, 0, 1 }, { -1, 1.5f, 0, 1 }, { 1, 1, 2, 0 }, { 2.1f, -3, -1, 1e6f } };
    for (int i = 0; i < COUNT(given); i++) {
        SampleParams p;
        Stack s = { .config = { .vocab_size = 10, .has_temperature = true, .temperature = given[i].temperature, .has_top_p = true,
                                .top_p = given[i].top_p, .has_min_p = true, .min_p = given[i].min_p, .has_repetition_penalty = true,
                                .repetition_penalty = given[i].repetition_penalty } };
        stack_default_params(&s, &p);
        assert_int_equal(sample_params_check(&p, 10, NULL), OK);
    }
}

static void test_answers_from_its_thread(void **state)
{
    Stack s;
    StackProgress progress = { 0 };
    Error err = { 0 };
    StackOptions o = options_of("nano-plain");
    o.start_thread = true;
    o.max_model_len = 200;
    if (stack_open(&s, &o, &progress, &err)) fail_msg("%s", err.text);
    assert_string_equal(atomic_load(&progress.stage), "ready");
    assert_true(progress.total_bytes > 1000000 && progress.done_bytes == progress.total_bytes);
    int32_t prompt[] = { 300, 301, 302 };
    GenerateRequest g = { .id = 1,
                          .prompt = prompt,
                          .n_prompt = 3,
                          .n_choices = 1,
                          .max_tokens = 20,
                          .ignore_eos = true,
                          .params = { .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1 } };
    Request *r;
    assert_int_equal(engine_submit(s.engine, &g, NULL, NULL, &r, &err), OK);
    while (!request_done(r)) request_wait(r, -1);
    assert_int_equal(request_count(r, 0), 20);
    request_close(r);
    stack_close(&s);
    stack_close(&s); /* harmless */
}

static void expect_failure(const StackOptions *o, Status status)
{
    Stack s;
    Error err = { 0 };
    assert_int_equal(stack_open(&s, o, NULL, &err), status);
    assert_true(strlen(err.text) > 10);
    assert_null(s.engine);
    assert_null(s.tokenizer);
}

static void test_failures(void **state)
{
    StackOptions o = options_of("nano");
    o.model = "/no/such/model";
    expect_failure(&o, ERR_NOT_FOUND);
    o = options_of("nano");
    o.max_model_len = 100000;
    expect_failure(&o, ERR_USAGE);
    o = options_of("nano");
    o.memory_fraction = 1e-6;
    expect_failure(&o, ERR_PLAN);
    o = options_of("nano");
    o.chat_template = "/no/such/template.jinja";
    expect_failure(&o, ERR_NOT_FOUND);
    o = options_of("nano");
    o.max_num_batched_tokens = 100000;
    expect_failure(&o, ERR_USAGE);
}

/* A drafter that does not fit stays the caller's. */
static void test_drafter_stays_with_the_caller(void **state)
{
    Drafter *d;
    FakeDrafterOptions fo = { .model = { .vocab_size = 64 } };
    assert_int_equal(fake_drafter_open(&d, &fo, NULL), OK);
    StackOptions o = options_of("nano");
    o.drafter = d;
    o.draft_nodes = 4;
    o.draft_depth = 3;
    expect_failure(&o, ERR_INPUT);
    drafter_close(d);
}

/* Allocations fail in turn: a sentence each time, nothing left (AddressSanitizer looks). Steps grow to keep it short. */
static void test_without_memory(void **state)
{
    StackOptions o = options_of("nano-plain");
    int n_failures = 0;
    for (int64_t nth = 1;; nth += 1 + nth / 8) {
        Stack s;
        Error err = { 0 };
        mem_fail_at(nth);
        Status status = stack_open(&s, &o, NULL, &err);
        mem_fail_at(0);
        stack_close(&s);
        assert_true(nth < 1000000);
        if (!status) {
            if (n_failures > 5) break;
            continue; /* a tokenizer cache that could not be used is no failure */
        }
        assert_true(strlen(err.text) > 10);
        n_failures++;
    }
    assert_true(n_failures > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_it_finds),
        cmocka_unit_test(test_default_params),
        cmocka_unit_test(test_default_params_are_in_range),
        cmocka_unit_test(test_answers_from_its_thread),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_drafter_stays_with_the_caller),
        cmocka_unit_test(test_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
