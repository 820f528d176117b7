/* A file of weights: opened once, its size remembered, read at any place by any thread. Not mapped: a file that
 * somebody else cuts short is an error, not a SIGBUS. */
#pragma once

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

typedef struct DataFile {
    int      fd;    /* -1 = not open */
    char    *path;  /* owned */
    uint64_t bytes; /* at open */
} DataFile;

/* ERR_NOT_FOUND without such a file; directories and devices are refused. After an error it can still be closed. */
Status data_file_open(DataFile *f, const char *path, Error *err);
void   data_file_close(DataFile *f);

/* Reads n bytes at `offset`, all or an error. */
Status data_file_read(const DataFile *f, uint64_t offset, void *out, size_t n, Error *err);

/* The file still has the size that it had at open. */
Status data_file_check_size(const DataFile *f, Error *err);
