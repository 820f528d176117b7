/* What the variants of linear share: how panels are spread over workers. */
#pragma once

#include "backend/cpu/cpu_impl.h"

/* Computes output columns of the panels [first, end) of one job, for all rows of x. scratch: worker_scratch. */
typedef void (*LinearPanelsFn)(const LinearJob *job, Tensor x, int64_t first, int64_t end, void *scratch);

void linear_spread(Stream *st, Tensor x, const LinearJob *jobs, int n_jobs, LinearPanelsFn fn);

static inline int64_t linear_panels(const LinearJob *job)
{
    return (job->weight->n_out + WEIGHT_PANEL - 1) / WEIGHT_PANEL;
}
