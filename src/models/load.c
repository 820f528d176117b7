/* Filling a model's weights: from a checkpoint, or with dummy numbers of the same shapes.
 *
 * The list is cut into tasks of whole weight panels, about LOAD_CHUNK_BYTES of the source each. Every worker takes the
 * next task, gets its bytes into a staging buffer of its own, and puts them converted into their final place:
 *
 *     checkpoint --pread--> staging (4 MB a worker) --round or decode, repack--> panels
 *
 * so nothing exists twice. Stored blocks that kernels compute with only change places; what they cannot read is decoded. Tasks depend on the checkpoint alone, never on the workers, and each leaves a hash of its
 * bytes; together they make the fingerprint of the weights, which therefore does not depend on workers or shards. */
#include "models/weights.h"

#include "base/fmath.h"
#include "backend/needs.h"
#include "base/memory.h"

#include <stdatomic.h>
#include <xxhash.h>

enum { LOAD_CHUNK_BYTES = 4 << 20, VECTOR_ALIGN = 16 };

typedef enum LoadSource {
    LOAD_MADE_UP, /* dummy numbers, bf16 */
    LOAD_ROWS,    /* plain numbers as they are stored */
    LOAD_BLOCKS,  /* stored blocks: all codes of the task, then all scales */
    LOAD_DECODED, /* float32 by checkpoint_decode_rows() */
} LoadSource;

typedef struct LoadTask {
    const WeightItem       *item;
    const CheckpointTensor *tensor;    /* NULL: dummy */
    LoadSource              source;
    DType                   dtype;     /* of numbers in staging */
    int64_t                 first, n;  /* rows; a vector is one row */
    size_t                  row_bytes, scale_bytes; /* of a row in staging: all, and what of it are scales */
    uint64_t                hash;      /* of the bytes in staging */
} LoadTask;

typedef struct LoadWorker {
    void *staging;
    Error err;
} LoadWorker;

typedef struct Loader {
    const Checkpoint  *file; /* NULL: dummy */
    Backend            *backend;
    const ModelOptions *options;
    LoadTask           *tasks;
    int                 n_tasks;
    LoadWorker         *workers;
    int                 n_workers;
    size_t              staging_bytes;
    uint64_t            total_bytes;
    atomic_int          next;
    atomic_bool         failed;
    _Atomic uint64_t    done_bytes;
} Loader;

/* ---- memory ---- */

static int64_t item_count(const WeightItem *item)
{
    int64_t n = 1;
    for (int i = 0; i < item->n_dims; i++) n *= item->shape[i];
    return n;
}

static size_t vector_bytes(const WeightItem *item)
{
    size_t n = (size_t)item_count(item);
    return (n + VECTOR_ALIGN - 1) / VECTOR_ALIGN * VECTOR_ALIGN * sizeof(float);
}

static size_t vectors_bytes(const WeightList *list)
{
    size_t bytes = 0;
    for (int i = 0; i < list->n; i++)
        if (list->items[i].vector) bytes += vector_bytes(&list->items[i]);
    return bytes;
}

size_t weights_bytes(const WeightList *list)
{
    size_t bytes = vectors_bytes(list);
    for (int i = 0; i < list->n; i++) {
        const WeightItem *item = &list->items[i];
        if (item->matrix) bytes += weight_bytes(item->shape[0], item->shape[1], &item->contract);
    }
    return bytes;
}

size_t weights_held(const WeightList *list)
{
    size_t bytes = backend_held(vectors_bytes(list));
    for (int i = 0; i < list->n; i++) {
        const WeightItem *item = &list->items[i];
        if (item->matrix) bytes += backend_held(weight_bytes(item->shape[0], item->shape[1], &item->contract));
    }
    return bytes;
}

static Status take_memory(WeightList *list, Backend *backend, Error *err)
{
    list->backend = backend;
    size_t bytes = vectors_bytes(list);
    char *at = list->vectors = backend_alloc_device(backend, bytes);
    if (!at) return error_set(err, ERR_NOMEM, "no memory for %zu bytes of norm weights", bytes);

    Status s = OK;
    for (int i = 0; i < list->n && !s; i++) {
        WeightItem *item = &list->items[i];
        if (item->vector) {
            *item->vector = (float *)at;
            at += vector_bytes(item);
        } else {
            s = weight_alloc(backend, item->matrix, item->shape[0], item->shape[1], item->contract, err);
        }
    }
    return s;
}

