/* Ranges of the sampling parameters, each refused by a sentence that names it.
 *
 * Comparisons are written so that NaN fails them. */
#include "sampling/choose.h"

#include <math.h>

static Status check_range(const char *name, float value, float min, float max, Error *err)
{
    if (value >= min && value <= max) return OK;
    return error_set_param(err, ERR_INPUT, name, "%s must be in [%g, %g], got %g", name, min, max, value);
}

static Status check_bias(const SampleParams *p, int32_t vocab_size, Error *err)
{
    if (p->n_bias < 0 || p->n_bias > MAX_LOGIT_BIAS) {
        return error_set_param(err, ERR_INPUT, "logit_bias", "logit_bias must have at most %d entries, got %d",
                               MAX_LOGIT_BIAS, p->n_bias);
    }
    for (int32_t i = 0; i < p->n_bias; i++) {
        const LogitBias *b = &p->bias[i];
        if (b->token < 0 || b->token >= vocab_size) {
            return error_set_param(err, ERR_INPUT, "logit_bias",
                                   "logit_bias must name ids in [0, %d), got %d", vocab_size, b->token);
        }
        if (!(b->bias >= -100 && b->bias <= 100)) {
            return error_set_param(err, ERR_INPUT, "logit_bias",
                                   "logit_bias of id %d must be in [-100, 100], got %g", b->token, b->bias);
        }
    }
    return OK;
}

Status sample_params_check(const SampleParams *p, int32_t vocab_size, Error *err)
{
    Status s = check_range("temperature", p->temperature, 0, 2, err);
    if (!s && !(p->top_p > 0 && p->top_p <= 1)) {
        s = error_set_param(err, ERR_INPUT, "top_p", "top_p must be in (0, 1], got %g", p->top_p);
    }
    if (!s) s = check_range("min_p", p->min_p, 0, 1, err);
    if (!s && p->top_k < 0) {
        s = error_set_param(err, ERR_INPUT, "top_k", "top_k must be 0 (off) or more, got %d", p->top_k);
    }
    if (!s && !(p->repetition_penalty > 0 && isfinite(p->repetition_penalty))) {
        s = error_set_param(err, ERR_INPUT, "repetition_penalty", "repetition_penalty must be above 0, got %g",
                            p->repetition_penalty);
    }
    if (!s) s = check_range("presence_penalty", p->presence_penalty, -2, 2, err);
    if (!s) s = check_range("frequency_penalty", p->frequency_penalty, -2, 2, err);
    if (!s && (p->n_logprobs < -1 || p->n_logprobs > MAX_TOP_LOGPROBS)) {
        s = error_set_param(err, ERR_INPUT, "top_logprobs", "top_logprobs must be in [0, %d], got %d", MAX_TOP_LOGPROBS,
                            p->n_logprobs);
    }
    return s ? s : check_bias(p, vocab_size, err);
}
