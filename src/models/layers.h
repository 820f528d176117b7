/* What decoder-only families share: the embedding, gated or plain attention, the MLP, the head, the caches of
 * attention, and the scratch of a pass.
 *
 * A family is a struct that begins with a Decoder, a ModelKind, and a forward() that lists its layers in order.
 * All tensors of a pass live in one piece of scratch memory that is laid out anew for the rows of each pass. */
#pragma once

#include "models/weights.h"

typedef struct Decoder Decoder;

/* A row of the registry: one family. */
typedef struct ModelKind {
    ModelFamily family;
    const char *name;
    size_t      bytes;                                           /* of its struct */
    void   (*declare)(Decoder *d);                               /* its layers' tensors, into d->weights */
    size_t (*place)(Decoder *d, char *memory);                   /* scratch: see decoder_place_pass */
    int    (*groups)(const Model *m, CacheGroup out[MAX_GROUPS]); /* the rest: as in Model */
    void   (*bind)(Model *m, const CacheMemory memory[MAX_GROUPS]);
    void   (*forward)(Model *m, Stream *st, Batch *batch);
    void   (*commit)(Model *m, Stream *st, const Batch *batch, const Commit *commits, int n);
} ModelKind;

extern const ModelKind llama_kind, qwen3_kind, qwen3_5_kind;

/* Scratch of one pass. [rows, ..] unless said; f32, or act: the input type of the linear that reads it. */
typedef struct Scratch {
    Tensor hidden; /* f32: the residual stream */
    Tensor normed; /* act */
    Tensor delta;  /* f32: what a block adds to the stream */

    /* Attention, MLP and GDN are never alive together and share the memory below. */
    Tensor q, k, v, attended, attended_act; /* q is twice as wide where it carries the output gate */
    Tensor gate, up, product;
    Tensor mix, z, a, b, conv, read, read_act;

    Tensor picked;     /* [outputs, hidden] f32: rows whose logits are wanted */
    Tensor picked_act; /* the same, normed, for lm_head */
} Scratch;

struct Decoder {
    Model            model; /* first, so that a Model * is a Decoder * */
    const ModelKind *kind;
    ModelConfig      config;
    ModelLimits limits;
    RopeParams  rope;  /* owns inv_freq and axis */

    WeightList  weights;
    Weight      embed_tokens, lm_head; /* one memory when tied */
    float      *final_norm;

    CacheMemory kv;            /* group 0 */
    int32_t     n_kv_layers;
    void       *memory;        /* scratch, limits.max_rows rows */
    char       *pass_memory;   /* the part of it that a pass lays out */
    Scratch     scratch;
};

/* ---- declaring and opening ---- */

typedef struct AttentionWeights {
    float *norm;
    Weight q_proj, k_proj, v_proj, o_proj;
    float *q_bias, *k_bias, *v_bias, *o_bias; /* NULL without attention_bias */
    float *q_norm, *k_norm;                   /* per head; NULL where the family has none */
} AttentionWeights;

typedef struct MlpWeights {
    float *norm;
    Weight gate_proj, up_proj, down_proj;
} MlpWeights;

/* Names of docs/spec/models.md 2.1, 2.2, 3.2. The attention and MLP functions expect weights_scope at the layer. */
void decoder_declare_ends(Decoder *d);
void decoder_declare_attention(Decoder *d, AttentionWeights *w);
void decoder_declare_mlp(Decoder *d, MlpWeights *w);
VectorUse decoder_norm_use(const Decoder *d);

/* A number for everything that makes the bits of a row: arithmetic, shapes, rotary table, weights. */
uint64_t decoder_fingerprint(const Decoder *d);

/* Keeps `memory` for the passes and returns the bytes that the largest one takes; NULL only measures. */
size_t decoder_place_pass(Decoder *d, char *memory);

/* The group "kv" of n_kv_layers layers: keys and values per token. */
CacheGroup decoder_kv_group(const Decoder *d);
/* Layer kv_layer of it. */
KvView decoder_kv_view(const Decoder *d, int kv_layer);

/* ---- a pass ---- */

/* Lays the scratch out for the batch and fills the residual stream with its embeddings. */
void decoder_begin(Decoder *d, Stream *st, const Batch *batch);

/* hidden += attention(norm(hidden)); kv_layer counts the layers that have keys and values. */
void decoder_attention(Decoder *d, Stream *st, const AttentionWeights *w, int kv_layer, const Batch *batch);

/* hidden += down(silu(gate x) * up x), x = norm(hidden). */
void decoder_mlp(Decoder *d, Stream *st, const MlpWeights *w);

/* Copies the stream behind layer `layer` to the features that tap it. */
void decoder_tap(Decoder *d, Stream *st, const Batch *batch, int layer);

/* Final norm and logits of the output rows; last_hidden of all rows if it is wanted. */
void decoder_end(Decoder *d, Stream *st, Batch *batch);

/* Moves the entries of the accepted paths to the positions of their tokens. */
void decoder_commit_kv(Decoder *d, Stream *st, const Batch *batch, const Commit *commits, int n);

/* Hands out pieces of the scratch, one behind the other. */
typedef struct Carver {
    char  *base; /* NULL: only measures */
    size_t used;
} Carver;
Tensor carve(Carver *c, DType dtype, int64_t rows, int64_t cols); /* [rows, cols] */
