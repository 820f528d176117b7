/* Files for parsers that want a path. */
#include "fuzz/fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FILES = 4 };

static char dir[64];
static struct {
    char path[128];
    int  fd;
} files[MAX_FILES];
static int n_files;

static void clean(void)
{
    for (int i = 0; i < n_files; i++) unlink(files[i].path);
    rmdir(dir);
}

const char *scratch_dir(void)
{
    if (dir[0]) return dir;
    /* In memory where there is such a place: a run is a few writes. */
    snprintf(dir, sizeof dir, "%s/tandem-fuzz-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    CHECK(mkdtemp(dir));
    atexit(clean);
    return dir;
}

static int file_of(const char *name)
{
    char path[sizeof files[0].path];
    snprintf(path, sizeof path, "%s/%s", scratch_dir(), name);
    for (int i = 0; i < n_files; i++) {
        if (strcmp(files[i].path, path) == 0) return i;
    }
    CHECK(n_files < MAX_FILES);
    snprintf(files[n_files].path, sizeof path, "%s", path);
    files[n_files].fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(files[n_files].fd >= 0);
    return n_files++;
}

const char *scratch_file(const char *name, const void *data, size_t n)
{
    int i = file_of(name);
    CHECK(ftruncate(files[i].fd, 0) == 0);
    CHECK(pwrite(files[i].fd, data, n, 0) == (ssize_t)n);
    return files[i].path;
}
