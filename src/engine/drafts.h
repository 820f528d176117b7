/* The draft of a step: decides who is drafted, by which method and how wide (speculation/controller.h, or as wide as there
 * is room), asks the drafter for trees within the limits of rows, blocks and length, keeps only what is a proper tree, and
 * afterwards learns and counts what became of it. Engine thread only; allocates only in open. */
#pragma once

#include "base/clock.h"
#include "engine/scheduler.h"
#include "engine/share.h"

/* What is known of a method beside its counts. */
typedef struct MethodState {
    DraftCounts counts;
    uint64_t    n_failed;      /* trees thrown away: the drafter failed, or they were no trees */
    bool        is_suspect;
} MethodState;

typedef struct Drafts {
    Drafter             *drafter;   /* borrowed, NULL = nobody drafts */
    const EngineOptions *options;   /* borrowed */
    Scheduler           *scheduler; /* borrowed */
    int32_t              vocab_size, spare; /* spare: entries that the drafter's own groups want behind n_committed */
    Controller          *controller; /* NULL: every sequence is drafted in every round */
    int32_t              n_methods;
    DraftMethod          methods[MAX_METHODS]; /* the drafter's; `off` is ours */
    MethodState          states[MAX_METHODS];
    int32_t              n_failed_calls[MAX_METHODS]; /* in a row, by family */
    Tree                *trees;     /* [max_num_seqs], one a share of the step */
    DraftWish           *wishes;    /* [max_num_seqs], as trees */
    DraftJob            *offers;    /* [max_num_seqs], as trees: a job for each that may be drafted */
    DraftJob            *jobs;      /* [max_num_seqs] those that are */
    RowRule             *rules;
    History             *histories;
    DraftRound          *rounds;    /* [max_num_seqs] */
    int32_t             *round_nodes; /* [max_num_seqs][MAX_DEPTH] */
    uint64_t             n_failed;  /* of all methods */
    int32_t              n_unplanned; /* passes that will be plain without being thought about */
    double               plan_ms;   /* of the last plan */
    bool                 was_plain; /* it drafted nobody */
} Drafts;

Status drafts_open(Drafts *d, Drafter *drafter, Scheduler *scheduler, const EngineOptions *options, int32_t vocab_size, Error *err);
void   drafts_close(Drafts *d); /* copes with a zeroed one */

/* For the memory plan: what open takes besides the trees. */
size_t drafts_bytes(const EngineOptions *options);

/* Most tentative entries of one sequence. */
int32_t drafts_max_entries(const DrafterNeeds *drafter, const EngineOptions *options);

/* shares[n] decode; their trees are anchors alone and stay so where nothing good was proposed. Returns the time spent by
 * drafters, in ms. */
double drafts_make(Drafts *d, Stream *st, Share *shares, int32_t n);

/* After choosing: shares[n] of the whole pass, prompts included. */
void drafts_learn(Drafts *d, const Share *shares, int32_t n, double draft_ms, double pass_ms);

static inline double drafts_clock_ms(const EngineOptions *o)
{
    return o->hooks.clock_ms ? o->hooks.clock_ms(o->hooks.ctx) : clock_ms();
}
