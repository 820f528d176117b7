/* MTP drafts: catching up with what was committed, then guess by guess.
 *
 * With tokens x[0 .. P] known, the anchor x[P] being one of them, the module's cache wants rows 0 .. P - 1: row t is
 * made of the target's hidden state of t and of x[t + 1]. What observe() is shown waits in a small store a slot, until
 *
 *     draft    makes the rows that wait, of all jobs in one pass, and the last one of each gives the first guess
 *     observe  has no room for more: makes all but the newest
 *
 * Further guesses are rows P, P + 1, ... made of the module's own output and the guess before. They lie behind the
 * committed ones and are written over when the true tokens are known: a draft begins from rows of true tokens only.
 *
 * Always: rows first_key .. n_seen - n_pending - 1 of a slot are in the cache, the n_pending behind them wait, and the
 * newest committed token waits unless it has just been drafted from. What was never shown lies before first_key and is
 * not looked at. */
#include "speculation/draft_mtp.h"

#include "base/arena.h"
#include "base/memory.h"
#include "sampling/row_chooser.h"

#include <string.h>

enum { DEFAULT_STEPS = 3, DEFAULT_PENDING = 64, MAX_PENDING = 4096 };
enum { SHARED_ROWS = 8 }; /* if more wait, all but the newest are made apart, without what nobody reads of the layer */

typedef struct Slot {
    int32_t  n_seen;    /* committed tokens that we were told of */
    int32_t  first_key;
    int32_t  n_pending;
    int32_t *next;      /* [max_pending] the token behind each that waits; -1 = not known yet */
} Slot;

/* A job that wants one more guess. */
typedef struct Wish {
    DraftJob *job;
    int32_t   left;     /* guesses still wanted, this one included */
    int32_t   output;   /* row of `out` and `logits` where its last row went */
} Wish;

typedef struct MtpDrafter {
    Drafter     face;   /* first: the two are converted into one another */
    DraftMethod method;
    MtpOptions  options;
    uint64_t    fingerprint; /* of the target */
    const Ops  *ops;
    Backend    *backend;
    Mtp        *mtp;
    RowChooser *chooser;
    CacheMemory memory;
    int32_t     hidden_size, vocab_size;
    MtpCounts   counts;

    Arena       arena;
    Slot       *slots;     /* [max_seqs] */
    Wish       *wishes;    /* [max_seqs] */
    int32_t    *ascending; /* 0, 1, 2 ... */
    float      *pending;   /* [max_seqs][max_pending][hidden] hidden states that wait */

    /* The pass in the making. */
    Batch       batch;
    BatchSeq   *seqs;
    int32_t    *token, *seq, *index, *rope, *parent, *path, *store, *output, *first_key;
    float      *hidden;    /* [max_rows][hidden] */
    float      *out;       /* [max_seqs][hidden] of the output rows */
    float      *logits;    /* [max_seqs][vocab] of kernels only */
    int32_t     n_outputs; /* in those two, from passes that have run */
} MtpDrafter;

/* ---- rows of a pass ---- */

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static Tensor matrix(float *data, int32_t first_row, int32_t rows, int32_t cols)
{
    return tensor_2d(data + (size_t)first_row * (size_t)cols, DT_F32, rows, cols);
}

static void run_pass(MtpDrafter *m, Stream *st)
{
    Batch *b = &m->batch;
    if (b->n_rows == 0) return;
    for (int axis = 0; axis < 3; axis++)
        memcpy(m->rope + (size_t)axis * (size_t)b->n_rows, m->index, (size_t)b->n_rows * sizeof *m->index);
    b->logits = matrix(m->logits, m->n_outputs, b->n_outputs, m->vocab_size);
    mtp_forward(m->mtp, st, b, matrix(m->hidden, 0, b->n_rows, m->hidden_size),
                matrix(m->out, m->n_outputs, b->n_outputs, m->hidden_size));
    m->counts.passes++;
    m->counts.rows += (uint64_t)b->n_rows;
    m->n_outputs += b->n_outputs;
    b->n_rows = b->n_seqs = b->n_outputs = 0;
}

