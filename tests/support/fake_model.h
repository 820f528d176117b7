/* A model without weights: the logits after a prefix are a hash of it. It makes scheduling testable, because everything
 * that an engine can get wrong changes them:
 *
 *     kv      per token, 2 layers: token and place as written; a row hashes what it reads back through the block table
 *             and its path, so a wrong table, store, commit or path shows
 *     state   per sequence, 2 layers: a rolling hash that verify passes leave alone and commit advances by replay
 *
 * fake_model_logits() computes the same from the tokens alone. Broken batches stop the test by CHECK. */
#pragma once

#include "models/model.h"

typedef struct FakeModelOptions {
    int32_t  vocab_size;
    uint64_t seed;
    int32_t  poison;       /* a prompt that begins with this token ... */
    int32_t  poison_after; /* ... has NaN logits from this place on; poison < 0 = none has */
    ModelLimits limits;    /* passes beyond are an error of the engine */
} FakeModelOptions;

Status fake_model_open(Model **out, Backend *backend, const FakeModelOptions *options, Error *err);

/* Logits of the place behind tokens[0..n). */
void fake_model_logits(const FakeModelOptions *options, const int32_t *tokens, int32_t n, float *logits);

typedef struct FakeModelCounts {
    uint64_t passes, rows, uncertain_rows, commits;
    int32_t  most_rows, most_seqs, most_prompt_rows; /* in one pass; the last of one sequence */
} FakeModelCounts;
FakeModelCounts fake_model_counts(const Model *m);
