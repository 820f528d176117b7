/* Where compiled tokenizers are kept: CACHE_DIR/tokenizer-<hash of the source's path>.bin
 *
 *     size, mtime and ctime as when it was compiled ──> taken, the source is not read
 *     they differ, but the source's hash is the same ─> taken, and stored again with the new times
 *     anything else: absent, cut short, damaged ──────> compiled and stored
 *
 * A cache that cannot be read or written costs time, never an error. */
#include "text/tokenizer_impl.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "tensor/gguf.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { MAX_SOURCE_BYTES = 256 << 20, MAX_IMAGE_BYTES = 256 << 20 };

void tokenizer_default_cache_dir(char *out, size_t size)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (xdg && xdg[0] == '/') n = snprintf(out, size, "%s/tandem", xdg);
    else if (home && home[0] == '/') n = snprintf(out, size, "%s/.cache/tandem", home);
    if (n < 0 || (size_t)n >= size) out[0] = '\0';
}

static int64_t nanoseconds(struct timespec t)
{
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static Status stamp_file(SourceStamp *stamp, const char *path, Error *err)
{
    struct stat st;
    *stamp = (SourceStamp){ 0 };
    if (stat(path, &st) != 0) {
        if (errno == ENOENT || errno == ENOTDIR) return error_set(err, ERR_NOT_FOUND, "there is no file %s", path);
        return error_set(err, ERR_IO, "cannot examine %s: %s", path, strerror(errno));
    }
    stamp->bytes = (uint64_t)st.st_size;
    stamp->mtime_ns = nanoseconds(st.st_mtim);
    stamp->ctime_ns = nanoseconds(st.st_ctim);
    return OK;
}

static bool same_times(const SourceStamp *a, const SourceStamp *b)
{
    return a->bytes == b->bytes && a->mtime_ns == b->mtime_ns && a->ctime_ns == b->ctime_ns;
}

/* Name of the cache file for path; false when there can be none. */
static bool cache_name(char out[PATH_MAX], const char *path, const char *cache_dir)
{
    char real[PATH_MAX];
    uint8_t sha[32];
    if (!cache_dir || !*cache_dir || !realpath(path, real)) return false;
    if (!bytes_sha(real, strlen(real), sha)) return false;
    int n = snprintf(out, PATH_MAX, "%s/tokenizer-", cache_dir);
    if (n < 0 || n + 20 >= PATH_MAX) return false;
    for (int i = 0; i < 8; i++) n += snprintf(out + n, (size_t)(PATH_MAX - n), "%02x", sha[i]);
    snprintf(out + n, (size_t)(PATH_MAX - n), ".bin");
    return true;
}

/* The image in the cache file, if it can be opened; NULL otherwise. */
static char *read_image(const char *name, size_t *n)
{
    Error ignored = { 0 };
    Vocab vocab;
    char *image;
    if (file_read(name, MAX_IMAGE_BYTES, &image, n, &ignored) != OK) return NULL;
    if (image_open(&vocab, image, *n, name, &ignored) == OK) return image;
    log_debug("text", "%s; it is made again", ignored.text);
    mem_free(image);
    return NULL;
}

static void store_image(const char *name, const char *cache_dir, const char *image, size_t n)
{
    Error why = { 0 };
    Status status = dir_make(cache_dir, &why);
    if (status == OK) status = file_write_atomic(name, image, n, &why);
    if (status != OK) log_debug("text", "the compiled tokenizer is not kept: %s", why.text);
}

/* Cached image and stamp of the source as it is now. Takes the image if its source had the same content; then the times
 * in it are brought up to date. */
static bool source_unchanged(char *image, size_t n, const SourceStamp *stamp, const char *json, size_t n_json)
{
    const SourceStamp *then = image_stamp(image);
    if (then->bytes != n_json || memcmp(then->sha, stamp->sha, sizeof then->sha) != 0) return false;
    image_restamp(image, n, stamp);
    return true;
}

/* Reads the source: `cached` (or NULL) is used when it was made from the same bytes, freed when not. */
static Status make_image(char **image, size_t *n, const char *path, SourceStamp *stamp, char *cached, Error *err)
{
    char *json;
    size_t n_json;
    Status status = gguf_is_path(path) ? gguf_tokenizer_json(&json, &n_json, path, err)
                                       : file_read(path, MAX_SOURCE_BYTES, &json, &n_json, err);
    if (status == OK && !bytes_sha(json, n_json, stamp->sha))
        status = error_set(err, ERR_NOMEM, "no memory to read %s", path);
    if (status == OK && cached && source_unchanged(cached, *n, stamp, json, n_json)) {
        mem_free(json);
        *image = cached;
        return OK;
    }
    mem_free(cached);
    if (status != OK) {
        mem_free(json);
        return status;
    }
    Buf buf;
    buf_init(&buf, MAX_IMAGE_BYTES);
    status = image_compile(&buf, json, n_json, path, stamp, err);
    mem_free(json);
    if (status != OK) {
        buf_free(&buf);
        return status;
    }
    *image = buf.data;
    *n = buf.len;
    return OK;
}

Status cache_take_image(char **image, size_t *n, const char *path, const char *cache_dir, Error *err)
{
    char name[PATH_MAX];
    SourceStamp stamp;
    *image = NULL;
    *n = 0;
    Status status = stamp_file(&stamp, path, err); /* before reading: a later change makes the stamp stale, not false */
    if (status != OK) return status;
    bool has_cache = cache_name(name, path, cache_dir);
    char *cached = has_cache ? read_image(name, n) : NULL;
    if (cached && same_times(image_stamp(cached), &stamp)) {
        *image = cached;
        return OK;
    }
    status = make_image(image, n, path, &stamp, cached, err);
    if (status == OK && has_cache) store_image(name, cache_dir, *image, *n);
    return status;
}
