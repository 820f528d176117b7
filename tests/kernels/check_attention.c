/* attention: every variant against the scalar table by bits; the table against softmax in double; every row of
 * a batch against the same row alone, over a cache of other block size; the speed. */
#include "check.h"
#include "scene.h"
#include "tensor/small_float.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct Heads {
    int32_t n_kv, group, dim;
} Heads;

/* A layer's cache of which only the scene's entries are written. */
typedef struct Cache {
    KvView view;
    size_t bytes;
} Cache;

static float *value_scratch(Check *c, int64_t n)
{
    return check_alloc(c, (size_t)n * sizeof(float));
}

static Cache open_cache(Check *c, const Scene *s, Heads h, DType dtype)
{
    size_t row = dtype == DT_F8_E4M3 ? (size_t)(h.dim + 3) / 4 * 4 + 4 : (size_t)h.dim * dtype_bytes(dtype);
    Cache cache = { .bytes = (size_t)s->n_blocks * 2 * h.n_kv * s->block_size * row };
    cache.view =
        (KvView){ check_alloc(c, cache.bytes), dtype, h.n_kv, h.dim, s->block_size, s->max_blocks, s->block_table };
    memset(cache.view.data, 0xff, cache.bytes);
    return cache;
}

/* Element d of the key (part 0) or value (part 1) of an entry, by the layout of kv_layout.h. */
static char *element(const Cache *cache, int32_t store, int part, int32_t head, int32_t d)
{
    const KvView *v = &cache->view;
    int64_t block = store / v->block_size, place = store % v->block_size, row = v->head_dim * (int64_t)dtype_bytes(v->dtype);
    int64_t in_block = v->block_size * row;
    if (v->dtype == DT_F8_E4M3) {
        row = (v->head_dim + 3) / 4 * 4;
        in_block = v->block_size * (row + 4);
    }
    return (char *)v->data + ((block * 2 + part) * v->n_heads + head) * in_block + place * row + d * (int64_t)dtype_bytes(v->dtype);
}

/* F8_E4M3: the scale of a row lies behind the rows of its block. */
static float *scale_of(const Cache *cache, int32_t store, int part, int32_t head)
{
    int32_t size = cache->view.block_size, place = store % size;
    char *rows = element(cache, store - place, part, head, 0);
    return (float *)(void *)(rows + size * ((cache->view.head_dim + 3) / 4 * 4)) + place;
}

static double get(const Cache *cache, int32_t store, int part, int32_t head, int32_t d)
{
    const char *e = element(cache, store, part, head, d);
    switch (cache->view.dtype) {
    case DT_F32: return *(const float *)(const void *)e;
    case DT_BF16: return bf16_to_f32(*(const uint16_t *)(const void *)e);
    default: return (double)e4m3_to_f32(*(const uint8_t *)e) * *scale_of(cache, store, part, head);
    }
}

/* Codes of all numbers; scales that make them about as large as check_value()'s. */
static void fill_codes(Check *c, const Cache *cache, int32_t store, int part, int32_t head, Fill fill)
{
    uint8_t *codes = (uint8_t *)element(cache, store, part, head, 0);
    for (int32_t d = 0; d < cache->view.head_dim; d++) {
        do codes[d] = (uint8_t)check_u32(c); while (e4m3_is_nan(codes[d]));
    }
    float scale = fabsf(check_value(c, fill)) / 150;
    *scale_of(cache, store, part, head) = scale < 0x1p-126f ? 1 : scale;
}

static void fill_entry(Check *c, const Cache *cache, int32_t store, Fill fill)
{
    for (int part = 0; part < 2; part++) {
        for (int32_t h = 0; h < cache->view.n_heads; h++) {
            Tensor row = tensor_1d(element(cache, store, part, h, 0), cache->view.dtype, cache->view.head_dim);
            if (cache->view.dtype == DT_F8_E4M3) fill_codes(c, cache, store, part, h, fill);
            else check_fill(c, row, fill);
        }
    }
}

static void fill_cache(Check *c, const Scene *s, const Cache *cache, Fill fill)
{
    for (int32_t r = 0; r < s->batch.n_rows; r++) {
        if (s->seq[r] < 0) continue;
        const BatchSeq *q = &s->seqs[s->seq[r]];
        fill_entry(c, cache, s->store[r], fill);
        for (int32_t j = 0; r == q->first_row && j < q->n_committed; j++)
            fill_entry(c, cache, scene_store(s, r, j), fill);
    }
}

