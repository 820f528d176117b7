/* See dflash_oracle.h. */
#include "models/dflash_oracle.h"

#include "base/memory.h"

#include <math.h>
#include <stdio.h>

static double *numbers(size_t n)
{
    double *x = mem_alloc_array(n, sizeof *x);
    CHECK(x);
    return x;
}

/* Element i of a tensor of the checkpoint. */
static double at(const TestTensor *t, size_t i)
{
    float x;
    dtype_to_f32(&x, (const char *)t->data + i * dtype_bytes(t->entry.dtype), t->entry.dtype, 1);
    return (double)x;
}

static TestTensor *tensor(const Oracle *o, int32_t layer, const char *name)
{
    char full[160];
    if (layer < 0) snprintf(full, sizeof full, "%s", name);
    else snprintf(full, sizeof full, "layers.%d.%s", layer, name);
    return test_checkpoint_find(o->checkpoint, full);
}

/* y = W x, plus a bias if there is one. */
static void multiply(const Oracle *o, int32_t layer, const char *name, const double *x, double *y)
{
    const TestTensor *w = tensor(o, layer, name);
    for (int64_t r = 0; r < w->entry.shape[0]; r++) {
        y[r] = 0;
        for (int64_t c = 0; c < w->entry.shape[1]; c++) y[r] += at(w, (size_t)(r * w->entry.shape[1] + c)) * x[c];
    }
}

static void multiply_biased(const Oracle *o, int32_t layer, const char *letter, const double *x, double *y)
{
    char name[64];
    snprintf(name, sizeof name, "self_attn.%s_proj.weight", letter);
    multiply(o, layer, name, x, y);
    if (!o->form.has_bias) return;
    snprintf(name, sizeof name, "self_attn.%s_proj.bias", letter);
    const TestTensor *b = tensor(o, layer, name);
    for (int64_t i = 0; i < b->entry.shape[0]; i++) y[i] += at(b, (size_t)i);
}

static void norm(const Oracle *o, int32_t layer, const char *name, const double *x, double *y, int32_t n)
{
    const TestTensor *w = tensor(o, layer, name);
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += x[i] * x[i];
    double factor = 1 / sqrt(sum / n + o->eps);
    for (int32_t i = 0; i < n; i++) y[i] = x[i] * factor * at(w, (size_t)i);
}

/* ---- rope ---- */

static double inverse_frequency(const Oracle *o, int32_t pair)
{
    double dim = o->head_dim, plain = pow(o->theta, -2.0 * pair / dim);
    if (o->form.yarn_factor == 0) return plain;
    double low = floor(dim * log(o->form.yarn_original / (32 * 2 * M_PI)) / (2 * log(o->theta)));
    double high = ceil(dim * log(o->form.yarn_original / (1 * 2 * M_PI)) / (2 * log(o->theta)));
    low = fmax(low, 0);
    high = fmin(high, dim - 1);
    if (low == high) high += 0.001;
    double stretched = fmin(fmax((pair - low) / (high - low), 0), 1);
    return plain / o->form.yarn_factor * stretched + plain * (1 - stretched);
}

static void turn(const Oracle *o, double *head, int32_t position)
{
    double scale = o->form.yarn_factor > 0 ? 0.1 * log(o->form.yarn_factor) + 1 : 1;
    int32_t half = o->head_dim / 2;
    for (int32_t i = 0; i < half; i++) {
        double angle = position * inverse_frequency(o, i), c = cos(angle) * scale, s = sin(angle) * scale;
        double a = head[i], b = head[i + half];
        head[i] = a * c - b * s;
        head[i + half] = b * c + a * s;
    }
}

/* ---- keys and values ---- */

typedef struct Rows { /* of one layer: context, then block; [n][kv heads * dim] */
    double *k, *v;
} Rows;

static void add_row(const Oracle *o, int32_t layer, const double *x, int32_t position, Rows rows)
{
    int32_t width = o->n_kv_heads * o->head_dim;
    double *k = rows.k + (size_t)position * (size_t)width;
    multiply_biased(o, layer, "k", x, k);
    multiply_biased(o, layer, "v", x, rows.v + (size_t)position * (size_t)width);
    for (int32_t h = 0; h < o->n_kv_heads; h++) {
        norm(o, layer, "self_attn.k_norm.weight", k + h * o->head_dim, k + h * o->head_dim, o->head_dim);
        turn(o, k + h * o->head_dim, position);
    }
}

/* Does the block's row at `query` see `key`? */
static bool sees(const Oracle *o, int32_t layer, int32_t query, int32_t key)
{
    int32_t width = o->form.width[layer];
    if (o->form.causal[layer] && key > query) return false;
    return width == 0 || (query - key < width && key - query < width);
}

