/* Llama, and Qwen3 dense: docs/spec/models.md 2.1 and 2.2.
 *
 * One residual stream, every layer attention then MLP. Qwen3 differs by a norm on each head of q and k, which
 * config->qk_norm switches on, so both families are this file. */
#include "models/layers.h"

typedef struct LlamaLayer {
    AttentionWeights attention;
    MlpWeights       mlp;
} LlamaLayer;

typedef struct Llama {
    Decoder    decoder;
    LlamaLayer layers[CONFIG_MAX_LAYERS];
} Llama;

static void llama_declare(Decoder *d)
{
    Llama *m = (Llama *)d;
    d->n_kv_layers = d->config.n_layers;
    decoder_declare_ends(d);
    for (int l = 0; l < d->config.n_layers; l++) {
        weights_scope(&d->weights, "%slayers.%d.", d->config.weight_prefix, l);
        decoder_declare_attention(d, &m->layers[l].attention);
        decoder_declare_mlp(d, &m->layers[l].mlp);
    }
}

static int llama_groups(const Model *model, CacheGroup out[MAX_GROUPS])
{
    out[0] = decoder_kv_group((const Decoder *)model);
    return 1;
}

static void llama_bind(Model *model, const CacheMemory memory[MAX_GROUPS])
{
    ((Decoder *)model)->kv = memory[0];
}

static void llama_forward(Model *model, Stream *st, Batch *batch)
{
    Llama *m = (Llama *)model;
    Decoder *d = &m->decoder;

    decoder_begin(d, st, batch);
    for (int l = 0; l < d->config.n_layers; l++) {
        decoder_attention(d, st, &m->layers[l].attention, l, batch);
        decoder_mlp(d, st, &m->layers[l].mlp);
        decoder_tap(d, st, batch, l);
    }
    decoder_end(d, st, batch);
}

static void llama_commit(Model *model, Stream *st, const Batch *batch, const Commit *commits, int n)
{
    decoder_commit_kv((Decoder *)model, st, batch, commits, n);
}

const ModelKind llama_kind = {
    .family = FAMILY_LLAMA,
    .name = "llama",
    .bytes = sizeof(Llama),
    .declare = llama_declare,
    .place = decoder_place_pass,
    .groups = llama_groups,
    .bind = llama_bind,
    .forward = llama_forward,
    .commit = llama_commit,
};

const ModelKind qwen3_kind = {
    .family = FAMILY_QWEN3,
    .name = "qwen3",
    .bytes = sizeof(Llama),
    .declare = llama_declare,
    .place = decoder_place_pass,
    .groups = llama_groups,
    .bind = llama_bind,
    .forward = llama_forward,
    .commit = llama_commit,
};
