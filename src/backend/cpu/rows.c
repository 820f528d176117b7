/* Rows that only move: embedding look-up, rounding, gathering, writing to and moving in the cache. There are
 * no sums here; the loops worth a second version are rounding to bf16 and encoding for a cache of codes. */
#include "backend/cpu/rows.h"

#include "backend/cpu/kv.h"
#include "base/fmath.h"
#include "tensor/small_float.h"

#include <string.h>

/* Rows below this many bytes are not worth waking a worker for. */
enum { BYTES_PER_WORKER = 128 << 10 };

static int64_t rows_per_worker(int64_t row_bytes)
{
    return row_bytes >= BYTES_PER_WORKER ? 1 : BYTES_PER_WORKER / (row_bytes + 1) + 1;
}

/* ---- embed ---- */

typedef struct EmbedJob {
    Tensor        out;
    const Weight *table;
    const Batch  *batch;
} EmbedJob;

static void embed_rows(void *arg, int64_t first, int64_t end, int worker)
{
    const EmbedJob *job = arg;
    const Batch *batch = job->batch;
    size_t bytes = (size_t)job->out.shape[1] * sizeof(float);
    for (int64_t r = first; r < end; r++) {
        if (batch->seq[r] < 0) continue;
        int32_t soft = batch->soft_row ? batch->soft_row[r] : -1;
        if (soft >= 0) memcpy(tensor_f32(job->out, r), tensor_f32(batch->soft, soft), bytes);
        else weight_get_row(job->table, batch->token[r], tensor_f32(job->out, r));
    }
}

static void embed(Stream *st, Tensor out, const Weight *table, const Batch *batch)
{
    int64_t n_real = 0;
    for (int64_t r = 0; r < batch->n_rows; r++) n_real += batch->seq[r] >= 0;
    count_rows(st->counts.embed, n_real);

    /* A row of packed bf16 is one pair in each cache line of its panel: it costs 16 rows of traffic. */
    EmbedJob job = { out, table, batch };
    stream_for(st, batch->n_rows, rows_per_worker(out.shape[1] * 2 * WEIGHT_PANEL), embed_rows, &job);
}

/* ---- round_rows, gather_rows ---- */

typedef struct CopyJob {
    Tensor         out, x;
    const int32_t *rows; /* gather_rows only */
    RoundFn        round;
} CopyJob;

static void round_some(void *arg, int64_t first, int64_t end, int worker)
{
    const CopyJob *job = arg;
    int64_t d = job->x.shape[1];
    for (int64_t r = first; r < end; r++) {
        const float *x = tensor_f32(job->x, r);
        if (job->out.dtype == DT_F32) memcpy(tensor_f32(job->out, r), x, (size_t)d * sizeof *x);
        else job->round(tensor_bf16(job->out, r), x, d);
    }
}

void rows_round(Stream *st, Tensor out, Tensor x, RoundFn round)
{
    CopyJob job = { out, x, NULL, round };
    stream_for(st, x.shape[0], rows_per_worker(x.shape[1] * 6), round_some, &job);
}

static void gather_some(void *arg, int64_t first, int64_t end, int worker)
{
    const CopyJob *job = arg;
    size_t item = dtype_bytes(job->x.dtype), bytes = (size_t)job->x.shape[1] * item;
    for (int64_t i = first; i < end; i++)
        memcpy((char *)job->out.data + (size_t)(i * job->out.stride[0]) * item,
               (const char *)job->x.data + (size_t)(job->rows[i] * job->x.stride[0]) * item, bytes);
}

static void gather_rows(Stream *st, Tensor out, Tensor x, const int32_t *rows, int n)
{
    CopyJob job = { .out = out, .x = x, .rows = rows };
    stream_for(st, n, rows_per_worker(x.shape[1] * 8), gather_some, &job);
}

/* ---- kv_store, kv_move: split by head, so that padding rows, which share one dump entry, do not race ---- */

typedef struct KvJob {
    KvView         view;
    Tensor         k, v;
    const int32_t *store;
    const StoreKernels *kernels;
    int32_t        slot, n;
    const int32_t *from, *to;
} KvJob;

/* The contract's codes of a row; returns their scale. */
static float encode_row(const StoreKernels *k, uint8_t *codes, const float *x, int64_t n)
{
    uint32_t bits = k->largest(x, n);
    if (bits >= bits_of_float(F_INF)) {
        memset(codes, 0, (size_t)n);
        return F_NAN;
    }
    float scale = fp8_scale(float_of_bits(bits));
    k->encode(codes, x, n, scale);
    return scale;
}

