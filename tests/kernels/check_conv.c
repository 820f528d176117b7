/* conv_silu: every variant against the scalar table by bits (outputs, logs, states); the table against sums in
 * double over each row's path; every row against the same row alone. */
#include "check.h"
#include "scene.h"

#include <math.h>
#include <string.h>

typedef struct Conv {
    Tensor mix, out, log;
    float *weight;
    int32_t channels;
    StateView state;
    size_t state_bytes;
} Conv;

static Conv open_conv(Check *c, const Scene *s, int32_t channels, Fill fill)
{
    Conv v = { .channels = channels, .state.slot_bytes = (size_t)channels * 3 * 4 };
    v.mix = check_random(c, fill, DT_F32, s->batch.n_rows, channels);
    v.weight = check_random(c, FILL_NORMAL, DT_F32, channels, 4).data;
    v.out = check_output(c, DT_F32, s->batch.n_rows, channels);
    v.log = check_output(c, DT_F32, s->batch.n_uncertain_rows, channels);
    v.state_bytes = v.state.slot_bytes * s->n_slots;
    v.state.data = memset(check_alloc(c, v.state_bytes), 0xff, v.state_bytes);
    for (int i = 0; i < s->n_seqs; i++) {
        const BatchSeq *q = &s->seqs[i];
        if (q->n_committed)
            check_fill(c, tensor_1d((char *)v.state.data + v.state.slot_bytes * q->slot, DT_F32, 3 * channels), fill);
    }
    return v;
}

static Conv copy_conv(Check *c, const Scene *s, const Conv *from)
{
    Conv v = *from;
    v.out = check_output(c, DT_F32, s->batch.n_rows, from->channels);
    v.log = check_output(c, DT_F32, s->batch.n_uncertain_rows, from->channels);
    v.state.data = memcpy(check_alloc(c, from->state_bytes), from->state.data, from->state_bytes);
    return v;
}

static void run(const Ops *ops, Stream *st, const Scene *s, Conv *v)
{
    check_clear(v->out);
    check_clear(v->log);
    ops->conv_silu(st, v->out, v->mix, v->weight, v->state, &s->batch, v->log);
}

/* The raw row `back` tokens before `row`; NULL = before the first token. */
static const float *input(const Scene *s, const Conv *v, int32_t row, int back)
{
    const BatchSeq *q = &s->seqs[s->seq[row]];
    int32_t position = s->index[row] - back, age = position - q->n_committed + 3;
    while (row >= 0 && s->index[row] > position) row = s->parent[row];
    if (row >= 0) return tensor_f32(v->mix, row);
    return q->n_committed ? (float *)((char *)v->state.data + v->state.slot_bytes * q->slot) + age * v->channels
                          : NULL;
}

static void check_oracle(Check *c, const Scene *s, const Conv *before, const Conv *after)
{
    double worst = 0;
    for (int32_t r = 0; r < s->batch.n_rows; r++) {
        for (int32_t ch = 0; s->seq[r] >= 0 && ch < before->channels; ch++) {
            double x = 0;
            for (int b = 0; b < 4; b++) {
                const float *in = input(s, before, r, b);
                x += in ? (double)in[ch] * before->weight[ch * 4 + 3 - b] : 0;
            }
            worst = fmax(worst, fabs(x / (1 + exp(-x)) - tensor_f32(after->out, r)[ch]) / (1 + fabs(x)));
        }
    }
    check_that(c, worst < 1e-5, "far from sums in double");
}

/* The last row of a path as the only row of a pass whose state holds the three before it. */
static void check_alone(Check *c, const Scene *s, const Conv *before, const Conv *after, int32_t row)
{
    Scene alone;
    scene_open(&alone, c, &(SceneSeq){ 3, 1, true, TREE_CHAIN }, 1, 16, 0);
    Conv v = open_conv(c, &alone, before->channels, FILL_ZERO);
    size_t bytes = (size_t)before->channels * 4;
    char *state = (char *)v.state.data + v.state.slot_bytes * alone.seqs[0].slot;
    for (int b = 1; b < 4; b++) {
        const float *in = input(s, before, row, b);
        if (in) memcpy(state + (3 - b) * bytes, in, bytes);
    }
    v.weight = before->weight;
    memcpy(v.mix.data, tensor_f32(before->mix, row), bytes);
    run(c->ops, c->stream, &alone, &v);
    check_bytes(c, v.out.data, tensor_f32(after->out, row), bytes);
    check_bytes(c, state + 2 * bytes, v.mix.data, bytes);
}

