/* Rows that only move, and rope: embedding, rounding, gathering, writing to and moving in the cache. A block a row; bound
 * by launch cost. Nothing here adds up. */
#include "backend/cuda/cuda_impl.h"

enum { THREADS = 256 };

/* ---- embed ---- */

static __global__ void embed_rows(float *out, int64_t out_stride, DeviceWeight table, const int32_t *seq, const int32_t *token,
                                  const int32_t *soft_row, const float *soft, int64_t soft_stride)
{
    begin_kernel();
    int64_t r = blockIdx.x;
    if (seq[r] < 0) return;
    int32_t s = soft_row ? soft_row[r] : -1;
    for (int64_t k = threadIdx.x; k < table.n_in; k += blockDim.x)
        out[r * out_stride + k] = s >= 0 ? soft[s * soft_stride + k] : weight_at(table, token[r], k);
}

static void embed(Stream *st, Tensor out, const struct Weight *table, const Batch *b)
{
    Device *d = device_of(st);
    int64_t n_real = 0;
    for (int64_t r = 0; r < b->n_rows; r++) n_real += b->seq[r] >= 0;
    count_rows(d, d->counts->embed, n_real);
    if (b->n_rows <= 0) return;
    bool has_soft = b->soft_row && b->soft.data;
    const float *soft = (const float *)b->soft.data;
    if (has_soft) soft = (const float *)input(d, soft, (size_t)(b->soft.shape[0] * b->soft.stride[0]) * sizeof(float));
    launch(d, embed_rows, b->n_rows, THREADS, 0, (float *)out.data, out.stride[0], weight_of(table), input_of(d, b->seq, b->n_rows),
                                                    input_of(d, b->token, b->n_rows),
                                                    has_soft ? input_of(d, b->soft_row, b->n_rows) : nullptr, soft, b->soft.stride[0]);
}

/* ---- round, gather ---- */

static __global__ void copy_rows(Rows out, Rows x, const int32_t *rows)
{
    begin_kernel();
    int64_t r = blockIdx.x;
    const char *from = row_at(x, rows ? rows[r] : r);
    char *to = row_at(out, r);
    for (int64_t i = threadIdx.x; i < x.d; i += blockDim.x) {
        if (x.item == 2) ((uint16_t *)to)[i] = ((const uint16_t *)from)[i];
        else if (out.item == 4) ((uint32_t *)to)[i] = ((const uint32_t *)from)[i];
        else ((uint16_t *)to)[i] = to_bf16(((const float *)from)[i]);
    }
}

static void round_rows(Stream *st, Tensor out, Tensor x)
{
    if (join_round(device_with_held(st), out, x)) return;
    Device *d = device_of(st);
    if (x.shape[0] <= 0) return;
    launch(d, copy_rows, (unsigned)x.shape[0], THREADS, 0, rows_of(out), rows_of(x), nullptr);
}

static void gather_rows(Stream *st, Tensor out, Tensor x, const int32_t *rows, int n)
{
    Device *d = device_of(st);
    if (n <= 0) return;
    launch(d, copy_rows, (unsigned)n, THREADS, 0, rows_of(out), rows_of(x), input_of(d, rows, n));
}

/* ---- rope ---- */

static __global__ void rope_rows(float *x, int64_t row_stride, int64_t head_stride, int32_t heads, const int32_t *rope, int32_t n_rows,
                                 int32_t half, const float *inv_freq, const uint8_t *axis, float scale)
{
    begin_kernel();
    int64_t r = blockIdx.x;
    for (int32_t i = threadIdx.x; i < half * heads; i += blockDim.x) {
        int32_t h = i / half, p = i % half;
        float s, c, angle = (float)rope[(axis ? axis[p] : 0) * (int64_t)n_rows + r] * inv_freq[p];
        f_sin_cos(angle, &s, &c);
        c *= scale;
        s *= scale;
        float *v = x + r * row_stride + h * head_stride + p, a = v[0], b = v[half];
        v[0] = fmaf(a, c, -(b * s));
        v[half] = fmaf(b, c, a * s);
    }
}

void cuda_run_turn(Device *d, Tensor x, HeadTurn t)
{
    launch(d, rope_rows, (unsigned)t.n_rows, THREADS, 0, (float *)x.data, x.stride[0], x.stride[1], (int32_t)x.shape[1], t.positions, t.n_rows,
           t.half, t.inv_freq, t.axis, t.scale);
}

