/* Every variant of an op against the scalar table, and its speed when asked.
 *
 *     check_linear [--seed N] [--bench [--only NAME]]
 *
 * A check makes inputs and two outputs, runs the reference into one, then every variant into the other with
 * 1, 2 and 3 workers, and compares bits. All memory of a check has guard bytes around it, which are compared too.
 *
 *     Tensor x = check_random(c, FILL_NORMAL, DT_F32, 3, 128), w = ...;
 *     Tensor want = check_output(c, DT_BF16, 3, 128), got = check_output(c, DT_BF16, 3, 128);
 *     c->reference->rms_norm(c->reference_stream, want, x, w.data, 1e-6f);
 *     while (check_next_variant(c)) {
 *         check_clear(got);
 *         CHECK_RUN(c, c->ops->rms_norm(c->stream, got, x, w.data, 1e-6f));
 *         check_bits(c, got, want);
 *     }
 *     check_done(c);                                          frees and looks at the guards
 */
#pragma once

#include "backend/backend.h"

#include <stdbool.h>

typedef enum Fill {
    FILL_ZERO,
    FILL_NORMAL, /* about -3 .. 3 */
    FILL_NASTY,  /* also zeros of both signs, denormals, very small and very large values */
    FILL_BROKEN, /* also infinities and NaN */
} Fill;

typedef struct CheckBlock CheckBlock;
typedef struct CheckDevice CheckDevice;

typedef struct Check {
    uint64_t    seed, random;
    bool        bench;
    const char *only;  /* of what can be timed, where a check has several; NULL = all */
    const char *label; /* shapes of the check at hand; part of every message */
    Backend    *backend[8]; /* [0] scalar, then the variants this machine has */
    int         n_backends, variant, n_workers;

    const Ops *reference;
    Stream    *reference_stream;
    const Ops *ops; /* of the variant whose turn it is */
    Stream    *stream;

    CheckDevice *device; /* $TANDEM_CHECK_DEVICE is the one variant, see check_device.h */
    CheckBlock *blocks;
    int         n_checks, n_failed;
    double      flops, bytes; /* of one run, for --bench */
} Check;

bool check_begin(Check *c, int argc, char **argv); /* false: usage was printed */
int  check_end(Check *c);                          /* prints the count; exit status */

/* Sets the label of what follows. Borrowed until the next call. */
void check_label(Check *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

uint32_t check_u32(Check *c);
int      check_int(Check *c, int min, int max);
float    check_value(Check *c, Fill fill);

void  *check_alloc(Check *c, size_t bytes); /* zeroed, 64-byte aligned, guarded, until check_done() */
void   check_fill(Check *c, Tensor x, Fill fill);
Tensor check_random(Check *c, Fill fill, DType t, int64_t rows, int64_t cols);
Tensor check_random_heads(Check *c, Fill fill, DType t, int64_t rows, int64_t heads, int64_t dim);
Tensor check_output(Check *c, DType t, int64_t rows, int64_t cols);
Tensor check_output_heads(Check *c, DType t, int64_t rows, int64_t heads, int64_t dim);
/* A weight of random bf16-exact or float32 values, by its contract. */
Weight check_weight(Check *c, Fill fill, int64_t n_out, int64_t n_in, Contract contract);
void   check_clear(Tensor x); /* to a pattern no result has */

/* Variant by variant, each with 1, 2 and 3 workers (--bench: all of this machine's, once). The scalar table
 * takes part too, so that its own use of workers is compared. */
bool check_next_variant(Check *c);

/* NaN equals NaN whatever its payload: which of two NaNs comes out is no part of the contract. */
void check_bits(Check *c, Tensor got, Tensor want);
void check_bytes(Check *c, const void *got, const void *want, size_t n); /* states, caches: raw */
void check_that(Check *c, bool is_true, const char *what);
void check_done(Check *c);

/* Runs the call; with --bench repeats it for a quarter of a second and prints the median and the best time. */
#define CHECK_RUN(c, call)                                                                         \
    do {                                                                                           \
        call;                                                                                      \
        if ((c)->bench) {                                                                          \
            check_time_begin(c);                                                                   \
            do {                                                                                   \
                call;                                                                              \
            } while (check_time_more(c));                                                          \
        }                                                                                          \
    } while (0)
void check_work(Check *c, double flops, double bytes); /* of one run; 0 = not worth printing */
void check_time_begin(Check *c);
bool check_time_more(Check *c);
