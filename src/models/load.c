/* Filling a model's weights: from a checkpoint, or with dummy numbers of the same shapes.
 *
 * The list is cut into tasks of whole weight panels, about 4 MB of the source each, and sorted by their place in the files.
 * Lanes take the next one, each with a staging buffer of its own. Every worker has a lane; one that waits for its bytes longer
 * than it repacks them starts a thread with another lane beside it, a few at most. So the disk always has something to do
 * while what came is repacked, and files that are in memory already are not fought over by threads without a processor.
 *
 *     worker 0: lane 0, lane n, lane 2n     \
 *     worker 1: lane 1, lane n + 1 ...       >  next task -> read -> hash, repack (load_task.c)
 *
 * Nothing exists twice. Tasks depend on the checkpoint alone, never on lanes; the hashes of tensors make the fingerprint of
 * the weights, which therefore depends on neither, nor on shards. */
#include "models/load_impl.h"

#include "backend/needs.h"
#include "base/clock.h"
#include "base/memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <xxhash.h>

enum { VECTOR_ALIGN = 16, LANES_PER_WORKER = 4, MAX_LANES = 32, WAIT_FACTOR = 2, HUGE_PAGE = 2 << 20 };
static const size_t STAGING_BYTES = (size_t)32 << 20, MAX_STAGING_BYTES = (size_t)256 << 20; /* of all lanes, by default and at most */

typedef struct Loader Loader;

typedef struct LoadLane {
    Loader   *loader;
    void     *staging;         /* whole pages */
    int       stride, newest;  /* of a worker's lane: from one to the next of those beside it; the newest that runs */
    pthread_t thread;          /* of the others */
    Error     err;
} LoadLane;

struct Loader {
    LoadContext      context;
    LoadTask        *tasks;
    int             *order; /* in which they are done */
    int              n_tasks;
    LoadLane        *lanes;
    int              n_lanes;
    void            *block; /* of all staging */
    uint64_t         total_bytes;
    atomic_int       next;
    atomic_bool      failed;
    _Atomic uint64_t done_bytes;
};

/* ---- memory ---- */