void weights_free(WeightList *list)
{
    for (int i = 0; list->backend && i < list->n; i++) {
        WeightItem *item = &list->items[i];
        if (item->matrix && item->matrix->data) backend_free(list->backend, item->matrix->data);
    }
    if (list->vectors) backend_free(list->backend, list->vectors);
    mem_free(list->items);
    *list = (WeightList){ 0 };
}

/* ---- tasks ---- */

static DType plain_dtype(QuantFormat f)
{
    return f == QUANT_F32 ? DT_F32 : f == QUANT_F16 ? DT_F16 : DT_BF16;
}

static LoadSource source_of(const WeightItem *item, const CheckpointTensor *t)
{
    if (!t) return LOAD_MADE_UP;
    if (item->matrix && item->contract.mode == MATH_INT8_BLOCK) return LOAD_BLOCKS;
    return quant_is_plain(t->stored.format) && !t->columns.a && (item->matrix || !t->rows.a) ? LOAD_ROWS : LOAD_DECODED;
}

static LoadTask task_of_item(const WeightItem *item, const Checkpoint *file)
{
    LoadTask t = { .item = item, .tensor = file ? checkpoint_find(file, item->name) : NULL };
    t.source = source_of(item, t.tensor);
    t.dtype = t.source == LOAD_MADE_UP ? DT_BF16 : t.source == LOAD_ROWS ? plain_dtype(t.tensor->stored.format) : DT_F32;
    t.n = item->matrix ? item->shape[0] : 1;
    t.row_bytes = (size_t)(item_count(item) / t.n) * dtype_bytes(t.dtype);
    if (t.source == LOAD_BLOCKS) {
        t.scale_bytes = (size_t)t.tensor->scales.bytes / (size_t)t.n;
        t.row_bytes = quant_row_bytes(t.tensor->stored.format, t.tensor->stored.n_in) + t.scale_bytes;
    }
    return t;
}

/* Rows of one task: whole panels, since two workers must not write into one. Of a format whose inputs are outermost all. */
static int64_t task_rows(const LoadTask *t)
{
    int64_t rows = LOAD_CHUNK_BYTES / (int64_t)t->row_bytes / WEIGHT_PANEL * WEIGHT_PANEL;
    if (t->tensor && !quant_geometry(t->tensor->stored.format)->in_rows) return t->n;
    return rows < WEIGHT_PANEL ? WEIGHT_PANEL : rows;
}

/* Cuts the list into tasks. With tasks == NULL it only counts them. */
static int cut_tasks(const WeightList *list, const Checkpoint *file, LoadTask *tasks)
{
    int n = 0;
    for (int i = 0; i < list->n; i++) {
        LoadTask t = task_of_item(&list->items[i], file);
        if (t.source == LOAD_BLOCKS) t.item->matrix->global = t.tensor->stored.global;
        int64_t n_rows = t.n, step = task_rows(&t);
        for (t.first = 0; t.first < n_rows; t.first += step, n++) {
            t.n = n_rows - t.first < step ? n_rows - t.first : step;
            if (tasks) tasks[n] = t;
        }
    }
    return n;
}

static Status loader_open(Loader *l, const WeightList *list, const Checkpoint *file, Backend *backend,
                          const ModelOptions *options, Error *err)
{
    *l = (Loader){ .file = file, .backend = backend, .options = options, .n_workers = backend_workers(backend) };
    l->n_tasks = cut_tasks(list, file, NULL);
    l->tasks = mem_alloc_array((size_t)l->n_tasks, sizeof *l->tasks);
    l->workers = mem_alloc_array((size_t)l->n_workers, sizeof *l->workers);
    if (!l->tasks || !l->workers) return error_set(err, ERR_NOMEM, "no memory to load %d tensors", list->n);

    cut_tasks(list, file, l->tasks);
    for (int i = 0; i < l->n_tasks; i++) {
        size_t bytes = (size_t)l->tasks[i].n * l->tasks[i].row_bytes;
        l->total_bytes += bytes;
        if (bytes > l->staging_bytes) l->staging_bytes = bytes;
    }
    for (int i = 0; i < l->n_workers; i++) {
        l->workers[i].staging = mem_alloc(l->staging_bytes);
        if (!l->workers[i].staging)
            return error_set(err, ERR_NOMEM, "no memory for a %zu byte buffer to load weights", l->staging_bytes);
    }
    return OK;
}

