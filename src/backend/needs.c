/* What a backend would hold: the same rules as opening one follows, without opening it. */
#include "backend/needs.h"

#include "backend/cpu/cpu_impl.h"
#include "backend/cpu/pages.h"
#include "backend/cpu/processors.h"

enum { MOST_WORKERS = 512 }; /* that workers_open() starts */

size_t backend_held(size_t bytes)
{
    return pages_held(bytes);
}

size_t backend_own_bytes(const BackendOptions *options, int *n_workers)
{
    Processors p;
    *n_workers = options->n_workers;
    if (*n_workers == 0 && processors_find(&p, options->cpuset, NULL) == OK)
        *n_workers = p.n_granted < MOST_WORKERS ? p.n_granted : MOST_WORKERS;
    return pages_held((size_t)*n_workers * WORKER_SCRATCH_BYTES);
}
