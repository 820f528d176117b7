/* Everything that stands between a MODEL argument and answers: tokenizer, chat template, backend, model, drafter,
 * engine, opened in the right order and closed in the other. What `run`, `chat` and `serve` share.
 *
 * stack_open blocks (loading); `stage` and `done/total` may be read meanwhile from another thread for /health. */
#pragma once

#include "engine/engine.h"
#include "speculation/open.h"
#include "engine/plan.h"
#include "text/answer.h"
#include "text/chat_template.h"

#include <stdatomic.h>

enum { STACK_MAX_STOP_IDS = 32 };

typedef struct StackOptions {
    const char   *model;          /* as on the command line */
    DType         dtype;          /* DT_NONE = auto */
    DType         kv_dtype;       /* of the model's cache: DT_NONE = as dtype; drafters' caches follow dtype */
    LoadFormat    load_format;
    QuantFormat   quantization;   /* of a model's plain linears while they are loaded; QUANT_NONE = as stored */
    BackendOptions backend;
    const char   *chat_template;  /* file that replaces the model's own; NULL = its own */
    int32_t       max_model_len;  /* 0 = the model's, at most what fits */
    int32_t       max_num_seqs, max_num_batched_tokens, block_size; /* 0 = defaults 8, 512, 16 */
    double        memory_fraction; /* of MemAvailable, or of the device's memory, that the plan may use; 0 = 0.9 */
    uint64_t      available_bytes; /* 0 = ask the machine, or the device when a stack is opened on one */
    bool          on_device;       /* that is a device's memory: the plan counts nothing of the host's; see stack_options_size() */
    int32_t       max_waiting;     /* 0 = 128 */
    SpeculativeConfig speculation; /* what to open as a drafter; all 0 = none */
    Drafter      *drafter;         /* tests: this one instead, handed over on success */
    int32_t       draft_nodes, draft_depth; /* of that one */
    bool          start_thread;    /* engine_start at the end */
} StackOptions;

typedef struct StackProgress {
    _Atomic(const char *) stage;   /* "weights", "warm-up" ... a constant text */
    _Atomic uint64_t      done_bytes, total_bytes;
} StackProgress;

typedef struct Stack {
    char          model_dir[4096];
    char          served_name[256];      /* last part of MODEL */
    char          fingerprint[24];       /* "td-" + 16 hex digits of Numerics.fingerprint: system_fingerprint */
    Backend      *backend;
    Tokenizer    *tokenizer;
    ChatTemplate *chat_template;         /* NULL: the model has none */
    Engine       *engine;
    ModelConfig   config;                /* sampling defaults of generation_config.json */
    int32_t       n_stop_ids, stop_ids[STACK_MAX_STOP_IDS]; /* config, generation_config, tokenizer's eos_token */
    int32_t       max_model_len;
    const char   *method;                /* "mtp", "ddtree" ... "none" */
} Stack;

/* How these options open a model; limits are the caller's. */
ModelOptions stack_model_options(const StackOptions *options);

Status stack_open(Stack *s, const StackOptions *options, StackProgress *progress, Error *err);
void   stack_close(Stack *s); /* copes with a zeroed one */

/* Plans by the memory of the backend's device from now on, if it has one. */
void stack_options_size(StackOptions *options, const Backend *backend);
/* The memory plan of these options for the model in dir: headers are read, nothing is allocated. Errors of plan_make(). */
Status stack_plan(const StackOptions *options, const char *dir, Plan *out, Error *err);

/* Defaults of a request from generation_config.json: temperature (0 when do_sample is false there, 1 when the file says
 * nothing, as other servers and the API have it), top_p ... */
void stack_default_params(const Stack *s, SampleParams *params);
