/* See linear_fp8.h. The scalar panel function is the contract. */
#include "backend/cpu/linear_fp8.h"

#include "tensor/small_float.h"

#include <math.h>

enum { ROWS_BYTES = 512 << 10 }; /* input rows that stay in a core's cache while panels go by */

/* ---- layout ---- */

static int64_t chunks_of(int64_t n_in)
{
    return (n_in + FP8_CHUNK - 1) / FP8_CHUNK;
}

static size_t scale_bytes(int64_t n_in)
{
    return (size_t)(WEIGHT_PANEL + (chunks_of(n_in) + WEIGHT_PANEL - 1) / WEIGHT_PANEL * WEIGHT_PANEL) * sizeof(float);
}

bool fp8_takes(const QuantMatrix *m)
{
    const bool is_square = m->group_out % WEIGHT_PANEL == 0 && m->group_in == FP8_CHUNK;
    return m->n_in > 0 && m->n_in % FP8_WORD == 0 && (m->group_in >= m->n_in || is_square);
}

size_t fp8_panel_bytes(int64_t n_in)
{
    return scale_bytes(n_in) + (size_t)(n_in * WEIGHT_PANEL);
}

Fp8Panel fp8_panel_at(const Weight *w, int64_t panel)
{
    const char *at = (const char *)w->data + (size_t)panel * fp8_panel_bytes(w->n_in);
    return (Fp8Panel){ .out_scale = (const float *)at,
                       .chunk_scale = (const float *)at + WEIGHT_PANEL,
                       .codes = (const uint8_t *)at + scale_bytes(w->n_in),
                       .n_in = w->n_in,
                       .n_chunks = chunks_of(w->n_in),
                       .chunks_of_part = (chunks_of(w->n_in) + w->contract.k_parts - 1) / w->contract.k_parts };
}

/* Where input k of output n has its code. */
static size_t code_at(int64_t k, int n)
{
    return (size_t)(k / FP8_WORD * 64 + n / 4 * 16 + k % 4 / 2 * 8 + n % 4 * 2 + k % 2);
}

/* Words of four inputs of one output: the first two lie 8 bytes before the others. */
static void put_codes(uint8_t *panel, int n, const uint8_t *codes, int64_t n_in)
{
    uint8_t *to = panel + code_at(0, n);
    for (int64_t k = 0; k < n_in; k += FP8_WORD, to += 64) {
        memcpy(to, codes + k, 2);
        memcpy(to + 8, codes + k + 2, 2);
    }
}

static void put_scales(Fp8Panel *p, int n, const QuantMatrix *m, int64_t row)
{
    const int64_t per_row = (m->n_in + m->group_in - 1) / m->group_in, first = row / m->group_out * per_row;
    float *out_scale = (float *)p->out_scale, *chunk_scale = (float *)p->chunk_scale;
    out_scale[n] = per_row == 1 ? quant_scale_at(m, first) : 1.0f;
    for (int64_t c = 0; c < p->n_chunks; c++) chunk_scale[c] = per_row == 1 ? 1.0f : quant_scale_at(m, first + c);
}

void fp8_put_rows(Weight *w, int64_t first, const QuantMatrix *rows)
{
    CHECK(rows->format == QUANT_FP8 && rows->n_in == w->n_in && first + rows->n_out <= w->n_out);
    for (int64_t row = 0; row < rows->n_out; row++) {
        const int n = (int)((first + row) % WEIGHT_PANEL);
        Fp8Panel p = fp8_panel_at(w, (first + row) / WEIGHT_PANEL);
        put_codes((uint8_t *)p.codes, n, (const uint8_t *)rows->codes + row * rows->n_in, rows->n_in);
        put_scales(&p, n, rows, row);
    }
}

void fp8_get_row(const Weight *w, int64_t row, float *out)
{
    const Fp8Panel p = fp8_panel_at(w, row / WEIGHT_PANEL);
    const int n = (int)(row % WEIGHT_PANEL);
    for (int64_t k = 0; k < w->n_in; k++)
        out[k] = e4m3_to_f32(p.codes[code_at(k, n)]) * (p.out_scale[n] * p.chunk_scale[k / FP8_CHUNK]);
}

/* ---- panels ---- */

