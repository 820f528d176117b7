/* rms_norm and rms_norm_gated: every variant against the scalar table by bits, the table against double. */
#include "check.h"

#include <math.h>
#include <string.h>

typedef struct Shape {
    int64_t rows, heads, d; /* heads 0: two dimensions */
} Shape;

/* Rows with gaps between them. */
static Tensor gapped(Check *c, DType t, Shape s, Fill fill)
{
    int64_t heads = s.heads ? s.heads : 1, head = s.d + (s.heads ? 3 : 0), row = heads * head + 5;
    Tensor all = check_random(c, FILL_BROKEN, t, s.rows, row), x = all;
    if (s.heads)
        x = tensor_heads(all.data, t, s.rows, s.heads, s.d, row, head);
    else
        x = tensor_2d_strided(all.data, t, s.rows, s.d, row);
    check_fill(c, x, fill);
    return x;
}

static const float *vector(Tensor x, int64_t row, int64_t head)
{
    return tensor_f32(x, row) + head * (x.n_dims == 3 ? x.stride[1] : 0);
}

/* z.data NULL: not gated. */
static void check_oracle(Check *c, Tensor out, Tensor x, Tensor z, const float *weight, float eps, Shape s)
{
    double worst = 0;
    for (int64_t r = 0; r < s.rows; r++) {
        for (int64_t h = 0; h < (s.heads ? s.heads : 1); h++) {
            const float *v = vector(x, r, h);
            double sum = 0;
            for (int64_t i = 0; i < s.d; i++) sum += (double)v[i] * v[i];
            for (int64_t i = 0; i < s.d; i++) {
                double y = v[i] / sqrt(sum / s.d + eps) * weight[i], g = z.data ? vector(z, r, h)[i] : 0;
                if (z.data) y *= g / (1 + exp(-g));
                worst = fmax(worst, fabs(y - vector(out, r, h)[i]) / (fabs(y) + 1e-3));
            }
        }
    }
    check_that(c, worst < 2e-6, "far from the norm in double");
}

static void call(const Ops *ops, Stream *st, Tensor out, Tensor x, Tensor z, const float *weight)
{
    if (z.data)
        ops->rms_norm_gated(st, out, x, z, weight, 1e-6f);
    else
        ops->rms_norm(st, out, x, weight, 1e-6f);
}

static void check_norm(Check *c, Shape s, DType act, bool is_gated, Fill fill)
{
    check_label(c, "%s %s [%d, %d, %d]", is_gated ? "rms_norm_gated" : "rms_norm", dtype_name(act), (int)s.rows,
                (int)s.heads, (int)s.d);
    Tensor x = gapped(c, DT_F32, s, fill), z = is_gated ? gapped(c, DT_F32, s, fill) : (Tensor){ 0 };
    Tensor want = gapped(c, act, s, FILL_ZERO), got = gapped(c, act, s, FILL_ZERO);
    const float *weight = check_random(c, FILL_NORMAL, DT_F32, 1, s.d).data;
    call(c->reference, c->reference_stream, want, x, z, weight);
    if (act == DT_F32 && fill == FILL_NORMAL) check_oracle(c, want, x, z, weight, 1e-6f, s);
    while (check_next_variant(c)) {
        check_clear(got);
        call(c->ops, c->stream, got, x, z, weight);
        check_bits(c, got, want);
        if (act == DT_F32 && !is_gated) { /* in place, and the same */
            Tensor y = gapped(c, DT_F32, s, FILL_ZERO);
            for (int64_t r = 0; r < s.rows; r++)
                for (int64_t h = 0; h < (s.heads ? s.heads : 1); h++)
                    memcpy((float *)vector(y, r, h), vector(x, r, h), (size_t)s.d * 4);
            call(c->ops, c->stream, y, y, z, weight);
            check_bits(c, y, want);
        }
    }
    check_done(c);
}

static void bench(Check *c, Shape s, DType act, bool is_gated)
{
    Tensor x = gapped(c, DT_F32, s, FILL_NORMAL), z = is_gated ? gapped(c, DT_F32, s, FILL_NORMAL) : (Tensor){ 0 };
    Tensor out = gapped(c, act, s, FILL_ZERO);
    const float *weight = check_random(c, FILL_NORMAL, DT_F32, 1, s.d).data;
    check_label(c, "%s %s [%d, %d, %d]", is_gated ? "rms_norm_gated" : "rms_norm", dtype_name(act), (int)s.rows,
                (int)s.heads, (int)s.d);
    check_work(c, 0, (double)s.rows * (s.heads ? s.heads : 1) * s.d * (4 + dtype_bytes(act) + 4 * is_gated));
    while (check_next_variant(c)) CHECK_RUN(c, call(c->ops, c->stream, out, x, z, weight));
    check_done(c);
}

int main(int argc, char **argv)
{
    static const int64_t sizes[] = { 1, 7, 16, 31, 64, 100, 128, 1024, 5120 };
    static const Fill fills[] = { FILL_ZERO, FILL_NORMAL, FILL_NASTY, FILL_BROKEN };
    Check c;
    if (!check_begin(&c, argc, argv)) return 2;
    if (c.bench) {
        bench(&c, (Shape){ 1, 0, 1024 }, DT_BF16, false);
        bench(&c, (Shape){ 512, 0, 1024 }, DT_BF16, false);
        bench(&c, (Shape){ 512, 16, 128 }, DT_F32, false);
        bench(&c, (Shape){ 1, 16, 128 }, DT_BF16, true);
        bench(&c, (Shape){ 512, 16, 128 }, DT_BF16, true);
        return 0;
    }
    for (int i = 0; i < COUNT(sizes); i++) {
        for (int f = 0; f < COUNT(fills); f++) {
            for (int k = 0; k < 4; k++) {
                check_norm(&c, (Shape){ check_int(&c, 0, 40), 0, sizes[i] }, k & 1 ? DT_F32 : DT_BF16, k & 2,
                           fills[f]);
                check_norm(&c, (Shape){ check_int(&c, 1, 9), check_int(&c, 1, 9), sizes[i] },
                           k & 1 ? DT_F32 : DT_BF16, k & 2, fills[f]);
            }
        }
    }
    return check_end(&c);
}
