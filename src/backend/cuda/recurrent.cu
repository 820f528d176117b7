/* Causal convolution and Gated DeltaNet along each row's path, token by token, with the bits of cpu/conv.c and
 * cpu/gated_delta.c.
 *
 * The state of a head is a matrix whose columns never meet: a thread owns a column and keeps it in registers while the rows
 * of its sequence pass. q, k and the gates of all rows are prepared by a kernel before. A chain stays in registers; in a tree
 * (walk below) a branch parks its column in scratch and comes back to it.
 *
 * A token costs two chains of dk dependent steps; heads, columns and sequences are side by side. Bound by latency up to
 * hundreds of tokens: about half a microsecond a token whatever the number of heads. */
#include "backend/cuda/cuda_impl.h"

#include <vector>

enum { TAPS = 4, TAIL = 3, THREADS = 256, MAX_PARKED = 16 };

/* ---- convolution ---- */

struct ConvArgs {
    float       *out, *log, *state;
    const float *mix, *weight;
    int64_t      out_row, mix_row, log_row, channels, slot_floats;
    DeviceBatch  batch;
};

/* The raw row b tokens before `row`, for one channel. */
static __device__ __forceinline__ float conv_input(const ConvArgs &a, const BatchSeq &seq, int32_t row, int32_t b, int64_t c)
{
    int age = TAIL;
    for (int i = 0; i < b; i++) {
        if (row < 0) age--;
        else if (!seq.certain) row = a.batch.parent[row];
        else row = row > seq.first_row ? row - 1 : -1;
    }
    if (row >= 0) return a.mix[row * a.mix_row + c];
    return seq.n_committed == 0 ? 0.0f : a.state[seq.slot * a.slot_floats + (age - 1) * a.channels + c];
}

static __global__ void conv_rows(const ConvArgs a)
{
    begin_kernel();
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int32_t row = blockIdx.y, s = a.batch.seq[row];
    if (s < 0 || c >= a.channels) return;
    const BatchSeq seq = a.batch.seqs[s];
    const float *w = a.weight + c * TAPS;
    float x = w[0] * conv_input(a, seq, row, 3, c);
    for (int t = 1; t < TAPS; t++) x = fmaf(w[t], conv_input(a, seq, row, TAPS - 1 - t, c), x);
    a.out[row * a.out_row + c] = f_silu(x);
    if (!seq.certain) a.log[row * a.log_row + c] = a.mix[row * a.mix_row + c];
}

/* Behind conv_rows, which reads the old states. */
static __global__ void conv_tails(const ConvArgs a)
{
    begin_kernel();
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const BatchSeq seq = a.batch.seqs[blockIdx.y];
    if (c >= a.channels || !is_real(a.batch, seq) || !seq.certain) return;
    float in[TAIL];
    for (int b = 0; b < TAIL; b++) in[b] = conv_input(a, seq, seq.first_row + seq.n_rows - 1, b, c);
    for (int age = 0; age < TAIL; age++) a.state[seq.slot * a.slot_floats + age * a.channels + c] = in[TAIL - 1 - age];
}

static void conv_silu(Stream *st, Tensor out, Tensor mix, const float *weight, StateView state, const Batch *batch, Tensor log_mix)
{
    Device *d = device_of(st);
    int64_t n_rows = real_rows(batch), channels = mix.shape[1];
    if (n_rows <= 0) return;
    ConvArgs a = { (float *)out.data, (float *)log_mix.data, (float *)state.data, (const float *)mix.data, weight, out.stride[0],
                   mix.stride[0], log_mix.stride[0], channels, (int64_t)(state.slot_bytes / sizeof(float)), batch_of(d, batch) };
    unsigned pieces = (unsigned)((channels + THREADS - 1) / THREADS);
    launch(d, conv_rows, dim3(pieces, (unsigned)n_rows), THREADS, 0, a);
    launch(d, conv_tails, dim3(pieces, batch->n_seqs), THREADS, 0, a);
    fault(d, "conv", out, n_rows);
}

/* ---- the order in which rows pass through the states: cpu/walk.h, with what stays in registers ---- */

struct Step {
    int32_t row;
    int32_t load; /* -2: the column at hand; -1: the committed state; else a parked one */
    int32_t save; /* -1, or where to park the column afterwards */
};

