/* A listening socket, and what kind of address it has. */
#pragma once

#include "base/error.h"

#include <stdbool.h>

enum { LISTEN_BACKLOG = 4096, LISTEN_URL_BYTES = 320 };

typedef struct Listen {
    int  fd;
    int  port;                  /* the bound one */
    bool is_loopback;           /* only this machine can reach it */
    char url[LISTEN_URL_BYTES]; /* where a client on this machine finds it */
} Listen;

/* host: name or address; port 0 = any free one. loopback_only: another address is refused before it is bound, with
 * ERR_USAGE. ERR_IO, in one sentence, when it cannot be bound. */
Status listen_open(Listen *out, const char *host, int port, bool loopback_only, Error *err);
