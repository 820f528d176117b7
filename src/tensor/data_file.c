/* Files of weights: open, read at a place, notice when the size changes.
 *
 * Reading past the page cache (O_DIRECT) wants whole pages in the file and in memory, so what is read begins up to a page
 * before what is wanted and ends up to a page behind it:
 *
 *     file      |page.....|page.....|page.....|      offset not on a page, n any number
 *     wanted         [==================]
 *     staging   |....[==================]....|       *at = staging + offset % page
 *
 * A file that is read for the first time this way gets a second descriptor; NOT_TRIED and REFUSED stand for it otherwise. */
#include "tensor/data_file.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NOT_TRIED = -2, REFUSED = -1 };
enum { MAX_LOOK_PAGES = 4096 }; /* longer pieces are not looked for with mincore */
enum { SYS_CACHESTAT = 451 };   /* on every architecture */

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
    *f = (DataFile){ .fd = -1, .direct = NOT_TRIED, .path = mem_strdup(path) };
    if (!f->path) return error_set(err, ERR_NOMEM, "no memory to open %s", path);
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a FIFO must not wait for its writer */
    if (f->fd < 0 && (errno == ENOENT || errno == ENOTDIR)) {
        return error_set(err, ERR_NOT_FOUND, "there is no file %s", path);
    }
    if (f->fd < 0) return error_set(err, ERR_IO, "cannot open %s: %s", path, strerror(errno));
    f->sees_cache = access(path, W_OK) == 0;
    return size_now(f, &f->bytes, err);
}

void data_file_close(DataFile *f)
{
    if (!f->path) return; /* zeroed, or closed already: its descriptors are not ours */
    if (f->fd >= 0) close(f->fd);
    if (f->direct >= 0) close(f->direct);
    mem_free(f->path);
    *f = (DataFile){ .fd = -1, .direct = REFUSED };
}

/* Reads [done, n) of a piece that begins at `offset`. */
static Status read_on(const DataFile *f, uint64_t offset, char *out, size_t done, size_t n, Error *err)
{
    while (done < n) {
        size_t some = n - done < (1u << 30) ? n - done : 1u << 30;
        ssize_t got = pread(f->fd, out + done, some, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return error_set(err, ERR_IO, "cannot read %s: %s", f->path, strerror(errno));
        if (got == 0) return error_set(err, ERR_IO, "%s became shorter while it was being read", f->path);
        done += (size_t)got;
    }
    return OK;
}

Status data_file_read(const DataFile *f, uint64_t offset, void *out, size_t n, Error *err)
{
    return read_on(f, offset, out, 0, n, err);
}

/* ---- past the page cache ---- */

static uint64_t page_down(uint64_t n)
{
    return n & ~(uint64_t)(DATA_FILE_PAGE - 1);
}

size_t data_file_room(size_t n)
{
    return data_file_whole_pages(n) + DATA_FILE_PAGE;
}

/* The file opened again under its name, unless that is another one by now. */
static int open_direct(DataFile *f)
{
    struct stat first, again;
    int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT);
    if (fd < 0) return REFUSED;
    if (fstat(f->fd, &first) == 0 && fstat(fd, &again) == 0 && first.st_dev == again.st_dev &&
        first.st_ino == again.st_ino)
        return fd;
    close(fd);
    return REFUSED;
}

/* The descriptor for it; REFUSED: none. Several threads may come here at once. */
static int direct_of(DataFile *f)
{
    int now = atomic_load(&f->direct);
    if (now != NOT_TRIED) return now;
    int opened = open_direct(f);
    if (atomic_compare_exchange_strong(&f->direct, &now, opened)) return opened;
    if (opened >= 0) close(opened);
    return now;
}

/* Pages of these bytes in the page cache: cachestat(2), which the C library has no name for yet. -1: this system (before
 * Linux 6.5) does not say. */
static int64_t count_cached(const DataFile *f, uint64_t first, uint64_t end)
{
    struct {
        uint64_t at, bytes;
    } range = { first, end - first };
    struct {
        uint64_t cached, dirty, writeback, evicted, recently_evicted;
    } pages;
    return syscall(SYS_CACHESTAT, f->fd, &range, &pages, 0) == 0 ? (int64_t)pages.cached : -1;
}

/* The same question of older systems. The mapping is only asked about, never read. */
static bool mincore_says(const DataFile *f, uint64_t first, size_t n, size_t page)
{
    unsigned char there[MAX_LOOK_PAGES];
    void *map = n <= MAX_LOOK_PAGES ? mmap(NULL, n * page, PROT_READ, MAP_SHARED, f->fd, (off_t)first) : MAP_FAILED;
    if (map == MAP_FAILED) return false;
    bool all = mincore(map, n * page, there) == 0;
    munmap(map, n * page);
    for (size_t i = 0; all && i < n; i++) all = there[i] & 1;
    return all;
}

/* All pages of these bytes are in the page cache. */
static bool is_cached(const DataFile *f, uint64_t first, uint64_t end)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (!f->sees_cache) return false;
    first = first / page * page;
    const size_t n = (size_t)((end - first + page - 1) / page);
    const int64_t cached = count_cached(f, first, end);
    return cached < 0 ? mincore_says(f, first, n, page) : (size_t)cached >= n;
}

/* Whole pages [first, end) into staging; how many bytes came: all, but for the end of the file and trouble. */
static size_t read_direct(DataFile *f, int fd, uint64_t first, uint64_t end, char *staging)
{
    size_t done = 0, n = (size_t)(end - first);
    while (done < n && done % DATA_FILE_PAGE == 0) { /* less than a page: the end of the file */
        ssize_t got = pread(fd, staging + done, n - done, (off_t)(first + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EINVAL) atomic_store(&f->refuses_direct, true);
        if (got <= 0) break;
        done += (size_t)got;
    }
    return done;
}

Status data_file_stage(DataFile *f, uint64_t offset, size_t n, void *staging, void **at, Error *err)
{
    const uint64_t first = page_down(offset), end = page_down(offset + n + DATA_FILE_PAGE - 1);
    const size_t skip = (size_t)(offset - first);
    *at = (char *)staging + skip;
    if (n == 0) return OK;
    const bool was_cached = is_cached(f, first, offset + n);
    const int fd = was_cached ? REFUSED : direct_of(f);
    size_t got = fd >= 0 && !atomic_load(&f->refuses_direct) ? read_direct(f, fd, first, end, staging) : 0;
    if (got >= skip + n) return OK;
    Status s = read_on(f, offset, *at, got > skip ? got - skip : 0, n, err); /* the rest, or what is wrong */
    if (!was_cached) posix_fadvise(f->fd, (off_t)first, (off_t)(end - first), POSIX_FADV_DONTNEED);
    return s;
}

Status data_file_check_size(const DataFile *f, Error *err)
{
    uint64_t now;
    Status s = size_now(f, &now, err);
    if (!s && now != f->bytes) s = error_set(err, ERR_IO, "%s changed its size while it was being read", f->path);
    return s;
}
