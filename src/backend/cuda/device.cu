/* The CUDA device: opening it, its memory, copies of host arrays, passes recorded as graphs.
 *
 * Inputs. An op may be given ids and places anywhere in host memory, and the caller may change them when the call returns.
 * Each such array has a twin on the device, found by its address, and a shadow that says what the twin holds (or will hold
 * when the stream gets there). Equal contents cost a comparison; others go through a ring of pinned memory:
 *
 *     host array ──differs from shadow?──> ring (pinned) ──copy on the stream──> twin
 *
 * Passes. A pass whose shape was seen before is recorded as a graph: its kernels know the twins, so a replay brings the
 * twins up to date and launches. Shapes that come once are never recorded. All trees of as many rows are one shape: what
 * differs lies in arrays, and the order in which rows pass through recurrent states is found again (cuda_plan_walk()). */
#include "backend/cuda/cuda_impl.h"

#include <mutex>
#include <vector>

#include <stdlib.h>

enum { RING_BYTES = 16 << 20, MAX_INPUTS = 8192, MAX_PASSES = 256, WIDE_FROM = 17 };

/* Why the device is lost; the first reason stays. Errors of a context are for good, so this is the process's. */
static char       loss[512];
static std::mutex loss_mutex;

void cuda_lost(const char *file, int line, const char *what, cudaError_t e)
{
    std::lock_guard<std::mutex> hold(loss_mutex);
    const char *name = strrchr(file, '/');
    if (!loss[0]) snprintf(loss, sizeof loss, "the CUDA device failed: %s (%s:%d, %.*s)", cudaGetErrorString(e), name ? name + 1 : file, line,
                           (int)strcspn(what, "("), what);
}

static const char *device_lost(const Device *d)
{
    std::lock_guard<std::mutex> hold(loss_mutex);
    return loss[0] ? loss : nullptr;
}

[[noreturn]] void cuda_bug(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: check failed: %s\n", file, line, what);
    __builtin_trap();
}

/* ---- inputs ---- */

struct Input {
    const void *host;
    size_t      capacity, bytes; /* bytes: how much of the twin is known */
    char       *twin, *shadow;
};

struct Used {
    int    input;
    size_t bytes;
};

struct Counted {
    uint64_t *counts;
    int64_t   n;
};

struct PassKey {
    const void *model, *seqs, *token, *logits, *features, *hidden, *soft;
    int32_t     n_rows, n_seqs, n_outputs, n_uncertain, n_taps, n_splits, last_slot, real_rows, is_line;
};

struct Pass {
    PassKey              key;
    int                  seen;
    cudaGraphExec_t      exec;
    std::vector<Used>    used;
    std::vector<Counted> counted;
};

struct Allocation {
    void  *p;
    size_t bytes;
};

struct Inputs {
    std::vector<Input> list;
    int32_t           *hash; /* [2 * MAX_INPUTS], -1 = free */
    char              *ring;
    size_t             ring_used;
    std::vector<Allocation> allocations;
};

struct Passes {
    std::vector<Pass> list;
    Pass             *recording; /* NULL: none */
    bool              is_off;
};

static void forget_passes(Device *d)
{
    MUST(!d->passes->recording);
    for (Pass &p : d->passes->list)
        if (p.exec) cudaGraphExecDestroy(p.exec);
    d->passes->list.clear();
}

static void forget_inputs(Device *d)
{
    CUDA_MUST(cudaStreamSynchronize(d->stream));
    forget_passes(d);
    for (Input &i : d->inputs->list) {
        cudaFree(i.twin);
        delete[] i.shadow;
    }
    d->inputs->list.clear();
    memset(d->inputs->hash, 0xff, 2 * MAX_INPUTS * sizeof(int32_t));
}

static int find_input(Device *d, const void *host, size_t bytes)
{
    Inputs *in = d->inputs;
    size_t capacity = 256;
    while (capacity < bytes) capacity *= 2;
    uint64_t h = ((uint64_t)(uintptr_t)host ^ capacity << 40) * 0x9e3779b97f4a7c15u >> 40;
    for (int32_t at = (int32_t)(h % (2 * MAX_INPUTS));; at = (at + 1) % (2 * MAX_INPUTS)) {
        int32_t i = in->hash[at];
        if (i >= 0 && in->list[i].host == host && in->list[i].capacity == capacity) return i;
        if (i >= 0) continue;
        Input fresh = { host, capacity, 0, nullptr, new char[capacity] };
        CUDA_MUST(cudaMalloc(&fresh.twin, capacity));
        in->list.push_back(fresh);
        return in->hash[at] = (int32_t)in->list.size() - 1;
    }
}

