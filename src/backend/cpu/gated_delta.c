/* Gated DeltaNet, token by token along each row's path: the contract, and the walk that every variant uses.
 *
 * Columns of a head's state never meet, so the work is cut into slices of some columns of one value head, whose
 * state stays in the nearest cache while the rows pass:
 *
 *     certain     slot's state ──> row ──> row ──> ... ──> slot's state        (scratch in between)
 *     uncertain   slot's state ──> walk over the tree in scratch (walk.h), updates are logged
 *     commit      slot's state ──> logged updates of the accepted path ──> slot's state
 *
 * The value heads of one key head share its normalised keys and queries: a work item is some or all slices of one
 * key head, for all sequences, and prepares a block of rows at a time for them.
 * A sequence without committed tokens starts from zeros, whatever its slot holds. */
#include "backend/cpu/gated_delta.h"

#include "backend/cpu/conv.h"
#include "backend/cpu/kv.h"
#include "backend/cpu/vectors.h"
#include "backend/cpu/walk.h"
#include "base/fmath.h"

#include <string.h>

enum {
    BLOCK_ROWS = 128,    /* prepared at once: a tree of usual size in one go */
    CERTAIN_ROWS = 32,   /* of a prompt: its prepared rows and inputs stay in the L2 cache from slice to slice */
    WORK_PER_WORKER = 1 << 16, /* state values times tokens that are worth waking a worker */
    ITEMS_PER_WORKER = 4,
};

typedef struct GdnJob {
    Tensor            out, conv, a, b;
    const GatedDelta *p;
    StateView         state, conv_state;
    int32_t           channels;
    const Batch      *batch;
    GdnLog            log;
    const GdnKernels *kernels;
    const Commit     *commits;
    int               n_commits;
    Stream           *st;
    int32_t           group;          /* value heads of a key head */
    int32_t           slices_of_head;
    int32_t           n_parts;        /* items of a key head */
    size_t            plan_bytes;     /* front of worker 0's scratch: walks of the uncertain sequences, in order */
    size_t            prepared_bytes; /* behind it in every worker's: rows of a block; then the states */
} GdnJob;

/* Columns [first, first + n) of value head `head`. */
typedef struct Slice {
    int32_t head, first, n;
} Slice;

/* Slice i of a key head. */
static Slice slice_of(const GdnJob *job, int32_t key_head, int32_t i)
{
    int32_t width = job->kernels->slice, first = i % job->slices_of_head * width, left = job->p->dv - first;
    return (Slice){ key_head * job->group + i / job->slices_of_head, first, left < width ? left : width };
}

/* Even shares: item `part` of `n_parts` takes [share_at(part), share_at(part + 1)) of n. */
static int32_t share_at(int32_t n, int32_t part, int32_t n_parts)
{
    return (int32_t)((int64_t)n * part / n_parts);
}

static GdnJob job_for(Stream *st, const GatedDelta *p, const Batch *batch, const GdnKernels *kernels)
{
    CHECK(p->dk <= GDN_MAX_DK && kernels->slice <= GDN_MAX_SLICE);
    return (GdnJob){ .p = p, .batch = batch, .kernels = kernels, .st = st, .group = p->nv / p->nk,
                     .slices_of_head = (p->dv + kernels->slice - 1) / kernels->slice };
}

/* ---- states ---- */

static GdnState committed_state(const GdnJob *job, const BatchSeq *seq, Slice s)
{
    float *slot = (float *)((char *)job->state.data + (size_t)seq->slot * job->state.slot_bytes);
    return (GdnState){ slot + (int64_t)s.head * job->p->dk * job->p->dv + s.first, job->p->dv };
}

static GdnState initial_state(const GdnJob *job, const BatchSeq *seq, Slice s)
{
    static float zeros[GDN_MAX_SLICE]; /* never written: only `from` points here */
    return seq->n_committed == 0 ? (GdnState){ zeros, 0 } : committed_state(job, seq, s);
}

