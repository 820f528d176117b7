/* add, silu_mul, sigmoid_mul: every variant against the scalar table by bits, the table against double. */
#include "check.h"

#include <math.h>

typedef enum Kind { ADD, SILU_MUL, SIGMOID_MUL, N_KINDS } Kind;

static const char *const names[] = { "add", "silu_mul", "sigmoid_mul" };

/* sigmoid_mul's gate is the second half of a doubled projection; the others take rows with gaps. */
static Tensor open_rows(Check *c, DType t, Kind kind, int64_t rows, int64_t d, Fill fill)
{
    Tensor all = check_random(c, FILL_BROKEN, t, rows, 6 * d + 5),
           x = tensor_2d_strided(all.data, t, rows, d, 6 * d + 5);
    if (kind == SIGMOID_MUL) x = tensor_heads(all.data, t, rows, 3, d, 6 * d + 5, 2 * d);
    check_fill(c, x, fill);
    return x;
}

static void call(const Ops *ops, Stream *st, Kind kind, Tensor out, Tensor a, Tensor b)
{
    if (kind == ADD)
        ops->add(st, out, a);
    else if (kind == SILU_MUL)
        ops->silu_mul(st, out, a, b);
    else
        ops->sigmoid_mul(st, out, a, b);
}

static float value(Tensor x, int64_t r, int64_t h, int64_t i)
{
    return tensor_f32(x, r)[h * (x.n_dims == 3 ? x.stride[1] : 0) + i];
}

static void check_oracle(Check *c, Kind kind, Tensor out, Tensor a, Tensor b)
{
    double worst = 0;
    for (int64_t r = 0; r < a.shape[0]; r++) {
        for (int64_t h = 0; h < (a.n_dims == 3 ? a.shape[1] : 1); h++) {
            for (int64_t i = 0; i < a.shape[a.n_dims - 1]; i++) {
                double x = value(a, r, h, i), y = value(b, r, h, i);
                double want = kind == SILU_MUL ? x / (1 + exp(-x)) * y : x / (1 + exp(-y));
                worst = fmax(worst, fabs(want - value(out, r, h, i)) / (fabs(want) + 1e-30));
            }
        }
    }
    check_that(c, worst < 1e-6, "far from double");
}

static void check_kind(Check *c, Kind kind, DType act, int64_t rows, int64_t d, Fill fill)
{
    check_label(c, "%s %s [%d, %d]", names[kind], dtype_name(act), (int)rows, (int)d);
    Tensor a = open_rows(c, DT_F32, kind, rows, d, fill), b = open_rows(c, DT_F32, kind, rows, d, fill);
    Tensor want = open_rows(c, kind == ADD ? DT_F32 : act, kind, rows, d, FILL_ZERO);
    Tensor got = open_rows(c, kind == ADD ? DT_F32 : act, kind, rows, d, FILL_ZERO);
    uint64_t random = c->random;
    if (kind == ADD) check_fill(c, want, fill);
    call(c->reference, c->reference_stream, kind, want, a, b);
    if (kind != ADD && act == DT_F32 && fill == FILL_NORMAL) check_oracle(c, kind, want, a, b);
    uint64_t next = c->random;
    while (check_next_variant(c)) {
        c->random = random;
        check_clear(got);
        if (kind == ADD) check_fill(c, got, fill); /* the same values again */
        call(c->ops, c->stream, kind, got, a, b);
        check_bits(c, got, want);
    }
    c->random = next;
    check_done(c);
}

static void bench(Check *c, Kind kind, DType act, int64_t rows, int64_t d)
{
    Tensor a = open_rows(c, DT_F32, kind, rows, d, FILL_NORMAL), b = open_rows(c, DT_F32, kind, rows, d, FILL_NORMAL);
    Tensor out = open_rows(c, act, kind, rows, d, FILL_ZERO);
    check_label(c, "%s %s [%d, %d]", names[kind], dtype_name(act), (int)rows, (int)d);
    check_work(c, 0, (double)rows * d * (kind == ADD ? 12 : 8 + dtype_bytes(act)) * (kind == SIGMOID_MUL ? 3 : 1));
    while (check_next_variant(c)) CHECK_RUN(c, call(c->ops, c->stream, kind, out, a, b));
    check_done(c);
}

int main(int argc, char **argv)
{
    static const int64_t sizes[] = { 1, 15, 16, 17, 128, 640, 3072 };
    Check c;
    if (!check_begin(&c, argc, argv)) return 2;
    if (c.bench) {
        bench(&c, ADD, DT_F32, 1, 1024);
        bench(&c, ADD, DT_F32, 512, 1024);
        bench(&c, SILU_MUL, DT_BF16, 1, 3072);
        bench(&c, SILU_MUL, DT_BF16, 512, 3072);
        bench(&c, SIGMOID_MUL, DT_BF16, 512, 256);
        return 0;
    }
    for (int i = 0; i < COUNT(sizes); i++)
        for (Kind kind = 0; kind < N_KINDS; kind++)
            for (Fill fill = FILL_ZERO; fill <= FILL_BROKEN; fill++)
                for (int k = 0; k < 4; k++)
                    check_kind(&c, kind, k & 1 ? DT_F32 : DT_BF16, check_int(&c, 0, 40), sizes[i], fill);
    return check_end(&c);
}