/* q as the query half of a doubled projection: heads 2 * dim apart. */
static Tensor open_queries(Check *c, int64_t rows, Heads h, Fill fill)
{
    int64_t heads = h.n_kv * h.group, wide = 2 * h.dim;
    Tensor q = tensor_heads(value_scratch(c, rows * heads * wide), DT_F32, rows, heads, h.dim, heads * wide, wide);
    check_fill(c, tensor_2d(q.data, DT_F32, rows, heads * wide), FILL_BROKEN);
    check_fill(c, q, fill);
    return q;
}

/* ---- the oracle ---- */

static void check_row_oracle(Check *c, const Scene *s, const Cache *cache, Tensor q, Tensor out, int32_t row,
                             int32_t head, float scale)
{
    int32_t dim = cache->view.head_dim, kv = head / (int32_t)(q.shape[1] / cache->view.n_heads);
    int32_t n = s->index[row] + 1;
    int32_t first = s->batch.first_key ? s->batch.first_key[row] : 0;
    const float *query = tensor_f32(q, row) + head * q.stride[1];
    double largest = -INFINITY, sum = 0, worst = 0, size = 0, x[4096];
    for (int32_t j = first; j < n; j++) {
        x[j] = 0;
        for (int32_t d = 0; d < dim; d++) x[j] += (double)query[d] * get(cache, scene_store(s, row, j), 0, kv, d);
        x[j] *= scale;
        largest = fmax(largest, x[j]);
    }
    for (int32_t j = first; j < n; j++) sum += exp(x[j] - largest);
    for (int32_t d = 0; d < dim; d++) {
        double o = 0, most = 0;
        for (int32_t j = first; j < n; j++) {
            double v = get(cache, scene_store(s, row, j), 1, kv, d);
            o += exp(x[j] - largest) / sum * v;
            most = fmax(most, fabs(v));
        }
        double got = tensor_f32(out, row)[head * out.stride[1] + d];
        worst = fmax(worst, fabs(got - o));
        size = fmax(size, most);
    }
    /* Scores of about 10 carry an error of some 1e-6 each, which moves weights by that much. A device that rounds queries
     * and weights to bf16 is off by some 2^-9 of each. */
    bool is_rounded = c->device && cache->view.dtype == DT_BF16;
    check_that(c, worst <= (is_rounded ? 1e-2 : 2e-5) * size, "far from softmax in double");
}

static void check_oracle(Check *c, const Scene *s, const Cache *cache, Tensor q, Tensor out, float scale)
{
    for (int i = 0; i < 6; i++) {
        int32_t row = check_int(c, 0, s->batch.n_rows - 1), head = check_int(c, 0, (int)q.shape[1] - 1);
        if (s->seq[row] >= 0) check_row_oracle(c, s, cache, q, out, row, head, scale);
    }
}

/* ---- a row alone ---- */

/* The row as the only one of a batch: everything before it is committed, in blocks of another size. */
static void check_alone(Check *c, const Scene *s, const Cache *cache, Tensor q, Tensor want, int32_t row, float scale)
{
    Heads h = { cache->view.n_heads, (int32_t)(q.shape[1] / cache->view.n_heads), cache->view.head_dim };
    Scene alone;
    scene_open(&alone, c, &(SceneSeq){ s->index[row], 1, true, TREE_CHAIN }, 1, check_int(c, 1, 40), 0);
    Cache copy = open_cache(c, &alone, h, cache->view.dtype);
    size_t bytes = (size_t)h.dim * dtype_bytes(cache->view.dtype);
    for (int32_t j = 0; j <= s->index[row]; j++) {
        int32_t to = scene_store(&alone, 0, j), from = scene_store(s, row, j);
        for (int part = 0; part < 2; part++) {
            for (int32_t k = 0; k < h.n_kv; k++) {
                memcpy(element(&copy, to, part, k, 0), element(cache, from, part, k, 0), bytes);
                if (copy.view.dtype == DT_F8_E4M3) *scale_of(&copy, to, part, k) = *scale_of(cache, from, part, k);
            }
        }
    }
    Tensor q_row = q, out = check_output_heads(c, DT_F32, 1, q.shape[1], h.dim), want_row = tensor_rows(want, 1);
    q_row.data = tensor_f32(q, row);
    q_row.shape[0] = 1;
    want_row.data = tensor_f32(want, row);
    if (s->batch.first_key) alone.batch.first_key = s->batch.first_key + row;
    c->ops->attention(c->stream, out, q_row, copy.view, &alone.batch, alone.store, scale);
    check_bits(c, out, want_row);
}

