/* Inside of the CUDA module: what its files share.
 *
 * Kernels compute what the scalar table of cpu/ computes, by the same list of operations, so float32 results have the same
 * bits: fmath.h is compiled for the device, fused multiply-adds are written out (nvcc -fmad=false), denormals are zero
 * (-ftz=true). Only bf16 products differ: tensor cores add in an order and width of their own (linear.cu).
 *
 * An op queues kernels on one stream. Arrays of ids lie in host memory; input() gives their copy on the device. */
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>

#include <functional>

#define _Noreturn [[noreturn]]
extern "C" {
#include "backend/device.h"
}

/* The contract's functions, for kernels. */
#define inline __inline__ __device__
#include "base/fmath.h"
#undef inline

/* A call that fails only with the device, or when memory that the plan did not count is short: the device is lost then, and
 * whoever waits for the stream hears of it (DeviceModule.lost). Later calls fail as well or compute what nobody looks at, so
 * nothing has to be undone here. */
#define CUDA_MUST(call)                                                                                               \
    do {                                                                                                              \
        cudaError_t e_ = (call);                                                                                      \
        if (e_ != cudaSuccess) cuda_lost(__FILE__, __LINE__, #call, e_);                                              \
    } while (0)
#define MUST(condition)                                                                                               \
    do {                                                                                                              \
        if (!(condition)) cuda_bug(__FILE__, __LINE__, #condition);                                                   \
    } while (0)
void cuda_lost(const char *file, int line, const char *what, cudaError_t e);
[[noreturn]] void cuda_bug(const char *file, int line, const char *what);

struct Inputs;
struct Passes;
struct Held;

enum { MAX_WIDE_FROM = 4096 };

struct Device {
    cudaStream_t stream;
    RowCounts   *counts;
    Inputs      *inputs;
    Passes      *passes;
    Held        *held;         /* ops that wait for the one behind them (held.cu) */
    int          n_sm;
    int32_t      wide_from; /* rows from which linears of several parts of K go through wgmma, others from half of it; above MAX_WIDE_FROM: nothing */
    size_t       shared_bytes; /* a block can have */
    char         text[288];
    char         fault[32];    /* TANDEM_FAULT: site whose outputs move, "" = none */

    char  *scratch; /* of one op: partial softmaxes, states of a tree */
    size_t scratch_bytes;
    char  *choose_memory; /* of choose and rank */
    size_t choose_bytes;
    char  *staging, *raw; /* of weights being loaded: host, device */
};

/* ---- ops that wait for the next one (held.cu) ---- */

/* Residual sums and the norm behind them, attention and the rounding of its output, heads that are normed, turned and stored:
 * what comes first is held back, and either joins the op behind it or is queued when any other op comes. */
void release_held(Device *d);
void hold_attention(Device *d, Tensor out, std::function<void(uint16_t *rounded, int64_t rounded_row)> run);
bool join_round(Device *d, Tensor out, Tensor x);                        /* true: attention has rounded as well */
bool hold_add(Device *d, Tensor x, Tensor y);                            /* false: this add cannot wait */
const Tensor *join_norm(Device *d, Tensor x);                            /* what is still to be added to x; NULL: nothing */
void held_close(Device *d);

/* Heads of queries and keys on their way to attention: normed in place, turned, and the keys stored. */
struct HeadNorm {
    Tensor       x;
    const float *weight; /* NULL: not normed */
    float        eps;
};
struct HeadTurn {
    const int32_t *positions; /* the device's copies */
    const float   *inv_freq;
    const uint8_t *axis;
    int32_t        n_rows, half;
    float          scale;
};
bool hold_head_norm(Device *d, HeadNorm n);             /* false: it cannot wait */
bool hold_head_turn(Device *d, Tensor x, HeadTurn t);
/* q and k of a store of these keys, and how they turn; false: nothing fits, all is queued. */
bool join_heads(Device *d, Tensor k, HeadNorm *q_norm, HeadNorm *k_norm, HeadTurn *turn);
void cuda_run_norm(Device *d, HeadNorm n);
void cuda_run_turn(Device *d, Tensor x, HeadTurn t);

static inline Device *device_with_held(Stream *st)
{
    return *(Device **)st; /* the first member of the program's Stream */
}
static inline Device *device_of(Stream *st)
{
    Device *d = device_with_held(st);
    release_held(d);
    return d;
}

/* The device's copy of `bytes` bytes of host memory as they are now. Good for the op at hand. */
const void *input(Device *d, const void *host, size_t bytes);
template <typename T> static inline const T *input_of(Device *d, const T *host, int64_t n)
{
    return n > 0 && host ? (const T *)input(d, host, (size_t)n * sizeof(T)) : nullptr;
}

/* Whether the op at hand is being recorded. */
bool is_recording(const Device *d);

/* At least `bytes` of scratch for the op at hand. */
char *scratch(Device *d, size_t bytes);

/* The order of the batch's rows through recurrent states, where recorded passes find it (recurrent.cu). */
void cuda_plan_walk(const Batch *batch);

/* One more pass, call or sequence with n rows, counted now and whenever the pass is replayed. */
void count_rows(Device *d, uint64_t *counts, int64_t n_rows);

/* Where a fault is planted (fault.h): moves one value of the last row. */
void fault(Device *d, const char *site, Tensor out, int64_t n_rows);

/* Queues a kernel that may be set up while the one before it still runs. Every kernel calls begin_kernel() before it touches
 * what others wrote, or leaves: then all before it are done. */
template <typename... P, typename... A>
static void launch(Device *d, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, A... args)
{
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = d->stream;
    config.attrs = &early;
    config.numAttrs = 1;
    CUDA_MUST(cudaLaunchKernelEx(&config, kernel, P(args)...));
}

static __device__ __forceinline__ void begin_kernel()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* ---- tensors in kernels ---- */

static inline size_t type_bytes(DType t)
{
    return t == DT_F32 ? 4 : 2;
}

/* Vectors along the last dimension: [n] or [rows][heads]. */
struct Rows {
    char   *data;
    int32_t item; /* bytes of an element */
    int64_t n, d, heads, row_stride, head_stride;
};

static inline Rows rows_of(Tensor x)
{
    Rows r = { (char *)x.data, (int32_t)type_bytes(x.dtype), x.shape[0], x.shape[1], 1, x.stride[0], 0 };
    if (x.n_dims == 3) {
        r.n = x.shape[0] * x.shape[1];
        r.d = x.shape[2];
        r.heads = x.shape[1];
        r.head_stride = x.stride[1];
    }
    return r;
}

static __device__ __forceinline__ char *row_at(const Rows &x, int64_t i)
{
    int64_t at = x.heads == 1 ? i * x.row_stride : i / x.heads * x.row_stride + i % x.heads * x.head_stride;
    return x.data + at * x.item;
}

static __device__ __forceinline__ uint16_t to_bf16(float f)
{
    uint32_t u = __float_as_uint(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}
static __device__ __forceinline__ float from_bf16(uint32_t h)
{
    return __uint_as_float(h << 16);
}
static __device__ __forceinline__ void put(char *row, int item, int64_t i, float y)
{
    if (item == 4) ((float *)row)[i] = y;
    else ((uint16_t *)row)[i] = to_bf16(y);
}

/* ---- batches in kernels ---- */

struct DeviceBatch {
    int32_t         n_rows, n_seqs, n_uncertain, max_blocks;
    const BatchSeq *seqs;
    const int32_t  *seq, *index, *parent, *path, *first_key;
};
DeviceBatch batch_of(Device *d, const Batch *batch);

/* Rows up to the last real one. */
static inline int64_t real_rows(const Batch *batch)
{
    int64_t n = batch->n_rows;
    while (n > 0 && batch->seq[n - 1] < 0) n--;
    return n;
}
static inline bool is_real(const Batch *batch, const BatchSeq *seq)
{
    return seq->n_rows > 0 && batch->seq[seq->first_row] >= 0;
}
static __device__ __forceinline__ bool is_real(const DeviceBatch &b, const BatchSeq &seq)
{
    return seq.n_rows > 0 && b.seq[seq.first_row] >= 0;
}

/* Where keys and values lie, as in cpu/kv.h. */
struct DeviceKv {
    char          *data;
    int32_t        item, n_heads, head_dim, block_size, max_blocks;
    const int32_t *table; /* rows of block tables up to the last slot of the batch */
};
static __device__ __forceinline__ int32_t kv_store_at(const DeviceKv &v, int32_t slot, int32_t entry)
{
    return v.table[(int64_t)slot * v.max_blocks + entry / v.block_size] * v.block_size + entry % v.block_size;
}
static __device__ __forceinline__ char *kv_key(const DeviceKv &v, int32_t store, int32_t head)
{
    int64_t block = store / v.block_size, place = store % v.block_size;
    return v.data + ((2 * block * v.n_heads + head) * v.block_size + place) * v.head_dim * v.item;
}
static __device__ __forceinline__ char *kv_value(const DeviceKv &v, int32_t store, int32_t head)
{
    return kv_key(v, store, head) + (int64_t)v.n_heads * v.block_size * v.head_dim * v.item;
}

/* lanes_sum of the contract for 16 threads that hold a lane each; all of them get it. */
static __device__ __forceinline__ float lanes_sum(float lane)
{
#pragma unroll
    for (int w = 8; w > 0; w /= 2) lane = lane + __shfl_xor_sync(0xffffffffu, lane, w);
    return lane;
}

/* ---- the table, one function a file ---- */
void cuda_add_linear(Ops *ops);
void cuda_add_rows(Ops *ops);
void cuda_add_norm(Ops *ops);
void cuda_add_attention(Ops *ops);
void cuda_add_recurrent(Ops *ops);
void cuda_add_draft(Ops *ops);
void cuda_add_choose(Ops *ops);

void cuda_run_add(Device *d, Tensor x, Tensor y);
void cuda_run_silu_mul(Device *d, Tensor out, Tensor gate, Tensor up);

Contract cuda_contract(Contract c, int64_t n_in);
size_t   cuda_weight_bytes(int64_t n_out, int64_t n_in, const Contract *c);
void     cuda_put_rows(Device *d, const Weight *w, int64_t first, int64_t n, const void *rows);
void     cuda_get_row(Device *d, const Weight *w, int64_t row, float *out);

/* One value of a weight in the device's layout, as float32. */
struct DeviceWeight {
    const void *data;
    int64_t     n_out, n_in;
    int32_t     is_bf16;
};
static inline DeviceWeight weight_of(const Weight *w)
{
    return { w->data, w->n_out, w->n_in, w->contract.mode == MATH_BF16 };
}
enum { TILE_ROWS = 16, TILE_K = 32 };
static __host__ __device__ __forceinline__ int64_t padded_k(int64_t n_in)
{
    return (n_in + TILE_K - 1) / TILE_K * TILE_K;
}
/* Place of a bf16 weight: tiles of 16 outputs; in a tile, pieces of 32 inputs; in a piece two products of 16 inputs, 32
 * lanes a product, 8 numbers a lane (linear.cu). */
static __host__ __device__ __forceinline__ int64_t bf16_place(int64_t n_in, int64_t n, int64_t k)
{
    int64_t piece = n / TILE_ROWS * (padded_k(n_in) / TILE_K) + k / TILE_K;
    int row = (int)(n % TILE_ROWS), product = (int)(k % TILE_K) / 16, in = (int)(k % 16);
    int lane = row % 8 * 4 + in % 8 / 2, reg = in / 8 * 2 + row / 8;
    return ((piece * 2 + product) * 32 + lane) * 8 + reg * 2 + in % 2;
}
static __device__ __forceinline__ float weight_at(const DeviceWeight &w, int64_t n, int64_t k)
{
    if (w.is_bf16) return from_bf16(((const uint16_t *)w.data)[bf16_place(w.n_in, n, k)]);
    return ((const float *)w.data)[(n / TILE_ROWS * w.n_in + k) * TILE_ROWS + n % TILE_ROWS];
}
