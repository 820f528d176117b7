/* SHA-256 against the published vectors; token_sha against the same bytes hashed by hand. */
#include "base/error.h"
#include "base/memory.h"
#include "base/sha256.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

static void hex_of(const void *data, size_t n, size_t piece, char hex[65])
{
    uint8_t digest[32];
    Sha256 *h = sha256_open();
    assert_non_null(h);
    for (size_t at = 0; at < n; at += piece) sha256_add(h, (const char *)data + at, n - at < piece ? n - at : piece);
    sha256_end(h, digest);
    for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
}

static void published_vectors(void **state)
{
    static const char *const cases[][2] = {
        { "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
        { "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
        { "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        for (size_t piece = 1; piece < 60; piece += 7) {
            char hex[65];
            hex_of(cases[i][0], strlen(cases[i][0]), piece, hex);
            assert_string_equal(hex, cases[i][1]);
        }
    }
}

static void ids_are_little_endian_words(void **state)
{
    static int32_t ids[1000];
    static uint8_t bytes[4000];
    for (int i = 0; i < 1000; i++) {
        ids[i] = (i * 7919) ^ (i << 20);
        for (int k = 0; k < 4; k++) bytes[4 * i + k] = (uint8_t)((uint32_t)ids[i] >> (8 * k));
    }
    static const int lengths[] = { 0, 1, 2, 255, 256, 257, 512, 1000 };
    for (int i = 0; i < COUNT(lengths); i++) {
        char want[65], got[17];
        hex_of(bytes, 4 * (size_t)lengths[i], 1000, want);
        token_sha(ids, lengths[i], got);
        want[16] = '\0';
        assert_string_equal(got, want);
    }
}

static void no_memory(void **state)
{
    mem_fail_at(1);
    assert_null(sha256_open());
    char hex[17] = "old";
    mem_fail_at(1);
    token_sha(NULL, 0, hex);
    assert_string_equal(hex, "");
    uint8_t digest[32];
    sha256_end(NULL, digest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_vectors),
        cmocka_unit_test(ids_are_little_endian_words),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
