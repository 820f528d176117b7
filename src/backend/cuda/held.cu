/* Ops that are held back until the next one is known, because together they are one kernel.
 *
 * At most one op waits, or one chain of head ops. Every op first releases what waits (device_of) unless it can join it:
 *
 *     add(x, y)          then rms_norm(.., x)      one pass over the row
 *     attention(out)     then round_rows(.., out)  the same store, twice
 *     rms_norm(q), rms_norm(k), rope(q), rope(k) then kv_store(k, v)     heads go through registers once
 *
 * Results are those of the ops one by one: the same operations on the same numbers. */
#include "backend/cuda/cuda_impl.h"

struct Held {
    enum { NOTHING, ADD, ATTENTION, HEADS } kind;
    Tensor x, y;
    HeadNorm norm[2]; /* HEADS: q, k, as far as they have come */
    HeadTurn turn[2];
    int      n_norms, n_turns;
    std::function<void(uint16_t *, int64_t)> attention;
};

static Held *held_of(Device *d)
{
    if (!d->held) d->held = new Held();
    return d->held;
}

void release_held(Device *d)
{
    Held *h = held_of(d);
    auto kind = h->kind;
    h->kind = Held::NOTHING;
    if (kind == Held::ADD) cuda_run_add(d, h->x, h->y);
    if (kind == Held::ATTENTION) h->attention(nullptr, 0);
    if (kind != Held::HEADS) return;
    for (int i = 0; i < h->n_norms; i++)
        if (h->norm[i].weight) cuda_run_norm(d, h->norm[i]);
    for (int i = 0; i < h->n_turns; i++) cuda_run_turn(d, h->norm[i].x, h->turn[i]);
}

void held_close(Device *d)
{
    delete d->held;
}

static bool is_same(Tensor a, Tensor b)
{
    return a.data == b.data && a.shape[0] == b.shape[0] && a.stride[0] == b.stride[0];
}

void hold_attention(Device *d, Tensor out, std::function<void(uint16_t *, int64_t)> run)
{
    Held *h = held_of(d);
    h->kind = Held::ATTENTION;
    h->x = out;
    h->attention = std::move(run);
}

bool join_round(Device *d, Tensor out, Tensor x)
{
    Held *h = held_of(d);
    if (h->kind != Held::ATTENTION || out.dtype != DT_BF16 || x.dtype != DT_F32 || out.n_dims != 2 || x.n_dims != 2) return false;
    if (!is_same(x, h->x) || x.shape[1] != h->x.shape[1] * h->x.shape[2] || h->x.stride[1] != h->x.shape[2]) return false;
    h->kind = Held::NOTHING;
    h->attention((uint16_t *)out.data, out.stride[0]);
    fault(d, "attention", out, out.shape[0]); /* in what is read: a step of the sums would be lost in rounding */
    return true;
}

bool hold_add(Device *d, Tensor x, Tensor y)
{
    Held *h = held_of(d);
    if (x.n_dims != 2 || y.n_dims != 2 || x.stride[0] == 0 || y.stride[0] == 0) return false;
    h->kind = Held::ADD;
    h->x = x;
    h->y = y;
    return true;
}

const Tensor *join_norm(Device *d, Tensor x)
{
    Held *h = held_of(d);
    if (h->kind != Held::ADD || x.n_dims != 2 || !is_same(x, h->x) || x.shape[1] != h->x.shape[1]) return nullptr;
    h->kind = Held::NOTHING;
    return &h->y;
}

/* ---- heads ---- */

static bool are_heads(Tensor x)
{
    return x.n_dims == 3 && x.dtype == DT_F32 && x.shape[2] <= 256 && x.shape[0] > 0;
}

static bool is_same_heads(Tensor a, Tensor b)
{
    return is_same(a, b) && a.n_dims == 3 && b.n_dims == 3 && a.shape[1] == b.shape[1] && a.shape[2] == b.shape[2] && a.stride[1] == b.stride[1];
}

bool hold_head_norm(Device *d, HeadNorm n)
{
    Held *h = held_of(d);
    if (!are_heads(n.x)) return false;
    bool goes_on = h->kind == Held::HEADS && h->n_norms == 1 && h->n_turns == 0 && h->norm[0].weight && h->norm[0].x.shape[0] == n.x.shape[0];
    if (!goes_on) {
        release_held(d);
        h->kind = Held::HEADS;
        h->n_norms = h->n_turns = 0;
    }
    h->norm[h->n_norms++] = n;
    return true;
}

/* The first turn may come without norms before it (llama). */
bool hold_head_turn(Device *d, Tensor x, HeadTurn t)
{
    Held *h = held_of(d);
    if (!are_heads(x) || t.half * 2 > x.shape[2]) return false;
    bool is_next = h->kind == Held::HEADS && h->n_turns < h->n_norms && is_same_heads(x, h->norm[h->n_turns].x) &&
                   (h->n_turns == 1 || h->n_norms == 2);
    bool is_second = h->kind == Held::HEADS && h->n_turns == 1 && h->n_norms == 1 && !h->norm[0].weight && h->norm[0].x.shape[0] == x.shape[0];
    if (!is_next && !is_second) {
        release_held(d);
        h->kind = Held::HEADS;
        h->n_norms = h->n_turns = 0;
    }
    if (!is_next) h->norm[h->n_norms++] = { x, nullptr, 0 };
    h->turn[h->n_turns++] = t;
    return true;
}

bool join_heads(Device *d, Tensor k, HeadNorm *q_norm, HeadNorm *k_norm, HeadTurn *turn)
{
    Held *h = held_of(d);
    bool fits = h->kind == Held::HEADS && h->n_norms == 2 && h->n_turns == 2 && is_same_heads(k, h->norm[1].x) &&
                memcmp(&h->turn[0], &h->turn[1], sizeof h->turn[0]) == 0 && h->norm[0].x.shape[2] == k.shape[2];
    if (!fits) {
        release_held(d);
        return false;
    }
    h->kind = Held::NOTHING;
    *q_norm = h->norm[0];
    *k_norm = h->norm[1];
    *turn = h->turn[0];
    return true;
}
