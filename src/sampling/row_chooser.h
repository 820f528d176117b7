/* Choosing for the rows of a pass, where their logits lie.
 *
 * On a CPU this is choose(), when a row's turn comes. A device chooses for all rows that may have to be chosen for, right
 * behind the pass, and only results travel; rows with a mask or a forced token are brought to the host instead, and so is what
 * somebody wants to read. Both give the same bits, so nobody has to know which it was:
 *
 *     row_chooser_begin   ->  _add, _read for rows  ->  _queue behind the pass  ->  stream_sync  ->  _choose, _logits
 *
 * _add says beforehand what _choose will be asked. One thread; allocates only in open. */
#pragma once

#include "backend/backend.h"
#include "sampling/choose.h"

typedef struct RowChooser RowChooser;

/* For logits [at most max_rows, vocab_size] in memory of backend_alloc_device(). max_ranks: the largest k of row_chooser_add_rank();
 * 0 = it is not called. The backend is borrowed until close. ERR_NOMEM, or chooser_open()'s ERR_UNSUPPORTED. */
Status row_chooser_open(RowChooser **out, Backend *backend, int32_t vocab_size, int32_t max_rows, int32_t max_ranks, Error *err);
void   row_chooser_close(RowChooser *c); /* copes with NULL */

/* False: everything is done in _choose, and _add and _queue cost nothing. */
bool row_chooser_is_device(const RowChooser *c);

/* `logits` is borrowed until the sync; nobody else reads a row on a device that was added: rules are applied in place. */
void row_chooser_begin(RowChooser *c, Tensor logits);
void row_chooser_add(RowChooser *c, int32_t row, const RowRule *rule, DrawKey key, uint32_t index);
void row_chooser_read(RowChooser *c, int32_t row); /* somebody will look at its logits */
void row_chooser_queue(RowChooser *c, Stream *st);

void row_chooser_choose(RowChooser *c, int32_t row, const RowRule *rule, DrawKey key, uint32_t index, Choice *out);
/* The row in host memory, borrowed until the next begin, free to be changed; it was asked for by _read, or by an _add that the
 * device could not take. On a CPU it is the row itself. */
float *row_chooser_logits(RowChooser *c, int32_t row);

/* The k best ids of a row by score = logit under the rule + weight * noise (ops.h, rank), for drafters; k is the same for all
 * rows between begin and queue. Afterwards a row is ranked, or it can be read. */
void row_chooser_add_rank(RowChooser *c, int32_t row, int32_t k, const RowRule *rule, float weight, DrawKey key, uint32_t index);
typedef struct RowRanks {
    int32_t        n; /* -1: the row is broken */
    float          log_sum;
    const int32_t *id;
    const float   *score;
} RowRanks;
bool     row_chooser_is_ranked(const RowChooser *c, int32_t row);
RowRanks row_chooser_ranks(const RowChooser *c, int32_t row);