static void refresh_input(Device *d, int i, size_t bytes)
{
    Inputs *in = d->inputs;
    Input *p = &in->list[i];
    if (bytes <= p->bytes && memcmp(p->shadow, p->host, bytes) == 0) return;
    size_t room = (bytes + 255) / 256 * 256;
    if (room > RING_BYTES) {
        CUDA_MUST(cudaStreamSynchronize(d->stream));
        CUDA_MUST(cudaMemcpy(p->twin, p->host, bytes, cudaMemcpyHostToDevice));
    } else {
        if (in->ring_used + room > RING_BYTES) {
            CUDA_MUST(cudaStreamSynchronize(d->stream));
            in->ring_used = 0;
        }
        memcpy(in->ring + in->ring_used, p->host, bytes);
        CUDA_MUST(cudaMemcpyAsync(p->twin, in->ring + in->ring_used, bytes, cudaMemcpyHostToDevice, d->stream));
        in->ring_used += room;
    }
    memcpy(p->shadow, p->host, bytes);
    p->bytes = bytes;
}

const void *input(Device *d, const void *host, size_t bytes)
{
    Pass *pass = d->passes->recording;
    if (!pass && d->inputs->list.size() >= MAX_INPUTS) forget_inputs(d);
    MUST(d->inputs->list.size() < MAX_INPUTS + MAX_INPUTS / 2);
    int i = find_input(d, host, bytes);
    if (pass) pass->used.push_back({ i, bytes });
    else refresh_input(d, i, bytes);
    return d->inputs->list[i].twin;
}

void count_rows(Device *d, uint64_t *counts, int64_t n_rows)
{
    int64_t n = n_rows < COUNT_ROWS_MAX ? n_rows : COUNT_ROWS_MAX;
    counts[n]++;
    if (d->passes->recording) d->passes->recording->counted.push_back({ counts, n });
}

bool is_recording(const Device *d)
{
    return d->passes->recording != nullptr;
}

char *scratch(Device *d, size_t bytes)
{
    if (bytes <= d->scratch_bytes) return d->scratch;
    MUST(!d->passes->recording); /* an equal pass has run before */
    CUDA_MUST(cudaStreamSynchronize(d->stream));
    forget_passes(d); /* they know the old place */
    if (d->scratch) CUDA_MUST(cudaFree(d->scratch));
    d->scratch_bytes = bytes + bytes / 2;
    CUDA_MUST(cudaMalloc(&d->scratch, d->scratch_bytes));
    return d->scratch;
}

DeviceBatch batch_of(Device *d, const Batch *b)
{
    return { b->n_rows, b->n_seqs, b->n_uncertain_rows, 0,
             input_of(d, b->seqs, b->n_seqs), input_of(d, b->seq, b->n_rows), input_of(d, b->index, b->n_rows),
             input_of(d, b->parent, b->n_uncertain_rows), input_of(d, b->path, (int64_t)b->n_uncertain_rows * MAX_DEPTH),
             input_of(d, b->first_key, b->n_rows) };
}

/* ---- passes ---- */

static bool is_line(const Batch *b)
{
    for (int32_t s = 0; s < b->n_seqs; s++) {
        const BatchSeq *q = &b->seqs[s];
        if (q->certain || !is_real(b, q)) continue;
        for (int32_t r = q->first_row; r < q->first_row + q->n_rows; r++)
            if (b->parent[r] != (r > q->first_row ? r - 1 : -1)) return false;
    }
    return true;
}

static PassKey key_of(const void *model, const Batch *b)
{
    PassKey k;
    memset(&k, 0, sizeof k);
    k.model = model;
    k.seqs = b->seqs;
    k.token = b->token;
    k.logits = b->logits.data;
    k.features = b->features.data;
    k.hidden = b->last_hidden.data;
    k.n_rows = b->n_rows;
    k.n_seqs = b->n_seqs;
    k.n_outputs = b->n_outputs;
    k.n_uncertain = b->n_uncertain_rows;
    k.n_taps = b->n_taps;
    k.real_rows = (int32_t)real_rows(b);
    k.is_line = is_line(b);
    for (int32_t r = 0; r < b->n_rows; r++)
        if (b->seq[r] >= 0 && b->index[r] / ATTN_SPLIT + 1 > k.n_splits) k.n_splits = b->index[r] / ATTN_SPLIT + 1;
    for (int32_t s = 0; s < b->n_seqs; s++)
        if (is_real(b, &b->seqs[s]) && b->seqs[s].slot > k.last_slot) k.last_slot = b->seqs[s].slot;
    return k;
}

