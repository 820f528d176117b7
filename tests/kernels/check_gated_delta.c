/* gated_delta and its commit: every variant against the scalar table by bits (outputs, logs, states); the table
 * against the recurrence in double and the worked example of docs/spec/models.md 3.5; and what speculation
 * rests on: trees with any accepted path, and prompts in pieces, leave the bits of one row at a time. */
#include "check.h"
#include "scene.h"

#include "backend/cpu/walk.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* One layer: its inputs, states and logs for a scene. */
typedef struct Layer {
    GatedDelta p;
    int32_t channels;
    Tensor mix, conv, a, b, out;
    StateView state, conv_state;
    size_t state_bytes, conv_bytes; /* of all slots */
    GdnLog log;
    size_t log_k, log_u, log_decay; /* bytes */
} Layer;

static GatedDelta random_params(Check *c, int32_t nk, int32_t r, int32_t dk, int32_t dv)
{
    float *a = check_alloc(c, (size_t)(nk * r) * 4), *bias = check_alloc(c, (size_t)(nk * r) * 4);
    for (int i = 0; i < nk * r; i++) {
        a[i] = -0.1f - fabsf(check_value(c, FILL_NORMAL));
        bias[i] = check_value(c, FILL_NORMAL);
    }
    return (GatedDelta){ nk, nk * r, dk, dv, a, bias };
}

static void *broken_memory(Check *c, size_t bytes)
{
    return memset(check_alloc(c, bytes), 0xff, bytes); /* NaN */
}

static void open_states(Layer *l, Check *c, const Scene *s)
{
    const GatedDelta *p = &l->p;
    l->state.slot_bytes = (size_t)p->nv * p->dk * p->dv * 4 + 64;
    l->conv_state.slot_bytes = (size_t)l->channels * 3 * 4;
    l->state_bytes = l->state.slot_bytes * s->n_slots;
    l->conv_bytes = l->conv_state.slot_bytes * s->n_slots;
    l->state.data = broken_memory(c, l->state_bytes);
    l->conv_state.data = broken_memory(c, l->conv_bytes);
    for (int i = 0; i < s->n_seqs; i++) {
        const BatchSeq *q = &s->seqs[i];
        if (q->n_committed == 0) continue; /* a slot of a new sequence keeps its NaN */
        char *slot = (char *)l->state.data + l->state.slot_bytes * q->slot;
        char *tail = (char *)l->conv_state.data + l->conv_state.slot_bytes * q->slot;
        check_fill(c, tensor_1d(slot, DT_F32, (int64_t)p->nv * p->dk * p->dv), FILL_NORMAL);
        check_fill(c, tensor_1d(tail, DT_F32, 3 * l->channels), FILL_NORMAL);
    }
}

static void open_logs(Layer *l, Check *c, const Scene *s)
{
    size_t n = (size_t)s->batch.n_uncertain_rows;
    l->log_k = n * l->p.nk * l->p.dk * 4;
    l->log_u = n * l->p.nv * l->p.dv * 4;
    l->log_decay = n * l->p.nv * 4;
    l->log = (GdnLog){ check_alloc(c, l->log_k), check_alloc(c, l->log_u), check_alloc(c, l->log_decay),
                       check_output(c, DT_F32, (int64_t)n, l->channels) };
}

static Layer open_layer(Check *c, const Scene *s, GatedDelta p, Fill fill)
{
    Layer l = { .p = p, .channels = 2 * p.nk * p.dk + p.nv * p.dv };
    int64_t rows = s->batch.n_rows;
    l.mix = check_random(c, fill, DT_F32, rows, l.channels);
    l.conv = check_random(c, fill, DT_F32, rows, l.channels);
    l.a = check_random(c, fill, DT_F32, rows, p.nv);
    l.b = check_random(c, fill, DT_F32, rows, p.nv);
    l.out = check_output(c, DT_F32, rows, (int64_t)p.nv * p.dv);
    open_states(&l, c, s);
    open_logs(&l, c, s);
    return l;
}

