/* Passes of a test, see batch_builder.h. The arrays are those of the engine's step arena, sized once. */
#include "support/batch_builder.h"

#include "base/memory.h"

#include <string.h>

enum { DEFAULT_BLOCK_SIZE = 16 };

/* ---- caches ---- */

static size_t group_entries(const BatchBuilder *b, const CacheGroup *g)
{
    const CacheMemory *first = &b->memory[0];
    size_t blocks = (size_t)b->options.n_slots * (size_t)first->max_blocks + 1; /* block 0 takes the padding */
    return g->kind == CACHE_PER_TOKEN ? blocks * (size_t)first->block_size : (size_t)b->options.n_slots;
}

static int32_t common_factor(int32_t a, int32_t b)
{
    return b ? common_factor(b, a % b) : a;
}

/* Blocks 1 .. n in an order that no kernel would guess: in steps that share no factor with n. */
static void scatter_blocks(int32_t *table, int32_t n)
{
    int32_t step = n / 2 + 1;
    while (common_factor(n, step) != 1) step++;
    for (int32_t i = 0; i < n; i++) table[i] = 1 + (int32_t)((int64_t)(i + 1) * step % n);
}

static bool take_caches(BatchBuilder *b)
{
    const BuilderOptions *o = &b->options;
    int32_t block_size = o->block_size ? o->block_size : DEFAULT_BLOCK_SIZE;
    int32_t max_blocks = (o->max_tokens + block_size - 1) / block_size;
    b->block_table = mem_alloc_array((size_t)o->n_slots * (size_t)max_blocks, sizeof *b->block_table);
    if (!b->block_table) return false;
    scatter_blocks(b->block_table, o->n_slots * max_blocks);

    b->n_groups = b->model->groups(b->model, b->groups);
    for (int i = 0; i < b->n_groups; i++) {
        CacheMemory *m = &b->memory[i];
        m->block_size = block_size;
        m->max_blocks = max_blocks;
        m->block_table = b->groups[i].kind == CACHE_PER_TOKEN ? b->block_table : NULL;
        m->layer_bytes = group_entries(b, &b->groups[i]) * b->groups[i].entry_bytes;
        size_t bytes = m->layer_bytes * (size_t)b->groups[i].n_layers;
        if (bytes == 0) continue;
        m->data = backend_alloc(b->model->backend, bytes);
        if (!m->data) return false;
        memset(m->data, 0xff, bytes); /* NaN in float32 and bf16 */
    }
    b->model->bind(b->model, b->memory);
    return true;
}

static bool take_arrays(BatchBuilder *b)
{
    const BuilderOptions *o = &b->options;
    const ModelInfo *info = &b->model->info;
    size_t rows = (size_t)o->max_rows, outputs = (size_t)o->max_outputs;
    b->n_committed = mem_alloc_array((size_t)o->n_slots, sizeof(int32_t));
    b->seqs = mem_alloc_array((size_t)o->n_slots, sizeof(BatchSeq));
    b->token = mem_alloc_array(rows, sizeof(int32_t));
    b->seq = mem_alloc_array(rows, sizeof(int32_t));
    b->index = mem_alloc_array(rows, sizeof(int32_t));
    b->rope = mem_alloc_array(3 * rows, sizeof(int32_t));
    b->parent = mem_alloc_array(rows, sizeof(int32_t));
    b->path = mem_alloc_array(rows * MAX_DEPTH, sizeof(int32_t));
    b->store = mem_alloc_array(rows, sizeof(int32_t));
    b->output = mem_alloc_array(outputs, sizeof(int32_t));
    b->logits = mem_alloc_array(outputs * (size_t)info->vocab_size, sizeof(float));
    b->features = mem_alloc_array(rows * (size_t)(o->n_taps * info->hidden_size) + 1, sizeof(float));
    b->last_hidden = mem_alloc_array(rows * (size_t)info->hidden_size, sizeof(float));
    return b->n_committed && b->seqs && b->token && b->seq && b->index && b->rope && b->parent && b->path && b->store &&
           b->output && b->logits && b->features && b->last_hidden;
}

Status builder_open(BatchBuilder **out, Model *model, const BuilderOptions *options, Error *err)
{
    BatchBuilder *b = *out = mem_alloc(sizeof *b);
    if (!b) return error_set(err, ERR_NOMEM, "no memory for a batch builder");
    b->model = model;
    b->options = *options;
    if (take_arrays(b) && take_caches(b)) return OK;
    builder_close(b);
    *out = NULL;
    return error_set(err, ERR_NOMEM, "no memory for the caches of a batch builder");
}

void builder_close(BatchBuilder *b)
{
    if (!b) return;
    for (int i = 0; i < b->n_groups; i++)
        if (b->memory[i].data) backend_free(b->model->backend, b->memory[i].data);
    void *arrays[] = { b->block_table, b->n_committed, b->seqs,   b->token,  b->seq,      b->index,      b->rope,
                       b->parent,      b->path,        b->store,  b->output, b->features, b->last_hidden, b->logits };
    for (int i = 0; i < COUNT(arrays); i++) mem_free(arrays[i]);
    mem_free(b);
}

void builder_clear(BatchBuilder *b, int32_t slot)
{
    b->n_committed[slot] = 0;
}

/* ---- rows ---- */

void builder_begin(BatchBuilder *b)
{
    b->batch = (Batch){ .seqs = b->seqs, .token = b->token, .seq = b->seq, .index = b->index, .rope = b->rope,
                        .parent = b->parent, .path = b->path, .output = b->output };
}

