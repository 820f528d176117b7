/* The memory plan: what a model with these flags will take, counted from headers before anything is allocated, against
 * what the machine can give. It also chooses what was left open: context length and number of cache blocks. Any thread. */
#pragma once

#include "base/buf.h"
#include "engine/engine.h"

/* What stands beside model and engine. All 0: nothing is counted for it. */
typedef struct PlanHost {
    bool   is_device;    /* the memory is a device's: nothing of the host's is counted, and its pages round nothing */
    int    n_workers;    /* threads that compute */
    size_t worker_bytes; /* their scratch, backend_own_bytes() */
    size_t text_bytes;   /* tokenizer tables, template */
    int    n_fronts;     /* front workers of the server */
} PlanHost;

typedef struct PlanInput {
    const char    *dir;             /* model directory */
    ModelOptions   model;           /* limits are ignored: they follow from `engine` */
    EngineOptions  engine;          /* 0 = chosen here: max_model_len, n_blocks; defaults: 8 sequences, 512 rows, blocks of
                                     * 16, 128 waiting */
    DrafterNeeds   drafter;         /* what a drafter will hold and want; all 0 = none */
    PlanHost       host;
    double         memory_fraction; /* of what is available; 0 = 0.9 */
    uint64_t       available_bytes; /* 0 = ask the machine (plan_available) */
} PlanInput;

typedef struct Plan {
    ModelConfig   config;
    EngineOptions engine;           /* complete: ready for engine_open */
    ModelLimits   limits;           /* ready for model_open */
    size_t weight_bytes;            /* resident weights */
    size_t scratch_bytes;           /* of a forward pass, undo logs included */
    size_t drafter_bytes;           /* a drafter's weights and books */
    size_t pass_bytes;              /* batch arrays, logits, features */
    size_t block_bytes;             /* one block of all per-token groups, drafter's included */
    size_t token_cache_bytes;       /* (n_blocks + 1) * block_bytes */
    size_t state_bytes;             /* per-sequence groups of all slots */
    size_t table_bytes;             /* block tables and book-keeping */
    size_t page_bytes;              /* pieces of megabytes lie in whole pages: what that adds */
    size_t worker_bytes;            /* scratch and stacks of the threads that compute */
    size_t text_bytes;              /* tokenizer and chat template, what each front worker keeps for them */
    size_t program_bytes;           /* the program, its libraries and books */
    size_t lasting_bytes;           /* all of these: held once it was used, whether requests are alive or not */
    size_t request_bytes;           /* bound of all live requests: held only while they wait or run */
    int    n_workers;
    size_t total_bytes, available_bytes, budget_bytes;
    double memory_fraction;
} Plan;

/* ERR_PLAN when it does not fit: the sentence names the flag that would make it fit, err->param too. ERR_USAGE: a length that the
 * model was not made for. Else what model_needs() says. */
Status plan_make(Plan *out, const PlanInput *input, Error *err);

/* One kind of memory; the kinds of a plan add up to total_bytes. */
typedef struct PlanKind {
    const char *name, *what; /* "token_cache", "token caches" */
    size_t      bytes;
    char        how[96];
} PlanKind;
enum { PLAN_MAX_KINDS = 16 };
int plan_kinds(const Plan *plan, PlanKind out[PLAN_MAX_KINDS]);

/* Requests of the full length that the caches hold at a time. */
int32_t plan_full_requests(const Plan *plan);

/* The plan as a table of lines with a bar of what is available; and as one JSON object. */
void plan_text(const Plan *plan, Buf *out);
void plan_json(const Plan *plan, Buf *out);

/* Limits of a pass that options imply: what a model must be opened with for engine_open(). */
ModelLimits plan_limits(const EngineOptions *options);
/* max_request_bytes, or its default. */
size_t plan_request_bytes(const EngineOptions *options);

/* Bytes that a process may still take: MemAvailable, or what the control group leaves if that is less. */
uint64_t plan_available(void);
/* The same from files under another root (tests): root/proc/meminfo, root/proc/self/cgroup, root/sys/fs/cgroup. */
uint64_t plan_available_at(const char *root);
