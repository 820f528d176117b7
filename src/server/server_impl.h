/* The Server, as its own folder sees it. */
#pragma once

#include "base/arena.h"
#include "base/json.h"
#include "server/exchange.h"
#include "server/keys.h"
#include "server/server.h"

#include <pthread.h>

typedef enum ServerPhase { SERVER_LOADING, SERVER_READY, SERVER_FAILED, SERVER_STOPPING } ServerPhase;

enum { SERVER_MAX_WORKERS = 16, SERVER_MAX_ORIGINS = 64 };

struct Server {
    /* Set by server_open, then constant. */
    ServerLimits  limits;
    Arena         arena;                     /* names, origins */
    int           n_names, n_origins;
    const char   *names[SERVER_MAX_NAMES], *origins[SERVER_MAX_ORIGINS];
    bool          any_origin;                /* one of them is "*" */
    Keys          keys;
    json_t       *chat_template_kwargs;      /* or NULL */
    uint64_t      seed;
    bool          has_seed;
    int64_t       started;                   /* seconds since 1970 */
    StackOptions  stack_options;
    Listen        listen;
    Http         *http;
    Work         *work;

    /* Written by the loading thread, constant once phase says SERVER_READY. */
    Stack         stack;
    StackProgress progress;
    bool          template_takes_parts;      /* the chat template reads content that is a list of parts */

    /* Any thread. */
    atomic_int    phase;                     /* ServerPhase */
    atomic_int    n_stops;                   /* calls of server_stop */
    atomic_ullong n_started;                 /* ids of engine requests */
    atomic_ullong n_answers[6];              /* by first digit of the HTTP code, for /metrics */

    /* One worker each. */
    TokenizerScratch *scratch[SERVER_MAX_WORKERS];

    /* Guarded by mutex; changed tells of changes. */
    pthread_mutex_t mutex;
    pthread_cond_t  changed;
    bool            is_loaded, has_ended;    /* loading has ended, well or not; the loop thread has ended */
    Error           failure;                 /* why it could not be loaded, or was lost */

    /* server_open, server_close. */
    pthread_t loop_thread, load_thread;
    bool      has_loop_thread, has_load_thread;

    /* Loop thread. */
    bool   is_draining, is_cancelling;
    double drain_until_ms, break_at_ms;
};

static inline ServerPhase server_phase(const Server *s)
{
    return (ServerPhase)atomic_load(&s->phase);
}

bool server_has_name(const Server *s, const char *name); /* one of names[] */
