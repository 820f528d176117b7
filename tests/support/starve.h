/* Fails the 1st, 2nd, 3rd ... allocation of a call in turn:
 *
 *     STARVE(status, status = thing_open(&t, &err), thing_close(t));
 *
 * The call is repeated until it succeeds; every failure before that must be ERR_NOMEM with a sentence. `after` runs each
 * time. Whether anything leaks is for the sanitizer build to say. Needs an Error err in scope. */
#pragma once

#include "base/memory.h"

#define STARVE(status, call, after)                                                                    \
    do {                                                                                               \
        int nth_ = 0;                                                                                  \
        do {                                                                                           \
            assert_true(nth_ < 100000);                                                                \
            error_clear(&err);                                                                         \
            mem_fail_at(++nth_);                                                                       \
            call;                                                                                      \
            mem_fail_at(0);                                                                            \
            if ((status) != OK) {                                                                      \
                assert_int_equal(status, ERR_NOMEM);                                                   \
                assert_int_equal(err.status, ERR_NOMEM);                                               \
                assert_string_not_equal(err.text, "");                                                 \
            }                                                                                          \
            after;                                                                                     \
        } while ((status) != OK);                                                                      \
        assert_true(nth_ > 1); /* something was starved */                                             \
    } while (0)
