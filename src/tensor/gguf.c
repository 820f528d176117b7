/* GGUF: the header is read, walked once, and every statement in it is held against the file before it is believed.
 *
 *     read the first megabyte -> walk keys, tensors -> twice as much if the header goes on -> sort, compare, place
 *
 * The header stays in memory and values are views into it. Always after open: keys and names are unique, every tensor
 * lies inside the file behind the header, none overlaps another, rows are whole blocks. */
#include "tensor/gguf.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/planted.h"
#include "tensor/data_file.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    FIRST_BYTES = 1 << 20,
    MAX_HEADER_BYTES = 32 << 20, /* the largest published one has about 12 MB */
    MAX_KEYS = 1 << 16,
    MAX_TENSORS = 1 << 16,
    MAX_KEY_BYTES = 512,
    MAX_PARTS = 1000, /* each holds a file descriptor */
    DEFAULT_ALIGNMENT = 32,
};

static const int64_t MAX_ELEMENTS = (int64_t)1 << 59; /* times 8 bytes still fits */

typedef struct Key {
    Str            name;
    GgufType       type;
    const uint8_t *value; /* behind the type; checked */
} Key;

struct Gguf {
    DataFile    file;
    uint8_t    *header;
    uint64_t    header_bytes; /* read so far */
    Key        *keys;         /* sorted by name once open */
    int         n_keys, keys_capacity;
    GgufTensor *tensors; /* sorted by place once open */
    int         n_tensors, tensors_capacity;
    int        *by_name;
    DataFile   *parts; /* [n_parts] the others of a file in parts, number 1 on; NULL: this is all */
    int         n_parts;
};

/* ---- tensor types ---- */

typedef struct TensorType {
    const char *name;
    int         block, bytes; /* 0: there is no such type */
    QuantFormat format;
} TensorType;

static const TensorType tensor_types[] = {
    [0] = { "F32", 1, 4, QUANT_F32 },
    [1] = { "F16", 1, 2, QUANT_F16 },
    [2] = { "Q4_0", 32, 18, QUANT_Q4_0 },
    [3] = { "Q4_1", 32, 20, QUANT_Q4_1 },
    [6] = { "Q5_0", 32, 22, QUANT_Q5_0 },
    [7] = { "Q5_1", 32, 24, QUANT_Q5_1 },
    [8] = { "Q8_0", 32, 34, QUANT_Q8_0 },
    [9] = { "Q8_1", 32, 36, QUANT_NONE },
    [10] = { "Q2_K", 256, 84, QUANT_NONE },
    [11] = { "Q3_K", 256, 110, QUANT_NONE },
    [12] = { "Q4_K", 256, 144, QUANT_Q4_K },
    [13] = { "Q5_K", 256, 176, QUANT_Q5_K },
    [14] = { "Q6_K", 256, 210, QUANT_Q6_K },
    [15] = { "Q8_K", 256, 292, QUANT_NONE },
    [16] = { "IQ2_XXS", 256, 66, QUANT_NONE },
    [17] = { "IQ2_XS", 256, 74, QUANT_NONE },
    [18] = { "IQ3_XXS", 256, 98, QUANT_NONE },
    [19] = { "IQ1_S", 256, 50, QUANT_NONE },
    [20] = { "IQ4_NL", 32, 18, QUANT_IQ4_NL },
    [21] = { "IQ3_S", 256, 110, QUANT_NONE },
    [22] = { "IQ2_S", 256, 82, QUANT_NONE },
    [23] = { "IQ4_XS", 256, 136, QUANT_NONE },
    [24] = { "I8", 1, 1, QUANT_NONE },
    [25] = { "I16", 1, 2, QUANT_NONE },
    [26] = { "I32", 1, 4, QUANT_NONE },
    [27] = { "I64", 1, 8, QUANT_NONE },
    [28] = { "F64", 1, 8, QUANT_NONE },
    [29] = { "IQ1_M", 256, 56, QUANT_NONE },
    [30] = { "BF16", 1, 2, QUANT_BF16 },
    [34] = { "TQ1_0", 256, 54, QUANT_NONE },
    [35] = { "TQ2_0", 256, 66, QUANT_NONE },
    [39] = { "MXFP4", 32, 17, QUANT_MXFP4_BLOCKS },
    [40] = { "NVFP4", 64, 36, QUANT_NVFP4_BLOCKS },
    [41] = { "Q1_0", 128, 18, QUANT_NONE },
    [42] = { "Q2_0", 64, 18, QUANT_NONE },
};

