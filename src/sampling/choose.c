/* Choosing a token: guard, rules, filters, draw, report. The order is the one at the head of choose.h.
 *
 * A draw over 150,000 ids would need twice as many logarithms if every id's noise were computed. But only the argmax
 * is wanted, and noise has a bound: an id whose score plus the bound of its noise stays below the best sum so far
 * cannot win. Starting from the most likely id, the bound of all words skips most ids of a trained model before their
 * Philox block is made, and the bound of its own word nearly all others. Sums are monotone in float32 (a <= b gives
 * c + a <= c + b), so the winner is the one that computing everything gives.
 *
 * Everything here depends on the row and its rule alone. Scratch is sized by the vocabulary in open. */
#include "sampling/choose.h"

#include "backend/fault.h"
#include "base/fmath.h"
#include "base/memory.h"
#include "sampling/filter.h"
#include "sampling/noise.h"
#include "sampling/row.h"
#include "sampling/rules.h"
#include "sampling/softmax.h"
#include "sampling/topk.h"

struct Chooser {
    int32_t    vocab_size;
    float     *score;      /* [vocab] logits after the rules, when there are any */
    uint32_t  *marks;      /* [vocab] all zero between calls */
    Candidates candidates; /* [vocab] */
    float     *x;          /* [vocab, whole chunks] scores that take part in the draw, tempered */
};

static int32_t chunk_up(int32_t n)
{
    return (n + NOISE_CHUNK - 1) / NOISE_CHUNK * NOISE_CHUNK;
}

Status chooser_open(Chooser **out, int32_t vocab_size, Error *err)
{
    *out = NULL;
    if (vocab_size < 1 || vocab_size > MAX_SAMPLED_VOCAB) {
        return error_set(err, ERR_UNSUPPORTED, "a vocabulary of %d ids cannot be sampled from: 1 to %d are supported",
                         vocab_size, MAX_SAMPLED_VOCAB);
    }
    Chooser *c = mem_alloc(sizeof *c);
    if (!c) return error_set(err, ERR_NOMEM, "no memory to choose tokens");

    size_t n = (size_t)chunk_up(vocab_size);
    c->vocab_size = vocab_size;
    c->score = mem_alloc_array(n, sizeof *c->score);
    c->marks = mem_alloc_array(n, sizeof *c->marks);
    c->candidates.id = mem_alloc_array(n, sizeof *c->candidates.id);
    c->candidates.score = mem_alloc_array(n, sizeof *c->candidates.score);
    c->candidates.weight = mem_alloc_array(n, sizeof *c->candidates.weight);
    c->x = mem_alloc_array(n, sizeof *c->x);
    if (!c->score || !c->marks || !c->candidates.id || !c->candidates.score || !c->candidates.weight || !c->x) {
        chooser_close(c);
        return error_set(err, ERR_NOMEM, "no memory to choose among %d tokens", vocab_size);
    }
    *out = c;
    return OK;
}

void chooser_close(Chooser *c)
{
    if (!c) return;
    mem_free(c->score);
    mem_free(c->marks);
    mem_free(c->candidates.id);
    mem_free(c->candidates.score);
    mem_free(c->candidates.weight);
    mem_free(c->x);
    mem_free(c);
}

/* Lowest place of the largest value. */
static int32_t argmax(const float *x, int32_t n)
{
    float max = row_max(x, n);
    int32_t best = 0;
    while (x[best] != max) best++;
    return best;
}

typedef struct Winner {
    int32_t id;
    float   sum; /* score / temperature + noise */
} Winner;

static inline bool any_reaches(const float *x, float limit)
{
    int any = 0;
    for (int i = 0; i < NOISE_CHUNK; i++) any |= x[i] + NOISE_MAX >= limit;
    return any;
}

/* The draw among ids first .. first + NOISE_CHUNK - 1. */
static void draw_chunk(Winner *w, const float *x, int32_t first, DrawKey key, uint32_t index)
{
    if (!any_reaches(x, w->sum)) return;
    uint32_t words[NOISE_CHUNK];
    noise_words(key, index, (uint32_t)first, words);

    float bound[NOISE_CHUNK];
    for (int i = 0; i < NOISE_CHUNK; i++) bound[i] = x[i] + noise_bound(words[i]);
    for (int i = 0; i < NOISE_CHUNK; i++) {
        if (bound[i] < w->sum) continue;
        float sum = x[i] + noise_of_word(words[i]);
        if (sum > w->sum || (sum == w->sum && first + i < w->id)) *w = (Winner){ first + i, sum };
    }
}