static GdnState scratch_state(const GdnJob *job, int worker, int32_t slot)
{
    char *data = (char *)worker_scratch(job->st, worker) + job->plan_bytes + job->prepared_bytes;
    return (GdnState){ (float *)data + (int64_t)slot * job->p->dk * job->kernels->slice, job->kernels->slice };
}

/* ---- a block of rows, ready to step ---- */

typedef struct Block {
    const GdnJob    *job;
    const BatchSeq  *seq;
    const WalkStep  *plan; /* NULL: certain */
    int32_t          key_head, first, n; /* steps [first, first + n) of the sequence */
    float           *prepared;           /* [n][2 dk + 2 group]: q, k, then decay and beta of each value head */
} Block;

static size_t prepared_floats(const GdnJob *job)
{
    return (size_t)(2 * job->p->dk + 2 * job->group);
}

static WalkStep step_at(const Block *b, int32_t i)
{
    return b->plan ? b->plan[b->first + i] : walk_line(b->seq, b->first + i);
}

static void prepare_row(const Block *b, int32_t row, float *out, bool is_logged)
{
    const GdnJob *job = b->job;
    const GatedDelta *p = job->p;
    const float *conv = tensor_f32(job->conv, row), *a = tensor_f32(job->a, row), *beta = tensor_f32(job->b, row);
    float *q = out, *k = out + p->dk, *gates = out + 2 * p->dk;
    job->kernels->unit(q, conv + (int64_t)b->key_head * p->dk, p->dk, 1.0f / sqrtf((float)p->dk));
    job->kernels->unit(k, conv + (int64_t)(p->nk + b->key_head) * p->dk, p->dk, 1.0f);
    for (int32_t i = 0; i < job->group; i++) {
        int32_t head = b->key_head * job->group + i;
        gates[2 * i] = f_exp(p->neg_exp_a[head] * f_softplus(a[head] + p->dt_bias[head]));
        gates[2 * i + 1] = f_sigmoid(beta[head]);
        if (is_logged) job->log.decay[(int64_t)row * p->nv + head] = gates[2 * i];
    }
    if (is_logged) memcpy(job->log.k + ((int64_t)row * p->nk + b->key_head) * p->dk, k, (size_t)p->dk * sizeof *k);

    /* The values are far from all this: ask for them now. */
    const float *v = conv + 2 * (int64_t)p->nk * p->dk + (int64_t)b->key_head * job->group * p->dv;
    for (int32_t i = 0; i < job->group * p->dv; i += 16) __builtin_prefetch(v + i);
}

static void prepare_block(const Block *b, bool is_logged)
{
    for (int32_t i = 0; i < b->n; i++)
        prepare_row(b, step_at(b, i).row, b->prepared + i * prepared_floats(b->job), is_logged);
}

static void run_block(const Block *b, Slice s, int worker)
{
    const GdnJob *job = b->job;
    const GatedDelta *p = job->p;
    GdnToken token[BLOCK_ROWS];
    for (int32_t i = 0; i < b->n; i++) {
        WalkStep step = step_at(b, i);
        const float *prepared = b->prepared + i * prepared_floats(job);
        const float *gates = prepared + 2 * p->dk + 2 * (s.head % job->group);
        int64_t at = ((int64_t)step.row * p->nv + s.head) * p->dv + s.first;
        token[i] = (GdnToken){
            .from = step.from == WALK_COMMITTED ? initial_state(job, b->seq, s) : scratch_state(job, worker, step.from),
            .to = scratch_state(job, worker, step.to),
            .q = prepared,
            .k = prepared + p->dk,
            .v = tensor_f32(job->conv, step.row) + 2 * (int64_t)p->nk * p->dk + (int64_t)s.head * p->dv + s.first,
            .decay = gates[0],
            .beta = gates[1],
            .u = b->seq->certain ? NULL : job->log.u + at,
            .o = tensor_f32(job->out, step.row) + (int64_t)s.head * p->dv + s.first,
        };
    }
    if (b->seq->certain) { /* between blocks the state lies in its slot */
        if (b->first > 0) token[0].from = committed_state(job, b->seq, s);
        token[b->n - 1].to = committed_state(job, b->seq, s);
    }
    job->kernels->run(token, b->n, p->dk, s.n);
}

