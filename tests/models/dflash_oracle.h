/* A DFlash drafter in double, from docs/spec/speculation.md section 1 in the plainest loops: nothing is cached,
 * nothing is shared, masks are looked up pair by pair. Slow; for checkpoints of a few hundred kilobytes. */
#pragma once

#include "backend/backend.h"
#include "support/checkpoint.h"

enum { ORACLE_MAX_LAYERS = 4 };

typedef struct OracleForm {
    int32_t width[ORACLE_MAX_LAYERS];  /* 0 = full attention */
    int32_t causal[ORACLE_MAX_LAYERS];
    double  embedding_scale, logit_scale, softcap; /* 0 = not there */
    double  yarn_factor, yarn_original;
    bool    has_bias;
    int32_t mask_id;                   /* 0 = the test's own */
    int32_t kernel, group;             /* DFlash 2; 0 = none */
} OracleForm;

typedef struct Oracle {
    OracleForm    form;
    TestCheckpoint   *checkpoint;
    const Weight *embed, *head; /* the target's */
    int32_t n_layers, hidden, n_heads, n_kv_heads, head_dim, intermediate, n_taps, block, vocab, mask_id;
    double  theta, eps;
} Oracle;

/* Logits of all rows of the block behind n_context tokens, [block][vocab]; final-normed rows [block][hidden] if wanted.
 * features [n_context][n_taps * hidden]. */
void oracle_logits(const Oracle *o, const float *features, int32_t n_context, int32_t anchor, float *logits,
                   double *normed);

/* DFlash 2: scores of k candidates behind token `before`, for a row's final-normed vector. */
void oracle_scores(const Oracle *o, const double *normed, int32_t before, const int32_t *id, const float *logit,
                   int32_t k, double *score);
