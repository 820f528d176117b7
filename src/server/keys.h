/* API keys: kept as SHA-256, compared in a time that does not depend on them. */
#pragma once

#include "base/error.h"

#include <stdint.h>

enum { KEY_MAX_BYTES = 255 };

typedef struct Keys {
    int      n;
    uint8_t (*hash)[32];
} Keys;

/* Copies n keys, each 1 .. KEY_MAX_BYTES bytes. */
Status keys_init(Keys *k, const char *const *keys, int n, Error *err);
void   keys_free(Keys *k);

/* Whether `given` (may be NULL) is one of them; true when there are none. All of them are compared each time. */
bool keys_accept(const Keys *k, const char *given);
