/* A safetensors checkpoint: one file, or shards with an index, opened and fully checked.
 *
 * Checks: spec in docs/spec/quantization.md section 1 (header length, UTF-8, JSON without duplicates, ranges that
 * tile the data exactly, products without overflow, plain shard names, index and headers agreeing).
 * Data is read by pread into memory of the caller: no mmap, so a file cut short by somebody else is
 * an error, not a SIGBUS. Any thread may read after open. */
#pragma once

#include "base/error.h"
#include "tensor/dtype.h"

enum { SAFETENSORS_MAX_DIMS = 8 };

typedef struct SafetensorsEntry {
    const char *name;                        /* borrowed from the Safetensors */
    DType       dtype;                       /* DT_OTHER / DT_NONE when we cannot compute with it */
    const char *dtype_text;                  /* as in the file */
    int         n_dims;
    int64_t     shape[SAFETENSORS_MAX_DIMS];
    int         shard;                       /* which file */
    uint64_t    offset, bytes;               /* absolute place in that file */
} SafetensorsEntry;

typedef struct Safetensors Safetensors;

/* path: a .safetensors file or a model directory (index.json + shards, or model.safetensors, or every
 * *.safetensors). */
Status safetensors_open(Safetensors **out, const char *path, Error *err);
void   safetensors_close(Safetensors *st);

int                     safetensors_count(const Safetensors *st);
const SafetensorsEntry *safetensors_at(const Safetensors *st, int i);
const SafetensorsEntry *safetensors_find(const Safetensors *st, const char *name); /* NULL: absent */
uint64_t                safetensors_total_bytes(const Safetensors *st); /* of all tensor data */

/* Reads bytes [first, first + n) of the tensor's data into out. */
Status safetensors_read(const Safetensors *st, const SafetensorsEntry *e, uint64_t first, void *out,
                        size_t n, Error *err);

/* The same past the page cache: data_file_stage(). */
Status safetensors_stage(const Safetensors *st, const SafetensorsEntry *e, uint64_t first, size_t n, void *staging,
                         void **at, Error *err);

/* Writes one file: entries' name, dtype, n_dims, shape; data[i] holds entry i's bytes. */
Status safetensors_write(const char *path, const SafetensorsEntry *entries, const void *const *data,
                         int n, Error *err);
