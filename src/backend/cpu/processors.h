/* Which processors the workers may use. */
#pragma once

#include "base/error.h"

#include <stdbool.h>

enum { MAX_PROCESSORS = 1024 };

typedef struct Processors {
    int cpu[MAX_PROCESSORS]; /* their numbers: of the process's affinity, or of the cpuset in its order */
    int n;
    int n_granted; /* at most n: what a container's limit on processor time leaves */
} Processors;

/* cpuset: "0-3,8"; each must be one that the process may use. NULL: all of those. */
Status processors_find(Processors *p, const char *cpuset, Error *err);

/* Several memory nodes: where a page lies matters, and it lies with the processor that wrote to it first. */
bool memory_has_nodes(void);
