/* A filter of a hidden Markov model whose states are kinds of text, each with its own belief about the levels in it.
 *
 *     round of a family ──> level[state] *= chance of what was seen ──> chance[state] *= the sum of that
 *     every token       ──> a share of all chance goes to a new text
 *
 * Belief about one drafter alone must choose between two faults: to ignore that text which turned easy for one drafter
 * is easy for the others, or to take each drafter's luck for all of them. States do neither: drafters are independent
 * within a state, and what they have in common is which state it is. After a change chance moves to states that explain
 * it, as fast as rounds allow, and what the idle drafters showed before it is forgotten with the states that did not.
 *
 * Every REMEMBER_TOKENS tokens of a sequence what it believes is kept: mixed into the kinds it is in, or, if it lies
 * too far from all that is known, as a kind of its own in the place of the rarest. That is expectation maximisation,
 * a step at a time, with births. */
#include "speculation/texts.h"

#include <math.h>
#include <string.h>

enum { REMEMBER_TOKENS = 64, LEAST_TOKENS = 16, FEW_TOKENS = 200 };
enum { USUAL_TOKENS = 4000, KIND_TOKENS = 1000, FORGET_TOKENS = 20000 };
static const double change_per_token = 1.0 / 250;
static const double far_apart = 1.5;            /* nats: a kind of its own */
static const float  drift = 0.004f, leap = 0.002f; /* a round: to the next level; to any, within the same text */

/* States beside the kinds, and their parts of the chance that guesses get: the usual levels moved by so many, then
 * nothing hits, then anything. */
enum { MOVED_GUESSES = TEXT_GUESSES - 2, NOTHING = TEXT_KINDS + MOVED_GUESSES, ANYTHING };
static const int    moved_by[MOVED_GUESSES] = { 0, -2, -4, 2, 4 };
static const double guess_share[TEXT_GUESSES] = { 0.3, 0.12, 0.12, 0.12, 0.06, 0.1, 0.18 }, guesses_share = 0.3;

/* ---- what is common ---- */

static void spread(float out[HIT_LEVELS], float anything, float nothing)
{
    for (int k = 0; k < HIT_LEVELS; k++) out[k] = anything / HIT_LEVELS;
    out[0] += nothing;
}

static void make_levels(TextLaw *law, int32_t f)
{
    for (int s = 0; s < TEXT_KINDS; s++) {
        spread(law->level[s][f], 0.05f, 0.02f);
        for (int k = 0; k < HIT_LEVELS; k++) law->level[s][f][k] += 0.93f * law->kind[s][f][k];
    }
    for (int g = 0; g < MOVED_GUESSES; g++) {
        float *level = law->level[TEXT_KINDS + g][f];
        spread(level, 0.1f, 0);
        for (int k = 0; k < HIT_LEVELS; k++) {
            int to = k + moved_by[g];
            level[to < 0 ? 0 : to < HIT_LEVELS ? to : HIT_LEVELS - 1] += 0.9f * law->usual[f][k];
        }
    }
    spread(law->level[NOTHING][f], 0.1f, 0.9f);
    spread(law->level[ANYTHING][f], 1, 0);
}

static void make_law(TextLaw *law)
{
    double sum = 0;
    for (int s = 0; s < TEXT_KINDS; s++) sum += law->n_tokens[s];
    double guesses = guesses_share + (1 - guesses_share) * FEW_TOKENS / (FEW_TOKENS + sum);
    for (int s = 0; s < TEXT_KINDS; s++) law->chance[s] = sum > 0 ? (1 - guesses) * law->n_tokens[s] / sum : 0;
    for (int g = 0; g < TEXT_GUESSES; g++) law->chance[TEXT_KINDS + g] = (sum > 0 ? guesses : 1) * guess_share[g];
    for (int32_t f = 0; f < law->n_families; f++) make_levels(law, f);
}

void texts_init(TextLaw *law, int32_t n_families)
{
    *law = (TextLaw){ .n_families = n_families };
    for (int32_t f = 0; f < n_families; f++) spread(law->usual[f], 1, 0);
    make_law(law);
}

/* ---- one sequence ---- */

void texts_begin(const TextLaw *law, TextBelief *b)
{
    memcpy(b->chance, law->chance, sizeof b->chance);
    memcpy(b->level, law->level, sizeof b->level);
    b->n_tokens = b->n_passed = 0;
}

void texts_levels(const TextBelief *b, int32_t f, double p[HIT_LEVELS])
{
    for (int k = 0; k < HIT_LEVELS; k++) p[k] = 0;
    for (int s = 0; s < TEXT_STATES; s++)
        for (int k = 0; k < HIT_LEVELS; k++) p[k] += b->chance[s] * (double)b->level[s][f][k];
}

/* Within a text levels move a little, and rarely far. */
static void move_levels(float p[HIT_LEVELS], const float usual[HIT_LEVELS])
{
    float old[HIT_LEVELS];
    memcpy(old, p, sizeof old);
    for (int k = 0; k < HIT_LEVELS; k++) {
        float below = old[k > 0 ? k - 1 : k], above = old[k + 1 < HIT_LEVELS ? k + 1 : k];
        float moved = (1 - drift) * old[k] + drift / 2 * (below + above);
        p[k] = (1 - leap) * moved + leap * (0.3f * usual[k] + 0.5f / HIT_LEVELS);
    }
    p[0] += 0.2f * leap;
}

