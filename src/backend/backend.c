/* A backend as a whole: opening it, its memory, its stream. Without a device module it is the CPU's. */
#include "backend/backend.h"

#include "backend/cpu/cpu_impl.h"
#include "backend/cpu/pages.h"
#include "backend/device.h"
#include "backend/device_load.h"
#include "base/memory.h"

#include <stdatomic.h>
#include <stdlib.h>

struct Backend {
    Ops             ops;
    const char     *variant;
    Stream          stream;
    atomic_size_t   bytes; /* handed out now */
    void           *library; /* of the device module */
};

/* ---- features ---- */

static Status choose_variant(Backend *b, const char *mask, Error *err)
{
    bool ok;
    unsigned features = cpu_features();
    if (!mask) mask = getenv("CPU_MASK");
    if (!(features & CPU_FMA)) {
        return error_set(err, ERR_UNSUPPORTED, "this processor has no fused multiply-add (x86 needs FMA, from 2013 "
                                               "on), and every sum here is made of them");
    }
    features = cpu_mask_features(mask, features, &ok);
    if (!ok) {
        return error_set_param(err, ERR_USAGE, "CPU_MASK",
                               "CPU_MASK must be scalar, avx2, avx-vnni, avx512, avx512-vnni, avx512-bf16, neon or neon-dot, got \"%s\"", mask);
    }
    cpu_ops_fill(&b->ops, features);
    b->stream.linear_blocks = cpu_linear_blocks(features);
    b->stream.linear_fp8 = cpu_linear_fp8(features);
    b->variant = cpu_variant_name(features);
    return OK;
}

/* ---- open, close, questions ---- */

static Status open_stream(Backend *b, const BackendOptions *o, Error *err)
{
    Stream *st = &b->stream;
    Status s = workers_open(&st->workers, o->n_workers, o->cpuset, err);
    if (s) return s;
    st->n_in_use = workers_count(st->workers);
    st->scratch = pages_alloc((size_t)st->n_in_use * WORKER_SCRATCH_BYTES);
    if (!st->scratch) return error_set(err, ERR_NOMEM, "no memory for the scratch of %d workers", st->n_in_use);
    return OK;
}

Status backend_open_cpu(Backend **out, const BackendOptions *options, Error *err)
{
    static const BackendOptions defaults;
    const BackendOptions *o = options ? options : &defaults;
    *out = NULL;
    Backend *b = mem_alloc(sizeof *b);
    if (!b) return error_set(err, ERR_NOMEM, "no memory for the CPU backend");

    Status s = choose_variant(b, o->cpu_mask, err);
    if (!s) s = open_stream(b, o, err);
    if (s) {
        backend_close(b);
        return s;
    }
    numeric_mode_enter();
    *out = b;
    return OK;
}

/* ---- a device ---- */

static Status open_device(Backend *b, Error *err)
{
    const DeviceModule *module = NULL;
    Status s = device_load(&b->library, &module, err);
    if (s) return s;
    Device *device = NULL;
    const char *why = module->open(&device, &b->stream.counts);
    if (why) return error_set_param(err, ERR_UNSUPPORTED, "--device", "--device %s: %s", module->name, why);
    b->stream.device = device;
    b->stream.module = module;
    module->fill_ops(&b->ops);
    b->variant = module->text(device);
    return OK;
}

Status backend_open(Backend **out, const BackendOptions *options, Error *err)
{
    Status s = backend_open_cpu(out, options, err);
    DeviceChoice choice = options ? options->device : DEVICE_AUTO;
    if (s || choice == DEVICE_CPU) return s;
    Error why = { 0 };
    s = open_device(*out, choice == DEVICE_CUDA ? err : &why);
    if (!s || choice == DEVICE_AUTO) return OK; /* a failure left the CPU's table as it was */
    backend_close(*out);
    *out = NULL;
    return s;
}

void backend_close(Backend *b)
{
    if (!b) return;
    if (b->stream.device) b->stream.module->close(b->stream.device);
    device_unload(b->library);
    workers_close(b->stream.workers);
    pages_free(b->stream.scratch);
    mem_free(b);
}

const Ops *backend_ops(const Backend *b)
{
    return &b->ops;
}

