/* Between the files of the DFlash network: dflash_config.c reads and checks, dflash.c runs a pass, dflash2.c is what
 * the second version adds. */
#pragma once

#include "models/dflash.h"
#include "models/layers.h"

/* ---- dflash_config.c ---- */

/* Where config.json and shapes meet. file NULL: config.json alone. `prefix` stands before every tensor's name. */
typedef struct DflashFile {
    const char        *dir;
    const Checkpoint *file;
    char               prefix[16];
} DflashFile;

Status dflash_read_config(DflashConfig *out, DflashFile *file, const ModelInfo *target, const DflashSetup *setup,
                          Error *err);

/* ---- the network ---- */

typedef struct DflashConv { /* around one sublayer: [0] before it, [1] behind it */
    float *base;            /* [2][conv_kernel][hidden] */
    Weight projection;      /* to [2][conv_kernel][hidden / conv_group] */
} DflashConv;

typedef struct DflashLayer {
    AttentionWeights attention;
    MlpWeights       mlp;
    DflashConv       attention_conv, mlp_conv;
    int32_t          view; /* which of Dflash.views its attention uses */
} DflashLayer;

/* Rows [max_context] of context, [max_block_rows] of blocks; f32 unless act is said. */
typedef struct DflashScratch {
    Tensor features;                    /* [context, n_taps * hidden] act */
    Tensor fused;                       /* [context, hidden] */
    Tensor inputs;                      /* [context + block, hidden] act: c of the context rows, and behind them what
                                         * enters the q, k and v of the block's */
    Tensor hidden, delta;               /* [block, hidden]: the residual stream, what a sublayer adds */
    Tensor q, attended, attended_act;   /* [block, heads] */
    Tensor k, v;                        /* [context + block, kv heads] */
    Tensor mlp_input, gate, up, product; /* [block, ..] first and last act */
    Tensor picked, picked_act, logits;  /* [outputs, ..] */
    Tensor normed, normed_act, dynamic, mixed; /* DFlash 2: [block, ..] */
    Tensor edge;                        /* DFlash 2: [outputs, rank] */
} DflashScratch;

/* What attention needs to know of a pass, for the layers of one window. */
typedef struct DflashView {
    DflashWindow window;
    int32_t     *index, *first_key; /* [block rows] last and first position a row sees */
} DflashView;

struct Dflash {
    Decoder       decoder; /* config, weights, rope, caches, act; its ends are the target's */
    DflashConfig  config;
    DflashSetup   setup;
    int32_t       block_size; /* in use */
    Weight        fc;
    float        *hidden_norm;
    DflashLayer   layers[DFLASH_MAX_LAYERS];
    Weight        predecessor, successor, hidden_projection; /* DFlash 2 */

    int32_t       n_views;
    DflashView    views[DFLASH_MAX_LAYERS];
    int32_t       n_context, n_rows; /* of the pass */
    int32_t      *store, *rope;      /* [context + block] */
    int32_t      *token, *seq, *path;
    BatchSeq     *seqs;              /* [max_blocks] */
    Batch         batch;             /* of the block's rows; index and first_key are a view's */
    void         *arrays, *memory; /* for host and kernels; for kernels */
    DflashScratch scratch;           /* of the largest pass */
};

static inline int32_t dflash_max_block_rows(const Dflash *n)
{
    return n->setup.max_blocks * n->block_size;
}

/* ---- dflash2.c ---- */

static inline bool dflash_has_conv(const Dflash *n)
{
    return n->config.conv_kernel > 0;
}

void dflash2_declare_layer(Dflash *n, DflashLayer *layer);
void dflash2_declare_selector(Dflash *n);

/* z = norm(hidden) of the block's rows, its dynamic weights, the convolution before the sublayer into `out` (act). */
void dflash2_enter(Dflash *n, Stream *st, const DflashConv *conv, const float *norm, Tensor out);
/* The convolution behind it: what is to be added to the stream, from scratch.delta. */
Tensor dflash2_leave(Dflash *n, Stream *st, const DflashConv *conv);