static void loader_close(Loader *l)
{
    for (int i = 0; l->workers && i < l->n_workers; i++) mem_free(l->workers[i].staging);
    mem_free(l->workers);
    mem_free(l->tasks);
}

/* ---- dummy numbers ---- */

/* splitmix64 (Steele, Lea, Flood, OOPSLA 2014): the i-th number of a stream without computing the others. */
static inline uint64_t mix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* n bf16 numbers of random sign and magnitude in [2^k, 2^(k+2)): four a random word, no arithmetic in floats. */
static void dummy_numbers(uint16_t *out, int64_t n, int k, uint64_t stream)
{
    uint64_t exponent = (uint64_t)(127 + k) / 2 * 2 << 7;
    exponent *= 0x0001000100010001u;
    for (int64_t i = 0; i < n; i += 4) {
        uint64_t word = (mix64(stream + (uint64_t)i) & 0x80ff80ff80ff80ffu) | exponent;
        memcpy(out + i, &word, n - i < 4 ? (size_t)(n - i) * 2 : 8);
    }
}

/* A matrix gets numbers of about 1/sqrt(n_in), so that activations and logits stay near 1 at any depth. */
static void dummy_task(const Loader *l, const LoadTask *t, uint16_t *out)
{
    int64_t n_row = (int64_t)t->row_bytes / 2;
    int k = t->item->matrix ? -1 - ilogb((double)n_row) / 2 : -5;
    uint64_t name = XXH3_64bits_withSeed(t->item->name, strlen(t->item->name), l->options->dummy_seed);
    for (int64_t r = 0; r < t->n; r++)
        dummy_numbers(out + r * n_row, n_row, k, mix64(name ^ (uint64_t)(t->first + r)));
    if (t->item->vector && t->item->use == VECTOR_NORM)
        for (int64_t i = 0; i < n_row; i++) out[i] = f32_to_bf16(1.0f + bf16_to_f32(out[i]));
}

/* ---- running ---- */

static Status finish_vector(const WeightItem *item, float *values, bool is_final, Error *err)
{
    for (int64_t i = 0, n = item_count(item); i < n; i++) {
        float stored = values[i];
        if (item->use == VECTOR_NORM_PLUS_ONE && !is_final) values[i] = 1.0f + stored;
        if (item->use == VECTOR_NEG_EXP && !is_final) values[i] = -f_exp(stored);
        if (!isfinite(stored) || !isfinite(values[i]))
            return error_set(err, ERR_INPUT, "tensor %s holds %g at index %lld, which leaves no finite weight",
                             item->name, stored, (long long)i);
    }
    return OK;
}

/* Through memory of its own: its place may be on a device. */
static Status store_vector(Backend *backend, const LoadTask *t, const void *source, Error *err)
{
    const WeightItem *item = t->item;
    size_t n = (size_t)item_count(item);
    float *values = mem_alloc_array(n, sizeof *values);
    if (!values) return error_set(err, ERR_NOMEM, "no memory to load tensor %s", item->name);
    dtype_to_f32(values, source, t->dtype, n);
    Status s = finish_vector(item, values, t->tensor && t->tensor->is_final, err);
    if (!s) backend_upload(backend, *item->vector, values, n * sizeof *values);
    mem_free(values);
    return s;
}

/* Codes and scales of the task's rows; scales lie in the order of rows, so they are only there when rows are in ours. */
static Status read_blocks(const Loader *l, const LoadTask *t, char *staging, Error *err)
{
    size_t code_bytes = t->row_bytes - t->scale_bytes, n_scales = (size_t)t->n * t->scale_bytes;
    Status s = checkpoint_read_rows(l->file, t->tensor, t->first, t->n, staging, err);
    if (s || !n_scales) return s;
    CHECK(!t->tensor->rows.a);
    return checkpoint_read(l->file, &t->tensor->scales, (uint64_t)t->first * t->scale_bytes, staging + (size_t)t->n * code_bytes, n_scales, err);
}

