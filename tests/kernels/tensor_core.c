/* See tensor_core.h. One product: 16 products and the accumulator are aligned to the largest exponent, cut below 25 bits,
 * added exactly, and the sum is cut to float32. Everything here is integers, so the thread's numeric mode does not matter. */
#include "tensor_core.h"

#include "backend/cpu/kv.h"
#include "base/fmath.h"
#include "base/memory.h"

#include <math.h>

enum { PIECE = 32, PRODUCT = 16, KEPT = 25, GRAIN = 16, TILE = 128, SPAN = 1024, MAX_DIM = 256 };

/* mantissa * 2^exponent; a denormal has the exponent of the smallest normal number, as a tensor core aligns it. */
typedef struct Part {
    int64_t mantissa;
    int     exponent; /* of the leading bit's place */
} Part;

static Part part_of(uint32_t sign, uint32_t biased, uint32_t fraction, int bits)
{
    int64_t m = (int64_t)(fraction | (biased ? 1u << bits : 0));
    return (Part){ sign ? -m : m, (biased ? (int)biased : 1) - 127 };
}

static Part part_of_bf16(uint16_t x)
{
    return part_of(x >> 15, x >> 7 & 0xff, x & 0x7f, 7);
}

static bool is_finite_bf16(uint16_t x)
{
    return (x >> 7 & 0xff) != 0xff;
}

/* Cut towards zero: sum * 2^unit. */
static float cut(int64_t sum, int unit)
{
    uint64_t size = (uint64_t)(sum < 0 ? -sum : sum), m;
    if (size == 0) return 0.0f;
    int bits = 64 - __builtin_clzll(size), e = bits - 1 + unit;
    uint32_t u = sum < 0 ? 0x80000000u : 0;
    if (e > 127) return f_of_bits(u | 0x7f800000u);
    int shift = e < -126 ? -149 - unit : bits - 24; /* to units of the result's last bit */
    m = shift > 63 ? 0 : shift >= 0 ? size >> shift : size << -shift;
    if (e < -126) return f_of_bits(u | (uint32_t)m);
    return f_of_bits(u | ((uint32_t)(e + 127) << 23) | ((uint32_t)m & 0x7fffffu));
}

static int64_t aligned(Part p, int bits, int top)
{
    int shift = KEPT - bits - (top - p.exponent);
    int64_t size = p.mantissa < 0 ? -p.mantissa : p.mantissa;
    size = shift >= 0 ? size << shift : shift < -63 ? 0 : size >> -shift;
    return p.mantissa < 0 ? -size : size;
}

static double exact(uint16_t x)
{
    if (!is_finite_bf16(x)) return bf16_to_f32(x);
    Part p = part_of_bf16(x);
    return ldexp((double)p.mantissa, p.exponent - 7);
}

/* Infinities and NaN decide alone; a denormal times infinity is infinite. */
static float broken_product(float acc, const uint16_t *x, const uint16_t *w)
{
    double sum = isfinite(acc) ? 0.0 : acc;
    for (int i = 0; i < PRODUCT; i++)
        if (!is_finite_bf16(x[i]) || !is_finite_bf16(w[i])) sum += exact(x[i]) * exact(w[i]);
    return (float)sum;
}

float tensor_core_product(float acc, const uint16_t *x, const uint16_t *w)
{
    uint32_t u = f_bits(acc);
    Part term[PRODUCT + 1] = { part_of(u >> 31, u >> 23 & 0xff, u & 0x7fffff, 23) };
    int top = term[0].mantissa ? term[0].exponent : -1000;
    bool is_finite = (u >> 23 & 0xff) != 0xff;
    for (int i = 0; i < PRODUCT; i++) {
        Part a = part_of_bf16(x[i]), b = part_of_bf16(w[i]);
        is_finite = is_finite && is_finite_bf16(x[i]) && is_finite_bf16(w[i]);
        term[i + 1] = (Part){ a.mantissa * b.mantissa, a.exponent + b.exponent };
        if (term[i + 1].mantissa && term[i + 1].exponent > top) top = term[i + 1].exponent;
    }
    if (!is_finite) return broken_product(acc, x, w);
    int64_t sum = term[0].mantissa ? aligned(term[0], 23, top) : 0;
    for (int i = 1; i <= PRODUCT; i++)
        if (term[i].mantissa) sum += aligned(term[i], 14, top);
    return cut(sum, top - KEPT);
}

