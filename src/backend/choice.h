/* What choosing a token needs and gives, as plain data that a device can read. The law stands at the head of
 * sampling/choose.h, which makes these of requests; the arithmetic that both sides share is in choose_math.h. */
#pragma once

#include "tensor/tensor.h"

#include <stdbool.h>

enum { MAX_TOP_LOGPROBS = 20, MAX_SAMPLED_VOCAB = 1 << 20 };

/* Ids of a row whose exponentials are summed together (sampling/softmax.h). */
enum { SUM_PIECE = 256 };

typedef struct Choice {
    int32_t token;                            /* -1: not finite, see is_finite */
    bool    is_finite;                        /* false: a NaN or +inf among the logits (padding too), or nothing left
                                               * above -inf after the masks; nothing else is set */
    float   logprob;                          /* of token; set when n_logprobs >= 0. Of a forced token 0 */
    int32_t n_top;                            /* the most likely ids (the chosen one may be among them), most likely
                                               * first, ties to the lower id; fewer when fewer are unmasked */
    int32_t top_id[MAX_TOP_LOGPROBS];
    float   top_logprob[MAX_TOP_LOGPROBS];
} Choice;

/* What the rules of a request do to the score of one id. */
typedef struct ScoreEdit {
    int32_t  id;
    float    bias;
    uint32_t mark; /* the two bits below, and how often the id was put out */
} ScoreEdit;
#define EDIT_BANNED 0x80000000u
#define EDIT_PROMPT 0x40000000u /* the id occurred in the prompt */

typedef struct Penalties {
    float repetition, presence, frequency;
} Penalties;

/* Coupled ranks leave out ids whose logit is further than this below the best: all of them together would hardly ever be drawn. */
#define RANK_REACH 14.0f

/* A row to be chosen for, or ranked. */
typedef struct ChooseRow {
    int32_t   row;                  /* of the logits */
    int32_t   n_valid;              /* ids from here on are never chosen */
    uint64_t  seed;                 /* of the noise, with: */
    uint32_t  choice, index;
    float     temperature, top_p, min_p;
    int32_t   top_k;
    int32_t   n_listed;             /* -1: no log-probabilities; else so many of the most likely ids besides */
    float     coupling;             /* rank: weight of the noise that is added to scores; 0 = none */
    Penalties penalties;
    int32_t   first_edit, n_edits;  /* in the job's list: of the sequence ... */
    int32_t   first_own, n_own;     /* ... and of the row, at most MAX_DEPTH: an id in both is edited as this one says */
} ChooseRow;

typedef struct ChooseJob {
    Tensor           logits;        /* [.., vocab] f32. Edited ids keep what the edit made of them */
    int32_t          n_rows, n_edits;
    const ChooseRow *rows;
    const ScoreEdit *edits;         /* an id at most once in each row's lists */
    Choice          *chosen;        /* out [n_rows], memory of both sides */
} ChooseJob;

typedef struct Ranked {
    int32_t n;       /* ids that were found, at most k; -1: the row is not finite */
    float   log_sum; /* of exp(score - largest) over all ids */
} Ranked;

typedef struct RankJob {
    ChooseJob rows;  /* `chosen` is not used; logits become scores. n_listed = k, temperature = 0 */
    int32_t   k;
    Ranked   *ranked; /* out [n_rows]; these three in memory of both sides */
    int32_t  *id;     /* out [n_rows][k] best first, ties to the lower id */
    float    *score;  /* out [n_rows][k] */
} RankJob;
