/* rope: every variant against the scalar table by bits, the table against cos and sin in double of the float32
 * angle, rows alone against rows together. */
#include "check.h"

#include <math.h>
#include <string.h>

typedef struct Turn {
    RopeParams params;
    int32_t n_rows, heads, head_dim;
    int32_t *positions; /* [3][n_rows] */
} Turn;

static Turn open_turn(Check *c, int32_t n_rows, int32_t heads, int32_t head_dim, int32_t dim, bool has_axes)
{
    float *inv_freq = check_alloc(c, (size_t)dim / 2 * sizeof *inv_freq);
    uint8_t *axis = check_alloc(c, (size_t)dim / 2);
    Turn t = { { dim, inv_freq, has_axes ? axis : NULL, has_axes ? 1.0f : 0.83f }, n_rows, heads, head_dim, NULL };
    for (int i = 0; i < dim / 2; i++) {
        inv_freq[i] = powf(1e6f, -2.0f * (float)i / (float)dim);
        axis[i] = (uint8_t)(i % 3);
    }
    t.positions = check_alloc(c, (size_t)(3 * n_rows) * sizeof *t.positions);
    for (int i = 0; i < 3 * n_rows; i++)
        t.positions[i] = check_int(c, 0, 2) ? check_int(c, 0, 5000) : check_int(c, 0, 262143);
    return t;
}

/* Heads with gaps, as the query half of a doubled projection. */
static Tensor open_heads(Check *c, const Turn *t)
{
    int64_t wide = 2 * t->head_dim;
    Tensor all = check_random(c, FILL_NORMAL, DT_F32, t->n_rows, t->heads * wide);
    return tensor_heads(all.data, DT_F32, t->n_rows, t->heads, t->head_dim, t->heads * wide, wide);
}

static Tensor copy_heads(Check *c, const Turn *t, Tensor x)
{
    Tensor y = open_heads(c, t);
    memcpy(y.data, x.data, (size_t)(x.shape[0] * x.stride[0]) * sizeof(float));
    return y;
}

static Tensor whole(Tensor x)
{
    return tensor_2d(x.data, DT_F32, x.shape[0], x.stride[0]);
}

static void check_oracle(Check *c, const Turn *t, Tensor before, Tensor after)
{
    double worst = 0;
    int32_t half = t->params.dim / 2;
    for (int32_t r = 0; r < t->n_rows; r++) {
        for (int32_t h = 0; h < t->heads; h++) {
            const float *x = tensor_f32(before, r) + h * before.stride[1],
                        *y = tensor_f32(after, r) + h * after.stride[1];
            for (int32_t i = 0; i < t->head_dim; i++) {
                int32_t p = i % half, axis = t->params.axis ? t->params.axis[p] : 0;
                float angle = (float)t->positions[axis * t->n_rows + r] * t->params.inv_freq[p];
                double co = cos((double)angle) * t->params.scale, si = sin((double)angle) * t->params.scale,
                       want = x[i];
                if (i < half)
                    want = x[i] * co - x[i + half] * si;
                else if (i < 2 * half)
                    want = x[i] * co + x[i - half] * si;
                worst = fmax(worst, fabs(want - y[i]));
            }
        }
    }
    check_that(c, worst < 2e-6, "far from the rotation in double");
}

static void check_turn(Check *c, int32_t n_rows, int32_t heads, int32_t head_dim, int32_t dim, bool has_axes)
{
    check_label(c, "rope rows=%d heads=%d head_dim=%d dim=%d%s", n_rows, heads, head_dim, dim,
                has_axes ? " axes" : "");
    Turn t = open_turn(c, n_rows, heads, head_dim, dim, has_axes);
    Tensor x = open_heads(c, &t), want = copy_heads(c, &t, x);
    c->reference->rope(c->reference_stream, want, t.positions, n_rows, &t.params);
    check_oracle(c, &t, x, want);
    while (check_next_variant(c)) {
        Tensor got = copy_heads(c, &t, x);
        c->ops->rope(c->stream, got, t.positions, n_rows, &t.params);
        check_bits(c, whole(got), whole(want)); /* gaps too */
    }
    check_done(c);
}

static void bench(Check *c, int32_t n_rows, int32_t heads, int32_t head_dim, int32_t dim)
{
    Turn t = open_turn(c, n_rows, heads, head_dim, dim, false);
    Tensor x = open_heads(c, &t);
    check_label(c, "rope rows=%d heads=%d head_dim=%d dim=%d", n_rows, heads, head_dim, dim);
    check_work(c, 0, (double)n_rows * heads * dim * 8);
    while (check_next_variant(c)) CHECK_RUN(c, c->ops->rope(c->stream, x, t.positions, n_rows, &t.params));
    check_done(c);
}

int main(int argc, char **argv)
{
    static const int32_t dims[][2] = { { 2, 2 },   { 16, 16 },   { 64, 16 }, { 64, 64 },
                                       { 80, 20 }, { 128, 128 }, { 256, 64 } };
    Check c;
    if (!check_begin(&c, argc, argv)) return 2;
    if (c.bench) {
        bench(&c, 1, 16, 128, 128);
        bench(&c, 512, 16, 128, 128);
        bench(&c, 512, 8, 256, 64);
        return 0;
    }
    for (int i = 0; i < COUNT(dims); i++)
        for (int k = 0; k < 6; k++)
            check_turn(&c, k ? check_int(&c, 1, 70) : 0, check_int(&c, 1, 9), dims[i][0], dims[i][1], k & 1);
    return check_end(&c);
}
