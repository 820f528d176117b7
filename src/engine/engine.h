/* The engine's face. What crosses it is plain data: a GenerateRequest goes in, tokens and a finish reason come out; with
 * several ranks the same would be written to a socket.
 *
 * One thread (engine_start), or the caller's own (engine_step), owns scheduler, pools, model, drafter. Any thread may
 * submit, read, cancel. */
#pragma once

#include "base/error.h"
#include "models/model.h"
#include "sampling/choose.h"
#include "speculation/drafter.h"

enum { MAX_CHOICES = 16, MAX_STOP_IDS = 64 };

typedef enum FinishReason { FINISH_NONE, FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED, FINISH_ERROR } FinishReason;

typedef struct GenerateRequest {
    uint64_t       id;             /* chosen by the front, unique among live requests */
    const int32_t *prompt;         /* copied by submit */
    int32_t        n_prompt;       /* at least 1 */
    int32_t        n_choices;      /* 1 .. MAX_CHOICES */
    int32_t        max_tokens;     /* 0 = what the context leaves */
    int32_t        min_tokens;     /* stop ids are banned before */
    SampleParams   params;         /* bias copied */
    uint64_t       seed;
    int32_t        n_stop_ids;
    int32_t        stop_ids[MAX_STOP_IDS];
    bool           ignore_eos;     /* stop ids do not stop */
    bool           no_speculation;
    char           draft_method[24]; /* only by this one, a name of engine_methods(); "" = whichever pays */
    int32_t        draft_nodes;    /* rows of its verify passes, anchor included, taken as they are; 0 = as many as pay */
    bool           prompt_logprobs; /* score the prompt: logprobs of its own tokens */
} GenerateRequest;

/* What became of the drafts of one method. */
typedef struct DraftCounts {
    int64_t rounds, draft_tokens, accepted_tokens; /* verify passes with its drafts; drafted rows; of them accepted */
    int32_t reached[MAX_DEPTH], accepted[MAX_DEPTH]; /* [d], d >= 1: rounds whose drafts went d deep; accepted that far */
} DraftCounts;

typedef struct RequestTimings {
    double  queue_ms, prefill_ms, decode_ms;   /* waiting, first step to first token, first to last token */
    int64_t steps, draft_tokens, accepted_tokens; /* decode passes it was in; drafted rows; of them accepted */
    DraftCounts drafts[MAX_METHODS];           /* by method, as engine_methods() has them */
} RequestTimings;

/* Logprobs of one emitted token. */
typedef struct TokenLogprob {
    float   logprob;
    int32_t n_top, top_id[MAX_TOP_LOGPROBS];
    float   top_logprob[MAX_TOP_LOGPROBS];
} TokenLogprob;

typedef struct Request Request;
typedef struct Engine Engine;

typedef struct EngineHooks { /* tests and `tandem verify`; called on the engine thread */
    /* A row whose token was chosen and committed: logits of the place before `index`, where `token` was put. */
    void (*row)(void *ctx, uint64_t request_id, int32_t choice, int32_t index, const float *logits, int32_t vocab, int32_t token);
    void *ctx;
    double (*clock_ms)(void *ctx); /* by which drafts and passes are timed for the controller; NULL = the real clock */
} EngineHooks;

typedef struct EngineOptions {
    int32_t     max_num_seqs;           /* slots */
    int32_t     max_num_batched_tokens; /* rows of a pass */
    int32_t     prefill_chunk;          /* most prompt rows of one sequence in one pass; 0 = no limit of its own */
    int32_t     max_model_len;          /* prompt + output */
    int32_t     block_size;             /* tokens a block */
    int32_t     n_blocks;               /* of per-token groups, dump block not counted */
    int32_t     max_waiting;            /* queue bound: more is ERR_FULL */
    int32_t     draft_nodes;            /* rows a verify pass may have per sequence (anchor included); 0 or 1 = no drafts */
    int32_t     draft_depth;
    bool        adapts_drafts;          /* a controller decides every round who is drafted, how and how wide; else everybody is,
                                         * by the first method, as wide as there is room */
    int32_t     n_valid;                /* ids from here on are padding of the vocabulary and never chosen; 0 = all are valid */
    size_t      max_request_bytes;      /* of all live requests: prompts, tokens, logprobs; more is ERR_FULL. 0 = default of plan.h */
    EngineHooks hooks;
} EngineOptions;

