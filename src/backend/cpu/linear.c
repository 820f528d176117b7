/* linear: y = x W^T, the scalar contract (contract.h).
 *
 * Lane n of a panel is output n, so there are no sums across lanes: each output has one accumulator per
 * part of K and takes its inputs in ascending order. The panels of each job are cut evenly: a worker takes a
 * contiguous piece of every one, for all rows.
 *
 * Parts are added as a binary tree while they appear, like carries of a binary counter: before part p is
 * put on the stack it absorbs as many finished subtrees as p has trailing ones. */
#include "backend/cpu/linear.h"

#include "base/fmath.h"

enum {
    MAX_PENDING = 4, /* 1 + log2(MAX_K_PARTS) */
    ROWS = 4,        /* worked on together: with 16 outputs each, half the registers of AVX, the latency of fma */
};

/* acc[r] += inputs [first, end) of ROWS rows, 16 outputs. wide: their inputs as float32, [n_in][ROWS]. The loops over n
 * have constant ends and no order, so the compiler makes vectors of them. */
static void add_bf16(float out[ROWS][WEIGHT_PANEL], const float *wide, const uint32_t *panel, int64_t first,
                     int64_t end)
{
    float acc[ROWS][WEIGHT_PANEL] = { 0 };
    for (int64_t k = first; k < end; k += 2) {
        const uint32_t *word = panel + k / 2 * WEIGHT_PANEL;
        const float *x = wide + k * ROWS;
        float even[WEIGHT_PANEL], odd[WEIGHT_PANEL];
        for (int n = 0; n < WEIGHT_PANEL; n++) even[n] = f_of_bits(word[n] << 16);
        for (int n = 0; n < WEIGHT_PANEL; n++) odd[n] = f_of_bits(word[n] & 0xffff0000u);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++)
            for (int n = 0; n < WEIGHT_PANEL; n++)
                acc[r][n] = fmaf(x[r], even[n], fmaf(x[ROWS + r], odd[n], acc[r][n]));
    }
    memcpy(out, acc, sizeof acc);
}

static void add_f32(float out[ROWS][WEIGHT_PANEL], const float *wide, const float *panel, int64_t first, int64_t end)
{
    float acc[ROWS][WEIGHT_PANEL] = { 0 };
    for (int64_t k = first; k < end; k++) {
        const float *x = wide + k * ROWS, *w = panel + k * WEIGHT_PANEL;
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++)
            for (int n = 0; n < WEIGHT_PANEL; n++) acc[r][n] = fmaf(x[r], w[n], acc[r][n]);
    }
    memcpy(out, acc, sizeof acc);
}

/* 16 outputs of ROWS rows: all parts, into sum. */
static void panel_rows(float sum[ROWS][WEIGHT_PANEL], const Weight *w, const float *wide, const uint32_t *panel)
{
    float pending[MAX_PENDING][ROWS][WEIGHT_PANEL];
    int64_t part_len = (w->n_in + w->contract.k_parts - 1) / w->contract.k_parts; /* exact unless there is one */
    int n_pending = 0;
    for (int part = 0; part < w->contract.k_parts; part++) {
        float(*acc)[WEIGHT_PANEL] = pending[n_pending++];
        int64_t first = part * part_len;
        if (w->contract.mode == MATH_BF16) add_bf16(acc, wide, panel, first, first + part_len);
        else add_f32(acc, wide, (const float *)panel, first, first + part_len);
        for (int carry = part; carry & 1; carry >>= 1) {
            n_pending--;
            for (int r = 0; r < ROWS; r++)
                for (int n = 0; n < WEIGHT_PANEL; n++) pending[n_pending - 1][r][n] += pending[n_pending][r][n];
        }
    }
    memcpy(sum, pending[0], sizeof pending[0]);
}

/* Rows [first, first + ROWS) of x as float32, turned; the last one again for those behind the end. */
static void widen_rows(float *wide, Tensor x, int64_t first)
{
    int64_t n_in = x.shape[1], last = x.shape[0] - 1;
    CHECK((n_in + 1) * ROWS * (int64_t)sizeof(float) <= WORKER_SCRATCH_BYTES);
    for (int r = 0; r < ROWS; r++) {
        int64_t row = first + r < last ? first + r : last;
        for (int64_t k = 0; k < n_in; k++)
            wide[k * ROWS + r] = x.dtype == DT_BF16 ? bf16_to_f32(tensor_bf16(x, row)[k]) : tensor_f32(x, row)[k];
        wide[n_in * ROWS + r] = 0.0f; /* an odd number of bf16 inputs ends in half a word */
    }
}

static const uint32_t *panel_at(const Weight *w, int64_t panel)
{
    return (const uint32_t *)w->data + panel * weight_words(w) * WEIGHT_PANEL;
}

static int64_t at_most(int64_t n, int64_t limit)
{
    return n < limit ? n : limit;
}

static void scalar_spans(const LinearSpan *spans, int n_spans, Tensor x, void *scratch)
{
    for (int64_t row = 0; row < x.shape[0]; row += ROWS) {
        widen_rows(scratch, x, row);
        for (const LinearSpan *s = spans; s < spans + n_spans; s++) {
            for (int64_t p = s->first; p < s->end; p++) {
                float sum[ROWS][WEIGHT_PANEL];
                panel_rows(sum, s->job->weight, scratch, panel_at(s->job->weight, p));
                linear_store_panel(s->job->out, row, p * WEIGHT_PANEL, sum[0], (int)at_most(x.shape[0] - row, ROWS));
            }
        }
    }
}

/* ---- spreading over workers ---- */

enum { WORTH_A_WORKER = 1 << 15 }; /* multiplications of its share: about a microsecond with one row */

