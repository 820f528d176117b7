/* Guesses under the request's own rules: what the target will not be allowed to choose is not proposed, and penalties,
 * left out, would push accepted runs apart as a text grows (docs/spec/speculation.md 2.5).
 *
 * A chain is chosen row by row as the target chooses, filters and noise included, with the drafter's logits in place
 * of the target's: argmax of logit / t + noise for a temperature t. In a tree a row has many pasts: rules are applied
 * as if every row stood behind the anchor, and the score of a guess is logit + t * noise, the same order, but as sharp
 * as the drafter's own law, which tells how much a guess of one row is worth beside those of another. Masks and forced
 * tokens of a grammar are known for the first row only. */
#include "speculation/dflash_guess.h"

#include "base/memory.h"
#include "sampling/noise.h"
#include "sampling/row.h"
#include "sampling/rules.h"
#include "sampling/topk.h"

#include <string.h>

Status dflash_guess_open(DflashGuess *g, Backend *backend, const DflashGuessSizes *sizes, Error *err)
{
    int32_t budget = sizes->tree_budget, ranks = budget > sizes->top_k ? budget : sizes->top_k;
    *g = (DflashGuess){ .vocab_size = sizes->vocab_size, .n_usable = sizes->n_usable, .max_budget = budget,
                        .is_uncoupled = sizes->is_uncoupled };
    g->marks = mem_alloc_array((size_t)g->vocab_size, sizeof *g->marks);
    if (budget > 0) g->best = mem_alloc_array((size_t)budget, sizeof *g->best);
    Status s = g->marks && (g->best || budget == 0) ? OK : error_set(err, ERR_NOMEM, "no memory to guess tokens");
    if (!s) s = row_chooser_open(&g->rows, backend, g->vocab_size, sizes->max_rows, ranks, err);
    if (!s && budget > 0) s = ddtree_open(&g->trees, budget, MAX_DEPTH - 1, err);
    if (s) dflash_guess_close(g);
    return s;
}

void dflash_guess_close(DflashGuess *g)
{
    row_chooser_close(g->rows);
    ddtree_close(g->trees);
    mem_free(g->marks);
    mem_free(g->best);
    *g = (DflashGuess){ 0 };
}

/* ---- rules of a row that does not exist yet ---- */

typedef struct GuessRule {
    RowRule      rule;
    SampleParams params;
    History      history;
    int32_t      path[MAX_DEPTH];
} GuessRule;

/* Weight of the noise in a guess. The target's draw weighs it fully, but its logits are not the drafter's, least of
 * all in rows whose past is guessed too; where they differ, noise misleads. Tokens a round, 16 texts each of the two
 * small pairs, T = 0.7 and 1, for weights 0, 0.5, 0.75, 1: chains 1.44, 1.48, 1.48, 1.46; trees of 32 nodes 1.98,
 * 2.08, 2.10, 2.05. */
static const float TRUST = 0.75f;

float dflash_guess_temperature(const DflashGuess *g, const DraftJob *job)
{
    return g->is_uncoupled ? 0 : TRUST * job->temperature;
}

static void rule_init(const DflashGuess *g, const DraftJob *job, GuessRule *r)
{
    static const SampleParams plain = { .top_p = 1, .repetition_penalty = 1 };
    *r = (GuessRule){ .rule = { .forced = -1 }, .params = plain };
    r->params.temperature = job->temperature;
    if (job->rule) {
        r->rule = *job->rule;
        r->params = *job->rule->params;
        if (job->rule->history) r->history = *job->rule->history;
    }
    CHECK(r->history.n_path < MAX_DEPTH);
    if (r->history.n_path > 0) memcpy(r->path, r->history.path, (size_t)r->history.n_path * sizeof *r->path);
    r->history.path = r->path;
    r->rule.history = &r->history;
    r->rule.params = &r->params;
    if (r->rule.n_valid <= 0 || r->rule.n_valid > g->n_usable) r->rule.n_valid = g->n_usable;
    r->params.n_logprobs = -1;
    r->params.temperature = dflash_guess_temperature(g, job);
}

/* Masks and forced tokens are known for the first row only. */
static void rule_pass_first(GuessRule *r)
{
    r->rule.forced = -1;
    r->rule.mask = NULL;
}