static void replay(Device *d, Pass *p, const Batch *batch)
{
    if (!p->key.is_line) cuda_plan_walk(batch);
    for (const Used &u : p->used) refresh_input(d, u.input, u.bytes);
    for (const Counted &c : p->counted) c.counts[c.n]++;
    CUDA_MUST(cudaGraphLaunch(p->exec, d->stream));
}

/* Rows of a sequence enter the counters one by one, so a graph may stand only for batches of equal sequences. */
static bool can_record(const Device *d, const Batch *b)
{
    if (d->passes->is_off || b->soft_row || b->first_key || b->n_rows > 256) return false;
    for (int32_t s = 1; s < b->n_seqs; s++)
        if (b->seqs[s].n_rows != b->seqs[0].n_rows || b->seqs[s].certain != b->seqs[0].certain) return false;
    return true;
}

static bool pass_begin(Device *d, const void *model, const Batch *batch)
{
    release_held(d);
    Passes *all = d->passes;
    if (!can_record(d, batch)) return false;
    PassKey key = key_of(model, batch);
    for (Pass &p : all->list) {
        if (memcmp(&p.key, &key, sizeof key) != 0) continue;
        if (p.exec) {
            replay(d, &p, batch);
            return true;
        }
        all->recording = &p;
        p.used.clear();
        p.counted.clear();
        CUDA_MUST(cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeRelaxed));
        return false;
    }
    if (all->list.size() == MAX_PASSES) {
        CUDA_MUST(cudaStreamSynchronize(d->stream));
        forget_passes(d);
    }
    Pass fresh = {};
    fresh.key = key;
    all->list.push_back(fresh);
    return false;
}

static void pass_end(Device *d)
{
    release_held(d);
    Pass *p = d->passes->recording;
    if (!p) return;
    cudaGraph_t graph = nullptr;
    d->passes->recording = nullptr;
    CUDA_MUST(cudaStreamEndCapture(d->stream, &graph));
    if (!graph) return; /* the device is lost */
    CUDA_MUST(cudaGraphInstantiate(&p->exec, graph, 0));
    CUDA_MUST(cudaGraphDestroy(graph));
    for (const Used &u : p->used) refresh_input(d, u.input, u.bytes);
    CUDA_MUST(cudaGraphLaunch(p->exec, d->stream)); /* recording counted the rows already */
}

/* ---- faults ---- */

static __global__ void move_largest(char *row, int item, int64_t n)
{
    begin_kernel();
    int64_t at = 0;
    float most = -1;
    for (int64_t i = 0; i < n; i++) {
        float x = fabsf(item == 4 ? ((float *)row)[i] : from_bf16(((uint16_t *)row)[i]));
        if (x > most) {
            most = x;
            at = i;
        }
    }
    if (item == 4) ((uint32_t *)row)[at] ^= 1;
    else ((uint16_t *)row)[at] ^= 1;
}

void fault(Device *d, const char *site, Tensor out, int64_t n_rows)
{
    if (!d->fault[0] || n_rows <= 1 || strcmp(site, d->fault) != 0) return;
    char *row = (char *)out.data + (size_t)((n_rows - 1) * out.stride[0]) * type_bytes(out.dtype);
    launch(d, move_largest, 1, 1, 0, row, (int)type_bytes(out.dtype), out.n_dims == 3 ? out.shape[2] : out.shape[1]);
}

/* ---- opening ---- */

static char sentence[512];

static const char *say(const char *what, cudaError_t e)
{
    snprintf(sentence, sizeof sentence, "%s (CUDA says: %s)", what, cudaGetErrorString(e));
    return sentence;
}

static void device_close(Device *d)
{
    if (!d) return;
    if (d->inputs) {
        forget_inputs(d);
        delete[] d->inputs->hash;
        if (d->inputs->ring) cudaFreeHost(d->inputs->ring);
        delete d->inputs;
    }
    delete d->passes;
    held_close(d);
    if (d->scratch) cudaFree(d->scratch);
    if (d->choose_memory) cudaFree(d->choose_memory);
    if (d->staging) cudaFreeHost(d->staging);
    if (d->raw) cudaFree(d->raw);
    if (d->stream) cudaStreamDestroy(d->stream);
    delete d;
}

