/* See fake_model.h. The contract of Model is checked at every call: what one slot may say about its committed tokens
 * follows from what forward and commit did before. */
#include "support/fake_model.h"

#include "base/memory.h"

#include <math.h>
#include <string.h>

enum { HIDDEN = 4, LAYERS = 2, MAX_SLOTS_SEEN = 256 };

typedef struct Entry {
    int32_t token, index;
} Entry;

typedef struct FakeModel {
    Model face; /* first: the two are converted into one another */
    ModelConfig config;
    FakeModelOptions options;
    FakeModelCounts counts;
    CacheMemory kv, state;
    int32_t *log;                      /* [max_rows] tokens of the last pass's uncertain rows */
    int32_t committed[MAX_SLOTS_SEEN]; /* what a slot has by now; -1 = a verify pass was not committed */
} FakeModel;

/* ---- the function ---- */

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

static uint64_t fold_kv(uint64_t h, Entry a, Entry b)
{
    return mix(mix(mix(mix(h, (uint32_t)a.token), (uint32_t)a.index), (uint32_t)b.token), (uint32_t)b.index);
}

static Entry entry_of(int layer, int32_t token, int32_t index)
{
    return layer ? (Entry){ ~token, 3 * index } : (Entry){ token, index };
}

static uint64_t fold_state(int layer, uint64_t s, int32_t token)
{
    return mix(s + 1, (uint64_t)token * 5 + (uint64_t)layer);
}

static void logits_of(const FakeModelOptions *o, uint64_t kv, const uint64_t state[LAYERS], float *logits)
{
    uint64_t h = mix(mix(mix(o->seed, kv), state[0]), state[1]);
    for (int32_t v = 0; v < o->vocab_size; v++) logits[v] = (float)(mix(h, (uint64_t)v) >> 44) * 0x1p-18f; /* [0, 4) */
}

static bool is_poisoned(const FakeModelOptions *o, int32_t first_token, int32_t n)
{
    return o->poison >= 0 && first_token == o->poison && n >= o->poison_after;
}

void fake_model_logits(const FakeModelOptions *o, const int32_t *tokens, int32_t n, float *logits)
{
    uint64_t kv = 0, state[LAYERS] = { 0 };
    for (int32_t i = 0; i < n; i++) {
        kv = fold_kv(kv, entry_of(0, tokens[i], i), entry_of(1, tokens[i], i));
        for (int l = 0; l < LAYERS; l++) state[l] = fold_state(l, state[l], tokens[i]);
    }
    logits_of(o, kv, state, logits);
    if (is_poisoned(o, tokens[0], n)) logits[n % o->vocab_size] = NAN;
}

/* ---- caches ---- */

static int fake_groups(const Model *m, CacheGroup out[MAX_GROUPS])
{
    const FakeModel *f = (const FakeModel *)m;
    out[0] = (CacheGroup){ .name = "kv",
                           .kind = CACHE_PER_TOKEN,
                           .tokens_per_entry = 1,
                           .spare = f->options.limits.max_uncertain_rows,
                           .n_layers = LAYERS,
                           .entry_bytes = sizeof(Entry),
                           .in_prefix = true };
    out[1] = (CacheGroup){ .name = "state",
                           .kind = CACHE_PER_SEQ,
                           .tokens_per_entry = 1,
                           .n_layers = LAYERS,
                           .entry_bytes = sizeof(uint64_t) };
    return 2;
}

static void fake_bind(Model *m, const CacheMemory memory[MAX_GROUPS])
{
    FakeModel *f = (FakeModel *)m;
    f->kv = memory[0];
    f->state = memory[1];
    memset(f->kv.data, 0x5a, f->kv.layer_bytes * LAYERS);
    memset(f->state.data, 0x5a, f->state.layer_bytes * LAYERS);
}

static Entry *kv_at(const FakeModel *f, int layer, int32_t store)
{
    CHECK(store >= f->kv.block_size &&
          ((size_t)store + 1) * sizeof(Entry) <= f->kv.layer_bytes); /* never the dump block */
    return (Entry *)((char *)f->kv.data + (size_t)layer * f->kv.layer_bytes) + store;
}

static int32_t store_of(const FakeModel *f, int32_t slot, int32_t entry)
{
    CHECK(entry / f->kv.block_size < f->kv.max_blocks);
    return cache_store(&f->kv, slot, entry);
}

static uint64_t *state_at(const FakeModel *f, int layer, int32_t slot)
{
    return (uint64_t *)((char *)f->state.data + (size_t)layer * f->state.layer_bytes) + slot;
}

/* ---- forward ---- */

