/* Features of committed tokens on their way into a DFlash network's cache.
 *
 * What the target's passes leave is only rounded and put aside, a bounded number of rows a slot; keys and values are
 * computed from it at the next draft, in the same pass as the draft itself, or when a slot's rows are full. So a
 * drafter that is not asked reads its weights once in FEED_ROWS tokens. Engine thread only; allocates only in open. */
#pragma once

#include "models/dflash.h"
#include "speculation/drafter.h"

enum { FEED_ROWS = 64, FEED_MAX_CONTEXT = 2 * FEED_ROWS }; /* of a slot; of a pass */

typedef struct FeedSlot {
    bool    is_live;
    int32_t first_context, n_context; /* rows [first_context, n_context) are in the cache */
    int32_t n_waiting;                /* features of the tokens behind them */
    int32_t next_rope;                /* rotary coordinate of the next token */
    int32_t rope[FEED_ROWS];          /* of the waiting ones */
} FeedSlot;

typedef struct DflashFeed {
    Dflash        *net;     /* borrowed, as backend */
    Backend       *backend;
    int32_t        n_slots;
    int64_t        width;   /* numbers of a row: taps * hidden */
    DType          act;
    void          *waiting; /* [n_slots][FEED_ROWS][width] act, of kernels only */
    FeedSlot      *slots;
    DflashContext *context; /* [FEED_MAX_CONTEXT] rows of the pass being made */
    int32_t        line[FEED_ROWS]; /* 0, 1, 2 ... */
} DflashFeed;

size_t dflash_feed_bytes(int32_t n_slots, int64_t width, DType act);
Status dflash_feed_open(DflashFeed *f, Dflash *net, Backend *backend, DType act, int32_t n_slots, Error *err);
void   dflash_feed_close(DflashFeed *f); /* copes with a zeroed one */

void dflash_feed_begin(DflashFeed *f, int32_t slot);
void dflash_feed_forget(DflashFeed *f, int32_t slot);

/* Puts the features of accepted tokens aside. features: [rows of the batch, width] f32. */
void dflash_feed_observe(DflashFeed *f, Stream *st, const Batch *batch, Tensor features, const Accepted *accepted);

/* True when the slot has seen every committed token since its context began. */
bool dflash_feed_is_complete(const DflashFeed *f, int32_t slot, int32_t n_committed);

/* Moves what waits for the slots of the blocks into the network's input: context rows of a pass, their number returned.
 * The blocks' first_context and rope are filled in. What is too much for one pass is computed at once. */
int32_t dflash_feed_gather(DflashFeed *f, Stream *st, DflashBlock *blocks, int32_t n_blocks);
