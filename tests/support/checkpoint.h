/* A checkpoint in memory that a test can spoil, and writes into a directory of its own. */
#pragma once

#include "base/error.h"
#include "tensor/safetensors.h"

enum { CHECKPOINT_MAX_TENSORS = 256 };

typedef struct CheckpointTensor {
    char             name[160];
    SafetensorsEntry entry; /* its name points to `name` */
    void            *data;
} CheckpointTensor;

typedef struct Checkpoint {
    char             source_dir[4096];
    char             dir[256]; /* made by checkpoint_open, removed by checkpoint_close */
    int              n;
    CheckpointTensor tensor[CHECKPOINT_MAX_TENSORS];
} Checkpoint;

/* Reads a model directory of the source tree ("models/nano"), all tensors into memory. */
Status checkpoint_open(Checkpoint **out, const char *below, Error *err);
void   checkpoint_close(Checkpoint *c);

CheckpointTensor *checkpoint_find(Checkpoint *c, const char *name); /* CHECKs that it is there */
CheckpointTensor *checkpoint_add(Checkpoint *c, const char *name, DType dtype, int n_dims,
                                 const int64_t *shape); /* zeros */
void              checkpoint_remove(Checkpoint *c, const char *name);
void              checkpoint_rename(Checkpoint *c, const char *from, const char *to);

/* The tensor's numbers in another floating type; F16 by one rounding. */
void checkpoint_convert(CheckpointTensor *t, DType dtype);

/* config.json of the source and all tensors, in one file or n_shards of them with an index. */
Status checkpoint_write(const Checkpoint *c, int n_shards, Error *err);