static Status read_task(const Loader *l, const LoadTask *t, void *staging, Error *err)
{
    int64_t n_rows = t->item->matrix ? t->n : t->tensor ? t->tensor->stored.n_out : 1;
    switch (t->source) {
    case LOAD_ROWS: return checkpoint_read_rows(l->file, t->tensor, t->first, n_rows, staging, err);
    case LOAD_BLOCKS: return read_blocks(l, t, staging, err);
    case LOAD_DECODED: return checkpoint_decode_rows(l->file, t->tensor, t->first, n_rows, staging, err);
    default: dummy_task(l, t, staging); return OK;
    }
}

static Status put_blocks(const LoadTask *t, const char *staging, Error *err)
{
    QuantMatrix m = t->tensor->stored;
    m.n_out = t->n;
    m.codes = staging;
    m.scales = staging + (size_t)t->n * (t->row_bytes - t->scale_bytes);
    Status s = quant_check(&m, t->item->name, err);
    if (!s) weight_put_blocks(t->item->matrix, t->first, &m);
    return s;
}

static Status run_task(Loader *l, LoadTask *t, LoadWorker *w)
{
    Status s = read_task(l, t, w->staging, &w->err);
    if (s) return s;
    t->hash = XXH3_64bits(w->staging, (size_t)t->n * t->row_bytes);
    if (t->item->vector) return store_vector(l->backend, t, w->staging, &w->err);
    if (t->source == LOAD_BLOCKS) return put_blocks(t, w->staging, &w->err);
    weight_put_rows(t->item->matrix, t->first, t->n, w->staging, t->dtype);
    return OK;
}

static void run_tasks(void *arg, int worker, int n_workers)
{
    Loader *l = arg;
    LoadWorker *w = &l->workers[worker];
    while (!atomic_load(&l->failed)) {
        int i = atomic_fetch_add(&l->next, 1);
        if (i >= l->n_tasks) return;
        if (run_task(l, &l->tasks[i], w)) atomic_store(&l->failed, true);
        uint64_t bytes = (uint64_t)l->tasks[i].n * l->tasks[i].row_bytes;
        uint64_t done = atomic_fetch_add(&l->done_bytes, bytes) + bytes;
        if (worker == 0 && l->options->progress)
            l->options->progress(l->options->progress_ctx, done, l->total_bytes);
    }
}

/* What was loaded and into which arithmetic: one number. */
static uint64_t hash_of_weights(const WeightList *list, const Loader *l)
{
    uint64_t hash = (uint64_t)list->mode;
    for (int i = 0; i < list->n; i++) {
        const WeightItem *item = &list->items[i];
        const Contract *c = &item->contract;
        uint64_t numbers[] = { item->use,  item->n_dims, item->shape[0], item->shape[1], item->shape[2],
                               c->mode,    c->k_step,    c->k_chunk,     c->k_parts,     c->in, c->out, c->format };
        hash = XXH3_64bits_withSeed(item->name, strlen(item->name), hash);
        hash = XXH3_64bits_withSeed(numbers, sizeof numbers, hash);
    }
    for (int i = 0; i < l->n_tasks; i++)
        hash = XXH3_64bits_withSeed(&l->tasks[i].hash, sizeof l->tasks[i].hash, hash);
    return hash;
}

Status weights_load(WeightList *list, const Checkpoint *file, Backend *backend, const ModelOptions *options,
                    Error *err)
{
    Status s = take_memory(list, backend, err);
    if (s) return s;

    Loader l;
    s = loader_open(&l, list, file, backend, options, err);
    if (!s) {
        if (options->progress) options->progress(options->progress_ctx, 0, l.total_bytes);
        stream_parallel(backend_stream(backend), run_tasks, &l);
        for (int i = 0; i < l.n_workers && !s; i++)
            if (l.workers[i].err.status) s = error_set(err, l.workers[i].err.status, "%s", l.workers[i].err.text);
    }
    if (!s) {
        list->hash = hash_of_weights(list, &l);
        if (options->progress) options->progress(options->progress_ctx, l.total_bytes, l.total_bytes);
    }
    loader_close(&l);
    return s;
}