static double sum_seen(const float p[HIT_LEVELS], const double seen[HIT_LEVELS])
{
    double sum = 0;
    for (int k = 0; k < HIT_LEVELS; k++) sum += (double)p[k] * seen[k];
    return sum;
}

/* A share of this state's chance is that of a new text, of which nothing was seen. */
static void renew(const TextLaw *law, TextBelief *b, int s, float share)
{
    for (int32_t f = 0; f < law->n_families; f++)
        for (int k = 0; k < HIT_LEVELS; k++) b->level[s][f][k] += share * (law->level[s][f][k] - b->level[s][f][k]);
}

/* Bayes within the state; returns the chance of what was seen. */
static double take_in(float p[HIT_LEVELS], const double seen[HIT_LEVELS])
{
    double all = sum_seen(p, seen);
    for (int k = 0; k < HIT_LEVELS; k++) p[k] = (float)((double)p[k] * seen[k] / all);
    return all;
}

/* ---- kinds ---- */

/* How much a sequence has learnt of its text beyond what state s says: Kullback and Leibler's divergence. */
static double apart(const TextLaw *law, const TextBelief *b, int s)
{
    double sum = 0;
    for (int32_t f = 0; f < law->n_families; f++) {
        for (int k = 0; k < HIT_LEVELS; k++) {
            double p = (double)b->level[s][f][k];
            if (p > 1e-9) sum += p * log(p / (double)law->level[s][f][k]);
        }
    }
    return sum;
}

static void mix_in(TextLaw *law, const TextBelief *b, int s, double n_tokens)
{
    double before = fmin(law->n_tokens[s], KIND_TOKENS);
    if (n_tokens <= 1e-4 * (before + n_tokens)) return;
    float rate = (float)(n_tokens / (before + n_tokens));
    law->n_tokens[s] += n_tokens;
    for (int32_t f = 0; f < law->n_families; f++)
        for (int k = 0; k < HIT_LEVELS; k++) law->kind[s][f][k] += rate * (b->level[s][f][k] - law->kind[s][f][k]);
}

/* The text of state s becomes a kind, and the sequence is in it. */
static void found_kind(TextLaw *law, TextBelief *b, int s, double n_tokens)
{
    int rarest = 0;
    for (int i = 1; i < TEXT_KINDS; i++)
        if (law->n_tokens[i] < law->n_tokens[rarest]) rarest = i;
    memcpy(law->kind[rarest], b->level[s], sizeof law->kind[rarest]);
    law->n_tokens[rarest] = n_tokens;
    if (rarest == s) return;
    memcpy(b->level[rarest], b->level[s], sizeof b->level[rarest]);
    double chance = b->chance[s];
    b->chance[s] = b->chance[rarest];
    b->chance[rarest] = chance;
}

static void learn_usual(TextLaw *law, const TextBelief *b, double n_tokens)
{
    float rate = (float)(n_tokens / (law->n_usual + n_tokens));
    for (int32_t f = 0; f < law->n_families; f++) {
        double p[HIT_LEVELS];
        texts_levels(b, f, p);
        for (int k = 0; k < HIT_LEVELS; k++) law->usual[f][k] += rate * ((float)p[k] - law->usual[f][k]);
    }
    if (law->n_usual < USUAL_TOKENS) law->n_usual += n_tokens;
}

static void remember(TextLaw *law, TextBelief *b)
{
    double n = b->n_tokens;
    int top = 0;
    for (int s = 1; s < TEXT_STATES; s++)
        if (b->chance[s] > b->chance[top]) top = s;
    learn_usual(law, b, n);
    for (int s = 0; s < TEXT_KINDS; s++) law->n_tokens[s] *= exp(-n / FORGET_TOKENS);
    bool is_known = top < TEXT_KINDS && apart(law, b, top) < far_apart;
    for (int s = 0; is_known && s < TEXT_KINDS; s++) mix_in(law, b, s, b->chance[s] * n);
    if (!is_known) found_kind(law, b, top, n);
    b->n_tokens = 0;
    make_law(law);
}

void texts_end(TextLaw *law, TextBelief *b)
{
    if (b->n_tokens >= LEAST_TOKENS) remember(law, b);
}

/* Text may have changed while the tokens of the round before came. */
double texts_learn(TextLaw *law, TextBelief *b, int32_t family, const double seen[HIT_LEVELS], int32_t n_tokens)
{
    double change = 1 - pow(1 - change_per_token, b->n_passed), sum = 0, stayed = 0;
    for (int s = 0; s < TEXT_STATES; s++) {
        double new = change * law->chance[s], all = (1 - change) * b->chance[s] + new;
        if (family >= 0) stayed += (1 - (double)leap) * (all - new) * sum_seen(b->level[s][family], seen);
        if (family >= 0) move_levels(b->level[s][family], law->level[s][family]);
        renew(law, b, s, all > 0 ? (float)(new / all) : 1);
        b->chance[s] = family >= 0 ? all * take_in(b->level[s][family], seen) : all;
        sum += b->chance[s];
    }
    for (int s = 0; s < TEXT_STATES; s++) b->chance[s] /= sum;
    b->n_passed = n_tokens;
    b->n_tokens += n_tokens;
    if (b->n_tokens >= REMEMBER_TOKENS) remember(law, b);
    return family >= 0 ? fmax(1 - stayed / sum, 0) : 0; /* drift alone may make it less than nothing */
}