static void check_states(Check *c, const Scene *s, const Conv *before, const Conv *after)
{
    size_t bytes = (size_t)before->channels * 4;
    for (int i = 0; i < s->n_seqs; i++) {
        const BatchSeq *q = &s->seqs[i];
        char *got = (char *)after->state.data + after->state.slot_bytes * q->slot;
        char *old = (char *)before->state.data + before->state.slot_bytes * q->slot;
        int32_t last = q->first_row + q->n_rows - 1;
        if (!q->certain) check_bytes(c, got, old, 3 * bytes);
        for (int b = 0; q->certain && b < 3; b++) {
            float *zeros = check_alloc(c, bytes);
            const float *in = input(s, before, last, b);
            check_bytes(c, got + (2 - b) * bytes, in ? in : zeros, bytes);
        }
    }
    for (int32_t r = 0; r < s->batch.n_uncertain_rows; r++)
        check_bytes(c, tensor_f32(after->log, r), tensor_f32(before->mix, r), bytes);
}

static void check_scene(Check *c, const Scene *s, int32_t channels, Fill fill)
{
    check_label(c, "conv channels=%d rows=%d seqs=%d committed=%d", channels, s->batch.n_rows, s->n_seqs,
                s->seqs[0].n_committed);
    Conv before = open_conv(c, s, channels, fill), want = copy_conv(c, s, &before);
    run(c->reference, c->reference_stream, s, &want);
    if (fill == FILL_NORMAL) check_oracle(c, s, &before, &want);
    check_states(c, s, &before, &want);
    while (check_next_variant(c)) {
        Conv got = copy_conv(c, s, &before);
        run(c->ops, c->stream, s, &got);
        check_bits(c, got.out, want.out);
        check_bits(c, got.log, want.log);
        check_bytes(c, got.state.data, want.state.data, want.state_bytes);
        int32_t row = check_int(c, 0, s->batch.n_rows - 1);
        if (s->seq[row] >= 0) check_alone(c, s, &before, &got, row);
    }
    check_done(c);
}

static void bench(Check *c, SceneSeq seq, int32_t channels)
{
    Scene s;
    scene_open(&s, c, &seq, 1, 16, 0);
    Conv v = open_conv(c, &s, channels, FILL_NORMAL);
    check_label(c, "conv %d rows, %d channels", seq.n_rows, channels);
    check_work(c, 0, (double)seq.n_rows * channels * 8);
    while (check_next_variant(c))
        CHECK_RUN(c, c->ops->conv_silu(c->stream, v.out, v.mix, v.weight, v.state, &s.batch, v.log));
    check_done(c);
}

int main(int argc, char **argv)
{
    static const int32_t channels[] = { 1, 15, 16, 100, 256, 257, 512, 1000 };
    static const Fill fills[] = { FILL_BROKEN, FILL_NORMAL, FILL_NASTY, FILL_NORMAL };
    Check c;
    if (!check_begin(&c, argc, argv)) return 2;
    if (c.bench) {
        bench(&c, (SceneSeq){ 10, 1, true, TREE_CHAIN }, 6144);
        bench(&c, (SceneSeq){ 10, 64, false, TREE_RANDOM }, 6144);
        bench(&c, (SceneSeq){ 10, 512, true, TREE_CHAIN }, 6144);
        bench(&c, (SceneSeq){ 10, 512, true, TREE_CHAIN }, 512);
        return 0;
    }
    for (int i = 0; i < COUNT(channels); i++) {
        for (int k = 0; k < 8; k++) {
            Scene s;
            scene_open_random(&s, &c, 6, k % 2 ? 4 : 65, 16);
            check_scene(&c, &s, channels[i], fills[k % COUNT(fills)]);
        }
    }
    return check_end(&c);
}
