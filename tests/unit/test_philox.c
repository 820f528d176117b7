/* Philox against the known answers of its authors, and the noise of a draw against its formula in double. */
#include "backend/backend.h"
#include "sampling/noise.h"
#include "sampling/philox.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

typedef struct Known {
    uint32_t counter[4], key[2], out[4];
} Known;

/* philox4x32 with 10 rounds: all zeros, all ones, the digits of pi. */
static const Known KNOWN[] = {
    { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
    { { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff }, { 0xffffffff, 0xffffffff },
      { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
    { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 }, { 0xa4093822, 0x299f31d0 },
      { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
};

static void known_answers(void **state)
{
    for (int i = 0; i < COUNT(KNOWN); i++) {
        uint32_t out[4];
        philox4x32(KNOWN[i].counter, KNOWN[i].key, out);
        assert_memory_equal(out, KNOWN[i].out, sizeof out);
    }
}

static void batch_is_one_by_one(void **state)
{
    for (int i = 0; i < COUNT(KNOWN); i++) {
        uint32_t batch[4 * PHILOX_BATCH], counter[4];
        philox4x32_batch(KNOWN[i].counter, KNOWN[i].key, batch);
        assert_memory_equal(batch, KNOWN[i].out, sizeof KNOWN[i].out);
        memcpy(counter, KNOWN[i].counter, sizeof counter);
        for (int j = 0; j < PHILOX_BATCH; j++, counter[2]++) {
            uint32_t out[4];
            philox4x32(counter, KNOWN[i].key, out);
            assert_memory_equal(out, batch + 4 * j, sizeof out);
        }
    }
}

/* key = seed, counter = (index, choice, id / 4, 0), word id % 4. */
static void noise_counts_as_documented(void **state)
{
    static const DrawKey keys[] = { { 0, 0 }, { 0x123456789abcdef0u, 3 }, { UINT64_MAX, UINT32_MAX } };
    static const uint32_t ids[] = { 0, 1, 2, 3, 4, 63, 64, 151935, 1048575 }, places[] = { 0, 1, 4096, UINT32_MAX };
    for (int k = 0; k < COUNT(keys) * COUNT(ids) * COUNT(places); k++) {
        DrawKey key = keys[k % COUNT(keys)];
        uint32_t id = ids[k / COUNT(keys) % COUNT(ids)], index = places[k / COUNT(keys) / COUNT(ids)];
        uint32_t halves[2] = { (uint32_t)key.seed, (uint32_t)(key.seed >> 32) };
        uint32_t counter[4] = { index, key.choice, id / 4, 0 }, out[4], chunk[NOISE_CHUNK];
        philox4x32(counter, halves, out);
        assert_true(gumbel_noise(key, index, id) == noise_of_word(out[id % 4]));
        noise_words(key, index, id / 4 * 4, chunk);
        assert_memory_equal(chunk, out, sizeof out);
    }
}

/* The formula at the head of choose.h in double, from the float32 u on. */
static double noise_in_double(uint32_t x)
{
    float u = (float)((x + 0.5) / 4294967296.0);
    if (u > 1 - ldexp(1, -24)) u = (float)(1 - ldexp(1, -24));
    return -log(-log1p(-(double)u));
}

static void check_word(uint32_t x)
{
    float g = noise_of_word(x);
    assert_true(isfinite(g));
    double want = noise_in_double(x);
    /* log turns a relative error of its argument into an absolute one: 2 ulp of e, and half an ulp of g */
    assert_true(fabs(g - want) <= 2.4e-7 + fabs(want) * 1.2e-7);
    assert_true(noise_bound(x) >= g);
    assert_true(g <= NOISE_MAX && g >= -2.82f);
}

static void noise_is_the_formula(void **state)
{
    static const uint32_t steps[] = { 0, 1, 2, 3, 127, 128, 129, 255, 256, 257 };
    for (int bit = 0; bit < 32; bit++) {
        for (int i = 0; i < COUNT(steps); i++) {
            check_word((1u << bit) + steps[i]);
            check_word((1u << bit) - steps[i]);
            check_word(~((1u << bit) + steps[i]));
        }
    }
    for (uint64_t x = 0; x < 1ull << 32; x += 4099) check_word((uint32_t)x);
    assert_true(noise_of_word(0) > 22.87f);
    assert_true(noise_of_word(UINT32_MAX) < -2.81f);
    assert_true(noise_of_word(UINT32_MAX - 127) == noise_of_word(UINT32_MAX)); /* both rounded to 1 - 2^-24 */
}

int main(void)
{
    numeric_mode_enter();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),
        cmocka_unit_test(batch_is_one_by_one),
        cmocka_unit_test(noise_counts_as_documented),
        cmocka_unit_test(noise_is_the_formula),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
