/* The JSON header of a safetensors file, read by a scanner that knows only this one shape:
 *
 *     { "name": { "dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12] }, ..., "__metadata__": { "k": "v" } }
 *
 * A general parser would build a tree many times the size of a hostile header; this one keeps nothing but the
 * entries, never recurses, and looks at each byte once. Strings are decoded where they stand (the decoded form is
 * never longer), so a header of 30,000 tensors costs two allocations. */
#include "tensor/safetensors_impl.h"
#include "base/memory.h"
#include "tensor/scan.h"

#include <stdlib.h>

static const int64_t MAX_DIM = (int64_t)1 << 40;
enum { MAX_METADATA = 1 << 16 };

static Status bad_tensor(const Scan *s, const char *name, const char *what)
{
    return error_set(s->err, ERR_INPUT, "tensor %.120s %s", name, what);
}

/* An array of at most max counts. */
static Status take_counts(Scan *s, int64_t *out, int max, int *n)
{
    *n = 0;
    if (!scan_take(s, '[')) return scan_bad(s, "an array is expected");
    if (scan_take(s, ']')) return OK;
    do {
        if (*n == max)
            return scan_bad(s, max == 2 ? "data_offsets has more than two numbers" : "shape has more than 8 dimensions");
        Status status = scan_count(s, &out[*n]);
        if (status != OK) return status;
        ++*n;
    } while (scan_take(s, ','));
    return scan_take(s, ']') ? OK : scan_bad(s, "',' or ']' is expected");
}

/* What the three members of one tensor say. */
typedef struct Description {
    char   *dtype;
    int64_t shape[SAFETENSORS_MAX_DIMS], range[2];
    int     n_dims, n_range;
    bool    has_shape, has_range;
} Description;

static Status take_member(Scan *s, Description *d)
{
    char *key;
    Status status = scan_string(s, &key);
    if (status != OK) return status;
    if (!scan_take(s, ':')) return scan_bad(s, "':' is expected");
    if (strcmp(key, "dtype") == 0 && !d->dtype) return scan_string(s, &d->dtype);
    if (strcmp(key, "shape") == 0 && !d->has_shape) {
        d->has_shape = true;
        return take_counts(s, d->shape, SAFETENSORS_MAX_DIMS, &d->n_dims);
    }
    if (strcmp(key, "data_offsets") == 0 && !d->has_range) {
        d->has_range = true;
        return take_counts(s, d->range, 2, &d->n_range);
    }
    return scan_bad(s, "a tensor has a member twice, or one that is not dtype, shape or data_offsets");
}

/* Bytes that dtype and shape ask for; false when that overflows or is not whole bytes. */
static bool bytes_of(const Description *d, int bits, uint64_t *bytes)
{
    uint64_t n = 1;
    for (int i = 0; i < d->n_dims; i++) {
        if (__builtin_mul_overflow(n, (uint64_t)d->shape[i], &n)) return false;
    }
    if (__builtin_mul_overflow(n, (uint64_t)bits, &n) || n % 8 != 0) return false;
    *bytes = n / 8;
    return true;
}

static Status check_description(const Scan *s, const char *name, const Description *d)
{
    if (!d->dtype || !d->has_shape || d->n_range != 2) return bad_tensor(s, name, "lacks dtype, shape or data_offsets");
    if (!*d->dtype || strlen(d->dtype) > 32) return bad_tensor(s, name, "has a dtype of no sensible length");
    for (int i = 0; i < d->n_dims; i++) {
        if (d->shape[i] > MAX_DIM) return bad_tensor(s, name, "has a dimension over 2^40");
    }
    if (d->range[1] < d->range[0]) return bad_tensor(s, name, "ends before it begins");
    int bits = dtype_bits_of_name(d->dtype);
    if (bits == 0) return OK; /* unknown: an error only if the tensor is needed */
    uint64_t bytes;
    if (!bytes_of(d, bits, &bytes))
        return bad_tensor(s, name, "has a shape that overflows or does not fill whole bytes");
    if (bytes != (uint64_t)(d->range[1] - d->range[0])) {
        return bad_tensor(s, name, "has data_offsets that do not match its dtype and shape");
    }
    return OK;
}

static Status list_add(EntryList *list, const SafetensorsEntry *e, Error *err)
{
    if (list->n == SAFETENSORS_MAX_TENSORS) {
        return error_set(err, ERR_INPUT, "there are more than %d tensors", SAFETENSORS_MAX_TENSORS);
    }
    if (list->n == list->capacity) {
        int capacity = list->capacity ? 2 * list->capacity : 256;
        SafetensorsEntry *item = mem_realloc(list->item, (size_t)capacity * sizeof *item);
        if (!item) return error_set(err, ERR_NOMEM, "no memory for a table of %d tensors", capacity);
        list->item = item;
        list->capacity = capacity;
    }
    list->item[list->n++] = *e;
    return OK;
}

