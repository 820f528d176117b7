/* embed, round_rows, gather_rows, kv_store, kv_move: values come from rounding and places from the layout, both
 * written down here once more. */
#include "check.h"
#include "scene.h"

#include <math.h>
#include <string.h>

static void check_embed(Check *c, MathMode mode, int64_t hidden, int32_t n_rows)
{
    enum { VOCAB = 100 };
    check_label(c, "embed %s hidden=%d rows=%d", mode == MATH_BF16 ? "bf16" : "f32", (int)hidden, n_rows);
    Weight table = check_weight(c, FILL_NORMAL, VOCAB, hidden, contract_for(mode, hidden, 0));
    int32_t *token = check_alloc(c, (size_t)n_rows * 4), *seq = check_alloc(c, (size_t)n_rows * 4);
    int32_t *soft_row = check_alloc(c, (size_t)n_rows * 4), n_real = 0;
    Batch batch = { .n_rows = n_rows, .token = token, .seq = seq, .soft_row = soft_row };
    batch.soft = check_random(c, FILL_NORMAL, DT_F32, 3, hidden);
    Tensor want = check_output(c, DT_F32, n_rows, hidden), got = check_output(c, DT_F32, n_rows, hidden);
    check_clear(want);
    for (int32_t r = 0; r < n_rows; r++) {
        token[r] = check_int(c, 0, VOCAB - 1);
        soft_row[r] = check_int(c, 0, 3) ? -1 : check_int(c, 0, 2);
        seq[r] = check_int(c, 0, 5) ? 0 : -1;
        n_real += seq[r] == 0;
        if (seq[r] < 0)
            token[r] = -1000000;
        else if (soft_row[r] >= 0)
            memcpy(tensor_f32(want, r), tensor_f32(batch.soft, soft_row[r]), (size_t)hidden * 4);
        else
            weight_get_row(&table, token[r], tensor_f32(want, r));
    }
    while (check_next_variant(c)) {
        uint64_t passes = stream_row_counts(c->stream)->embed[n_real];
        check_clear(got);
        c->ops->embed(c->stream, got, &table, &batch);
        check_bits(c, got, want);
        check_that(c, stream_row_counts(c->stream)->embed[n_real] == passes + 1, "rows were not counted");
    }
    check_done(c);
}

static uint16_t rounded(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    if (isnan(x)) return (uint16_t)(u >> 16 | 0x40);
    uint32_t low = u & 0xffff, up = low > 0x8000 || (low == 0x8000 && (u >> 16 & 1));
    return (uint16_t)((u >> 16) + up);
}

static void check_round(Check *c, int64_t rows, int64_t d)
{
    check_label(c, "round_rows [%d, %d]", (int)rows, (int)d);
    Tensor x = check_random(c, FILL_BROKEN, DT_F32, rows, d + 3);
    x.shape[1] = d;
    Tensor want = check_output(c, DT_BF16, rows, d), got = check_output(c, DT_BF16, rows, d);
    Tensor copy = check_output(c, DT_F32, rows, d);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < d; i++) tensor_bf16(want, r)[i] = rounded(tensor_f32(x, r)[i]);
    while (check_next_variant(c)) {
        check_clear(got);
        c->ops->round_rows(c->stream, got, x);
        check_bytes(c, got.data, want.data, (size_t)(rows * d) * 2);
        check_clear(copy);
        c->ops->round_rows(c->stream, copy, x);
        for (int64_t r = 0; r < rows; r++) check_bytes(c, tensor_f32(copy, r), tensor_f32(x, r), (size_t)d * 4);
    }
    check_done(c);
}