static BatchSeq *add_seq(BatchBuilder *b, int32_t slot, int32_t n_rows, bool certain)
{
    Batch *batch = &b->batch;
    CHECK(slot >= 0 && slot < b->options.n_slots && batch->n_seqs < b->options.n_slots);
    CHECK(n_rows > 0 && batch->n_rows + n_rows <= b->options.max_rows);
    CHECK(b->n_committed[slot] + n_rows <= b->options.max_tokens);
    BatchSeq *seq = &b->seqs[batch->n_seqs++];
    *seq = (BatchSeq){ .first_row = batch->n_rows, .n_rows = n_rows, .n_committed = b->n_committed[slot], .slot = slot,
                       .certain = certain, .phase = !certain ? SEQ_VERIFY : n_rows == 1 ? SEQ_DECODE : SEQ_PROMPT };
    batch->n_rows += n_rows;
    return seq;
}

static void fill_row(BatchBuilder *b, const BatchSeq *seq, int32_t node, int32_t token, int32_t parent_row)
{
    int32_t row = seq->first_row + node;
    b->token[row] = token;
    b->seq[row] = b->batch.n_seqs - 1;
    b->parent[row] = parent_row;
    b->index[row] = parent_row < 0 ? seq->n_committed : b->index[parent_row] + 1;
    b->store[row] = cache_store(&b->memory[0], seq->slot, seq->n_committed + node);
    for (int d = 0; d < MAX_DEPTH; d++) b->path[row * MAX_DEPTH + d] = -1;
}

int32_t builder_line(BatchBuilder *b, int32_t slot, const int32_t *tokens, int32_t n)
{
    const BatchSeq *seq = add_seq(b, slot, n, true);
    for (int32_t i = 0; i < n; i++) fill_row(b, seq, i, tokens[i], i ? seq->first_row + i - 1 : -1);
    return seq->first_row;
}

int32_t builder_tree(BatchBuilder *b, int32_t slot, const int32_t *tokens, const int32_t *parents, int32_t n)
{
    const BatchSeq *seq = add_seq(b, slot, n, false);
    CHECK(b->batch.n_uncertain_rows == seq->first_row);
    for (int32_t i = 0; i < n; i++) {
        int32_t parent = parents[i] < 0 ? -1 : seq->first_row + parents[i], row = seq->first_row + i;
        CHECK(parents[i] < i);
        fill_row(b, seq, i, tokens[i], parent);
        int32_t depth = b->index[row] - seq->n_committed;
        CHECK(depth < MAX_DEPTH);
        if (parent >= 0)
            memcpy(b->path + row * MAX_DEPTH, b->path + parent * MAX_DEPTH, (size_t)depth * sizeof(int32_t));
        b->path[row * MAX_DEPTH + depth] = row;
    }
    b->batch.n_uncertain_rows += n;
    return seq->first_row;
}

void builder_want(BatchBuilder *b, int32_t row, int32_t n)
{
    CHECK(b->batch.n_outputs + n <= b->options.max_outputs);
    for (int32_t i = 0; i < n; i++) b->output[b->batch.n_outputs++] = row + i;
}

/* ---- running ---- */

void builder_forward(BatchBuilder *b)
{
    Batch *batch = &b->batch;
    const BuilderOptions *o = &b->options;
    const ModelInfo *info = &b->model->info;
    const int64_t hidden = info->hidden_size;

    for (int axis = 0; axis < 3; axis++)
        memcpy(b->rope + axis * batch->n_rows, b->index, (size_t)batch->n_rows * sizeof(int32_t));
    for (int i = 0; i < b->n_groups; i++)
        if (b->groups[i].kind == CACHE_PER_TOKEN) batch->store[i] = b->store;
    batch->n_taps = o->n_taps;
    batch->taps = o->taps;
    if (o->n_taps) batch->features = tensor_2d(b->features, DT_F32, batch->n_rows, o->n_taps * hidden);
    if (o->wants_last_hidden) batch->last_hidden = tensor_2d(b->last_hidden, DT_F32, batch->n_rows, hidden);
    batch->logits = tensor_2d(b->logits, DT_F32, batch->n_outputs, info->vocab_size);

    b->model->forward(b->model, backend_stream(b->model->backend), batch);
    stream_sync(backend_stream(b->model->backend));
    for (int i = 0; i < batch->n_seqs; i++)
        if (b->seqs[i].certain) b->n_committed[b->seqs[i].slot] += b->seqs[i].n_rows;
}

void builder_commit(BatchBuilder *b, int32_t slot, const int32_t *nodes, int32_t n)
{
    int32_t rows[MAX_DEPTH], seq = 0;
    while (seq < b->batch.n_seqs && b->seqs[seq].slot != slot) seq++;
    CHECK(seq < b->batch.n_seqs && !b->seqs[seq].certain && n > 0 && n <= MAX_DEPTH && nodes[0] == 0);
    for (int32_t i = 0; i < n; i++) rows[i] = b->seqs[seq].first_row + nodes[i];
    b->model->commit(b->model, backend_stream(b->model->backend), &b->batch, &(Commit){ seq, n, rows }, 1);
    b->n_committed[slot] += n;
}

const float *builder_logits(const BatchBuilder *b, int32_t output)
{
    return b->logits + (size_t)output * (size_t)b->model->info.vocab_size;
}