/* ---- walking ---- */

typedef struct Walk {
    const Gguf *g;
    uint64_t    at;
    bool        is_short; /* stopped because more of the file has to be read */
    Error      *err;
} Walk;

static Status bad(Walk *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static Status bad(Walk *w, const char *format, ...)
{
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return error_set(w->err, ERR_INPUT, "%s is no usable GGUF file: %s (near byte %" PRIu64 ")", w->g->file.path, what,
                     w->at);
}

/* The next n bytes; NULL when they are not there (an error) or not yet read (is_short). */
static const uint8_t *take(Walk *w, uint64_t n)
{
    if (n > w->g->file.bytes - w->at) {
        bad(w, "it is cut short, or states %" PRIu64 " bytes that it does not have", n);
        return NULL;
    }
    if (n > MAX_HEADER_BYTES - w->at) {
        bad(w, "its header is larger than %d MB", MAX_HEADER_BYTES >> 20);
        return NULL;
    }
    if (n > w->g->header_bytes - w->at) {
        w->is_short = true;
        return NULL;
    }
    const uint8_t *p = w->g->header + w->at;
    w->at += n;
    return p;
}

static uint64_t number_at(const uint8_t *p, int bytes)
{
    uint64_t v = 0;
    for (int i = bytes - 1; i >= 0; i--) v = v << 8 | p[i];
    return v;
}

/* take_* : false where take gives NULL. */
static bool take_number(Walk *w, int bytes, uint64_t *v)
{
    const uint8_t *p = take(w, (uint64_t)bytes);
    if (p) *v = number_at(p, bytes);
    return p != NULL;
}

static bool take_text(Walk *w, Str *text)
{
    uint64_t n;
    if (!take_number(w, 8, &n)) return false;
    const uint8_t *p = take(w, n);
    if (p) *text = (Str){ (const char *)p, (size_t)n };
    return p != NULL;
}

/* Names of keys and tensors: UTF-8 without control characters. */
static bool is_name(Str s, size_t max)
{
    if (s.len == 0 || s.len > max) return false;
    for (size_t i = 0, n, wrong; i < s.len; i += n) {
        n = utf8_length(s.data + i, s.len - i, &wrong);
        if (n == 0 || (unsigned char)s.data[i] < 0x20 || s.data[i] == 0x7f) return false;
    }
    return true;
}

/* ---- keys ---- */

static const int type_bytes[GGUF_TYPES] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };

static bool truths_are_bits(const uint8_t *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (p[i] > 1) return false;
    return true;
}

/* n values of a type, one behind the other. False: see take, or an error. */
static bool take_values(Walk *w, uint64_t type, uint64_t n)
{
    Str text;
    if (type >= GGUF_TYPES || type == GGUF_ARRAY) {
        bad(w, "a value has the type %" PRIu64, type);
        return false;
    }
    if (type == GGUF_STRING) {
        while (n > 0 && take_text(w, &text)) n--;
        return n == 0;
    }
    if (n > UINT64_MAX / 8) n = UINT64_MAX / 8; /* more than any file */
    const uint8_t *p = take(w, n * (uint64_t)type_bytes[type]);
    if (!p || type != GGUF_BOOL || truths_are_bits(p, n)) return p != NULL;
    bad(w, "a truth value is neither 0 nor 1");
    return false;
}

static bool take_value(Walk *w, uint64_t type)
{
    uint64_t element, n;
    if (type != GGUF_ARRAY) return take_values(w, type, 1);
    return take_number(w, 4, &element) && take_number(w, 8, &n) && take_values(w, element, n);
}

/* Room for one more item. */
static bool grow(void **items, int n, int *capacity, size_t bytes)
{
    if (n < *capacity) return true;
    int more = *capacity ? 2 * *capacity : 64;
    void *bigger = mem_realloc(*items, (size_t)more * bytes);
    if (!bigger) return false;
    *items = bigger;
    *capacity = more;
    return true;
}

