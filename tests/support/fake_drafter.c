/* See fake_drafter.h. Per slot it remembers all tokens it was told of; a draft whose ids disagree stops the test. Its cache
 * group holds one entry a token, written in observe and read back in draft; entries behind the committed ones are
 * overwritten in draft, as a real drafter's block rows would be. */
#include "support/fake_drafter.h"

#include "base/memory.h"

#include <string.h>

enum { MAX_SEQS_SEEN = 64, MAX_IDS = 1024, SPARE = 20 };

typedef struct SlotMemory {
    bool is_live;
    int32_t n, next_anchor;
    int32_t tokens[MAX_IDS];
} SlotMemory;

typedef struct FakeDrafter {
    Drafter face; /* first: the two are converted into one another */
    FakeDrafterOptions options;
    DraftMethod method[2];
    FakeDrafterCounts counts;
    int32_t n_calls;
    CacheMemory memory;
    Chooser *chooser;
    float *logits; /* [vocab] */
    uint64_t random;
    SlotMemory slots[MAX_SEQS_SEEN];
} FakeDrafter;

static const int32_t fake_taps[] = { 0, 1 };

static uint32_t dice(FakeDrafter *f, uint32_t n)
{
    f->random = f->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((f->random >> 33) % n);
}

static bool chance(FakeDrafter *f, double p)
{
    return dice(f, 1 << 20) < p * (1 << 20);
}

static int32_t *entry_at(const FakeDrafter *f, int32_t slot, int32_t e)
{
    int32_t store = cache_store(&f->memory, slot, e);
    CHECK(store >= f->memory.block_size); /* never the dump block */
    return (int32_t *)f->memory.data + store;
}

/* ---- what the engine says ---- */

static void fake_begin(Drafter *d, int32_t slot, uint64_t request_id, int32_t choice)
{
    SlotMemory *s = &((FakeDrafter *)d)->slots[slot];
    CHECK(!s->is_live);
    s->is_live = true;
    s->n = 0;
    s->next_anchor = -1;
}

static void fake_forget(Drafter *d, int32_t slot)
{
    SlotMemory *s = &((FakeDrafter *)d)->slots[slot];
    CHECK(s->is_live);
    s->is_live = false;
}

static void check_features(const FakeDrafter *f, const Batch *batch, const Accepted *a, int32_t i)
{
    int64_t hidden = batch->last_hidden.shape[1];
    for (int t = 0; t < COUNT(fake_taps); t++)
        CHECK(tensor_f32(batch->features, a->rows[i])[(f->face.tap_column + t) * hidden] == (float)(a->tokens[i] + fake_taps[t]));
    CHECK(tensor_f32(batch->last_hidden, a->rows[i])[0] == (float)(a->first_index + i));
}

static void fake_observe(Drafter *d, Stream *st, const Batch *batch, const Accepted *accepted, int n)
{
    FakeDrafter *f = (FakeDrafter *)d;
    for (int k = 0; k < n; k++) {
        const Accepted *a = &accepted[k];
        SlotMemory *s = &f->slots[a->slot];
        CHECK(s->is_live && a->first_index == s->n && a->n >= 1 && s->n + a->n <= MAX_IDS);
        CHECK(s->next_anchor == -1 || s->next_anchor == a->tokens[0]);
        for (int32_t i = 0; i < a->n; i++) {
            CHECK(batch->token[a->rows[i]] == a->tokens[i] && batch->index[a->rows[i]] == a->first_index + i);
            if (f->options.wants_features) check_features(f, batch, a, i);
            *entry_at(f, a->slot, s->n) = a->tokens[i];
            s->tokens[s->n++] = a->tokens[i];
        }
        s->next_anchor = a->next_anchor;
        f->counts.observed += (uint64_t)a->n;
    }
}

/* ---- drafting ---- */

/* The token that will be chosen behind ids and path[1..n_path); path[0] is the anchor, the last of ids. */
static int32_t true_token(FakeDrafter *f, const DraftJob *job, const int32_t *path, int32_t n_path)
{
    int32_t ids[MAX_IDS + MAX_DEPTH], n = job->n_committed + 1;
    memcpy(ids, job->ids, (size_t)n * sizeof ids[0]);
    memcpy(ids + n, path + 1, (size_t)(n_path - 1) * sizeof ids[0]);
    fake_model_logits(&f->options.model, ids, n + n_path - 1, f->logits);
    History history = *job->rule->history;
    RowRule rule = *job->rule;
    history.path = path;
    history.n_path = n_path;
    rule.history = &history;
    Choice choice;
    choose(f->chooser, f->logits, &rule, job->draw, (uint32_t)(n + n_path - 1), &choice);
    return choice.is_finite ? choice.token : 0;
}

static int32_t guess(FakeDrafter *f, const DraftJob *job, int32_t parent)
{
    if (!chance(f, f->options.p_true)) return (int32_t)dice(f, (uint32_t)f->options.model.vocab_size);
    int32_t nodes[MAX_DEPTH], tokens[MAX_DEPTH], n = 0;
    tree_path(job->tree, parent, nodes);
    for (; n < MAX_DEPTH && nodes[n] >= 0; n++) tokens[n] = job->tree->token[nodes[n]];
    return true_token(f, job, tokens, n);
}

static void grow(FakeDrafter *f, const DraftJob *job)
{
    int32_t wanted = 1 + (int32_t)dice(f, (uint32_t)job->max_nodes), parent = 0;
    for (int32_t tries = 0; job->tree->n_nodes < wanted && tries < 4 * wanted; tries++) {
        if (job->tree->depth[parent] >= job->max_depth) {
            if (f->options.chain) break;
            parent = 0;
        }
        int32_t node = tree_add(job->tree, parent, guess(f, job, parent), 0);
        if (node < 0) break;
        parent = f->options.chain || dice(f, 3) ? node : (int32_t)dice(f, (uint32_t)job->tree->n_nodes);
    }
}

