/* A model: opened from a directory, run by forward passes over plain-data batches.
 *
 * forward() is tentative for uncertain sequences: it writes entries behind n_committed and logs state updates;
 * commit() then makes one path per sequence permanent, from the same Batch, before the next forward. Certain
 * sequences are committed by forward itself. Engine thread only, numeric_mode_enter() done. */
#pragma once

#include "backend/backend.h"
#include "cache/group.h"
#include "models/config.h"

typedef struct Model Model;

typedef struct ModelInfo {
    const ModelConfig *config;    /* borrowed from the model */
    const char        *name;      /* registry name: "qwen3_5" */
    int32_t            vocab_size, hidden_size, n_layers;
    int64_t            max_context; /* max_position_embeddings */
    DType              act;       /* BF16 or F32: contract input type of the linears */
    Numerics           numerics;
    size_t             weight_bytes; /* resident */
    size_t             read_bytes_per_pass; /* weights that a one-row pass reads (for bandwidth figures) */
    int64_t            numbers_per_pass;    /* how many numbers of matrices those are */
    const Weight      *embed, *head; /* borrowed: [vocab, hidden] tables that drafters share; NULL where there are none */
} ModelInfo;

typedef struct ModelLimits { /* from the plan; scratch is sized by them once */
    int32_t max_rows, max_outputs, max_seqs, max_uncertain_rows;
} ModelLimits;

typedef enum LoadFormat { LOAD_AUTO, LOAD_DUMMY } LoadFormat;

typedef struct ModelOptions {
    DType       dtype;       /* DT_NONE = auto: BF16 for bf16/f16 checkpoints, F32 for float32 ones; or BF16 / F32 */
    DType       kv_dtype;    /* of the key and value cache: DT_NONE = as the arithmetic; BF16, F32 or F8_E4M3 */
    LoadFormat  load_format; /* LOAD_DUMMY: cheap reproducible weights of the config's shapes, no file read */
    uint64_t    dummy_seed;
    QuantFormat quantization; /* QUANT_FP8 or QUANT_NVFP4: linears of the layers are rounded to it while they are loaded, on a CPU;
                               * QUANT_NONE: as they are stored */
    int32_t     sampler_version; /* SAMPLER_VERSION of sampling/choose.h: goes into the fingerprint */
    ModelLimits limits;
    size_t      load_bytes;  /* buffers while loading take at most this, though always room for one piece; 0 = 32 MB */
    void (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes); /* may be NULL */
    void       *progress_ctx;
} ModelOptions;

struct Model {
    ModelInfo info;
    Ops       const *ops;
    Backend  *backend;

    int    (*groups)(const Model *m, CacheGroup out[MAX_GROUPS]);          /* number of groups */
    void   (*bind)(Model *m, const CacheMemory memory[MAX_GROUPS]);        /* memory of those groups, kept */
    void   (*forward)(Model *m, Stream *st, Batch *batch);
    void   (*commit)(Model *m, Stream *st, const Batch *batch, const Commit *commits, int n);
    void   (*close)(Model *m);
};

/* dir: a model directory with config.json. Errors name the file and tensor at fault. */
Status model_open(Model **out, const char *dir, Backend *backend, const ModelOptions *options, Error *err);
void   model_close(Model *m);

/* From config.json alone: *info as the open model would have it, but for weights and bytes. config is what info points to. */
Status model_info(const char *dir, const ModelOptions *options, ModelConfig *config, ModelInfo *info, Error *err);

/* From the headers alone, nothing allocated: for the plan. */
typedef struct ModelNeeds {
    size_t weight_bytes, scratch_bytes;
    size_t page_bytes; /* what weights hold beyond weight_bytes, as they lie in whole pages of main memory */
    int    n_groups;
    CacheGroup groups[MAX_GROUPS];
} ModelNeeds;
Status model_needs(const char *dir, const ModelOptions *options, ModelNeeds *out, ModelConfig *config, Error *err);
