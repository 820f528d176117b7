/* Whole files: read with a limit, written all or nothing. */
#include "base/file.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static Status open_failed(const char *path, Error *err)
{
    if (errno == ENOENT || errno == ENOTDIR) return error_set(err, ERR_NOT_FOUND, "there is no file %s", path);
    return error_set(err, ERR_IO, "cannot open %s: %s", path, strerror(errno));
}

/* Reads on to the end of the file. *data holds room + 1 bytes: the one more is where a file that turns out longer
 * than fstat said (one in /proc, or one being written) shows itself, and where the NUL goes otherwise. */
static Status read_all(int fd, const char *path, size_t max_bytes, char **data, size_t room, size_t *n, Error *err)
{
    for (*n = 0;;) {
        ssize_t got = read(fd, *data + *n, room + 1 - *n);
        if (got == 0) return OK;
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return error_set(err, ERR_IO, "cannot read %s: %s", path, strerror(errno));
        *n += (size_t)got;
        if (*n > max_bytes) return error_set(err, ERR_INPUT, "%s is larger than %zu bytes", path, max_bytes);
        if (*n <= room) continue;
        room = 2 * room + 64 < max_bytes ? 2 * room + 64 : max_bytes;
        char *more = mem_realloc(*data, room + 1);
        if (!more) return error_set(err, ERR_NOMEM, "no memory to read %s", path);
        *data = more;
    }
}

static Status read_open(int fd, const char *path, size_t max_bytes, char **data, size_t *n, Error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0) return error_set(err, ERR_IO, "cannot examine %s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode)) return error_set(err, ERR_INPUT, "%s is a directory, not a file", path);
    if (!S_ISREG(st.st_mode)) return error_set(err, ERR_INPUT, "%s is not a regular file", path);
    if ((uint64_t)st.st_size > max_bytes) {
        return error_set(err, ERR_INPUT, "%s is larger than %zu bytes", path, max_bytes);
    }
    *data = mem_realloc(NULL, (size_t)st.st_size + 1);
    if (!*data) return error_set(err, ERR_NOMEM, "no memory to read %s", path);
    Status status = read_all(fd, path, max_bytes, data, (size_t)st.st_size, n, err);
    if (status == OK) {
        (*data)[*n] = '\0';
        return OK;
    }
    mem_free(*data);
    *data = NULL;
    *n = 0;
    return status;
}

Status file_read(const char *path, size_t max_bytes, char **data, size_t *n, Error *err)
{
    *data = NULL;
    *n = 0;
    if (max_bytes > SSIZE_MAX - 1) max_bytes = SSIZE_MAX - 1;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a FIFO must not wait for its writer */
    if (fd < 0) return open_failed(path, err);
    Status status = read_open(fd, path, max_bytes, data, n, err);
    close(fd);
    return status;
}

static bool write_all(int fd, const char *data, size_t n)
{
    while (n > 0) {
        ssize_t wrote = write(fd, data, n);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return false;
        data += wrote;
        n -= (size_t)wrote;
    }
    return true;
}

/* A new file beside path; its name goes to temporary. Not mkstemp: that one makes files nobody else can read. */
static int open_beside(char *temporary, size_t size, const char *path)
{
    static atomic_uint serial;
    for (int tries = 0; tries < 100; tries++) {
        int n = snprintf(temporary, size, "%s.%ld-%u.tmp", path, (long)getpid(), atomic_fetch_add(&serial, 1));
        if (n < 0 || (size_t)n >= size) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}

static bool write_parts(int fd, const FilePart *parts, int n_parts)
{
    for (int i = 0; i < n_parts; i++) {
        if (!write_all(fd, parts[i].data, parts[i].n)) return false;
    }
    return true;
}

Status file_write_atomic(const char *path, const void *data, size_t n, Error *err)
{
    return file_write_parts(path, &(FilePart){ data, n }, 1, err);
}

Status file_write_parts(const char *path, const FilePart *parts, int n_parts, Error *err)
{
    char temporary[PATH_MAX];
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) { /* a rename would replace /dev/null */
        return error_set(err, ERR_INPUT, "cannot write %s: it is not a regular file", path);
    }
    int fd = open_beside(temporary, sizeof temporary, path);
    if (fd < 0) return error_set(err, ERR_IO, "cannot write %s: %s", path, strerror(errno));
    bool ok = write_parts(fd, parts, n_parts) && fsync(fd) == 0;
    int why = errno;
    if (close(fd) != 0 && ok) {
        ok = false;
        why = errno;
    }
    if (ok && rename(temporary, path) == 0) return OK;
    if (ok) why = errno;
    unlink(temporary);
    return error_set(err, ERR_IO, "cannot write %s: %s", path, strerror(why));
}

bool file_is_lfs_pointer(const void *data, size_t n)
{
    static const char first_line[] = "version https://git-lfs.github.com/spec/";
    return n >= sizeof first_line - 1 && memcmp(data, first_line, sizeof first_line - 1) == 0;
}

bool file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool dir_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

Status dir_make(const char *path, Error *err)
{
    char part[PATH_MAX];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof part) return error_set(err, ERR_INPUT, "%.64s... is not a usable directory name", path);
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != '\0') continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0700) != 0 && errno != EEXIST && !dir_exists(part)) {
            return error_set(err, ERR_IO, "cannot make the directory %s: %s", part, strerror(errno));
        }
    }
    if (dir_exists(path)) return OK;
    return error_set(err, ERR_IO, "cannot make the directory %s: a file is in the way", path);
}

Status path_join(char *out, size_t size, const char *dir, const char *name, Error *err)
{
    size_t n = strlen(dir);
    int wrote = snprintf(out, size, "%s%s%s", dir, n > 0 && dir[n - 1] == '/' ? "" : "/", name);
    if (wrote >= 0 && (size_t)wrote < size) return OK;
    if (size) out[0] = '\0';
    return error_set(err, ERR_INPUT, "the path %.64s.../%.64s is longer than %zu bytes", dir, name, size);
}
