/* The front workers: a few threads that give turns to items (one item = one request being answered).
 *
 * An item has at most one turn at a time, so what hangs on it needs no lock, and at most one place in the lists, so
 * posting allocates nothing and cannot fail. Posting while its turn runs makes it get another one: no wake-up is lost.
 *
 *     idle ──work_post──> queued ──a worker──> running ──turn: false──> idle, or queued when posted meanwhile
 *                                                 └──turn: true───> over: posts are ignored until work_submit
 *
 * Items newly submitted (parsing, tokenising: may take long) wait in one list, posted ones (tokens to send: short) in
 * another. Workers take posted ones first, and worker 0 takes nothing else, so a long prompt delays no stream. */
#pragma once

#include "base/error.h"

typedef struct Work Work;

typedef enum WorkState { WORK_OVER, WORK_IDLE, WORK_QUEUED, WORK_RUNNING } WorkState;

typedef struct WorkItem { /* embedded in its owner; guarded by the Work */
    void            *owner;
    struct WorkItem *next;
    WorkState        state;
    bool             again; /* posted while running */
} WorkItem;

typedef struct WorkHooks {
    bool (*turn)(void *ctx, void *owner, int worker); /* true: the item is over */
    void (*over)(void *ctx, void *owner);             /* after that: the owner may be reused from here on */
    void *ctx;
} WorkHooks;

Status work_open(Work **out, int n_workers, const WorkHooks *hooks, Error *err);
void   work_stop(Work *w);  /* ends the turns that run, joins the threads; posting still does no harm. Copes with NULL */
void   work_close(Work *w); /* nobody may post any more. Copes with NULL */

void work_submit(Work *w, WorkItem *item); /* a new item: its first turn. Any thread */
void work_post(Work *w, WorkItem *item);   /* something happened for it. Any thread; nothing when it is over */