/* The same inputs, with outputs, states and logs of its own. */
static Layer copy_layer(Check *c, const Scene *s, const Layer *from)
{
    Layer l = *from;
    l.out = check_output(c, DT_F32, s->batch.n_rows, from->out.shape[1]);
    l.state.data = memcpy(check_alloc(c, l.state_bytes), from->state.data, l.state_bytes);
    l.conv_state.data = memcpy(check_alloc(c, l.conv_bytes), from->conv_state.data, l.conv_bytes);
    open_logs(&l, c, s);
    return l;
}

static void run(const Ops *ops, Stream *st, const Scene *s, Layer *l)
{
    ops->gated_delta(st, l->out, l->conv, l->a, l->b, &l->p, l->state, &s->batch, l->log);
}

/* What conv_silu leaves in the log. */
static void fill_log_mix(const Scene *s, Layer *l)
{
    for (int32_t r = 0; r < s->batch.n_uncertain_rows; r++)
        memcpy(tensor_f32(l->log.mix, r), tensor_f32(l->mix, r), (size_t)l->channels * 4);
}

static int random_commits(Check *c, const Scene *s, Commit *commits, int32_t rows[][MAX_DEPTH])
{
    int n = 0;
    for (int32_t i = 0; i < s->n_seqs; i++) {
        if (s->seqs[i].certain || check_int(c, 0, 4) == 0) continue;
        commits[n] = (Commit){ i, scene_path(s, scene_random_leaf(s, c, i), rows[n]), rows[n] };
        n++;
    }
    return n;
}

/* ---- variants ---- */

static void compare_layers(Check *c, const Layer *got, const Layer *want)
{
    check_bits(c, got->out, want->out);
    check_bits(c, tensor_1d(got->log.k, DT_F32, (int64_t)got->log_k / 4),
               tensor_1d(want->log.k, DT_F32, (int64_t)want->log_k / 4));
    check_bits(c, tensor_1d(got->log.u, DT_F32, (int64_t)got->log_u / 4),
               tensor_1d(want->log.u, DT_F32, (int64_t)want->log_u / 4));
    check_bits(c, tensor_1d(got->log.decay, DT_F32, (int64_t)got->log_decay / 4),
               tensor_1d(want->log.decay, DT_F32, (int64_t)want->log_decay / 4));
    check_bits(c, tensor_1d(got->state.data, DT_F32, (int64_t)got->state_bytes / 4),
               tensor_1d(want->state.data, DT_F32, (int64_t)want->state_bytes / 4));
    check_bits(c, tensor_1d(got->conv_state.data, DT_F32, (int64_t)got->conv_bytes / 4),
               tensor_1d(want->conv_state.data, DT_F32, (int64_t)want->conv_bytes / 4));
}

static void check_variants(Check *c, const Scene *s, GatedDelta p, Fill fill)
{
    check_label(c, "gated_delta nk=%d nv=%d dk=%d dv=%d rows=%d seqs=%d committed=%d", p.nk, p.nv, p.dk, p.dv,
                s->batch.n_rows, s->n_seqs, s->seqs[0].n_committed);
    Layer before = open_layer(c, s, p, fill), want = copy_layer(c, s, &before);
    Commit commits[SCENE_MAX_SEQS];
    int32_t rows[SCENE_MAX_SEQS][MAX_DEPTH];
    int n = random_commits(c, s, commits, rows);
    check_clear(want.out);
    run(c->reference, c->reference_stream, s, &want);
    fill_log_mix(s, &want);
    c->reference->gated_delta_commit(c->reference_stream, &p, want.state, want.conv_state, want.channels, &s->batch,
                                     want.log, commits, n);
    while (check_next_variant(c)) {
        Layer got = copy_layer(c, s, &before);
        uint64_t *counted = &stream_row_counts(c->stream)->recurrent[s->seqs[0].n_rows], seen = *counted;
        check_clear(got.out);
        run(c->ops, c->stream, s, &got);
        check_that(c, *counted > seen, "rows were not counted");
        fill_log_mix(s, &got);
        c->ops->gated_delta_commit(c->stream, &p, got.state, got.conv_state, got.channels, &s->batch, got.log,
                                   commits, n);
        compare_layers(c, &got, &want);
    }
    check_done(c);
}

/* ---- one row at a time ---- */

