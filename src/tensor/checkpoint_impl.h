/* Between checkpoint.c, which has the face, and the two containers. */
#pragma once

#include "base/arena.h"
#include "tensor/checkpoint.h"

typedef struct TensorList {
    CheckpointTensor *item; /* owned */
    int               n, capacity;
    Arena             names;
} TensorList;

/* A new item, zeroed but for global = 1; NULL when there is no memory. Valid until the next one. */
CheckpointTensor *tensor_list_add(TensorList *list);

/* Fills shape, n_out and n_in. */
void tensor_set_shape(CheckpointTensor *t, const int64_t *shape, int n_dims);

/* The tensors of a container, in the order of their data. */
Status checkpoint_list_safetensors(TensorList *list, const Safetensors *st, Error *err);
Status checkpoint_list_gguf(TensorList *list, const Gguf *g, Error *err);
