/* scale_cap, block_conv, pick: every variant against the scalar table by bits, the table against double. */
#include "check.h"

#include <math.h>
#include <string.h>

/* ---- scale_cap ---- */

static void check_scale_cap(Check *c, int64_t rows, int64_t d, float factor, float cap, Fill fill)
{
    check_label(c, "scale_cap [%d, %d] factor %g cap %g", (int)rows, (int)d, (double)factor, (double)cap);
    Tensor x = check_random(c, fill, DT_F32, rows, d), want = check_output(c, DT_F32, rows, d);
    Tensor got = check_output(c, DT_F32, rows, d);
    for (int64_t r = 0; r < rows; r++) memcpy(tensor_f32(want, r), tensor_f32(x, r), (size_t)d * sizeof(float));
    c->reference->scale_cap(c->reference_stream, want, factor, cap);
    double worst = 0;
    for (int64_t i = 0; i < rows * d && fill == FILL_NORMAL; i++) {
        double y = (double)tensor_f32(x, 0)[i] * (double)factor, exact = cap > 0 ? (double)cap * tanh(y / (double)cap) : y;
        worst = fmax(worst, fabs(exact - (double)tensor_f32(want, 0)[i]) / (fabs(exact) + 1e-30));
    }
    check_that(c, worst < 4e-7, "far from double");
    while (check_next_variant(c)) {
        for (int64_t r = 0; r < rows; r++) memcpy(tensor_f32(got, r), tensor_f32(x, r), (size_t)d * sizeof(float));
        CHECK_RUN(c, c->ops->scale_cap(c->stream, got, factor, cap));
        check_bits(c, got, want);
    }
    check_done(c);
}

/* ---- block_conv ---- */

typedef struct ConvCase {
    int32_t n_blocks, block_rows, kernel, group, n_groups;
} ConvCase;

static void check_conv_oracle(Check *c, const ConvCase *s, Tensor x, const float *base, Tensor dynamic, Tensor out)
{
    double worst = 0;
    int64_t d = x.shape[1];
    for (int64_t r = 0; r < x.shape[0]; r++)
        for (int64_t i = 0; i < d; i++) {
            double sum = 0, size = 0;
            for (int64_t t = 0; t < s->kernel && t <= r % s->block_rows; t++) {
                double w = (double)base[t * d + i] + (double)tensor_f32(dynamic, r)[t * s->n_groups + i / s->group];
                double product = w * (double)tensor_f32(x, r - t)[i];
                sum += product;
                size += fabs(product);
            }
            worst = fmax(worst, fabs(sum - (double)tensor_f32(out, r)[i]) / (size + 1e-30));
        }
    check_that(c, worst < 1e-6, "far from double");
}

static void check_conv(Check *c, const ConvCase *s, DType act, Fill fill)
{
    int64_t rows = s->n_blocks * s->block_rows, d = (int64_t)s->group * s->n_groups, wide = s->kernel * (int64_t)s->n_groups;
    check_label(c, "block_conv %s %d blocks of %d, kernel %d, %d groups of %d", dtype_name(act), s->n_blocks, s->block_rows,
                s->kernel, s->n_groups, s->group);
    Tensor x = check_random(c, fill, DT_F32, rows, d), base = check_random(c, fill, DT_F32, s->kernel, d);
    Tensor both = check_random(c, fill, DT_F32, rows, 2 * wide), dynamic = tensor_cols(both, wide, wide);
    Tensor want = check_output(c, act, rows, d), got = check_output(c, act, rows, d);
    c->reference->block_conv(c->reference_stream, want, x, base.data, dynamic, s->kernel, s->block_rows);
    if (act == DT_F32 && fill == FILL_NORMAL) check_conv_oracle(c, s, x, base.data, dynamic, want);
    while (check_next_variant(c)) {
        check_clear(got);
        CHECK_RUN(c, c->ops->block_conv(c->stream, got, x, base.data, dynamic, s->kernel, s->block_rows));
        check_bits(c, got, want);
    }
    check_done(c);
}

/* ---- pick ---- */

enum { VOCAB = 200, MAX_LINES = 5, MAX_ROWS = 8, MAX_K = 16 };

/* Scores in double; false when two candidates are too close to tell. */
static bool best_of(const PickJob *job, const PickLine *line, int32_t i, int32_t before, int32_t *best)
{
    int64_t rank = job->edge.shape[1], row = line->first + i;
    double top = -INFINITY, second = -INFINITY;
    float h[64], s[64];
    weight_get_row(job->predecessor, before, h);
    for (int32_t c = 0; c < job->k && job->candidate[row * job->k + c] >= 0; c++) {
        double score = (double)job->logit[row * job->k + c];
        weight_get_row(job->successor, job->candidate[row * job->k + c], s);
        for (int64_t r = 0; r < rank; r++) score += (double)h[r] * (double)tensor_f32(job->edge, row)[r] * (double)s[r];
        if (line->temperature > 0) score /= (double)line->temperature;
        if (line->noise) score += (double)line->noise[(int64_t)i * job->k + c];
        if (score > top) {
            second = top;
            top = score;
            *best = c;
        } else {
            second = fmax(second, score);
        }
    }
    return top - second > 1e-4;
}

