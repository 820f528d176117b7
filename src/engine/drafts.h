/* The draft of a step: asks the drafter for trees behind the anchors of decoding sequences, within the limits of rows,
 * blocks and length, and keeps only what is a proper tree. Engine thread only; allocates only in open. */
#pragma once

#include "engine/scheduler.h"
#include "engine/share.h"

typedef struct Drafts {
    Drafter             *drafter;   /* borrowed, NULL = nobody drafts */
    const EngineOptions *options;   /* borrowed */
    Scheduler           *scheduler; /* borrowed */
    int32_t              vocab_size, spare; /* spare: entries that the drafter's own groups want behind n_committed */
    Tree                *trees;     /* [max_num_seqs], one a share of the step */
    DraftJob            *jobs;      /* [max_num_seqs] */
    RowRule             *rules;
    History             *histories;
    uint64_t             n_failed;  /* trees thrown away: the drafter failed, or they were no trees */
    bool                 has_warned; /* the log knows of the first of them */
} Drafts;

Status drafts_open(Drafts *d, Drafter *drafter, Scheduler *scheduler, const EngineOptions *options, int32_t vocab_size, Error *err);
void   drafts_close(Drafts *d); /* copes with a zeroed one */

/* Most tentative entries of one sequence. */
int32_t drafts_max_entries(const DrafterNeeds *drafter, const EngineOptions *options);

/* shares[n] decode; their trees are anchors alone and stay so where nothing good was proposed. */
void drafts_make(Drafts *d, Stream *st, Share *shares, int32_t n);
