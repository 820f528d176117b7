/* See check_device.h. Below: twins of weights, ops that wait, and the reference with the arithmetic of tensor cores. */
#include "check_device.h"
#include "tensor_core.h"

#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TWINS = 64 };

struct CheckDevice {
    Backend *home; /* scalar, the reference */
    Ops      ops, waiting, reference;
    int      n_twins;
    const void *of[MAX_TWINS];
    Weight   twin[MAX_TWINS];
};

static CheckDevice *the; /* ops have no argument for it */

/* ---- twins ---- */

void check_device_weight(Check *c, const Weight *w)
{
    CheckDevice *d = c->device;
    Error err = { 0 };
    CHECK(d->n_twins < MAX_TWINS);
    Weight *twin = &d->twin[d->n_twins];
    float *row = mem_alloc_array((size_t)w->n_in, sizeof *row);
    CHECK(row && !weight_alloc(c->backend[0], twin, w->n_out, w->n_in, w->contract, &err));
    for (int64_t i = 0; i < w->n_out; i++) {
        weight_get_row(w, i, row);
        weight_put_rows(twin, i, 1, row, DT_F32);
    }
    mem_free(row);
    d->of[d->n_twins++] = w->data;
}

static const Weight *twin_of(const Weight *w)
{
    for (int i = 0; i < the->n_twins; i++)
        if (the->of[i] == w->data) return &the->twin[i];
    CHECK(!"a weight without a twin");
    return NULL;
}

void check_device_done(Check *c)
{
    CheckDevice *d = c->device;
    if (!d) return;
    for (int i = 0; i < d->n_twins; i++) backend_free(c->backend[0], d->twin[i].data);
    d->n_twins = 0;
}

/* ---- ops that wait ---- */

static void embed(Stream *st, Tensor out, const Weight *table, const Batch *batch)
{
    the->ops.embed(st, out, twin_of(table), batch);
    stream_sync(st);
}
static void rms_norm(Stream *st, Tensor out, Tensor x, const float *weight, float eps)
{
    the->ops.rms_norm(st, out, x, weight, eps);
    stream_sync(st);
}
static void rms_norm_gated(Stream *st, Tensor out, Tensor x, Tensor z, const float *weight, float eps)
{
    the->ops.rms_norm_gated(st, out, x, z, weight, eps);
    stream_sync(st);
}
static void linear(Stream *st, Tensor x, const LinearJob *jobs, int n_jobs)
{
    LinearJob own[8];
    for (int i = 0; i < n_jobs; i++) own[i] = (LinearJob){ jobs[i].out, twin_of(jobs[i].weight) };
    the->ops.linear(st, x, own, n_jobs);
    stream_sync(st);
}
static void linear_silu_mul(Stream *st, Tensor out, Tensor x, const Weight *gate, const Weight *up)
{
    the->ops.linear_silu_mul(st, out, x, twin_of(gate), twin_of(up));
    stream_sync(st);
}
static void add(Stream *st, Tensor x, Tensor y)
{
    the->ops.add(st, x, y);
    stream_sync(st);
}
static void silu_mul(Stream *st, Tensor out, Tensor gate, Tensor up)
{
    the->ops.silu_mul(st, out, gate, up);
    stream_sync(st);
}
static void sigmoid_mul(Stream *st, Tensor out, Tensor x, Tensor gate)
{
    the->ops.sigmoid_mul(st, out, x, gate);
    stream_sync(st);
}
static void round_rows(Stream *st, Tensor out, Tensor x)
{
    the->ops.round_rows(st, out, x);
    stream_sync(st);
}
static void gather_rows(Stream *st, Tensor out, Tensor x, const int32_t *rows, int n)
{
    the->ops.gather_rows(st, out, x, rows, n);
    stream_sync(st);
}
static void rope(Stream *st, Tensor x, const int32_t *positions, int32_t n_rows, const RopeParams *params)
{
    the->ops.rope(st, x, positions, n_rows, params);
    stream_sync(st);
}
static void kv_store(Stream *st, KvView view, Tensor k, Tensor v, const int32_t *store)
{
    the->ops.kv_store(st, view, k, v, store);
    stream_sync(st);
}
static void attention(Stream *st, Tensor out, Tensor q, KvView view, const Batch *batch, const int32_t *store, float scale)
{
    the->ops.attention(st, out, q, view, batch, store, scale);
    stream_sync(st);
}
static void kv_move(Stream *st, KvView view, int32_t slot, const int32_t *from, const int32_t *to, int n)
{
    the->ops.kv_move(st, view, slot, from, to, n);
    stream_sync(st);
}
static void conv_silu(Stream *st, Tensor out, Tensor mix, const float *weight, StateView state, const Batch *batch, Tensor log_mix)
{
    the->ops.conv_silu(st, out, mix, weight, state, batch, log_mix);
    stream_sync(st);
}
static void gated_delta(Stream *st, Tensor out, Tensor conv, Tensor a, Tensor b, const GatedDelta *p, StateView state,
                        const Batch *batch, GdnLog log)
{
    the->ops.gated_delta(st, out, conv, a, b, p, state, batch, log);
    stream_sync(st);
}
static void gated_delta_commit(Stream *st, const GatedDelta *p, StateView state, StateView conv_state, int32_t channels,
                               const Batch *batch, GdnLog log, const Commit *commits, int n)
{
    the->ops.gated_delta_commit(st, p, state, conv_state, channels, batch, log, commits, n);
    stream_sync(st);
}
static void scale_cap(Stream *st, Tensor x, float factor, float cap)
{
    the->ops.scale_cap(st, x, factor, cap);
    stream_sync(st);
}
static void block_conv(Stream *st, Tensor out, Tensor x, const float *base, Tensor dynamic, int32_t kernel, int32_t block_rows)
{
    the->ops.block_conv(st, out, x, base, dynamic, kernel, block_rows);
    stream_sync(st);
}
static void pick(Stream *st, const PickJob *job)
{
    PickJob own = *job;
    own.predecessor = twin_of(job->predecessor);
    own.successor = twin_of(job->successor);
    the->ops.pick(st, &own);
    stream_sync(st);
}

