/* Choosing the token of one row: one function for plain and drafted rows, so that they cannot differ.
 *
 * Order: forced token; grammar mask and padded ids; logit_bias; penalties over the row's own path;
 * (reported logprobs are log-softmax here); temperature; top-k; top-p; min-p; draw.
 * Draw = argmax of logit / temperature + Gumbel noise over the ids that are left, ties to the lower id.
 * Temperature 0 is argmax without noise through the same code.
 *
 * noise(seed, choice, index, id): Philox4x32-10 (Salmon et al., SC 2011), key = (low, high half of seed),
 * counter = (index, choice, id / 4, 0), word id % 4 = x; u = (x + 0.5) / 2^32 rounded to float32, at most
 * 1 - 2^-24; e = -log1p(-u); g = -log(e), by base/fmath.h. Finite for every x. index = place in the sequence
 * of the token that is being chosen (so the first token after a prompt of n has index n).
 * The noise of an id does not depend on how many ids are left: filters, drafts and widths leave it alone. */
#pragma once

#include "backend/choice.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_LOGIT_BIAS = 1024, SAMPLER_VERSION = 2 };

typedef struct DrawKey {
    uint64_t seed;
    uint32_t choice; /* which of the n choices of a request */
} DrawKey;

float gumbel_noise(DrawKey key, uint32_t index, uint32_t token_id);

typedef struct LogitBias {
    int32_t token;
    float   bias;
} LogitBias;

typedef struct SampleParams {
    float   temperature;        /* 0 .. 2; 0 = greedy */
    float   top_p;              /* (0, 1]; 1 = off: smallest set of most likely ids with mass >= top_p */
    float   min_p;              /* [0, 1]; 0 = off: ids with p >= min_p * max p stay */
    int32_t top_k;              /* 0 = off */
    float   repetition_penalty; /* [1e-3, 1e3]; 1 = off. Over prompt and output: logit > 0 ? / : * */
    float   presence_penalty;   /* -2 .. 2; over output: - presence if the id occurred */
    float   frequency_penalty;  /* -2 .. 2; over output: - frequency * count */
    int32_t n_logprobs;         /* -1 = none, else 0 .. MAX_TOP_LOGPROBS alternatives besides the chosen */
    int32_t n_bias;
    const LogitBias *bias;      /* borrowed as long as the params are used */
} SampleParams;

/* What the real fields may be: every reader of such values takes it from here. */
typedef struct SampleRange {
    const char *name;
    size_t      offset; /* of a float in SampleParams */
    double      min, max;
    bool        is_open; /* min itself is too small */
} SampleRange;
enum { N_SAMPLE_RANGES = 6 };
extern const SampleRange sample_ranges[N_SAMPLE_RANGES];

/* Real fields outside their range move to the nearest value inside, top_k below 0 to 0. For defaults that come with a model;
 * what a request says is checked. */
void sample_params_clamp(SampleParams *p);

/* Ranges of all fields, err->param naming the one at fault (n_logprobs as top_logprobs). */
Status sample_params_check(const SampleParams *p, int32_t vocab_size, Error *err);

/* The tokens a row has behind it. `output` are committed generated ones, `path` the tentative ones of its own
 * path (anchor included, in order); the three together are everything before the token being chosen. */
typedef struct History {
    const int32_t *prompt, *output, *path;
    int32_t        n_prompt, n_output, n_path;
} History;

typedef struct RowRule {
    int32_t             forced;  /* -1, or the token that must come */
    const uint32_t     *mask;    /* bit per id, 1 = allowed; NULL = all */
    int32_t             n_valid; /* ids >= this are padding of the vocabulary, never drawn; 0 = all valid */
    const SampleParams *params;
    const History      *history; /* may be NULL when no penalty is set */
    const int32_t      *banned;  /* ids not allowed at this row (stop ids before min_tokens, ignore_eos does NOT ban) */
    int32_t             n_banned;
} RowRule;

/* Scratch for rows of one vocabulary, about 24 bytes an id; one thread. Allocates only in open. */
typedef struct Chooser Chooser;
Status chooser_open(Chooser **out, int32_t vocab_size, Error *err);
void   chooser_close(Chooser *c);

/* Chooses the token at place `index`. logits [vocab_size] are not changed. numeric_mode_enter() done. */
void choose(Chooser *c, const float *logits, const RowRule *rule, DrawKey key, uint32_t index, Choice *out);

/* What choose() would report had it chosen `token` with no rule but n_valid: for tokens of a prompt, which were given. Bias
 * and penalties are about what is generated. A padded id, which could not come, has logprob -inf. n_top >= 0. False as
 * is_finite is. numeric_mode_enter() done. */
bool score_token(const float *logits, int32_t vocab_size, int32_t n_valid, int32_t token, int32_t n_top, Choice *out);
