/* Masks, bias and penalties.
 *
 * Penalties need to know how often each id occurred. Counting it anew at every row costs a walk along the history
 * and leaves nothing behind that could be wrong after a rollback: the path of a drafted row is simply the end of
 * the walk. What counts is how often, not where, so a tree and a chain with the same path give the same scores. A mark is
 * EDIT_PROMPT, and below it how often the id was put out. */
#include "sampling/rules.h"

#include "backend/choose_math.h"

Penalties sample_penalties(const SampleParams *p)
{
    return (Penalties){ p->repetition_penalty, p->presence_penalty, p->frequency_penalty };
}

bool rules_penalise(const SampleParams *p)
{
    return p->repetition_penalty != 1.0f || p->presence_penalty != 0.0f || p->frequency_penalty != 0.0f;
}

bool rules_change(const RowRule *rule)
{
    return rule->mask || rule->n_banned > 0 || rule->params->n_bias > 0 ||
           (rule->history && rules_penalise(rule->params));
}

static void apply_mask(float *score, int32_t n, const uint32_t *mask)
{
    for (int32_t first = 0; first < n; first += 32) {
        uint32_t allowed = mask[first / 32];
        if (allowed == UINT32_MAX) continue;
        int32_t count = n - first < 32 ? n - first : 32;
        for (int32_t i = 0; i < count; i++) {
            if (!(allowed >> i & 1)) score[first + i] = -F_INF;
        }
    }
}

static void count_outputs(uint32_t *marks, int32_t n, const int32_t *ids, int32_t n_ids)
{
    for (int32_t i = 0; i < n_ids; i++) {
        if (ids[i] >= 0 && ids[i] < n) marks[ids[i]]++;
    }
}

/* Penalises each marked id once: its mark is gone when it is met again. */
static void penalise(float *score, int32_t n, uint32_t *marks, const int32_t *ids, int32_t n_ids, const SampleParams *p)
{
    Penalties penalties = sample_penalties(p);
    for (int32_t i = 0; i < n_ids; i++) {
        if (ids[i] < 0 || ids[i] >= n || !marks[ids[i]]) continue;
        if (score[ids[i]] > -F_INF) score[ids[i]] = penalised(score[ids[i]], marks[ids[i]] & ~EDIT_PROMPT, penalties);
        marks[ids[i]] = 0;
    }
}

static void apply_penalties(float *score, int32_t n, const History *h, const SampleParams *p, uint32_t *marks)
{
    count_outputs(marks, n, h->output, h->n_output);
    count_outputs(marks, n, h->path, h->n_path);
    if (p->repetition_penalty != 1.0f) {
        for (int32_t i = 0; i < h->n_prompt; i++) {
            if (h->prompt[i] >= 0 && h->prompt[i] < n) marks[h->prompt[i]] |= EDIT_PROMPT;
        }
        penalise(score, n, marks, h->prompt, h->n_prompt, p);
    }
    penalise(score, n, marks, h->output, h->n_output, p);
    penalise(score, n, marks, h->path, h->n_path, p);
}

void rules_apply(float *score, int32_t n, const RowRule *rule, uint32_t *marks)
{
    const SampleParams *p = rule->params;
    if (rule->mask) apply_mask(score, n, rule->mask);
    for (int32_t i = 0; i < rule->n_banned; i++) {
        if (rule->banned[i] >= 0 && rule->banned[i] < n) score[rule->banned[i]] = -F_INF;
    }
    for (int32_t i = 0; i < p->n_bias; i++) {
        if (p->bias[i].token < n) score[p->bias[i].token] += p->bias[i].bias;
    }
    if (rule->history && rules_penalise(p)) apply_penalties(score, n, rule->history, p, marks);
}
