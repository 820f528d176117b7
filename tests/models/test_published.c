/* Tiny checkpoints as public tools publish them (tests/data/published), against the logits that the tools' own decoders lead
 * to: in float32, where every weight is decoded, and in bf16, where kernels read the bytes as they are stored. */
#include "models/model.h"
#include "support/batch_builder.h"
#include "support/golden.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdio.h>
#include <cmocka.h>

enum { MAX_ROWS = 64 };

typedef struct Case {
    const char *name;
    double      stored; /* limit in bf16, measured 0.009 to 0.012; with integer activations up to 0.037 */
} Case;

static const Case cases[] = {
    { "fp8_block", 0.02 },      { "ct_fp8_dynamic", 0.02 }, { "ct_fp8_block", 0.02 },       { "ct_nvfp4", 0.06 },
    { "ct_mxfp4", 0.06 },       { "modelopt_nvfp4", 0.06 },
    { "modelopt_fp8", 0.02 },   { "modelopt_fp8_block", 0.02 }, { "modelopt_fp8_channel", 0.02 }, { "awq", 0.06 },
    { "gptq", 0.06 },           { "gptq_act_order", 0.06 }, { "gptq_v2", 0.06 },          { "ct_int4", 0.06 },
    { "ct_int4_asym", 0.06 },
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

static void assert_ok(Status s, const Error *err)
{
    if (s) fail_msg("%s", err->text);
}

/* How far the logits of one prompt pass are from the tool's. */
static double distance_of(const Golden *g, DType dtype)
{
    Error err = { 0 };
    Backend *backend;
    Model *model;
    BatchBuilder *b;
    assert_ok(backend_open_cpu(&backend, &(BackendOptions){ .n_workers = 2 }, &err), &err);
    ModelOptions options = { .dtype = dtype, .limits = { MAX_ROWS, MAX_ROWS, 1, 1 } };
    assert_ok(model_open(&model, g->model_dir, backend, &options, &err), &err);
    BuilderOptions sizes = { .n_slots = 1, .max_tokens = MAX_ROWS, .max_rows = MAX_ROWS, .max_outputs = MAX_ROWS };
    assert_ok(builder_open(&b, model, &sizes, &err), &err);
    builder_begin(b);
    builder_want(b, builder_line(b, 0, g->ids, g->n), g->n);
    builder_forward(b);
    double found = distance(b->logits, g->logits, (size_t)g->n * (size_t)g->vocab);
    builder_close(b);
    model_close(model);
    backend_close(backend);
    return found;
}

static void check_all(DType dtype)
{
    for (int i = 0; i < N_CASES; i++) {
        Golden g;
        Error err = { 0 };
        char below[64];
        snprintf(below, sizeof below, "published/%s", cases[i].name);
        assert_ok(golden_open(&g, below, &err), &err);
        double found = distance_of(&g, dtype), limit = dtype == DT_F32 ? 3e-6 : cases[i].stored;
        print_message("%-22s %.2e\n", cases[i].name, found);
        if (!(found <= limit)) fail_msg("%s: logits are %.3g of the largest away, at most %.3g is allowed", cases[i].name, found, limit);
        golden_free(&g);
    }
}

static void test_decoded(void **state)
{
    check_all(DT_F32);
}

static void test_as_stored(void **state)
{
    check_all(DT_BF16);
}

static int enter(void **state)
{
    numeric_mode_enter();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_decoded), cmocka_unit_test(test_as_stored) };
    return cmocka_run_group_tests(tests, enter, NULL);
}
