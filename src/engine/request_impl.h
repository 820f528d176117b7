/* Requests and their sequences, for the engine's own files.
 *
 * A request has one sequence a choice. Who may touch what stands at each field; `front` is the thread that reads the
 * request, `engine` the thread that runs steps. */
#pragma once

#include "engine/engine.h"

#include <pthread.h>
#include <stdatomic.h>

/* Bytes of all requests that are alive, shared by an engine and its requests: a front may hold a request longer
 * than the engine lives. */
typedef struct RequestBudget {
    atomic_int_fast64_t bytes;
    int64_t             limit;
    atomic_int          refs;
} RequestBudget;

RequestBudget *request_budget_open(int64_t limit_bytes); /* NULL: no memory */
void           request_budget_close(RequestBudget *b);   /* drops one reference */

typedef struct Sequence Sequence;
struct Sequence {
    /* Fixed at submit. */
    Request      *request;
    int32_t       choice, n_prompt;
    int32_t       limit;              /* n_ids never gets beyond: prompt + max_tokens */
    int32_t      *ids;                /* [limit] prompt, then output; entries below the published count never change */
    TokenLogprob *logprobs;           /* [limit - n_prompt], or NULL */

    /* Engine. */
    int32_t       n_ids, n_committed; /* known tokens; of them in the caches. The rest has still to run */
    int32_t       slot;               /* -1 while it waits */
    uint64_t      order;              /* age: smaller came earlier */
    bool          was_admitted;       /* at least once: it no longer counts against the queue's bound */
    FinishReason  ended;              /* FINISH_NONE while it runs; becomes `finish` when published */
    bool          is_retired;         /* ended, and no longer with the scheduler */
    Sequence     *older, *younger;    /* neighbours in the waiting list */

    /* Engine writes, front reads. */
    atomic_int    n_published, finish;
    /* Front writes, engine reads. */
    atomic_bool   stop_wanted;
};

struct Request {
    GenerateRequest g;                /* prompt and bias point into this request's own memory */
    RequestBudget  *budget;
    int64_t         bytes;
    int32_t         only_method;      /* index of g.draft_method; -1 = any */
    TokenLogprob   *prompt_logprobs;  /* [n_prompt], or NULL */
    Sequence       *sequence;         /* [g.n_choices] */
    atomic_int      refs;             /* front and engine */
    atomic_bool     cancel_wanted;

    /* Engine. */
    int32_t         n_unended;        /* choices that run or wait */
    int32_t         n_unadmitted;     /* choices that never ran */
    bool            is_touched;       /* on the list of requests to publish */
    Request        *next_touched;
    RequestTimings  counted;          /* becomes `timings` when published */
    double          submitted_ms, admitted_ms, first_token_ms, last_token_ms; /* 0 = not yet */
    uint64_t        last_pass;        /* so that a pass with several of its choices counts once */
    Error           error;            /* set before the first choice ends by it */

    /* Under the mutex. */
    pthread_mutex_t mutex;
    pthread_cond_t  published;
    uint64_t        n_published, n_seen;
    RequestTimings  timings;
    void (*notify)(void *ctx);        /* NULL once the front has let go */
    void           *notify_ctx;
};

typedef struct RequestBounds {
    int32_t            vocab_size, max_model_len, draft_nodes;
    int32_t            n_methods; /* 0: this engine does not draft */
    const DraftMethod *methods;
} RequestBounds;

/* Checks, copies and lays out a request in one piece of memory. ERR_INPUT naming the field, ERR_FULL when the budget
 * is spent, ERR_NOMEM. Both owners hold a reference afterwards. */
Status request_open(Request **out, const GenerateRequest *g, const RequestBounds *bounds, RequestBudget *budget, Error *err);
void   request_release(Request *r); /* drops one owner's reference; the last one frees */

/* Engine thread: everything decided since the last call becomes visible, and the front is woken. */
void request_publish(Request *r);

static inline bool sequence_has_output(const Sequence *seq)
{
    return seq->n_ids > seq->n_prompt;
}
/* Known tokens that have still to run: 1 = it decodes, more = it computes its prompt (or, after a preemption, again). */
static inline int32_t sequence_pending(const Sequence *seq)
{
    return seq->n_ids - seq->n_committed;
}
static inline bool sequence_is_scored(const Sequence *seq)
{
    return seq->request->g.prompt_logprobs && seq->choice == 0 && !sequence_has_output(seq);
}
/* Drafters are told of this sequence: all of it, or nothing. */
static inline bool sequence_is_drafted(const Sequence *seq)
{
    return !seq->request->g.no_speculation;
}
static inline bool sequence_stops_at(const Sequence *seq, int32_t token)
{
    const GenerateRequest *g = &seq->request->g;
    if (g->ignore_eos) return false;
    for (int32_t i = 0; i < g->n_stop_ids; i++)
        if (g->stop_ids[i] == token) return true;
    return false;
}