/* ---- checks ---- */

static void check_scene(Check *c, const Scene *s, Heads h, DType dtype, Fill fill)
{
    int64_t heads = h.n_kv * h.group;
    float scale = 1.0f / sqrtf((float)h.dim);
    check_label(c, "attention %s kv=%d group=%d dim=%d block=%d rows=%d seqs=%d committed=%d", dtype_name(dtype),
                h.n_kv, h.group, h.dim, s->block_size, s->batch.n_rows, s->n_seqs, s->seqs[0].n_committed);
    Cache cache = open_cache(c, s, h, dtype);
    fill_cache(c, s, &cache, fill);
    Tensor q = open_queries(c, s->batch.n_rows, h, fill);
    Tensor want = check_output_heads(c, DT_F32, s->batch.n_rows, heads, h.dim);
    Tensor got = check_output_heads(c, DT_F32, s->batch.n_rows, heads, h.dim);
    check_clear(want);
    c->reference->attention(c->reference_stream, want, q, cache.view, &s->batch, s->store, scale);
    if (fill == FILL_NORMAL && s->batch.n_rows) check_oracle(c, s, &cache, q, want, scale);
    while (check_next_variant(c)) {
        uint64_t *counted = &stream_row_counts(c->stream)->attention[s->seqs[0].n_rows], before = *counted;
        check_clear(got);
        c->ops->attention(c->stream, got, q, cache.view, &s->batch, s->store, scale);
        check_that(c, *counted > before, "rows were not counted");
        check_bits(c, got, want); /* padding rows keep their pattern in both */
        int32_t row = check_int(c, 0, s->batch.n_rows - 1);
        if (s->seq[row] >= 0) check_alone(c, s, &cache, q, got, row, scale);
    }
    check_done(c);
}

/* A device knows no caches of codes. */
static DType codes_or(Check *c, DType otherwise, bool is_turn)
{
    return is_turn && !c->device ? DT_F8_E4M3 : otherwise;
}

static Heads random_heads(Check *c)
{
    static const int32_t dims[] = { 16, 32, 48, 64, 80, 96, 128, 256, 24, 7 };
    return (Heads){ check_int(c, 1, 3), check_int(c, 1, 8), dims[check_int(c, 0, COUNT(dims) - 1)] };
}

static void check_random_scenes(Check *c)
{
    static const int32_t blocks[] = { 1, 3, 16, 16, 32, 64 };
    static const Fill fills[] = { FILL_NASTY, FILL_NORMAL, FILL_NORMAL, FILL_BROKEN, FILL_NORMAL };
    for (int i = 0; i < 45; i++) {
        Scene s;
        scene_open_random(&s, c, i % 4 ? 90 : 1100, 65, blocks[check_int(c, 0, COUNT(blocks) - 1)]);
        check_scene(c, &s, random_heads(c), codes_or(c, i % 3 ? DT_BF16 : DT_F32, i % 3 == 2), fills[i % COUNT(fills)]);
    }
}

/* Context lengths around the ends of tiles and splits, one row and a tree across the end. */
static void check_edges(Check *c)
{
    static const int32_t committed[] = { 0,   1,   14,  15,  16,   17,   31,   32,   33,  495,
                                         510, 511, 512, 513, 1000, 1023, 1024, 1025, 1600 };
    for (int i = 0; i < COUNT(committed); i++) {
        Scene s;
        Heads h = { 2, 1 + i % 3, i % 2 ? 64 : 128 };
        SceneSeq seqs[] = { { committed[i], 33, false, i % 2 ? TREE_RANDOM : TREE_CHAIN },
                            { committed[i], 1, true, TREE_CHAIN } };
        scene_open(&s, c, seqs, 2, 16, 1);
        check_scene(c, &s, h, codes_or(c, DT_BF16, i / 2 % 2), FILL_NORMAL);
        scene_open(&s, c, seqs + 1, 1, 16, 0);
        check_scene(c, &s, h, codes_or(c, DT_BF16, i % 2), FILL_NORMAL);
        scene_open(&s, c, &(SceneSeq){ committed[i], 150, true, TREE_CHAIN }, 1, 16, 0);
        check_scene(c, &s, h, codes_or(c, DT_F32, i % 2 == 0), FILL_NORMAL);
    }
}

