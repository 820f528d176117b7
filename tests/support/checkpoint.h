/* A checkpoint in memory that a test can spoil, and writes into a directory of its own. */
#pragma once

#include "base/error.h"
#include "tensor/safetensors.h"

enum { CHECKPOINT_MAX_TENSORS = 256 };

typedef struct TestTensor {
    char             name[160];
    SafetensorsEntry entry; /* its name points to `name` */
    void            *data;
} TestTensor;

typedef struct TestCheckpoint {
    char             source_dir[4096];
    char             dir[256]; /* made by test_checkpoint_open, removed by test_checkpoint_close */
    int              n;
    TestTensor tensor[CHECKPOINT_MAX_TENSORS];
} TestCheckpoint;

/* Reads a model directory of the source tree ("models/nano"), all tensors into memory. */
Status test_checkpoint_open(TestCheckpoint **out, const char *below, Error *err);
void   test_checkpoint_close(TestCheckpoint *c);

TestTensor *test_checkpoint_find(TestCheckpoint *c, const char *name); /* CHECKs that it is there */
TestTensor *test_checkpoint_add(TestCheckpoint *c, const char *name, DType dtype, int n_dims,
                                 const int64_t *shape); /* zeros */
void              test_checkpoint_remove(TestCheckpoint *c, const char *name);
void              test_checkpoint_rename(TestCheckpoint *c, const char *from, const char *to);

/* The tensor's numbers in another floating type; F16 by one rounding. */
void test_checkpoint_convert(TestTensor *t, DType dtype);

/* config.json of the source and all tensors, in one file or n_shards of them with an index. */
Status test_checkpoint_write(const TestCheckpoint *c, int n_shards, Error *err);
