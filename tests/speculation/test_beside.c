/* What a model brings to draft with, whatever its container: the MTP module in its file, the DFlash drafter beside it. */
#include "speculation/open.h"
#include "support/gguf_from_model.h"
#include "support/temp_dir.h"

#include "models/config.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>

enum { ROWS = 64 };

/* The drafters that "auto" finds for a model. */
static SpeculationShape found_for(const char *model)
{
    ModelConfig config;
    ModelInfo info;
    Error err = { 0 };
    SpeculationShape shape;
    const SpeculativeConfig wanted = { .method = SPEC_AUTO };
    const ModelOptions mo = { .dtype = DT_BF16 };
    if (model_info(model, &mo, &config, &info, &err)) fail_msg("%s", err.text);
    const SpeculationOptions so = { .config = &wanted, .model_dir = model, .max_model_len = 512, .limits = { ROWS, ROWS, 1, ROWS } };
    if (speculation_decide(&so, &info, &shape, &err)) fail_msg("%s", err.text);
    return shape;
}

static void directory_and_gguf_bring_the_same(void **state)
{
    Buf file;
    TempDir t;
    temp_dir_open(&t);
    gguf_from_model(&file, source_tree("models/nano"), QUANT_NONE);
    assert_false(file.failed);
    const char *gguf = temp_write(&t, "nano.gguf", file.data, file.len);
    buf_free(&file);

    const SpeculationShape dir = found_for(source_tree("models/nano")), alone = found_for(gguf);
    assert_true(dir.has_mtp && dir.dflash);
    assert_true(alone.has_mtp && !alone.dflash);
    assert_int_equal(symlink(source_tree("models/nano-DFlash"), temp_path(&t, "nano-DFlash")), 0);
    assert_int_equal(found_for(gguf).dflash, dir.dflash);
    unlink(temp_path(&t, "nano-DFlash"));
    temp_dir_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(directory_and_gguf_bring_the_same) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
