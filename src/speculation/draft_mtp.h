/* MTP (NEXTN) drafts: the target's own module says the next tokens one after another, a chain of n_steps guesses.
 *
 * Each guess costs a pass over one layer and the head, so the chain is short. Guesses are chosen as the target will choose:
 * by `choose` under the request's own rule, at temperature > 0 with the noise of the draw if `coupled`. */
#pragma once

#include "models/mtp.h"
#include "speculation/drafter.h"

typedef struct MtpOptions {
    const Model *target;       /* borrowed: it has to be open while drafts are made, not when the drafter is closed */
    const char  *dir;          /* its checkpoint */
    LoadFormat   load_format;  /* as the target was loaded */
    uint64_t     dummy_seed;
    ModelLimits  limits;       /* of the engine: max_seqs slots, max_rows rows of a pass */
    int32_t      n_steps;      /* guesses of a draft; 0 = 3 */
    int32_t      max_pending;  /* tokens of a slot that may wait for the next draft; 0 = 64 */
    bool         coupled;      /* temperature > 0: guesses feel the noise of the target's draw, else the likeliest token */
} MtpOptions;

/* What a drafter of these options will hold, from the target's config alone: for the plan. options->target and dir may be
 * NULL; act is the input type of the target's linears. ERR_UNSUPPORTED says why this target has no MTP drafts. */
typedef struct MtpDrafterNeeds {
    size_t     bytes;          /* weights, scratch, hidden states that wait; not the cache */
    CacheGroup group;
} MtpDrafterNeeds;
Status drafter_mtp_needs(MtpDrafterNeeds *out, const MtpOptions *options, const ModelConfig *target, DType act, Error *err);

/* Allocates only here. A refused target: ERR_UNSUPPORTED with the reason. */
Status drafter_open_mtp(Drafter **out, const MtpOptions *options, Error *err);

typedef struct MtpCounts {
    uint64_t passes, rows;     /* of the module */
    uint64_t not_finite;       /* guesses given up because the logits were no numbers */
} MtpCounts;
MtpCounts drafter_mtp_counts(const Drafter *d);
