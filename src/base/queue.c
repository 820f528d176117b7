/* Queue: a ring of pointers under one mutex. Always: 0 <= count <= capacity; item[(first + i) % capacity],
 * i < count, are the waiting ones, oldest first.
 *
 * Pushing never waits: a full queue is an ordinary state that the caller answers (429). */
#include "base/queue.h"
#include "base/memory.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

struct Queue {
    pthread_mutex_t mutex;
    pthread_cond_t  filled; /* an item came, or the queue closed */
    bool            closed;
    int             capacity, first, count;
    void           *item[];
};

Status queue_open(Queue **out, int capacity, Error *err)
{
    CHECK(capacity > 0);
    Queue *q = mem_alloc(sizeof *q + (size_t)capacity * sizeof q->item[0]);
    if (!q) return error_set(err, ERR_NOMEM, "no memory for a queue of %d items", capacity);
    q->capacity = capacity;
    pthread_mutex_init(&q->mutex, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC); /* a corrected wall clock must not stretch a wait */
    pthread_cond_init(&q->filled, &attr);
    pthread_condattr_destroy(&attr);
    *out = q;
    return OK;
}

void queue_close(Queue *q)
{
    pthread_mutex_lock(&q->mutex);
    q->closed = true;
    pthread_cond_broadcast(&q->filled);
    pthread_mutex_unlock(&q->mutex);
}

void queue_free(Queue *q)
{
    if (!q) return;
    pthread_cond_destroy(&q->filled);
    pthread_mutex_destroy(&q->mutex);
    mem_free(q);
}

Status queue_push(Queue *q, void *item)
{
    CHECK(item != NULL); /* NULL is how pop says "nothing" */
    pthread_mutex_lock(&q->mutex);
    Status status = q->closed ? ERR_CANCELLED : q->count == q->capacity ? ERR_FULL : OK;
    if (status == OK) {
        q->item[(q->first + q->count) % q->capacity] = item;
        q->count++;
        pthread_cond_signal(&q->filled);
    }
    pthread_mutex_unlock(&q->mutex);
    return status;
}

static struct timespec after_ms(int timeout_ms)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += timeout_ms / 1000;
    t.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

/* Until there is an item, the queue is closed, or time is up. The mutex is held. */
static void wait_for_item(Queue *q, int timeout_ms)
{
    struct timespec end = { 0 };
    if (timeout_ms > 0) end = after_ms(timeout_ms);
    int rc = 0;
    while (q->count == 0 && !q->closed && rc != ETIMEDOUT) {
        rc = timeout_ms > 0 ? pthread_cond_timedwait(&q->filled, &q->mutex, &end)
                            : pthread_cond_wait(&q->filled, &q->mutex);
    }
}

void *queue_pop(Queue *q, int timeout_ms)
{
    void *item = NULL;
    pthread_mutex_lock(&q->mutex);
    if (timeout_ms != 0) wait_for_item(q, timeout_ms);
    if (q->count > 0) {
        item = q->item[q->first];
        q->first = (q->first + 1) % q->capacity;
        q->count--;
    }
    pthread_mutex_unlock(&q->mutex);
    return item;
}

int queue_count(Queue *q)
{
    pthread_mutex_lock(&q->mutex);
    int n = q->count;
    pthread_mutex_unlock(&q->mutex);
    return n;
}
