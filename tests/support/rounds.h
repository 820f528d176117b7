/* How many tokens each round of a reference committed (lists "dflash_accept", "ddtree_accept", "mtp3_accept" of
 * nano_traces.json and nano_reference.json). */
#pragma once

#include "support/golden.h"

enum { ROUNDS_MAX = 128 };

typedef struct Rounds {
    int32_t n, gained[ROUNDS_MAX];
} Rounds;

typedef struct RoundsList {
    int32_t n;
    Rounds  item[TRACE_MAX]; /* as the traces */
} RoundsList;

/* method: "dflash", "mtp3", or the budget of a tree: "15", "32", "64". */
Status rounds_open(RoundsList **out, const char *file, const char *key, const char *method, Error *err);
void   rounds_free(RoundsList *r);