/* scale: where it goes, if the cache has any. */
static void write_row(const KvJob *job, void *row, float *scale, const float *x)
{
    int64_t n = job->view.head_dim;
    if (job->view.dtype == DT_F32) memcpy(row, x, (size_t)n * sizeof *x);
    else if (job->view.dtype == DT_BF16) job->kernels->round(row, x, n);
    else *scale = encode_row(job->kernels, row, x, n);
}

/* Heads of some rows later: only pieces of rows are read, too short for the machine's own prefetcher. */
static void ask_for_heads(Tensor x, int64_t row, int64_t first, int64_t end)
{
    if (row >= x.shape[0]) return;
    const float *at = tensor_f32(x, row) + first * x.stride[1], *stop = tensor_f32(x, row) + end * x.stride[1];
    for (; at < stop; at += 16) __builtin_prefetch(at);
}

static void store_heads(void *arg, int64_t first, int64_t end, int worker)
{
    const KvJob *job = arg;
    const KvView *view = &job->view;
    for (int64_t r = 0; r < job->k.shape[0]; r++) {
        ask_for_heads(job->k, r + 2, first, end);
        ask_for_heads(job->v, r + 2, first, end);
        for (int64_t h = first; h < end; h++) {
            const float *k = tensor_f32(job->k, r) + h * job->k.stride[1];
            const float *v = tensor_f32(job->v, r) + h * job->v.stride[1];
            int32_t at = job->store[r], head = (int32_t)h;
            write_row(job, kv_key(view, at, head), kv_key_scale(view, at, head), k);
            write_row(job, kv_value(view, at, head), kv_value_scale(view, at, head), v);
        }
    }
}

void rows_kv_store(Stream *st, KvView view, Tensor k, Tensor v, const int32_t *store, const StoreKernels *kernels)
{
    KvJob job = { .view = view, .k = k, .v = v, .store = store, .kernels = kernels };
    int64_t head_bytes = k.shape[0] * view.head_dim * 12;
    if (head_bytes > 0) stream_for(st, view.n_heads, rows_per_worker(head_bytes), store_heads, &job);
}

static void move_heads(void *arg, int64_t first, int64_t end, int worker)
{
    const KvJob *job = arg;
    const KvView *view = &job->view;
    size_t bytes = (size_t)kv_view_row_bytes(view);
    for (int i = 0; i < job->n; i++) {
        if (job->from[i] == job->to[i]) continue;
        int32_t from = kv_store_at(view, job->slot, job->from[i]), to = kv_store_at(view, job->slot, job->to[i]);
        for (int64_t h = first; h < end; h++) {
            memcpy(kv_key(view, to, (int32_t)h), kv_key(view, from, (int32_t)h), bytes);
            memcpy(kv_value(view, to, (int32_t)h), kv_value(view, from, (int32_t)h), bytes);
            if (!kv_has_scales(view->dtype)) continue;
            *kv_key_scale(view, to, (int32_t)h) = *kv_key_scale(view, from, (int32_t)h);
            *kv_value_scale(view, to, (int32_t)h) = *kv_value_scale(view, from, (int32_t)h);
        }
    }
}

static void kv_move(Stream *st, KvView view, int32_t slot, const int32_t *from, const int32_t *to, int n)
{
    KvJob job = { .view = view, .slot = slot, .n = n, .from = from, .to = to };
    if (n > 0) stream_for(st, view.n_heads, rows_per_worker(n * kv_view_row_bytes(&view) * 4), move_heads, &job);
}

/* ---- the contract's rounding and encoding ---- */

static void round_values(uint16_t *out, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) out[i] = f32_to_bf16(x[i]);
}

static void round_rows(Stream *st, Tensor out, Tensor x)
{
    rows_round(st, out, x, round_values);
}

static uint32_t largest_bits(const float *x, int64_t n)
{
    return bits_of_float(quant_amax(x, n));
}

static const StoreKernels store_kernels = { round_values, largest_bits, fp8_encode };

static void kv_store(Stream *st, KvView view, Tensor k, Tensor v, const int32_t *store)
{
    rows_kv_store(st, view, k, v, store, &store_kernels);
}

void cpu_scalar_add_rows(Ops *ops)
{
    ops->embed = embed;
    ops->round_rows = round_rows;
    ops->gather_rows = gather_rows;
    ops->kv_store = kv_store;
    ops->kv_move = kv_move;
}
