/* model.safetensors.index.json: which file holds which tensor.
 *
 *     { "metadata": { ... }, "weight_map": { "model.norm.weight": "model-00002-of-00002.safetensors", ... } }
 *
 * Rows point into the text, so that a list takes its own size and a row's two pointers, whatever it says. */
#include "tensor/safetensors_impl.h"

#include "base/file.h"
#include "base/memory.h"
#include "tensor/scan.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_INDEX_BYTES = 24 << 20 };

static Status add_row(SafetensorsIndex *x, const char *tensor, const char *file, Error *err)
{
    if (x->n == SAFETENSORS_MAX_TENSORS)
        return error_set(err, ERR_INPUT, "it lists more than %d tensors", SAFETENSORS_MAX_TENSORS);
    if (x->n == x->capacity) {
        int capacity = x->capacity ? 2 * x->capacity : 256;
        SafetensorsIndexRow *row = mem_realloc(x->row, (size_t)capacity * sizeof *row);
        if (!row) return error_set(err, ERR_NOMEM, "no memory for a list of %d tensors", capacity);
        x->row = row;
        x->capacity = capacity;
    }
    x->row[x->n++] = (SafetensorsIndexRow){ tensor, file };
    return OK;
}

/* Names of files inside the directory, nothing that leads out of it. */
static bool is_shard_name(const char *name)
{
    static const char end[] = ".safetensors";
    size_t n = strlen(name), m = sizeof end - 1;
    return n >= m && strcmp(name + n - m, end) == 0 && !strchr(name, '/') && !strchr(name, '\\') && !strstr(name, "..");
}

static Status take_row(SafetensorsIndex *x, Scan *s)
{
    char *tensor, *file = NULL;
    Status status = scan_string(s, &tensor);
    if (status == OK && !scan_take(s, ':')) return scan_bad(s, "':' is expected");
    scan_space(s);
    if (status == OK && s->at < s->n && s->text[s->at] == '"') status = scan_string(s, &file);
    if (status != OK) return status;
    if (!file || !is_shard_name(file))
        return error_set(s->err, ERR_INPUT, "the file of tensor %.120s must be a plain name that ends in .safetensors", tensor);
    return add_row(x, tensor, file, s->err);
}

static Status take_map(SafetensorsIndex *x, Scan *s)
{
    if (!scan_take(s, '{')) return OK; /* not an object: there is no map */
    if (scan_take(s, '}')) return OK;
    do {
        Status status = take_row(x, s);
        if (status != OK) return status;
    } while (scan_take(s, ','));
    return scan_take(s, '}') ? OK : scan_bad(s, "',' or '}' is expected");
}

static Status take_index(SafetensorsIndex *x, Scan *s)
{
    bool has_map = false;
    if (!scan_take(s, '{') || scan_take(s, '}')) return OK;
    do {
        char *key;
        Status status = scan_string(s, &key);
        if (status == OK && !scan_take(s, ':')) status = scan_bad(s, "':' is expected");
        if (status != OK) return status;
        const bool is_map = strcmp(key, "weight_map") == 0;
        if (is_map && has_map) return scan_bad(s, "weight_map appears twice");
        has_map = has_map || is_map;
        status = is_map ? take_map(x, s) : scan_skip(s);
        if (status != OK || (is_map && x->n == 0)) return status;
    } while (scan_take(s, ','));
    if (!scan_take(s, '}')) return scan_bad(s, "',' or '}' is expected");
    scan_space(s);
    return s->at == s->n ? OK : scan_bad(s, "something follows the closing brace");
}

static int compare_rows(const void *a, const void *b)
{
    return strcmp(((const SafetensorsIndexRow *)a)->tensor, ((const SafetensorsIndexRow *)b)->tensor);
}

static Status sort_rows(SafetensorsIndex *x, Error *err)
{
    if (x->n == 0) return error_set(err, ERR_INPUT, "it has no weight_map, an object of tensor names");
    qsort(x->row, (size_t)x->n, sizeof *x->row, compare_rows);
    for (int i = 1; i < x->n; i++)
        if (compare_rows(&x->row[i - 1], &x->row[i]) == 0)
            return error_set(err, ERR_INPUT, "it lists tensor %.120s twice", x->row[i].tensor);
    return OK;
}

Status safetensors_index_read(SafetensorsIndex *out, const char *path, Error *err)
{
    size_t n;
    *out = (SafetensorsIndex){ 0 };
    Status status = file_read(path, MAX_INDEX_BYTES, &out->text, &n, err);
    if (status != OK) return status;
    if (file_is_lfs_pointer(out->text, n))
        return error_set(err, ERR_INPUT, "%s is a git-lfs pointer, not the file itself: run git lfs pull", path);
    Scan s = { .text = out->text, .n = n, .what = "it", .err = err };
    status = take_index(out, &s);
    if (status == OK) status = sort_rows(out, err);
    if (status != OK) error_prefix(err, "%s", path);
    return status;
}

const char *safetensors_index_find(const SafetensorsIndex *x, const char *tensor)
{
    SafetensorsIndexRow wanted = { .tensor = tensor };
    const SafetensorsIndexRow *row = x->n ? bsearch(&wanted, x->row, (size_t)x->n, sizeof wanted, compare_rows) : NULL;
    return row ? row->file : NULL;
}

void safetensors_index_free(SafetensorsIndex *x)
{
    mem_free(x->row);
    mem_free(x->text);
    *x = (SafetensorsIndex){ 0 };
}