static void check_batch(const FakeModel *f, const Batch *b)
{
    const ModelLimits *l = &f->options.limits;
    CHECK(b->n_rows >= 1 && b->n_rows <= l->max_rows && b->n_outputs <= l->max_outputs && b->n_seqs <= l->max_seqs);
    CHECK(b->n_uncertain_rows <= l->max_uncertain_rows);
    int32_t row = 0;
    bool was_certain = false;
    for (int32_t s = 0; s < b->n_seqs; s++) {
        const BatchSeq *q = &b->seqs[s];
        CHECK(q->first_row == row && q->n_rows >= 1 && q->slot >= 0 && q->slot < MAX_SLOTS_SEEN);
        CHECK(!was_certain || q->certain);
        CHECK(q->n_committed == 0 || q->n_committed == f->committed[q->slot]);
        for (int32_t t = 0; t < s; t++) CHECK(b->seqs[t].slot != q->slot);
        was_certain = q->certain;
        row += q->n_rows;
        CHECK(q->certain || b->n_uncertain_rows >= row);
    }
    CHECK(row == b->n_rows);
}

static void check_row(const FakeModel *f, const Batch *b, const BatchSeq *q, int32_t s, int32_t row)
{
    int32_t i = row - q->first_row;
    const int32_t *path = b->path + (size_t)row * MAX_DEPTH;
    CHECK(b->seq[row] == s && b->token[row] >= 0 && b->token[row] < f->options.vocab_size);
    CHECK(b->store[0][row] == store_of(f, q->slot, q->n_committed + i));
    for (int axis = 0; axis < 3; axis++) CHECK(b->rope[axis * b->n_rows + row] == b->index[row]);
    CHECK(i == 0 ? b->parent[row] == -1 : b->parent[row] >= q->first_row && b->parent[row] < row);
    if (q->certain) {
        CHECK(b->parent[row] == (i ? row - 1 : -1) && b->index[row] == q->n_committed + i);
        for (int d = 0; d < MAX_DEPTH; d++) CHECK(path[d] == -1);
        return;
    }
    int32_t depth = b->index[row] - q->n_committed;
    CHECK(depth >= 0 && depth < MAX_DEPTH && path[depth] == row && path[0] == q->first_row);
    CHECK(depth == 0 || path[depth - 1] == b->parent[row]);
    for (int d = depth + 1; d < MAX_DEPTH; d++) CHECK(path[d] == -1);
}

static void write_row(FakeModel *f, const Batch *b, int32_t row)
{
    for (int l = 0; l < LAYERS; l++) *kv_at(f, l, b->store[0][row]) = entry_of(l, b->token[row], b->index[row]);
    if (row < b->n_uncertain_rows) f->log[row] = b->token[row];
    for (int t = 0; t < b->n_taps; t++) tensor_f32(b->features, row)[t * HIDDEN] = (float)(b->token[row] + b->taps[t]);
    if (b->last_hidden.data) tensor_f32(b->last_hidden, row)[0] = (float)b->index[row];
}

static uint64_t fold_entry(const FakeModel *f, uint64_t kv, int32_t store)
{
    return fold_kv(kv, *kv_at(f, 0, store), *kv_at(f, 1, store));
}

/* Hash of the committed entries, and the states before the pass. */
static uint64_t committed_hash(const FakeModel *f, const BatchSeq *q, uint64_t state[LAYERS])
{
    uint64_t kv = 0;
    for (int32_t e = 0; e < q->n_committed; e++) kv = fold_entry(f, kv, store_of(f, q->slot, e));
    for (int l = 0; l < LAYERS; l++) state[l] = q->n_committed ? *state_at(f, l, q->slot) : 0;
    return kv;
}

static void put_logits(const FakeModel *f, const Batch *b, const BatchSeq *q, int32_t row, uint64_t kv,
                       const uint64_t state[LAYERS])
{
    for (int32_t o = 0; o < b->n_outputs; o++) {
        if (b->output[o] != row) continue;
        float *logits = tensor_f32(b->logits, o);
        logits_of(&f->options, kv, state, logits);
        int32_t n = b->index[row] + 1, first = kv_at(f, 0, store_of(f, q->slot, 0))->token;
        if (is_poisoned(&f->options, first, n)) logits[n % f->options.vocab_size] = NAN;
    }
}

static void run_line(FakeModel *f, const Batch *b, const BatchSeq *q)
{
    uint64_t state[LAYERS], kv = committed_hash(f, q, state);
    for (int32_t row = q->first_row; row < q->first_row + q->n_rows; row++) {
        kv = fold_entry(f, kv, store_of(f, q->slot, b->index[row]));
        for (int l = 0; l < LAYERS; l++) state[l] = fold_state(l, state[l], b->token[row]);
        put_logits(f, b, q, row, kv, state);
    }
    for (int l = 0; l < LAYERS; l++) *state_at(f, l, q->slot) = state[l];
    f->committed[q->slot] = q->n_committed + q->n_rows;
}

