/* The face of a checkpoint: opens the container, finds by name, reads in our order.
 *
 *     container -> list of tensors (checkpoint_safetensors.c, checkpoint_gguf.c) -> sorted names
 *
 * Always after open: names are unique, and every part lies inside its file. */
#include "tensor/checkpoint_impl.h"
#include "base/memory.h"
#include "tensor/data_file.h"

#include <stdlib.h>

enum { MAX_NAME_MEMORY = 1 << 28 };

struct Checkpoint {
    char        *path;
    Safetensors *st;   /* one of the two */
    Gguf        *gguf;
    TensorList   list;
    int         *by_name;
};

/* ---- the list ---- */

CheckpointTensor *tensor_list_add(TensorList *list)
{
    if (list->n == list->capacity) {
        int capacity = list->capacity ? 2 * list->capacity : 256;
        CheckpointTensor *item = mem_realloc(list->item, (size_t)capacity * sizeof *item);
        if (!item) return NULL;
        list->item = item;
        list->capacity = capacity;
    }
    CheckpointTensor *t = &list->item[list->n++];
    *t = (CheckpointTensor){ .stored.global = 1 };
    return t;
}

void tensor_set_shape(CheckpointTensor *t, const int64_t *shape, int n_dims)
{
    t->n_dims = n_dims;
    t->stored.n_out = t->stored.n_in = 1;
    for (int i = 0; i < n_dims; i++) {
        t->shape[i] = shape[i];
        if (i + 1 < n_dims) t->stored.n_out *= shape[i];
        else t->stored.n_in = shape[i];
    }
}

static int compare_names(const void *a, const void *b, void *items)
{
    const CheckpointTensor *t = items;
    return strcmp(t[*(const int *)a].name, t[*(const int *)b].name);
}

static Status sort_names(Checkpoint *c, Error *err)
{
    const CheckpointTensor *t = c->list.item;
    c->by_name = mem_alloc_array((size_t)c->list.n + 1, sizeof *c->by_name);
    if (!c->by_name) return error_set(err, ERR_NOMEM, "no memory for an index of %d tensors", c->list.n);
    for (int i = 0; i < c->list.n; i++) c->by_name[i] = i;
    qsort_r(c->by_name, (size_t)c->list.n, sizeof *c->by_name, compare_names, c->list.item);
    for (int i = 1; i < c->list.n; i++) {
        const char *name = t[c->by_name[i]].name;
        if (strcmp(t[c->by_name[i - 1]].name, name) == 0)
            return error_set(err, ERR_INPUT, "%s: two tensors stand for %.120s", c->path, name);
    }
    return OK;
}

/* ---- opening ---- */

static Status open_container(Checkpoint *c, Error *err)
{
    arena_init(&c->list.names, 1 << 16, MAX_NAME_MEMORY);
    Status s = gguf_is_path(c->path) ? gguf_open(&c->gguf, c->path, err) : safetensors_open(&c->st, c->path, err);
    if (!s && c->gguf) s = checkpoint_list_gguf(&c->list, c->gguf, err);
    else if (!s) s = checkpoint_list_safetensors(&c->list, c->st, err);
    return s ? s : sort_names(c, err);
}

Status checkpoint_open(Checkpoint **out, const char *path, Error *err)
{
    *out = NULL;
    Checkpoint *c = mem_alloc(sizeof *c);
    if (c) c->path = mem_strdup(path);
    Status s = c && c->path ? open_container(c, err) : error_set(err, ERR_NOMEM, "no memory to open %s", path);
    if (s) {
        checkpoint_close(c);
        return s;
    }
    *out = c;
    return OK;
}

void checkpoint_close(Checkpoint *c)
{
    if (!c) return;
    safetensors_close(c->st);
    gguf_close(c->gguf);
    mem_free(c->list.item);
    arena_free(&c->list.names);
    mem_free(c->by_name);
    mem_free(c->path);
    mem_free(c);
}

void checkpoint_set_gptq_v2(Checkpoint *c)
{
    for (int i = 0; i < c->list.n; i++) c->list.item[i].stored.zero_offset = 0;
}

/* ---- asking ---- */

const char *checkpoint_path(const Checkpoint *c)
{
    return c->path;
}

const Gguf *checkpoint_gguf(const Checkpoint *c)
{
    return c->gguf;
}

int checkpoint_count(const Checkpoint *c)
{
    return c->list.n;
}

const CheckpointTensor *checkpoint_at(const Checkpoint *c, int i)
{
    CHECK(i >= 0 && i < c->list.n);
    return &c->list.item[i];
}

