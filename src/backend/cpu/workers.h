/* The threads that compute. One caller at a time; it is worker 0 and works too.
 *
 * Between jobs a worker spins for a few tens of microseconds, because the next op usually follows at once,
 * then sleeps: an idle server uses no processor. */
#pragma once

#include "backend/backend.h"

typedef struct Workers Workers;

/* n_workers 0: one per processor that the process may use (or that cpuset names). With a cpuset ("0-3,8")
 * worker i is pinned to the i-th processor of the list, round and round; the caller when it first runs a job. */
Status workers_open(Workers **out, int n_workers, const char *cpuset, Error *err);
void   workers_close(Workers *w);
int    workers_count(const Workers *w);

/* Runs fn(arg, worker, n) for workers 0 .. n - 1 (n <= workers_count) and returns when all are done. What
 * fn wrote is visible to the caller. A share whose thread is late is done by the caller, after its own: shares
 * must not wait for each other. Jobs must not nest. */
void workers_run(Workers *w, int n, ParallelFn fn, void *arg);