/* Depth first, each node's heaviest child last. A parent of several children parks its column and each child loads it; the
 * last one may park in the same place, so places nest like logarithms of the tree's size. */
static void walk_tree(const Batch *batch, const BatchSeq *seq, Step *steps)
{
    int32_t n = seq->n_rows, first = seq->first_row;
    std::vector<int32_t> last(n, -1), before(n, -1), size(n, 1), place(n, -1), parent(n);
    int32_t roots = -1;
    for (int32_t i = 0; i < n; i++) {
        int32_t p = batch->parent[first + i];
        parent[i] = p < 0 ? -1 : p - first;
    }
    for (int32_t i = n - 1; i >= 0; i--)
        if (parent[i] >= 0) size[parent[i]] += size[i];
    for (int32_t i = 0; i < n; i++) {
        int32_t *list = parent[i] < 0 ? &roots : &last[parent[i]];
        if (*list < 0 || size[i] < size[*list]) { /* keep the heaviest in front; visited last */
            if (*list >= 0) {
                before[i] = before[*list];
                before[*list] = i;
            } else {
                *list = i;
            }
        } else {
            before[i] = *list;
            *list = i;
        }
    }
    std::vector<int32_t> stack;
    auto push = [&](int32_t list) { /* the front of the list goes down first, so it comes up last */
        for (int32_t c = list; c >= 0; c = before[c]) stack.push_back(c);
    };
    push(roots);
    int32_t at = 0, depth = 0, previous = -1;
    std::vector<int32_t> held;
    while (!stack.empty()) {
        int32_t i = stack.back();
        stack.pop_back();
        while (!held.empty() && held.back() != parent[i]) { /* subtrees that are done free their places */
            int32_t h = held.back();
            int32_t up = parent[i];
            while (up >= 0 && up != h) up = parent[up];
            if (up == h) break;
            held.pop_back();
            depth--;
        }
        Step *s = &steps[at++];
        s->row = first + i;
        s->load = parent[i] < 0 ? -1 : previous == parent[i] ? -2 : place[parent[i]];
        s->save = -1;
        if (parent[i] >= 0 && last[parent[i]] == i && !held.empty() && held.back() == parent[i]) { /* nobody else will ask */
            held.pop_back();
            depth--;
        }
        if (last[i] >= 0 && before[last[i]] >= 0) { /* several children */
            place[i] = depth++;
            held.push_back(i);
            MUST(depth <= MAX_PARKED);
            s->save = place[i];
        }
        push(last[i]);
        previous = i;
    }
    MUST(at == n);
}

/* ---- Gated DeltaNet ---- */

struct DeltaArgs {
    float       *out, *q, *k, *gates; /* prepared: [rows][nk][dk], [rows][nv][2] decay, beta */
    const float *conv, *a, *b, *neg_exp_a, *dt_bias;
    int64_t      out_row, conv_row, a_row, b_row, slot_floats;
    int32_t      nk, nv, dk, dv, n_rows;
    float       *state, *parked; /* [seq][MAX_PARKED][nv][dk][dv] */
    float       *log_k, *log_u, *log_decay;
    DeviceBatch  batch;
    const Step  *steps; /* by row; NULL: every sequence is a line */
};

/* A warp prepares q (first half) and k (second half) of one row and key head; the gates come along. */
static __global__ void prepare(const DeltaArgs p)
{
    begin_kernel();
    int32_t item = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, row = item / p.nk, head = item % p.nk, lane = threadIdx.x % 16;
    bool is_k = threadIdx.x % 32 >= 16, is_row = row < p.n_rows && p.batch.seq[row] >= 0;
    if (!is_row) return; /* a whole warp */
    const float *x = p.conv + row * p.conv_row + (int64_t)((is_k ? p.nk : 0) + head) * p.dk;
    float sum = 0;
    for (int32_t i = lane; i < p.dk; i += 16) sum = fmaf(x[i], x[i], sum);
    sum = lanes_sum(sum);
    float factor = 1.0f / sqrtf(sum + 1e-6f), scale = is_k ? 1.0f : 1.0f / sqrtf((float)p.dk);
    float *to = (is_k ? p.k : p.q) + ((int64_t)row * p.nk + head) * p.dk;
    bool is_logged = row < p.batch.n_uncertain && !p.batch.seqs[p.batch.seq[row]].certain;
    for (int32_t i = lane; i < p.dk; i += 16) {
        float y = x[i] * factor * scale;
        to[i] = y;
        if (is_k && is_logged) p.log_k[((int64_t)row * p.nk + head) * p.dk + i] = y;
    }
    int32_t group = p.nv / p.nk;
    for (int32_t i = threadIdx.x % 32; i < group; i += 32) {
        int32_t h = head * group + i;
        float decay = f_exp(p.neg_exp_a[h] * f_softplus(p.a[row * p.a_row + h] + p.dt_bias[h]));
        float *g = p.gates + ((int64_t)row * p.nv + h) * 2;
        g[0] = decay;
        g[1] = f_sigmoid(p.b[row * p.b_row + h]);
        if (is_logged) p.log_decay[(int64_t)row * p.nv + h] = decay;
    }
}