/* The sequence that the next row belongs to: the newest one if the row goes on with it. */
static BatchSeq *seq_for(MtpDrafter *m, int32_t slot, int32_t position)
{
    Batch *b = &m->batch;
    BatchSeq *last = b->n_seqs ? &m->seqs[b->n_seqs - 1] : NULL;
    if (last && last->slot == slot) return last;
    CHECK(b->n_seqs < m->options.limits.max_seqs);
    m->seqs[b->n_seqs] = (BatchSeq){ .first_row = b->n_rows, .phase = SEQ_PROMPT, .n_committed = position, .slot = slot,
                                     .certain = true };
    return &m->seqs[b->n_seqs++];
}

static void put_row(MtpDrafter *m, int32_t slot, int32_t position, int32_t token)
{
    BatchSeq *seq = seq_for(m, slot, position);
    int32_t row = m->batch.n_rows++;
    m->token[row] = token;
    m->seq[row] = m->batch.n_seqs - 1;
    m->index[row] = position;
    m->parent[row] = seq->n_rows++ ? row - 1 : -1;
    m->store[row] = cache_store(&m->memory, slot, position);
    m->first_key[row] = m->slots[slot].first_key;
}

/* Rows of one slot from position `first` on: row i is made of hidden state states[rows[i]] and token next[i]. */
typedef struct Line {
    int32_t        slot, first, n;
    const int32_t *next, *rows;
    Tensor         states;
} Line;

/* Whenever the pass is full it runs. */
static void put_line(MtpDrafter *m, Stream *st, const Line *l)
{
    const int32_t most = m->options.limits.max_rows;
    for (int32_t done = 0, n; done < l->n; done += n) {
        if (m->batch.n_rows == most) run_pass(m, st);
        n = smaller(l->n - done, most - m->batch.n_rows);
        m->ops->gather_rows(st, matrix(m->hidden, m->batch.n_rows, n, m->hidden_size), l->states, l->rows + done, n);
        for (int32_t i = done; i < done + n; i++) put_row(m, l->slot, l->first + i, l->next[i]);
    }
}

/* The next n of the states that wait. */
static void put_pending(MtpDrafter *m, Stream *st, int32_t slot, int32_t first, int32_t n)
{
    const int32_t capacity = m->options.max_pending;
    const Slot *s = &m->slots[slot];
    put_line(m, st, &(Line){ .slot = slot, .first = s->n_seen - s->n_pending + first, .n = n, .next = s->next + first,
                             .rows = m->ascending + first,
                             .states = matrix(m->pending, slot * capacity, capacity, m->hidden_size) });
}

/* Asks for the logits behind the row put last. */
static void want_output(MtpDrafter *m)
{
    m->output[m->batch.n_outputs++] = m->batch.n_rows - 1;
}

/* ---- observing ---- */

static void slot_reset(Slot *s, int32_t n_seen)
{
    s->n_seen = s->first_key = n_seen;
    s->n_pending = 0;
}

/* The slot that the tokens belong to, at the place where they begin. Tokens that were never shown leave a gap, and the
 * rows before a gap cannot be used. */
static Slot *slot_at(MtpDrafter *m, const Accepted *a)
{
    CHECK(a->slot >= 0 && a->slot < m->options.limits.max_seqs && a->n > 0);
    Slot *s = &m->slots[a->slot];
    if (s->n_seen != a->first_index) slot_reset(s, a->first_index);
    if (s->n_pending) s->next[s->n_pending - 1] = a->tokens[0];
    return s;
}

static bool has_room(const MtpDrafter *m, const Slot *s, const Accepted *a)
{
    return s->n_pending + a->n <= m->options.max_pending;
}

/* Makes the rows of all but the newest token: those that wait, and the rest straight from the batch. */
static void catch_up(MtpDrafter *m, Stream *st, Slot *s, const Batch *batch, const Accepted *a)
{
    put_pending(m, st, a->slot, 0, s->n_pending);
    put_line(m, st, &(Line){ .slot = a->slot, .first = a->first_index, .n = a->n - 1, .next = a->tokens + 1,
                             .rows = a->rows, .states = batch->last_hidden });
    s->n_pending = 0;
}

