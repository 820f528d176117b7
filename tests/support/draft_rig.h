/* A target with a drafter beside it: passes by the batch builder, the drafter's caches over the same block table, and
 * what the engine tells a drafter after each pass. Mistakes of a test stop it by CHECK or cmocka's fail. */
#pragma once

#include "speculation/drafter.h"
#include "support/batch_builder.h"

typedef struct DraftRigOptions {
    const char *target;    /* below the source tree, or an absolute path */
    DType       dtype;
    const char *cpu_mask;
    int32_t     n_workers; /* 0 = 2 */
    int32_t     n_slots, max_tokens, max_rows, max_outputs, max_nodes; /* 0 = 1, 256, 256, max_rows, 65 */
} DraftRigOptions;

typedef struct DraftRig {
    Backend      *backend;
    Model        *model;
    BatchBuilder *builder;
    Drafter      *drafter; /* owned; set by draft_rig_attach */
    DraftRigOptions options;
    int           n_groups;
    CacheMemory   memory[MAX_GROUPS];
    Tree         *trees;   /* [n_slots] */
    int32_t      *ids;     /* [n_slots][max_tokens] committed tokens, and the anchor behind them */
} DraftRig;

/* The target first, since drafters are opened for it; then the drafter. */
Status draft_rig_open(DraftRig *rig, const DraftRigOptions *options, Error *err);
void   draft_rig_attach(DraftRig *rig, Drafter *drafter);
void   draft_rig_detach(DraftRig *rig); /* closes the drafter; another may come */
void   draft_rig_close(DraftRig *rig);

/* The slot begins a new sequence. */
void draft_rig_begin(DraftRig *rig, int32_t slot);

/* One pass over known tokens of several slots; the drafter sees them as accepted. */
typedef struct DraftRigLine {
    int32_t        slot, n;
    const int32_t *tokens;
} DraftRigLine;
void draft_rig_run(DraftRig *rig, const DraftRigLine *lines, int n);

/* A job for the slot with the given anchor, no limits but the options' max_nodes; its tree is the slot's. */
DraftJob draft_rig_job(DraftRig *rig, int32_t slot, int32_t anchor);

/* Tokens of a path of the tree that `truth` follows, up to n: a round that chose these would commit so many drafts. */
int32_t draft_rig_accepted(const Tree *tree, const int32_t *truth, int32_t n);