/* The rule of the next row, behind `token`. */
static void rule_step(GuessRule *r, int32_t token)
{
    if (r->history.n_path < MAX_DEPTH) r->path[r->history.n_path++] = token;
    rule_pass_first(r);
}

static uint32_t index_of(const GuessRows *rows, int32_t i)
{
    return (uint32_t)(rows->job->n_committed + 1 + i);
}

/* ---- saying beforehand ---- */

void dflash_guess_begin(DflashGuess *g, Tensor logits)
{
    row_chooser_begin(g->rows, logits);
}

void dflash_guess_queue(DflashGuess *g, Stream *st)
{
    row_chooser_queue(g->rows, st);
}

/* With penalties a row's rule depends on the guess before it: such chains are chosen on the host. */
void dflash_guess_add_chain(DflashGuess *g, GuessRows rows)
{
    GuessRule r;
    rule_init(g, rows.job, &r);
    for (int32_t i = 0; i < rows.n; i++) {
        if (rules_penalise(&r.params)) row_chooser_read(g->rows, rows.first + i);
        else row_chooser_add(g->rows, rows.first + i, &r.rule, rows.job->draw, index_of(&rows, i));
        rule_pass_first(&r);
    }
}

static void add_ranks(DflashGuess *g, GuessRows rows, int32_t k, bool is_coupled)
{
    GuessRule r;
    rule_init(g, rows.job, &r);
    float weight = is_coupled ? r.params.temperature : 0;
    for (int32_t i = 0; i < rows.n; i++) {
        row_chooser_add_rank(g->rows, rows.first + i, k, &r.rule, weight, rows.job->draw, index_of(&rows, i));
        rule_pass_first(&r);
    }
}

void dflash_guess_add_tree(DflashGuess *g, GuessRows rows)
{
    add_ranks(g, rows, g->max_budget, true);
}

void dflash_guess_add_candidates(DflashGuess *g, GuessRows rows, int32_t k)
{
    add_ranks(g, rows, k, false);
}

/* ---- chains ---- */

bool dflash_guess_chain(DflashGuess *g, GuessRows rows)
{
    GuessRule r;
    rule_init(g, rows.job, &r);
    for (int32_t i = 0; i < rows.n; i++) {
        Choice choice;
        row_chooser_choose(g->rows, rows.first + i, &r.rule, rows.job->draw, index_of(&rows, i), &choice);
        if (!choice.is_finite) return i > 0;
        tree_add(rows.job->tree, i, choice.token, 0);
        rule_step(&r, choice.token);
    }
    return true;
}

/* ---- a row on the host ---- */

static void force(float *x, int32_t n, int32_t token)
{
    for (int32_t i = 0; i < n; i++) x[i] = i == token ? 0 : -INFINITY;
}

/* Applies the rule in place. False: the row is broken. */
static bool apply_rule(DflashGuess *g, float *x, const GuessRule *r)
{
    if (!row_is_usable(x, g->vocab_size)) return false;
    if (r->rule.forced >= 0) force(x, g->vocab_size, r->rule.forced);
    else if (rules_change(&r->rule)) rules_apply(x, r->rule.n_valid, &r->rule, g->marks);
    return true;
}

/* The k largest numbers so far, the least of them at the root. */
typedef struct Best {
    float  *value;
    int32_t n, k;
} Best;

static void best_add(Best *b, float x)
{
    int32_t i;
    if (b->n < b->k) { /* up from the end */
        for (i = b->n++; i > 0 && b->value[(i - 1) / 2] > x; i = (i - 1) / 2) b->value[i] = b->value[(i - 1) / 2];
    } else { /* down in the root's place */
        for (i = 0;;) {
            int32_t child = 2 * i + 1;
            if (child + 1 < b->n && b->value[child + 1] < b->value[child]) child++;
            if (child >= b->n || b->value[child] >= x) break;
            b->value[i] = b->value[child];
            i = child;
        }
    }
    b->value[i] = x;
}