/* Lets the newest n tokens wait. */
static void keep(MtpDrafter *m, Stream *st, Slot *s, const Batch *batch, const Accepted *a, int32_t n)
{
    const int32_t skipped = a->n - n, first = a->slot * m->options.max_pending + s->n_pending;
    m->ops->gather_rows(st, matrix(m->pending, first, n, m->hidden_size), batch->last_hidden, a->rows + skipped, n);
    for (int32_t i = skipped; i < a->n; i++) s->next[s->n_pending++] = i + 1 < a->n ? a->tokens[i + 1] : a->next_anchor;
    s->n_seen = a->first_index + a->n;
}

static void mtp_observe(Drafter *d, Stream *st, const Batch *batch, const Accepted *accepted, int n)
{
    MtpDrafter *m = (MtpDrafter *)d;
    CHECK(batch->last_hidden.data);
    for (int i = 0; i < n; i++) {
        Slot *s = slot_at(m, &accepted[i]);
        bool fits = has_room(m, s, &accepted[i]);
        if (!fits) catch_up(m, st, s, batch, &accepted[i]);
        keep(m, st, s, batch, &accepted[i], fits ? accepted[i].n : 1);
    }
    run_pass(m, st);
}

static void mtp_begin(Drafter *d, int32_t slot, uint64_t request_id, int32_t choice)
{
    MtpDrafter *m = (MtpDrafter *)d;
    CHECK(slot >= 0 && slot < m->options.limits.max_seqs);
    slot_reset(&m->slots[slot], 0);
}

static void mtp_forget(Drafter *d, int32_t slot)
{
    mtp_begin(d, slot, 0, 0);
}

/* ---- drafting ---- */

static int32_t guesses_wanted(const MtpDrafter *m, const DraftJob *job)
{
    int32_t n = smaller(job->max_nodes, job->tree->max_nodes) - 1;
    return smaller(smaller(n, m->options.n_steps), smaller(job->max_depth, MAX_DEPTH - 1));
}

/* Wishes of the jobs that we can draft for; returns how many. */
static int32_t make_wishes(MtpDrafter *m, DraftJob *jobs, int n)
{
    int32_t n_wishes = 0;
    for (int i = 0; i < n; i++) {
        DraftJob *job = &jobs[i];
        CHECK(job->slot >= 0 && job->slot < m->options.limits.max_seqs);
        tree_start(job->tree, job->anchor);
        Slot *s = &m->slots[job->slot];
        int32_t wanted = guesses_wanted(m, job);
        if (wanted < 1 || s->n_pending == 0 || s->n_seen != job->n_committed) continue;
        s->next[s->n_pending - 1] = job->anchor;
        m->wishes[n_wishes++] = (Wish){ .job = job, .left = wanted };
    }
    return n_wishes;
}

/* How many of the rows that wait, the newest ones, share the pass of the first guess. */
static int32_t n_shared(const Slot *s)
{
    return s->n_pending <= SHARED_ROWS ? s->n_pending : 1;
}

/* Rows that wait, up to the one made with the anchor, whose logits are the first guess. */
static void extend(MtpDrafter *m, Stream *st, int32_t n_wishes)
{
    for (int32_t i = 0; i < n_wishes; i++) {
        int32_t slot = m->wishes[i].job->slot;
        const Slot *s = &m->slots[slot];
        put_pending(m, st, slot, 0, s->n_pending - n_shared(s));
    }
    run_pass(m, st);
    m->n_outputs = 0;
    for (int32_t i = 0; i < n_wishes; i++) {
        int32_t slot = m->wishes[i].job->slot;
        Slot *s = &m->slots[slot];
        put_pending(m, st, slot, s->n_pending - n_shared(s), n_shared(s));
        want_output(m);
        m->wishes[i].output = i;
        s->n_pending = 0;
    }
    run_pass(m, st);
}

/* The row behind each job's newest guess, from the module's own output. */
static void chain(MtpDrafter *m, Stream *st, int32_t n_wishes)
{
    m->n_outputs = 0;
    for (int32_t i = 0; i < n_wishes; i++) {
        Wish *w = &m->wishes[i];
        const Tree *tree = w->job->tree;
        int32_t depth = tree->n_nodes - 1;
        put_line(m, st, &(Line){ .slot = w->job->slot, .first = w->job->n_committed + depth - 1, .n = 1,
                                 .next = &tree->token[depth], .rows = &w->output,
                                 .states = matrix(m->out, 0, m->options.limits.max_seqs, m->hidden_size) });
        want_output(m);
    }
    for (int32_t i = 0; i < n_wishes; i++) m->wishes[i].output = i;
    run_pass(m, st);
}