/* Parts of K become one, as they would appear like carries of a binary counter (linear.c). */
static void add_parts(float *sums, int n_parts, int n)
{
    for (int step = 1; step < n_parts; step *= 2)
        for (int part = 0; part < n_parts; part += 2 * step)
            for (int i = 0; i < n; i++) sums[part * n + i] += sums[(part + step) * n + i];
}

static void panel_rows(Fp8PanelFn fn, const LinearSpan *s, int64_t panel, Tensor x, int64_t first, int64_t end)
{
    const Weight *w = s->job->weight;
    const Fp8Panel p = fp8_panel_at(w, panel);
    for (int64_t row = first; row < end; row += FP8_MAX_ROWS) {
        float sums[MAX_K_PARTS * FP8_MAX_ROWS * WEIGHT_PANEL];
        int n_rows = (int)(end - row < FP8_MAX_ROWS ? end - row : FP8_MAX_ROWS), n = n_rows * WEIGHT_PANEL;
        memset(sums, 0, (size_t)(w->contract.k_parts * n) * sizeof *sums);
        fn(&p, x, row, n_rows, sums);
        add_parts(sums, w->contract.k_parts, n);
        linear_store_panel(s->job->out, row, panel * WEIGHT_PANEL, sums, n_rows);
    }
}

void linear_fp8_spans(Fp8PanelFn fn, const LinearSpan *spans, int n_spans, Tensor x)
{
    int64_t step = ROWS_BYTES / (x.shape[1] * (int64_t)sizeof(uint16_t)) / FP8_MAX_ROWS * FP8_MAX_ROWS;
    if (step < FP8_MAX_ROWS) step = FP8_MAX_ROWS;
    for (int64_t first = 0; first < x.shape[0]; first += step) {
        int64_t end = x.shape[0] - first < step ? x.shape[0] : first + step;
        for (const LinearSpan *s = spans; s < spans + n_spans; s++)
            for (int64_t panel = s->first; panel < s->end; panel++) panel_rows(fn, s, panel, x, first, end);
    }
}

/* ---- the contract ---- */

static void read_chunk(const Fp8Panel *p, int64_t first, int64_t n, float out[FP8_CHUNK][WEIGHT_PANEL])
{
    for (int64_t k = 0; k < n; k++)
        for (int i = 0; i < WEIGHT_PANEL; i++) out[k][i] = e4m3_to_f32(p->codes[code_at(first + k, i)]);
}

static void add_chunk(const uint16_t *x, const float w[FP8_CHUNK][WEIGHT_PANEL], int64_t n, const float scale[WEIGHT_PANEL], float *sum)
{
    float partial[WEIGHT_PANEL] = { 0 };
    for (int64_t k = 0; k < n; k += 2) {
        float even = bf16_to_f32(x[k]), odd = bf16_to_f32(x[k + 1]);
        for (int i = 0; i < WEIGHT_PANEL; i++) partial[i] = fmaf(even, w[k][i], fmaf(odd, w[k + 1][i], partial[i]));
    }
    for (int i = 0; i < WEIGHT_PANEL; i++) sum[i] = fmaf(partial[i], scale[i], sum[i]);
}

static void scalar_panel(const Fp8Panel *p, Tensor x, int64_t first, int n_rows, float *sums)
{
    float w[FP8_CHUNK][WEIGHT_PANEL], scale[WEIGHT_PANEL];
    for (int64_t c = 0; c < p->n_chunks; c++) {
        int64_t k = c * FP8_CHUNK, n = p->n_in - k < FP8_CHUNK ? p->n_in - k : FP8_CHUNK;
        read_chunk(p, k, n, w);
        for (int i = 0; i < WEIGHT_PANEL; i++) scale[i] = p->out_scale[i] * p->chunk_scale[c];
        for (int r = 0; r < n_rows; r++)
            add_chunk(tensor_bf16(x, first + r) + k, w, n, scale, sums + (c / p->chunks_of_part * n_rows + r) * WEIGHT_PANEL);
    }
}

void fp8_scalar_spans(const LinearSpan *spans, int n_spans, Tensor x, void *scratch)
{
    linear_fp8_spans(scalar_panel, spans, n_spans, x);
}
