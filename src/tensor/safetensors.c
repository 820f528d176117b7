/* Safetensors: a checkpoint of one file or many, checked completely before anything is read from it.
 *
 *     open every file -> parse its header (safetensors_header.c) -> sort all names -> compare with the index
 *
 * Always after open: names are unique, every range lies inside its file as it was at open, and at(i) goes in the
 * order of files and of data inside them, so a loader that walks it reads forwards. */
#include "tensor/safetensors.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/planted.h"
#include "tensor/data_file.h"
#include "tensor/safetensors_impl.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_SHARDS = 1000,              /* each holds a file descriptor */
    MAX_HEADER_BYTES = 24 << 20,    /* the format allows 100 MB; the largest published ones have a few */
};

typedef struct Shard {
    DataFile file;
    char    *header; /* owned, as are the names inside it */
} Shard;

struct Safetensors {
    Shard    *shard;
    int       n_shards;
    EntryList entries;
    int      *by_name; /* entry numbers, sorted by name */
    uint64_t  total_bytes;
};

static void shard_close(Shard *s)
{
    data_file_close(&s->file);
    mem_free(s->header);
}

/* Why the first eight bytes are not a header length we can follow: the usual accidents by name. */
static Status refuse_length(const Shard *s, uint64_t length, Error *err)
{
    char start[64];
    size_t n = s->file.bytes < sizeof start ? (size_t)s->file.bytes : sizeof start;
    if (s->file.bytes == 0) return error_set(err, ERR_INPUT, "%s is empty", s->file.path);
    Status status = data_file_read(&s->file, 0, start, n, err);
    if (status != OK) return status;
    if (file_is_lfs_pointer(start, n)) {
        return error_set(err, ERR_INPUT, "%s is a git-lfs pointer, not the file itself: run git lfs pull",
                         s->file.path);
    }
    if (s->file.bytes < 8) {
        return error_set(err, ERR_INPUT, "%s has only %" PRIu64 " bytes: it is no safetensors file", s->file.path,
                         s->file.bytes);
    }
    if (length > MAX_HEADER_BYTES) {
        return error_set(err, ERR_INPUT, "%s announces a header of %" PRIu64 " bytes: it is no safetensors file",
                         s->file.path, length);
    }
    return error_set(err, ERR_INPUT,
                     "%s is cut short: its header has %" PRIu64 " bytes, the whole file %" PRIu64 "; download it again",
                     s->file.path, length, s->file.bytes);
}

static Status read_length(const Shard *s, uint64_t *length, Error *err)
{
    unsigned char b[8];
    *length = 0;
    if (s->file.bytes < sizeof b) return refuse_length(s, 0, err);
    Status status = data_file_read(&s->file, 0, b, sizeof b, err);
    if (status != OK) return status;
    for (int i = 7; i >= 0; i--) *length = *length << 8 | b[i];
    bool possible = *length <= MAX_HEADER_BYTES && *length <= s->file.bytes - 8;
    return possible ? OK : refuse_length(s, *length, err);
}

/* The data must end where the file ends. */
static Status check_end(const Shard *s, uint64_t end, Error *err)
{
    const uint64_t now = s->file.bytes;
    Status status = data_file_check_size(&s->file, err);
    if (status != OK) return status;
    if (end > now && !PLANTED("safetensors")) {
        return error_set(err, ERR_INPUT,
                         "%s is cut short: its tensors end at byte %" PRIu64 ", the file at %" PRIu64
                         "; download it again",
                         s->file.path, end, now);
    }
    if (end < now) {
        return error_set(err, ERR_INPUT, "%s has %" PRIu64 " bytes after its last tensor", s->file.path, now - end);
    }
    return OK;
}

/* Header of shard number `i` into the list of entries. */
static Status read_header(Safetensors *st, int i, Error *err)
{
    Shard *s = &st->shard[i];
    uint64_t length, data_bytes;
    Status status = read_length(s, &length, err);
    if (status != OK) return status;
    s->header = mem_realloc(NULL, (size_t)length + 1);
    if (!s->header) return error_set(err, ERR_NOMEM, "no memory for the header of %s", s->file.path);
    if ((status = data_file_read(&s->file, 8, s->header, (size_t)length, err)) != OK) return status;

    int first = st->entries.n;
    status = safetensors_parse_header(&st->entries, s->header, (size_t)length, i, &data_bytes, err);
    if (status != OK) {
        error_prefix(err, "%s", s->file.path);
        return status;
    }
    for (int k = first; k < st->entries.n; k++) st->entries.item[k].offset += 8 + length;
    st->total_bytes += data_bytes;
    return check_end(s, 8 + length + data_bytes, err);
}

static Status add_file(Safetensors *st, const char *path, Error *err)
{
    Status status = data_file_open(&st->shard[st->n_shards++].file, path, err);
    return status == OK ? read_header(st, st->n_shards - 1, err) : status;
}

