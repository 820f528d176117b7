/* See score.h. The sequence is one slot whose block table counts up; every chunk is a certain sequence of known rows. */
#include "engine/score.h"

#include "base/memory.h"

#include <string.h>

enum { BLOCK = 16 };

struct Scorer {
    Model   *model;
    Backend *backend;
    int32_t  n_tokens, chunk, n_groups;
    CacheMemory memory[MAX_GROUPS];
    bool     per_token[MAX_GROUPS];
    int32_t *table, *ints; /* block table; all row arrays of a batch */
    float   *logits;
};

/* Row arrays, carved out of one allocation: token, seq, index, rope[3], parent, output, store, then path. */
enum { ROW_ARRAYS = 9 };

static Status bind_groups(Scorer *s, Error *err)
{
    CacheGroup groups[MAX_GROUPS];
    int32_t n_blocks = (s->n_tokens + BLOCK - 1) / BLOCK + 1;
    s->n_groups = s->model->groups(s->model, groups);
    for (int32_t b = 0; b + 1 < n_blocks; b++) s->table[b] = b + 1; /* block 0 is the dump block */
    for (int g = 0; g < s->n_groups; g++) {
        s->per_token[g] = groups[g].kind == CACHE_PER_TOKEN;
        size_t entries = s->per_token[g] ? (size_t)n_blocks * BLOCK : 1;
        size_t layer_bytes = entries * groups[g].entry_bytes;
        void *data = backend_alloc_device(s->backend, layer_bytes * (size_t)groups[g].n_layers);
        if (!data) return error_set(err, ERR_NOMEM, "no memory for the caches of %d tokens", s->n_tokens);
        s->memory[g] = (CacheMemory){ .data = data, .layer_bytes = layer_bytes, .block_size = BLOCK,
                                      .max_blocks = n_blocks, .block_table = s->per_token[g] ? s->table : NULL };
    }
    s->model->bind(s->model, s->memory);
    return OK;
}

Status score_open(Scorer **out, Model *model, Backend *backend, int32_t n_tokens, int32_t chunk, Error *err)
{
    *out = NULL;
    Scorer *s = mem_alloc(sizeof *s);
    if (!s) return error_set(err, ERR_NOMEM, "no memory for scoring");
    s->model = model;
    s->backend = backend;
    s->n_tokens = n_tokens;
    s->chunk = chunk;
    s->table = mem_alloc_array((size_t)n_tokens / BLOCK + 2, sizeof *s->table);
    s->ints = mem_alloc_array((size_t)chunk * (ROW_ARRAYS + MAX_DEPTH), sizeof *s->ints);
    s->logits = backend_alloc(backend, (size_t)chunk * (size_t)model->info.vocab_size * sizeof(float));
    Status status = s->table && s->ints && s->logits ? OK : error_set(err, ERR_NOMEM, "no memory for scoring");
    if (!status) status = bind_groups(s, err);
    if (status) { score_close(s); return status; }
    *out = s;
    return OK;
}

void score_close(Scorer *s)
{
    if (!s) return;
    for (int g = 0; g < s->n_groups; g++)
        if (s->memory[g].data) backend_free(s->backend, s->memory[g].data);
    if (s->logits) backend_free(s->backend, s->logits);
    mem_free(s->table);
    mem_free(s->ints);
    mem_free(s);
}

Tensor score_queue(Scorer *s, const int32_t *ids, int32_t first, int32_t n, int32_t n_outputs, float *logits)
{
    int32_t *a[ROW_ARRAYS], *path = s->ints + (size_t)ROW_ARRAYS * s->chunk;
    for (int k = 0; k < ROW_ARRAYS; k++) a[k] = s->ints + (size_t)k * s->chunk;
    int32_t *rope = a[3]; /* [3][n]: three arrays side by side, so n apart */
    for (int32_t i = 0; i < n; i++) {
        int32_t at = first + i;
        a[0][i] = ids[at];
        a[1][i] = 0;
        a[2][i] = at;
        rope[i] = rope[n + i] = rope[2 * n + i] = at;
        a[6][i] = i - 1;
        a[7][i] = n - n_outputs + i;
        a[8][i] = s->table[at / BLOCK] * BLOCK + at % BLOCK;
    }
    memset(path, 0xff, (size_t)n * MAX_DEPTH * sizeof *path);
    BatchSeq seq = { .first_row = 0, .n_rows = n, .phase = SEQ_PROMPT, .n_committed = first, .slot = 0, .certain = true };
    Batch batch = { .n_rows = n, .n_seqs = 1, .n_outputs = n_outputs, .seqs = &seq, .token = a[0], .seq = a[1], .index = a[2],
                    .rope = rope, .parent = a[6], .path = path, .output = a[7],
                    .logits = tensor_2d(logits, DT_F32, n_outputs, s->model->info.vocab_size) };
    for (int g = 0; g < s->n_groups; g++) batch.store[g] = s->per_token[g] ? a[8] : NULL;
    Stream *st = backend_stream(s->backend);
    if (!stream_pass_begin(st, s->model, &batch)) s->model->forward(s->model, st, &batch);
    stream_pass_end(st);
    return batch.logits;
}

Tensor score_pass(Scorer *s, const int32_t *ids, int32_t first, int32_t n, int32_t n_outputs)
{
    Tensor logits = score_queue(s, ids, first, n, n_outputs, s->logits);
    stream_sync(backend_stream(s->backend));
    return logits;
}

Status score_run(Scorer *s, const int32_t *ids, int32_t n, void (*rows)(void *ctx, int32_t first, Tensor logits), void *ctx,
                 Error *err)
{
    if (n > s->n_tokens) return error_set(err, ERR_INPUT, "%d tokens, but room for %d", n, s->n_tokens);
    for (int32_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= s->model->info.vocab_size)
            return error_set(err, ERR_INPUT, "token id %d at place %d is outside the vocabulary of %d", ids[i], i,
                             s->model->info.vocab_size);
    numeric_mode_enter();
    for (int32_t first = 0; first < n; first += s->chunk) {
        int32_t take = n - first < s->chunk ? n - first : s->chunk;
        Tensor logits = score_pass(s, ids, first, take, take);
        const char *lost = stream_lost(backend_stream(s->backend));
        if (lost) return error_set(err, ERR_LOST, "%s", lost);
        rows(ctx, first, logits);
    }
    return OK;
}
