/* Tokens of one choice to the text that may be shown: whole characters only, nothing that could still become a stop
 * string, nothing behind one. The same text comes out however the tokens are grouped. One thread. */
#pragma once

#include "text/tokenizer.h"

enum { MAX_STOP_STRINGS = 16, MAX_STOP_STRING_BYTES = 256 };

typedef struct AnswerOptions {
    const Tokenizer *tokenizer;
    bool             skip_special;    /* leave out tokens with special = true (the default of APIs) */
    bool             include_stop;    /* the stop string itself stays in the text */
    int              n_stops;
    const Str       *stops;           /* copied; each 1 .. MAX_STOP_STRING_BYTES bytes */
    size_t           max_bytes;       /* of the whole text */
} AnswerOptions;

typedef struct Answer {
    AnswerOptions options;
    Detokenizer   detokenizer;
    Buf           text;               /* all text so far, the held-back tail included */
    size_t        n_ready;            /* bytes of it that may be shown; never shrinks; ends at a character */
    int32_t       n_tokens;           /* tokens consumed: up to and including the one that completed a stop string */
    int           stop;               /* index of the stop string that was found, -1 = none (yet) */
    char          stop_bytes[MAX_STOP_STRINGS][MAX_STOP_STRING_BYTES];
    size_t        stop_len[MAX_STOP_STRINGS];
    uint8_t       stop_retry[MAX_STOP_STRINGS][MAX_STOP_STRING_BYTES]; /* where a failed comparison goes on */
    uint8_t       stop_seen[MAX_STOP_STRINGS]; /* bytes of the stop string that the text now ends in */
} Answer;

Status answer_init(Answer *a, const AnswerOptions *options, Error *err);
void   answer_free(Answer *a);
/* False once a stop string is complete or the text has outgrown max_bytes (text.failed): further tokens are not taken.
 * The stop string whose end comes first in the text wins; of those that end together the longest. */
bool   answer_push(Answer *a, int32_t token);
/* No more tokens: everything held back becomes ready (half characters: U+FFFD). */
void   answer_end(Answer *a);