/* ---- linear ---- */

static int parts_of(int64_t n_in)
{
    int parts = 8;
    while (parts > 1 && n_in % (parts * PIECE) != 0) parts /= 2;
    return parts;
}

float tensor_core_dot(Tensor x, int64_t row, const float *w, int64_t n_in, bool in_parts)
{
    int n_parts = in_parts ? parts_of(n_in) : 1;
    int64_t pieces = (n_in + PIECE - 1) / PIECE, per_part = pieces / n_parts * PIECE;
    float part[8] = { 0 };
    for (int p = 0; p < n_parts; p++) {
        for (int64_t k = p * per_part; k < (p + 1) * per_part; k += PRODUCT) {
            uint16_t xs[PRODUCT] = { 0 }, ws[PRODUCT] = { 0 };
            for (int i = 0; i < PRODUCT && k + i < n_in; i++) {
                xs[i] = tensor_bf16(x, row)[k + i];
                ws[i] = (uint16_t)(f_bits(w[k + i]) >> 16);
            }
            part[p] = tensor_core_product(part[p], xs, ws);
        }
    }
    for (int step = 1; step < n_parts; step *= 2)
        for (int p = 0; p + step < n_parts; p += 2 * step) part[p] = part[p] + part[p + step];
    return part[0];
}

/* ---- attention ---- */

typedef struct Sum {
    float m, l, o[MAX_DIM];
} Sum;

typedef struct Query {
    const KvView    *view;
    const uint16_t **key, **value; /* by position */
    const float     *q;
    uint16_t         rounded[MAX_DIM];
    int32_t          dim;
    float            scale;
} Query;

static void clear(Sum *s)
{
    *s = (Sum){ .m = -F_INF };
}

static void merge(Sum *to, const Sum *s, int32_t dim)
{
    float m = s->m > to->m ? s->m : to->m;
    float old = to->m == -F_INF ? 0.0f : f_exp(to->m - m), fresh = s->m == -F_INF ? 0.0f : f_exp(s->m - m);
    to->l = fmaf(s->l, fresh, to->l * old);
    for (int32_t d = 0; d < dim; d++) to->o[d] = fmaf(s->o[d], fresh, to->o[d] * old);
    to->m = m;
}

static void add_tile(Sum *span, const Query *q, int32_t first, int32_t end)
{
    Sum s;
    float x[TILE];
    uint16_t p[TILE] = { 0 }, ones[PRODUCT], column[PRODUCT];
    int32_t base = first / TILE * TILE;
    clear(&s);
    for (int32_t j = first; j < end; j++) {
        float sum = 0;
        for (int32_t d = 0; d < q->dim; d += PRODUCT) sum = tensor_core_product(sum, q->rounded + d, q->key[j] + d);
        x[j - base] = sum * q->scale;
        s.m = x[j - base] > s.m ? x[j - base] : s.m;
    }
    for (int32_t j = first; j < end; j++) p[j - base] = f32_to_bf16(f_exp(x[j - base] - s.m));
    for (int i = 0; i < PRODUCT; i++) ones[i] = 0x3f80;
    for (int32_t i = 0; i < TILE; i += PRODUCT) s.l = tensor_core_product(s.l, p + i, ones);
    for (int32_t d = 0; d < q->dim; d++)
        for (int32_t i = (first - base) / PRODUCT * PRODUCT; base + i < end; i += PRODUCT) {
            for (int k = 0; k < PRODUCT; k++) {
                int32_t j = base + i + k;
                column[k] = j >= first && j < end ? q->value[j][d] : 0;
            }
            s.o[d] = tensor_core_product(s.o[d], p + i, column);
        }
    merge(span, &s, q->dim);
}

