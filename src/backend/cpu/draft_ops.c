/* What only drafters need: scaled and capped logits, the convolution inside a block, picking candidates that follow
 * one another. Small beside the linears around them, so the contract is the only version; its loops vectorise as they
 * are. */
#include "backend/cpu/cpu_impl.h"
#include "backend/cpu/vectors.h"
#include "base/fmath.h"

/* ---- scale_cap ---- */

/* Below 1/4 the series, whose next term is under 1e-8 of the result; (1 - e^-2y) / (1 + e^-2y) would lose digits. */
static inline float tanh_of(float x)
{
    float y = fabsf(x), z = x * x, t = f_exp(-2.0f * y);
    float series = fmaf(z, 0x1.664f48p-6f, -0x1.ba1ba2p-5f);
    series = fmaf(series, z, 0x1.111112p-3f);
    series = fmaf(series, z, -0x1.555556p-2f);
    series = fmaf(x * z, series, x);
    float far = copysignf((1.0f - t) / (1.0f + t), x);
    return y < 0.25f ? series : far;
}

typedef struct ScaleJob {
    Tensor x;
    float  factor, cap;
} ScaleJob;

static void scale_rows(void *arg, int64_t first, int64_t end, int worker)
{
    const ScaleJob *job = arg;
    for (int64_t r = first; r < end; r++) {
        float *x = tensor_f32(job->x, r);
        for (int64_t i = 0; i < job->x.shape[1]; i++) x[i] *= job->factor;
        if (job->cap <= 0) continue;
        for (int64_t i = 0; i < job->x.shape[1]; i++) x[i] = job->cap * tanh_of(x[i] / job->cap);
    }
}

static void scale_cap(Stream *st, Tensor x, float factor, float cap)
{
    ScaleJob job = { x, factor, cap };
    stream_for(st, x.shape[0], rows_per_share(x), scale_rows, &job);
}

/* ---- block_conv ---- */

typedef struct ConvJob {
    Tensor       out, x, dynamic;
    const float *base;
    int32_t      kernel, block_rows, group;
} ConvJob;

enum { CONV_PIECE = 512 }; /* channels at a time: their sums stay in the first cache */

/* Channels [first, first + n) of row r, into sum. */
static void conv_piece(const ConvJob *job, int64_t r, int64_t first, int64_t n, float sum[CONV_PIECE])
{
    int64_t d = job->x.shape[1], n_groups = d / job->group, place = r % job->block_rows;
    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t t = 0; t < job->kernel && t <= place; t++) {
        const float *x = tensor_f32(job->x, r - t), *base = job->base + t * d;
        const float *dynamic = tensor_f32(job->dynamic, r) + t * n_groups;
        for (int64_t i = 0; i < n; i++) {
            int64_t c = first + i;
            sum[i] = fmaf(base[c] + dynamic[c / job->group], x[c], sum[i]);
        }
    }
}

static void conv_rows(void *arg, int64_t first, int64_t end, int worker)
{
    const ConvJob *job = arg;
    float sum[CONV_PIECE];
    int64_t d = job->x.shape[1];
    for (int64_t r = first; r < end; r++) {
        for (int64_t c = 0; c < d; c += CONV_PIECE) {
            int64_t n = d - c < CONV_PIECE ? d - c : CONV_PIECE;
            conv_piece(job, r, c, n, sum);
            if (job->out.dtype == DT_F32) memcpy(tensor_f32(job->out, r) + c, sum, (size_t)n * sizeof *sum);
            else for (int64_t i = 0; i < n; i++) tensor_bf16(job->out, r)[c + i] = f32_to_bf16(sum[i]);
        }
    }
}

static void block_conv(Stream *st, Tensor out, Tensor x, const float *base, Tensor dynamic, int32_t kernel,
                       int32_t block_rows)
{
    int64_t n_groups = dynamic.shape[1] / kernel;
    ConvJob job = { out, x, dynamic, base, kernel, block_rows, (int32_t)(x.shape[1] / n_groups) };
    stream_for(st, x.shape[0], rows_per_share(x), conv_rows, &job);
    FAULT_POINT("block_conv", out, out.shape[0]);
}

/* ---- pick ---- */

typedef struct PickWork {
    const PickJob *job;
    Stream        *stream;
} PickWork;

/* scratch: two vectors of `rank` numbers. */
static int32_t pick_row(const PickJob *job, const PickLine *line, int32_t i, int32_t before, float *scratch)
{
    int64_t rank = job->edge.shape[1], row = line->first + i;
    float *h = scratch, *successor = scratch + rank, best = -F_INF;
    const float *edge = tensor_f32(job->edge, row);
    int32_t picked = 0;
    weight_get_row(job->predecessor, before, h);
    for (int64_t r = 0; r < rank; r++) h[r] *= edge[r];
    for (int32_t c = 0; c < job->k && job->candidate[row * job->k + c] >= 0; c++) {
        weight_get_row(job->successor, job->candidate[row * job->k + c], successor);
        float score = job->logit[row * job->k + c] + lanes_dot(h, successor, rank);
        if (line->temperature > 0) score /= line->temperature;
        if (line->noise) score += line->noise[(int64_t)i * job->k + c];
        if (score > best) {
            best = score;
            picked = c;
        }
    }
    return picked;
}

static void pick_lines(void *arg, int64_t first, int64_t end, int worker)
{
    const PickWork *work = arg;
    const PickJob *job = work->job;
    float *scratch = worker_scratch(work->stream, worker);
    for (int64_t l = first; l < end; l++) {
        const PickLine *line = &job->lines[l];
        int32_t before = line->anchor;
        for (int32_t i = 0; i < line->n_rows; i++) {
            int64_t row = line->first + i;
            job->picked[row] = pick_row(job, line, i, before, scratch);
            before = job->candidate[row * job->k + job->picked[row]];
        }
    }
}

static void pick(Stream *st, const PickJob *job)
{
    CHECK(2 * job->edge.shape[1] * (int64_t)sizeof(float) <= WORKER_SCRATCH_BYTES);
    PickWork work = { job, st };
    stream_for(st, job->n_lines, 1, pick_lines, &work);
}

void cpu_scalar_add_draft(Ops *ops)
{
    ops->scale_cap = scale_cap;
    ops->block_conv = block_conv;
    ops->pick = pick;
}
