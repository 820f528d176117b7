/* Attention over a paged cache: the contract, one row and one query head at a time.
 *
 * Keys come in the order of their positions, cut into splits of ATTN_SPLIT at absolute positions. Every score
 * is kept until the largest of all splits is known, because each split's sums are scaled by it once. */
#include "backend/cpu/attention.h"

#include "backend/cpu/kv.h"
#include "backend/cpu/vectors.h"
#include "base/fmath.h"
#include "tensor/small_float.h"

#include <string.h>

enum { MAX_KEYS = WORKER_SCRATCH_BYTES / (int)sizeof(float) };

/* Store of the key at position j, as `row` sees it. */
static int32_t key_store(const AttentionJob *job, const BatchSeq *seq, int32_t row, int32_t j)
{
    if (seq->certain || j < seq->n_committed) return kv_store_at(&job->view, seq->slot, j);
    return job->store[job->batch->path[(int64_t)row * MAX_DEPTH + j - seq->n_committed]];
}

static const float *widen(float *buffer, const void *row, const AttentionJob *job)
{
    const uint16_t *halves = row;
    const uint8_t *codes = row;
    int32_t dim = job->view.head_dim;
    switch (job->view.dtype) {
    case DT_F32: return row;
    case DT_BF16: for (int32_t d = 0; d < dim; d++) buffer[d] = bf16_to_f32(halves[d]); break;
    default: for (int32_t d = 0; d < dim; d++) buffer[d] = job->number_of[codes[d]];
    }
    return buffer;
}

/* What a scale multiplies the product of its key, or the weight of its value, by. */
static float factor_of(const KvView *view, const float *scale)
{
    return kv_has_scales(view->dtype) ? *scale * KV_CODE_UNIT : 1.0f;
}

/* x[j] = scaled dot product of q with key j of [first, end); returns the largest. */
static float score_keys(const AttentionJob *job, const BatchSeq *seq, int32_t row, int32_t kv_head, const float *q,
                        float *x, int32_t first, int32_t end)
{
    float buffer[ATTN_MAX_HEAD_DIM], largest = -F_INF;
    for (int32_t j = first; j < end; j++) {
        int32_t store = key_store(job, seq, row, j);
        const float *k = widen(buffer, kv_key(&job->view, store, kv_head), job);
        float factor = job->scale * factor_of(&job->view, kv_key_scale(&job->view, store, kv_head));
        x[j] = lanes_dot(q, k, job->view.head_dim) * factor;
        largest = x[j] > largest ? x[j] : largest;
    }
    return largest;
}

/* One split, positions [first, end): o[d] = sum of p * v, returns the sum of p; *m = its largest score. */
static float sum_split(const AttentionJob *job, const BatchSeq *seq, int32_t row, int32_t kv_head, const float *x,
                       int32_t first, int32_t end, float *o, float *m)
{
    float buffer[ATTN_MAX_HEAD_DIM], lane[LANES] = { 0 };
    *m = -F_INF;
    for (int32_t j = first; j < end; j++) *m = x[j] > *m ? x[j] : *m;
    memset(o, 0, (size_t)job->view.head_dim * sizeof *o);
    for (int32_t j = first; j < end; j++) {
        int32_t store = key_store(job, seq, row, j);
        const float *v = widen(buffer, kv_value(&job->view, store, kv_head), job);
        float p = f_exp(x[j] - *m), weight = p * factor_of(&job->view, kv_value_scale(&job->view, store, kv_head));
        lane[j % LANES] += p;
        for (int32_t d = 0; d < job->view.head_dim; d++) o[d] = fmaf(weight, v[d], o[d]);
    }
    return lanes_sum(lane);
}

static void attend(const AttentionJob *job, const BatchSeq *seq, int32_t row, int32_t head, float *x)
{
    const KvView *view = &job->view;
    int32_t first_key = batch_first_key(job->batch, row), n_keys = job->batch->index[row] + 1;
    int32_t kv_head = head / (int32_t)(job->q.shape[1] / view->n_heads);
    const float *q = tensor_f32(job->q, row) + head * job->q.stride[1];
    float *out = tensor_f32(job->out, row) + head * job->out.stride[1];

    float largest = score_keys(job, seq, row, kv_head, q, x, first_key, n_keys), sum = 0, o[ATTN_MAX_HEAD_DIM], m;
    memset(out, 0, (size_t)view->head_dim * sizeof *out);
    for (int32_t split = first_key / ATTN_SPLIT * ATTN_SPLIT; split < n_keys; split += ATTN_SPLIT) {
        int32_t first = split > first_key ? split : first_key;
        int32_t end = split + ATTN_SPLIT < n_keys ? split + ATTN_SPLIT : n_keys;
        float l = sum_split(job, seq, row, kv_head, x, first, end, o, &m), factor = f_exp(m - largest);
        sum = fmaf(l, factor, sum);
        for (int32_t d = 0; d < view->head_dim; d++) out[d] = fmaf(o[d], factor, out[d]);
    }
    for (int32_t d = 0; d < view->head_dim; d++) out[d] /= sum;
}

static void attend_heads(void *arg, int64_t first, int64_t end, int worker)
{
    const AttentionJob *job = arg;
    float *x = worker_scratch(job->st, worker);
    for (int32_t s = 0; s < job->batch->n_seqs; s++) {
        const BatchSeq *seq = &job->batch->seqs[s];
        if (!batch_seq_is_real(job->batch, seq)) continue;
        for (int32_t r = seq->first_row; r < seq->first_row + seq->n_rows; r++)
            for (int64_t h = first; h < end; h++) attend(job, seq, r, (int32_t)h, x);
    }
}

void attention_count(Stream *st, const Batch *batch)
{
    for (int32_t s = 0; s < batch->n_seqs; s++)
        if (batch_seq_is_real(batch, &batch->seqs[s])) count_rows(st->counts.attention, batch->seqs[s].n_rows);
}

void cpu_scalar_attention(Stream *st, Tensor out, Tensor q, KvView view, const Batch *batch, const int32_t *store,
                          float scale)
{
    CHECK(view.head_dim <= ATTN_MAX_HEAD_DIM);
    for (int32_t s = 0; s < batch->n_seqs; s++) {
        const BatchSeq *seq = &batch->seqs[s];
        CHECK(!batch_seq_is_real(batch, seq) || seq->n_committed + seq->n_rows <= MAX_KEYS);
    }
    float number_of[256];
    for (int code = 0; code < 256; code++) number_of[code] = e4m3_to_f32((uint8_t)code) / KV_CODE_UNIT;
    AttentionJob job = { out, q, view, batch, store, scale, st, number_of };
    attention_count(st, batch);
    stream_for(st, q.shape[1], 1, attend_heads, &job);
    FAULT_POINT("attention", tensor_rows(out, batch_real_rows(batch)), batch_real_rows(batch));
}

void cpu_scalar_add_attention(Ops *ops)
{
    ops->attention = cpu_scalar_attention;
}