/* A pass of one certain row: row `row` of the layer's inputs on the given states. */
static void run_alone(Check *c, const Layer *l, int32_t row, int32_t n_committed, StateView state, Tensor out)
{
    Scene alone;
    scene_open(&alone, c, &(SceneSeq){ n_committed, 1, true, TREE_CHAIN }, 1, 16, 0);
    Layer one = *l;
    one.conv = tensor_2d(tensor_f32(l->conv, row), DT_F32, 1, l->channels);
    one.a = tensor_2d(tensor_f32(l->a, row), DT_F32, 1, l->p.nv);
    one.b = tensor_2d(tensor_f32(l->b, row), DT_F32, 1, l->p.nv);
    one.out = out;
    one.state = state;
    /* Its slot is where `state` begins. */
    one.state.data = (char *)state.data - state.slot_bytes * alone.seqs[0].slot;
    run(c->ops, c->stream, &alone, &one);
}

static float *slot_of(const Layer *l, const BatchSeq *q)
{
    return (float *)((char *)l->state.data + l->state.slot_bytes * q->slot);
}

/* The path's rows one by one from the states before the batch: their outputs in the tree, and the state after
 * commit, have to be the same bits. */
static void check_path(Check *c, const Scene *s, const Layer *before, const Layer *tree, const Commit *commit)
{
    const BatchSeq *q = &s->seqs[commit->seq];
    size_t bytes = (size_t)before->p.nv * before->p.dk * before->p.dv * 4;
    StateView state = { check_alloc(c, before->state.slot_bytes), before->state.slot_bytes };
    memcpy(state.data, slot_of(before, q), bytes);
    for (int32_t d = 0; d < commit->n_path; d++) {
        Tensor out = check_output(c, DT_F32, 1, before->out.shape[1]), want = tensor_rows(tree->out, 1);
        run_alone(c, before, commit->path_rows[d], q->n_committed + d, state, out);
        want.data = tensor_f32(tree->out, commit->path_rows[d]);
        check_bits(c, out, want);
    }
    check_bytes(c, slot_of(tree, q), state.data, bytes);
}

/* Last three raw rows of slot and path, oldest first. */
static void check_conv_tail(Check *c, const Scene *s, const Layer *before, const Layer *tree, const Commit *commit)
{
    const BatchSeq *q = &s->seqs[commit->seq];
    const float *old = (const float *)((char *)before->conv_state.data + before->conv_state.slot_bytes * q->slot);
    const float *now = (const float *)((char *)tree->conv_state.data + tree->conv_state.slot_bytes * q->slot);
    float *want = check_alloc(c, before->conv_state.slot_bytes);
    for (int age = 0; age < 3; age++) {
        int32_t d = commit->n_path - 3 + age;
        const float *row = d >= 0 ? tensor_f32(before->mix, commit->path_rows[d]) : old + (3 + d) * before->channels;
        if (d >= 0 || q->n_committed > 0) memcpy(want + age * before->channels, row, (size_t)before->channels * 4);
    }
    check_bytes(c, now, want, before->conv_state.slot_bytes);
}

static void check_trees(Check *c, const Scene *s, GatedDelta p)
{
    check_label(c, "trees against single rows, nk=%d nv=%d dk=%d dv=%d rows=%d seqs=%d", p.nk, p.nv, p.dk, p.dv,
                s->batch.n_rows, s->n_seqs);
    Layer before = open_layer(c, s, p, FILL_NORMAL);
    fill_log_mix(s, &before);
    while (check_next_variant(c)) {
        Layer tree = copy_layer(c, s, &before);
        Commit commits[SCENE_MAX_SEQS];
        int32_t rows[SCENE_MAX_SEQS][MAX_DEPTH];
        int n = random_commits(c, s, commits, rows);
        run(c->ops, c->stream, s, &tree);
        fill_log_mix(s, &tree);
        c->ops->gated_delta_commit(c->stream, &p, tree.state, tree.conv_state, tree.channels, &s->batch, tree.log,
                                   commits, n);
        for (int i = 0; i < n; i++) {
            check_path(c, s, &before, &tree, &commits[i]);
            check_conv_tail(c, s, &before, &tree, &commits[i]);
            memcpy(slot_of(&tree, &s->seqs[commits[i].seq]), slot_of(&before, &s->seqs[commits[i].seq]),
                   before.state.slot_bytes);
        }
        for (int i = 0; i < s->n_seqs; i++)
            if (s->seqs[i].certain)
                memcpy(slot_of(&tree, &s->seqs[i]), slot_of(&before, &s->seqs[i]), before.state.slot_bytes);
        check_bytes(c, tree.state.data, before.state.data, before.state_bytes); /* nothing else was touched */
    }
    check_done(c);
}