static void spoil(FakeDrafter *f, const DraftJob *job)
{
    Tree *t = job->tree;
    if (t->n_nodes < 2) return;
    int32_t at = 1 + (int32_t)dice(f, (uint32_t)t->n_nodes - 1);
    switch (dice(f, 7)) {
    case 0: t->token[at] = f->options.model.vocab_size; break;
    case 1: t->token[at] = -7; break;
    case 2: t->parent[at] = at; break;
    case 3: t->depth[at] += 1; break;
    case 4: t->token[0] = (t->token[0] + 1) % f->options.model.vocab_size; break;
    case 5: t->n_nodes = t->max_nodes + 1; break;
    case 6: /* a proper tree, but deeper than was asked for */
        for (at = 0; at >= 0 && t->depth[at] <= job->max_depth;)
            at = tree_add(t, at, (t->token[at] + 1) % f->options.model.vocab_size, 0);
        if (at < 0) return;
        break;
    }
    f->counts.broken_trees++;
}

/* The committed entries are the tokens we were told; then what lies behind them is written over. */
static void check_own_cache(FakeDrafter *f, const DraftJob *job)
{
    const SlotMemory *s = &f->slots[job->slot];
    CHECK(s->is_live && s->n == job->n_committed && s->next_anchor == job->anchor && job->ids[s->n] == job->anchor);
    for (int32_t i = 0; i < s->n; i++) CHECK(s->tokens[i] == job->ids[i] && *entry_at(f, job->slot, i) == s->tokens[i]);
    for (int32_t i = 0; i < SPARE; i++) *entry_at(f, job->slot, s->n + i) = -1;
}

static Status fake_draft(Drafter *d, Stream *st, DraftJob *jobs, int n, Error *err)
{
    FakeDrafter *f = (FakeDrafter *)d;
    bool is_dead = f->options.dies_after && ++f->n_calls > f->options.dies_after;
    bool fails = chance(f, f->options.p_fail) || is_dead;
    f->counts.failed_calls += fails;
    for (int i = 0; i < n; i++) {
        DraftJob *job = &jobs[i];
        CHECK(job->max_nodes >= 2 && job->max_nodes <= job->tree->max_nodes && job->max_depth >= 1 &&
              job->max_depth < MAX_DEPTH);
        CHECK(!f->options.depth || job->max_depth <= f->options.depth);
        check_own_cache(f, job);
        tree_start(job->tree, job->anchor);
        grow(f, job);
        f->counts.jobs++;
        f->counts.nodes += (uint64_t)job->tree->n_nodes - 1;
        if (chance(f, f->options.p_broken)) spoil(f, job);
    }
    return fails ? error_set(err, ERR_NUMERIC, "the fake drafter was told to fail") : OK;
}

/* ---- open ---- */

static Status fake_fits(const Drafter *d, const ModelInfo *target, Error *err)
{
    const FakeDrafter *f = (const FakeDrafter *)d;
    if (target->vocab_size == f->options.model.vocab_size) return OK;
    return error_set(err, ERR_INPUT, "the fake drafter has %d ids, the model %d", f->options.model.vocab_size,
                     target->vocab_size);
}

static int fake_groups(const Drafter *d, CacheGroup out[MAX_GROUPS])
{
    out[0] = (CacheGroup){ .name = "fake_kv",
                           .kind = CACHE_PER_TOKEN,
                           .tokens_per_entry = 1,
                           .spare = SPARE,
                           .n_layers = 1,
                           .entry_bytes = sizeof(int32_t) };
    return 1;
}

static void fake_bind(Drafter *d, const CacheMemory memory[MAX_GROUPS])
{
    ((FakeDrafter *)d)->memory = memory[0];
}

static void fake_close(Drafter *d)
{
    FakeDrafter *f = (FakeDrafter *)d;
    chooser_close(f->chooser);
    mem_free(f->logits);
    mem_free(f);
}

Status fake_drafter_open(Drafter **out, const FakeDrafterOptions *options, Error *err)
{
    *out = NULL;
    FakeDrafter *f = mem_alloc(sizeof *f);
    if (!f) return error_set(err, ERR_NOMEM, "no memory for the fake drafter");
    f->options = *options;
    f->random = options->seed;
    f->method[0] = (DraftMethod){ .name = options->name ? options->name : "fake", .is_tree = true, .max_nodes = TREE_MAX_NODES,
                               .max_depth = MAX_DEPTH - 1, .expected_first = options->expected_first };
    f->method[1] = f->method[0];
    f->method[1].name = options->second;
    f->face = (Drafter){ .name = f->method[0].name,
                         .n_methods = options->second ? 2 : 1,
                         .methods = f->method,
                         .fits = fake_fits,
                         .groups = fake_groups,
                         .bind = fake_bind,
                         .begin = fake_begin,
                         .observe = fake_observe,
                         .draft = fake_draft,
                         .forget = fake_forget,
                         .close = fake_close };
    if (options->wants_features) {
        f->face.n_taps = COUNT(fake_taps);
        f->face.taps = fake_taps;
        f->face.wants_last_hidden = true;
    }
    f->logits = mem_alloc_array((size_t)options->model.vocab_size, sizeof f->logits[0]);
    Status s = f->logits ? chooser_open(&f->chooser, options->model.vocab_size, err)
                         : error_set(err, ERR_NOMEM, "no memory for the fake drafter");
    if (s) {
        fake_close(&f->face);
        return s;
    }
    *out = &f->face;
    return OK;
}

FakeDrafterCounts fake_drafter_counts(const Drafter *d)
{
    return ((const FakeDrafter *)d)->counts;
}
