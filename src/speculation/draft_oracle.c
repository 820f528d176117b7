/* The oracle: drafts of any shape and acceptance, made from the answer itself. It exists so that every width, depth and
 * path of a verify pass can be reached on purpose, by any model, without a trained drafter.
 *
 * The spine is a line of true tokens from the anchor down. At each depth it is true with probability p; from its first
 * wrong token on it goes on with random ones, as a bad drafter would. A tree scatters the spine's nodes over its rows,
 * in order, and hangs every other row on a random node: so an accepted path jumps over rows, and rejected rows lie
 * before, between and behind it. Other rows never bear the true token where the walk could take it, so the chance to
 * accept d tokens, where the spine is that long, is p^d, whatever the shape.
 *
 * All is drawn from (seed, request, choice, place): a run can be repeated, and batch mates do not matter. */
#include "speculation/drafter.h"

#include "base/memory.h"
#include "sampling/philox.h"

typedef struct Oracle {
    Drafter       face; /* first: the two are converted into one another */
    OracleOptions options;
} Oracle;

/* Random numbers of one job. */
typedef struct Dice {
    uint32_t key[2], counter[4], words[4];
    int      left;
} Dice;

static Dice dice_of(const Oracle *o, const DraftJob *job)
{
    uint64_t seed = o->options.seed ^ (job->request_id >> 32) * 0x9E3779B97F4A7C15u;
    return (Dice){ .key = { (uint32_t)seed, (uint32_t)(seed >> 32) },
                   .counter = { 0, (uint32_t)job->request_id, (uint32_t)job->choice, (uint32_t)job->n_committed } };
}

static uint32_t dice_word(Dice *d)
{
    if (d->left == 0) {
        philox4x32(d->counter, d->key, d->words);
        d->counter[0]++;
        d->left = 4;
    }
    return d->words[--d->left];
}

static int32_t dice_below(Dice *d, int32_t n)
{
    return (int32_t)((uint64_t)dice_word(d) * (uint64_t)n >> 32);
}

static bool dice_chance(Dice *d, double p)
{
    return (dice_word(d) + 0.5) * 0x1p-32 < p;
}

/* One tree in the making. */
typedef struct Growth {
    const Oracle  *oracle;
    Tree          *tree;
    Dice           dice;
    int32_t        max_depth;
    const int32_t *truth;        /* [n_truth] tokens behind the anchor */
    int32_t        n_truth;
    int32_t        tip;          /* last node of the spine */
    bool           tip_is_true;  /* so are then all before it */
    int32_t        on_path[MAX_DEPTH]; /* true nodes by depth, the anchor first */
} Growth;

/* The token that the walk would follow below this node; -1: none, or not known. */
static int32_t true_child(const Growth *g, int32_t node)
{
    int32_t depth = g->tree->depth[node];
    return g->on_path[depth] == node && depth < g->n_truth ? g->truth[depth] : -1;
}

/* Adds a random child that is neither a sibling nor the true one; -1: the vocabulary has no other. */
static int32_t add_wrong(Growth *g, int32_t parent)
{
    int32_t vocab = g->oracle->options.vocab_size, avoid = true_child(g, parent);
    int32_t token = dice_below(&g->dice, vocab);
    for (int32_t i = 0; i < vocab; i++, token = token + 1 < vocab ? token + 1 : 0) {
        if (token != avoid && tree_child(g->tree, parent, token) < 0) return tree_add(g->tree, parent, token, 0);
    }
    return -1;
}

/* Chance that a node at this depth is true, when all above it are. */
static double chance_at(const OracleOptions *o, int32_t depth)
{
    if (o->n_by_depth == 0) return o->p;
    return o->by_depth[depth <= o->n_by_depth ? depth - 1 : o->n_by_depth - 1];
}

static void grow_spine(Growth *g)
{
    int32_t token = g->tip_is_true ? true_child(g, g->tip) : -1;
    g->tip_is_true = token >= 0 && dice_chance(&g->dice, chance_at(&g->oracle->options, g->tree->depth[g->tip] + 1));
    int32_t node = g->tip_is_true ? tree_add(g->tree, g->tip, token, 0) : add_wrong(g, g->tip);
    if (node < 0) return;
    g->tip = node;
    if (g->tip_is_true) g->on_path[g->tree->depth[node]] = node;
}

/* Half of the side rows lengthen the newest row, which makes branches; the others start anywhere. */
static void grow_side(Growth *g)
{
    int32_t n = g->tree->n_nodes, parent = dice_below(&g->dice, 2) ? n - 1 : dice_below(&g->dice, n);
    for (int32_t i = 0; i < n; i++, parent = parent + 1 < n ? parent + 1 : 0) {
        if (g->tree->depth[parent] < g->max_depth && add_wrong(g, parent) >= 0) return;
    }
}

