/* From a SpeculativeConfig and a target to drafters: what they would hold, for the plan, and the thing itself.
 *
 * auto: prompt lookup, MTP when the checkpoint has it, and a DFlash drafter (chain and trees) that is named or lies beside the
 * model (MODEL-DFlash); a controller chooses among them. A named drafter that does not fit is an error with the reason; one
 * that merely lies there is passed over. A width that the config states is taken as it is, else the controller chooses it. */
#pragma once

#include "speculation/config.h"
#include "speculation/drafter.h"

typedef struct SpeculationOptions {
    const SpeculativeConfig *config;
    const char              *model_dir;     /* of the target */
    LoadFormat               load_format;
    ModelLimits              limits;        /* of the engine's passes */
    int32_t                  max_model_len;
} SpeculationOptions;

/* What was decided. draft_nodes, draft_depth and adapts are those of EngineOptions. */
typedef struct SpeculationShape {
    SpecMethod method;      /* as asked; SPEC_AUTO: the drafters below side by side */
    bool       has_ngram, has_mtp;
    unsigned   dflash;      /* DflashMethod; 0 = no such network */
    char       dir[4096];   /* of that network */
    int32_t    draft_nodes, draft_depth;
    bool       adapts;
} SpeculationShape;

/* config and act of the target are read; nothing is opened. SPEC_NONE: draft_nodes 0. */
Status speculation_decide(const SpeculationOptions *options, const ModelInfo *target, SpeculationShape *out, Error *err);
Status speculation_needs(const SpeculationOptions *options, const SpeculationShape *shape, const ModelInfo *target, DrafterNeeds *out,
                         Error *err);

/* *out NULL for SPEC_NONE. target and backend are borrowed and outlive the drafter. */
Status speculation_open(Drafter **out, const SpeculationOptions *options, const SpeculationShape *shape, const Model *target,
                        Backend *backend, Error *err);
