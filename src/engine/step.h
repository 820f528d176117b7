/* One step: schedule rows, draft, forward, choose, commit. Engine thread only; allocates only in open. */
#pragma once

#include "engine/batch_builder.h"
#include "engine/choosing.h"
#include "engine/drafts.h"

typedef struct StepCounts { /* since open */
    uint64_t passes, prompt_tokens, output_tokens, draft_tokens, accepted_tokens;
    double   draft_ms, forward_ms, choose_ms; /* by drafters; in the target's pass; choosing, commit, observe */
} StepCounts;

typedef struct Step {
    /* Borrowed. */
    Model               *model;
    Drafter             *drafter;     /* may be NULL */
    Stream              *stream;
    Scheduler           *scheduler;
    const EngineOptions *options;
    ModelLimits          limits;

    Drafts               drafts;
    BatchBuilder         builder;
    Choosing             choosing;
    Share               *shares, *unsorted; /* [max_num_seqs] */
    int32_t              n_shares;
    Commit              *commits;     /* [max_num_seqs] */
    Accepted            *accepted;    /* [max_num_seqs] */
    int32_t             *certain_rows; /* [max_rows] 0, 1, 2 ...: the rows of certain shares, for `accepted` */
    Batch                batch;
    StepCounts           counts;
    const char          *lost;        /* why the device is gone; NULL: it works */
} Step;

Status step_open(Step *s, Model *model, Backend *backend, Drafter *drafter, Scheduler *scheduler, const EngineOptions *options,
                 Error *err);
void   step_close(Step *s); /* copes with a zeroed one */

/* One pass over what is running. Afterwards shares[0 .. n_shares) say who took part; a sequence that ended has `ended`
 * set and is still with the scheduler, one whose logits were not finite has FINISH_ERROR. When the device was lost on the way,
 * `lost` is set and nothing else has changed: no step may follow. */
void step_run(Step *s);
