/* An engine over the fake model, for tests: what it emits is recorded by the row hook and can be compared bit by bit. */
#pragma once

#include "engine/engine_impl.h"
#include "support/fake_drafter.h"
#include "support/fake_model.h"

enum { RIG_VOCAB = 64, RIG_MAX_REQUESTS = 512, RIG_MAX_TOKENS = 256 };

/* What one choice was given, in order. */
typedef struct RigRecord {
    int32_t  n, first_index;
    int32_t  tokens[RIG_MAX_TOKENS];
    uint64_t logits_hash[RIG_MAX_TOKENS];
} RigRecord;

typedef struct RigOptions {
    EngineOptions      engine;  /* zeros get small defaults */
    bool               drafts;  /* with a fake drafter of: */
    FakeDrafterOptions drafter;
    Drafter           *own;     /* this one instead; handed over */
    int32_t            poison_after;
} RigOptions;

enum { RIG_POISON = 63 };

typedef struct Rig {
    Backend       *backend;
    Model         *model;    /* the engine's */
    Drafter       *drafter;  /* the engine's; NULL = none */
    Engine        *engine;
    FakeModelOptions model_options;
    RigRecord     *records;  /* [RIG_MAX_REQUESTS][MAX_CHOICES], by request id */
} Rig;

Status rig_open_raw(Rig *rig, const RigOptions *options, Error *err); /* may fail */
void   rig_open(Rig *rig, const RigOptions *options);                 /* a failure ends the test */
void   rig_close(Rig *rig);

/* A request with a prompt that follows from `id`: 1 .. max_prompt tokens. */
GenerateRequest rig_request(uint64_t id, int32_t *prompt, int32_t n_prompt, int32_t max_tokens);
Request *rig_submit(Rig *rig, const GenerateRequest *g);
void     rig_step(Rig *rig);  /* one step, then everything is recounted */
void     rig_finish(Rig *rig, Request *r);

const RigRecord *rig_record(const Rig *rig, uint64_t id, int32_t choice);
/* Same tokens and the same bits of logits. */
void rig_assert_equal(const RigRecord *a, const RigRecord *b);

/* What the request gives by plain choosing over fake_model_logits, without an engine. */
void rig_truth(const Rig *rig, const GenerateRequest *g, int32_t choice, RigRecord *out);