/* Windows: rows begin anywhere before themselves, near one another as a window's do or not. What lies before a row's
 * first key is NaN for rows that all begin late. */
static void check_windows(Check *c)
{
    static const int32_t windows[] = { 1, 2, 5, 16, 31, 33, 100, 512, 700 };
    for (int i = 0; i < 40; i++) {
        Scene s;
        scene_open_random(&s, c, i % 3 ? 90 : 1600, 65, 16);
        int32_t *first = check_alloc(c, (size_t)s.batch.n_rows * sizeof *first + 1);
        int32_t window = windows[check_int(c, 0, COUNT(windows) - 1)];
        for (int32_t r = 0; r < s.batch.n_rows; r++) {
            first[r] = s.index[r] + 1 > window ? s.index[r] + 1 - window : 0;
            if (i % 4 == 0 && s.seq[r] >= 0) first[r] = check_int(c, 0, s.index[r]);
        }
        s.batch.first_key = first;
        check_scene(c, &s, random_heads(c), codes_or(c, i % 2 ? DT_BF16 : DT_F32, i % 3 == 0), i % 5 ? FILL_NORMAL : FILL_BROKEN);
    }
}

/* Contexts so long that the splits of one row are spread over the workers, and that groups of rows shrink to what
 * a worker's scratch holds. */
static void check_long(Check *c)
{
    Scene s;
    SceneSeq seqs[] = { { 9000, 17, false, TREE_RANDOM }, { 30000, 1, true, TREE_CHAIN }, { 3, 5, true, TREE_CHAIN } };
    scene_open(&s, c, seqs, 3, 16, 0);
    check_scene(c, &s, (Heads){ 1, 2, 32 }, DT_BF16, FILL_NASTY);
    scene_open(&s, c, seqs + 1, 1, 16, 0);
    check_scene(c, &s, (Heads){ 1, 2, 32 }, codes_or(c, DT_BF16, true), FILL_NASTY);
    scene_open(&s, c, &(SceneSeq){ 21000, 49, false, TREE_RANDOM }, 1, 16, 0);
    int32_t *first = check_alloc(c, (size_t)s.batch.n_rows * sizeof *first);
    for (int32_t r = 0; r < s.batch.n_rows; r++) first[r] = s.index[r] - check_int(c, 0, 1500);
    s.batch.first_key = first; /* partials are counted from position 0 on, so the test need not take long */
    check_scene(c, &s, (Heads){ 1, 1, 512 }, DT_BF16, FILL_NASTY);
}

/* Contexts around the ends of tiles and spans of a device, groups of any size, trees whose rows share what they read. */
static void check_shared(Check *c)
{
    static const int32_t committed[] = { 0, 30, 47, 48, 63, 127, 159, 160, 161, 1055, 1056, 1071, 2100 };
    static const Heads heads[] = { { 2, 4, 128 }, { 1, 6, 256 }, { 2, 2, 64 }, { 1, 8, 128 }, { 1, 1, 64 }, { 1, 16, 64 }, { 1, 3, 128 } };
    for (int i = 0; i < COUNT(committed); i++) {
        Scene s;
        SceneSeq seqs[] = { { committed[i], i % 3 ? 16 : 40, false, i % 2 ? TREE_BUSHY : TREE_RANDOM }, { committed[COUNT(committed) - 1 - i], 3, true, TREE_CHAIN } };
        scene_open(&s, c, seqs, 2, 16, i % 2);
        check_scene(c, &s, heads[i % COUNT(heads)], DT_BF16, i % 5 == 4 ? FILL_NASTY : FILL_NORMAL);
        scene_open(&s, c, &(SceneSeq){ committed[i], 70, true, TREE_CHAIN }, 1, 16, 0);
        check_scene(c, &s, heads[(i + 3) % COUNT(heads)], DT_BF16, FILL_NORMAL);
    }
}

