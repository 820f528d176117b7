/* Planted faults of the parsers: proof that `make fuzz` finds what it is there to find.
 *
 * In a build with -Dfaults=true, TANDEM_FAULT=<site> switches one check off: safetensors, gguf, tokenizer, template, body
 * or http. In every other build PLANTED() is false and the compiler leaves nothing of it. (Faults of numbers, which
 * `tandem verify` must see: backend/fault.h.) */
#pragma once

#include <stdbool.h>

#ifdef TANDEM_FAULTS
#include <stdlib.h>
#include <string.h>
static inline bool planted(const char *site)
{
    const char *wanted = getenv("TANDEM_FAULT");
    return wanted && strcmp(wanted, site) == 0;
}
#define PLANTED(site) planted(site)
#else
#define PLANTED(site) false
#endif
