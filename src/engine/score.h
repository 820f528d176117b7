/* Known tokens through a model, every position's logits handed out: `logits`, `perplexity`. One sequence, no engine.
 * Same ops, same contract, so the same bits as the engine's rows. */
#pragma once

#include "models/model.h"

typedef struct Scorer Scorer;

/* Caches for n_tokens and passes of `chunk` rows. The model (opened with max_rows and max_outputs >= chunk) and backend are
 * borrowed until score_close. */
Status score_open(Scorer **out, Model *model, Backend *backend, int32_t n_tokens, int32_t chunk, Error *err);
void   score_close(Scorer *s);

/* One pass over ids[first .. first + n), n at most chunk, whose predecessors were passed before: what score_run repeats. Logits of
 * the last n_outputs rows, [n_outputs, vocab], borrowed until the next pass. Ids are not checked here, nor is the device:
 * the logits are nothing when stream_lost() says so. */
Tensor score_pass(Scorer *s, const int32_t *ids, int32_t first, int32_t n, int32_t n_outputs);

/* The same without waiting for its end, logits to `logits` (of the backend, device memory too). Returns them. */
Tensor score_queue(Scorer *s, const int32_t *ids, int32_t first, int32_t n, int32_t n_outputs, float *logits);

/* Runs ids[0..n) from an empty sequence; rows(ctx, first, logits) sees logits [n_rows, vocab] of places first .. in order.
 * ERR_INPUT: too many ids, or one outside the vocabulary; ERR_LOST: the device is gone, rows has seen what came before. */
Status score_run(Scorer *s, const int32_t *ids, int32_t n, void (*rows)(void *ctx, int32_t first, Tensor logits), void *ctx,
                 Error *err);
