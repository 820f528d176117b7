/* Top-k, top-p and min-p over the ids that may still be drawn.
 *
 * All three keep a beginning of one ranking: score descending, equal scores by lower id. Nothing is sorted; the
 * results are exact and do not depend on the order of any sum. One thread; memory is the owner's. */
#pragma once

#include <stdint.h>

typedef struct Candidates {
    int32_t  n;
    int32_t *id;     /* [n] ascending */
    float   *score;  /* [n] finite, before temperature (which does not change the ranking) */
    float   *weight; /* [n] chance as a share of the largest: exp((score - largest) / temperature); see _weigh */
} Candidates;

/* All ids of score[0 .. n) that are not masked (-inf). Needs room for n in c's arrays. */
void candidates_take(Candidates *c, const float *score, int32_t n);

/* Fills weight. Largest: the largest score. To be called before the two filters that look at chances. */
void candidates_weigh(Candidates *c, float largest, float temperature);

void candidates_keep_top_k(Candidates *c, int32_t k);
/* Smallest beginning of the ranking with at least top_p of the mass of all that are in c now. */
void candidates_keep_top_p(Candidates *c, float top_p);
void candidates_keep_min_p(Candidates *c, float min_p);
