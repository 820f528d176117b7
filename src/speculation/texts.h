/* What kind of text a sequence is in, and so how well each drafter hits in it: belief over all drafters at once.
 *
 * Texts come in kinds: code, prose, a table. In one kind each drafter has its level of hits (hits.h), and what one
 * drafter shows tells the kind and so what to expect of the others. Kinds are learnt from what sequences show;
 * beside them stand guesses for what was never met: as usual but harder or easier for all, nothing hits, anything.
 * Plain data; no clock, no randomness. */
#pragma once

#include "speculation/drafter.h"
#include "speculation/hits.h"

enum { TEXT_KINDS = 16, TEXT_GUESSES = 7, TEXT_STATES = TEXT_KINDS + TEXT_GUESSES };

/* Shared by all sequences. A family is a network; see DraftMethod. */
typedef struct TextLaw {
    int32_t n_families;
    double  n_tokens[TEXT_KINDS];                       /* lately, by kind; 0 = not in use */
    float   kind[TEXT_KINDS][MAX_METHODS][HIT_LEVELS];  /* share of each level, by family */
    float   usual[MAX_METHODS][HIT_LEVELS];             /* over all kinds */
    double  n_usual;                                    /* tokens behind it */
    double  chance[TEXT_STATES];                        /* of a new text, before it showed anything */
    float   level[TEXT_STATES][MAX_METHODS][HIT_LEVELS]; /* and of levels in it, so that nothing is impossible */
} TextLaw;

/* Of one sequence: a chance for each state, and within it for each level of each family. */
typedef struct TextBelief {
    double  chance[TEXT_STATES];
    float   level[TEXT_STATES][MAX_METHODS][HIT_LEVELS];
    int32_t n_tokens; /* since it was last remembered */
    int32_t n_passed; /* tokens of the last round */
} TextBelief;

void texts_init(TextLaw *law, int32_t n_families);
void texts_begin(const TextLaw *law, TextBelief *b);
void texts_end(TextLaw *law, TextBelief *b); /* remembers the rest; harmless after none */

/* n_tokens were gained. seen[k]: chance of what a round of `family` showed, at level k; family -1 = nothing was
 * drafted. Returns the chance that the text changed just then. */
double texts_learn(TextLaw *law, TextBelief *b, int32_t family, const double seen[HIT_LEVELS], int32_t n_tokens);

/* Chance of each level of this family, over all states. */
void texts_levels(const TextBelief *b, int32_t family, double p[HIT_LEVELS]);