static bool take_key(Walk *w, Gguf *g)
{
    Key key;
    uint64_t type;
    if (!take_text(w, &key.name)) return false;
    if (!is_name(key.name, MAX_KEY_BYTES)) {
        bad(w, "the name of key %d is not up to %d bytes of plain text", g->n_keys, MAX_KEY_BYTES);
        return false;
    }
    if (!take_number(w, 4, &type)) return false;
    key.type = (GgufType)type;
    key.value = g->header + w->at;
    if (!take_value(w, type)) return false;
    if (!grow((void **)&g->keys, g->n_keys, &g->keys_capacity, sizeof *g->keys)) {
        error_set(w->err, ERR_NOMEM, "no memory for the keys of %s", g->file.path);
        return false;
    }
    g->keys[g->n_keys++] = key;
    return true;
}

static int compare_text(Str a, Str b)
{
    int order = memcmp(a.data, b.data, a.len < b.len ? a.len : b.len);
    return order ? order : (a.len > b.len) - (a.len < b.len);
}

static int compare_keys(const void *a, const void *b)
{
    return compare_text(((const Key *)a)->name, ((const Key *)b)->name);
}

static Status sort_keys(Walk *w, Gguf *g)
{
    if (g->n_keys) qsort(g->keys, (size_t)g->n_keys, sizeof *g->keys, compare_keys);
    for (int i = 1; i < g->n_keys; i++) {
        if (compare_keys(&g->keys[i - 1], &g->keys[i]) != 0) continue;
        return bad(w, "the key %.*s appears twice", (int)(g->keys[i].name.len < 100 ? g->keys[i].name.len : 100),
                   g->keys[i].name.data);
    }
    return OK;
}

/* ---- tensors ---- */

/* Dimensions in the file go from the fastest to the slowest. */
static Status set_shape(Walk *w, GgufTensor *t, const uint64_t ne[GGUF_MAX_DIMS], uint64_t type)
{
    const TensorType *kind = type < COUNT(tensor_types) ? &tensor_types[type] : NULL;
    if (!kind || !kind->block) return bad(w, "tensor %s has the type %" PRIu64, t->name, type);
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++) {
        if (ne[i] < 1 || ne[i] > (uint64_t)(MAX_ELEMENTS / n))
            return bad(w, "tensor %s has a dimension of %" PRIu64, t->name, ne[i]);
        t->shape[t->n_dims - 1 - i] = (int64_t)ne[i];
        n *= (int64_t)ne[i];
    }
    if (ne[0] % (uint64_t)kind->block != 0)
        return bad(w, "tensor %s has rows of %" PRIu64 " numbers, which %s blocks do not fill", t->name, ne[0],
                   kind->name);
    t->type_name = kind->name;
    t->format = kind->format;
    t->bytes = (uint64_t)n / (uint64_t)kind->block * (uint64_t)kind->bytes;
    return OK;
}

static bool take_tensor(Walk *w, Gguf *g)
{
    GgufTensor t = { 0 };
    Str name;
    uint64_t n_dims, ne[GGUF_MAX_DIMS], type;
    if (!take_text(w, &name)) return false;
    if (!is_name(name, GGUF_NAME_BYTES - 1) && !PLANTED("gguf")) {
        bad(w, "the name of tensor %d is not up to %d bytes of plain text", g->n_tensors, GGUF_NAME_BYTES - 1);
        return false;
    }
    memcpy(t.name, name.data, name.len);
    if (!take_number(w, 4, &n_dims)) return false;
    if (n_dims < 1 || n_dims > GGUF_MAX_DIMS) {
        bad(w, "tensor %s has %" PRIu64 " dimensions", t.name, n_dims);
        return false;
    }
    t.n_dims = (int)n_dims;
    for (int i = 0; i < t.n_dims; i++)
        if (!take_number(w, 8, &ne[i])) return false;
    if (!take_number(w, 4, &type) || !take_number(w, 8, &t.offset)) return false;
    if (set_shape(w, &t, ne, type) != OK) return false;
    if (!grow((void **)&g->tensors, g->n_tensors, &g->tensors_capacity, sizeof *g->tensors)) {
        error_set(w->err, ERR_NOMEM, "no memory for the tensors of %s", g->file.path);
        return false;
    }
    g->tensors[g->n_tensors++] = t;
    return true;
}