static void run_tree(FakeModel *f, const Batch *b, const BatchSeq *q)
{
    uint64_t before[LAYERS], base = committed_hash(f, q, before);
    for (int32_t row = q->first_row; row < q->first_row + q->n_rows; row++) {
        const int32_t *path = b->path + (size_t)row * MAX_DEPTH;
        uint64_t kv = base, state[LAYERS];
        memcpy(state, before, sizeof state);
        for (int d = 0; d < MAX_DEPTH && path[d] >= 0; d++) {
            kv = fold_entry(f, kv, b->store[0][path[d]]);
            for (int l = 0; l < LAYERS; l++) state[l] = fold_state(l, state[l], b->token[path[d]]);
        }
        put_logits(f, b, q, row, kv, state);
    }
    f->committed[q->slot] = -1;
}

static void count_batch(FakeModel *f, const Batch *b)
{
    FakeModelCounts *c = &f->counts;
    c->passes++;
    c->rows += (uint64_t)b->n_rows;
    c->uncertain_rows += (uint64_t)b->n_uncertain_rows;
    if (b->n_rows > c->most_rows) c->most_rows = b->n_rows;
    if (b->n_seqs > c->most_seqs) c->most_seqs = b->n_seqs;
    for (int32_t s = 0; s < b->n_seqs; s++)
        if (b->seqs[s].phase == SEQ_PROMPT && b->seqs[s].n_rows > c->most_prompt_rows)
            c->most_prompt_rows = b->seqs[s].n_rows;
}

static void fake_forward(Model *m, Stream *st, Batch *b)
{
    FakeModel *f = (FakeModel *)m;
    check_batch(f, b);
    count_batch(f, b);
    for (int32_t s = 0; s < b->n_seqs; s++)
        for (int32_t i = 0; i < b->seqs[s].n_rows; i++) check_row(f, b, &b->seqs[s], s, b->seqs[s].first_row + i);
    for (int32_t row = 0; row < b->n_rows; row++) write_row(f, b, row);
    for (int32_t s = 0; s < b->n_seqs; s++) (b->seqs[s].certain ? run_line : run_tree)(f, b, &b->seqs[s]);
}

/* ---- commit ---- */

static void commit_path(FakeModel *f, const Batch *b, const Commit *c)
{
    const BatchSeq *q = &b->seqs[c->seq];
    CHECK(!q->certain && f->committed[q->slot] == -1 && c->n_path >= 1 && c->path_rows[0] == q->first_row);
    for (int32_t d = 0; d < c->n_path; d++) {
        int32_t row = c->path_rows[d];
        CHECK(d == 0 || b->parent[row] == c->path_rows[d - 1]);
        for (int l = 0; l < LAYERS; l++) {
            *kv_at(f, l, store_of(f, q->slot, q->n_committed + d)) = *kv_at(f, l, b->store[0][row]);
            uint64_t old = q->n_committed + d ? *state_at(f, l, q->slot) : 0;
            *state_at(f, l, q->slot) = fold_state(l, old, f->log[row]);
        }
    }
    f->committed[q->slot] = q->n_committed + c->n_path;
}

static void fake_commit(Model *m, Stream *st, const Batch *b, const Commit *commits, int n)
{
    FakeModel *f = (FakeModel *)m;
    for (int i = 0; i < n; i++) commit_path(f, b, &commits[i]);
    f->counts.commits += (uint64_t)n;
}

/* ---- open ---- */

static void fake_close(Model *m)
{
    if (!m) return;
    mem_free(((FakeModel *)m)->log);
    mem_free(m);
}

Status fake_model_open(Model **out, Backend *backend, const FakeModelOptions *options, Error *err)
{
    *out = NULL;
    FakeModel *f = mem_alloc(sizeof *f);
    if (!f) return error_set(err, ERR_NOMEM, "no memory for the fake model");
    f->options = *options;
    f->log = mem_alloc_array((size_t)options->limits.max_rows, sizeof f->log[0]);
    if (!f->log) {
        fake_close(&f->face);
        return error_set(err, ERR_NOMEM, "no memory for the fake model's log");
    }
    f->config = (ModelConfig){ .vocab_size = options->vocab_size, .hidden_size = HIDDEN, .max_position = 1 << 20 };
    f->face = (Model){ .info = { .config = &f->config,
                                 .name = "fake",
                                 .vocab_size = options->vocab_size,
                                 .hidden_size = HIDDEN,
                                 .n_layers = LAYERS,
                                 .max_context = 1 << 20,
                                 .act = DT_F32 },
                       .ops = backend_ops(backend),
                       .backend = backend,
                       .groups = fake_groups,
                       .bind = fake_bind,
                       .forward = fake_forward,
                       .commit = fake_commit,
                       .close = fake_close };
    *out = &f->face;
    return OK;
}

FakeModelCounts fake_model_counts(const Model *m)
{
    return ((const FakeModel *)m)->counts;
}
