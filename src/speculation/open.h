/* From a SpeculativeConfig and a target to drafters: what they would hold, for the plan, and the thing itself.
 *
 * auto: MTP when the checkpoint has it, and a DFlash drafter that is named or lies beside the model (MODEL-DFlash); neither:
 * prompt lookup. A named drafter that does not fit is an error with the reason; one that merely lies there is passed over. */
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

/* What was decided: rows of a verify pass per sequence (anchor included) and levels below the anchor, for EngineOptions. */
typedef struct SpeculationShape {
    SpecMethod method;      /* never SPEC_AUTO */
    char       dir[4096];   /* of the drafter; "" = none needed */
    int32_t    draft_nodes, draft_depth;
} SpeculationShape;

/* config and act of the target are read; nothing is opened. SPEC_NONE: draft_nodes 0. */
Status speculation_decide(const SpeculationOptions *options, const ModelInfo *target, SpeculationShape *out, Error *err);
Status speculation_needs(const SpeculationOptions *options, const SpeculationShape *shape, const ModelInfo *target, DrafterNeeds *out,
                         Error *err);

/* *out NULL for SPEC_NONE. target and backend are borrowed and outlive the drafter. */
Status speculation_open(Drafter **out, const SpeculationOptions *options, const SpeculationShape *shape, const Model *target,
                        Backend *backend, Error *err);
