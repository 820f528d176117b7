/* What the machine can do, measured in the same process as what is compared with it. */
#pragma once

#include "backend/backend.h"

/* Bytes per second of the best read stream over data with the workers in use: several ways of walking
 * (one or more streams a worker, with and without prefetch), each several times within about `seconds`,
 * the fastest pass counts. data should be much larger than the caches and touched before. Caller of ops only. */
double measure_read_bandwidth(Stream *st, const void *data, size_t bytes, double seconds);
