/* What every fuzz target has: one function that takes any bytes, returns 0, and leaves the process as it was.
 *
 * With clang the function is linked with libFuzzer, which looks for new lines (`make fuzz`); without, with fuzz_main.c, which
 * mutates the seeds at random (`make check`). A target fails by crashing: CHECK, a sanitizer, a hang. */
#pragma once

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* A file with these bytes, over what was in it, in a directory of this process that goes when the process ends. Its path
 * stays good for ever; name: a plain one, of few. */
const char *scratch_file(const char *name, const void *data, size_t n);
const char *scratch_dir(void);