static int compare_names(const void *a, const void *b, void *items)
{
    const SafetensorsEntry *e = items;
    return strcmp(e[*(const int *)a].name, e[*(const int *)b].name);
}

/* Sorts the names; equal ones then stand side by side. */
static Status sort_names(Safetensors *st, Error *err)
{
    int n = st->entries.n;
    const SafetensorsEntry *e = st->entries.item;
    st->by_name = mem_alloc_array((size_t)n, sizeof *st->by_name);
    if (!st->by_name) return error_set(err, ERR_NOMEM, "no memory for an index of %d tensors", n);
    for (int i = 0; i < n; i++) st->by_name[i] = i;
    qsort_r(st->by_name, (size_t)n, sizeof *st->by_name, compare_names, st->entries.item);
    for (int i = 1; i < n; i++) {
        const SafetensorsEntry *a = &e[st->by_name[i - 1]], *b = &e[st->by_name[i]];
        if (strcmp(a->name, b->name) != 0) continue;
        const char *one = st->shard[a->shard].file.path, *other = st->shard[b->shard].file.path;
        if (a->shard == b->shard) return error_set(err, ERR_INPUT, "%s: tensor %.120s appears twice", one, a->name);
        return error_set(err, ERR_INPUT, "tensor %.120s is in %s and in %s", a->name, one, other);
    }
    return OK;
}

/* --- directories ------------------------------------------------------------------------------------------ */

/* File names, each owned, sorted. */
typedef struct Names {
    char **item;
    int    n, capacity;
} Names;

static void names_free(Names *names)
{
    for (int i = 0; i < names->n; i++) mem_free(names->item[i]);
    mem_free(names->item);
    *names = (Names){ 0 };
}

static Status names_add(Names *names, const char *name, Error *err)
{
    if (names->n == MAX_SHARDS)
        return error_set(err, ERR_INPUT, "there are more than %d safetensors files", MAX_SHARDS);
    if (names->n == names->capacity) {
        int capacity = names->capacity ? 2 * names->capacity : 16;
        char **item = mem_realloc(names->item, (size_t)capacity * sizeof *item);
        if (!item) return error_set(err, ERR_NOMEM, "no memory for a list of %d files", capacity);
        names->item = item;
        names->capacity = capacity;
    }
    names->item[names->n] = mem_strdup(name);
    if (!names->item[names->n]) return error_set(err, ERR_NOMEM, "no memory for a file name");
    names->n++;
    return OK;
}

static int compare_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void names_sort(Names *names)
{
    if (names->n > 0) qsort(names->item, (size_t)names->n, sizeof *names->item, compare_text);
}