Stream *backend_stream(Backend *b)
{
    return &b->stream;
}

const char *backend_name(const Backend *b)
{
    return b->stream.device ? b->stream.module->name : "cpu";
}

const char *backend_variant(const Backend *b)
{
    return b->variant;
}

int backend_workers(const Backend *b)
{
    return workers_count(b->stream.workers);
}

/* ---- memory ---- */

static void *take(Backend *b, size_t bytes, DeviceMemory kind)
{
    void *p = b->stream.device ? b->stream.module->alloc(b->stream.device, bytes, kind) : pages_alloc(bytes);
    if (p) atomic_fetch_add(&b->bytes, bytes);
    return p;
}

void *backend_alloc(Backend *b, size_t bytes)
{
    return take(b, bytes, DEVICE_SHARED);
}

void *backend_alloc_device(Backend *b, size_t bytes)
{
    return take(b, bytes, DEVICE_ONLY);
}

void backend_upload(Backend *b, void *to, const void *from, size_t bytes)
{
    if (b->stream.device) b->stream.module->upload(b->stream.device, to, from, bytes);
    else memcpy(to, from, bytes);
}

uint64_t backend_available(const Backend *b)
{
    size_t available = 0, total;
    if (b->stream.device) b->stream.module->memory(b->stream.device, &available, &total);
    return available;
}

const DeviceModule *backend_module(const Backend *b, Device **device)
{
    *device = b->stream.device;
    return b->stream.module;
}

bool backend_is_device(const Backend *b)
{
    return b && b->stream.module;
}

void backend_free(Backend *b, void *p)
{
    if (!p) return;
    if (b->stream.device) {
        atomic_fetch_sub(&b->bytes, b->stream.module->free(b->stream.device, p));
        return;
    }
    atomic_fetch_sub(&b->bytes, pages_bytes(p));
    pages_free(p);
}

size_t backend_bytes(const Backend *b)
{
    return atomic_load(&b->bytes);
}

/* ---- stream ---- */

void stream_sync(Stream *st)
{
    if (st->device) st->module->sync(st->device);
}

const char *stream_lost(const Stream *st)
{
    return st->device ? st->module->lost(st->device) : NULL;
}

void stream_download(Stream *st, void *to, const void *from, size_t bytes)
{
    if (st->device) st->module->download(st->device, to, from, bytes);
    else memcpy(to, from, bytes);
}

bool stream_pass_begin(Stream *st, const void *model, const Batch *batch)
{
    return st->device && st->module->pass_begin(st->device, model, batch);
}

void stream_pass_end(Stream *st)
{
    if (st->device) st->module->pass_end(st->device);
}

void stream_use_workers(Stream *st, int n_workers)
{
    CHECK(n_workers >= 1 && n_workers <= workers_count(st->workers));
    st->n_in_use = n_workers;
}

void stream_parallel_n(Stream *st, int n_workers, ParallelFn fn, void *arg)
{
    workers_run(st->workers, n_workers < st->n_in_use ? n_workers : st->n_in_use, fn, arg);
}

void stream_parallel(Stream *st, ParallelFn fn, void *arg)
{
    workers_run(st->workers, st->n_in_use, fn, arg);
}

typedef struct ForJob {
    int64_t n_items;
    ForFn   fn;
    void   *arg;
} ForJob;

static void run_share(void *arg, int worker, int n_workers)
{
    const ForJob *job = arg;
    Range r = worker_range(job->n_items, worker, n_workers);
    job->fn(job->arg, r.first, r.end, worker);
}

void stream_for(Stream *st, int64_t n_items, int64_t min_items, ForFn fn, void *arg)
{
    if (n_items <= 0) return;
    int64_t shares = n_items / (min_items > 1 ? min_items : 1);
    if (shares <= 1 || st->n_in_use == 1) {
        fn(arg, 0, n_items, 0);
        return;
    }
    ForJob job = { n_items, fn, arg };
    stream_parallel_n(st, shares < st->n_in_use ? (int)shares : st->n_in_use, run_share, &job);
}

RowCounts *stream_row_counts(Stream *st)
{
    return &st->counts;
}
