/* Whole files and small path questions. Any thread. */
#pragma once

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

/* Reads all of path into *data (owned, mem_free; NUL-terminated beyond *n). Refuses more than
 * max_bytes, directories and devices. ERR_NOT_FOUND when there is no such file. */
Status file_read(const char *path, size_t max_bytes, char **data, size_t *n, Error *err);

/* Writes path through a temporary file beside it and a rename, so readers see all or nothing. */
Status file_write_atomic(const char *path, const void *data, size_t n, Error *err);

/* The same from pieces, one behind the other. */
typedef struct FilePart {
    const void *data;
    size_t      n;
} FilePart;
Status file_write_parts(const char *path, const FilePart *parts, int n_parts, Error *err);

/* The few lines that a clone without git-lfs has in place of a large file. */
bool file_is_lfs_pointer(const void *data, size_t n);

bool file_exists(const char *path);
bool dir_exists(const char *path);
Status dir_make(const char *path, Error *err); /* like mkdir -p, mode 0700 */

/* dir + "/" + name into out (size bytes); ERR_INPUT when it does not fit. */
Status path_join(char *out, size_t size, const char *dir, const char *name, Error *err);
