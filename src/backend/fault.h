/* Planted faults: proof that `tandem verify` sees what it promises to see.
 *
 * In a build with -Dfaults=true, TANDEM_FAULT=<site> makes that site move one of its output values by one
 * unit in the last place, but only in calls with more than one row: exactly the error that an "almost
 * equal" wide kernel would make. Sites: linear, attention, gdn, conv, norm, choose. In every other
 * build FAULT_POINT is nothing. */
#pragma once

#include "tensor/tensor.h"

#ifdef TANDEM_FAULTS
/* Moves the value of largest magnitude in the last row of out (F32 or BF16) when `site` is the one asked
 * for and n_rows > 1. Call it once an op, on the calling thread, after the workers are done. */
void fault_point(const char *site, Tensor out, int64_t n_rows);
#define FAULT_POINT(site, out, n_rows) fault_point((site), (out), (n_rows))
#else
#define FAULT_POINT(site, out, n_rows) ((void)0)
#endif
