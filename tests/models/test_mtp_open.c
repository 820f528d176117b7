/* Opening MTP drafts: which targets and checkpoints are refused, with which sentence, and what opening takes. */
#include "speculation/draft_mtp.h"
#include "support/checkpoint.h"
#include "support/golden.h"
#include "support/starve.h"

#include "base/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

enum { N_SLOTS = 2, MAX_ROWS = 32 };

static Backend *backend;
static char nano_dir[4096];

static void assert_ok(Status s, const Error *err)
{
    if (s) fail_msg("%s", err->text);
}

static Model *open_at(const char *dir, DType dtype)
{
    Error err = { 0 };
    Model *model = NULL;
    ModelOptions options = { .dtype = dtype, .limits = { MAX_ROWS, MAX_ROWS, N_SLOTS, MAX_ROWS } };
    assert_ok(model_open(&model, dir, backend, &options, &err), &err);
    return model;
}

static Model *open_below(const char *below, DType dtype)
{
    Error err = { 0 };
    char dir[4096];
    assert_ok(source_path(dir, sizeof dir, below, &err), &err);
    return open_at(dir, dtype);
}

static MtpOptions mtp_options(const Model *model, const char *dir)
{
    return (MtpOptions){ .target = model, .dir = dir, .limits = { MAX_ROWS, MAX_ROWS, N_SLOTS, MAX_ROWS } };
}

static void expect_refusal(const Model *model, const char *dir, Status status, const char *text)
{
    Error err = { 0 };
    Drafter *drafter = NULL;
    MtpOptions options = mtp_options(model, dir);
    size_t bytes = backend_bytes(backend);
    assert_int_equal(drafter_open_mtp(&drafter, &options, &err), status);
    assert_null(drafter);
    if (!strstr(err.text, text)) fail_msg("\"%s\" does not say \"%s\"", err.text, text);
    assert_int_equal(backend_bytes(backend), bytes);
}

static void test_targets(void **state)
{
    Model *plain = open_below("models/nano-plain", DT_BF16), *random = open_below("tests/data/golden/qwen3_5", DT_BF16);
    Model *nano = open_at(nano_dir, DT_BF16);
    expect_refusal(plain, nano_dir, ERR_UNSUPPORTED, "qwen3");
    expect_refusal(random, nano_dir, ERR_UNSUPPORTED, "mtp_num_hidden_layers");
    expect_refusal(nano, "/nonexistent", ERR_NOT_FOUND, "/nonexistent");
    model_close(nano);
    model_close(random);
    model_close(plain);
}

/* A drafter fits the model that it was opened with, and none that has other bits. */
static void test_fits(void **state)
{
    Error err = { 0 };
    Drafter *drafter = NULL;
    Model *nano = open_at(nano_dir, DT_BF16), *wide = open_at(nano_dir, DT_F32);
    Model *plain = open_below("models/nano-plain", DT_BF16);
    MtpOptions options = mtp_options(nano, nano_dir);
    assert_ok(drafter_open_mtp(&drafter, &options, &err), &err);
    assert_int_equal(drafter->fits(drafter, &nano->info, &err), OK);
    assert_int_equal(drafter->fits(drafter, &plain->info, &err), ERR_UNSUPPORTED);
    error_clear(&err);
    assert_int_equal(drafter->fits(drafter, &wide->info, &err), ERR_INPUT);
    drafter_close(drafter);
    model_close(plain);
    model_close(wide);
    model_close(nano);
}

static void test_options(void **state)
{
    Model *nano = open_at(nano_dir, DT_BF16);
    MtpOptions wrong[4];
    for (int i = 0; i < COUNT(wrong); i++) wrong[i] = mtp_options(nano, nano_dir);
    wrong[0].n_steps = MAX_DEPTH;
    wrong[1].n_steps = -1;
    wrong[2].max_pending = -1;
    wrong[3].limits.max_rows = N_SLOTS - 1;
    for (int i = 0; i < COUNT(wrong); i++) {
        Error err = { 0 };
        Drafter *drafter = NULL;
        assert_int_equal(drafter_open_mtp(&drafter, &wrong[i], &err), ERR_INPUT);
        assert_null(drafter);
    }
    model_close(nano);
}

/* nano with one thing wrong in its MTP tensors. */
typedef struct Fault {
    void      (*make)(TestCheckpoint *c);
    Status      status;
    const char *text;
} Fault;

static void replace(TestCheckpoint *c, const char *name, DType dtype, int64_t rows, int64_t cols)
{
    test_checkpoint_remove(c, name);
    test_checkpoint_add(c, name, dtype, 2, (int64_t[]){ rows, cols });
}

