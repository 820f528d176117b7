/* Milliseconds of a pass as a function of its rows and of the sequences that share it, learnt from measured passes.
 * Also used for drafting, where rows are nodes a job and sequences are jobs. Times are given: no clock is read here. */
#pragma once

#include <stdint.h>

enum { COST_ROWS = 56, COST_SEQS = 7 }; /* buckets: rows one by one up to 34, then wider; sequences by powers of two */

typedef struct CostCell {
    double  log_ms;  /* beside the drift common to all cells */
    double  weight;  /* measurements behind it; fades while it is not used */
    int64_t last;    /* number of the measurement that touched it */
} CostCell;

typedef struct Cost {
    double  prior_ms, prior_slope; /* before anything was measured: prior_ms * (1 + prior_slope * (rows - 1)) */
    double  drift;                 /* log; load of the machine, length of the contexts */
    int64_t n_measured;
    CostCell cell[COST_SEQS][COST_ROWS];
} Cost;

void cost_init(Cost *c, double prior_ms, double prior_slope);

/* A pass of n_rows rows in all, of n_seqs sequences, took ms. */
void cost_took(Cost *c, int32_t n_rows, int32_t n_seqs, double ms);

/* What it would take. Between measured numbers of rows the guess leans to the cheaper end, so that what was never tried
 * gets tried once. */
double cost_of(const Cost *c, int32_t n_rows, int32_t n_seqs);
int    cost_seqs_bucket(int32_t n_seqs);