/* Ids first .. first + n - 1 of a row. */
static void couple_chunk(float *x, int32_t first, int32_t n, float weight, DrawKey key, uint32_t index, Best *best)
{
    uint32_t words[NOISE_CHUNK];
    noise_words(key, index, (uint32_t)first, words);
    for (int32_t i = 0; i < n; i++) {
        float logit = x[i];
        x[i] = logit + weight * noise_bound(words[i]);
        if (best->n == best->k && x[i] <= best->value[0]) continue;
        x[i] = logit + weight * noise_of_word(words[i]);
        best_add(best, x[i]);
    }
}

/* Logits become logit + weight * noise. Only the k best are looked at, so only they need the noise itself, which takes
 * two logarithms; for the others its bound is near enough, since all that is left of them is their part of the sum. */
static void couple_row(float *x, int32_t n, float weight, DrawKey key, uint32_t index, Best *best)
{
    const float least = row_max(x, n) - RANK_REACH;
    best->n = 0;
    for (int32_t first = 0; first < n; first += NOISE_CHUNK) {
        int32_t count = n - first < NOISE_CHUNK ? n - first : NOISE_CHUNK;
        bool is_likely = row_max(x + first, count) >= least;
        for (int32_t i = first; i < first + count; i++) x[i] = x[i] >= least ? x[i] : -INFINITY;
        if (is_likely) couple_chunk(x + first, first, count, weight, key, index, best);
    }
}

/* ---- trees ---- */

/* Guesses of row i. False: it is broken. */
static bool rank_row(DflashGuess *g, const GuessRows *rows, int32_t i, const GuessRule *r, int32_t n_guesses, Best *best)
{
    int32_t row = rows->first + i;
    if (row_chooser_is_ranked(g->rows, row)) {
        RowRanks found = row_chooser_ranks(g->rows, row);
        if (found.n < 0) return false;
        ddtree_take(g->trees, i + 1, found.id, found.score, found.n < n_guesses ? found.n : n_guesses, found.log_sum);
        return true;
    }
    float *x = row_chooser_logits(g->rows, row);
    if (!apply_rule(g, x, r)) return false;
    if (r->params.temperature > 0)
        couple_row(x, r->rule.n_valid, r->params.temperature, rows->job->draw, index_of(rows, i), best);
    return ddtree_rank(g->trees, i + 1, x, r->rule.n_valid, n_guesses);
}

bool dflash_guess_tree(DflashGuess *g, GuessRows rows, DdTreeShape shape)
{
    GuessRule r;
    rule_init(g, rows.job, &r);
    int32_t n_guesses, n = ddtree_rows(g->trees, rows.n, shape, rows.job->tree, &n_guesses);
    Best best = { .value = g->best, .k = shape.budget < g->max_budget ? shape.budget : g->max_budget };
    for (int32_t i = 0; i < n; i++) {
        if (!rank_row(g, &rows, i, &r, n_guesses, &best)) return false;
        rule_pass_first(&r);
    }
    ddtree_grow_ranked(g->trees, n, shape, rows.job->tree);
    return true;
}

/* ---- candidates ---- */

/* Those of one row; returns how many there are, -1 when it is broken. */
static int32_t row_candidates(DflashGuess *g, int32_t row, const GuessRule *r, int32_t k, int32_t *id, float *logit)
{
    if (!row_chooser_is_ranked(g->rows, row)) {
        float *x = row_chooser_logits(g->rows, row);
        return apply_rule(g, x, r) ? topk_list(x, r->rule.n_valid, k, id, logit) : -1;
    }
    RowRanks found = row_chooser_ranks(g->rows, row);
    for (int32_t c = 0; c < found.n; c++) {
        id[c] = found.id[c];
        logit[c] = found.score[c];
    }
    return found.n;
}

int32_t dflash_guess_candidates(DflashGuess *g, GuessRows rows, int32_t k, int32_t *id, float *logit, float *noise)
{
    GuessRule r;
    rule_init(g, rows.job, &r);
    for (int32_t i = 0; i < rows.n; i++, id += k, logit += k, noise += k) {
        int32_t n = row_candidates(g, rows.first + i, &r, k, id, logit);
        if (n <= 0) return n < 0 ? -1 : i;
        for (int32_t c = n; c < k; c++) id[c] = -1;
        for (int32_t c = 0; c < n; c++) noise[c] = gumbel_noise(rows.job->draw, index_of(&rows, i), (uint32_t)id[c]);
        rule_pass_first(&r);
    }
    return rows.n;
}
