/* Files of weights: open, read at a place, notice when the size changes. */
#include "tensor/data_file.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static Status size_now(const DataFile *f, uint64_t *bytes, Error *err)
{
    struct stat st;
    if (fstat(f->fd, &st) != 0) return error_set(err, ERR_IO, "cannot examine %s: %s", f->path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return error_set(err, ERR_INPUT, "%s is not a regular file", f->path);
    *bytes = (uint64_t)st.st_size;
    return OK;
}

Status data_file_open(DataFile *f, const char *path, Error *err)
{
    *f = (DataFile){ .fd = -1, .path = mem_strdup(path) };
    if (!f->path) return error_set(err, ERR_NOMEM, "no memory to open %s", path);
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a FIFO must not wait for its writer */
    if (f->fd < 0 && (errno == ENOENT || errno == ENOTDIR)) {
        return error_set(err, ERR_NOT_FOUND, "there is no file %s", path);
    }
    if (f->fd < 0) return error_set(err, ERR_IO, "cannot open %s: %s", path, strerror(errno));
    return size_now(f, &f->bytes, err);
}

void data_file_close(DataFile *f)
{
    if (f->fd >= 0) close(f->fd);
    mem_free(f->path);
    *f = (DataFile){ .fd = -1 };
}

Status data_file_read(const DataFile *f, uint64_t offset, void *out, size_t n, Error *err)
{
    char *to = out;
    while (n > 0) {
        size_t some = n < (1u << 30) ? n : 1u << 30;
        ssize_t got = pread(f->fd, to, some, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return error_set(err, ERR_IO, "cannot read %s: %s", f->path, strerror(errno));
        if (got == 0) return error_set(err, ERR_IO, "%s became shorter while it was being read", f->path);
        to += got;
        offset += (uint64_t)got;
        n -= (size_t)got;
    }
    return OK;
}

Status data_file_check_size(const DataFile *f, Error *err)
{
    uint64_t now;
    Status s = size_now(f, &now, err);
    if (!s && now != f->bytes) s = error_set(err, ERR_IO, "%s changed its size while it was being read", f->path);
    return s;
}
