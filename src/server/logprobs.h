/* Logprobs as the two APIs write them. */
#pragma once

#include "server/job.h"

/* {"content":[{"token","logprob","bytes","top_logprobs"}],"refusal":null} of a piece's tokens; null when not asked for. */
void logprobs_chat(const Job *j, const JobChoice *c, const JobPiece *piece, Buf *out);

/* {"tokens","token_logprobs","top_logprobs","text_offset"}; the echoed prompt's tokens first when the piece is the first.
 * Moves c->n_chars on. */
void logprobs_legacy(const Job *j, JobChoice *c, const JobPiece *piece, Buf *out);