/* A prompt whole, and in pieces. */
static void check_pieces(Check *c, GatedDelta p, int32_t n_rows, int32_t piece)
{
    check_label(c, "prompt of %d in pieces of %d, nk=%d nv=%d dk=%d dv=%d", n_rows, piece, p.nk, p.nv, p.dk, p.dv);
    Scene whole;
    scene_open(&whole, c, &(SceneSeq){ 0, n_rows, true, TREE_CHAIN }, 1, 16, 0);
    Layer before = open_layer(c, &whole, p, FILL_NORMAL);
    while (check_next_variant(c)) {
        Layer want = copy_layer(c, &whole, &before), got = copy_layer(c, &whole, &before);
        run(c->ops, c->stream, &whole, &want);
        for (int32_t at = 0; at < n_rows; at += piece) {
            int32_t n = n_rows - at < piece ? n_rows - at : piece;
            Scene part;
            scene_open(&part, c, &(SceneSeq){ at, n, true, TREE_CHAIN }, 1, 16, 0);
            Layer l = got;
            l.conv = tensor_2d(tensor_f32(got.conv, at), DT_F32, n, l.channels);
            l.a = tensor_2d(tensor_f32(got.a, at), DT_F32, n, p.nv);
            l.b = tensor_2d(tensor_f32(got.b, at), DT_F32, n, p.nv);
            l.out = tensor_2d(tensor_f32(got.out, at), DT_F32, n, l.out.shape[1]);
            part.seqs[0].slot = whole.seqs[0].slot;
            run(c->ops, c->stream, &part, &l);
        }
        check_bits(c, got.out, want.out);
        check_bytes(c, got.state.data, want.state.data, want.state_bytes);
    }
    check_done(c);
}

/* ---- the recurrence in double ---- */

static double softplus(double x)
{
    return x > 20 ? x : log1p(exp(x));
}

typedef struct Oracle {
    double s[64][64]; /* one head */
    double o[64];
} Oracle;

static void oracle_step(Oracle *m, const Layer *l, int32_t row, int32_t head)
{
    const GatedDelta *p = &l->p;
    int32_t key_head = head / (p->nv / p->nk);
    const float *q = tensor_f32(l->conv, row) + key_head * p->dk, *k = q + p->nk * p->dk;
    const float *v = tensor_f32(l->conv, row) + 2 * p->nk * p->dk + head * p->dv;
    double qq = 1e-6, kk = 1e-6, read;
    for (int i = 0; i < p->dk; i++) qq += (double)q[i] * q[i], kk += (double)k[i] * k[i];
    double decay = exp((double)p->neg_exp_a[head] * softplus((double)tensor_f32(l->a, row)[head] + p->dt_bias[head]));
    double beta = 1 / (1 + exp(-(double)tensor_f32(l->b, row)[head]));
    for (int j = 0; j < p->dv; j++) {
        read = m->o[j] = 0;
        for (int i = 0; i < p->dk; i++) read += (m->s[i][j] *= decay) * k[i] / sqrt(kk);
        for (int i = 0; i < p->dk; i++) {
            m->s[i][j] += k[i] / sqrt(kk) * beta * (v[j] - read);
            m->o[j] += m->s[i][j] * q[i] / sqrt(qq) / sqrt(p->dk);
        }
    }
}

static void check_oracle(Check *c, GatedDelta p, int32_t n_rows)
{
    check_label(c, "recurrence in double, nk=%d nv=%d dk=%d dv=%d rows=%d", p.nk, p.nv, p.dk, p.dv, n_rows);
    Scene s;
    scene_open(&s, c, &(SceneSeq){ 0, n_rows, true, TREE_CHAIN }, 1, 16, 0);
    Layer l = open_layer(c, &s, p, FILL_NORMAL);
    run(c->reference, c->reference_stream, &s, &l);
    for (int32_t h = 0; h < p.nv; h++) {
        static Oracle m;
        double worst = 0, size = 0;
        memset(&m, 0, sizeof m);
        for (int32_t r = 0; r < n_rows; r++) {
            oracle_step(&m, &l, r, h);
            for (int j = 0; j < p.dv; j++) {
                worst = fmax(worst, fabs(tensor_f32(l.out, r)[h * p.dv + j] - m.o[j]));
                size = fmax(size, fabs(m.o[j]));
            }
        }
        check_that(c, worst <= 3e-6 * size, "far from the recurrence in double");
    }
    check_done(c);
}

