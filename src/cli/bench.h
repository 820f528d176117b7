/* tandem bench: what its tables share. */
#pragma once

#include "cli/command.h"

enum { BENCH_MAX_RUNS = 1000 };

/* Figures of one thing, one a run; the median is what counts. */
typedef struct Series {
    double value[BENCH_MAX_RUNS];
    int    n;
} Series;
void   series_add(Series *s, double value);
double series_median(Series *s); /* sorts; 0 when empty */

/* The model's shape beside the machine's limits (weights may be dummies). */
Status bench_shape(const Options *o, const StackOptions *stack, const char *dir, Error *err);

/* Plain and every drafter by content class and concurrency, with real weights. */
Status bench_drafts(const Options *o, const StackOptions *stack, Error *err);

/* Drafts whose acceptance is given by depth, with a drafter that really runs: for shapes without weights. */
Status bench_synthetic(const Options *o, const StackOptions *stack, const char *dir, Error *err);
