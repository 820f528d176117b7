/* Every operation of a forward pass, once. A backend starts from the scalar table (backend/cpu/, the
 * numeric contract) and puts faster functions with the same bits on top.
 *
 * For all of them: tensors are row-major views; a row's result depends on that row (and the cache rows
 * it may see) alone, never on how many rows came along. Ops are queued on the stream and cannot fail:
 * shapes are checked when the model is opened. Outputs never overlap inputs unless said.
 * "act" is the contract's input type of the following linear layer: BF16 (rounded once) or F32.
 * Sums over a row use LANES float32 accumulators (element i goes to lane i % LANES, ascending, by fma)
 * that are added as a binary tree: for w = 8, 4, 2, 1: lane[i] += lane[i + w]. */
#pragma once

#include "backend/batch.h"
#include "backend/choice.h"

enum { LANES = 16 };

typedef struct Stream Stream;
struct Weight;

/* Rotary embedding of one model. inv_freq already holds linear / llama3 / YaRN scaling. */
typedef struct RopeParams {
    int32_t        dim;      /* values of a head that turn; value i pairs with i + dim / 2 */
    const float   *inv_freq; /* [dim / 2] float32 */
    const uint8_t *axis;     /* [dim / 2] which of the three coordinates turns pair i; NULL = always 0 */
    float          scale;    /* factor on cos and sin (YaRN's attention factor), 1 otherwise */
} RopeParams;

/* Several matrices over the same input in one go. */
typedef struct LinearJob {
    Tensor               out; /* [n_rows, n_out] f32 */
    const struct Weight *weight;
} LinearJob;

/* Gated DeltaNet of one layer. nk key heads, nv value heads (nv = r * nk), dims dk, dv. */
typedef struct GatedDelta {
    int32_t nk, nv, dk, dv;
    const float *neg_exp_a; /* [nv] -exp(A_log) in float32 (computed by fmath at load) */
    const float *dt_bias;   /* [nv] float32 */
} GatedDelta;

/* What one uncertain row did to the states of one layer, enough to do it again. */
typedef struct GdnLog {
    float  *k;     /* [n_rows][nk * dk]  normalised keys */
    float  *u;     /* [n_rows][nv * dv]  deltas */
    float  *decay; /* [n_rows][nv]       exp(g) */
    Tensor  mix;   /* [n_rows, channels] f32 rows before the convolution (they are the conv state) */
} GdnLog;

/* Picking one candidate a row from left to right (DFlash 2). Lines of rows do not know of each other. */
typedef struct PickLine {
    int32_t      first, n_rows; /* rows of the tensors below */
    int32_t      anchor;        /* predecessor of the first row */
    float        temperature;   /* 0, or what scores are divided by before `noise` is added */
    const float *noise;         /* [n_rows][k]; NULL = none */
} PickLine;

typedef struct PickJob {
    int32_t              n_lines, k;
    const PickLine      *lines;
    const int32_t       *candidate; /* [n_rows][k] ids; -1 = none from here on */
    const float         *logit;     /* [n_rows][k] */
    Tensor               edge;      /* [n_rows, rank] f32 */
    const struct Weight *predecessor, *successor; /* [vocab, rank] */
    int32_t             *picked;    /* out [n_rows] place among the row's candidates */
} PickJob;

