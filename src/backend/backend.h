/* A device: its memory, its workers or queue, its table of operations. Every backend has the CPU's workers; one on a GPU has
 * a device module besides (device.h), which brings memory and operations.
 *
 * Stream is the order in which operations run. On the CPU an op runs to its end inside the call,
 * spread over the workers, so stream_sync() does nothing; on a GPU ops are queued and the host waits
 * in one named place a step. */
#pragma once

#include "backend/ops.h"
#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

typedef struct Backend Backend;

typedef enum DeviceChoice { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA } DeviceChoice; /* auto: CUDA where it can be had */

typedef struct BackendOptions {
    int         n_workers; /* threads that compute, the caller's included; 0 = one per available core */
    const char *cpuset;    /* "0-3,8": pin workers to these; NULL = the process's affinity, no pinning */
    const char *cpu_mask;  /* scalar | avx2 | avx-vnni | avx512 | avx512-vnni | avx512-bf16 | neon | neon-dot: highest variant allowed;
                            * NULL = $CPU_MASK, then all */
    DeviceChoice device;   /* backend_open() looks at it */
} BackendOptions;

Status backend_open_cpu(Backend **out, const BackendOptions *options, Error *err);
/* The device that options ask for. Errors name --device. */
Status backend_open(Backend **out, const BackendOptions *options, Error *err);
void   backend_close(Backend *b);

const Ops  *backend_ops(const Backend *b);
Stream     *backend_stream(Backend *b);
const char *backend_name(const Backend *b);    /* "cpu", "cuda" */
const char *backend_variant(const Backend *b); /* "avx512-bf16", "scalar", "NVIDIA H200, sm_90" ... */
int         backend_workers(const Backend *b);
void        stream_sync(Stream *st);
const char *stream_lost(const Stream *st); /* after a sync: NULL, or a sentence why the device is gone for good */

/* Around the ops of a model's pass on this batch. true: the device has done the pass already, by repeating an equal one that
 * it had recorded; the ops are left out. The CPU never does. */
bool stream_pass_begin(Stream *st, const void *model, const Batch *batch);
void stream_pass_end(Stream *st);

/* Memory that lives as long as the process: weights, caches, scratch. Zeroed, 64-byte aligned, in 2 MB
 * pages where the system gives them (pieces from 1 MB on). NULL: none left. Freed by backend_free only.
 * backend_alloc: host and kernels see it under one address (what kernels wrote, after stream_sync).
 * backend_alloc_device: kernels only, and backend_upload; the same on a CPU. */
void *backend_alloc(Backend *b, size_t bytes);
void *backend_alloc_device(Backend *b, size_t bytes);
void  backend_upload(Backend *b, void *to, const void *from, size_t bytes);
/* From what only kernels touch to backend_alloc()'s memory; there after stream_sync(). */
void  stream_download(Stream *st, void *to, const void *from, size_t bytes);
void  backend_free(Backend *b, void *p);
size_t backend_bytes(const Backend *b); /* handed out now */
uint64_t backend_available(const Backend *b); /* bytes a device can still give; 0 = it has no memory of its own */

/* ---- weights ---- */

/* A matrix in the backend's own layout, converted while it is loaded: no second copy.
 * CPU layout: panels of WEIGHT_PANEL outputs; in a panel, k ascending; for bf16 pairs of k together:
 *   bf16   panel[n / 16][k / 2][n % 16][k % 2]
 *   f32    panel[n / 16][k][n % 16]
 *   stored blocks: cpu/blocks.h; FP8: cpu/linear_fp8.h
 * n_out is padded to whole panels with zero rows, n_in (bf16) to even with zeros. */
enum { WEIGHT_PANEL = 16 };
typedef struct Weight {
    void    *data;  /* NULL: this weight is absent */
    int64_t  n_out, n_in;
    Contract contract;
    const Backend *device; /* whose memory and layout it has; NULL: the CPU layout above */
    float    global;       /* second-level scale of NVFP4; 1 otherwise */
} Weight;

size_t weight_bytes(int64_t n_out, int64_t n_in, const Contract *c);

/* Sets up *w with zeroed backend memory for it. */
Status weight_alloc(Backend *b, Weight *w, int64_t n_out, int64_t n_in, Contract c, Error *err);

/* Writes n rows of a row-major [n_out, n_in] source (F32, BF16 or F16), beginning with output row `first`.
 * May be called in any order, from any thread for separate panels. bf16 contracts take F32/F16 sources by one
 * rounding. */
void weight_put_rows(Weight *w, int64_t first, int64_t n, const void *rows, DType source);

/* The same for a weight that is kept as it is stored, a part of the contract's format: outputs first .. first + part->n_out,
 * separate panels from separate threads; or, of a format whose inputs are outermost, inputs first .. first + part->n_in of all
 * outputs, whole groups or multiples of 128 inside one, from any thread. */
void weight_put_blocks(Weight *w, int64_t first, const QuantMatrix *part);
/* Whether the CPU can compute with such a matrix as it is stored: by format, n_in and the groups that share scales. */
bool weight_takes_blocks(const QuantMatrix *stored);
/* Its contract. */
Contract weight_blocks_contract(const QuantMatrix *stored, int row_parallel);
/* Whether a weight of this contract is kept as it is stored. */
static inline bool contract_is_stored(const Contract *c)
{
    return c->format != QUANT_NONE;
}

/* One row widened to float32 (embedding lookup on the host, tests). */
void weight_get_row(const Weight *w, int64_t row, float *out);

/* ---- threads ---- */

/* Flush-to-zero and denormals-as-zero for this thread: part of the contract. Workers do it themselves; every
 * other thread that calls an op or computes numbers of the contract calls it once. */
void numeric_mode_enter(void);

/* Runs fn(arg, worker, n_workers) for every worker and returns when all are done. For weight loading and the
 * ops of the CPU backend. The caller does the share of a thread that is late: shares must not wait for each other. */
typedef void (*ParallelFn)(void *arg, int worker, int n_workers);
void stream_parallel(Stream *st, ParallelFn fn, void *arg);

/* Workers that take part in ops from now on: 1 .. backend_workers(). Results do not depend on it. */
void stream_use_workers(Stream *st, int n_workers);

/* ---- what was really run, counted inside the kernels (tandem verify prints it) ---- */
enum { COUNT_ROWS_MAX = 4096 };
typedef struct RowCounts {
    uint64_t embed[COUNT_ROWS_MAX + 1];     /* [n] passes whose embed kernel had n rows */
    uint64_t linear[COUNT_ROWS_MAX + 1];    /* [n] linear calls with n rows */
    uint64_t attention[COUNT_ROWS_MAX + 1]; /* [n] sequences with n rows inside one attention call */
    uint64_t recurrent[COUNT_ROWS_MAX + 1]; /* the same for gated_delta */
} RowCounts;
RowCounts *stream_row_counts(Stream *st); /* may be cleared by the owner of the stream between steps */
