/* Numerics.fingerprint: one number for everything that makes the bits of a row. It is shown as system_fingerprint and
 * keys caches on disk, so it must differ whenever answers could, and must not depend on workers, variant or shards.
 *
 * The weights bring a hash of every byte loaded and of the contracts (load.c); the rest is the numbers below. Each is
 * fed as 64 bits: hashing structs would hash their padding. The rotary table stands for all keys of rope scaling. */
#include "models/layers.h"

#include <xxhash.h>

/* Each hash is the seed of the next. */
static uint64_t feed(uint64_t hash, const void *data, size_t bytes)
{
    return XXH3_64bits_withSeed(data, bytes, hash);
}

static uint64_t feed_numerics(uint64_t hash, const Numerics *n)
{
    const int64_t values[] = { n->attn_tile, n->attn_split, n->max_depth, n->residual,
                               n->kv,        n->state,      n->gdn_form,  n->sampler_version };
    return feed(hash, values, sizeof values);
}

static uint64_t feed_config(uint64_t hash, const ModelConfig *c)
{
    const int64_t values[] = { c->family,          c->hidden_size,        c->intermediate_size, c->n_layers,
                               c->n_heads,         c->n_kv_heads,         c->head_dim,          c->vocab_size,
                               c->attention_bias,  c->zero_centered_norm, c->qk_norm,           c->attn_output_gate,
                               c->gdn_key_heads,   c->gdn_value_heads,    c->gdn_key_dim,       c->gdn_value_dim,
                               c->gdn_conv_kernel, c->tie_word_embeddings };
    hash = feed(hash, values, sizeof values);
    hash = feed(hash, c->layer_type, (size_t)c->n_layers * sizeof c->layer_type[0]);
    return feed(hash, &c->rms_norm_eps, sizeof c->rms_norm_eps);
}

static uint64_t feed_rope(uint64_t hash, const RopeParams *rope)
{
    hash = feed(hash, rope->inv_freq, (size_t)rope->dim / 2 * sizeof *rope->inv_freq);
    hash = feed(hash, rope->axis, (size_t)rope->dim / 2);
    return feed(hash, &rope->scale, sizeof rope->scale);
}

uint64_t decoder_fingerprint(const Decoder *d)
{
    uint64_t hash = d->weights.hash;
    hash = feed_numerics(hash, &d->model.info.numerics);
    hash = feed_config(hash, &d->config);
    return feed_rope(hash, &d->rope);
}