/* ---- speed ---- */

static void bench(Check *c, const char *what, SceneSeq *seqs, int n_seqs, Heads h, DType dtype)
{
    Scene s;
    scene_open(&s, c, seqs, n_seqs, 16, 0);
    Cache cache = open_cache(c, &s, h, dtype);
    memset(cache.view.data, 0, cache.bytes); /* speed does not depend on values */
    Tensor q = open_queries(c, s.batch.n_rows, h, FILL_NORMAL);
    Tensor out = check_output_heads(c, DT_F32, s.batch.n_rows, h.n_kv * h.group, h.dim);
    double pairs = 0, keys = 0;
    for (int32_t r = 0; r < s.batch.n_rows; r++) pairs += s.index[r] + 1;
    for (int i = 0; i < n_seqs; i++) keys += seqs[i].n_committed + seqs[i].n_rows;
    check_label(c, "%s kv=%d group=%d dim=%d %s", what, h.n_kv, h.group, h.dim, dtype_name(dtype));
    check_work(c, pairs * h.n_kv * h.group * h.dim * 4, keys * h.n_kv * h.dim * 2 * (double)dtype_bytes(dtype));
    while (check_next_variant(c)) {
        if (c->variant == 0 && pairs > 20000) continue; /* minutes */
        CHECK_RUN(c, c->ops->attention(c->stream, out, q, cache.view, &s.batch, s.store, 0.1f));
    }
    check_done(c);
}

static void bench_all(Check *c)
{
    const Heads qwen3 = { 8, 2, 128 }, qwen35 = { 2, 4, 256 }, nano = { 2, 2, 64 };
    bench(c, "prefill 512", &(SceneSeq){ 0, 512, true, TREE_CHAIN }, 1, qwen3, DT_BF16);
    bench(c, "prefill 512", &(SceneSeq){ 0, 512, true, TREE_CHAIN }, 1, qwen3, DT_F32);
    bench(c, "prefill 512", &(SceneSeq){ 0, 512, true, TREE_CHAIN }, 1, qwen35, DT_BF16);
    bench(c, "prefill 512", &(SceneSeq){ 0, 512, true, TREE_CHAIN }, 1, nano, DT_BF16);
    bench(c, "prefill 512 at 8000", &(SceneSeq){ 8000, 512, true, TREE_CHAIN }, 1, qwen3, DT_BF16);
    bench(c, "decode at 160", &(SceneSeq){ 159, 1, true, TREE_CHAIN }, 1, qwen3, DT_BF16);
    bench(c, "decode at 160", &(SceneSeq){ 159, 1, true, TREE_CHAIN }, 1, nano, DT_BF16);
    bench(c, "decode at 16000", &(SceneSeq){ 15999, 1, true, TREE_CHAIN }, 1, qwen3, DT_BF16);
    if (!c->device) {
        bench(c, "prefill 512", &(SceneSeq){ 0, 512, true, TREE_CHAIN }, 1, qwen3, DT_F8_E4M3);
        bench(c, "decode at 16000", &(SceneSeq){ 15999, 1, true, TREE_CHAIN }, 1, qwen3, DT_F8_E4M3);
        bench(c, "tree 64 at 160", &(SceneSeq){ 144, 64, false, TREE_RANDOM }, 1, qwen3, DT_F8_E4M3);
    }
    bench(c, "decode at 16000", &(SceneSeq){ 15999, 1, true, TREE_CHAIN }, 1, (Heads){ 1, 1, 128 }, DT_BF16);
    bench(c, "chain 16 at 160", &(SceneSeq){ 144, 16, false, TREE_CHAIN }, 1, qwen3, DT_BF16);
    bench(c, "tree 64 at 160", &(SceneSeq){ 144, 64, false, TREE_RANDOM }, 1, qwen3, DT_BF16);
    bench(c, "tree 64 at 8000", &(SceneSeq){ 8000, 64, false, TREE_RANDOM }, 1, qwen3, DT_BF16);
}

int main(int argc, char **argv)
{
    Check c;
    if (!check_begin(&c, argc, argv)) return 2;
    if (c.bench) {
        bench_all(&c);
        return 0;
    }
    check_edges(&c);
    check_random_scenes(&c);
    check_windows(&c);
    check_long(&c);
    check_shared(&c);
    return check_end(&c);
}
