/* Gated DeltaNet, token by token along each row's path: the contract, and the walk that every variant uses.
 *
 * Columns of a head's state never meet, so a work item is a slice of columns of one value head, for all
 * sequences. Within it the state stays in the nearest cache while the rows pass:
 *
 *     certain     slot's state ──> row ──> row ──> ... ──> slot's state        (scratch in between)
 *     uncertain   slot's state ──> walk over the tree in scratch (walk.h), updates are logged
 *     commit      slot's state ──> logged updates of the accepted path ──> slot's state
 *
 * A sequence without committed tokens starts from zeros, whatever its slot holds. */
#include "backend/cpu/gated_delta.h"

#include "backend/cpu/conv.h"
#include "backend/cpu/kv.h"
#include "backend/cpu/vectors.h"
#include "backend/cpu/walk.h"
#include "base/fmath.h"

#include <string.h>

typedef struct GdnJob {
    Tensor            out, conv, a, b;
    const GatedDelta *p;
    StateView         state;
    StateView         conv_state;
    int32_t           channels;
    const Batch      *batch;
    GdnLog            log;
    const GdnKernels *kernels;
    const Commit     *commits;
    int               n_commits;
    Stream           *st;
    size_t            plan_bytes; /* front of worker 0's scratch: walks of the uncertain sequences, in order */
} GdnJob;

/* One work item: columns [first, first + n) of value head `head`. */
typedef struct Slice {
    int32_t head, first, n;
} Slice;

static int32_t slices_of_head(const GdnJob *job)
{
    return (job->p->dv + job->kernels->slice - 1) / job->kernels->slice;
}

static Slice slice_at(const GdnJob *job, int64_t item)
{
    int32_t width = job->kernels->slice, per_head = slices_of_head(job);
    int32_t first = (int32_t)(item % per_head) * width, left = job->p->dv - first;
    return (Slice){ (int32_t)(item / per_head), first, left < width ? left : width };
}

static GdnState committed_state(const GdnJob *job, const BatchSeq *seq, Slice s)
{
    float *slot = (float *)((char *)job->state.data + (size_t)seq->slot * job->state.slot_bytes);
    return (GdnState){ slot + (int64_t)s.head * job->p->dk * job->p->dv + s.first, job->p->dv };
}

static GdnState initial_state(const GdnJob *job, const BatchSeq *seq, Slice s)
{
    static float zeros[GDN_MAX_SLICE]; /* never written: only `from` of a step points here */
    return seq->n_committed == 0 ? (GdnState){ zeros, 0 } : committed_state(job, seq, s);
}

static GdnState scratch_state(const GdnJob *job, int worker, int32_t slot)
{
    float *data = (float *)((char *)worker_scratch(job->st, worker) + job->plan_bytes);
    return (GdnState){ data + (int64_t)slot * job->p->dk * job->kernels->slice, job->kernels->slice };
}

static void log_row(const GdnJob *job, int32_t row, Slice s, const GdnToken *t)
{
    const GatedDelta *p = job->p;
    int32_t group = p->nv / p->nk;
    if (s.first > 0) return;
    job->log.decay[(int64_t)row * p->nv + s.head] = t->decay;
    if (s.head % group) return;
    memcpy(job->log.k + ((int64_t)row * p->nk + s.head / group) * p->dk, t->k, (size_t)p->dk * sizeof *t->k);
}

static void step_row(const GdnJob *job, const BatchSeq *seq, int32_t row, Slice s, GdnState from, GdnState to)
{
    const GatedDelta *p = job->p;
    float q[GDN_MAX_DK], k[GDN_MAX_DK], unlogged[GDN_MAX_SLICE];
    int32_t key_head = s.head / (p->nv / p->nk);
    const float *conv = tensor_f32(job->conv, row);
    float scale = 1.0f / sqrtf((float)p->dk);

    job->kernels->unit(q, conv + (int64_t)key_head * p->dk, p->dk);
    for (int32_t i = 0; i < p->dk; i++) q[i] *= scale;
    job->kernels->unit(k, conv + (int64_t)(p->nk + key_head) * p->dk, p->dk);

    float g = p->neg_exp_a[s.head] * f_softplus(tensor_f32(job->a, row)[s.head] + p->dt_bias[s.head]);
    GdnToken t = {
        .q = q,
        .k = k,
        .v = conv + 2 * (int64_t)p->nk * p->dk + (int64_t)s.head * p->dv + s.first,
        .decay = f_exp(g),
        .beta = f_sigmoid(tensor_f32(job->b, row)[s.head]),
        .u = seq->certain ? unlogged : job->log.u + ((int64_t)row * p->nv + s.head) * p->dv + s.first,
        .o = tensor_f32(job->out, row) + (int64_t)s.head * p->dv + s.first,
    };
    job->kernels->step(from, to, &t, p->dk, s.n);
    if (!seq->certain) log_row(job, row, s, &t);
}

static void run_sequence(const GdnJob *job, const BatchSeq *seq, const WalkStep *plan, Slice s, int worker)
{
    for (int32_t i = 0; i < seq->n_rows; i++) {
        WalkStep step = seq->certain ? walk_line(seq, i) : plan[i];
        GdnState from = step.from == WALK_COMMITTED ? initial_state(job, seq, s)
                                                    : scratch_state(job, worker, step.from);
        bool is_last = seq->certain && i == seq->n_rows - 1;
        GdnState to = is_last ? committed_state(job, seq, s) : scratch_state(job, worker, step.to);
        step_row(job, seq, step.row, s, from, to);
    }
}