static bool names_have(const Names *names, const char *name)
{
    return names->n > 0 && bsearch(&name, names->item, (size_t)names->n, sizeof *names->item, compare_text);
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Mistral's own layout, beside the usual one: other tensor names, the same weights once more. */
static bool is_consolidated(const char *name)
{
    return strncmp(name, "consolidated", strlen("consolidated")) == 0;
}

/* All *.safetensors of dir; the consolidated ones only when there are no others. */
static Status list_dir(Names *names, const char *dir, Error *err)
{
    Names consolidated = { 0 };
    DIR *d = opendir(dir);
    if (!d) return error_set(err, ERR_IO, "cannot list %s: %s", dir, strerror(errno));
    Status status = OK;
    for (struct dirent *e; status == OK && (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.' || !ends_with(e->d_name, ".safetensors")) continue;
        status = names_add(is_consolidated(e->d_name) ? &consolidated : names, e->d_name, err);
    }
    closedir(d);
    if (status == OK && names->n == 0) {
        *names = consolidated;
    } else {
        names_free(&consolidated);
    }
    names_sort(names);
    return status;
}

/* The different files that the index names. */
static Status list_index(Names *names, const SafetensorsIndex *index, Error *err)
{
    const char *last = NULL;
    for (int i = 0; i < index->n; i++) {
        const char *file = index->row[i].file;
        if ((last && strcmp(last, file) == 0) || names_have(names, file)) continue;
        Status status = names_add(names, file, err);
        if (status != OK) return status;
        names_sort(names);
        last = file;
    }
    return OK;
}

static Status add_files(Safetensors *st, const char *dir, const Names *names, Error *err)
{
    st->shard = mem_alloc_array((size_t)names->n, sizeof *st->shard);
    if (!st->shard) return error_set(err, ERR_NOMEM, "no memory for %d files", names->n);
    for (int i = 0; i < names->n; i++) {
        char path[PATH_MAX];
        Status status = path_join(path, sizeof path, dir, names->item[i], err);
        if (status == OK) status = add_file(st, path, err);
        if (status != OK) return status;
    }
    return OK;
}

/* Index and headers must name the same tensors in the same files. */
static Status compare_index(const Safetensors *st, const SafetensorsIndex *index, const Names *names, const char *index_path,
                            Error *err)
{
    for (int i = 0; i < index->n; i++) {
        const SafetensorsIndexRow *row = &index->row[i];
        const SafetensorsEntry *e = safetensors_find(st, row->tensor);
        if (e && strcmp(names->item[e->shard], row->file) == 0) continue;
        return error_set(err, ERR_INPUT, "%s says that tensor %.120s is in %.120s, %s%.120s", index_path, row->tensor,
                         row->file, e ? "but it is in " : "which does not have it", e ? names->item[e->shard] : "");
    }
    for (int i = 0; i < st->entries.n && st->entries.n != index->n; i++) {
        const SafetensorsEntry *e = &st->entries.item[i];
        if (safetensors_index_find(index, e->name)) continue;
        return error_set(err, ERR_INPUT, "%s does not list tensor %.120s of %.120s", index_path, e->name,
                         names->item[e->shard]);
    }
    return OK;
}

static Status open_index(Safetensors *st, const char *dir, const char *index_path, Error *err)
{
    SafetensorsIndex index;
    Names names = { 0 };
    Status status = safetensors_index_read(&index, index_path, err);
    if (status == OK) status = list_index(&names, &index, err);
    if (status == OK) status = add_files(st, dir, &names, err);
    if (status == OK) status = sort_names(st, err);
    if (status == OK) status = compare_index(st, &index, &names, index_path, err);
    names_free(&names);
    safetensors_index_free(&index);
    return status;
}

static Status open_all(Safetensors *st, const char *dir, Error *err)
{
    Names names = { 0 };
    Status status = list_dir(&names, dir, err);
    if (status == OK && names_have(&names, "model.safetensors")) {
        names_free(&names);
        status = names_add(&names, "model.safetensors", err);
    }
    if (status == OK && names.n == 0) {
        status = error_set(err, ERR_NOT_FOUND, "%s holds no weights: there is no .safetensors file in it", dir);
    }
    if (status == OK) status = add_files(st, dir, &names, err);
    if (status == OK) status = sort_names(st, err);
    names_free(&names);
    return status;
}

static Status open_dir(Safetensors *st, const char *dir, Error *err)
{
    char index_path[PATH_MAX];
    Status status = path_join(index_path, sizeof index_path, dir, "model.safetensors.index.json", err);
    if (status != OK) return status;
    return file_exists(index_path) ? open_index(st, dir, index_path, err) : open_all(st, dir, err);
}

static Status open_file(Safetensors *st, const char *path, Error *err)
{
    st->shard = mem_alloc(sizeof *st->shard);
    if (!st->shard) return error_set(err, ERR_NOMEM, "no memory to open %s", path);
    Status status = add_file(st, path, err);
    return status == OK ? sort_names(st, err) : status;
}

/* --- the face --------------------------------------------------------------------------------------------- */

Status safetensors_open(Safetensors **out, const char *path, Error *err)
{
    *out = NULL;
    Safetensors *st = mem_alloc(sizeof *st);
    if (!st) return error_set(err, ERR_NOMEM, "no memory to open %s", path);
    Status status = dir_exists(path) ? open_dir(st, path, err) : open_file(st, path, err);
    if (status == OK) {
        *out = st;
    } else {
        safetensors_close(st);
    }
    return status;
}

void safetensors_close(Safetensors *st)
{
    if (!st) return;
    for (int i = 0; i < st->n_shards; i++) shard_close(&st->shard[i]);
    mem_free(st->shard);
    mem_free(st->entries.item);
    mem_free(st->by_name);
    mem_free(st);
}

int safetensors_count(const Safetensors *st)
{
    return st->entries.n;
}

const SafetensorsEntry *safetensors_at(const Safetensors *st, int i)
{
    CHECK(i >= 0 && i < st->entries.n);
    return &st->entries.item[i];
}

const SafetensorsEntry *safetensors_find(const Safetensors *st, const char *name)
{
    int low = 0, high = st->entries.n;
    while (low < high) {
        int middle = low + (high - low) / 2;
        const SafetensorsEntry *e = &st->entries.item[st->by_name[middle]];
        int order = strcmp(name, e->name);
        if (order == 0) return e;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

uint64_t safetensors_total_bytes(const Safetensors *st)
{
    return st->total_bytes;
}

Status safetensors_read(const Safetensors *st, const SafetensorsEntry *e, uint64_t first, void *out, size_t n,
                        Error *err)
{
    CHECK(first <= e->bytes && n <= e->bytes - first);
    return data_file_read(&st->shard[e->shard].file, e->offset + first, out, n, err);
}

Status safetensors_stage(const Safetensors *st, const SafetensorsEntry *e, uint64_t first, size_t n, void *staging,
                         void **at, Error *err)
{
    CHECK(first <= e->bytes && n <= e->bytes - first);
    return data_file_stage(&st->shard[e->shard].file, e->offset + first, n, staging, at, err);
}
