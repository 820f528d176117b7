/* Hashing first makes all comparisons equally long; every key is compared whether or not one has matched, so the time
 * says neither which key is nearest nor how much of it was right. */
#include "server/keys.h"

#include "base/memory.h"
#include "base/sha256.h"

#include <string.h>

static bool hash(const char *text, size_t n, uint8_t out[32])
{
    Sha256 *h = sha256_open();
    if (!h) return false;
    sha256_add(h, text, n);
    sha256_end(h, out);
    return true;
}

Status keys_init(Keys *k, const char *const *keys, int n, Error *err)
{
    *k = (Keys){ .n = 0 };
    if (n == 0) return OK;
    k->hash = mem_alloc_array((size_t)n, sizeof *k->hash);
    if (!k->hash) return error_set(err, ERR_NOMEM, "no memory for %d API keys", n);
    for (int i = 0; i < n; i++) {
        size_t len = strlen(keys[i]);
        if (len < 1 || len > KEY_MAX_BYTES) {
            return error_set_param(err, ERR_USAGE, "api-key", "an API key must have 1 to %d bytes, key %d has %zu", KEY_MAX_BYTES,
                                   i + 1, len);
        }
        if (!hash(keys[i], len, k->hash[i])) return error_set(err, ERR_NOMEM, "no memory to hash an API key");
        k->n = i + 1;
    }
    return OK;
}

void keys_free(Keys *k)
{
    mem_free(k->hash);
    *k = (Keys){ .n = 0 };
}

bool keys_accept(const Keys *k, const char *given)
{
    uint8_t got[32];
    unsigned found = 0;
    if (k->n == 0) return true;
    if (!given || !hash(given, strlen(given), got)) return false;
    for (int i = 0; i < k->n; i++) {
        unsigned differ = 0;
        for (int j = 0; j < 32; j++) differ |= (unsigned)(k->hash[i][j] ^ got[j]);
        found |= (differ - 1u) >> 31; /* 1 if and only if differ is 0 */
    }
    return found != 0;
}
