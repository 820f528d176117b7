/* Temporary directories: flat, or one level of directories deep, removed without following links. */
#define _XOPEN_SOURCE 700
#include "support/temp_dir.h"

#include "base/error.h"

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *next_path(void)
{
    static char paths[8][512];
    static int turn;
    return paths[turn++ % 8];
}

void temp_dir_open(TempDir *t)
{
    snprintf(t->path, sizeof t->path, "/tmp/tandem-test-XXXXXX");
    CHECK(mkdtemp(t->path) != NULL);
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    return remove(path);
}

void temp_dir_close(TempDir *t)
{
    CHECK(nftw(t->path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) == 0);
}

const char *temp_path(const TempDir *t, const char *name)
{
    char *path = next_path();
    int n = snprintf(path, 512, "%s/%s", t->path, name);
    CHECK(n > 0 && n < 512);
    return path;
}

const char *temp_write(const TempDir *t, const char *name, const void *data, size_t n)
{
    const char *path = temp_path(t, name);
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL);
    CHECK(fwrite(data, 1, n, f) == n && fclose(f) == 0);
    return path;
}

int temp_count(const TempDir *t)
{
    int n = 0;
    DIR *d = opendir(t->path);
    CHECK(d != NULL);
    for (struct dirent *e; (e = readdir(d)) != NULL;) n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

const char *source_tree(const char *below)
{
    const char *root = getenv("TANDEM_SOURCE_ROOT");
    CHECK(root != NULL);
    char *path = next_path();
    int n = snprintf(path, 512, "%s/%s", root, below);
    CHECK(n > 0 && n < 512);
    return path;
}
