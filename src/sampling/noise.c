/* Where the words of the noise come from. */
#include "sampling/noise.h"

#include "sampling/philox.h"

typedef struct Counter {
    uint32_t key[2], counter[4];
} Counter;

static Counter counter_of(DrawKey key, uint32_t index, uint32_t token_id)
{
    return (Counter){ { (uint32_t)key.seed, (uint32_t)(key.seed >> 32) }, { index, key.choice, token_id / 4, 0 } };
}

void noise_words(DrawKey key, uint32_t index, uint32_t first_id, uint32_t words[NOISE_CHUNK])
{
    _Static_assert(NOISE_CHUNK == 4 * PHILOX_BATCH, "a chunk is one batch of blocks");
    Counter c = counter_of(key, index, first_id);
    philox4x32_batch(c.counter, c.key, words);
}

float gumbel_noise(DrawKey key, uint32_t index, uint32_t token_id)
{
    Counter c = counter_of(key, index, token_id);
    uint32_t words[4];
    philox4x32(c.counter, c.key, words);
    return noise_of_word(words[token_id % 4]);
}