static void check_gather(Check *c, DType t, int64_t d, int n)
{
    check_label(c, "gather_rows %s d=%d n=%d", dtype_name(t), (int)d, n);
    Tensor x = check_random(c, FILL_BROKEN, t, 20, d + 2), got = check_output(c, t, n, d);
    size_t item = dtype_bytes(t);
    x.shape[1] = d;
    int32_t *rows = check_alloc(c, (size_t)n * 4);
    for (int i = 0; i < n; i++) rows[i] = check_int(c, 0, 19);
    while (check_next_variant(c)) {
        check_clear(got);
        c->ops->gather_rows(c->stream, got, x, rows, n);
        for (int i = 0; i < n; i++)
            check_bytes(c, (char *)got.data + (size_t)(i * d) * item,
                        (char *)x.data + (size_t)(rows[i] * (d + 2)) * item, (size_t)d * item);
    }
    check_done(c);
}

/* ---- the cache ---- */

/* Bytes of a row, and of its scale. */
static int64_t row_bytes(KvView v)
{
    return v.dtype == DT_F8_E4M3 ? (v.head_dim + 3) / 4 * 4 : v.head_dim * (int64_t)dtype_bytes(v.dtype);
}
static int64_t scale_bytes(KvView v)
{
    return v.dtype == DT_F8_E4M3 ? 4 : 0;
}

static char *entry_at(KvView v, int32_t store, int part, int32_t head)
{
    int64_t block = store / v.block_size, place = store % v.block_size;
    return (char *)v.data + ((block * 2 + part) * v.n_heads + head) * v.block_size * (row_bytes(v) + scale_bytes(v)) +
           place * row_bytes(v);
}

static float *scale_at(KvView v, int32_t store, int part, int32_t head)
{
    int32_t place = store % v.block_size;
    return (float *)(void *)(entry_at(v, store - place, part, head) + v.block_size * row_bytes(v)) + place;
}

/* The E4M3 number nearest to x, of two the one with an even code; the largest for all beyond it. */
static uint8_t nearest_code(float x)
{
    int best = 0;
    double least = INFINITY, magnitude = fabs((double)x);
    for (int code = 0; code < 0x7f; code++) {
        int e = code >> 3, m = code & 7;
        double distance = fabs(magnitude - (e ? ldexp(8 + m, e - 10) : ldexp(m, -9)));
        if (distance < least || (distance == least && code % 2 == 0)) best = code;
        if (distance < least) least = distance;
    }
    return (uint8_t)(best | (signbit(x) ? 0x80 : 0));
}

static void put_codes(KvView v, int32_t store, int part, int32_t head, const float *x)
{
    uint8_t *codes = (uint8_t *)entry_at(v, store, part, head);
    float most = 0, *scale = scale_at(v, store, part, head);
    bool is_finite = true;
    for (int32_t d = 0; d < v.head_dim; d++) {
        is_finite = is_finite && isfinite(x[d]);
        most = fmaxf(most, fabsf(x[d]));
    }
    for (int32_t d = 0; d < v.head_dim; d++) codes[d] = 0;
    if (!is_finite) {
        uint32_t nan = 0x7fc00000;
        memcpy(scale, &nan, 4);
        return;
    }
    *scale = most / 448 < 0x1p-126f ? 1 : most / 448;
    for (int32_t d = 0; d < v.head_dim; d++) codes[d] = nearest_code(x[d] / *scale);
}

static void put_expected(KvView v, int32_t store, int part, int32_t head, const float *x)
{
    char *at = entry_at(v, store, part, head);
    if (v.dtype == DT_F8_E4M3) {
        put_codes(v, store, part, head, x);
        return;
    }
    for (int32_t d = 0; d < v.head_dim; d++) {
        if (v.dtype == DT_F32)
            ((float *)(void *)at)[d] = x[d];
        else
            ((uint16_t *)(void *)at)[d] = rounded(x[d]);
    }
}

