/* MTP (NEXTN) drafts: the target's own module says the next tokens one after another, a chain of n_steps guesses.
 *
 * Each guess costs a pass over one layer and the head, so the chain is short. Guesses are chosen as the target will
 * choose: by `choose` under the request's own rule, so at temperature > 0 with the noise of the draw. */
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
    bool         is_uncoupled; /* at temperature > 0 guess what is likeliest */
} MtpOptions;

/* What it will hold, for the memory plan, from the target's config alone: target and dir of the options are not read.
 * scratch_bytes: everything that is neither weights nor cache. ERR_UNSUPPORTED: why this target has no MTP drafts. */
Status drafter_mtp_needs(const MtpOptions *options, const ModelInfo *target, MtpNeeds *out, Error *err);

/* Allocates only here. A refused target: ERR_UNSUPPORTED with the reason. */
Status drafter_open_mtp(Drafter **out, const MtpOptions *options, Error *err);

typedef struct MtpCounts {
    uint64_t passes, rows;     /* of the module */
    uint64_t not_finite;       /* guesses given up because the logits were no numbers */
} MtpCounts;
MtpCounts drafter_mtp_counts(const Drafter *d);
