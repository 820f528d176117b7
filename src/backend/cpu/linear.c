/* linear: y = x W^T, the scalar contract (contract.h).
 *
 * Lane n of a panel is output n, so there are no sums across lanes: each output has one accumulator per
 * part of K and takes its inputs in ascending order. The panels of all jobs of a call are one line of
 * work, cut evenly: each worker takes a contiguous piece of it, for all rows.
 *
 * Parts are added as a binary tree while they appear, like carries of a binary counter: before part p is
 * put on the stack it absorbs as many finished subtrees as p has trailing ones. */
#include "backend/cpu/linear.h"

#include "base/fmath.h"

enum { MAX_PENDING = 4 }; /* 1 + log2(MAX_K_PARTS) */

/* acc += inputs [first, end) of one row, 16 outputs. */
static void add_bf16(float acc[WEIGHT_PANEL], const uint16_t *x, const uint32_t *panel, int64_t n_in, int64_t first,
                     int64_t end)
{
    for (int64_t k = first; k < end; k += 2) {
        float x0 = bf16_to_f32(x[k]), x1 = k + 1 < n_in ? bf16_to_f32(x[k + 1]) : 0.0f;
        const uint32_t *word = panel + k / 2 * WEIGHT_PANEL;
        for (int n = 0; n < WEIGHT_PANEL; n++) {
            float w0 = f_of_bits(word[n] << 16), w1 = f_of_bits(word[n] & 0xffff0000u);
            acc[n] = fmaf(x0, w0, fmaf(x1, w1, acc[n]));
        }
    }
}

static void add_f32(float acc[WEIGHT_PANEL], const float *x, const float *panel, int64_t first, int64_t end)
{
    for (int64_t k = first; k < end; k++) {
        for (int n = 0; n < WEIGHT_PANEL; n++) acc[n] = fmaf(x[k], panel[k * WEIGHT_PANEL + n], acc[n]);
    }
}

/* 16 outputs of one row: all parts, into sum. */
static void panel_row(float sum[WEIGHT_PANEL], const Weight *w, Tensor x, int64_t row, const uint32_t *panel)
{
    float pending[MAX_PENDING][WEIGHT_PANEL];
    int64_t part_len = (w->n_in + w->contract.k_parts - 1) / w->contract.k_parts; /* exact unless there is one */
    int n_pending = 0;
    for (int part = 0; part < w->contract.k_parts; part++) {
        float acc[WEIGHT_PANEL] = { 0 };
        int64_t first = part * part_len;
        if (w->contract.mode == MATH_BF16) add_bf16(acc, tensor_bf16(x, row), panel, w->n_in, first, first + part_len);
        else add_f32(acc, tensor_f32(x, row), (const float *)panel, first, first + part_len);
        for (int carry = part; carry & 1; carry >>= 1) {
            n_pending--;
            for (int n = 0; n < WEIGHT_PANEL; n++) acc[n] = pending[n_pending][n] + acc[n];
        }
        memcpy(pending[n_pending++], acc, sizeof acc);
    }
    memcpy(sum, pending[0], sizeof pending[0]);
}

static void scalar_panels(const LinearJob *job, Tensor x, int64_t first, int64_t end)
{
    const Weight *w = job->weight;
    for (int64_t p = first; p < end; p++) {
        const uint32_t *panel = (const uint32_t *)w->data + p * weight_words(w) * WEIGHT_PANEL;
        int64_t col = p * WEIGHT_PANEL, n_cols = w->n_out - col < WEIGHT_PANEL ? w->n_out - col : WEIGHT_PANEL;
        for (int64_t row = 0; row < x.shape[0]; row++) {
            float sum[WEIGHT_PANEL];
            panel_row(sum, w, x, row, panel);
            memcpy(tensor_f32(job->out, row) + col, sum, (size_t)n_cols * sizeof *sum);
        }
    }
}

static void scalar_spans(const LinearSpan *spans, int n_spans, Tensor x, void *scratch)
{
    for (int i = 0; i < n_spans; i++) scalar_panels(spans[i].job, x, spans[i].first, spans[i].end);
}

/* ---- spreading over workers ---- */

typedef struct Spread {
    Stream          *stream;
    Tensor           x;
    const LinearJob *jobs;
    int              n_jobs;
    LinearSpansFn    fn;
} Spread;

/* Items first .. end of the line in which the panels of all jobs follow each other. */
static void run_share(void *arg, int64_t first, int64_t end, int worker)
{
    const Spread *s = arg;
    LinearSpan spans[LINEAR_MAX_JOBS];
    int n_spans = 0;
    int64_t start = 0; /* of the job's panels in the line */
    for (int j = 0; j < s->n_jobs; j++) {
        int64_t n = weight_panels(s->jobs[j].weight);
        int64_t from = first > start ? first - start : 0, to = end - start < n ? end - start : n;
        if (from < to) spans[n_spans++] = (LinearSpan){ &s->jobs[j], from, to };
        start += n;
    }
    s->fn(spans, n_spans, s->x, worker_scratch(s->stream, worker));
}

void linear_spread(Stream *st, Tensor x, const LinearJob *jobs, int n_jobs, LinearSpansFn fn)
{
    enum { WORTH_A_WORKER = 1 << 15 }; /* multiplications of its share: about a microsecond with one row */
    CHECK(n_jobs <= LINEAR_MAX_JOBS);
    if (x.shape[0] <= 0 || n_jobs <= 0) return;
    count_rows(st->counts.linear, x.shape[0]);

    Spread s = { st, x, jobs, n_jobs, fn };
    int64_t n_panels = 0, panel_work = x.shape[1] * WEIGHT_PANEL * x.shape[0];
    for (int j = 0; j < n_jobs; j++) n_panels += weight_panels(jobs[j].weight);
    stream_for(st, n_panels, WORTH_A_WORKER / (panel_work + 1), run_share, &s);
    FAULT_POINT("linear", jobs[0].out, x.shape[0]);
}

static void linear_scalar(Stream *st, Tensor x, const LinearJob *jobs, int n_jobs)
{
    linear_spread(st, x, jobs, n_jobs, scalar_spans);
}

void cpu_scalar_add_linear(Ops *ops)
{
    ops->linear = linear_scalar;
}
