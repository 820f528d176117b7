/* A file of weights: opened once, its size remembered, read at any place by any thread. Not mapped: a file that
 * somebody else cuts short is an error, not a SIGBUS.
 *
 * Two ways to read. data_file_read() is for headers: any place, any destination, through the page cache.
 * data_file_stage() is for weights, which nobody reads twice: it leaves the page cache as it was. */
#pragma once

#include "base/error.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef struct DataFile {
    int         fd;             /* -1 = not open */
    atomic_int  direct;         /* the same file past the page cache: a descriptor, or one of data_file.c's marks */
    atomic_bool refuses_direct; /* it was opened so, but cannot be read */
    bool        sees_cache;     /* the system tells us which of its pages are cached: only those who may write it hear that */
    char       *path;           /* owned */
    uint64_t    bytes;          /* at open */
} DataFile;

/* ERR_NOT_FOUND without such a file; directories and devices are refused. After an error it can still be closed. */
Status data_file_open(DataFile *f, const char *path, Error *err);
void   data_file_close(DataFile *f);

/* Reads n bytes at `offset`, all or an error. */
Status data_file_read(const DataFile *f, uint64_t offset, void *out, size_t n, Error *err);

/* Reads n bytes at `offset` into staging, which begins on a page and has data_file_room(n) bytes; *at is where in it they
 * are. What is in the page cache comes from there; the rest past it, or, where the file system does not do that, through
 * it, and is dropped again. */
enum { DATA_FILE_PAGE = 4096 };
static inline size_t data_file_whole_pages(size_t n)
{
    return (n + DATA_FILE_PAGE - 1) / DATA_FILE_PAGE * DATA_FILE_PAGE;
}
size_t data_file_room(size_t n);
Status data_file_stage(DataFile *f, uint64_t offset, size_t n, void *staging, void **at, Error *err);

/* The file still has the size that it had at open. */
Status data_file_check_size(const DataFile *f, Error *err);