static void attend(const Oracle *o, int32_t layer, const double *x, int32_t position, int32_t n_keys, Rows rows,
                   double *out)
{
    int32_t width = o->n_kv_heads * o->head_dim;
    double *q = numbers((size_t)(o->n_heads * o->head_dim)), *p = numbers((size_t)n_keys),
           *mix = numbers((size_t)(o->n_heads * o->head_dim));
    multiply_biased(o, layer, "q", x, q);
    for (int32_t h = 0; h < o->n_heads; h++) {
        int32_t kv = h / (o->n_heads / o->n_kv_heads);
        double *query = q + h * o->head_dim, sum = 0, largest = -INFINITY;
        norm(o, layer, "self_attn.q_norm.weight", query, query, o->head_dim);
        turn(o, query, position);
        for (int32_t j = 0; j < n_keys; j++) {
            p[j] = 0;
            for (int32_t d = 0; d < o->head_dim; d++) p[j] += query[d] * rows.k[j * width + kv * o->head_dim + d];
            p[j] = sees(o, layer, position, j) ? p[j] / sqrt(o->head_dim) : -INFINITY;
            largest = fmax(largest, p[j]);
        }
        for (int32_t j = 0; j < n_keys; j++) sum += p[j] = exp(p[j] - largest);
        for (int32_t j = 0; j < n_keys; j++)
            for (int32_t d = 0; d < o->head_dim; d++)
                mix[h * o->head_dim + d] += p[j] / sum * rows.v[j * width + kv * o->head_dim + d];
    }
    multiply_biased(o, layer, "o", mix, out);
    mem_free(q);
    mem_free(p);
    mem_free(mix);
}

static void feed_forward(const Oracle *o, int32_t layer, const double *x, double *out)
{
    double *gate = numbers((size_t)o->intermediate), *up = numbers((size_t)o->intermediate);
    multiply(o, layer, "mlp.gate_proj.weight", x, gate);
    multiply(o, layer, "mlp.up_proj.weight", x, up);
    for (int32_t i = 0; i < o->intermediate; i++) gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
    multiply(o, layer, "mlp.down_proj.weight", gate, out);
    mem_free(gate);
    mem_free(up);
}

/* ---- DFlash 2 ---- */

/* x [block][hidden] convolved into y; z: the sublayer's normed input, from which the dynamic weights come. */
static void convolve(const Oracle *o, int32_t layer, const char *where, int32_t side, const double *z, const double *x,
                     double *y)
{
    int32_t kernel = o->form.kernel, n_groups = o->hidden / o->form.group;
    char base_name[64], projection[64];
    snprintf(base_name, sizeof base_name, "%s.base_kernel", where);
    snprintf(projection, sizeof projection, "%s.kernel_projection.weight", where);
    const TestTensor *base = tensor(o, layer, base_name);
    double *d = numbers((size_t)(2 * kernel * n_groups));
    for (int32_t i = 0; i < o->block; i++) {
        multiply(o, layer, projection, z + i * o->hidden, d);
        for (int32_t c = 0; c < o->hidden; c++) {
            double sum = 0;
            for (int32_t t = 0; t < kernel; t++) {
                double weight = at(base, (size_t)((side * kernel + t) * o->hidden + c)) +
                                d[(side * kernel + t) * n_groups + c / o->form.group];
                if (i - t >= 0) sum += weight * x[(i - t) * o->hidden + c];
            }
            y[i * o->hidden + c] = sum;
        }
    }
    mem_free(d);
}

/* r += sublayer(norm(r)), with convolutions around it if there are any. */
typedef void (*Sublayer)(const Oracle *o, int32_t layer, const double *x, double *out, void *ctx);

static void run_sublayer(const Oracle *o, int32_t layer, const char *norm_name, const char *conv, Sublayer fn,
                         void *ctx, double *r)
{
    size_t n = (size_t)(o->block * o->hidden);
    double *z = numbers(n), *u = numbers(n), *v = numbers(n), *w = numbers(n);
    for (int32_t i = 0; i < o->block; i++) norm(o, layer, norm_name, r + i * o->hidden, z + i * o->hidden, o->hidden);
    memcpy(u, z, n * sizeof *u);
    if (o->form.kernel) convolve(o, layer, conv, 0, z, z, u);
    fn(o, layer, u, v, ctx);
    memcpy(w, v, n * sizeof *w);
    if (o->form.kernel) convolve(o, layer, conv, 1, z, v, w);
    for (size_t i = 0; i < n; i++) r[i] += w[i];
    mem_free(z);
    mem_free(u);
    mem_free(v);
    mem_free(w);
}

typedef struct Attention {
    Rows    rows;
    int32_t n_context;
} Attention;