static KvView open_view(Check *c, const Scene *s, DType t, int32_t heads, int32_t dim, size_t *bytes)
{
    KvView v = { NULL, t, heads, dim, s->block_size, s->max_blocks, s->block_table };
    *bytes = (size_t)s->n_blocks * 2 * (size_t)heads * (size_t)s->block_size * (size_t)(row_bytes(v) + scale_bytes(v));
    v.data = memset(check_alloc(c, *bytes), 0x5a, *bytes);
    return v;
}

static void check_store(Check *c, DType t, int32_t heads, int32_t dim, Fill fill)
{
    Scene s;
    size_t bytes;
    scene_open_random(&s, c, 40, 65, check_int(c, 1, 20));
    check_label(c, "kv_store %s heads=%d dim=%d rows=%d", dtype_name(t), heads, dim, s.batch.n_rows);
    KvView want = open_view(c, &s, t, heads, dim, &bytes), got = want;
    Tensor k = check_random_heads(c, fill, DT_F32, s.batch.n_rows, heads, dim);
    Tensor all = check_random(c, fill, DT_F32, s.batch.n_rows, 2 * heads * dim);
    Tensor v = tensor_heads(all.data, DT_F32, s.batch.n_rows, heads, dim, 2 * heads * dim, 2 * dim);
    for (int32_t r = 0; r < s.batch.n_rows; r++) {
        for (int32_t h = 0; h < heads; h++) {
            put_expected(want, s.store[r], 0, h, tensor_f32(k, r) + h * dim);
            put_expected(want, s.store[r], 1, h, tensor_f32(v, r) + h * 2 * dim);
        }
    }
    while (check_next_variant(c)) {
        got = open_view(c, &s, t, heads, dim, &bytes);
        c->ops->kv_store(c->stream, got, k, v, s.store);
        check_bytes(c, got.data, want.data, bytes);
    }
    check_done(c);
}

static void check_move(Check *c, DType t, int32_t heads, int32_t dim)
{
    enum { COMMITTED = 21, ROWS = 40 };
    Scene s;
    size_t bytes;
    scene_open(&s, c, &(SceneSeq){ COMMITTED, ROWS, false, TREE_RANDOM }, 1, check_int(c, 1, 20), 0);
    check_label(c, "kv_move %s heads=%d dim=%d block=%d", dtype_name(t), heads, dim, s.block_size);
    KvView before = open_view(c, &s, t, heads, dim, &bytes);
    for (size_t i = 0; i < bytes; i++) ((uint8_t *)before.data)[i] = (uint8_t)check_u32(c);
    int32_t path[MAX_DEPTH], from[MAX_DEPTH], to[MAX_DEPTH], n = scene_path(&s, ROWS - 1, path);
    for (int32_t i = 0; i < n; i++) {
        from[i] = COMMITTED + path[i];
        to[i] = COMMITTED + i;
    }
    size_t row = (size_t)dim * dtype_bytes(t);
    while (check_next_variant(c)) {
        KvView got = open_view(c, &s, t, heads, dim, &bytes);
        memcpy(got.data, before.data, bytes);
        c->ops->kv_move(c->stream, got, s.seqs[0].slot, from, to, n);
        for (int part = 0; part < 2; part++) {
            for (int32_t h = 0; h < heads; h++) {
                for (int32_t i = 0; i < n; i++)
                    check_bytes(c, entry_at(got, s.store[i], part, h), entry_at(before, s.store[path[i]], part, h),
                                row);
                for (int32_t j = 0; j < COMMITTED; j++)
                    check_bytes(c, entry_at(got, scene_store(&s, 0, j), part, h),
                                entry_at(before, scene_store(&s, 0, j), part, h), row);
                if (t != DT_F8_E4M3) continue;
                for (int32_t i = 0; i < n; i++)
                    check_bytes(c, scale_at(got, s.store[i], part, h), scale_at(before, s.store[path[i]], part, h), 4);
                for (int32_t j = 0; j < COMMITTED; j++)
                    check_bytes(c, scale_at(got, scene_store(&s, 0, j), part, h),
                                scale_at(before, scene_store(&s, 0, j), part, h), 4);
            }
        }
    }
    check_done(c);
}