/* docs/spec/models.md 3.5: unit keys stay as they are up to 1e-6 / 2, queries too, so the table's digits hold. */
static void check_worked_example(Check *c)
{
    static const float q[3][2] = { { 1, 0 }, { 0.6f, 0.8f }, { 0, 1 } },
                       k[3][2] = { { 0.6f, 0.8f }, { 1, 0 }, { 0.8f, -0.6f } };
    static const float v[3][2] = { { 1, 2 }, { -1, 0.5f }, { 0.25f, 3 } }, beta[3] = { 0.5f, 0.9f, 0.25f },
                       g[3] = { -0.1f, -0.5f, -1 };
    static const float o[3][2] = { { 0.212132f, 0.424264f }, { -0.236876f, 0.480843f }, { 0.003388f, -0.188153f } };
    static const float state[4] = { -0.211784f, 0.771725f, 0.004792f, -0.266089f };
    float *neg_exp_a = check_alloc(c, sizeof *neg_exp_a), *dt_bias = check_alloc(c, sizeof *dt_bias);
    neg_exp_a[0] = -1;
    Scene s;
    check_label(c, "worked example");
    scene_open(&s, c, &(SceneSeq){ 0, 3, true, TREE_CHAIN }, 1, 16, 0);
    Layer l = open_layer(c, &s, (GatedDelta){ 1, 1, 2, 2, neg_exp_a, dt_bias }, FILL_NORMAL);
    for (int t = 0; t < 3; t++) {
        float *row = tensor_f32(l.conv, t);
        memcpy(row, q[t], 8);
        memcpy(row + 2, k[t], 8);
        memcpy(row + 4, v[t], 8);
        tensor_f32(l.a, t)[0] = logf(expm1f(-g[t]));
        tensor_f32(l.b, t)[0] = logf(beta[t] / (1 - beta[t]));
    }
    while (check_next_variant(c)) {
        run(c->ops, c->stream, &s, &l);
        double worst = 0;
        for (int i = 0; i < 6; i++) worst = fmax(worst, fabs(tensor_f32(l.out, i / 2)[i % 2] - o[i / 2][i % 2]));
        for (int i = 0; i < 4; i++) worst = fmax(worst, fabs(slot_of(&l, &s.seqs[0])[i] - state[i]));
        check_that(c, worst < 3e-6, "not the digits of the worked example");
    }
    check_done(c);
}

/* ---- the walk: every row reads its parent's state, and few states are alive ---- */

static void check_walk(Check *c, TreeShape shape, int32_t n_rows)
{
    Scene s;
    scene_open(&s, c, &(SceneSeq){ 5, n_rows, false, shape }, 1, 16, 0);
    check_label(c, "walk of %d rows, shape %d", n_rows, shape);
    const WalkStep *step = walk_plan(check_alloc(c, walk_bytes(n_rows)), &s.batch, &s.seqs[0]);
    int32_t holds[WALK_MAX_SLOTS], most = 0, n_wrong = 0, visits = 0;
    for (int32_t i = 0; i < n_rows; i++) {
        int32_t from = step[i].from == WALK_COMMITTED ? -1 : holds[step[i].from];
        n_wrong += from != s.parent[step[i].row];
        holds[step[i].to] = step[i].row;
        most = step[i].to > most ? step[i].to : most;
        visits += step[i].row;
    }
    check_that(c, n_wrong == 0, "a row reads a state that is not its parent's");
    check_that(c, visits == n_rows * (n_rows - 1) / 2, "not every row was visited once");
    check_that(c, most == 0 || 1 << most <= n_rows, "more states than log2(rows) + 1");
    check_that(c, shape != TREE_CHAIN || n_rows > MAX_DEPTH || most == 0, "a chain needs one state");
    check_done(c);
}

/* ---- speed ---- */

