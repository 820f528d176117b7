/* Filters by radix selection.
 *
 * Top-k and top-p are one question: the shortest beginning of the ranking whose mass reaches `need`, where the mass
 * of an id is 1 (top-k) or its weight (top-p). Scores become integers of the same order, and the one at the cut is
 * found 11, 11 and 10 bits at a time by a histogram of masses: three passes, no sort.
 *
 * Weights enter as integers (mass_of()), which add up to the same sum in any order: the cut is exact and every machine
 * finds the same one. */
#include "sampling/filter.h"

#include "backend/choose_math.h"
#include "sampling/softmax.h"

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS };

/* weight NULL: every id counts one. */
static inline uint64_t mass_at(const float *weight, int32_t i)
{
    return weight ? mass_of(weight[i]) : 1;
}

/* Where the ranking is cut: larger keys stay, and of equal ones the first until their mass reaches `need`. */
typedef struct Cut {
    uint32_t key;
    uint64_t need;
} Cut;

/* 0 < need <= the mass of all. */
static Cut find_cut(const Candidates *c, const float *weight, uint64_t need)
{
    static const int shifts[] = { 21, 10, 0 };
    uint32_t known = 0, known_mask = 0; /* leading bits of the key at the cut */
    for (int pass = 0; pass < 3; pass++) {
        uint64_t mass[DIGITS] = { 0 };
        int shift = shifts[pass];
        uint32_t digit_mask = (uint32_t)(DIGITS - 1) << shift & ~known_mask;
        for (int32_t i = 0; i < c->n; i++) {
            uint32_t key = score_key(c->score[i]);
            if ((key & known_mask) == known) mass[(key & digit_mask) >> shift] += mass_at(weight, i);
        }
        uint32_t digit = digit_mask >> shift;
        while (mass[digit] < need) need -= mass[digit--];
        known |= digit << shift;
        known_mask |= digit_mask;
    }
    return (Cut){ known, need };
}

static void keep(Candidates *c, int32_t to, int32_t from)
{
    c->id[to] = c->id[from];
    c->score[to] = c->score[from];
    c->weight[to] = c->weight[from];
}

static void cut(Candidates *c, const float *weight, uint64_t need)
{
    Cut at = find_cut(c, weight, need);
    int32_t n = 0;
    for (int32_t i = 0; i < c->n; i++) {
        uint32_t key = score_key(c->score[i]);
        if (key < at.key || (key == at.key && at.need == 0)) continue;
        if (key == at.key) {
            uint64_t mass = mass_at(weight, i);
            at.need -= mass < at.need ? mass : at.need;
        }
        keep(c, n++, i);
    }
    c->n = n;
}

void candidates_take(Candidates *c, const float *score, int32_t n)
{
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++) {
        c->id[count] = i;
        c->score[count] = score[i];
        count += score[i] > -F_INF;
    }
    c->n = count;
}

void candidates_weigh(Candidates *c, float largest, float temperature)
{
    for (int32_t i = 0; i < c->n; i++) c->weight[i] = c->score[i] / temperature;
    softmax_exp(c->weight, c->weight, c->n, largest / temperature);
}

void candidates_keep_top_k(Candidates *c, int32_t k)
{
    if (k < c->n) cut(c, NULL, (uint64_t)k);
}

void candidates_keep_top_p(Candidates *c, float top_p)
{
    uint64_t total = 0;
    for (int32_t i = 0; i < c->n; i++) total += mass_at(c->weight, i);
    cut(c, c->weight, mass_needed(top_p, total));
}

void candidates_keep_min_p(Candidates *c, float min_p)
{
    int32_t n = 0;
    for (int32_t i = 0; i < c->n; i++) {
        if (c->weight[i] >= min_p) keep(c, n++, i);
    }
    c->n = n;
}
