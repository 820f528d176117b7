/* The reference data of tests/data/golden (README.md there) in plain arrays, and how far a result is from it. */
#pragma once

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

enum { GOLDEN_MAX_STATES = 16 };

/* One random checkpoint's outputs. greedy and tail may be absent (n_greedy, n_states 0). */
typedef struct Golden {
    char     model_dir[4096];
    int32_t  n, vocab, n_greedy, hidden;
    int32_t *ids, *greedy;
    float   *logits;                      /* [n][vocab] */
    int32_t  n_states, n_tail;            /* hidden states 0 .. n_states - 1, last n_tail rows of each */
    float   *tail[GOLDEN_MAX_STATES];     /* [n_tail][hidden] */
} Golden;

/* name: a folder below tests/data, "golden/llama". */
Status golden_open(Golden *g, const char *name, Error *err);
void   golden_free(Golden *g);

/* What the trained models wrote: nano_traces.json or nano_reference.json. */
enum { TRACE_MAX_TOKENS = 256, TRACE_MAX = 64, TRACE_HEAD = 8 };
typedef struct Trace {
    int32_t n_prompt, n_greedy;
    int32_t prompt[TRACE_MAX_TOKENS], greedy[TRACE_MAX_TOKENS];
    int32_t n_mtp, mtp[TRACE_MAX_TOKENS]; /* tokens each round of 3 MTP drafts commits; none for "plain" */
    int32_t n_head;            /* 0 where the file has none */
    float   head[TRACE_HEAD];  /* first logits of the row of the last token */
} Trace;
typedef struct Traces {
    int32_t n;
    Trace   item[TRACE_MAX];
} Traces;

/* key: "plain" or "hybrid". */
Status traces_open(Traces **out, const char *file, const char *key, Error *err);
void   traces_free(Traces *t);

/* Path below the source tree (TANDEM_SOURCE_ROOT). */
Status source_path(char *out, size_t size, const char *below, Error *err);

/* Largest |got - want| over the largest |want|; infinite where got is not a number. */
double distance(const float *got, const float *want, size_t n);
