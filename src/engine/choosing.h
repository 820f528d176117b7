/* From logits to tokens: the choices of one share of a pass, appended to its sequence. Engine thread only. */
#pragma once

#include "engine/share.h"
#include "sampling/row_chooser.h"

typedef struct Choosing {
    RowChooser          *rows;     /* of the pass's outputs */
    int32_t              vocab_size;
    const EngineOptions *options;  /* borrowed: hooks, n_valid */
    Walk                 walk;     /* of the share at hand */
} Choosing;

/* The rule of the row after `history`, and the history of a row whose path from the anchor is path[0..n_path-1] (tokens,
 * borrowed). The first token behind the prompt has an empty path. */
void sequence_history(const Sequence *seq, const int32_t *path, int32_t n_path, History *out);
void sequence_rule(const Sequence *seq, int32_t index, const EngineOptions *options, const History *history, RowRule *out);

/* Behind the forward pass, before its end is waited for: what can be said beforehand about the rows that tokens may be chosen
 * at, so that a device chooses at once and the logits stay there. */
void choosing_queue(Choosing *c, Stream *st, const Share *shares, int32_t n, Tensor logits);

/* Walks the share's tree, appends the chosen tokens to the sequence (logprobs, hooks, stop and length) and fills
 * n_path and path_rows. Returns false when the logits are not finite: tokens chosen before stay, and the caller ends the request. */
bool choose_tokens(Choosing *c, Share *share);

/* Logprobs of the prompt tokens behind the share's rows; the same return. */
bool score_prompt(Choosing *c, const Share *share);
