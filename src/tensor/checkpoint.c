/* The face of a checkpoint: opens the container, finds by name, reads in our order.
 *
 *     container -> list of tensors (checkpoint_safetensors.c, checkpoint_gguf.c) -> sorted names
 *
 * Always after open: names are unique, and every part lies inside its file. */
#include "tensor/checkpoint_impl.h"
#include "base/memory.h"

#include <stdlib.h>

enum { MAX_NAME_MEMORY = 1 << 28 };

struct Checkpoint {
    char        *path;
    Safetensors *st;   /* one of the two */
    Gguf        *gguf;
    TensorList   list;
    int         *by_name;
    uint64_t     total_bytes;
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
    if (!s) s = sort_names(c, err);
    for (int i = 0; i < c->list.n; i++) {
        const CheckpointTensor *t = &c->list.item[i];
        c->total_bytes += t->codes.bytes + t->scales.bytes + t->zeros.bytes + t->groups.bytes;
    }
    return s;
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

uint64_t checkpoint_total_bytes(const Checkpoint *c)
{
    return c->total_bytes;
}

int64_t checkpoint_stored(const CheckpointOrder *o, int64_t i)
{
    if (!o->a || i < o->first) return i;
    const int64_t unit = (i - o->first) / o->unit, rest = (i - o->first) % o->unit;
    const int64_t group = unit / (o->a * o->b), in_group = unit % (o->a * o->b);
    const int64_t turned = in_group % o->b * o->a + in_group / o->b;
    return o->first + (group * o->a * o->b + turned) * o->unit + rest;
}

/* ---- reading ---- */

Status checkpoint_read(const Checkpoint *c, const CheckpointPart *part, uint64_t first, void *out, size_t n, Error *err)
{
    CHECK(first <= part->bytes && n <= part->bytes - first);
    if (c->gguf) return gguf_read(c->gguf, part->offset + first, out, n, err);
    SafetensorsEntry e = { .shard = part->file, .offset = part->offset, .bytes = part->bytes };
    return safetensors_read(c->st, &e, first, out, n, err);
}

/* How many of our rows from `row` on, at most n, are stored behind each other. */
static int64_t run_of_rows(const CheckpointOrder *o, int64_t row, int64_t n)
{
    int64_t stored = checkpoint_stored(o, row), run = 1;
    if (!o->a) return n;
    while (run < n && checkpoint_stored(o, row + run) == stored + run) run++;
    return run;
}

Status checkpoint_read_rows(const Checkpoint *c, const CheckpointTensor *t, int64_t first, int64_t n, void *out,
                            Error *err)
{
    CHECK(quant_geometry(t->stored.format)->in_rows);
    const size_t row_bytes = quant_row_bytes(t->stored.format, t->stored.n_in);
    Status s = OK;
    for (int64_t done = 0, run; !s && done < n; done += run) {
        run = run_of_rows(&t->rows, first + done, n - done);
        uint64_t at = (uint64_t)checkpoint_stored(&t->rows, first + done) * row_bytes;
        s = checkpoint_read(c, &t->codes, at, (char *)out + (size_t)done * row_bytes, (size_t)run * row_bytes, err);
    }
    return s;
}

/* The parts of the rows to be decoded, in memory. */
typedef struct Loaded {
    QuantMatrix m;
    void       *codes, *scales, *zeros, *groups;
} Loaded;

static void loaded_free(Loaded *l)
{
    mem_free(l->codes);
    mem_free(l->scales);
    mem_free(l->zeros);
    mem_free(l->groups);
}

static Status load_part(const Checkpoint *c, const CheckpointPart *part, uint64_t first, uint64_t n, void **out,
                        Error *err)
{
    if (n == 0) return OK;
    *out = mem_realloc(NULL, n);
    if (!*out) return error_set(err, ERR_NOMEM, "no memory for %llu bytes of %s", (unsigned long long)n, c->path);
    return checkpoint_read(c, part, first, *out, n, err);
}

/* Rows [first, first + n) of a format whose rows lie together: their codes, and the scales that they use. */
static Status load_rows(const Checkpoint *c, const CheckpointTensor *t, int64_t first, int64_t n, Loaded *l, Error *err)
{
    const int64_t group = t->stored.group_out ? t->stored.group_out : 1;
    const int64_t first_group = first / group, end_group = (first + n + group - 1) / group;
    const int64_t n_groups = (t->stored.n_out + group - 1) / group;
    const uint64_t group_bytes = t->scales.bytes / (uint64_t)n_groups;
    const size_t row_bytes = quant_row_bytes(t->stored.format, t->stored.n_in);
    l->m = t->stored;
    l->m.n_out = n;
    l->codes = mem_alloc_array((size_t)n, row_bytes);
    if (!l->codes) return error_set(err, ERR_NOMEM, "no memory for %lld rows of tensor %s", (long long)n, t->name);
    Status s = checkpoint_read_rows(c, t, first, n, l->codes, err);
    if (!s) s = load_part(c, &t->scales, (uint64_t)first_group * group_bytes,
                          (uint64_t)(end_group - first_group) * group_bytes, &l->scales, err);
    return s;
}

static Status load_all(const Checkpoint *c, const CheckpointTensor *t, Loaded *l, Error *err)
{
    l->m = t->stored;
    Status s = load_part(c, &t->codes, 0, t->codes.bytes, &l->codes, err);
    if (!s) s = load_part(c, &t->scales, 0, t->scales.bytes, &l->scales, err);
    if (!s) s = load_part(c, &t->zeros, 0, t->zeros.bytes, &l->zeros, err);
    if (!s) s = load_part(c, &t->groups, 0, t->groups.bytes, &l->groups, err);
    return s;
}

static void turn_columns(const CheckpointOrder *o, const float *stored, int64_t n, float *out)
{
    for (int64_t k = 0; k < n; k++) out[k] = stored[checkpoint_stored(o, k)];
}

/* Rows of l to float32. skip: rows of it that lie before the first one wanted. */
static Status decode_loaded(const CheckpointTensor *t, Loaded *l, int64_t skip, int64_t n, float *out, Error *err)
{
    const int64_t n_in = t->stored.n_in;
    l->m.codes = l->codes;
    l->m.scales = l->scales;
    l->m.zeros = l->zeros;
    l->m.groups = l->groups;
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

/* Rows before `first` that have to come along, so that row / group_out counts from the beginning of a group of rows
 * that share scales; none when all wanted rows are in one group. */
static int64_t rows_before(const QuantMatrix *m, int64_t first, int64_t n)
{
    if (m->group_out <= 1) return 0;
    int64_t inside = first % m->group_out;
    return inside + n <= m->group_out ? 0 : inside;
}

Status checkpoint_decode_rows(const Checkpoint *c, const CheckpointTensor *t, int64_t first, int64_t n, float *out,
                              Error *err)
{
    Loaded l = { 0 };
    const bool in_rows = quant_geometry(t->stored.format)->in_rows;
    const int64_t skip = in_rows ? rows_before(&t->stored, first, n) : first;
    if (t->stored.format == QUANT_NONE)
        return error_set(err, ERR_UNSUPPORTED, "tensor %s has type %s, which is not supported", t->name, t->type);
    Status s = in_rows ? load_rows(c, t, first - skip, n + skip, &l, err) : load_all(c, t, &l, err);
    if (!s) s = decode_loaded(t, &l, skip, n, out, err);
    loaded_free(&l);
    return s;
}