typedef struct Guess {
    RowRule      rule;
    SampleParams params;
    History      history;
    uint32_t     index;
} Guess;

/* What the target would choose by behind the chain so far. Its rule is known for the first guess only: deeper ones go on
 * without mask and forced token. */
static void guess_init(const MtpDrafter *m, const DraftJob *job, Guess *g)
{
    const Tree *tree = job->tree;
    *g = (Guess){ .rule = { .forced = -1 },
                  .params = { .temperature = job->temperature, .top_p = 1, .repetition_penalty = 1 },
                  .index = (uint32_t)(job->n_committed + tree->n_nodes) };
    if (job->rule) g->rule = *job->rule;
    if (g->rule.params) g->params = *g->rule.params;
    if (g->rule.history) {
        g->history = *g->rule.history;
        g->history.path = tree->token; /* a chain: nodes are in the order of the path */
        g->history.n_path = tree->n_nodes;
        g->rule.history = &g->history;
    }
    if (tree->n_nodes > 1) {
        g->rule.forced = -1;
        g->rule.mask = NULL;
    }
    if (m->options.is_uncoupled) g->params.temperature = 0;
    g->params.n_logprobs = -1;
    g->rule.params = &g->params;
}

/* Has the guesses behind the outputs of the pass chosen. */
static void queue_guesses(MtpDrafter *m, Stream *st, int32_t n_wishes)
{
    row_chooser_begin(m->chooser, matrix(m->logits, 0, m->n_outputs, m->vocab_size));
    for (int32_t i = 0; i < n_wishes; i++) {
        Guess g;
        guess_init(m, m->wishes[i].job, &g);
        row_chooser_add(m->chooser, m->wishes[i].output, &g.rule, m->wishes[i].job->draw, g.index);
    }
    row_chooser_queue(m->chooser, st);
}

/* -1: the logits are no numbers. */
static int32_t guess(MtpDrafter *m, const Wish *w)
{
    Guess g;
    Choice c;
    guess_init(m, w->job, &g);
    row_chooser_choose(m->chooser, w->output, &g.rule, w->job->draw, g.index, &c);
    return c.is_finite ? c.token : -1;
}

/* Adds every wish's guess to its tree and keeps those that want more; returns how many. */
static int32_t take_guesses(MtpDrafter *m, int32_t n_wishes)
{
    int32_t n_left = 0;
    for (int32_t i = 0; i < n_wishes; i++) {
        Wish w = m->wishes[i];
        int32_t token = guess(m, &w);
        m->counts.not_finite += token < 0;
        if (token < 0 || tree_add(w.job->tree, w.job->tree->n_nodes - 1, token, 0) < 0 || --w.left == 0) continue;
        m->wishes[n_left++] = w;
    }
    return n_left;
}

static Status mtp_draft(Drafter *d, Stream *st, DraftJob *jobs, int n, Error *err)
{
    MtpDrafter *m = (MtpDrafter *)d;
    int32_t n_wishes = make_wishes(m, jobs, n);
    if (n_wishes == 0) return OK;
    extend(m, st, n_wishes);
    queue_guesses(m, st, n_wishes);
    stream_sync(st);
    while ((n_wishes = take_guesses(m, n_wishes)) > 0) {
        chain(m, st, n_wishes);
        queue_guesses(m, st, n_wishes);
        stream_sync(st);
    }
    return OK;
}

/* ---- the target, the cache ---- */

static Status mtp_fits(const Drafter *d, const ModelInfo *target, Error *err)
{
    if (target->numerics.fingerprint == ((const MtpDrafter *)d)->fingerprint) return OK;
    Status s = mtp_check(target, err);
    return s ? s : error_set(err, ERR_INPUT, "the MTP module was opened for another model than this %s", target->name);
}

static CacheGroup group_of(CacheGroup group, int32_t n_steps)
{
    group.spare = n_steps - 1;
    return group;
}

static int mtp_groups(const Drafter *d, CacheGroup out[MAX_GROUPS])
{
    const MtpDrafter *m = (const MtpDrafter *)d;
    out[0] = group_of(mtp_group(m->mtp), m->options.n_steps);
    return 1;
}