/* Fills x[0 .. n) with score / temperature of the ids that the filters leave, -inf elsewhere. */
static void temper(Chooser *c, const float *score, int32_t n, const SampleParams *p, float largest)
{
    float *x = c->x;
    if (p->top_k <= 0 && p->top_p >= 1 && p->min_p <= 0) {
        for (int32_t i = 0; i < n; i++) x[i] = score[i] / p->temperature;
        return;
    }
    Candidates *left = &c->candidates;
    candidates_take(left, score, n);
    if (p->top_k > 0) candidates_keep_top_k(left, p->top_k);
    if (p->top_p < 1 || p->min_p > 0) candidates_weigh(left, largest, p->temperature);
    if (p->top_p < 1) candidates_keep_top_p(left, p->top_p);
    if (p->min_p > 0) candidates_keep_min_p(left, p->min_p);
    for (int32_t i = 0; i < n; i++) x[i] = -F_INF;
    for (int32_t i = 0; i < left->n; i++) x[left->id[i]] = left->score[i] / p->temperature;
}

/* best: the most likely id. No filter drops it. */
static int32_t sample(Chooser *c, const float *score, int32_t n, const SampleParams *p, DrawKey key, uint32_t index,
                      int32_t best)
{
    /* So small a temperature, or so large a score, that no noise could change the order. */
    if (p->temperature == 0 || !isfinite(score[best] / p->temperature)) return best;

    temper(c, score, n, p, score[best]);
    int32_t end = chunk_up(n);
    for (int32_t i = n; i < end; i++) c->x[i] = -F_INF;
    Winner w = { best, c->x[best] + gumbel_noise(key, index, (uint32_t)best) };
    for (int32_t first = 0; first < end; first += NOISE_CHUNK) draw_chunk(&w, c->x + first, first, key, index);
    return w.id;
}

static void report_logprobs(const float *score, int32_t n, int32_t best, int32_t n_top, Choice *out)
{
    float max = score[best], log_sum = softmax_log_sum(score, n, max);
    out->logprob = (score[out->token] - max) - log_sum;
    out->n_top = topk_list(score, n, n_top, out->top_id, out->top_logprob);
    for (int32_t i = 0; i < out->n_top; i++) out->top_logprob[i] = (out->top_logprob[i] - max) - log_sum;
}

static int32_t valid_ids(int32_t vocab_size, int32_t n_valid)
{
    return n_valid > 0 && n_valid < vocab_size ? n_valid : vocab_size;
}

bool score_token(const float *logits, int32_t vocab_size, int32_t n_valid, int32_t token, int32_t n_top, Choice *out)
{
    int32_t n = valid_ids(vocab_size, n_valid);
    *out = (Choice){ .token = -1 };
    if (!row_is_usable(logits, vocab_size)) return false;
    int32_t best = argmax(logits, n);
    if (!isfinite(logits[best])) return false;
    out->is_finite = true;
    out->token = token;
    report_logprobs(logits, n, best, n_top, out);
    if (token >= n) out->logprob = -F_INF;
    return true;
}

/* A forced token is a mask that leaves one id: its chance is 1. */
static void report_forced(int32_t token, int32_t n_logprobs, Choice *out)
{
    out->is_finite = true;
    out->token = token;
    out->logprob = 0;
    if (n_logprobs < 1) return;
    out->n_top = 1;
    out->top_id[0] = token;
    out->top_logprob[0] = 0;
}

void choose(Chooser *c, const float *logits, const RowRule *rule, DrawKey key, uint32_t index, Choice *out)
{
    const SampleParams *p = rule->params;
    int32_t n = valid_ids(c->vocab_size, rule->n_valid);
    *out = (Choice){ .token = -1 };
    CHECK(rule->forced < c->vocab_size);

    if (!row_is_usable(logits, c->vocab_size)) return;
    if (rule->forced >= 0) {
        report_forced(rule->forced, p->n_logprobs, out);
        return;
    }
    const float *score = logits;
    if (rules_change(rule)) {
        memcpy(c->score, logits, (size_t)n * sizeof *logits);
        rules_apply(c->score, n, rule, c->marks);
        score = c->score;
    }
    int32_t best = argmax(score, n);
    if (!isfinite(score[best])) return; /* nothing is left, or a penalty overflowed */

    out->is_finite = true;
    out->token = sample(c, score, n, p, key, index, best);
    if (p->n_logprobs < 0) return;
    report_logprobs(score, n, best, p->n_logprobs, out);
    FAULT_POINT("choose", tensor_1d(&out->logprob, DT_F32, 1), rule->history ? rule->history->n_path : 0);
}
