/* A directory of a test's own, and files in it. Mistakes of a test stop it by CHECK. */
#pragma once

#include <stddef.h>

typedef struct TempDir {
    char path[64];
} TempDir;

void temp_dir_open(TempDir *t);
void temp_dir_close(TempDir *t); /* removes it with everything in it */

/* The path of name inside, valid until 8 further calls. */
const char *temp_path(const TempDir *t, const char *name);
const char *temp_write(const TempDir *t, const char *name, const void *data, size_t n); /* makes the file; its path */
int         temp_count(const TempDir *t);                                              /* entries that are there */

/* Path below the source tree (TANDEM_SOURCE_ROOT), valid until 8 further calls. */
const char *source_tree(const char *below);
