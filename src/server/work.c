/* Front workers: one mutex, two lists, a few threads.
 *
 * Always: an item is in a list if and only if its state is WORK_QUEUED, and a worker holds it if and only if it is
 * WORK_RUNNING. The mutex is held for list surgery only, so work_post() suits the engine thread. */
#include "server/work.h"

#include "base/memory.h"

#include <pthread.h>

typedef struct List {
    WorkItem *head, **tail;
} List;

typedef struct Worker {
    Work     *work;
    pthread_t thread;
    int       index;
} Worker;

struct Work {
    pthread_mutex_t mutex;
    pthread_cond_t  posted_some, submitted_some; /* worker 0 waits for posted_some, the others for submitted_some */
    List            posted, submitted;           /* guarded by mutex, as are the truths below */
    bool            first_waits, stopping;       /* worker 0 sleeps and nobody has woken it yet */
    WorkHooks       hooks;
    int             n_workers;
    Worker          workers[];
};

static void list_add(List *l, WorkItem *item)
{
    item->next = NULL;
    *l->tail = item;
    l->tail = &item->next;
}

static WorkItem *list_take(List *l)
{
    WorkItem *item = l->head;
    if (!item) return NULL;
    l->head = item->next;
    if (!l->head) l->tail = &l->head;
    return item;
}

/* Mutex held. Any worker may take a posted item; worker 0, which has nothing else to do, is woken first. */
static void queue_posted(Work *w, WorkItem *item)
{
    item->state = WORK_QUEUED;
    list_add(&w->posted, item);
    pthread_cond_signal(w->first_waits ? &w->posted_some : &w->submitted_some);
    w->first_waits = false;
}

void work_submit(Work *w, WorkItem *item)
{
    pthread_mutex_lock(&w->mutex);
    CHECK(item->state == WORK_OVER);
    item->state = WORK_QUEUED;
    item->again = false;
    list_add(&w->submitted, item);
    pthread_cond_signal(&w->submitted_some);
    pthread_mutex_unlock(&w->mutex);
}

void work_post(Work *w, WorkItem *item)
{
    pthread_mutex_lock(&w->mutex);
    if (item->state == WORK_RUNNING) item->again = true;
    if (item->state == WORK_IDLE) queue_posted(w, item);
    pthread_mutex_unlock(&w->mutex);
}

/* Waits for an item this worker may take; NULL when the work is closing. */
static WorkItem *next_item(Work *w, int worker)
{
    WorkItem *item = NULL;
    pthread_mutex_lock(&w->mutex);
    while (!w->stopping) {
        item = list_take(&w->posted);
        if (!item && worker > 0) item = list_take(&w->submitted);
        if (item) break;
        if (worker == 0) w->first_waits = true;
        pthread_cond_wait(worker > 0 ? &w->submitted_some : &w->posted_some, &w->mutex);
    }
    if (item) item->state = WORK_RUNNING;
    pthread_mutex_unlock(&w->mutex);
    return item;
}

static void turn_ended(Work *w, WorkItem *item, bool is_over)
{
    pthread_mutex_lock(&w->mutex);
    if (is_over) item->state = WORK_OVER;
    else if (item->again) queue_posted(w, item);
    else item->state = WORK_IDLE;
    item->again = false;
    pthread_mutex_unlock(&w->mutex);
    if (is_over) w->hooks.over(w->hooks.ctx, item->owner);
}

static void *worker_main(void *arg)
{
    Worker *me = arg;
    Work *w = me->work;
    for (WorkItem *item; (item = next_item(w, me->index)) != NULL;) {
        turn_ended(w, item, w->hooks.turn(w->hooks.ctx, item->owner, me->index));
    }
    return NULL;
}

Status work_open(Work **out, int n_workers, const WorkHooks *hooks, Error *err)
{
    *out = NULL;
    Work *w = mem_alloc(sizeof *w + (size_t)n_workers * sizeof *w->workers);
    if (!w) return error_set(err, ERR_NOMEM, "no memory for %d front workers", n_workers);
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->posted_some, NULL);
    pthread_cond_init(&w->submitted_some, NULL);
    w->posted.tail = &w->posted.head;
    w->submitted.tail = &w->submitted.head;
    w->hooks = *hooks;
    for (int i = 0; i < n_workers; i++) {
        w->workers[i] = (Worker){ .work = w, .index = i };
        if (pthread_create(&w->workers[i].thread, NULL, worker_main, &w->workers[i])) {
            work_close(w);
            return error_set(err, ERR_NOMEM, "the system gives no thread for front worker %d", i);
        }
        w->n_workers = i + 1;
    }
    *out = w;
    return OK;
}

void work_stop(Work *w)
{
    if (!w) return;
    pthread_mutex_lock(&w->mutex);
    w->stopping = true;
    pthread_cond_broadcast(&w->posted_some);
    pthread_cond_broadcast(&w->submitted_some);
    pthread_mutex_unlock(&w->mutex);
    for (; w->n_workers > 0; w->n_workers--) pthread_join(w->workers[w->n_workers - 1].thread, NULL);
}

void work_close(Work *w)
{
    if (!w) return;
    work_stop(w);
    pthread_cond_destroy(&w->submitted_some);
    pthread_cond_destroy(&w->posted_some);
    pthread_mutex_destroy(&w->mutex);
    mem_free(w);
}