static void bench_all(Check *c)
{
    Scene s;
    size_t bytes;
    scene_open(&s, c, &(SceneSeq){ 0, 512, true, TREE_CHAIN }, 1, 16, 0);
    KvView view = open_view(c, &s, DT_BF16, 8, 128, &bytes);
    Tensor k = check_random_heads(c, FILL_NORMAL, DT_F32, 512, 8, 128);
    check_label(c, "kv_store 512 rows, 8 heads of 128");
    check_work(c, 0, 512.0 * 8 * 128 * 2 * 6);
    while (check_next_variant(c)) CHECK_RUN(c, c->ops->kv_store(c->stream, view, k, k, s.store));
    if (!c->device) {
        view.dtype = DT_F8_E4M3;
        check_label(c, "kv_store 512 rows, 8 heads of 128, F8_E4M3");
        while (check_next_variant(c)) CHECK_RUN(c, c->ops->kv_store(c->stream, view, k, k, s.store));
    }
    check_done(c);

    Tensor x = check_random(c, FILL_NORMAL, DT_F32, 512, 1024), out = check_output(c, DT_BF16, 512, 1024);
    check_label(c, "round_rows [512, 1024]");
    check_work(c, 0, 512.0 * 1024 * 6);
    while (check_next_variant(c)) CHECK_RUN(c, c->ops->round_rows(c->stream, out, x));
    check_done(c);

    Weight table = check_weight(c, FILL_NORMAL, 8192, 1024, contract_for(MATH_BF16, 1024, 0));
    int32_t *token = check_alloc(c, 512 * 4), *seq = check_alloc(c, 512 * 4);
    for (int i = 0; i < 512; i++) token[i] = check_int(c, 0, 8191);
    for (int n = 1; n <= 512; n *= 512) {
        Batch batch = { .n_rows = n, .token = token, .seq = seq };
        Tensor rows = check_output(c, DT_F32, n, 1024);
        check_label(c, "embed %d rows of 1024", n);
        check_work(c, 0, n * 1024.0 * 4);
        while (check_next_variant(c)) CHECK_RUN(c, c->ops->embed(c->stream, rows, &table, &batch));
    }
    check_done(c);
}

int main(int argc, char **argv)
{
    static const int64_t sizes[] = { 1, 2, 15, 16, 17, 64, 130, 1024 };
    Check c;
    if (!check_begin(&c, argc, argv)) return 2;
    if (c.bench) {
        bench_all(&c);
        return 0;
    }
    for (int i = 0; i < COUNT(sizes); i++) {
        check_embed(&c, MATH_BF16, sizes[i], check_int(&c, 1, 40));
        check_embed(&c, MATH_F32, sizes[i], check_int(&c, 1, 40));
        check_round(&c, check_int(&c, 0, 40), sizes[i]);
        check_gather(&c, i & 1 ? DT_F32 : DT_BF16, sizes[i], check_int(&c, 0, 40));
        if (sizes[i] > 256) continue;
        check_store(&c, i & 1 ? DT_F32 : DT_BF16, check_int(&c, 1, 4), (int32_t)sizes[i], FILL_NASTY);
        check_move(&c, i & 1 ? DT_F32 : DT_BF16, check_int(&c, 1, 4), (int32_t)sizes[i]);
        if (c.device) continue; /* a device knows no caches of codes */
        static const Fill fills[] = { FILL_NORMAL, FILL_NASTY, FILL_ZERO, FILL_BROKEN };
        for (int f = 0; f < COUNT(fills); f++) check_store(&c, DT_F8_E4M3, check_int(&c, 1, 4), (int32_t)sizes[i], fills[f]);
        check_move(&c, DT_F8_E4M3, check_int(&c, 1, 4), (int32_t)sizes[i]);
    }
    return check_end(&c);
}