typedef struct Ops {
    /* out[r] = row token[r] of table (widened to f32), or soft[soft_row[r]]. out [n_rows, hidden] f32. */
    void (*embed)(Stream *, Tensor out, const struct Weight *table, const Batch *batch);

    /* Over the last dimension; x f32 [n, d] or [n, heads, d]; out act or f32 of the same shape (may be x itself
     * when f32): out = x / sqrt(mean(x^2) + eps) * weight. weight f32 [d]; zero-centred norms are loaded as 1 + w.
     * arXiv 1910.07467 eq. 4. mean = lane sum / d; then x * (1 / sqrtf(mean + eps)) * weight, in this order. */
    void (*rms_norm)(Stream *, Tensor out, Tensor x, const float *weight, float eps);

    /* Gated norm of GDN outputs: out = x / sqrt(mean(x^2) + eps) * weight * silu(z), per head of d values.
     * x, z f32 [n, heads, d]; out act [n, heads, d] (contiguous rows: heads * d is the next linear's input). */
    void (*rms_norm_gated)(Stream *, Tensor out, Tensor x, Tensor z, const float *weight, float eps);

    /* out = x W^T by the weight's contract, for each job. x act [n_rows, n_in]. Any number of rows, also 0. */
    void (*linear)(Stream *, Tensor x, const LinearJob *jobs, int n_jobs);

    /* out = silu(x G^T) * (x U^T): linear and silu_mul in one, without the values in between going through memory. gate
     * and up have one shape and contract. out act [n_rows, n_out]. NULL: not in this table, callers take the two. */
    void (*linear_silu_mul)(Stream *, Tensor out, Tensor x, const struct Weight *gate, const struct Weight *up);

    /* x += y, both f32 [n, d]. y may be one row for all (its row stride is 0): a bias. */
    void (*add)(Stream *, Tensor x, Tensor y);

    /* out = silu(gate) * up; gate, up f32 [n, d]; out act [n, d]. */
    void (*silu_mul)(Stream *, Tensor out, Tensor gate, Tensor up);

    /* out = x * sigmoid(gate), f32 [n, heads, d] each (gate may be strided); out act. */
    void (*sigmoid_mul)(Stream *, Tensor out, Tensor x, Tensor gate);

    /* Rounds or copies f32 rows to act: out [n, d]. */
    void (*round_rows)(Stream *, Tensor out, Tensor x);

    /* out[i] = x[rows[i]]: f32 or act, same type; rows [n]. */
    void (*gather_rows)(Stream *, Tensor out, Tensor x, const int32_t *rows, int n);

    /* Turns heads of q or k in place; x f32 [n_rows, heads, head_dim]; rope [3][n_rows]. Angle = position * inv_freq in
     * float32; cos and sin of that float32 number with full range reduction (fmath). RoFormer (arXiv 2104.09864)
     * section 3.4.2, pairs (i, i + dim/2) as in the checkpoints. With c, s already times scale:
     *   x[i] = fma(x[i], c, -(x[i + dim/2] * s));   x[i + dim/2] = fma(x[i + dim/2], c, x[i] * s) */
    void (*rope)(Stream *, Tensor x, const int32_t *rope, int32_t n_rows, const RopeParams *params);

    /* Writes k and v rows (f32 [n_rows, n_heads, head_dim]) to entries store[row]: F32 as they are, BF16 rounded once,
     * F8_E4M3 as codes of x / s with a scale s for each row of each head:
     *   amax = the largest |x|;  s = amax / 448, or 1 where that is no normal number (a row of zeros);
     *   code = e4m3(x / s), to the nearest, ties to even, at most 448. Where an x is not finite, s is NaN and all codes 0. */
    void (*kv_store)(Stream *, KvView view, Tensor k, Tensor v, const int32_t *store);

    /* out[r, h] = softmax(q[r, h] . K * scale) V over the committed entries of the row's sequence and its own path,
     * itself included. q f32 [n_rows, n_q_heads, head_dim] (may be strided), out f32 [n_rows, n_q_heads, head_dim]
     * contiguous. Head h reads KV head h / (n_q_heads / n_kv_heads). Keys and values come from the cache only, as stored.
     * store: the rows' entries, to find path rows. Contract (per row and head), keys in order of position j = first_key
     * (0 where batch->first_key is NULL) .. index; splits without such a key do not exist for the row:
     *   split s = positions [s * ATTN_SPLIT, (s + 1) * ATTN_SPLIT):
     *     x_j = (lane sum over d of q[d] * k_j[d]) * f_j;    m = max x_j;  p_j = exp(x_j - m)
     *     l = lane sum over j of p_j, lane j % LANES;        o[d] = fma(w_j, v_j[d], o[d]) for j ascending
     *   splits ascending: M = max m;  L = fma(l, exp(m - M), L);  O = fma(o, exp(m - M), O);  out = O / L
     * (max over all splits first; with one split exp(0) = 1 and nothing changes).
     * F32 and BF16 caches: f_j = scale, w_j = p_j. F8_E4M3: k_j and v_j are the codes' numbers / 256, and
     *   f_j = scale * (256 * s of key j);  w_j = p_j * (256 * s of value j): the scales of kv_store. */
    void (*attention)(Stream *, Tensor out, Tensor q, KvView view, const Batch *batch, const int32_t *store,
                      float scale);

    /* Committed entries move inside one sequence: entry from[i] to entry to[i] of slot, i ascending (a forward copy in
     * place is right because from[i] >= to[i]). One layer. Entry numbers as in group.h, not stores. */
    void (*kv_move)(Stream *, KvView view, int32_t slot, const int32_t *from, const int32_t *to, int n);

    /* Causal depthwise convolution over a row's path, kernel 4, then silu; mix f32 [n_rows, channels] raw rows; weight
     * f32 [channels][4], [3] is the row itself; out f32 [n_rows, channels].
     *   out = silu(fma(w3, x0, fma(w2, x-1, fma(w1, x-2, w0 * x-3))))
     * state: [channels][3]... per slot float32 [3][channels], oldest first: the raw rows before the batch. Certain
     * sequences: state becomes the last 3 raw rows. Uncertain: state stays; the raw rows are in `log_mix` afterwards
     * ([n_uncertain_rows, channels], copied there). n_committed == 0 reads zeros. */
    void (*conv_silu)(Stream *, Tensor out, Tensor mix, const float *weight, StateView state, const Batch *batch,
                      Tensor log_mix);

    /* Gated DeltaNet along each row's path, token by token: arXiv 2412.06464, in the order decay, read, delta, write,
     * read. conv [n_rows, 2 * nk * dk + nv * dv] f32 = q, k, v after the convolution; a, b f32 [n_rows, nv]; out f32
     * [n_rows, nv * dv]. State per slot: float32 [nv][dk][dv]. Value head h uses key head h / r. Contract, per head:
     *   qh = q * (1 / sqrtf(lane sum q^2 + 1e-6)) * (1 / sqrtf(dk));   kh = k * (1 / sqrtf(lane sum k^2 + 1e-6))
     *   g = neg_exp_a * softplus(a + dt_bias);  decay = exp(g);  beta = sigmoid(b)
     *   S[i][j] = decay * S[i][j];  p[j] = fma(S[i][j], kh[i], p[j]) i ascending from +0
     *   u[j] = beta * (v[j] - p[j]);  S[i][j] = fma(kh[i], u[j], S[i][j]);  o[j] = fma(S[i][j], qh[i], o[j]) i ascending
     * Certain sequences leave the state after their last row; uncertain ones leave it and fill log rows. */
    void (*gated_delta)(Stream *, Tensor out, Tensor conv, Tensor a, Tensor b, const GatedDelta *p, StateView state,
                        const Batch *batch, GdnLog log);

    /* Commit of accepted paths (batch->seqs[c.seq].slot): the logged updates of path_rows again, in order, on the
     * recurrent state; conv state = last 3 raw rows of the path (older ones from the old state). */
    void (*gated_delta_commit)(Stream *, const GatedDelta *p, StateView state, StateView conv_state, int32_t channels,
                               const Batch *batch, GdnLog log, const Commit *commits, int n);

    /* ---- drafters, docs/spec/speculation.md 1.2 and 1.11 ---- */

    /* x = x * factor; then, if cap > 0, x = cap * tanh(x / cap). x f32 [n, d]. */
    void (*scale_cap)(Stream *, Tensor x, float factor, float cap);

    /* Convolution along the rows of a block, nothing before its first row; weights are a part of the layer's and a part
     * of the row's own: out[i][c] = sum over t = 0 .. kernel - 1 ascending, from +0, by fma, of
     *   (base[t][c] + dynamic[i][t][c / group]) * x[i - t][c]
     * x f32 [n, d], n a multiple of block_rows; base [kernel][d]; dynamic f32 [n, kernel * (d / group)] (a view of wider
     * rows); out act or f32 [n, d]. */
    void (*block_conv)(Stream *, Tensor out, Tensor x, const float *base, Tensor dynamic, int32_t kernel,
                       int32_t block_rows);

    /* Row by row of a line: with p the id picked before (at first the anchor) and h[r] = predecessor[p][r] * edge[r],
     *   score(c) = logit(c) + lane sum over r of h[r] * successor[c][r]
     * picks the largest score, or score / temperature + noise where a temperature is given; ties to the first. */
    void (*pick)(Stream *, const PickJob *job);

    /* ---- choosing, where the logits do not lie in the host's memory; NULL: the host reads them and chooses itself, see
     * sampling/row_chooser.h ---- */

    /* What choose() of sampling/choose.h gives for each row, in every bit. Results can be read after a sync. */
    void (*choose)(Stream *, const ChooseJob *job);

    /* The k best ids of each row by score = logit + coupling * noise (where coupled: ids more than RANK_REACH below the best logit
     * left out), and the log of their sum. The scores have the host's bits, the sum too where nothing is coupled. */
    void (*rank)(Stream *, const RankJob *job);
} Ops;

/* Positions of one partial softmax. Part of the contract. */
enum { ATTN_SPLIT = 512 };