static void mtp_bind_memory(Drafter *d, const CacheMemory memory[MAX_GROUPS])
{
    MtpDrafter *m = (MtpDrafter *)d;
    m->memory = memory[0];
    mtp_bind(m->mtp, memory[0]);
}

/* ---- opening ---- */

static void mtp_close_drafter(Drafter *d)
{
    MtpDrafter *m = (MtpDrafter *)d;
    float *floats[] = { m->pending, m->hidden, m->out, m->logits };
    for (int i = 0; i < COUNT(floats); i++)
        if (floats[i]) backend_free(m->backend, floats[i]);
    arena_free(&m->arena);
    row_chooser_close(m->chooser);
    mtp_close(m->mtp);
    mem_free(m);
}

static Status read_options(MtpOptions *out, const MtpOptions *options, Error *err)
{
    MtpOptions o = *options;
    const ModelLimits *l = &o.limits;
    if (o.n_steps == 0) o.n_steps = DEFAULT_STEPS;
    if (o.max_pending == 0) o.max_pending = DEFAULT_PENDING;
    *out = o;
    if (o.n_steps < 1 || o.n_steps >= MAX_DEPTH)
        return error_set(err, ERR_INPUT, "an MTP draft has 1 to %d tokens, got %d", MAX_DEPTH - 1, o.n_steps);
    if (o.max_pending < 1 || o.max_pending > MAX_PENDING)
        return error_set(err, ERR_INPUT, "1 to %d tokens may wait for an MTP draft, got %d", MAX_PENDING,
                         o.max_pending);
    if (l->max_seqs < 1 || l->max_rows < l->max_seqs)
        return error_set(err, ERR_INPUT, "MTP drafts of %d sequences need passes of as many rows, not %d", l->max_seqs,
                         l->max_rows);
    return OK;
}

/* Bytes of the arena: what each row takes, and each slot. */
static size_t arena_bytes(const MtpOptions *o)
{
    enum { ROW_INTS = 9 + MAX_DEPTH, N_ARRAYS = 16, LINE = 64 };
    size_t rows = (size_t)o->limits.max_rows, slots = (size_t)o->limits.max_seqs, pending = (size_t)o->max_pending;
    size_t ints = rows * ROW_INTS + slots * (1 + pending) + pending;
    return ints * sizeof(int32_t) + slots * (sizeof(Slot) + sizeof(Wish) + sizeof(BatchSeq)) +
           (N_ARRAYS + slots) * LINE;
}

static size_t float_bytes(const MtpOptions *o, int32_t hidden_size, int32_t vocab_size)
{
    size_t slots = (size_t)o->limits.max_seqs, hidden = (size_t)hidden_size;
    size_t states = slots * (size_t)o->max_pending + (size_t)o->limits.max_rows + slots;
    return (states * hidden + slots * (size_t)vocab_size) * sizeof(float);
}

Status drafter_mtp_needs(const MtpOptions *options, const ModelInfo *target, MtpNeeds *out, Error *err)
{
    enum { CHOOSER_ID_BYTES = 24 };
    MtpOptions o;
    Status s = read_options(&o, options, err);
    if (!s) s = mtp_needs(target, o.limits.max_rows, o.limits.max_seqs, out, err);
    if (s) return s;
    const ModelConfig *c = target->config;
    out->group = group_of(out->group, o.n_steps);
    out->scratch_bytes += arena_bytes(&o) + float_bytes(&o, c->hidden_size, c->vocab_size) +
                          (size_t)c->vocab_size * CHOOSER_ID_BYTES;
    return OK;
}

static bool take_slots(MtpDrafter *m)
{
    Arena *a = &m->arena;
    size_t slots = (size_t)m->options.limits.max_seqs, pending = (size_t)m->options.max_pending;
    m->slots = arena_array(a, Slot, slots);
    m->wishes = arena_array(a, Wish, slots);
    m->ascending = arena_array(a, int32_t, pending);
    if (!m->slots || !m->wishes || !m->ascending) return false;
    for (size_t i = 0; i < pending; i++) m->ascending[i] = (int32_t)i;
    for (size_t i = 0; i < slots; i++)
        if (!(m->slots[i].next = arena_array(a, int32_t, pending))) return false;
    return true;
}

