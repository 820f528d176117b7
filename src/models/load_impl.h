/* Between load.c, which cuts a model's tensors into tasks and shares them out, and load_task.c, which does one. */
#pragma once

#include "models/weights.h"
#include "tensor/data_file.h"

typedef enum LoadSource {
    LOAD_DUMMY_ROWS,   /* dummy numbers, bf16 */
    LOAD_DUMMY_STORED, /* dummy codes and scales: load_dummy.c */
    LOAD_ROWS,         /* plain numbers as they are stored */
    LOAD_STORED,       /* bands of codes and scales that kernels compute with as they are */
    LOAD_DECODED,      /* float32 by checkpoint_decode_rows() */
    LOAD_QUANTIZED,    /* one of the others but LOAD_STORED, rounded to item->quantize: load_quantize.c */
} LoadSource;

typedef struct LoadTask {
    const WeightItem       *item;
    const CheckpointTensor *tensor;    /* NULL: dummy */
    LoadSource              source, plain; /* plain: of the numbers that are rounded */
    DType                   dtype;     /* of numbers in staging */
    int64_t                 first, n;  /* rows, or inputs where those are outermost; a vector is one row */
    size_t                  row_bytes; /* of a row of numbers in staging */
    uint64_t                hash;      /* of what was loaded */
} LoadTask;

/* What all tasks of a loader share. */
typedef struct LoadContext {
    const Checkpoint   *file; /* NULL: dummy */
    Backend            *backend;
    const ModelOptions *options;
} LoadContext;

/* What it is of one item, and how many rows make a good task of it. */
LoadTask load_task_of(const WeightItem *item, const Checkpoint *file);
int64_t  load_task_rows(const LoadTask *t);

/* Bytes as they are stored; and bytes of staging, which begins on a page. */
size_t load_task_bytes(const LoadTask *t);
size_t load_task_room(const LoadTask *t);

/* Gets the bytes; then checks them, hashes them and puts them into their place. */
typedef struct LoadStaged {
    char          *staging;
    const char    *rows;   /* numbers in it, or ... */
    CheckpointBand stored; /* ... a part of a stored matrix */
} LoadStaged;
Status load_task_read(const LoadContext *c, const LoadTask *t, void *staging, LoadStaged *out, Error *err);
Status load_task_put(const LoadContext *c, LoadTask *t, const LoadStaged *staged, Error *err);

/* Dummy numbers, bf16 or bands of codes and scales. */
void    load_dummy_rows(const LoadContext *c, const LoadTask *t, uint16_t *out);
int64_t load_dummy_band(const LoadTask *t, size_t bytes); /* rows or inputs of a task of about so many bytes */
size_t  load_dummy_room(const LoadTask *t);
void    load_dummy_stored(const LoadContext *c, const LoadTask *t, void *staging, CheckpointBand *out);
float   load_dummy_global(const WeightItem *item);

/* The same three for a task that rounds. */
int64_t load_quantize_rows(const LoadTask *t);
size_t  load_quantize_room(const LoadTask *t);
Status  load_quantize_put(const LoadContext *c, LoadTask *t, char *staging, Error *err);

/* Rows of a matrix, plain or stored, into their place; their hash is added to the task's. */
void   load_put_matrix(LoadTask *t, const char *rows);
Status load_put_stored(LoadTask *t, const CheckpointBand *band, Error *err);

/* Numbers of an item. */
int64_t weight_item_count(const WeightItem *item);
