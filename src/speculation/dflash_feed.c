/* Always, for a live slot: its context rows and the waiting ones are the tokens from first_context on without a gap.
 * When there is a gap (a prefix that came from elsewhere, a picture, whose features no drafter was trained on) the
 * context begins anew behind it: a drafter that sees less guesses worse, one that sees rows nobody wrote guesses
 * nothing. */
#include "speculation/dflash_feed.h"

#include "base/memory.h"

size_t dflash_feed_bytes(int32_t n_slots, int64_t width, DType act)
{
    size_t row = (size_t)width * dtype_bytes(act);
    return (size_t)n_slots * (FEED_ROWS * row + sizeof(FeedSlot)) + FEED_MAX_CONTEXT * sizeof(DflashContext);
}

Status dflash_feed_open(DflashFeed *f, Dflash *net, Backend *backend, DType act, int32_t n_slots, Error *err)
{
    const DflashConfig *c = dflash_config(net);
    *f = (DflashFeed){ .net = net, .backend = backend, .n_slots = n_slots, .act = act,
                       .width = (int64_t)c->n_taps * c->base.hidden_size };
    for (int32_t i = 0; i < FEED_ROWS; i++) f->line[i] = i;
    f->slots = mem_alloc_array((size_t)n_slots, sizeof *f->slots);
    f->context = mem_alloc_array(FEED_MAX_CONTEXT, sizeof *f->context);
    f->waiting = backend_alloc_device(backend, (size_t)n_slots * FEED_ROWS * (size_t)f->width * dtype_bytes(act));
    if (f->slots && f->context && f->waiting) return OK;
    dflash_feed_close(f);
    return error_set(err, ERR_NOMEM, "no memory for the features of %d sequences", n_slots);
}

void dflash_feed_close(DflashFeed *f)
{
    if (f->waiting) backend_free(f->backend, f->waiting);
    mem_free(f->slots);
    mem_free(f->context);
    *f = (DflashFeed){ 0 };
}

static FeedSlot *slot_at(const DflashFeed *f, int32_t slot)
{
    CHECK(slot >= 0 && slot < f->n_slots);
    return &f->slots[slot];
}

void dflash_feed_begin(DflashFeed *f, int32_t slot)
{
    *slot_at(f, slot) = (FeedSlot){ .is_live = true };
}

void dflash_feed_forget(DflashFeed *f, int32_t slot)
{
    *slot_at(f, slot) = (FeedSlot){ 0 };
}

/* ---- from the waiting rows to the network ---- */

static Tensor waiting_rows(const DflashFeed *f, int32_t slot, int32_t first, int32_t n)
{
    size_t row = (size_t)slot * FEED_ROWS + (size_t)first;
    return tensor_2d((char *)f->waiting + row * (size_t)f->width * dtype_bytes(f->act), f->act, n, f->width);
}

/* A slot's waiting rows become context rows [at, at + n) of the pass being made. Returns n. */
static int32_t hand_over(DflashFeed *f, Stream *st, int32_t slot, int32_t at)
{
    FeedSlot *s = slot_at(f, slot);
    const int32_t n = s->n_waiting;
    Tensor to = dflash_features(f->net, at + n);
    to.data = (char *)to.data + (size_t)at * (size_t)to.stride[0] * dtype_bytes(to.dtype);
    backend_ops(f->backend)->gather_rows(st, tensor_rows(to, n), waiting_rows(f, slot, 0, n), f->line, n);
    for (int32_t i = 0; i < n; i++) f->context[at + i] = (DflashContext){ slot, s->n_context + i, s->rope[i] };
    s->n_context += n;
    s->n_waiting = 0;
    return n;
}

static void flush(DflashFeed *f, Stream *st, int32_t slot)
{
    int32_t n = hand_over(f, st, slot, 0);
    dflash_pass(f->net, st, f->context, n, NULL, 0);
}

int32_t dflash_feed_gather(DflashFeed *f, Stream *st, DflashBlock *blocks, int32_t n_blocks)
{
    int32_t left = 0, n = 0;
    for (int32_t i = 0; i < n_blocks; i++) left += slot_at(f, blocks[i].slot)->n_waiting;
    for (int32_t i = 0; i < n_blocks && left > FEED_MAX_CONTEXT; i++) {
        left -= slot_at(f, blocks[i].slot)->n_waiting;
        flush(f, st, blocks[i].slot);
    }
    for (int32_t i = 0; i < n_blocks; i++) {
        const FeedSlot *s = slot_at(f, blocks[i].slot);
        n += hand_over(f, st, blocks[i].slot, n);
        blocks[i].first_context = s->first_context;
        blocks[i].rope = s->next_rope;
    }
    return n;
}

bool dflash_feed_is_complete(const DflashFeed *f, int32_t slot, int32_t n_committed)
{
    const FeedSlot *s = slot_at(f, slot);
    return s->is_live && s->n_context + s->n_waiting == n_committed;
}

/* ---- from a pass of the target to the waiting rows ---- */

/* The context begins at `index`: nothing before it is known. */
static void restart(FeedSlot *s, int32_t index)
{
    s->first_context = s->n_context = index;
    s->n_waiting = 0;
}

/* n rows of the batch from `row` on, one behind the other. */
static void put_aside(DflashFeed *f, Stream *st, const Batch *batch, Tensor features, int32_t slot, int32_t row,
                      int32_t n)
{
    FeedSlot *s = slot_at(f, slot);
    while (n > 0) {
        int32_t room = FEED_ROWS - s->n_waiting, part = n < room ? n : room;
        Tensor from = tensor_rows(features, part);
        from.data = tensor_f32(features, row);
        backend_ops(f->backend)->round_rows(st, waiting_rows(f, slot, s->n_waiting, part), from);
        for (int32_t i = 0; i < part; i++) s->rope[s->n_waiting + i] = batch->rope[row + i];
        s->n_waiting += part;
        s->next_rope = batch->rope[row + part - 1] + 1;
        if (s->n_waiting == FEED_ROWS) flush(f, st, slot);
        row += part;
        n -= part;
    }
}

static bool is_picture(const Batch *batch, int32_t row)
{
    return batch->soft_row && batch->soft_row[row] >= 0;
}

void dflash_feed_observe(DflashFeed *f, Stream *st, const Batch *batch, Tensor features, const Accepted *accepted)
{
    FeedSlot *s = slot_at(f, accepted->slot);
    const int32_t *rows = accepted->rows;
    if (!s->is_live) return;
    if (s->n_context + s->n_waiting != accepted->first_index) restart(s, accepted->first_index);
    for (int32_t i = 0, n; i < accepted->n; i += n) {
        n = 1;
        if (is_picture(batch, rows[i])) {
            restart(s, accepted->first_index + i + 1);
            s->next_rope = batch->rope[rows[i]] + 1;
            continue;
        }
        while (i + n < accepted->n && rows[i + n] == rows[i] + n && !is_picture(batch, rows[i + n])) n++;
        put_aside(f, st, batch, features, accepted->slot, rows[i], n);
    }
}