static void lose_norm(TestCheckpoint *c)
{
    test_checkpoint_remove(c, "mtp.norm.weight");
}

static void turn_fc(TestCheckpoint *c)
{
    replace(c, "mtp.fc.weight", DT_BF16, 512, 256);
}

static void type_fc(TestCheckpoint *c)
{
    replace(c, "mtp.fc.weight", DT_I64, 256, 512);
}

static void add_layer(TestCheckpoint *c)
{
    test_checkpoint_add(c, "mtp.layers.1.input_layernorm.weight", DT_BF16, 1, (int64_t[]){ 256 });
}

static void spoil_norm(TestCheckpoint *c)
{
    ((uint16_t *)test_checkpoint_find(c, "mtp.norm.weight")->data)[3] = 0x7fc0;
}

/* The target has no use for these tensors and opens; the drafter says what is wrong. */
static void test_hostile(void **state)
{
    static const Fault faults[] = {
        { lose_norm, ERR_NOT_FOUND, "tensor mtp.norm.weight is missing" },
        { turn_fc, ERR_INPUT, "tensor mtp.fc.weight has shape [512, 256], but config.json means [256, 512]" },
        { type_fc, ERR_UNSUPPORTED, "tensor mtp.fc.weight has type I64" },
        { add_layer, ERR_UNSUPPORTED, "tensor mtp.layers.1.input_layernorm.weight is not part of" },
        { spoil_norm, ERR_INPUT, "tensor mtp.norm.weight holds nan at index 3" },
    };
    for (int i = 0; i < COUNT(faults); i++) {
        Error err = { 0 };
        TestCheckpoint *c = NULL;
        assert_ok(test_checkpoint_open(&c, "models/nano", &err), &err);
        faults[i].make(c);
        assert_ok(test_checkpoint_write(c, 1 + i % 2, &err), &err);
        Model *model = open_at(c->dir, DT_BF16);
        expect_refusal(model, c->dir, faults[i].status, faults[i].text);
        model_close(model);
        test_checkpoint_close(c);
    }
}

/* The plan's figures are what opening takes. */
static void test_needs(void **state)
{
    Error err = { 0 };
    Drafter *drafter = NULL;
    CacheGroup groups[MAX_GROUPS];
    MtpNeeds needs;
    Model *model = open_at(nano_dir, DT_BF16);
    MtpOptions options = mtp_options(model, nano_dir);
    assert_ok(drafter_mtp_needs(&options, &model->info, &needs, &err), &err);
    size_t before = backend_bytes(backend);
    assert_ok(drafter_open_mtp(&drafter, &options, &err), &err);
    size_t taken = backend_bytes(backend) - before;
    assert_in_range(needs.weight_bytes + needs.scratch_bytes, taken, taken + 200000); /* choosing, arrays of rows */
    assert_int_equal(drafter->groups(drafter, groups), 1);
    assert_string_equal(groups[0].name, needs.group.name);
    assert_int_equal(groups[0].entry_bytes, needs.group.entry_bytes);
    assert_int_equal(groups[0].spare, needs.group.spare);
    drafter_close(drafter);
    assert_int_equal(backend_bytes(backend), before);
    model_close(model);
}

static void test_starved(void **state)
{
    Error err = { 0 };
    Drafter *drafter;
    Status status;
    Model *model = open_at(nano_dir, DT_BF16);
    MtpOptions options = mtp_options(model, nano_dir);
    size_t bytes = backend_bytes(backend);
    STARVE(status, status = drafter_open_mtp(&drafter, &options, &err), drafter_close(drafter));
    assert_int_equal(backend_bytes(backend), bytes);
    model_close(model);
}

static void test_dummy(void **state)
{
    Error err = { 0 };
    Drafter *drafter = NULL;
    Model *model = open_at(nano_dir, DT_BF16);
    MtpOptions options = mtp_options(model, "/nonexistent");
    options.load_format = LOAD_DUMMY;
    assert_ok(drafter_open_mtp(&drafter, &options, &err), &err);
    drafter_close(drafter);
    model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_targets), cmocka_unit_test(test_fits),    cmocka_unit_test(test_options),
        cmocka_unit_test(test_hostile), cmocka_unit_test(test_needs),   cmocka_unit_test(test_starved),
        cmocka_unit_test(test_dummy),
    };
    Error err = { 0 };
    numeric_mode_enter();
    Status s = source_path(nano_dir, sizeof nano_dir, "models/nano", &err);
    if (!s) s = backend_open_cpu(&backend, &(BackendOptions){ .n_workers = 2 }, &err);
    if (s) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    int failed = cmocka_run_group_tests_name("mtp open", tests, NULL, NULL);
    backend_close(backend);
    return failed;
}
