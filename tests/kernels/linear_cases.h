/* What check_linear, check_blocks and check_fp8 do alike with weights of any contract. */
#pragma once

#include "check.h"

/* Every variant has the reference's bits for rows x [n, n_in]. The caller has set the label and ends the check. */
void linear_same_bits(Check *c, const Weight *w, Tensor x);

/* Rows have the same bits alone and among others, and a matrix the same beside a dense one in one call. */
void linear_in_company(Check *c, const Weight *w);

/* Prints the best read stream, 512 MB of memory long. */
void linear_bench_reading(Check *c);

/* Times matrices of one shape, together far larger than the caches, used in turn, for each number of rows. Variants but the last
 * are timed up to `most_of_others` rows. what: the format, for the label. */
typedef struct LinearBench {
    const char *what;
    Contract    contract;
    int64_t     n_out, n_in;
    const int  *rows;
    int         n_rows, most_of_others;
} LinearBench;
void linear_bench(Check *c, const LinearBench *b);
