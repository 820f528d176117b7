/* Where the time of a request went and what became of its drafts, as answers tell it. */
#pragma once

#include "base/buf.h"
#include "engine/engine.h"

void timings_add(RequestTimings *sum, const RequestTimings *t);

/* Appends {"queue_ms": ...}. n_later: tokens that came after the first of their choice. */
void timings_write(const RequestTimings *t, int64_t n_later, const Engine *e, Buf *out);

/* Appends {"ngram":{"rounds":...,"draft_tokens":...,"accepted_tokens":...,"acceptance_by_depth":[...]},...}: methods with
 * rounds only. Entry d - 1 of the list: of the rounds whose drafts went d deep, the share that was accepted so far. */
void timings_write_methods(const RequestTimings *t, const Engine *e, Buf *out);