/* One by one, as on the CPU. */
static void add_tail(Sum *all, const Query *q, int32_t first, int32_t end)
{
    Sum s;
    float x[TILE], lane[LANES];
    clear(&s);
    for (int32_t j = first; j < end; j++) {
        for (int i = 0; i < LANES; i++) lane[i] = 0;
        for (int32_t d = 0; d < q->dim; d++) lane[d % LANES] = fmaf(q->q[d], bf16_to_f32(q->key[j][d]), lane[d % LANES]);
        for (int w = LANES / 2; w > 0; w /= 2)
            for (int i = 0; i < w; i++) lane[i] = lane[i] + lane[i + w];
        x[j - first] = lane[0] * q->scale;
        s.m = x[j - first] > s.m ? x[j - first] : s.m;
    }
    for (int i = 0; i < LANES; i++) lane[i] = 0;
    for (int32_t j = first; j < end; j++) {
        float p = f_exp(x[j - first] - s.m);
        lane[j % LANES] = lane[j % LANES] + p;
        for (int32_t d = 0; d < q->dim; d++) s.o[d] = fmaf(p, bf16_to_f32(q->value[j][d]), s.o[d]);
    }
    for (int w = LANES / 2; w > 0; w /= 2)
        for (int i = 0; i < w; i++) lane[i] = lane[i] + lane[i + w];
    s.l = lane[0];
    merge(all, &s, q->dim);
}

static void attend(float *out, const Query *q, int32_t first_key, int32_t index)
{
    int32_t before = index + 1 - MAX_DEPTH, body = before > 0 ? before / GRAIN * GRAIN : 0;
    Sum all, span;
    clear(&all);
    clear(&span);
    for (int32_t first = first_key; first < body;) {
        int32_t end = (first / TILE + 1) * TILE;
        end = end < body ? end : body;
        add_tile(&span, q, first, end);
        first = end;
        if (first % SPAN != 0 && first < body) continue;
        merge(&all, &span, q->dim);
        clear(&span);
    }
    add_tail(&all, q, body > first_key ? body : first_key, index + 1);
    for (int32_t d = 0; d < q->dim; d++) out[d] = all.o[d] / all.l;
}

static int32_t store_of(const KvView *view, const Batch *b, const int32_t *store, int32_t row, int32_t j)
{
    const BatchSeq *seq = &b->seqs[b->seq[row]];
    if (seq->certain || j < seq->n_committed) return kv_store_at(view, seq->slot, j);
    return store[b->path[(int64_t)row * MAX_DEPTH + j - seq->n_committed]];
}

bool tensor_core_attends(Tensor q, const KvView *view)
{
    int32_t dim = view->head_dim;
    return view->dtype == DT_BF16 && (dim == 64 || dim == 128 || dim == 256) && q.shape[1] / view->n_heads <= 16 && q.stride[0] % 2 == 0 &&
           q.stride[1] % 2 == 0;
}

static void attend_head(Tensor out, Tensor q, Query *query, int32_t row, int32_t head, const int32_t *stores, int32_t first_key, int32_t index)
{
    int32_t kv_head = head / (int32_t)(q.shape[1] / query->view->n_heads);
    query->q = tensor_f32(q, row) + head * q.stride[1];
    for (int32_t d = 0; d < query->dim; d++) query->rounded[d] = f32_to_bf16(query->q[d]);
    for (int32_t j = first_key; j <= index; j++) {
        query->key[j] = kv_key(query->view, stores[j], kv_head);
        query->value[j] = kv_value(query->view, stores[j], kv_head);
    }
    attend(tensor_f32(out, row) + head * out.stride[1], query, first_key, index);
}

void tensor_core_attention(Tensor out, Tensor q, KvView view, const Batch *b, const int32_t *store, float scale)
{
    for (int32_t r = 0; r < b->n_rows; r++) {
        if (b->seq[r] < 0) continue;
        int32_t n = b->index[r] + 1, first_key = batch_first_key(b, r);
        Query query = { .view = &view, .dim = view.head_dim, .scale = scale };
        query.key = mem_alloc_array((size_t)n, sizeof *query.key);
        query.value = mem_alloc_array((size_t)n, sizeof *query.value);
        int32_t *stores = mem_alloc_array((size_t)n, sizeof *stores);
        CHECK(query.key && query.value && stores);
        for (int32_t j = first_key; j < n; j++) stores[j] = store_of(&view, b, store, r, j);
        for (int32_t h = 0; h < q.shape[1]; h++) attend_head(out, q, &query, r, h, stores, first_key, n - 1);
        mem_free(stores);
        mem_free(query.value);
        mem_free(query.key);
    }
}