static void rope(Stream *st, Tensor x, const int32_t *positions, int32_t n_rows, const RopeParams *p)
{
    Device *d = device_with_held(st);
    if (n_rows <= 0 || x.shape[1] <= 0) return;
    HeadTurn t;
    memset(&t, 0, sizeof t); /* compared as bytes */
    t.positions = input_of(d, positions, 3 * (int64_t)n_rows);
    t.inv_freq = input_of(d, p->inv_freq, p->dim / 2);
    t.axis = input_of(d, p->axis, p->dim / 2);
    t.n_rows = n_rows;
    t.half = p->dim / 2;
    t.scale = p->scale;
    if (x.shape[0] == n_rows && hold_head_turn(d, x, t)) return;
    release_held(d);
    cuda_run_turn(d, x, t);
}

/* ---- the cache ---- */

static DeviceKv kv_of(const KvView *v)
{
    return { (char *)v->data, (int32_t)type_bytes(v->dtype), v->n_heads, v->head_dim, v->block_size, v->max_blocks, nullptr };
}

/* One block a row and head. Padding rows share the dump entry: the last one stays there, as on the CPU. */
static __global__ void store_rows(DeviceKv kv, const float *k, const float *v, int64_t k_row, int64_t k_head, int64_t v_row,
                                  int64_t v_head, const int32_t *store)
{
    begin_kernel();
    int64_t r = blockIdx.x, h = blockIdx.y;
    bool is_covered = false;
    for (int64_t i = r + 1 + threadIdx.x; i < gridDim.x; i += blockDim.x) is_covered = is_covered || store[i] == store[r];
    if (__syncthreads_or(is_covered)) return;
    char *key = kv_key(kv, store[r], (int32_t)h), *value = kv_value(kv, store[r], (int32_t)h);
    for (int32_t i = threadIdx.x; i < kv.head_dim; i += blockDim.x) {
        put(key, kv.item, i, k[r * k_row + h * k_head + i]);
        put(value, kv.item, i, v[r * v_row + h * v_head + i]);
    }
}

/* Norm, turn and store of all heads of a row: a warp a head of q, k or v. */
struct HeadArgs {
    struct {
        float       *x;
        int64_t      row, head;
        const float *weight; /* NULL: not normed */
        float        eps;
        int32_t      n;
    } q, k, v;
    HeadTurn       turn;
    DeviceKv       kv;
    const int32_t *store;
};

enum { HEAD_WARPS = 4, MAX_HEAD = 256 };

static __global__ void __launch_bounds__(HEAD_WARPS * 32) heads(const __grid_constant__ HeadArgs a)
{
    __shared__ float values[HEAD_WARPS][MAX_HEAD], turns[2][MAX_HEAD / 2];
    int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, h = blockIdx.x * HEAD_WARPS + warp, dim = a.kv.head_dim, half = a.turn.half;
    int64_t r = blockIdx.y;
    for (int32_t p = threadIdx.x; p < half; p += HEAD_WARPS * 32) { /* positions come from the host: no kernel to wait for */
        float s, c, angle = (float)a.turn.positions[(a.turn.axis ? a.turn.axis[p] : 0) * (int64_t)a.turn.n_rows + r] * a.turn.inv_freq[p];
        f_sin_cos(angle, &s, &c);
        turns[0][p] = c * a.turn.scale;
        turns[1][p] = s * a.turn.scale;
    }
    begin_kernel();
    __syncthreads();
    bool is_q = h < a.q.n, is_k = !is_q && h < a.q.n + a.k.n, is_v = !is_q && !is_k && h < a.q.n + a.k.n + a.v.n;
    if (!is_q && !is_k && !is_v) return;
    const auto &part = is_q ? a.q : is_k ? a.k : a.v;
    h -= is_q ? 0 : is_k ? a.q.n : a.q.n + a.k.n;
    float *x = part.x + r * part.row + h * part.head, *y = values[warp];
    for (int32_t i = lane; i < dim; i += 32) y[i] = x[i];
    __syncwarp();
    if (!is_v && part.weight) {
        float sum = 0;
        for (int32_t i = lane % 16; i < dim; i += 16) sum = fmaf(y[i], y[i], sum);
        __syncwarp();
        sum = lanes_sum(sum);
        float factor = 1.0f / sqrtf(sum / (float)dim + part.eps);
        for (int32_t i = lane; i < dim; i += 32) y[i] = y[i] * factor * part.weight[i];
        __syncwarp();
    }
    for (int32_t p = lane; !is_v && p < half; p += 32) {
        float u = y[p], v = y[p + half], c = turns[0][p], s = turns[1][p];
        y[p] = fmaf(u, c, -(v * s));
        y[p + half] = fmaf(v, c, u * s);
    }
    __syncwarp();
    for (int32_t i = lane; !is_v && i < dim; i += 32) x[i] = y[i];
    if (is_q) return;
    for (int32_t i = r + 1 + lane; i < gridDim.y; i += 32) /* padding rows share an entry: the last one stays */
        if (a.store[i] == a.store[r]) y = nullptr;
    if (__any_sync(0xffffffffu, y == nullptr)) return;
    char *entry = is_k ? kv_key(a.kv, a.store[r], h) : kv_value(a.kv, a.store[r], h);
    for (int32_t i = lane; i < dim; i += 32) put(entry, a.kv.item, i, y[i]);
}

