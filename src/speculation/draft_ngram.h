/* Prompt lookup: if the last few tokens of a request stood in it before, what followed then is drafted now. It costs no
 * weights and pays where text repeats itself: edits of code, tool results, quotations. */
#pragma once

#include "speculation/drafter.h"

enum { NGRAM_LONGEST = 16 };

typedef struct NgramOptions {
    int32_t n_slots;       /* requests that draft at a time */
    int32_t max_model_len; /* tokens of a request */
    int32_t min_n, max_n;  /* lengths of the ending that is looked up, longest first; 0 = 2 and 4 */
    int32_t max_tokens;    /* guesses of a draft; 0 = as many as the job allows */
} NgramOptions;

/* Bytes that the drafter will hold, for the memory plan: 6 for each token of a slot and each length. */
size_t drafter_ngram_bytes(const NgramOptions *options);

/* Needs DraftJob.ids. Allocates only here. */
Status drafter_open_ngram(Drafter **out, const NgramOptions *options, Error *err);