/* DK > 0: the column in registers. DK == 0: any dk, in shared memory. Grid: value heads, pieces of columns, sequences. */
template <int DK> static __global__ void delta_rows(const DeltaArgs p)
{
    begin_kernel();
    extern __shared__ float memory[]; /* k [dk], q [dk], then columns of threads */
    const BatchSeq seq = p.batch.seqs[blockIdx.z];
    if (!is_real(p.batch, seq)) return;
    const int32_t dk = DK ? DK : p.dk, head = blockIdx.x, key_head = head / (p.nv / p.nk);
    const int32_t j = blockIdx.y * blockDim.x + threadIdx.x, stride = blockDim.x;
    const bool is_column = j < p.dv;
    float *k = memory, *q = memory + dk, *column = memory + 2 * dk + threadIdx.x;
    float S[DK ? DK : 1];
    float *slot = p.state + seq.slot * p.slot_floats + (int64_t)head * dk * p.dv + j;
    auto parked = [&](int32_t place) {
        return p.parked + ((((int64_t)blockIdx.z * MAX_PARKED + place) * p.nv + head) * dk) * p.dv + j;
    };
    auto at = [&](int i) -> float & { return DK ? S[DK ? i : 0] : column[i * stride]; };
    auto load = [&](const float *from) {
        if (!is_column) return;
        if (DK) {
#pragma unroll
            for (int i = 0; i < (DK ? DK : 1); i++) S[i] = from ? from[(int64_t)i * p.dv] : 0.0f;
        } else {
            for (int i = 0; i < dk; i++) column[i * stride] = from ? from[(int64_t)i * p.dv] : 0.0f;
        }
    };
    auto save = [&](float *to) {
        if (!is_column) return;
        if (DK) {
#pragma unroll
            for (int i = 0; i < (DK ? DK : 1); i++) to[(int64_t)i * p.dv] = S[i];
        } else {
            for (int i = 0; i < dk; i++) to[(int64_t)i * p.dv] = column[i * stride];
        }
    };

    bool is_tree = !seq.certain && p.steps;
    for (int32_t n = 0; n < seq.n_rows; n++) {
        Step step = { seq.first_row + n, n == 0 ? -1 : -2, -1 };
        if (is_tree) step = p.steps[seq.first_row + n];
        int64_t row = step.row;
        if (step.load == -1) load(seq.n_committed == 0 ? nullptr : slot);
        else if (step.load >= 0) load(parked(step.load));
        __syncthreads();
        for (int32_t i = threadIdx.x; i < dk; i += blockDim.x) {
            k[i] = p.k[(row * p.nk + key_head) * dk + i];
            q[i] = p.q[(row * p.nk + key_head) * dk + i];
        }
        __syncthreads();
        if (is_column) {
            float decay = p.gates[(row * p.nv + head) * 2], beta = p.gates[(row * p.nv + head) * 2 + 1];
            float v = p.conv[row * p.conv_row + 2 * (int64_t)p.nk * dk + (int64_t)head * p.dv + j], read = 0, o = 0;
            if (DK) {
#pragma unroll
                for (int i = 0; i < (DK ? DK : 1); i++) {
                    S[i] = decay * S[i];
                    read = fmaf(S[i], k[i], read);
                }
            } else {
                for (int i = 0; i < dk; i++) {
                    float s = decay * at(i);
                    at(i) = s;
                    read = fmaf(s, k[i], read);
                }
            }
            float u = beta * (v - read);
            if (DK) {
#pragma unroll
                for (int i = 0; i < (DK ? DK : 1); i++) {
                    S[i] = fmaf(k[i], u, S[i]);
                    o = fmaf(S[i], q[i], o);
                }
            } else {
                for (int i = 0; i < dk; i++) {
                    float s = fmaf(k[i], u, at(i));
                    at(i) = s;
                    o = fmaf(s, q[i], o);
                }
            }
            p.out[row * p.out_row + (int64_t)head * p.dv + j] = o;
            if (!seq.certain) p.log_u[(row * p.nv + head) * p.dv + j] = u;
        }
        if (step.save >= 0) save(parked(step.save));
    }
    if (seq.certain) save(slot);
}