static int compare_place(const void *a, const void *b)
{
    const GgufTensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* From offsets inside the data to places in the file: aligned, inside, apart. */
static Status place_tensors(Walk *w, Gguf *g, uint64_t alignment)
{
    const uint64_t data = (w->at + alignment - 1) / alignment * alignment;
    uint64_t end = data;
    if (g->n_tensors) qsort(g->tensors, (size_t)g->n_tensors, sizeof *g->tensors, compare_place);
    for (int i = 0; i < g->n_tensors; i++) {
        GgufTensor *t = &g->tensors[i];
        if (t->offset % alignment != 0)
            return bad(w, "tensor %s begins at %" PRIu64 ", which is not a multiple of %" PRIu64, t->name, t->offset,
                       alignment);
        if (data > g->file.bytes || t->offset > g->file.bytes - data || t->bytes > g->file.bytes - data - t->offset)
            return bad(w, "it is cut short, tensor %s ends behind its end; download it again", t->name);
        t->offset += data;
        if (t->offset < end) return bad(w, "tensor %s overlaps the one before it", t->name);
        end = t->offset + t->bytes;
    }
    return OK;
}

static int compare_names(const void *a, const void *b, void *tensors)
{
    const GgufTensor *t = tensors;
    return strcmp(t[*(const int *)a].name, t[*(const int *)b].name);
}

static Status sort_names(Walk *w, Gguf *g)
{
    g->by_name = mem_alloc_array((size_t)g->n_tensors + 1, sizeof *g->by_name);
    if (!g->by_name) return error_set(w->err, ERR_NOMEM, "no memory for the tensors of %s", g->file.path);
    for (int i = 0; i < g->n_tensors; i++) g->by_name[i] = i;
    qsort_r(g->by_name, (size_t)g->n_tensors, sizeof *g->by_name, compare_names, g->tensors);
    for (int i = 1; i < g->n_tensors; i++) {
        const char *name = g->tensors[g->by_name[i]].name;
        if (strcmp(g->tensors[g->by_name[i - 1]].name, name) == 0) return bad(w, "tensor %s appears twice", name);
    }
    return OK;
}

/* ---- the header ---- */

static Status check_start(Walk *w, uint64_t magic, uint64_t version)
{
    if (magic != 0x46554747) {
        bool lfs = file_is_lfs_pointer(w->g->header, w->g->header_bytes);
        return bad(w, lfs ? "it is a git-lfs pointer, run git lfs pull" : "it does not begin with GGUF");
    }
    if ((version & 0xffff) == 0) return bad(w, "its numbers are big-endian");
    if (version < 2 || version > 3) return bad(w, "its version is %" PRIu64 ", versions 2 and 3 are known", version);
    return OK;
}

static Status check_counts(Walk *w, uint64_t n_tensors, uint64_t n_keys)
{
    if (n_keys > MAX_KEYS) return bad(w, "it states %" PRIu64 " keys, more than %d", n_keys, MAX_KEYS);
    if (n_tensors > MAX_TENSORS) return bad(w, "it states %" PRIu64 " tensors, more than %d", n_tensors, MAX_TENSORS);
    return OK;
}

static Status finish(Walk *w, Gguf *g)
{
    int64_t alignment = DEFAULT_ALIGNMENT;
    Status s = sort_keys(w, g);
    if (!s) s = gguf_get_int(g, "general.alignment", 1, 1 << 30, &alignment, w->err);
    if (!s && (alignment & (alignment - 1))) s = bad(w, "general.alignment %d is no power of two", (int)alignment);
    if (!s) s = place_tensors(w, g, (uint64_t)alignment);
    if (!s) s = sort_names(w, g);
    return s;
}

/* Walks what has been read. OK with w->is_short set: the header goes on behind it. */
static Status walk_header(Walk *w, Gguf *g)
{
    uint64_t magic, version, n_tensors, n_keys;
    g->n_keys = g->n_tensors = 0;
    bool more = take_number(w, 4, &magic) && take_number(w, 4, &version);
    Status s = more ? check_start(w, magic, version) : OK;
    more = more && !s && take_number(w, 8, &n_tensors) && take_number(w, 8, &n_keys);
    if (more) s = check_counts(w, n_tensors, n_keys);
    more = more && !s;
    for (uint64_t i = 0; more && i < n_keys; i++) more = take_key(w, g);
    for (uint64_t i = 0; more && i < n_tensors; i++) more = take_tensor(w, g);
    if (more) return finish(w, g);
    return w->is_short ? OK : w->err->status;
}

/* Reads the first n bytes of the file, those that are there already excepted. */
static Status read_header(Gguf *g, uint64_t n, Error *err)
{
    if (n > g->file.bytes) n = g->file.bytes;
    uint8_t *header = mem_realloc(g->header, (size_t)n + 1);
    if (!header) return error_set(err, ERR_NOMEM, "no memory to read the header of %s", g->file.path);
    g->header = header;
    Status s = data_file_read(&g->file, g->header_bytes, header + g->header_bytes, (size_t)(n - g->header_bytes), err);
    if (!s) g->header_bytes = n;
    return s;
}

static Status open_one(Gguf *g, const char *path, Error *err)
{
    Status s = data_file_open(&g->file, path, err);
    for (uint64_t n = FIRST_BYTES; !s; n *= 2) {
        Walk w = { .g = g, .err = err };
        s = read_header(g, n, err);
        if (!s) s = walk_header(&w, g);
        if (s || !w.is_short) break;
    }
    return s ? s : data_file_check_size(&g->file, err);
}

static void free_one(Gguf *g)
{
    data_file_close(&g->file);
    mem_free(g->header);
    mem_free(g->keys);
    mem_free(g->tensors);
    mem_free(g->by_name);
}

/* ---- files in parts ---- */

/* "...-00002-of-00003.gguf": where the digits of the first number stand, and both. NULL: no such name. */
static const char *name_of_part(const char *path, int *number, int *count)
{
    static const char form[] = "-#####-of-#####.gguf"; /* # is a digit */
    size_t n = strlen(path), m = sizeof form - 1;
    const char *at = n > m ? path + n - m : NULL;
    for (size_t i = 0; at && i < m; i++)
        if (form[i] == '#' ? at[i] < '0' || at[i] > '9' : at[i] != form[i]) at = NULL;
    if (!at) return NULL;
    *number = (int)strtol(at + 1, NULL, 10);
    *count = (int)strtol(at + 10, NULL, 10);
    return at + 1;
}

/* The name of another part of the same file. */
static Status path_of_part(char out[PATH_MAX], const char *path, int number, Error *err)
{
    int own, count;
    const char *digits = name_of_part(path, &own, &count);
    int n = digits ? snprintf(out, PATH_MAX, "%.*s%05d%s", (int)(digits - path), path, number, digits + 5)
                   : snprintf(out, PATH_MAX, "%s", path);
    if (n > 0 && n < PATH_MAX) return OK;
    return error_set(err, ERR_INPUT, "the path %.64s... is longer than %d bytes", path, PATH_MAX);
}

static Status check_part(const Gguf *part, int number, int count, Error *err)
{
    int64_t own = -1, n = 0;
    Status s = gguf_get_int(part, "split.no", 0, MAX_PARTS, &own, err);
    if (!s) s = gguf_get_int(part, "split.count", 0, MAX_PARTS, &n, err);
    if (!s && (own != number || n != count))
        s = error_set(err, ERR_INPUT, "%s says that it is part %d of %d, its name that it is part %d of %d",
                      part->file.path, (int)own + 1, (int)n, number + 1, count);
    return s;
}

/* Takes over the tensors and the file of a part. */
static Status adopt_part(Gguf *g, Gguf *part, int number, Error *err)
{
    for (int i = 0; i < part->n_tensors; i++) {
        if (g->n_tensors == MAX_TENSORS)
            return error_set(err, ERR_INPUT, "%s and its parts have more than %d tensors", g->file.path, MAX_TENSORS);
        if (!grow((void **)&g->tensors, g->n_tensors, &g->tensors_capacity, sizeof *g->tensors))
            return error_set(err, ERR_NOMEM, "no memory for the tensors of %s", g->file.path);
        g->tensors[g->n_tensors] = part->tensors[i];
        g->tensors[g->n_tensors++].part = number;
    }
    g->parts[number - 1] = part->file;
    part->file = (DataFile){ .fd = -1 };
    g->n_parts = number;
    return OK;
}

static Status add_part(Gguf *g, int number, int count, Error *err)
{
    char path[PATH_MAX];
    Gguf part = { .file.fd = -1 };
    Status s = path_of_part(path, g->file.path, number + 1, err);
    if (!s) s = open_one(&part, path, err);
    if (!s) s = check_part(&part, number, count, err);
    if (!s) s = adopt_part(g, &part, number, err);
    free_one(&part);
    return s;
}

static Status check_whole(Gguf *g, Error *err)
{
    int64_t n = g->n_tensors;
    Walk w = { .g = g, .err = err };
    Status s = gguf_get_int(g, "split.tensors.count", 0, MAX_TENSORS, &n, err);
    if (!s && n != g->n_tensors)
        s = error_set(err, ERR_INPUT, "%s: its parts have %d tensors instead of %d", g->file.path, g->n_tensors, (int)n);
    mem_free(g->by_name);
    g->by_name = NULL;
    return s ? s : sort_names(&w, g);
}

/* Opens what belongs to the first part. */
static Status open_rest(Gguf *g, Error *err)
{
    int number = 1, named = 1;
    int64_t count = 1;
    Status s = gguf_get_int(g, "split.count", 0, MAX_PARTS, &count, err);
    if (s || count <= 1) return s;
    if (!name_of_part(g->file.path, &number, &named))
        return error_set(err, ERR_INPUT, "%s is one of %d files, but is not called ...-00001-of-%05d.gguf as they are",
                         g->file.path, (int)count, (int)count);
    if ((s = check_part(g, 0, named, err)) != OK) return s;
    g->parts = mem_alloc_array((size_t)count, sizeof *g->parts);
    if (!g->parts) return error_set(err, ERR_NOMEM, "no memory to open %d files", (int)count);
    for (int i = 1; !s && i < count; i++) s = add_part(g, i, (int)count, err);
    return s ? s : check_whole(g, err);
}

static Status open_all(Gguf *g, const char *path, Error *err)
{
    char first[PATH_MAX];
    Status s = path_of_part(first, path, 1, err);
    if (!s) s = open_one(g, first, err);
    return s ? s : open_rest(g, err);
}

Status gguf_open(Gguf **out, const char *path, Error *err)
{
    Error own = { 0 };
    *out = NULL;
    Gguf *g = mem_alloc(sizeof *g);
    if (!g) return error_set(err, ERR_NOMEM, "no memory to open %s", path);
    g->file.fd = -1;
    Status s = open_all(g, path, &own); /* a clean one: the walk asks it what went wrong */
    if (s) {
        gguf_close(g);
        return error_set(err, s, "%s", own.text);
    }
    *out = g;
    return OK;
}

void gguf_close(Gguf *g)
{
    if (!g) return;
    for (int i = 0; i < g->n_parts; i++) data_file_close(&g->parts[i]);
    mem_free(g->parts);
    free_one(g);
    mem_free(g);
}

/* ---- asking ---- */

bool gguf_is_path(const char *path)
{
    static const char end[] = ".gguf";
    size_t n = strlen(path), m = sizeof end - 1;
    return n > m && strcmp(path + n - m, end) == 0 && !dir_exists(path);
}

const char *gguf_path(const Gguf *g)
{
    return g->file.path;
}

int gguf_count(const Gguf *g)
{
    return g->n_tensors;
}

const GgufTensor *gguf_at(const Gguf *g, int i)
{
    CHECK(i >= 0 && i < g->n_tensors);
    return &g->tensors[i];
}

const GgufTensor *gguf_find(const Gguf *g, const char *name)
{
    int low = 0, high = g->n_tensors;
    while (low < high) {
        int middle = (low + high) / 2;
        const GgufTensor *t = &g->tensors[g->by_name[middle]];
        int order = strcmp(name, t->name);
        if (order == 0) return t;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

static DataFile *file_of(const Gguf *g, int part)
{
    CHECK(part >= 0 && part <= g->n_parts);
    return part ? &g->parts[part - 1] : (DataFile *)&g->file; /* only its marks about direct reading change */
}

Status gguf_read(const Gguf *g, int part, uint64_t offset, void *out, size_t n, Error *err)
{
    return data_file_read(file_of(g, part), offset, out, n, err);
}

Status gguf_stage(const Gguf *g, int part, uint64_t offset, size_t n, void *staging, void **at, Error *err)
{
    return data_file_stage(file_of(g, part), offset, n, staging, at, err);
}

/* ---- metadata ---- */

static const Key *find_key(const Gguf *g, const char *name)
{
    Key wanted = { .name = str_of(name) };
    return g->n_keys ? bsearch(&wanted, g->keys, (size_t)g->n_keys, sizeof wanted, compare_keys) : NULL;
}

bool gguf_has(const Gguf *g, const char *key)
{
    return find_key(g, key) != NULL;
}

/* A whole number or truth; false for other types and for what int64 does not hold. */
static bool int_at(GgufType type, const uint8_t *p, int64_t *value)
{
    if (type >= GGUF_TYPES || type == GGUF_F32 || type == GGUF_F64 || type == GGUF_STRING || type == GGUF_ARRAY)
        return false;
    uint64_t v = number_at(p, type_bytes[type]);
    switch (type) {
    case GGUF_I8: *value = (int8_t)v; return true;
    case GGUF_I16: *value = (int16_t)v; return true;
    case GGUF_I32: *value = (int32_t)v; return true;
    default: *value = (int64_t)v; return type != GGUF_U64 || v <= INT64_MAX;
    }
}

static bool double_at(GgufType type, const uint8_t *p, double *value)
{
    int64_t whole;
    if (type == GGUF_F32) {
        float f;
        memcpy(&f, p, sizeof f);
        *value = (double)f;
        return true;
    }
    if (type == GGUF_F64) {
        memcpy(value, p, sizeof *value);
        return true;
    }
    if (type == GGUF_BOOL || !int_at(type, p, &whole)) return false;
    *value = (double)whole;
    return true;
}

Status gguf_get_int(const Gguf *g, const char *key, int64_t min, int64_t max, int64_t *value, Error *err)
{
    const Key *k = find_key(g, key);
    int64_t v;
    if (!k) return OK;
    if (k->type == GGUF_BOOL || !int_at(k->type, k->value, &v))
        return error_set(err, ERR_INPUT, "%s: the key %s must be a whole number", g->file.path, key);
    if (v < min || v > max)
        return error_set(err, ERR_INPUT, "%s: the key %s is %" PRId64 ", which is not in [%" PRId64 ", %" PRId64 "]",
                         g->file.path, key, v, min, max);
    *value = v;
    return OK;
}

Status gguf_get_double(const Gguf *g, const char *key, double min, double max, double *value, Error *err)
{
    const Key *k = find_key(g, key);
    double v;
    if (!k) return OK;
    if (!double_at(k->type, k->value, &v))
        return error_set(err, ERR_INPUT, "%s: the key %s must be a number", g->file.path, key);
    if (!isfinite(v) || v < min || v > max)
        return error_set(err, ERR_INPUT, "%s: the key %s is %g, which is not in [%g, %g]", g->file.path, key, v, min,
                         max);
    *value = v;
    return OK;
}

Status gguf_get_bool(const Gguf *g, const char *key, bool *value, Error *err)
{
    const Key *k = find_key(g, key);
    if (!k) return OK;
    if (k->type != GGUF_BOOL)
        return error_set(err, ERR_INPUT, "%s: the key %s must be a truth value", g->file.path, key);
    *value = k->value[0];
    return OK;
}

Status gguf_get_string(const Gguf *g, const char *key, Str *value, Error *err)
{
    const Key *k = find_key(g, key);
    if (!k) return OK;
    if (k->type != GGUF_STRING) return error_set(err, ERR_INPUT, "%s: the key %s must be a text", g->file.path, key);
    *value = (Str){ (const char *)k->value + 8, (size_t)number_at(k->value, 8) };
    return OK;
}

Status gguf_get_array(const Gguf *g, const char *key, GgufArray *value, Error *err)
{
    const Key *k = find_key(g, key);
    if (!k) return OK;
    if (k->type != GGUF_ARRAY) return error_set(err, ERR_INPUT, "%s: the key %s must be an array", g->file.path, key);
    *value = (GgufArray){ (GgufType)number_at(k->value, 4), number_at(k->value + 4, 8), k->value + 12 };
    return OK;
}

bool gguf_array_int(const GgufArray *a, uint64_t i, int64_t *value)
{
    return i < a->n && a->type != GGUF_STRING && int_at(a->type, a->data + i * (uint64_t)type_bytes[a->type], value);
}

bool gguf_next_text(GgufTexts *walk, Str *text)
{
    if (walk->left == 0) return false;
    *text = (Str){ (const char *)walk->at + 8, (size_t)number_at(walk->at, 8) };
    walk->at += 8 + text->len;
    walk->left--;
    return true;
}