static const char *open_parts(Device *d)
{
    cudaDeviceProp prop;
    int n = 0, driver = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e == cudaErrorInsufficientDriver) {
        cudaDriverGetVersion(&driver);
        if (driver == 0) return "this machine has no NVIDIA driver";
        snprintf(sentence, sizeof sentence, "the NVIDIA driver is too old: it knows CUDA %d.%d, this program needs %d.%d; update the driver",
                 driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
        return sentence;
    }
    if (e == cudaErrorNoDevice || (!e && n == 0)) return "no CUDA device was found";
    if (e) return say("no CUDA device can be used", e);
    if ((e = cudaSetDevice(0)) || (e = cudaGetDeviceProperties(&prop, 0))) return say("the CUDA device cannot be opened", e);
    cudaFuncAttributes attr;
    extern __global__ void cuda_probe();
    if ((e = cudaFuncGetAttributes(&attr, cuda_probe))) {
        snprintf(sentence, sizeof sentence, "the CUDA device %s (sm_%d%d) is none this program was built for (sm_90, sm_121)", prop.name,
                 prop.major, prop.minor);
        return sentence;
    }
    snprintf(d->text, sizeof d->text, "%s, sm_%d%d", prop.name, prop.major, prop.minor);
    d->n_sm = prop.multiProcessorCount;
    const char *wide = getenv("TANDEM_WIDE_FROM"); /* both ways have the same bits: for tests and measurements */
    d->wide_from = prop.major == 9 && prop.minor == 0 ? wide ? (int32_t)strtol(wide, nullptr, 10) : WIDE_FROM : INT32_MAX;
    d->shared_bytes = prop.sharedMemPerBlockOptin;
    if ((e = cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking))) return say("no stream on the CUDA device", e);
    d->inputs = new Inputs();
    d->passes = new Passes();
    d->passes->is_off = getenv("TANDEM_NO_GRAPHS") != nullptr;
    d->inputs->hash = new int32_t[2 * MAX_INPUTS];
    memset(d->inputs->hash, 0xff, 2 * MAX_INPUTS * sizeof(int32_t));
    if ((e = cudaMallocHost(&d->inputs->ring, RING_BYTES))) return say("no pinned memory for the CUDA device", e);
    return nullptr;
}

__global__ void cuda_probe()
{
}

static const char *device_open(Device **out, RowCounts *counts)
{
    *out = nullptr;
    Device *d = new Device();
    d->counts = counts;
#ifdef TANDEM_FAULTS
    const char *site = getenv("TANDEM_FAULT");
    if (site) snprintf(d->fault, sizeof d->fault, "%s", site);
#endif
    const char *why = open_parts(d);
    if (why) {
        device_close(d);
        return why;
    }
    *out = d;
    return nullptr;
}

static const char *device_text(const Device *d)
{
    return d->text;
}

static void device_memory(const Device *d, size_t *available, size_t *total)
{
    CUDA_MUST(cudaMemGetInfo(available, total));
}

#ifdef TANDEM_FAULTS
static __global__ void stop_device()
{
    __trap();
}
#endif

static void device_sync(Device *d)
{
#ifdef TANDEM_FAULTS
    enum { WORKS_FOR = 40 }; /* waits until TANDEM_FAULT=lost breaks the device */
    static int n_syncs;
    if (strcmp(d->fault, "lost") == 0 && ++n_syncs == WORKS_FOR) stop_device<<<1, 1, 0, d->stream>>>();
#endif
    release_held(d);
    CUDA_MUST(cudaStreamSynchronize(d->stream));
}

/* ---- memory ---- */

static void *device_alloc(Device *d, size_t bytes, DeviceMemory kind)
{
    void *p = nullptr;
    if (bytes == 0 || bytes > (size_t)1 << 50) return nullptr;
    if (kind == DEVICE_SHARED) {
        if (cudaHostAlloc(&p, bytes, cudaHostAllocMapped | cudaHostAllocPortable)) {
            cudaGetLastError();
            return nullptr;
        }
        memset(p, 0, bytes);
        d->inputs->allocations.push_back({ p, bytes });
        return p;
    }
    if (cudaMalloc(&p, bytes)) {
        cudaGetLastError();
        return nullptr;
    }
    CUDA_MUST(cudaMemsetAsync(p, 0, bytes, d->stream));
    CUDA_MUST(cudaStreamSynchronize(d->stream));
    d->inputs->allocations.push_back({ p, bytes });
    return p;
}