static void bench(Check *c, const char *what, SceneSeq seq, int32_t nk, int32_t r, int32_t dk, int32_t dv)
{
    Scene s;
    scene_open(&s, c, &seq, 1, 16, 0);
    Layer l = open_layer(c, &s, random_params(c, nk, r, dk, dv), FILL_NORMAL);
    double values = (double)nk * r * dk * dv;
    check_label(c, "%s nk=%d nv=%d dk=%d dv=%d", what, nk, nk * r, dk, dv);
    check_work(c, values * seq.n_rows * 7, values * 8);
    while (check_next_variant(c)) CHECK_RUN(c, run(c->ops, c->stream, &s, &l));
    if (!seq.certain) {
        int32_t rows[MAX_DEPTH];
        Commit commit = { 0, scene_path(&s, seq.n_rows - 1, rows), rows };
        check_label(c, "commit of %d of %s", commit.n_path, what);
        check_work(c, values * commit.n_path * 3, values * 8);
        while (check_next_variant(c))
            CHECK_RUN(c, c->ops->gated_delta_commit(c->stream, &l.p, l.state, l.conv_state, l.channels, &s.batch,
                                                    l.log, &commit, 1));
    }
    check_done(c);
}

static void bench_all(Check *c)
{
    bench(c, "decode", (SceneSeq){ 100, 1, true, TREE_CHAIN }, 16, 1, 128, 128);
    bench(c, "decode", (SceneSeq){ 100, 1, true, TREE_CHAIN }, 16, 3, 128, 128);
    bench(c, "decode", (SceneSeq){ 100, 1, true, TREE_CHAIN }, 4, 2, 32, 32);
    bench(c, "chain 16", (SceneSeq){ 100, 16, false, TREE_CHAIN }, 16, 1, 128, 128);
    bench(c, "tree 64", (SceneSeq){ 100, 64, false, TREE_RANDOM }, 16, 1, 128, 128);
    bench(c, "tree 64", (SceneSeq){ 100, 64, false, TREE_RANDOM }, 4, 2, 32, 32);
    bench(c, "prefill 512", (SceneSeq){ 100, 512, true, TREE_CHAIN }, 16, 1, 128, 128);
    bench(c, "prefill 512", (SceneSeq){ 100, 512, true, TREE_CHAIN }, 4, 2, 32, 32);
}

int main(int argc, char **argv)
{
    static const int32_t shapes[][4] = { { 1, 1, 2, 2 },     { 2, 1, 16, 16 }, { 1, 3, 7, 5 },   { 2, 2, 32, 32 },
                                         { 1, 2, 33, 47 },   { 2, 1, 64, 64 }, { 1, 4, 48, 80 }, { 1, 1, 128, 128 },
                                         { 1, 1, 256, 144 }, { 1, 8, 16, 63 } };
    static const Fill fills[] = { FILL_BROKEN, FILL_NORMAL, FILL_NASTY, FILL_NORMAL };
    Check c;
    if (!check_begin(&c, argc, argv)) return 2;
    if (c.bench) {
        bench_all(&c);
        return 0;
    }
    check_worked_example(&c);
    for (TreeShape shape = 0; shape < TREE_N_SHAPES; shape++)
        for (int k = 0; k < 20; k++) check_walk(&c, shape, check_int(&c, 1, k < 10 ? 65 : 1000));
    for (int i = 0; i < COUNT(shapes); i++) {
        const int32_t *n = shapes[i];
        for (int k = 0; k < 6; k++) {
            Scene s;
            scene_open_random(&s, &c, 40, 70, 16);
            check_variants(&c, &s, random_params(&c, n[0], n[1], n[2], n[3]), fills[k % COUNT(fills)]);
            scene_open_random(&s, &c, 40, 70, 16);
            check_trees(&c, &s, random_params(&c, n[0], n[1], n[2], n[3]));
        }
        static const int32_t pieces[] = { 1, 3, 64, 100 };
        for (int k = 0; k < COUNT(pieces); k++)
            check_pieces(&c, random_params(&c, n[0], n[1], n[2], n[3]), 130, pieces[k]);
        if (n[2] <= 64 && n[3] <= 64) check_oracle(&c, random_params(&c, n[0], n[1], n[2], n[3]), 50);
    }
    return check_end(&c);
}