const Ops *check_device_ops(Check *c)
{
    return &c->device->waiting;
}

/* ---- the reference: the scalar table, and tensor cores where the device has them ---- */

static void reference_linear(Stream *st, Tensor x, const LinearJob *jobs, int n_jobs)
{
    if (n_jobs > 0 && jobs[0].weight->contract.mode != MATH_BF16) {
        backend_ops(the->home)->linear(st, x, jobs, n_jobs);
        return;
    }
    for (int j = 0; j < n_jobs; j++) {
        const Weight *w = jobs[j].weight;
        float *row = mem_alloc_array((size_t)w->n_in, sizeof *row);
        CHECK(row);
        for (int64_t n = 0; n < w->n_out; n++) {
            weight_get_row(w, n, row);
            for (int64_t r = 0; r < x.shape[0]; r++) tensor_f32(jobs[j].out, r)[n] = tensor_core_dot(x, r, row, w->n_in, w->contract.k_parts > 1);
        }
        mem_free(row);
    }
}

static void reference_silu_mul(Stream *st, Tensor out, Tensor x, const Weight *gate, const Weight *up)
{
    LinearJob jobs[2] = { { tensor_2d(NULL, DT_F32, x.shape[0], gate->n_out), gate }, { tensor_2d(NULL, DT_F32, x.shape[0], gate->n_out), up } };
    float *sums = mem_alloc_array((size_t)(2 * x.shape[0] * gate->n_out) + 1, sizeof *sums);
    CHECK(sums);
    for (int j = 0; j < 2; j++) jobs[j].out.data = sums + j * x.shape[0] * gate->n_out;
    reference_linear(st, x, jobs, 2);
    backend_ops(the->home)->silu_mul(st, out, jobs[0].out, jobs[1].out);
    mem_free(sums);
}

static void reference_attention(Stream *st, Tensor out, Tensor q, KvView view, const Batch *batch, const int32_t *store, float scale)
{
    if (tensor_core_attends(q, &view)) tensor_core_attention(out, q, view, batch, store, scale);
    else backend_ops(the->home)->attention(st, out, q, view, batch, store, scale);
}

/* ---- open and close ---- */

bool check_device_open(Check *c)
{
    BackendOptions options = { .n_workers = 3, .cpu_mask = "scalar", .device = DEVICE_CUDA };
    Error err = { 0 };
    CheckDevice *d = the = c->device = mem_alloc(sizeof *d);
    CHECK(d);
    if (backend_open_cpu(&d->home, &options, &err) || backend_open(&c->backend[0], &options, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return false;
    }
    c->n_backends = 1;
    d->ops = *backend_ops(c->backend[0]);
    d->waiting = (Ops){ .embed = embed, .rms_norm = rms_norm, .rms_norm_gated = rms_norm_gated,
                        .linear = linear, .linear_silu_mul = linear_silu_mul, .add = add, .silu_mul = silu_mul, .sigmoid_mul = sigmoid_mul,
                        .round_rows = round_rows, .gather_rows = gather_rows, .rope = rope,
                        .kv_store = kv_store, .attention = attention, .kv_move = kv_move,
                        .conv_silu = conv_silu, .gated_delta = gated_delta,
                        .gated_delta_commit = gated_delta_commit, .scale_cap = scale_cap,
                        .block_conv = block_conv, .pick = pick };
    d->reference = *backend_ops(d->home);
    d->reference.linear = reference_linear;
    d->reference.linear_silu_mul = reference_silu_mul;
    d->reference.attention = reference_attention;
    c->reference = &d->reference;
    c->reference_stream = backend_stream(d->home);
    return true;
}

void check_device_close(Check *c)
{
    if (!c->device) return;
    backend_close(c->device->home);
    mem_free(c->device);
    c->device = NULL;
}
