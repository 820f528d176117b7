/* The engine's insides, for its own file and for tests that recount the pools after each step. */
#pragma once

#include "base/queue.h"
#include "engine/step.h"

#include <pthread.h>
#include <stdatomic.h>

struct Engine {
    /* Fixed after open. */
    EngineOptions   options;
    Model          *model;
    Backend        *backend;           /* borrowed */
    Drafter        *drafter;           /* may be NULL */
    CacheMemory     memory[MAX_GROUPS], drafter_memory[MAX_GROUPS];
    int             n_groups, n_drafter_groups;

    /* Any thread. */
    Queue          *incoming;          /* of Request *, not yet seen by the engine thread */
    atomic_int      n_waiting;         /* requests with a choice that never ran: bounded by max_waiting */
    atomic_bool     is_closing;
    RequestBudget  *budget;
    pthread_mutex_t stats_mutex;
    EngineStats     stats;             /* as of the last step */

    /* Engine thread, or the caller of engine_step. */
    Scheduler       scheduler;
    Step            step;
    Request        *touched;           /* to be published at the end of this step */
    uint64_t        n_done, n_failed;
    bool            is_lost;           /* the device is gone: requests only fail from here on */

    bool            keeps_drafter, has_thread;
    pthread_t       thread;
};

/* Before engine_start, for a caller that fails after engine_open and has promised to leave the drafter alone: engine_close
 * will not close it. */
void engine_keep_drafter(Engine *e);