/* ---- items ---- */

static void run_certain(Block b, int32_t first_slice, int32_t end_slice, int worker)
{
    for (b.first = 0; b.first < b.seq->n_rows; b.first += CERTAIN_ROWS) {
        b.n = b.seq->n_rows - b.first < CERTAIN_ROWS ? b.seq->n_rows - b.first : CERTAIN_ROWS;
        prepare_block(&b, false);
        for (int32_t i = first_slice; i < end_slice; i++) run_block(&b, slice_of(b.job, b.key_head, i), worker);
    }
}

/* States of a tree are scratch of one slice, so here blocks pass within a slice; most trees are one block. */
static void run_tree(Block b, int32_t first_slice, int32_t end_slice, int worker)
{
    bool is_one_block = b.seq->n_rows <= BLOCK_ROWS;
    for (int32_t i = first_slice; i < end_slice; i++) {
        for (b.first = 0; b.first < b.seq->n_rows; b.first += BLOCK_ROWS) {
            b.n = b.seq->n_rows - b.first < BLOCK_ROWS ? b.seq->n_rows - b.first : BLOCK_ROWS;
            if (i == first_slice || !is_one_block) prepare_block(&b, first_slice == 0);
            run_block(&b, slice_of(b.job, b.key_head, i), worker);
        }
    }
}

static void run_items(void *arg, int64_t first, int64_t end, int worker)
{
    const GdnJob *job = arg;
    int32_t n_slices = job->group * job->slices_of_head;
    for (int64_t item = first; item < end; item++) {
        const char *plan = worker_scratch(job->st, 0);
        int32_t part = (int32_t)(item % job->n_parts);
        int32_t first_slice = share_at(n_slices, part, job->n_parts);
        int32_t end_slice = share_at(n_slices, part + 1, job->n_parts);
        for (int32_t i = 0; i < job->batch->n_seqs; i++) {
            const BatchSeq *seq = &job->batch->seqs[i];
            if (!batch_seq_is_real(job->batch, seq)) continue;
            Block b = { .job = job, .seq = seq, .plan = seq->certain ? NULL : (const WalkStep *)plan,
                        .key_head = (int32_t)(item / job->n_parts),
                        .prepared = (float *)((char *)worker_scratch(job->st, worker) + job->plan_bytes) };
            if (seq->certain) run_certain(b, first_slice, end_slice, worker);
            else run_tree(b, first_slice, end_slice, worker);
            if (!seq->certain) plan += walk_bytes(seq->n_rows);
        }
    }
}

/* Plans the walk of every uncertain sequence into the front of worker 0's scratch. */
static size_t plan_walks(Stream *st, const Batch *batch)
{
    char *scratch = worker_scratch(st, 0);
    size_t used = 0;
    for (int32_t i = 0; i < batch->n_seqs; i++) {
        const BatchSeq *seq = &batch->seqs[i];
        if (!batch_seq_is_real(batch, seq) || seq->certain) continue;
        CHECK(used + walk_bytes(seq->n_rows) <= WORKER_SCRATCH_BYTES / 4);
        walk_plan(scratch + used, batch, seq);
        used += walk_bytes(seq->n_rows);
    }
    return (used + 63) / 64 * 64;
}

