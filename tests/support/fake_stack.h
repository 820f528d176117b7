/* A stack without a model, for tests of the server: the real tokenizer and chat template of a directory, and an engine that
 * says the prompt back. Linked instead of the engine's library.
 *
 * Token i of choice c is the prompt's token number i + c (round and round, stop ids left out); after as many tokens as the
 * prompt has it emits the first stop id. Requests choose how it goes by their seed:
 *     FAKE_SEED_PACE + ms   one token each that many milliseconds (0 .. 9999)
 *     FAKE_SEED_BROKEN      fails with ERR_NUMERIC after three tokens
 *     FAKE_SEED_LOST        the device is lost from now on */
#pragma once

#include "engine/stack.h"

enum { FAKE_SEED_BROKEN = 666, FAKE_SEED_LOST = 667, FAKE_SEED_PACE = 10000 };

typedef struct FakeOptions {
    int         load_ms;     /* how long stack_open takes */
    const char *load_error;  /* it then fails with this sentence */
    int         max_waiting; /* live requests beyond these are ERR_FULL; 0 = 128 */
    int         context;     /* max_model_len; 0 = 4096 */
} FakeOptions;
extern FakeOptions fake_options;