static bool take_rows(MtpDrafter *m)
{
    Arena *a = &m->arena;
    size_t rows = (size_t)m->options.limits.max_rows, slots = (size_t)m->options.limits.max_seqs;
    m->seqs = arena_array(a, BatchSeq, slots);
    m->output = arena_array(a, int32_t, slots);
    int32_t **arrays[] = { &m->token, &m->seq, &m->index, &m->parent, &m->store, &m->first_key };
    for (int i = 0; i < COUNT(arrays); i++)
        if (!(*arrays[i] = arena_array(a, int32_t, rows))) return false;
    m->rope = arena_array(a, int32_t, 3 * rows);
    m->path = arena_array(a, int32_t, rows * MAX_DEPTH);
    if (!m->seqs || !m->output || !m->rope || !m->path) return false;
    for (size_t i = 0; i < rows * MAX_DEPTH; i++) m->path[i] = -1; /* rows are certain, always */
    m->batch = (Batch){ .seqs = m->seqs, .token = m->token, .seq = m->seq, .index = m->index, .rope = m->rope,
                        .parent = m->parent, .path = m->path, .first_key = m->first_key, .store = { m->store },
                        .output = m->output };
    return true;
}

static bool take_floats(MtpDrafter *m)
{
    const ModelLimits *l = &m->options.limits;
    size_t slots = (size_t)l->max_seqs, hidden = (size_t)m->hidden_size * sizeof(float);
    m->pending = backend_alloc_device(m->backend, slots * (size_t)m->options.max_pending * hidden);
    m->hidden = backend_alloc_device(m->backend, (size_t)l->max_rows * hidden);
    m->out = backend_alloc_device(m->backend, slots * hidden);
    m->logits = backend_alloc_device(m->backend, slots * (size_t)m->vocab_size * sizeof(float));
    return m->pending && m->hidden && m->out && m->logits;
}

static Status open_parts(MtpDrafter *m, Error *err)
{
    const MtpOptions *o = &m->options;
    MtpLoad load = { .dir = o->dir, .load_format = o->load_format, .dummy_seed = o->dummy_seed,
                     .max_rows = o->limits.max_rows, .max_outputs = o->limits.max_seqs };
    Status s = mtp_open(&m->mtp, o->target, &load, err);
    if (!s) s = row_chooser_open(&m->chooser, m->backend, m->vocab_size, o->limits.max_seqs, 0, err);
    if (s) return s;
    arena_init(&m->arena, arena_bytes(o), arena_bytes(o));
    if (take_slots(m) && take_rows(m) && take_floats(m)) return OK;
    return error_set(err, ERR_NOMEM, "no memory for MTP drafts of %d sequences", o->limits.max_seqs);
}

static void set_face(MtpDrafter *m)
{
    m->method = (DraftMethod){ .name = "mtp", .max_nodes = m->options.n_steps + 1, .max_depth = m->options.n_steps,
                               .expected_first = 0.3f };
    m->face = (Drafter){ .name = "mtp",
                         .n_methods = 1,
                         .methods = &m->method,
                         .wants_last_hidden = true,
                         .fits = mtp_fits,
                         .groups = mtp_groups,
                         .bind = mtp_bind_memory,
                         .begin = mtp_begin,
                         .observe = mtp_observe,
                         .draft = mtp_draft,
                         .forget = mtp_forget,
                         .close = mtp_close_drafter };
}

Status drafter_open_mtp(Drafter **out, const MtpOptions *options, Error *err)
{
    *out = NULL;
    MtpOptions o;
    Status s = read_options(&o, options, err);
    if (s) return s;
    MtpDrafter *m = mem_alloc(sizeof *m);
    if (!m) return error_set(err, ERR_NOMEM, "no memory for MTP drafts");
    const Model *target = o.target;
    m->options = o;
    m->fingerprint = target->info.numerics.fingerprint;
    m->ops = target->ops;
    m->backend = target->backend;
    m->hidden_size = target->info.hidden_size;
    m->vocab_size = target->info.vocab_size;
    set_face(m);
    s = open_parts(m, err);
    if (s) {
        mtp_close_drafter(&m->face);
        return s;
    }
    m->method.fingerprint = mtp_fingerprint(m->mtp);
    *out = &m->face;
    return OK;
}

MtpCounts drafter_mtp_counts(const Drafter *d)
{
    return ((const MtpDrafter *)d)->counts;
}