static void launch_delta(Device *d, const DeltaArgs &p, int32_t n_seqs)
{
    int threads = p.dv >= 128 ? 128 : (p.dv + 31) / 32 * 32;
    dim3 grid(p.nv, (p.dv + threads - 1) / threads, n_seqs);
    size_t shared = 2 * (size_t)p.dk * sizeof(float);
    if (p.dk == 128) launch(d, delta_rows<128>, grid, threads, shared, p);
    else if (p.dk == 64) launch(d, delta_rows<64>, grid, threads, shared, p);
    else if (p.dk == 32) launch(d, delta_rows<32>, grid, threads, shared, p);
    else {
        threads = 32;
        grid.y = (p.dv + 31) / 32;
        shared += (size_t)p.dk * 32 * sizeof(float);
        CUDA_MUST(cudaFuncSetAttribute(delta_rows<0>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
        launch(d, delta_rows<0>, grid, threads, shared, p);
    }
}

/* Steps of all uncertain rows. Kept until the next batch: input() has copied them by then. Always in one place, since recorded
 * passes know it. */
static Step walk_steps[COUNT_ROWS_MAX];

void cuda_plan_walk(const Batch *batch)
{
    MUST(batch->n_uncertain_rows <= COUNT_ROWS_MAX);
    for (int32_t s = 0; s < batch->n_seqs; s++)
        if (!batch->seqs[s].certain && is_real(batch, &batch->seqs[s])) walk_tree(batch, &batch->seqs[s], &walk_steps[batch->seqs[s].first_row]);
}

/* NULL when all are lines. */
static const Step *plan(const Batch *batch)
{
    bool is_line = true;
    for (int32_t s = 0; s < batch->n_seqs; s++) {
        const BatchSeq *seq = &batch->seqs[s];
        if (seq->certain || !is_real(batch, seq)) continue;
        for (int32_t r = seq->first_row; r < seq->first_row + seq->n_rows; r++)
            is_line = is_line && batch->parent[r] == (r > seq->first_row ? r - 1 : -1);
    }
    if (is_line) return nullptr;
    cuda_plan_walk(batch);
    return walk_steps;
}

static void gated_delta(Stream *st, Tensor out, Tensor conv, Tensor a, Tensor b, const GatedDelta *g, StateView state, const Batch *batch,
                        GdnLog log)
{
    Device *d = device_of(st);
    int64_t n_rows = real_rows(batch);
    for (int32_t i = 0; i < batch->n_seqs; i++)
        if (is_real(batch, &batch->seqs[i])) count_rows(d, d->counts->recurrent, batch->seqs[i].n_rows);
    if (n_rows <= 0) return;
    const Step *steps = plan(batch);
    size_t n_key = (size_t)n_rows * g->nk * g->dk, n_gate = (size_t)n_rows * g->nv * 2;
    size_t n_parked = steps ? (size_t)batch->n_seqs * MAX_PARKED * g->nv * g->dk * g->dv : 0;
    float *memory = (float *)scratch(d, (2 * n_key + n_gate + n_parked) * sizeof(float));
    DeltaArgs p = {};
    p.out = (float *)out.data;
    p.q = memory;
    p.k = memory + n_key;
    p.gates = p.k + n_key;
    p.parked = p.gates + n_gate;
    p.conv = (const float *)conv.data;
    p.a = (const float *)a.data;
    p.b = (const float *)b.data;
    p.neg_exp_a = g->neg_exp_a;
    p.dt_bias = g->dt_bias;
    p.out_row = out.stride[0];
    p.conv_row = conv.stride[0];
    p.a_row = a.stride[0];
    p.b_row = b.stride[0];
    p.slot_floats = (int64_t)(state.slot_bytes / sizeof(float));
    p.nk = g->nk;
    p.nv = g->nv;
    p.dk = g->dk;
    p.dv = g->dv;
    p.n_rows = (int32_t)n_rows;
    p.state = (float *)state.data;
    p.log_k = log.k;
    p.log_u = log.u;
    p.log_decay = log.decay;
    p.batch = batch_of(d, batch);
    p.steps = steps ? (const Step *)input(d, steps, (size_t)batch->n_uncertain_rows * sizeof(Step)) : nullptr;
    launch(d, prepare, (unsigned)((n_rows * g->nk + 3) / 4), 128, 0, p);
    launch_delta(d, p, batch->n_seqs);
    fault(d, "gdn", out, n_rows);
}

/* ---- commit ---- */

struct CommitArgs {
    int32_t n_path, slot, from_zero, rows[MAX_DEPTH];
    int32_t nk, nv, dk, dv, channels;
    float  *state, *conv_state;
    int64_t slot_floats, conv_floats, mix_row;
    const float *k, *u, *decay, *mix;
};

/* A thread a value of the state: heads, pieces of columns, rows of the state. */
static __global__ void replay_path(const __grid_constant__ CommitArgs c)
{
    begin_kernel();
    int32_t head = blockIdx.x, key_head = head / (c.nv / c.nk), j = blockIdx.y * blockDim.x + threadIdx.x, i = blockIdx.z;
    if (j >= c.dv) return;
    float *at = c.state + c.slot * c.slot_floats + ((int64_t)head * c.dk + i) * c.dv + j;
    float s = c.from_zero ? 0.0f : *at;
    for (int32_t t = 0; t < c.n_path; t++) {
        int64_t row = c.rows[t];
        s = fmaf(c.k[(row * c.nk + key_head) * c.dk + i], c.u[(row * c.nv + head) * c.dv + j], c.decay[row * c.nv + head] * s);
    }
    *at = s;
}

static __global__ void replay_tail(const __grid_constant__ CommitArgs c)
{
    begin_kernel();
    int64_t ch = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (ch >= c.channels) return;
    float *state = c.conv_state + c.slot * c.conv_floats + ch, in[TAIL];
    int age = TAIL;
    for (int b = 0; b < TAIL; b++) {
        int32_t d = c.n_path - 1 - b;
        if (d >= 0) in[b] = c.mix[c.rows[d] * c.mix_row + ch];
        else {
            age--;
            in[b] = c.from_zero ? 0.0f : state[(int64_t)age * c.channels];
        }
    }
    for (int a = 0; a < TAIL; a++) state[(int64_t)a * c.channels] = in[TAIL - 1 - a];
}

static void gated_delta_commit(Stream *st, const GatedDelta *g, StateView state, StateView conv_state, int32_t channels,
                               const Batch *batch, GdnLog log, const Commit *commits, int n)
{
    Device *d = device_of(st);
    for (int i = 0; i < n; i++) {
        const BatchSeq *seq = &batch->seqs[commits[i].seq];
        MUST(commits[i].n_path <= MAX_DEPTH && !seq->certain);
        if (commits[i].n_path <= 0) continue;
        CommitArgs c = {};
        c.n_path = commits[i].n_path;
        c.slot = seq->slot;
        c.from_zero = seq->n_committed == 0;
        for (int32_t t = 0; t < c.n_path; t++) c.rows[t] = commits[i].path_rows[t];
        c.nk = g->nk;
        c.nv = g->nv;
        c.dk = g->dk;
        c.dv = g->dv;
        c.channels = channels;
        c.state = (float *)state.data;
        c.conv_state = (float *)conv_state.data;
        c.slot_floats = (int64_t)(state.slot_bytes / sizeof(float));
        c.conv_floats = (int64_t)(conv_state.slot_bytes / sizeof(float));
        c.mix_row = log.mix.stride[0];
        c.k = log.k;
        c.u = log.u;
        c.decay = log.decay;
        c.mix = (const float *)log.mix.data;
        int threads = c.dv >= 128 ? 128 : 32;
        launch(d, replay_path, dim3(c.nv, (c.dv + threads - 1) / threads, c.dk), threads, 0, c);
        launch(d, replay_tail, (channels + THREADS - 1) / THREADS, THREADS, 0, c);
    }
}

void cuda_add_recurrent(Ops *ops)
{
    ops->conv_silu = conv_silu;
    ops->gated_delta = gated_delta;
    ops->gated_delta_commit = gated_delta_commit;
}