/* Recorded passes may know this memory, and arrays of whoever is being closed. */
static size_t device_free(Device *d, void *p)
{
    CUDA_MUST(cudaStreamSynchronize(d->stream));
    forget_passes(d);
    cudaPointerAttributes attributes;
    size_t bytes = 0;
    for (Allocation &a : d->inputs->allocations) {
        if (a.p != p) continue;
        bytes = a.bytes;
        a = d->inputs->allocations.back();
        d->inputs->allocations.pop_back();
        break;
    }
    CUDA_MUST(cudaStreamSynchronize(d->stream));
    CUDA_MUST(cudaPointerGetAttributes(&attributes, p));
    if (attributes.type == cudaMemoryTypeHost) CUDA_MUST(cudaFreeHost(p));
    else CUDA_MUST(cudaFree(p));
    return bytes;
}

static void device_upload(Device *d, void *to, const void *from, size_t bytes)
{
    CUDA_MUST(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, d->stream));
    CUDA_MUST(cudaStreamSynchronize(d->stream));
}

static void device_download(Device *d, void *to, const void *from, size_t bytes)
{
    release_held(d);
    CUDA_MUST(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, d->stream));
}

/* ---- bandwidth ---- */

static __global__ void read_all(const uint4 *data, size_t n, uint32_t *sink)
{
    begin_kernel();
    enum { UNROLL = 8 };
    uint32_t sum = 0;
    size_t step = (size_t)gridDim.x * blockDim.x * UNROLL;
    for (size_t at = (size_t)blockIdx.x * blockDim.x * UNROLL + threadIdx.x; at < n; at += step) {
        uint4 v[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; i++) v[i] = __ldcs(data + at + (size_t)i * blockDim.x);
#pragma unroll
        for (int i = 0; i < UNROLL; i++) sum ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    if (sum == 0x12345678) *sink = sum;
}

static double device_read_bandwidth(Device *d)
{
    size_t bytes = (size_t)2 << 30;
    char *data;
    cudaEvent_t a = nullptr, b = nullptr;
    double best = 0;
    if (cudaMalloc(&data, bytes)) {
        cudaGetLastError();
        return 0;
    }
    CUDA_MUST(cudaMemsetAsync(data, 1, bytes, d->stream));
    CUDA_MUST(cudaEventCreate(&a));
    CUDA_MUST(cudaEventCreate(&b));
    for (int i = 0; i < 10; i++) {
        float ms = INFINITY;
        CUDA_MUST(cudaEventRecord(a, d->stream));
        launch(d, read_all, d->n_sm * 4, 256, 0, (const uint4 *)data, bytes / sizeof(uint4), (uint32_t *)data);
        CUDA_MUST(cudaEventRecord(b, d->stream));
        CUDA_MUST(cudaEventSynchronize(b));
        CUDA_MUST(cudaEventElapsedTime(&ms, a, b));
        if (bytes / ms * 1e3 > best) best = bytes / ms * 1e3;
    }
    cudaEventDestroy(a);
    cudaEventDestroy(b);
    CUDA_MUST(cudaFree(data));
    return best;
}

static void fill_ops(Ops *ops)
{
    memset(ops, 0, sizeof *ops);
    cuda_add_linear(ops);
    cuda_add_rows(ops);
    cuda_add_norm(ops);
    cuda_add_attention(ops);
    cuda_add_recurrent(ops);
    cuda_add_draft(ops);
    cuda_add_choose(ops);
}

/* Weights come from several workers; the staging buffers are one. */
static void put_rows(Device *d, const Weight *w, int64_t first, int64_t n, const void *rows)
{
    static std::mutex one;
    std::lock_guard<std::mutex> hold(one);
    cuda_put_rows(d, w, first, n, rows);
}

extern "C" __attribute__((visibility("default"))) const DeviceModule *tandem_device_module(void)
{
    static const DeviceModule module = {
        DEVICE_ABI, "cuda",       device_open,   device_close,      device_text, device_memory, fill_ops,   device_sync,
        device_alloc, device_free, device_upload, device_download, cuda_contract, cuda_weight_bytes, put_rows, cuda_get_row,
        pass_begin, pass_end, device_read_bandwidth, device_lost,
    };
    return &module;
}
