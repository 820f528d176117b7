/* What a backend holds of main memory, for the plan: said before one is open. */
#pragma once

#include "backend/backend.h"

/* A piece of so many bytes, once it is touched: whole pages. */
size_t backend_held(size_t bytes);

/* Scratch that a backend with these options keeps for its workers, and their number. Options that cannot be opened: 0. */
size_t backend_own_bytes(const BackendOptions *options, int *n_workers);
