/* Batch builder: rows of one sequence lie together, uncertain sequences come first.
 *
 * A certain row i of a sequence has place n_committed + i and is written there. Row i of a tree is written to entry
 * n_committed + i too, in row order, but its place is n_committed + depth: commit moves the accepted path. */
#include "engine/batch_builder.h"

#include "base/memory.h"

/* Every array of a row, in int32: token, seq, index, rope[3], parent, store, path[MAX_DEPTH]. */
enum { ROW_INTS = 8 + MAX_DEPTH };

static size_t arena_bytes(const ModelLimits *l)
{
    size_t ints = (size_t)l->max_rows * ROW_INTS + (size_t)l->max_outputs;
    return ints * sizeof(int32_t) + (size_t)l->max_seqs * sizeof(BatchSeq) +
           16 * 64; /* each array rounded up to a line */
}

static size_t features_bytes(const ModelLimits *l, int32_t hidden_size, const DrafterNeeds *d)
{
    return (size_t)l->max_rows * (size_t)d->n_taps * (size_t)hidden_size * sizeof(float);
}

static size_t hidden_bytes(const ModelLimits *l, int32_t hidden_size, const DrafterNeeds *d)
{
    return d->wants_last_hidden ? (size_t)l->max_rows * (size_t)hidden_size * sizeof(float) : 0;
}

static size_t logits_bytes(const ModelLimits *l, int32_t vocab_size)
{
    return (size_t)l->max_outputs * (size_t)vocab_size * sizeof(float);
}

size_t batch_builder_bytes(const ModelLimits *l, int32_t vocab_size, int32_t hidden_size, const DrafterNeeds *d)
{
    return arena_bytes(l) + logits_bytes(l, vocab_size) + features_bytes(l, hidden_size, d) +
           hidden_bytes(l, hidden_size, d);
}

static bool take_arrays(BatchBuilder *b)
{
    const ModelLimits *l = &b->limits;
    arena_init(&b->arena, arena_bytes(l), arena_bytes(l));
    return (b->seqs = arena_array(&b->arena, BatchSeq, l->max_seqs)) &&
           (b->token = arena_array(&b->arena, int32_t, l->max_rows)) &&
           (b->seq = arena_array(&b->arena, int32_t, l->max_rows)) &&
           (b->index = arena_array(&b->arena, int32_t, l->max_rows)) &&
           (b->rope = arena_array(&b->arena, int32_t, 3 * (size_t)l->max_rows)) &&
           (b->parent = arena_array(&b->arena, int32_t, l->max_rows)) &&
           (b->store = arena_array(&b->arena, int32_t, l->max_rows)) &&
           (b->path = arena_array(&b->arena, int32_t, (size_t)l->max_rows * MAX_DEPTH)) &&
           (b->output = arena_array(&b->arena, int32_t, l->max_outputs));
}

/* Of kernels only: who looks at logits has them copied. NULL is right when nothing is wanted. */
static bool take_floats(BatchBuilder *b, float **out, size_t bytes)
{
    if (bytes) *out = backend_alloc_device(b->backend, bytes);
    return *out || !bytes;
}

Status batch_builder_open(BatchBuilder *b, Backend *backend, const Model *model, const Drafter *drafter,
                          const ModelLimits *limits, const BlockTable *table, Error *err)
{
    CacheGroup groups[MAX_GROUPS];
    DrafterNeeds needs = drafter_needs(drafter);
    *b = (BatchBuilder){ .table = table,
                         .backend = backend,
                         .limits = *limits,
                         .n_groups = model->groups(model, groups),
                         .vocab_size = model->info.vocab_size,
                         .hidden_size = model->info.hidden_size,
                         .n_taps = drafter ? drafter->n_taps : 0,
                         .taps = drafter ? drafter->taps : NULL };
    if (take_arrays(b) && take_floats(b, &b->logits, logits_bytes(limits, b->vocab_size)) &&
        take_floats(b, &b->features, features_bytes(limits, b->hidden_size, &needs)) &&
        take_floats(b, &b->last_hidden, hidden_bytes(limits, b->hidden_size, &needs)))
        return OK;
    batch_builder_close(b);
    return error_set(err, ERR_NOMEM, "no memory for passes of %d rows and %d outputs", limits->max_rows,
                     limits->max_outputs);
}