static void attention_rows(const Oracle *o, int32_t layer, const double *x, double *out, void *ctx)
{
    const Attention *a = ctx;
    for (int32_t i = 0; i < o->block; i++) add_row(o, layer, x + i * o->hidden, a->n_context + i, a->rows);
    for (int32_t i = 0; i < o->block; i++)
        attend(o, layer, x + i * o->hidden, a->n_context + i, a->n_context + o->block, a->rows, out + i * o->hidden);
}

static void mlp_rows(const Oracle *o, int32_t layer, const double *x, double *out, void *ctx)
{
    for (int32_t i = 0; i < o->block; i++) feed_forward(o, layer, x + i * o->hidden, out + i * o->hidden);
}

/* ---- the whole ---- */

static void embed(const Oracle *o, int32_t anchor, double *r)
{
    float *row = mem_alloc_array((size_t)o->hidden, sizeof *row);
    double scale = o->form.embedding_scale != 0 ? o->form.embedding_scale : 1;
    for (int32_t i = 0; i < o->block; i++) {
        weight_get_row(o->embed, i ? o->mask_id : anchor, row);
        for (int32_t c = 0; c < o->hidden; c++) r[i * o->hidden + c] = scale * (double)row[c];
    }
    mem_free(row);
}

static void context_rows(const Oracle *o, int32_t layer, const float *features, int32_t n, Rows rows)
{
    int32_t width = o->n_taps * o->hidden;
    double *f = numbers((size_t)width), *fused = numbers((size_t)o->hidden), *c = numbers((size_t)o->hidden);
    for (int32_t t = 0; t < n; t++) {
        for (int32_t i = 0; i < width; i++) f[i] = (double)features[t * width + i];
        multiply(o, -1, "fc.weight", f, fused);
        norm(o, -1, "hidden_norm.weight", fused, c, o->hidden);
        add_row(o, layer, c, t, rows);
    }
    mem_free(f);
    mem_free(fused);
    mem_free(c);
}

static void head_rows(const Oracle *o, const double *r, float *logits, double *normed)
{
    float *row = mem_alloc_array((size_t)o->hidden, sizeof *row);
    double *y = numbers((size_t)(o->block * o->hidden)), scale = o->form.logit_scale != 0 ? o->form.logit_scale : 1;
    for (int32_t i = 0; i < o->block; i++) norm(o, -1, "norm.weight", r + i * o->hidden, y + i * o->hidden, o->hidden);
    for (int32_t v = 0; v < o->vocab; v++) {
        weight_get_row(o->head, v, row);
        for (int32_t i = 0; i < o->block; i++) {
            double sum = 0;
            for (int32_t c = 0; c < o->hidden; c++) sum += (double)row[c] * y[i * o->hidden + c];
            sum *= scale;
            if (o->form.softcap > 0) sum = o->form.softcap * tanh(sum / o->form.softcap);
            logits[i * o->vocab + v] = (float)sum;
        }
    }
    if (normed) memcpy(normed, y, (size_t)(o->block * o->hidden) * sizeof *y);
    mem_free(row);
    mem_free(y);
}

void oracle_logits(const Oracle *o, const float *features, int32_t n_context, int32_t anchor, float *logits,
                   double *normed)
{
    size_t n = (size_t)((n_context + o->block) * o->n_kv_heads * o->head_dim);
    Attention a = { .rows = { numbers(n), numbers(n) }, .n_context = n_context };
    double *r = numbers((size_t)(o->block * o->hidden));
    embed(o, anchor, r);
    for (int32_t l = 0; l < o->n_layers; l++) {
        context_rows(o, l, features, n_context, a.rows);
        run_sublayer(o, l, "input_layernorm.weight", "attention_conv", attention_rows, &a, r);
        run_sublayer(o, l, "post_attention_layernorm.weight", "mlp_conv", mlp_rows, NULL, r);
    }
    head_rows(o, r, logits, normed);
    mem_free(r);
    mem_free(a.rows.k);
    mem_free(a.rows.v);
}

void oracle_scores(const Oracle *o, const double *normed, int32_t before, const int32_t *id, const float *logit,
                   int32_t k, double *score)
{
    const TestTensor *a = tensor(o, -1, "candidate_selector.predecessor_codebook");
    const TestTensor *b = tensor(o, -1, "candidate_selector.successor_codebook");
    int64_t rank = a->entry.shape[1];
    double *e = numbers((size_t)rank);
    multiply(o, -1, "candidate_selector.hidden_projection.weight", normed, e);
    for (int32_t c = 0; c < k; c++) {
        score[c] = (double)logit[c];
        for (int64_t r = 0; r < rank; r++)
            score[c] += at(a, (size_t)(before * rank + r)) * e[r] * at(b, (size_t)(id[c] * rank + r));
    }
    mem_free(e);
}