static void check_picks(Check *c, const PickJob *job)
{
    bool is_right = true;
    for (int32_t l = 0; l < job->n_lines; l++) {
        const PickLine *line = &job->lines[l];
        int32_t before = line->anchor, best = 0;
        for (int32_t i = 0; i < line->n_rows; i++) {
            int64_t row = line->first + i;
            if (best_of(job, line, i, before, &best)) is_right &= job->picked[row] == best;
            before = job->candidate[row * job->k + job->picked[row]];
        }
    }
    check_that(c, is_right, "not the best in double");
}

static void check_pick(Check *c, int32_t rank, int32_t k, int32_t n_lines, MathMode mode)
{
    check_label(c, "pick rank %d, %d candidates, %d lines", rank, k, n_lines);
    Contract contract = contract_for(mode, rank, 0);
    Weight a = check_weight(c, FILL_NORMAL, VOCAB, rank, contract), b = check_weight(c, FILL_NORMAL, VOCAB, rank, contract);
    Tensor edge = check_random(c, FILL_NORMAL, DT_F32, MAX_LINES * MAX_ROWS, rank);
    int32_t *id = check_alloc(c, sizeof(int32_t) * MAX_LINES * MAX_ROWS * MAX_K);
    float *logit = check_alloc(c, sizeof(float) * MAX_LINES * MAX_ROWS * MAX_K);
    float *noise = check_alloc(c, sizeof(float) * MAX_LINES * MAX_ROWS * MAX_K);
    Tensor want = check_output(c, DT_I32, MAX_LINES * MAX_ROWS, 1), got = check_output(c, DT_I32, MAX_LINES * MAX_ROWS, 1);
    PickLine lines[MAX_LINES];
    for (int32_t i = 0; i < MAX_LINES * MAX_ROWS * k; i++) {
        id[i] = check_int(c, 0, 9) || i % k == 0 ? check_int(c, 0, VOCAB - 1) : -1; /* sometimes fewer than k */
        logit[i] = check_value(c, FILL_NORMAL);
        noise[i] = check_value(c, FILL_NORMAL);
    }
    for (int32_t l = 0; l < n_lines; l++)
        lines[l] = (PickLine){ .first = l * MAX_ROWS, .n_rows = check_int(c, 0, MAX_ROWS), .anchor = check_int(c, 0, VOCAB - 1),
                               .temperature = l % 2 ? 0.7f : 0, .noise = l % 2 ? noise + l * MAX_ROWS * k : NULL };
    PickJob job = { .n_lines = n_lines, .k = k, .lines = lines, .candidate = id, .logit = logit, .edge = edge,
                    .predecessor = &a, .successor = &b, .picked = want.data };
    memset(want.data, 0, sizeof(int32_t) * MAX_LINES * MAX_ROWS);
    c->reference->pick(c->reference_stream, &job);
    check_picks(c, &job);
    while (check_next_variant(c)) {
        memset(got.data, 0, sizeof(int32_t) * MAX_LINES * MAX_ROWS);
        job.picked = got.data;
        CHECK_RUN(c, c->ops->pick(c->stream, &job));
        check_bytes(c, got.data, want.data, sizeof(int32_t) * MAX_LINES * MAX_ROWS);
    }
    check_done(c);
}

int main(int argc, char **argv)
{
    static const float caps[] = { 0, 0.5f, 3, 20, 30 };
    static const ConvCase convs[] = { { 1, 8, 2, 16, 4 }, { 3, 16, 2, 16, 33 }, { 2, 5, 3, 1, 7 }, { 4, 1, 4, 8, 2 },
                                      { 1, 32, 16, 100, 3 }, { 0, 8, 2, 16, 4 } };
    Check c;
    if (!check_begin(&c, argc, argv)) return 2;
    for (int i = 0; i < COUNT(caps); i++)
        for (int fill = FILL_NORMAL; fill <= FILL_BROKEN; fill++) {
            check_scale_cap(&c, 1 + i, 1 + 331 * i, 0.2f, caps[i], fill);
            check_scale_cap(&c, 7, 64, 5, caps[i], fill);
        }
    for (int i = 0; i < COUNT(convs); i++)
        for (int fill = FILL_NORMAL; fill <= FILL_BROKEN; fill++) {
            check_conv(&c, &convs[i], DT_F32, fill);
            check_conv(&c, &convs[i], DT_BF16, fill);
        }
    for (int32_t n = 0; n <= MAX_LINES; n++) {
        check_pick(&c, 64, 16, n, MATH_BF16);
        check_pick(&c, 24, 5, n, MATH_F32);
        check_pick(&c, 1, 1, n, MATH_BF16);
    }
    return check_end(&c);
}
