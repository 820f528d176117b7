/* Between safetensors.c and those who read its two kinds of JSON. */
#pragma once

#include "base/error.h"
#include "tensor/safetensors.h"

enum { SAFETENSORS_MAX_TENSORS = 1 << 18, SAFETENSORS_MAX_NAME = 512 };

typedef struct EntryList {
    SafetensorsEntry *item; /* owned */
    int               n, capacity;
} EntryList;

/* Adds the tensors of one file's JSON header to the list, in the order of their data. Strings are decoded in
 * place, so text[0..n) must outlive the entries; it is overwritten. Offsets count from the start of the data,
 * and the ranges are known to tile [0, *data_bytes) exactly. Names may still be duplicates. */
Status safetensors_parse_header(EntryList *list, char *text, size_t n, int shard, uint64_t *data_bytes, Error *err);

/* The rows of an index, sorted by tensor. File names are plain ones that end in .safetensors. */
typedef struct SafetensorsIndexRow {
    const char *tensor, *file;
} SafetensorsIndexRow;
typedef struct SafetensorsIndex {
    char                *text;
    SafetensorsIndexRow *row;
    int                  n, capacity;
} SafetensorsIndex;
/* After an error it has still to be freed. */
Status      safetensors_index_read(SafetensorsIndex *out, const char *path, Error *err);
const char *safetensors_index_find(const SafetensorsIndex *x, const char *tensor); /* its file; NULL: not listed */
void        safetensors_index_free(SafetensorsIndex *x);
