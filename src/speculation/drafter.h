/* A drafter: whatever guesses ahead of the target. It can only change speed: a guess counts when it equals the
 * token chosen at its row. One object serves all requests; engine thread only.
 *
 *     begin(slot) -> observe(...) per pass -> draft(jobs) -> verify -> observe(accepted) -> ... -> forget(slot)
 *
 * observe() may only record and catch up at the next draft, so an idle drafter reads no weights. A drafter that
 * fails (returns an error, proposes nonsense, NaN inside) is treated as one that proposes nothing. */
#pragma once

#include "cache/group.h"
#include "models/model.h"
#include "sampling/choose.h"
#include "speculation/tree.h"

enum { MAX_METHODS = 8 };

/* A way of drafting. Most drafters have one; a DFlash network has two or three: its chain and trees of its guesses. */
typedef struct DraftMethod {
    const char *name;                         /* "ngram", "mtp", "dflash", "ddtree", "ddtree-spine"; a constant */
    int32_t     family;                       /* equal = the same network: what one shows of its hits holds for the other */
    bool        is_tree;                      /* best-first tree of any size, else a chain */
    int32_t     max_nodes, max_depth;         /* most it can use: nodes with the anchor, levels below it */
    float       expected_first;               /* share of next tokens that one trained for the target guesses at least; 0 =
                                               * nothing is expected of it */
    uint64_t    fingerprint;                  /* of the weights that were loaded for it; 0 = none were */
    char        off[160];                     /* why it is switched off; "" = it works */
} DraftMethod;

typedef struct DraftJob {
    int32_t        slot, n_committed, anchor; /* anchor sits at position n_committed */
    int32_t        method;                    /* index into Drafter.methods; 0 where there is one */
    uint64_t       request_id;
    int32_t        choice;
    int32_t        max_nodes;                 /* anchor counted: tree_budget + 1; 1 = no draft wanted */
    int32_t        max_depth;                 /* below the anchor, at most MAX_DEPTH - 1; limits of length applied */
    const int32_t *ids;                       /* host: all n_committed tokens and the anchor behind them */
    DrawKey        draw;
    float          temperature;
    const RowRule *rule;                      /* of the row after the anchor; may be NULL */
    Tree          *tree;                      /* out; begins as the anchor alone */
} DraftJob;

/* What became permanent in a pass: also sent for prompt chunks and plain steps. */
typedef struct Accepted {
    int32_t        slot, first_index, n;      /* tokens at first_index .. + n - 1 */
    int32_t        next_anchor;               /* -1 = not known yet (middle of a prompt: next prompt token is given) */
    const int32_t *tokens, *rows;             /* [n]; rows of the batch: where features lie */
} Accepted;

typedef struct Drafter Drafter;
struct Drafter {
    const char    *name;                      /* "oracle", "ngram", "mtp", "dflash", "auto" */
    int32_t        n_methods;                 /* 0 = one, called `name`: a chain or tree of any size */
    const DraftMethod *methods;               /* [n_methods] DraftJob.method counts in it */
    int32_t        n_taps;
    const int32_t *taps;                      /* layers whose outputs observe() needs */
    int32_t        tap_column;                /* column of Batch.features, in units of hidden_size, where the first tap lies:
                                               * row r of tap i is features[r][(tap_column + i) * hidden ...]. 0 unless
                                               * draft_auto set it, since several drafters share the batch */
    bool           wants_last_hidden;

    Status (*fits)(const Drafter *d, const ModelInfo *target, Error *err);
    int    (*groups)(const Drafter *d, CacheGroup out[MAX_GROUPS]);            /* 0 for most */
    void   (*bind)(Drafter *d, const CacheMemory memory[MAX_GROUPS]);
    void   (*begin)(Drafter *d, int32_t slot, uint64_t request_id, int32_t choice);
    void   (*observe)(Drafter *d, Stream *st, const Batch *batch, const Accepted *accepted, int n);
    Status (*draft)(Drafter *d, Stream *st, DraftJob *jobs, int n, Error *err); /* one pass for all jobs: methods of one family */
    /* Tokens it would propose for this job, found without a pass over weights; -1, or NULL here: not known before draft(). */
    int32_t (*foresee)(Drafter *d, const DraftJob *job);
    void   (*forget)(Drafter *d, int32_t slot);
    void   (*close)(Drafter *d);
};

/* The oracle: knows the true continuation and proposes it with probability p per node, else a wrong token; other nodes
 * of the tree are random siblings and subtrees. Every width, depth and acceptance is reachable without a network. */
typedef struct OracleOptions {
    double   p;              /* probability that a spine node is the true token, per depth */
    int32_t  n_by_depth;     /* instead of p: probabilities at depth 1, 2 ...; the last holds from there on */
    const double *by_depth;  /* borrowed */
    int32_t  n_nodes;        /* rows of every pass, anchor included; the job's max_nodes and max_depth cap it */
    bool     chain;          /* a chain, else a tree of random shape that holds the spine */
    int32_t  max_depth;      /* of the tree */
    uint64_t seed;
    int32_t  vocab_size;
    /* True tokens of a choice from place `index` on; returns how many are known (0 = none). Borrowed. */
    int32_t (*truth)(void *ctx, uint64_t request_id, int32_t choice, int32_t index, const int32_t **tokens);
    void    *truth_ctx;
} OracleOptions;
Status drafter_open_oracle(Drafter **out, const OracleOptions *options, Error *err);
void   drafter_close(Drafter *d);

/* What a drafter will hold and want, for the memory plan: said before it is open (speculation/open.h), or of one that is. */
typedef struct DrafterNeeds {
    size_t     bytes;                         /* weights, scratch, books: all but the groups and what a pass hands it */
    int        n_groups;
    CacheGroup groups[MAX_GROUPS];
    int32_t    n_taps;
    bool       wants_last_hidden;
} DrafterNeeds;
/* Its methods, of which one that names none has one that can do anything. Returns how many. */
int32_t drafter_methods(const Drafter *d, DraftMethod out[MAX_METHODS]);
DrafterNeeds drafter_needs(const Drafter *d); /* bytes 0: they are taken already; NULL: nothing at all */