/* Cuts key heads into parts where there are too few of them, and says how many items a worker should have. */
static int64_t cut_items(GdnJob *job, int64_t *min_items)
{
    const GatedDelta *p = job->p;
    int32_t n_slices = job->group * job->slices_of_head;
    int32_t wanted = (ITEMS_PER_WORKER * job->st->n_in_use + p->nk - 1) / p->nk;
    job->n_parts = wanted < n_slices ? wanted : n_slices;
    int64_t n_items = (int64_t)p->nk * job->n_parts;
    int64_t work = (int64_t)p->nv * p->dk * p->dv * job->batch->n_rows;
    *min_items = WORK_PER_WORKER * n_items / (work + 1) + 1;
    return n_items;
}

void gdn_run(Stream *st, Tensor out, Tensor conv, Tensor a, Tensor b, const GatedDelta *p, StateView state,
             const Batch *batch, GdnLog log, const GdnKernels *kernels)
{
    GdnJob job = job_for(st, p, batch, kernels);
    job.out = out;
    job.conv = conv;
    job.a = a;
    job.b = b;
    job.state = state;
    job.log = log;
    job.plan_bytes = plan_walks(st, batch);
    job.prepared_bytes = (BLOCK_ROWS * prepared_floats(&job) * sizeof(float) + 63) / 64 * 64;
    size_t state_bytes = WALK_MAX_SLOTS * sizeof(float) * p->dk * kernels->slice;
    CHECK(job.plan_bytes + job.prepared_bytes + state_bytes <= WORKER_SCRATCH_BYTES);

    for (int32_t i = 0; i < batch->n_seqs; i++)
        if (batch_seq_is_real(batch, &batch->seqs[i])) count_rows(st->counts.recurrent, batch->seqs[i].n_rows);
    int64_t min_items, n_items = cut_items(&job, &min_items);
    stream_for(st, n_items, min_items, run_items, &job);
    FAULT_POINT("gdn", tensor_rows(out, batch_real_rows(batch)), batch_real_rows(batch));
}

/* ---- commit ---- */

/* Slice `item` counted over all value heads. */
static void commit_slices(void *arg, int64_t first, int64_t end, int worker)
{
    const GdnJob *job = arg;
    const GatedDelta *p = job->p;
    int32_t n_slices = job->group * job->slices_of_head;
    for (int64_t item = first; item < end; item++) {
        int32_t key_head = (int32_t)(item / n_slices);
        Slice s = slice_of(job, key_head, (int32_t)(item % n_slices));
        for (int i = 0; i < job->n_commits; i++) {
            const Commit *c = &job->commits[i];
            const BatchSeq *seq = &job->batch->seqs[c->seq];
            GdnUpdate update[MAX_DEPTH];
            for (int32_t d = 0; d < c->n_path; d++) {
                int64_t row = c->path_rows[d];
                update[d].k = job->log.k + (row * p->nk + key_head) * p->dk;
                update[d].u = job->log.u + (row * p->nv + s.head) * p->dv + s.first;
                update[d].decay = job->log.decay[row * p->nv + s.head];
            }
            if (c->n_path > 0)
                job->kernels->replay(initial_state(job, seq, s), committed_state(job, seq, s), update, c->n_path, p->dk,
                                     s.n);
        }
    }
}

static void commit_conv_chunks(void *arg, int64_t first, int64_t end, int worker)
{
    const GdnJob *job = arg;
    for (int64_t chunk = first; chunk < end; chunk++) {
        int64_t at = chunk * CONV_CHUNK, left = job->channels - at, n = left < CONV_CHUNK ? left : CONV_CHUNK;
        for (int i = 0; i < job->n_commits; i++) {
            const Commit *c = &job->commits[i];
            const BatchSeq *seq = &job->batch->seqs[c->seq];
            if (c->n_path > 0) conv_commit_channels(job->conv_state, job->channels, seq, job->log.mix, c, at, n);
        }
    }
}