static void kv_store(Stream *st, KvView view, Tensor k, Tensor v, const int32_t *store)
{
    Device *d = device_with_held(st);
    HeadNorm qn, kn;
    HeadTurn turn;
    bool is_chain = join_heads(d, k, &qn, &kn, &turn);
    if (k.shape[0] <= 0) return;
    const int32_t *places = input_of(d, store, k.shape[0]);
    if (!is_chain) {
        launch(d, store_rows, dim3((unsigned)k.shape[0], view.n_heads), 128, 0, kv_of(&view), (const float *)k.data, (const float *)v.data,
               k.stride[0], k.stride[1], v.stride[0], v.stride[1], places);
        return;
    }
    HeadArgs a = { { (float *)qn.x.data, qn.x.stride[0], qn.x.stride[1], qn.weight, qn.eps, (int32_t)qn.x.shape[1] },
                   { (float *)k.data, k.stride[0], k.stride[1], kn.weight, kn.eps, (int32_t)k.shape[1] },
                   { (float *)v.data, v.stride[0], v.stride[1], nullptr, 0, (int32_t)v.shape[1] }, turn, kv_of(&view), places };
    int32_t n = a.q.n + a.k.n + a.v.n;
    launch(d, heads, dim3((n + HEAD_WARPS - 1) / HEAD_WARPS, (unsigned)k.shape[0]), HEAD_WARPS * 32, 0, a);
}

struct Moves {
    int32_t n, from[MAX_DEPTH], to[MAX_DEPTH];
};

/* A thread follows one value of one head through all moves, so their order is kept. */
static __global__ void move_entries(DeviceKv kv, const __grid_constant__ Moves m)
{
    begin_kernel();
    int32_t h = blockIdx.x, items = kv.head_dim * kv.item / 2;
    for (int32_t i = threadIdx.x; i < items; i += blockDim.x)
        for (int32_t j = 0; j < m.n; j++) {
            ((uint16_t *)kv_key(kv, m.to[j], h))[i] = ((uint16_t *)kv_key(kv, m.from[j], h))[i];
            ((uint16_t *)kv_value(kv, m.to[j], h))[i] = ((uint16_t *)kv_value(kv, m.from[j], h))[i];
        }
}

/* The block table may change as soon as this returns: stores are found here. */
static void kv_move(Stream *st, KvView view, int32_t slot, const int32_t *from, const int32_t *to, int n)
{
    Device *d = device_of(st);
    const int32_t *table = view.block_table + (int64_t)slot * view.max_blocks, size = view.block_size;
    for (int first = 0; first < n; first += MAX_DEPTH) {
        Moves m = {};
        for (int i = first; i < n && i < first + MAX_DEPTH; i++) {
            if (from[i] == to[i]) continue;
            m.from[m.n] = table[from[i] / size] * size + from[i] % size;
            m.to[m.n++] = table[to[i] / size] * size + to[i] % size;
        }
        if (m.n == 0) continue;
        launch(d, move_entries, view.n_heads, 128, 0, kv_of(&view), m);
    }
}

void cuda_add_rows(Ops *ops)
{
    ops->embed = embed;
    ops->round_rows = round_rows;
    ops->gather_rows = gather_rows;
    ops->rope = rope;
    ops->kv_store = kv_store;
    ops->kv_move = kv_move;
}
