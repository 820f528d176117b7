/* The MTP module of Qwen3.5, 3.6, 3.8 (docs/spec/speculation.md section 4): one more decoder layer, trained to say
 * token t + 2 from the target's last hidden state of token t and the embedding of token t + 1.
 *
 * It lies in the target's checkpoint under "mtp.", is loaded on demand, and borrows the target's embedding, head and
 * rotary table. Position t of its own cache holds what was made of the pair (hidden state of t, token t + 1). Engine
 * thread only. */
#pragma once

#include "models/model.h"

typedef struct Mtp Mtp;

typedef struct MtpLoad {
    const char *dir;         /* the target's checkpoint */
    LoadFormat  load_format; /* as the target was loaded */
    uint64_t    dummy_seed;
    int32_t     max_rows, max_outputs; /* of a pass */
} MtpLoad;

typedef struct MtpNeeds {
    size_t     weight_bytes, scratch_bytes;
    CacheGroup group;
    size_t     page_bytes; /* as ModelNeeds has them */
} MtpNeeds;

/* OK, or why this model has no module that we can run. */
Status mtp_check(const ModelInfo *target, Error *err);

/* From the config alone, nothing loaded: for the plan. Of the target, config and act are read. */
Status mtp_needs(const ModelInfo *target, int32_t max_rows, int32_t max_outputs, MtpNeeds *out, Error *err);

/* target is borrowed as long as passes run; mtp_close may come after it is gone. Errors name the tensor at fault. */
Status mtp_open(Mtp **out, const Model *target, const MtpLoad *load, Error *err);
void   mtp_close(Mtp *m);

uint64_t mtp_fingerprint(const Mtp *m); /* of every byte that was loaded */

/* "mtp_kv": an entry a token. */
CacheGroup mtp_group(const Mtp *m);
void       mtp_bind(Mtp *m, CacheMemory memory);

/* A pass over certain rows. Row r stands for position batch->index[r] of its sequence:
 *   hidden  [n_rows, hidden] f32   what the target's head reads at that position; in a chained step `out` of the
 *                                  position before it
 *   token   batch->token[r]        the token behind that position
 * Stores come from batch->store[0]. For output rows: batch->logits of the token two places behind the position, and out
 * [n_outputs, hidden] f32, the module's own last hidden state. Without outputs only keys and values are written: nobody
 * reads the rest of a single layer, and that is most of its arithmetic. */
void mtp_forward(Mtp *m, Stream *st, Batch *batch, Tensor hidden, Tensor out);
