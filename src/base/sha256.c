/* SHA-256 by libcrypto, and token_sha, the short name of a list of ids. */
#include "base/sha256.h"
#include "base/error.h"
#include "base/memory.h"

#include <openssl/evp.h>
#include <stdio.h>

struct Sha256 {
    EVP_MD_CTX *context;
};

Sha256 *sha256_open(void)
{
    Sha256 *h = mem_alloc(sizeof *h);
    if (!h) return NULL;
    h->context = EVP_MD_CTX_new();
    if (h->context && EVP_DigestInit_ex(h->context, EVP_sha256(), NULL) == 1) return h;
    EVP_MD_CTX_free(h->context);
    mem_free(h);
    return NULL;
}

void sha256_add(Sha256 *h, const void *data, size_t n)
{
    CHECK(EVP_DigestUpdate(h->context, data, n) == 1);
}

void sha256_end(Sha256 *h, uint8_t digest[32])
{
    if (!h) return;
    CHECK(EVP_DigestFinal_ex(h->context, digest, NULL) == 1);
    EVP_MD_CTX_free(h->context);
    mem_free(h);
}

void token_sha(const int32_t *ids, int n, char hex[17])
{
    uint8_t digest[32], bytes[4 * 256];
    hex[0] = '\0';
    Sha256 *h = sha256_open();
    if (!h) return;
    for (int done = 0; done < n;) {
        int some = n - done < 256 ? n - done : 256;
        for (int i = 0; i < some; i++) {
            uint32_t id = (uint32_t)ids[done + i];
            for (int k = 0; k < 4; k++) bytes[4 * i + k] = (uint8_t)(id >> (8 * k));
        }
        sha256_add(h, bytes, (size_t)some * 4);
        done += some;
    }
    sha256_end(h, digest);
    for (int i = 0; i < 8; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
}
