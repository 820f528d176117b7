/* First touch. Loading cuts weights by files and rows, linear by panels and workers; so on a machine with several memory
 * nodes, where a page lies with its first writer, the workers write once before the loader does. The cut is linear.c's:
 * even shares in order. (Caches and scratch need nothing: who uses them writes first.) */
#include "backend/cpu/first_touch.h"

#include "backend/cpu/linear.h"
#include "backend/cpu/pages.h"

typedef struct TouchJob {
    char   *data;
    int64_t n_panels;
    size_t  panel_bytes;
} TouchJob;

static void touch_share(void *arg, int worker, int n_workers)
{
    const TouchJob *job = arg;
    Range panels = worker_range(job->n_panels, worker, n_workers);
    pages_touch(job->data + (size_t)panels.first * job->panel_bytes,
                (size_t)(panels.end - panels.first) * job->panel_bytes);
}

void first_touch_weight(Backend *b, const Weight *w)
{
    int64_t n_panels = weight_panels(w);
    TouchJob job = { w->data, n_panels, weight_bytes(w->n_out, w->n_in, &w->contract) / (size_t)n_panels };
    stream_parallel(backend_stream(b), touch_share, &job);
}
