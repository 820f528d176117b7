/* Bounded queue of pointers between threads. Any number of writers and readers.
 * queue_close() wakes every waiter; what is still inside can be popped. */
#pragma once

#include "base/error.h"

typedef struct Queue Queue;

Status queue_open(Queue **out, int capacity, Error *err);
void   queue_close(Queue *q);                 /* no more pushes; readers drain, then get NULL */
void   queue_free(Queue *q);                  /* no thread may be inside; copes with NULL */
Status queue_push(Queue *q, void *item);      /* ERR_FULL at once when full, ERR_CANCELLED when closed */
void  *queue_pop(Queue *q, int timeout_ms);   /* NULL: nothing within the time (0 = do not wait,
                                               * -1 = wait for ever) or closed and empty */
int    queue_count(Queue *q);
