/* A DFlash drafter network: a few Qwen3 layers that guess a whole block of tokens in one pass
 * (docs/spec/speculation.md, section 1). It has neither an embedding nor a head: both are the target's, and so is its
 * arithmetic.
 *
 *     target's hidden states of committed tokens ──fc, norm──> c ──k, v of every layer──> context rows, kept
 *     [anchor, mask, mask ...] ──embedding──> layers that see context rows and the whole block ──head──> guesses
 *
 * Row j of a block guesses the token j places behind the anchor. Context rows are cache entries at the positions of
 * their tokens, written once; the rows of a block lie behind them, and the next pass writes over them. Engine thread
 * only, numeric_mode_enter() done. */
#pragma once

#include "models/model.h"

enum { DFLASH_MAX_LAYERS = 32, DFLASH_MAX_BLOCK = MAX_DEPTH };

/* What a layer's rows see: everything, or the keys less than `width` positions away. */
typedef struct DflashWindow {
    int32_t width;     /* 0 = no limit */
    bool    is_causal; /* a row of the block does not see the rows behind it */
} DflashWindow;

typedef struct DflashConfig {
    ModelConfig  base;                       /* of the layers: sizes, eps, rope, biases; layer_type is not used */
    DflashWindow window[DFLASH_MAX_LAYERS];
    int32_t      n_taps, taps[MAX_TAPS];     /* target layers whose outputs make a token's features, in this order */
    int32_t      block_size, mask_id;        /* as trained */
    float        embedding_scale, logit_scale, softcap; /* 1, 1 and 0 where the file says nothing */
    /* DFlash 2; all 0 in a first version. */
    int32_t      conv_kernel, conv_group;    /* taps, and channels that share one dynamic weight */
    int32_t      selector_rank, selector_top_k;
    int32_t      selector_vocab;             /* ids from here on are never proposed */
} DflashConfig;

typedef struct DflashSetup {
    LoadFormat load_format;     /* LOAD_DUMMY: shapes of config.json, no file */
    uint64_t   dummy_seed;
    int32_t    block_size;      /* rows a block is run with; 0 = as trained, which is the most */
    bool       sliding_is_free; /* rows of sliding layers see the whole block where the file does not say (the published
                                 * programs disagree); default: they do not */
    int32_t    max_context, max_blocks, max_outputs; /* of a pass: context rows, blocks, rows with logits at a time */
} DflashSetup;

typedef struct Dflash Dflash;

/* Opens the drafter in `dir` for a target, which stays borrowed. The file's shapes and config.json must agree with one
 * another and with the target; the error is a sentence that names what does not. */
Status dflash_open(Dflash **out, const char *dir, const Model *target, Backend *backend, const DflashSetup *setup,
                   Error *err);
void   dflash_close(Dflash *n);

const DflashConfig *dflash_config(const Dflash *n);
int32_t             dflash_block_size(const Dflash *n);  /* in use */
uint64_t            dflash_fingerprint(const Dflash *n); /* of every byte that was loaded */

/* OK if the drafter was made for a target of these sizes. */
Status dflash_fits(const DflashConfig *c, const ModelInfo *target, Error *err);

/* From the headers alone, for the plan. target: sizes and act are read. */
typedef struct DflashNeeds {
    size_t     weight_bytes, scratch_bytes;
    CacheGroup group;
    int32_t    n_taps;
    bool       is_second; /* DFlash 2: chains only */
    size_t     page_bytes; /* as ModelNeeds has them */
} DflashNeeds;
Status dflash_needs(const char *dir, const ModelInfo *target, const DflashSetup *setup, DflashNeeds *out, Error *err);

/* Keys and values of all layers: entry of a context row = its token's place in the sequence. spare: a block. */
CacheGroup dflash_group(const Dflash *n);
void       dflash_bind(Dflash *n, const CacheMemory *memory);

/* ---- a pass ---- */

typedef struct DflashContext { /* a committed token whose keys and values are wanted */
    int32_t slot, index, rope; /* place in its sequence; rotary coordinate (the first of three) */
} DflashContext;

typedef struct DflashBlock {
    int32_t slot, anchor;
    int32_t first_context, n_committed; /* context rows [first_context, n_committed) exist, those of this pass included;
                                         * the anchor sits at n_committed */
    int32_t rope;                       /* rotary coordinate of the anchor */
} DflashBlock;

/* Where the features of the next pass's context rows have to be put: [n, n_taps * hidden] act. */
Tensor dflash_features(Dflash *n, int32_t n_context);

/* Context rows first, then the blocks, which see them. Either may be absent. */
void dflash_pass(Dflash *n, Stream *st, const DflashContext *context, int32_t n_context, const DflashBlock *blocks,
                 int32_t n_blocks);

/* Logits [n_rows, vocab] float32 of rows of the last pass; row j of block b is b * block_size + j. Valid until the
 * next call. */
Tensor dflash_logits(Dflash *n, Stream *st, const int32_t *rows, int32_t n_rows);

/* DFlash 2: of the candidates of each row of the last dflash_logits() picks one, from left to right, by its own logit
 * and by how well it follows the one before (Ops.pick). job: everything but edge and the codebooks, which are filled
 * in. */
void dflash_pick(Dflash *n, Stream *st, PickJob *job);