static Status check_name(const Scan *s, const char *name)
{
    if (!*name) return scan_bad(s, "a tensor has no name");
    if (strlen(name) > SAFETENSORS_MAX_NAME) return scan_bad(s, "a tensor's name is longer than 512 bytes");
    for (const char *c = name; *c; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) return scan_bad(s, "a tensor's name holds a control character");
    }
    return OK;
}

static Status take_tensor(Scan *s, const char *name, int shard, EntryList *list)
{
    Description d = { 0 };
    Status status = check_name(s, name);
    if (status != OK) return status;
    if (!scan_take(s, '{')) return scan_bad(s, "'{' is expected");
    if (!scan_take(s, '}')) {
        do {
            if ((status = take_member(s, &d)) != OK) return status;
        } while (scan_take(s, ','));
        if (!scan_take(s, '}')) return scan_bad(s, "',' or '}' is expected");
    }
    if ((status = check_description(s, name, &d)) != OK) return status;

    SafetensorsEntry e = {
        .name = name, .dtype = dtype_of_name(d.dtype), .dtype_text = d.dtype, .n_dims = d.n_dims, .shard = shard,
        .offset = (uint64_t)d.range[0], .bytes = (uint64_t)(d.range[1] - d.range[0]),
    };
    memcpy(e.shape, d.shape, sizeof e.shape);
    return list_add(list, &e, s->err);
}

static int compare_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* "__metadata__": strings that nobody here needs, but a header that lies in them lies. */
static Status take_pairs(Scan *s, char **keys, int *n)
{
    char *value;
    do {
        if (*n == MAX_METADATA) return scan_bad(s, "__metadata__ has more than 65536 members");
        Status status = scan_string(s, &keys[*n]);
        if (status != OK) return status;
        ++*n;
        if (!scan_take(s, ':')) return scan_bad(s, "':' is expected");
        if ((status = scan_string(s, &value)) != OK) return status;
    } while (scan_take(s, ','));
    return scan_take(s, '}') ? OK : scan_bad(s, "',' or '}' is expected");
}

static Status take_metadata(Scan *s)
{
    if (!scan_take(s, '{')) return scan_bad(s, "__metadata__ must be an object");
    if (scan_take(s, '}')) return OK;
    char **keys = mem_realloc(NULL, MAX_METADATA * sizeof *keys);
    if (!keys) return error_set(s->err, ERR_NOMEM, "no memory to read its header");
    int n = 0;
    Status status = take_pairs(s, keys, &n);
    qsort(keys, status == OK ? (size_t)n : 0, sizeof *keys, compare_text);
    for (int i = 1; status == OK && i < n; i++) {
        if (strcmp(keys[i - 1], keys[i]) == 0) status = scan_bad(s, "__metadata__ has a member twice");
    }
    mem_free(keys);
    return status;
}

static Status take_header(Scan *s, int shard, EntryList *list)
{
    bool has_metadata = false;
    if (s->n == 0 || s->text[0] != '{') return scan_bad(s, "it does not begin with '{'");
    s->at = 1;
    if (scan_take(s, '}')) return OK;
    do {
        char *name;
        Status status = scan_string(s, &name);
        if (status != OK) return status;
        if (!scan_take(s, ':')) return scan_bad(s, "':' is expected");
        if (strcmp(name, "__metadata__") != 0) {
            status = take_tensor(s, name, shard, list);
        } else {
            if (has_metadata) return scan_bad(s, "__metadata__ appears twice");
            has_metadata = true;
            status = take_metadata(s);
        }
        if (status != OK) return status;
    } while (scan_take(s, ','));
    return scan_take(s, '}') ? OK : scan_bad(s, "',' or '}' is expected");
}

static int compare_place(const void *a, const void *b)
{
    const SafetensorsEntry *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return (x->name > y->name) - (x->name < y->name); /* empty ones: as in the header */
}

/* Puts the entries in the order of their data; every byte must belong to exactly one of them. */
static Status check_tiling(SafetensorsEntry *e, int n, uint64_t *data_bytes, Error *err)
{
    uint64_t at = 0;
    qsort(e, (size_t)n, sizeof *e, compare_place);
    for (int i = 0; i < n; i++) {
        if (e[i].offset != at) {
            return error_set(err, ERR_INPUT, "tensor %.120s %s the data before it", e[i].name,
                             e[i].offset < at ? "overlaps" : "leaves a hole behind");
        }
        at += e[i].bytes; /* both are below 2^63 */
    }
    *data_bytes = at;
    return OK;
}

Status safetensors_parse_header(EntryList *list, char *text, size_t n, int shard, uint64_t *data_bytes, Error *err)
{
    Scan s = { .text = text, .n = n, .what = "its header", .err = err };
    int first = list->n;
    Status status = take_header(&s, shard, list);
    if (status != OK) return status;
    scan_space(&s);
    if (s.at < n) return scan_bad(&s, "something follows the closing brace");
    *data_bytes = 0;
    if (list->n == first) return OK; /* the list may have no memory yet */
    return check_tiling(list->item + first, list->n - first, data_bytes, err);
}
