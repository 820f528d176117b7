/* What a request's rules do to a row of scores before anything is drawn: grammar mask, bans, logit_bias, penalties.
 * (Padded ids are not masked: whoever calls leaves them out of n.) */
#pragma once

#include "sampling/choose.h"

/* False: rules_apply() would change nothing, and the logits can be used where they lie. */
bool rules_change(const RowRule *rule);

/* Applies them to score[0 .. n), in the order above; a masked id becomes -inf and stays so.
 * marks [n] must be all zero and is so again afterwards. Cost: one look at the mask, one walk along the history. */
void rules_apply(float *score, int32_t n, const RowRule *rule, uint32_t *marks);

/* Whether any penalty is set, and what they are. */
bool      rules_penalise(const SampleParams *p);
Penalties sample_penalties(const SampleParams *p);