/* model and drafter (may be NULL) are handed over on success; backend borrowed. Takes all memory now. */
Status engine_open(Engine **out, Model *model, Backend *backend, Drafter *drafter, const EngineOptions *options, Error *err);
void   engine_close(Engine *e);          /* stops the thread; live requests end with ERR_CANCELLED */
Status engine_start(Engine *e, Error *err); /* own thread from now on */
bool   engine_step(Engine *e);           /* without engine_start: one turn; false when there was nothing to do */

/* ERR_INPUT naming the field; ERR_FULL when the queue is full. notify(ctx) is called on the engine thread after new tokens
 * or the end were published: it must be quick, may only read this request (counts, tokens, finish), and must not wait for a
 * lock that somebody holds around request_close(), request_wait() or request_timings(). It never runs after request_close()
 * has returned. A stop id is the last token emitted. */
Status engine_submit(Engine *e, const GenerateRequest *g, void (*notify)(void *ctx), void *ctx, Request **out, Error *err);

/* Reading, from one front thread per request. Pointers stay until request_close(); entries below the count never change. */
int32_t             request_count(const Request *r, int32_t choice);    /* tokens emitted so far */
const int32_t      *request_tokens(const Request *r, int32_t choice);
const TokenLogprob *request_logprobs(const Request *r, int32_t choice); /* NULL when not asked for */
const TokenLogprob *request_prompt_logprobs(const Request *r);          /* [n_prompt], [0] unset; complete at the first token */
FinishReason        request_finish(const Request *r, int32_t choice);   /* FINISH_NONE while it runs */
bool                request_done(const Request *r);                     /* all choices finished */
Status              request_error(const Request *r, Error *err);        /* of FINISH_ERROR and FINISH_CANCELLED, else OK */
RequestTimings      request_timings(const Request *r);                  /* complete when done */
int32_t             request_n_prompt(const Request *r);
void                request_stop_choice(Request *r, int32_t choice);    /* the front saw a stop string: end it, keep tokens */
void                request_cancel(Request *r);                         /* any thread; noticed at the next step */
void                request_close(Request *r);                          /* front lets go; cancels if it still runs */
bool                request_wait(Request *r, int timeout_ms);           /* blocks until something new was published; false: nothing
                                                                         * new in time (-1 = no limit), or done and seen before */

typedef struct MethodStats {
    const char *name;
    DraftCounts counts;
    uint64_t    failed_drafts;
    bool        is_suspect; /* guesses so much worse than such drafters do that it may belong to another model */
    char        off[160];   /* why it is switched off; "" = it works */
} MethodStats;

typedef struct EngineStats {
    int32_t  running, waiting, blocks_used, blocks_total;
    uint64_t steps, prompt_tokens, output_tokens, draft_tokens, accepted_tokens, preemptions, requests_done, requests_failed;
    uint64_t last_step_ms; /* monotonic clock at the end of the last step */
    bool     is_lost;      /* a device or rank is gone */
    uint64_t failed_drafts; /* trees thrown away: the drafter failed, or they were no trees */
    double   draft_ms, forward_ms, choose_ms; /* of all steps: drafting; the target's passes; choosing, commit, observe */
    int32_t  n_methods;
    MethodStats methods[MAX_METHODS]; /* as engine_methods() has them */
} EngineStats;
EngineStats engine_stats(const Engine *e);
const DraftMethod *engine_methods(const Engine *e, int32_t *n); /* ways of drafting, names as requests use them; any thread, `off`
                                                                 * only from engine_stats() */
const ModelInfo *engine_model(const Engine *e);
const EngineOptions *engine_options(const Engine *e);