/* The spine's nodes take random places among the rows: each row is spine with chance (still to come) / (rows left). */
static void grow(Growth *g, int32_t n_rows, bool chain)
{
    int32_t left = n_rows - 1;
    int32_t longest = left < g->max_depth ? left : g->max_depth;
    int32_t spine = longest;
    if (chain) {
        left = longest;
    } else if (longest > 0) {
        spine = 1 + dice_below(&g->dice, longest);
    }
    for (; left > 0; left--) {
        if (dice_below(&g->dice, left) < spine) {
            grow_spine(g);
            spine--;
        } else {
            grow_side(g);
        }
    }
}

static int32_t min3(int32_t a, int32_t b, int32_t c)
{
    int32_t ab = a < b ? a : b;
    return ab < c ? ab : c;
}

static Status oracle_draft(Drafter *d, Stream *st, DraftJob *jobs, int n, Error *err)
{
    const Oracle *o = (const Oracle *)d;
    const OracleOptions *options = &o->options;
    for (int i = 0; i < n; i++) {
        DraftJob *job = &jobs[i];
        Growth g = { .oracle = o, .tree = job->tree, .dice = dice_of(o, job), .tip_is_true = true,
                     .max_depth = min3(options->max_depth, job->max_depth, MAX_DEPTH - 1) };
        g.n_truth = options->truth(options->truth_ctx, job->request_id, job->choice, job->n_committed + 1, &g.truth);
        for (int k = 1; k < MAX_DEPTH; k++) g.on_path[k] = -1;
        tree_start(job->tree, job->anchor);
        grow(&g, min3(options->n_nodes, job->max_nodes, job->tree->max_nodes), options->chain);
    }
    return OK;
}

static Status oracle_fits(const Drafter *d, const ModelInfo *target, Error *err)
{
    int32_t vocab = ((const Oracle *)d)->options.vocab_size;
    if (vocab == target->vocab_size) return OK;
    return error_set(err, ERR_INPUT, "the oracle drafts from %d ids, the model has %d", vocab, target->vocab_size);
}

static int oracle_groups(const Drafter *d, CacheGroup out[MAX_GROUPS])
{
    return 0;
}

static void oracle_bind(Drafter *d, const CacheMemory memory[MAX_GROUPS])
{
}

static void oracle_begin(Drafter *d, int32_t slot, uint64_t request_id, int32_t choice)
{
}

static void oracle_observe(Drafter *d, Stream *st, const Batch *batch, const Accepted *accepted, int n)
{
}

static void oracle_forget(Drafter *d, int32_t slot)
{
}

static void oracle_close(Drafter *d)
{
    mem_free(d);
}

static Status options_check(const OracleOptions *o, Error *err)
{
    if (!(o->p >= 0 && o->p <= 1)) return error_set(err, ERR_INPUT, "the oracle's p must be in [0, 1], got %g", o->p);
    if (o->vocab_size < 2) return error_set(err, ERR_INPUT, "the oracle needs 2 ids to err, got %d", o->vocab_size);
    if (o->max_depth < 1 || o->max_depth >= MAX_DEPTH) {
        return error_set(err, ERR_INPUT, "the oracle's depth must be in [1, %d], got %d", MAX_DEPTH - 1, o->max_depth);
    }
    int32_t most = o->chain ? o->max_depth + 1 : TREE_MAX_NODES;
    if (o->n_nodes < 1 || o->n_nodes > most) {
        return error_set(err, ERR_INPUT, "the oracle's %s of depth %d has 1 to %d rows, got %d",
                         o->chain ? "chain" : "tree", o->max_depth, most, o->n_nodes);
    }
    return OK;
}

Status drafter_open_oracle(Drafter **out, const OracleOptions *options, Error *err)
{
    *out = NULL;
    CHECK(options->truth);
    Status s = options_check(options, err);
    if (s) return s;
    Oracle *o = mem_alloc(sizeof *o);
    if (!o) return error_set(err, ERR_NOMEM, "no memory for the oracle");
    o->options = *options;
    o->face = (Drafter){ .name = "oracle",
                         .fits = oracle_fits,
                         .groups = oracle_groups,
                         .bind = oracle_bind,
                         .begin = oracle_begin,
                         .observe = oracle_observe,
                         .draft = oracle_draft,
                         .forget = oracle_forget,
                         .close = oracle_close };
    *out = &o->face;
    return OK;
}
