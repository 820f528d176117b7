/* Prompt lookup with an index per slot.
 *
 * For every length n there is a hash table from n tokens to the place behind their latest occurrence. It holds places
 * only; the tokens are read from the job's ids, which is also how a hit is confirmed, so a wrong entry could cost a
 * guess and nothing else. Tables catch up with the ids at the next draft: each token is entered once. Places up to
 * but not including the end are entered, so that an ending does not find itself.
 *
 *     ids    ... a b c d e ... x b c        ending "b c" ──> table 2 ──> place of "d": draft d e ...
 *                      ^place        ^end
 *
 * A draft that reaches the end reads on in its own guesses: a text with period 3 is continued with period 3. */
#include "speculation/draft_ngram.h"

#include "base/memory.h"

typedef struct Slot {
    int32_t  n_indexed; /* places entered: 1 .. n_indexed */
    int32_t *table;     /* [n_lengths][capacity] places; 0 = free */
} Slot;

typedef struct Ngram {
    Drafter      face; /* first: the two are converted into one another */
    NgramOptions options;
    DraftMethod  method;
    int32_t      capacity; /* of a table, 1.5 x max_model_len: it is never full */
    int32_t     *tables;
    Slot        *slots;
} Ngram;

static NgramOptions with_defaults(NgramOptions o)
{
    if (o.min_n == 0) o.min_n = 2;
    if (o.max_n == 0) o.max_n = o.min_n > 4 ? o.min_n : 4;
    return o;
}

static int32_t capacity_for(const NgramOptions *o)
{
    return o->max_model_len + o->max_model_len / 2 + 1;
}

/* Elements of all tables; false when that overflows. */
static bool count_entries(const NgramOptions *o, size_t *n)
{
    size_t lengths = (size_t)(o->max_n - o->min_n + 1);
    return size_mul(lengths, (size_t)capacity_for(o), n) && size_mul(*n, (size_t)o->n_slots, n);
}

size_t drafter_ngram_bytes(const NgramOptions *options)
{
    NgramOptions o = with_defaults(*options);
    size_t n = 0, bytes = 0;
    if (!count_entries(&o, &n) || !size_mul(n, sizeof(int32_t), &bytes)) return SIZE_MAX;
    return bytes + (size_t)o.n_slots * sizeof(Slot) + sizeof(Ngram);
}

/* The entry of the n tokens before `place`: theirs, or the free one where they belong. */
static int32_t *find_entry(const Ngram *g, const Slot *slot, const int32_t *ids, int32_t n, int32_t place)
{
    const int32_t *tokens = ids + place - n;
    int32_t *table = slot->table + (size_t)(n - g->options.min_n) * (size_t)g->capacity;
    uint32_t hash = 0;
    for (int32_t i = 0; i < n; i++) hash = ((hash ^ (uint32_t)tokens[i]) * 0x9E3779B1u) ^ hash >> 15;
    int32_t at = (int32_t)((uint64_t)hash * (uint64_t)g->capacity >> 32);
    while (table[at] && memcmp(ids + table[at] - n, tokens, (size_t)n * sizeof *tokens)) {
        at = at + 1 < g->capacity ? at + 1 : 0;
    }
    return &table[at];
}

static void slot_reset(const Ngram *g, Slot *slot)
{
    size_t lengths = (size_t)(g->options.max_n - g->options.min_n + 1);
    if (slot->n_indexed > 0) memset(slot->table, 0, lengths * (size_t)g->capacity * sizeof *slot->table);
    slot->n_indexed = 0;
}

static void catch_up(const Ngram *g, Slot *slot, const int32_t *ids, int32_t n_ids)
{
    if (slot->n_indexed >= n_ids) slot_reset(g, slot); /* other ids than last time */
    for (int32_t place = slot->n_indexed + 1; place < n_ids; place++) {
        for (int32_t n = g->options.min_n; n <= g->options.max_n && n <= place; n++) {
            *find_entry(g, slot, ids, n, place) = place;
        }
    }
    slot->n_indexed = n_ids - 1;
}

/* Place behind the latest earlier occurrence of the longest ending that has one; 0: none. */
static int32_t look_up(const Ngram *g, const Slot *slot, const int32_t *ids, int32_t n_ids)
{
    for (int32_t n = g->options.max_n; n >= g->options.min_n; n--) {
        int32_t place = n < n_ids ? *find_entry(g, slot, ids, n, n_ids) : 0;
        if (place) return place;
    }
    return 0;
}

static int32_t guesses_wanted(const Ngram *g, const DraftJob *job)
{
    int32_t n = job->max_nodes < job->tree->max_nodes ? job->max_nodes - 1 : job->tree->max_nodes - 1;
    if (n > job->max_depth) n = job->max_depth;
    if (n > MAX_DEPTH - 1) n = MAX_DEPTH - 1;
    return g->options.max_tokens > 0 && n > g->options.max_tokens ? g->options.max_tokens : n;
}

