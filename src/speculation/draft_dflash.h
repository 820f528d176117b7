/* Drafts by a DFlash network (models/dflash.h): all tokens behind the anchor in one pass of the drafter, as a chain of
 * the likeliest guess of each row, or as the tree of the best prefixes (ddtree.h). One network serves all its methods.
 *
 * At temperature above 0 the target draws by noise that is known beforehand (sampling/choose.h). Coupled drafts rank
 * their guesses by the same noise: where drafter and target agree about the law, they then agree about the draw. */
#pragma once

#include "models/dflash.h"
#include "speculation/drafter.h"

typedef enum DflashMethod {
    DFLASH_CHAIN = 1, /* "dflash" */
    DFLASH_TREE = 2,  /* "ddtree": best-first */
    DFLASH_SPINE = 4, /* "ddtree-spine": the chain first, the rest of the budget best-first */
} DflashMethod;

typedef struct DflashOptions {
    const char  *dir;             /* of the drafter: config.json, safetensors */
    Backend     *backend;         /* borrowed, as the target; both outlive the drafter */
    const Model *target;
    int32_t      n_slots;
    unsigned methods; /* any of DflashMethod, in DraftJob.method by their order here; 0 = DFLASH_CHAIN. DFlash 2
                                   * drafts chains only */
    int32_t      tree_budget;     /* nodes of a tree, the anchor not counted; 0 = 64 */
    int32_t      block_size;      /* rows of the drafter's pass; 0 = as trained, which is the most */
    bool         sliding_is_free; /* see DflashSetup */
    bool         is_uncoupled;    /* at temperature > 0 guess what is likeliest */
    LoadFormat   load_format;
    uint64_t     dummy_seed;
} DflashOptions;

/* Refuses a drafter that does not fit the target, with the reason. Allocates only here. */
Status drafter_open_dflash(Drafter **out, const DflashOptions *options, Error *err);

/* What it will hold, for the memory plan, from the headers alone: backend and target of the options are not read.
 * scratch_bytes: everything that is neither weights nor cache. */
Status drafter_dflash_needs(const DflashOptions *options, const ModelInfo *target, DflashNeeds *out, Error *err);

/* The network of a drafter that drafter_open_dflash() made. */
const Dflash *drafter_dflash_network(const Drafter *d);