typedef struct Spread {
    Stream          *stream;
    Tensor           x;
    const LinearJob *jobs;
    int              n_jobs;
    LinearSpansFn    fn;
} Spread;

/* Panel at which worker w's share of a job begins. Odd jobs round up: with several small matrices the extra panel
 * does not always hit the same worker. */
static int64_t share_at(int64_t n_panels, int job, int worker, int n_workers)
{
    return (n_panels * worker + (job % 2 ? n_workers - 1 : 0)) / n_workers;
}

/* A share has its part of the columns of every job, because ops that follow are cut the same way: a worker finds what
 * it wrote itself in its own cache. */
static void run_share(void *arg, int worker, int n_workers)
{
    const Spread *s = arg;
    LinearSpan dense[LINEAR_MAX_JOBS], blocks[LINEAR_MAX_JOBS], fp8[LINEAR_MAX_JOBS];
    int n_dense = 0, n_blocks = 0, n_fp8 = 0;
    for (int j = 0; j < s->n_jobs; j++) {
        const Weight *w = s->jobs[j].weight;
        int64_t n = weight_panels(w);
        int64_t first = share_at(n, j, worker, n_workers), end = share_at(n, j, worker + 1, n_workers);
        if (first >= end) continue;
        LinearSpan span = { &s->jobs[j], first, end };
        if (w->contract.mode == MATH_INT8_BLOCK) blocks[n_blocks++] = span;
        else if (w->contract.mode == MATH_W8A16) fp8[n_fp8++] = span;
        else dense[n_dense++] = span;
    }
    void *scratch = worker_scratch(s->stream, worker);
    if (n_dense) s->fn(dense, n_dense, s->x, scratch);
    if (n_blocks) s->stream->linear_blocks(blocks, n_blocks, s->x, scratch);
    if (n_fp8) s->stream->linear_fp8(fp8, n_fp8, s->x, scratch);
}

void linear_spread(Stream *st, Tensor x, const LinearJob *jobs, int n_jobs, LinearSpansFn fn)
{
    CHECK(n_jobs <= LINEAR_MAX_JOBS);
    if (x.shape[0] <= 0 || n_jobs <= 0) return;
    count_rows(st->counts.linear, x.shape[0]);

    Spread s = { st, x, jobs, n_jobs, fn };
    int64_t n_panels = 0;
    for (int j = 0; j < n_jobs; j++) n_panels += weight_panels(jobs[j].weight);
    int64_t shares = n_panels * WEIGHT_PANEL * x.shape[1] * x.shape[0] / WORTH_A_WORKER;
    if (shares > n_panels) shares = n_panels;
    stream_parallel_n(st, (int)(shares < 1 ? 1 : shares < st->n_in_use ? shares : st->n_in_use), run_share, &s);
    FAULT_POINT("linear", jobs[0].out, x.shape[0]);
}

/* ---- two linears and what becomes of them ---- */

typedef struct GatedSpread {
    Stream         *stream;
    const GatedJob *job;
    GatedFn         fn;
} GatedSpread;

static void run_gated(void *arg, int64_t first, int64_t end, int worker)
{
    const GatedSpread *s = arg;
    s->fn(s->job, first, end, worker_scratch(s->stream, worker));
}

void linear_spread_gated(Stream *st, const GatedJob *job, GatedFn fn)
{
    const Weight *w = job->gate;
    CHECK(w->n_out == job->up->n_out && w->n_in == job->up->n_in && w->contract.mode == job->up->contract.mode &&
          w->contract.k_parts == job->up->contract.k_parts);
    if (job->x.shape[0] <= 0) return;
    count_rows(st->counts.linear, job->x.shape[0]);
    GatedSpread s = { st, job, fn };
    int64_t panel_work = 2 * WEIGHT_PANEL * w->n_in * job->x.shape[0];
    stream_for(st, weight_panels(w), WORTH_A_WORKER / (panel_work + 1), run_gated, &s);
    FAULT_POINT("linear", job->out, job->x.shape[0]);
}

static void scalar_gated(const GatedJob *job, int64_t first, int64_t end, void *scratch)
{
    for (int64_t row = 0; row < job->x.shape[0]; row += ROWS) {
        widen_rows(scratch, job->x, row);
        for (int64_t p = first; p < end; p++) {
            float gate[ROWS][WEIGHT_PANEL], up[ROWS][WEIGHT_PANEL];
            int64_t col = p * WEIGHT_PANEL, n_cols = at_most(job->gate->n_out - col, WEIGHT_PANEL);
            panel_rows(gate, job->gate, scratch, panel_at(job->gate, p));
            panel_rows(up, job->up, scratch, panel_at(job->up, p));
            for (int64_t r = 0; r < at_most(job->x.shape[0] - row, ROWS); r++) {
                for (int64_t n = 0; n < n_cols; n++) {
                    float y = f_silu(gate[r][n]) * up[r][n];
                    if (job->out.dtype == DT_F32) tensor_f32(job->out, row + r)[col + n] = y;
                    else tensor_bf16(job->out, row + r)[col + n] = f32_to_bf16(y);
                }
            }
        }
    }
}

/* ---- the table ---- */

static void linear_scalar(Stream *st, Tensor x, const LinearJob *jobs, int n_jobs)
{
    linear_spread(st, x, jobs, n_jobs, scalar_spans);
}

static void linear_silu_mul_scalar(Stream *st, Tensor out, Tensor x, const Weight *gate, const Weight *up)
{
    linear_spread_gated(st, &(GatedJob){ out, x, gate, up }, scalar_gated);
}

void cpu_scalar_add_linear(Ops *ops)
{
    ops->linear = linear_scalar;
    ops->linear_silu_mul = linear_silu_mul_scalar;
}