const CheckpointTensor *checkpoint_find(const Checkpoint *c, const char *name)
{
    int low = 0, high = c->list.n;
    while (low < high) {
        int middle = (low + high) / 2;
        const CheckpointTensor *t = &c->list.item[c->by_name[middle]];
        int order = strcmp(name, t->name);
        if (order == 0) return t;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

int64_t checkpoint_stored(const CheckpointOrder *o, int64_t i)
{
    if (!o->a || i < o->first) return i;
    const int64_t unit = (i - o->first) / o->unit, rest = (i - o->first) % o->unit;
    const int64_t group = unit / (o->a * o->b), in_group = unit % (o->a * o->b);
    const int64_t turned = in_group % o->b * o->a + in_group / o->b;
    return o->first + (group * o->a * o->b + turned) * o->unit + rest;
}

/* ---- reading past the page cache ---- */

/* How many of our rows from `row` on, at most n, are stored behind each other. */
static int64_t run_of_rows(const CheckpointOrder *o, int64_t row, int64_t n)
{
    int64_t stored = checkpoint_stored(o, row), run = 1;
    if (!o->a) return n;
    while (run < n && checkpoint_stored(o, row + run) == stored + run) run++;
    return run;
}

size_t checkpoint_stage_room(size_t n)
{
    return data_file_room(n);
}

Status checkpoint_stage(const Checkpoint *c, const CheckpointPart *part, uint64_t first, size_t n, void *staging,
                        void **at, Error *err)
{
    CHECK(first <= part->bytes && n <= part->bytes - first);
    if (c->gguf) return gguf_stage(c->gguf, part->file, part->offset + first, n, staging, at, err);
    SafetensorsEntry e = { .shard = part->file, .offset = part->offset, .bytes = part->bytes };
    return safetensors_stage(c->st, &e, first, n, staging, at, err);
}

/* Rows in another order: staging holds them in ours in front, and behind that what was read. */
static size_t turned_bytes(const CheckpointTensor *t, int64_t n)
{
    size_t bytes = (size_t)n * quant_row_bytes(t->stored.format, t->stored.n_in);
    return t->rows.a ? data_file_whole_pages(bytes) : 0;
}

size_t checkpoint_stage_rows_room(const CheckpointTensor *t, int64_t n)
{
    size_t bytes = (size_t)n * quant_row_bytes(t->stored.format, t->stored.n_in);
    return turned_bytes(t, n) + data_file_room(t->rows.a ? 2 * bytes : bytes);
}

/* From the first to behind the last of the stored rows that these rows of ours are. */
static void span_of_rows(const CheckpointOrder *o, int64_t first, int64_t n, int64_t *low, int64_t *end)
{
    *low = INT64_MAX;
    *end = 0;
    for (int64_t i = first; i < first + n; i++) {
        int64_t at = checkpoint_stored(o, i);
        if (at < *low) *low = at;
        if (at >= *end) *end = at + 1;
    }
}

/* Heads whose rows lie between each other: all at once, then each to its place. */
static Status stage_span(const Checkpoint *c, const CheckpointTensor *t, int64_t first, int64_t n, int64_t low,
                         int64_t end, char *staging, Error *err)
{
    const size_t row_bytes = quant_row_bytes(t->stored.format, t->stored.n_in);
    void *span;
    Status s = checkpoint_stage(c, &t->codes, (uint64_t)low * row_bytes, (size_t)(end - low) * row_bytes,
                                staging + turned_bytes(t, n), &span, err);
    for (int64_t i = 0; !s && i < n; i++)
        memcpy(staging + (size_t)i * row_bytes,
               (char *)span + (size_t)(checkpoint_stored(&t->rows, first + i) - low) * row_bytes, row_bytes);
    return s;
}

/* Heads far apart: run by run. */
static Status stage_runs(const Checkpoint *c, const CheckpointTensor *t, int64_t first, int64_t n, char *staging,
                         Error *err)
{
    const size_t row_bytes = quant_row_bytes(t->stored.format, t->stored.n_in);
    Status s = OK;
    for (int64_t done = 0, run; !s && done < n; done += run) {
        void *rows;
        run = run_of_rows(&t->rows, first + done, n - done);
        s = checkpoint_stage(c, &t->codes, (uint64_t)checkpoint_stored(&t->rows, first + done) * row_bytes,
                             (size_t)run * row_bytes, staging + turned_bytes(t, n), &rows, err);
        if (!s) memcpy(staging + (size_t)done * row_bytes, rows, (size_t)run * row_bytes);
    }
    return s;
}

Status checkpoint_stage_rows(const Checkpoint *c, const CheckpointTensor *t, int64_t first, int64_t n, void *staging,
                             void **at, Error *err)
{
    CHECK(quant_geometry(t->stored.format)->in_rows);
    const size_t row_bytes = quant_row_bytes(t->stored.format, t->stored.n_in);
    if (!t->rows.a)
        return checkpoint_stage(c, &t->codes, (uint64_t)first * row_bytes, (size_t)n * row_bytes, staging, at, err);
    int64_t low, end;
    span_of_rows(&t->rows, first, n, &low, &end);
    *at = staging;
    return end - low <= 2 * n ? stage_span(c, t, first, n, low, end, staging, err)
                              : stage_runs(c, t, first, n, staging, err);
}

/* ---- decoding ---- */

/* The parts of the rows to be decoded, in memory: pieces that begin on a page, and where in them the bytes are. */
typedef struct Loaded {
    QuantMatrix m;
    void       *piece[4];
    int         n;
} Loaded;

static void loaded_free(Loaded *l)
{
    for (int i = 0; i < l->n; i++) mem_free(l->piece[i]);
}

/* Staging of so many bytes, the first page of it. */
static char *add_piece(Loaded *l, size_t room)
{
    char *p = l->piece[l->n] = mem_realloc(NULL, room + DATA_FILE_PAGE);
    if (!p) return NULL;
    l->n++;
    return p + (-(uintptr_t)p & (DATA_FILE_PAGE - 1));
}

static Status load_part(const Checkpoint *c, const CheckpointPart *part, uint64_t first, uint64_t n, Loaded *l,
                        const void **out, Error *err)
{
    void *at;
    if (n == 0) return OK;
    char *staging = add_piece(l, checkpoint_stage_room(n));
    if (!staging) return error_set(err, ERR_NOMEM, "no memory for %llu bytes of %s", (unsigned long long)n, c->path);
    Status s = checkpoint_stage(c, part, first, n, staging, &at, err);
    *out = at;
    return s;
}

/* Rows [first, first + n) of a format whose rows lie together: their codes, and the scales that they use. */
static Status load_rows(const Checkpoint *c, const CheckpointTensor *t, int64_t first, int64_t n, Loaded *l, Error *err)
{
    char *staging = add_piece(l, checkpoint_band_room(t, n));
    if (!staging) return error_set(err, ERR_NOMEM, "no memory for %lld rows of tensor %s", (long long)n, t->name);
    CheckpointBand band;
    Status s = checkpoint_stage_band(c, t, first, n, staging, &band, err);
    l->m = band.stored;
    return s ? s : load_part(c, &t->groups, 0, t->groups.bytes, l, &l->m.groups, err);
}

static Status load_all(const Checkpoint *c, const CheckpointTensor *t, Loaded *l, Error *err)
{
    l->m = t->stored;
    Status s = load_part(c, &t->codes, 0, t->codes.bytes, l, &l->m.codes, err);
    if (!s) s = load_part(c, &t->scales, 0, t->scales.bytes, l, &l->m.scales, err);
    if (!s) s = load_part(c, &t->zeros, 0, t->zeros.bytes, l, &l->m.zeros, err);
    if (!s) s = load_part(c, &t->groups, 0, t->groups.bytes, l, &l->m.groups, err);
    return s;
}

static void turn_columns(const CheckpointOrder *o, const float *stored, int64_t n, float *out)
{
    for (int64_t k = 0; k < n; k++) out[k] = stored[checkpoint_stored(o, k)];
}

/* Rows of l to float32. skip: rows of it that lie before the first one wanted. */
static Status decode_loaded(const CheckpointTensor *t, const Loaded *l, int64_t skip, int64_t n, float *out, Error *err)
{
    const int64_t n_in = t->stored.n_in;
    Status s = quant_check(&l->m, t->name, err);
    float *row = t->columns.a ? mem_alloc_array((size_t)n_in, sizeof *row) : NULL;
    if (!s && t->columns.a && !row) s = error_set(err, ERR_NOMEM, "no memory for a row of tensor %s", t->name);
    for (int64_t i = 0; !s && i < n; i++) {
        quant_decode_row(&l->m, skip + i, row ? row : out + i * n_in);
        if (row) turn_columns(&t->columns, row, n_in, out + i * n_in);
    }
    mem_free(row);
    return s;
}

/* Rows before `first` that have to come along, so that rows count from the beginning of those that share scales or a word of
 * zero points; none when all wanted rows do. */
static int64_t rows_before(const CheckpointTensor *t, int64_t first, int64_t n)
{
    int64_t shared = t->zeros.bytes ? QUANT_ZEROS_IN_WORD : t->stored.group_out;
    if (shared <= 1) return 0;
    int64_t inside = first % shared;
    return !t->zeros.bytes && inside + n <= shared ? 0 : inside;
}

Status checkpoint_decode_rows(const Checkpoint *c, const CheckpointTensor *t, int64_t first, int64_t n, float *out,
                              Error *err)
{
    Loaded l = { 0 };
    const bool in_rows = quant_geometry(t->stored.format)->in_rows;
    const int64_t skip = in_rows ? rows_before(t, first, n) : first;
    if (t->stored.format == QUANT_NONE)
        return error_set(err, ERR_UNSUPPORTED, "tensor %s has type %s, which is not supported", t->name, t->type);
    Status s = in_rows ? load_rows(c, t, first - skip, n + skip, &l, err) : load_all(c, t, &l, err);
    if (!s) s = decode_loaded(t, &l, skip, n, out, err);
    loaded_free(&l);
    return s;
}