static size_t vector_bytes(const WeightItem *item)
{
    size_t n = (size_t)weight_item_count(item);
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

/* Cuts the list into tasks. With tasks == NULL it only counts them. */
static int cut_tasks(const WeightList *list, const Checkpoint *file, LoadTask *tasks)
{
    int n = 0;
    for (int i = 0; i < list->n; i++) {
        LoadTask t = load_task_of(&list->items[i], file);
        int64_t n_rows = t.n, step = load_task_rows(&t);
        for (t.first = 0; t.first < n_rows; t.first += step, n++) {
            t.n = n_rows - t.first < step ? n_rows - t.first : step;
            if (tasks) tasks[n] = t;
        }
    }
    return n;
}

/* By file and place in it, so that disks and their caches see one sweep; then as they were cut. */
static int compare_places(const void *a, const void *b, void *tasks)
{
    const int i = *(const int *)a, k = *(const int *)b;
    const CheckpointTensor *x = ((const LoadTask *)tasks)[i].tensor, *y = ((const LoadTask *)tasks)[k].tensor;
    if (x && y && x->codes.file != y->codes.file) return x->codes.file < y->codes.file ? -1 : 1;
    if (x && y && x->codes.offset != y->codes.offset) return x->codes.offset < y->codes.offset ? -1 : 1;
    return (i > k) - (i < k);
}

static void sort_tasks(Loader *l)
{
    for (int i = 0; i < l->n_tasks; i++) l->order[i] = i;
    qsort_r(l->order, (size_t)l->n_tasks, sizeof *l->order, compare_places, l->tasks);
}

/* ---- lanes ---- */

/* As many as there is memory for. */
static int count_lanes(int n_workers, size_t room, size_t memory)
{
    int n = n_workers * LANES_PER_WORKER < MAX_LANES ? n_workers * LANES_PER_WORKER : MAX_LANES;
    if (!memory) memory = STAGING_BYTES;
    if (memory > MAX_STAGING_BYTES) memory = MAX_STAGING_BYTES;
    while (n > 1 && (size_t)n * room > memory) n--;
    return n;
}

static size_t up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* One block for all lanes, in huge pages: a read past the page cache hands the device a list of the pages it goes to, and
 * with small ones the list is longer than the reading. */
static Status take_staging(Loader *l, size_t room, Error *err)
{
    const size_t bytes = (size_t)l->n_lanes * room;
    l->block = mem_realloc(NULL, bytes + HUGE_PAGE);
    if (!l->block) return error_set(err, ERR_NOMEM, "no memory for %zu bytes of buffers to load weights", bytes);
    char *first = (char *)l->block + (-(uintptr_t)l->block & (HUGE_PAGE - 1));
    if (room >= HUGE_PAGE) madvise(first, bytes, MADV_HUGEPAGE); /* advice: without it we are slower, not wrong */
    for (int i = 0; i < l->n_lanes; i++) {
        l->lanes[i].loader = l;
        l->lanes[i].staging = first + (size_t)i * room;
    }
    return OK;
}

static Status open_lanes(Loader *l, int n_workers, Error *err)
{
    size_t room = 0;
    for (int i = 0; i < l->n_tasks; i++) {
        size_t own = load_task_room(&l->tasks[i]);
        if (own > room) room = own;
    }
    room = up(room, room < HUGE_PAGE ? DATA_FILE_PAGE : HUGE_PAGE);
    l->n_lanes = count_lanes(n_workers, room, l->context.options->load_bytes);
    l->lanes = mem_alloc_array((size_t)l->n_lanes, sizeof *l->lanes);
    if (!l->lanes) return error_set(err, ERR_NOMEM, "no memory to load %d pieces of weights", l->n_tasks);
    return take_staging(l, room, err);
}

static Status loader_open(Loader *l, const WeightList *list, const LoadContext *context, Error *err)
{
    *l = (Loader){ .context = *context };
    l->n_tasks = cut_tasks(list, context->file, NULL);
    l->tasks = mem_alloc_array((size_t)l->n_tasks, sizeof *l->tasks);
    l->order = mem_alloc_array((size_t)l->n_tasks, sizeof *l->order);
    if (!l->tasks || !l->order) return error_set(err, ERR_NOMEM, "no memory to load %d tensors", list->n);
    cut_tasks(list, context->file, l->tasks);
    for (int i = 0; i < l->n_tasks; i++) l->total_bytes += load_task_bytes(&l->tasks[i]);
    sort_tasks(l);
    return open_lanes(l, backend_workers(context->backend), err);
}

static void loader_close(Loader *l)
{
    mem_free(l->block);
    mem_free(l->lanes);
    mem_free(l->order);
    mem_free(l->tasks);
}

static void report(const Loader *l, uint64_t done)
{
    const ModelOptions *o = l->context.options;
    if (o->progress) o->progress(o->progress_ctx, done, l->total_bytes);
}

static void *lane_main(void *lane);

/* One that cannot be started is missed by nobody. */
static void start_beside(LoadLane *lane)
{
    LoadLane *lanes = lane->loader->lanes;
    int next = lane->newest + lane->stride;
    if (next < lane->loader->n_lanes && pthread_create(&lanes[next].thread, NULL, lane_main, &lanes[next]) == 0)
        lane->newest = next;
}

/* True when the bytes were waited for. */
static bool run_task(LoadLane *lane, LoadTask *t)
{
    const LoadContext *c = &lane->loader->context;
    LoadStaged staged;
    const double begin = clock_ms();
    Status s = load_task_read(c, t, lane->staging, &staged, &lane->err);
    const double middle = clock_ms();
    if (!s) s = load_task_put(c, t, &staged, &lane->err);
    if (s) atomic_store(&lane->loader->failed, true);
    return (t->source == LOAD_ROWS || t->source == LOAD_STORED) && middle - begin > WAIT_FACTOR * (clock_ms() - middle);
}

static void run_lane(LoadLane *lane)
{
    Loader *l = lane->loader;
    while (!atomic_load(&l->failed)) {
        int i = atomic_fetch_add(&l->next, 1);
        if (i >= l->n_tasks) return;
        LoadTask *t = &l->tasks[l->order[i]];
        if (run_task(lane, t) && lane->stride) start_beside(lane);
        uint64_t bytes = load_task_bytes(t), done = atomic_fetch_add(&l->done_bytes, bytes) + bytes;
        if (lane == l->lanes) report(l, done);
    }
}

static void *lane_main(void *lane)
{
    numeric_mode_enter();
    run_lane(lane);
    return NULL;
}

/* A worker's lane and those beside it, whose threads may use the same processors. */
static void run_lanes(void *arg, int worker, int n_workers)
{
    Loader *l = arg;
    if (worker >= l->n_lanes) return;
    LoadLane *lane = &l->lanes[worker];
    lane->stride = n_workers;
    lane->newest = worker;
    run_lane(lane);
    for (int i = worker + n_workers; i <= lane->newest; i += n_workers) pthread_join(l->lanes[i].thread, NULL);
}

/* ---- all of it ---- */

static uint64_t feed(uint64_t hash, const void *data, size_t bytes)
{
    return XXH3_64bits_withSeed(data, bytes, hash);
}

/* What was loaded and into which arithmetic: one number. */
static uint64_t hash_of_weights(const WeightList *list, const Loader *l)
{
    uint64_t hash = (uint64_t)list->mode;
    for (int i = 0, task = 0; i < list->n; i++) {
        const WeightItem *item = &list->items[i];
        const Contract *c = &item->contract;
        uint64_t content = 0;
        while (task < l->n_tasks && l->tasks[task].item == item) content += l->tasks[task++].hash;
        uint64_t numbers[] = { item->use,  item->n_dims, item->shape[0], item->shape[1], item->shape[2], c->mode,
                               c->k_step,  c->k_chunk,   c->k_parts,     c->in,          c->out,         c->format, content };
        hash = feed(hash, item->name, strlen(item->name));
        hash = feed(hash, numbers, sizeof numbers);
        if (item->matrix) hash = feed(hash, &item->matrix->global, sizeof item->matrix->global);
    }
    return hash;
}

static void take_globals(WeightList *list, const Checkpoint *file)
{
    for (int i = 0; i < list->n; i++) {
        WeightItem *item = &list->items[i];
        if (item->matrix && contract_is_stored(&item->contract) && !item->quantize)
            item->matrix->global = file ? checkpoint_find(file, item->name)->stored.global : load_dummy_global(item);
    }
}

Status weights_load(WeightList *list, const Checkpoint *file, Backend *backend, const ModelOptions *options,
                    Error *err)
{
    Status s = take_memory(list, backend, err);
    if (s) return s;
    take_globals(list, file);

    Loader l;
    s = loader_open(&l, list, &(LoadContext){ file, backend, options }, err);
    if (!s) {
        report(&l, 0);
        stream_parallel(backend_stream(backend), run_lanes, &l);
        for (int i = 0; i < l.n_lanes && !s; i++)
            if (l.lanes[i].err.status) s = error_set(err, l.lanes[i].err.status, "%s", l.lanes[i].err.text);
    }
    if (!s) {
        list->hash = hash_of_weights(list, &l);
        report(&l, l.total_bytes);
    }
    loader_close(&l);
    return s;
}