static void run_slices(void *arg, int64_t first, int64_t end, int worker)
{
    const GdnJob *job = arg;
    for (int64_t item = first; item < end; item++) {
        const char *plan = worker_scratch(job->st, 0);
        for (int32_t i = 0; i < job->batch->n_seqs; i++) {
            const BatchSeq *seq = &job->batch->seqs[i];
            if (!batch_seq_is_real(seq)) continue;
            run_sequence(job, seq, (const WalkStep *)plan, slice_at(job, item), worker);
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
        if (!batch_seq_is_real(seq) || seq->certain) continue;
        CHECK(used + walk_bytes(seq->n_rows) <= WORKER_SCRATCH_BYTES / 4);
        walk_plan(scratch + used, batch, seq);
        used += walk_bytes(seq->n_rows);
    }
    return (used + 63) / 64 * 64;
}

void gdn_run(Stream *st, Tensor out, Tensor conv, Tensor a, Tensor b, const GatedDelta *p, StateView state,
             const Batch *batch, GdnLog log, const GdnKernels *kernels)
{
    CHECK(p->dk <= GDN_MAX_DK && kernels->slice <= GDN_MAX_SLICE);
    GdnJob job = { .out = out, .conv = conv, .a = a, .b = b, .p = p, .state = state, .batch = batch, .log = log,
                   .kernels = kernels, .st = st, .plan_bytes = plan_walks(st, batch) };
    size_t slot_bytes = (size_t)p->dk * kernels->slice * sizeof(float);
    CHECK(job.plan_bytes + WALK_MAX_SLOTS * slot_bytes <= WORKER_SCRATCH_BYTES);

    for (int32_t i = 0; i < batch->n_seqs; i++)
        if (batch_seq_is_real(&batch->seqs[i])) count_rows(st->counts.recurrent, batch->seqs[i].n_rows);
    stream_for(st, (int64_t)p->nv * slices_of_head(&job), 1, run_slices, &job);
    FAULT_POINT("gdn", tensor_rows(out, batch_real_rows(batch)), batch_real_rows(batch));
}

/* ---- commit ---- */

static void commit_slices(void *arg, int64_t first, int64_t end, int worker)
{
    const GdnJob *job = arg;
    const GatedDelta *p = job->p;
    for (int64_t item = first; item < end; item++) {
        Slice s = slice_at(job, item);
        for (int i = 0; i < job->n_commits; i++) {
            const Commit *c = &job->commits[i];
            const BatchSeq *seq = &job->batch->seqs[c->seq];
            GdnUpdate update[MAX_DEPTH];
            for (int32_t d = 0; d < c->n_path; d++) {
                int64_t row = c->path_rows[d];
                update[d].k = job->log.k + (row * p->nk + s.head / (p->nv / p->nk)) * p->dk;
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
        for (int i = 0; i < job->n_commits; i++)
            if (job->commits[i].n_path > 0)
                conv_commit_channels(job->conv_state, job->channels, &job->batch->seqs[job->commits[i].seq], job->log.mix,
                                     &job->commits[i], at, n);
    }
}

void gdn_commit(Stream *st, const GatedDelta *p, StateView state, StateView conv_state, int32_t channels,
                const Batch *batch, GdnLog log, const Commit *commits, int n, const GdnKernels *kernels)
{
    GdnJob job = { .p = p, .state = state, .conv_state = conv_state, .channels = channels, .batch = batch, .log = log,
                   .kernels = kernels, .commits = commits, .n_commits = n, .st = st };
    for (int i = 0; i < n; i++) CHECK(commits[i].n_path <= MAX_DEPTH && !batch->seqs[commits[i].seq].certain);
    if (n == 0) return;
    stream_for(st, (int64_t)p->nv * slices_of_head(&job), 1, commit_slices, &job);
    stream_for(st, (channels + CONV_CHUNK - 1) / CONV_CHUNK, 16, commit_conv_chunks, &job);
}

/* ---- the contract's arithmetic ---- */

enum { SCALAR_SLICE = 16 };

static void unit(float *out, const float *x, int32_t dk)
{
    float factor = 1.0f / sqrtf(lanes_dot(x, x, dk) + 1e-6f);
    for (int32_t i = 0; i < dk; i++) out[i] = x[i] * factor;
}

static void step(GdnState from, GdnState to, const GdnToken *t, int32_t dk, int32_t n)
{
    float p[SCALAR_SLICE] = { 0 }, o[SCALAR_SLICE] = { 0 };
    for (int32_t i = 0; i < dk; i++)
        for (int32_t j = 0; j < n; j++) p[j] = fmaf(t->decay * from.data[i * from.stride + j], t->k[i], p[j]);
    for (int32_t j = 0; j < n; j++) t->u[j] = t->beta * (t->v[j] - p[j]);
    for (int32_t i = 0; i < dk; i++) {
        for (int32_t j = 0; j < n; j++) {
            float s = fmaf(t->k[i], t->u[j], t->decay * from.data[i * from.stride + j]);
            to.data[i * to.stride + j] = s;
            o[j] = fmaf(s, t->q[i], o[j]);
        }
    }
    for (int32_t j = 0; j < n; j++) t->o[j] = o[j];
}

static void replay(GdnState from, GdnState to, const GdnUpdate *update, int32_t n_updates, int32_t dk, int32_t n)
{
    for (int32_t i = 0; i < dk; i++) {
        for (int32_t j = 0; j < n; j++) {
            float s = from.data[i * from.stride + j];
            for (int32_t t = 0; t < n_updates; t++) s = fmaf(update[t].k[i], update[t].u[j], update[t].decay * s);
            to.data[i * to.stride + j] = s;
        }
    }
}

static const GdnKernels scalar_kernels = { SCALAR_SLICE, unit, step, replay };

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