void gdn_commit(Stream *st, const GatedDelta *p, StateView state, StateView conv_state, int32_t channels,
                const Batch *batch, GdnLog log, const Commit *commits, int n, const GdnKernels *kernels)
{
    GdnJob job = job_for(st, p, batch, kernels);
    job.state = state;
    job.conv_state = conv_state;
    job.channels = channels;
    job.log = log;
    job.commits = commits;
    job.n_commits = n;
    int64_t tokens = 0, values = (int64_t)p->nv * p->dk * p->dv, n_slices = (int64_t)p->nv * job.slices_of_head;
    for (int i = 0; i < n; i++) {
        CHECK(commits[i].n_path <= MAX_DEPTH && !batch->seqs[commits[i].seq].certain);
        tokens += commits[i].n_path;
    }
    if (tokens == 0) return;
    stream_for(st, n_slices, WORK_PER_WORKER * n_slices / (values * tokens + 1) + 1, commit_slices, &job);
    stream_for(st, (channels + CONV_CHUNK - 1) / CONV_CHUNK, 16, commit_conv_chunks, &job);
}

/* ---- the contract's arithmetic ---- */

enum { SCALAR_SLICE = 16 };

static void unit(float *out, const float *x, int32_t dk, float scale)
{
    float factor = 1.0f / sqrtf(lanes_dot(x, x, dk) + 1e-6f);
    for (int32_t i = 0; i < dk; i++) out[i] = x[i] * factor * scale;
}

static void step(const GdnToken *t, int32_t dk, int32_t n)
{
    const GdnState from = t->from, to = t->to;
    float p[SCALAR_SLICE] = { 0 }, o[SCALAR_SLICE] = { 0 }, u[SCALAR_SLICE];
    for (int32_t i = 0; i < dk; i++)
        for (int32_t j = 0; j < n; j++) p[j] = fmaf(t->decay * from.data[i * from.stride + j], t->k[i], p[j]);
    for (int32_t j = 0; j < n; j++) u[j] = t->beta * (t->v[j] - p[j]);
    for (int32_t i = 0; i < dk; i++) {
        for (int32_t j = 0; j < n; j++) {
            float s = fmaf(t->k[i], u[j], t->decay * from.data[i * from.stride + j]);
            to.data[i * to.stride + j] = s;
            o[j] = fmaf(s, t->q[i], o[j]);
        }
    }
    memcpy(t->o, o, (size_t)n * sizeof *o);
    if (t->u) memcpy(t->u, u, (size_t)n * sizeof *u);
}

static void run(const GdnToken *token, int32_t n_tokens, int32_t dk, int32_t n)
{
    for (int32_t i = 0; i < n_tokens; i++) step(&token[i], dk, n);
}

static void replay(GdnState from, GdnState to, const GdnUpdate *update, int32_t n_updates, int32_t dk, int32_t n)
{
    for (int32_t i = 0; i < dk; i++) {
        float s[SCALAR_SLICE];
        memcpy(s, from.data + i * from.stride, (size_t)n * sizeof *s);
        for (int32_t t = 0; t < n_updates; t++)
            for (int32_t j = 0; j < n; j++) s[j] = fmaf(update[t].k[i], update[t].u[j], update[t].decay * s[j]);
        memcpy(to.data + i * to.stride, s, (size_t)n * sizeof *s);
    }
}

static const GdnKernels scalar_kernels = { SCALAR_SLICE, unit, run, replay };

static void gated_delta(Stream *st, Tensor out, Tensor conv, Tensor a, Tensor b, const GatedDelta *p, StateView state,
                        const Batch *batch, GdnLog log)
{
    gdn_run(st, out, conv, a, b, p, state, batch, log, &scalar_kernels);
}

static void gated_delta_commit(Stream *st, const GatedDelta *p, StateView state, StateView conv_state, int32_t channels,
                               const Batch *batch, GdnLog log, const Commit *commits, int n)
{
    gdn_commit(st, p, state, conv_state, channels, batch, log, commits, n, &scalar_kernels);
}

void cpu_scalar_add_gated_delta(Ops *ops)
{
    ops->gated_delta = gated_delta;
    ops->gated_delta_commit = gated_delta_commit;
}
