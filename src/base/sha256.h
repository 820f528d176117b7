/* SHA-256 (libcrypto), and the short id hash that usage reports. Any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct Sha256 Sha256; /* running hash */
Sha256 *sha256_open(void);    /* NULL: no memory */
void    sha256_add(Sha256 *h, const void *data, size_t n);
void    sha256_end(Sha256 *h, uint8_t digest[32]); /* closes h */

/* First 16 hex digits of SHA-256 over the ids as little-endian u32; hex gets 17 bytes
 * ("" when there is no memory). */
void token_sha(const int32_t *ids, int n, char hex[17]);