/* Where the guesses of this job stand; 0 = it has none. */
static int32_t find_guesses(Ngram *g, const DraftJob *job)
{
    int32_t n_ids = job->n_committed + 1;
    CHECK(job->slot >= 0 && job->slot < g->options.n_slots);
    if (n_ids > g->options.max_model_len) return 0;
    Slot *slot = &g->slots[job->slot];
    catch_up(g, slot, job->ids, n_ids);
    return look_up(g, slot, job->ids, n_ids);
}

static int32_t ngram_foresee(Drafter *d, const DraftJob *job)
{
    Ngram *g = (Ngram *)d;
    return find_guesses(g, job) ? guesses_wanted(g, job) : 0;
}

static Status ngram_draft(Drafter *d, Stream *st, DraftJob *jobs, int n_jobs, Error *err)
{
    Ngram *g = (Ngram *)d;
    for (int i = 0; i < n_jobs; i++) {
        DraftJob *job = &jobs[i];
        tree_start(job->tree, job->anchor);
        int32_t n_ids = job->n_committed + 1, place = find_guesses(g, job), n = place ? guesses_wanted(g, job) : 0;
        for (int32_t k = 0; k < n; k++, place++) {
            tree_add(job->tree, k, place < n_ids ? job->ids[place] : job->tree->token[place - n_ids + 1], 0);
        }
    }
    return OK;
}

static void ngram_begin(Drafter *d, int32_t slot, uint64_t request_id, int32_t choice)
{
    Ngram *g = (Ngram *)d;
    CHECK(slot >= 0 && slot < g->options.n_slots);
    slot_reset(g, &g->slots[slot]);
}

static void ngram_forget(Drafter *d, int32_t slot)
{
    ngram_begin(d, slot, 0, 0);
}

static Status ngram_fits(const Drafter *d, const ModelInfo *target, Error *err)
{
    return OK;
}

static int ngram_groups(const Drafter *d, CacheGroup out[MAX_GROUPS])
{
    return 0;
}

static void ngram_bind(Drafter *d, const CacheMemory memory[MAX_GROUPS])
{
}

static void ngram_observe(Drafter *d, Stream *st, const Batch *batch, const Accepted *accepted, int n)
{
}

static void ngram_close(Drafter *d)
{
    Ngram *g = (Ngram *)d;
    mem_free(g->tables);
    mem_free(g->slots);
    mem_free(g);
}

static Status options_check(const NgramOptions *o, Error *err)
{
    if (o->min_n < 1 || o->max_n < o->min_n || o->max_n > NGRAM_LONGEST) {
        return error_set(err, ERR_INPUT, "n-gram lengths must be in [1, %d] and in order, got %d to %d", NGRAM_LONGEST,
                         o->min_n, o->max_n);
    }
    if (o->max_tokens < 0) return error_set(err, ERR_INPUT, "an n-gram draft cannot have %d tokens", o->max_tokens);
    if (o->n_slots < 1 || o->max_model_len < 1 || o->max_model_len > 1 << 30) {
        return error_set(err, ERR_INPUT, "an n-gram drafter for %d requests of %d tokens is not possible", o->n_slots,
                         o->max_model_len);
    }
    return OK;
}

Status drafter_open_ngram(Drafter **out, const NgramOptions *options, Error *err)
{
    *out = NULL;
    NgramOptions o = with_defaults(*options);
    Status s = options_check(&o, err);
    if (s) return s;
    size_t n_entries = 0;
    Ngram *g = mem_alloc(sizeof *g);
    if (g) g->slots = mem_alloc_array((size_t)o.n_slots, sizeof *g->slots);
    if (g && count_entries(&o, &n_entries)) g->tables = mem_alloc_array(n_entries, sizeof *g->tables);
    if (!g || !g->slots || !g->tables) {
        if (g) ngram_close(&g->face);
        return error_set(err, ERR_NOMEM, "no memory for n-gram drafts of %d requests of %d tokens", o.n_slots,
                         o.max_model_len);
    }
    g->options = o;
    g->capacity = capacity_for(&o);
    for (int32_t i = 0; i < o.n_slots; i++) g->slots[i].table = g->tables + n_entries / (size_t)o.n_slots * (size_t)i;
    int32_t most = o.max_tokens > 0 && o.max_tokens < MAX_DEPTH - 1 ? o.max_tokens : MAX_DEPTH - 1;
    g->method = (DraftMethod){ .name = "ngram", .max_nodes = most + 1, .max_depth = most };
    g->face = (Drafter){ .name = "ngram",
                         .n_methods = 1,
                         .methods = &g->method,
                         .fits = ngram_fits,
                         .groups = ngram_groups,
                         .bind = ngram_bind,
                         .begin = ngram_begin,
                         .observe = ngram_observe,
                         .draft = ngram_draft,
                         .foresee = ngram_foresee,
                         .forget = ngram_forget,
                         .close = ngram_close };
    *out = &g->face;
    return OK;
}
