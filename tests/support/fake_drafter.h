/* A drafter for tests: random trees over the fake model's vocabulary that hold the true next tokens now and then, and,
 * when asked, everything a bad drafter might do. It keeps a cache group of its own and checks what the engine tells it. */
#pragma once

#include "speculation/drafter.h"
#include "support/fake_model.h"

typedef struct FakeDrafterOptions {
    FakeModelOptions model;
    uint64_t         seed;
    double           p_true;  /* chance that a node's token is the one that will be chosen */
    double           p_fail;  /* chance that a whole draft call returns an error */
    int32_t          dies_after; /* every call behind this many returns one; 0 = none does */
    const char      *name;    /* of its method; NULL = "fake" */
    const char      *second;  /* of another one of the same family; NULL = there is none */
    float            expected_first;
    double           p_broken; /* chance that a job's tree is no proper tree */
    bool             chain;
    int32_t          depth;   /* no job may ask for more; 0 = any */
    bool             wants_features; /* two taps and the last hidden state, checked in observe */
} FakeDrafterOptions;

Status fake_drafter_open(Drafter **out, const FakeDrafterOptions *options, Error *err);

typedef struct FakeDrafterCounts {
    uint64_t jobs, failed_calls, broken_trees, nodes, observed;
} FakeDrafterCounts;
FakeDrafterCounts fake_drafter_counts(const Drafter *d);