void batch_builder_close(BatchBuilder *b)
{
    arena_free(&b->arena);
    if (b->logits) backend_free(b->backend, b->logits);
    if (b->features) backend_free(b->backend, b->features);
    if (b->last_hidden) backend_free(b->backend, b->last_hidden);
    *b = (BatchBuilder){ 0 };
}

static void put_path(BatchBuilder *b, const Share *share, int32_t row, int32_t node)
{
    int32_t *path = b->path + (size_t)row * MAX_DEPTH;
    if (share->is_certain) {
        for (int32_t d = 0; d < MAX_DEPTH; d++) path[d] = -1;
        return;
    }
    tree_path(share->tree, node, path);
    for (int32_t d = 0; d < MAX_DEPTH && path[d] >= 0; d++) path[d] += share->first_row;
}

/* Row i of the share. */
static void put_row(BatchBuilder *b, const Share *share, int32_t share_idx, int32_t i)
{
    const Sequence *seq = share->seq;
    const Tree *tree = share->tree;
    int32_t row = share->first_row + i, depth = share->is_certain ? i : tree->depth[i];
    int32_t parent = share->is_certain || i == 0 ? i - 1 : tree->parent[i];
    b->token[row] = share->is_certain ? seq->ids[seq->n_committed + i] : tree->token[i];
    b->seq[row] = share_idx;
    b->index[row] = seq->n_committed + depth;
    for (int32_t axis = 0; axis < 3; axis++) b->rope[(size_t)axis * b->rope_stride + row] = b->index[row];
    b->parent[row] = parent < 0 ? -1 : share->first_row + parent;
    b->store[row] = block_table_store(b->table, seq->slot, seq->n_committed + i);
    put_path(b, share, row, i);
}

/* All rows of a tree or of a scored prompt, else the last one if a token is chosen behind it. */
static void put_outputs(BatchBuilder *b, Share *share, int32_t first_output)
{
    bool all = !share->is_certain || share->is_scored;
    share->first_output = first_output;
    share->n_outputs = all ? share->n_rows : share->gives_token;
    int32_t first = share->first_row + share->n_rows - share->n_outputs;
    for (int32_t i = 0; i < share->n_outputs; i++) b->output[first_output + i] = first + i;
}

static void put_share(BatchBuilder *b, Share *share, int32_t share_idx)
{
    const Sequence *seq = share->seq;
    b->seqs[share_idx] = (BatchSeq){ .first_row = share->first_row,
                                     .n_rows = share->n_rows,
                                     .phase = share->phase,
                                     .n_committed = seq->n_committed,
                                     .slot = seq->slot,
                                     .certain = share->is_certain };
    for (int32_t i = 0; i < share->n_rows; i++) put_row(b, share, share_idx, i);
}

void batch_build(BatchBuilder *b, Share *shares, int32_t n, Batch *out)
{
    int32_t n_rows = 0, n_outputs = 0, n_uncertain = 0;
    for (int32_t i = 0; i < n; i++) {
        shares[i].first_row = n_rows;
        n_rows += shares[i].n_rows;
        put_outputs(b, &shares[i], n_outputs);
        n_outputs += shares[i].n_outputs;
        if (!shares[i].is_certain) n_uncertain = n_rows;
    }
    CHECK(n_rows <= b->limits.max_rows && n_outputs <= b->limits.max_outputs &&
          n_uncertain <= b->limits.max_uncertain_rows);
    b->rope_stride = n_rows;
    for (int32_t i = 0; i < n; i++) put_share(b, &shares[i], i);
    *out = (Batch){ .n_rows = n_rows,
                    .n_seqs = n,
                    .n_outputs = n_outputs,
                    .n_uncertain_rows = n_uncertain,
                    .seqs = b->seqs,
                    .token = b->token,
                    .seq = b->seq,
                    .index = b->index,
                    .rope = b->rope,
                    .parent = b->parent,
                    .path = b->path,
                    .output = b->output,
                    .n_taps = b->n_taps,
                    .taps = b->taps,
                    .logits = tensor_2d(b->logits, DT_F32, n_outputs, b->vocab_size) };
    for (int32_t g = 0; g < b->n_groups; g++) out->store[g] = b->store;
    if (b->features) out->features = tensor_2d(b->features, DT_F32, n_rows, (int64_t)b->n_taps * b->hidden_size);
    if (b->last_hidden) out->last_hidden = tensor_2d(b->last_hidden, DT_F32, n_rows, b->hidden_size);
}
