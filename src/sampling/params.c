/* Ranges of the sampling parameters: refused by a sentence that names the one at fault, or moved inside.
 *
 * Comparisons are written so that NaN fails them. */
#include "sampling/choose.h"

#include <float.h>

const SampleRange sample_ranges[N_SAMPLE_RANGES] = {
    { "temperature", offsetof(SampleParams, temperature), 0, 2, false },
    { "top_p", offsetof(SampleParams, top_p), 0, 1, true },
    { "min_p", offsetof(SampleParams, min_p), 0, 1, false },
    { "repetition_penalty", offsetof(SampleParams, repetition_penalty), 1e-3, 1e3, false },
    { "presence_penalty", offsetof(SampleParams, presence_penalty), -2, 2, false },
    { "frequency_penalty", offsetof(SampleParams, frequency_penalty), -2, 2, false },
};

static Status check_range(const SampleParams *p, const SampleRange *r, Error *err)
{
    double value = (double)*(const float *)((const char *)p + r->offset);
    if (value >= r->min && value <= r->max && !(r->is_open && value == r->min)) return OK;
    return error_set_param(err, ERR_INPUT, r->name, "%s must be in %c%g, %g], got %g", r->name, r->is_open ? '(' : '[', r->min,
                           r->max, value);
}

void sample_params_clamp(SampleParams *p)
{
    for (int i = 0; i < N_SAMPLE_RANGES; i++) {
        const SampleRange *r = &sample_ranges[i];
        float *value = (float *)((char *)p + r->offset), least = r->is_open ? (float)r->min + FLT_MIN : (float)r->min;
        if (!(*value >= least)) *value = least;
        if (*value > (float)r->max) *value = (float)r->max;
    }
    if (p->top_k < 0) p->top_k = 0;
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
    Status s = OK;
    for (int i = 0; i < N_SAMPLE_RANGES && !s; i++) s = check_range(p, &sample_ranges[i], err);
    if (!s && p->top_k < 0) {
        s = error_set_param(err, ERR_INPUT, "top_k", "top_k must be 0 (off) or more, got %d", p->top_k);
    }
    if (!s && (p->n_logprobs < -1 || p->n_logprobs > MAX_TOP_LOGPROBS)) {
        s = error_set_param(err, ERR_INPUT, "top_logprobs", "top_logprobs must be in [0, %d], got %d", MAX_TOP_LOGPROBS,
                            p->n_logprobs);
    }
    return s ? s : check_bias(p, vocab_size, err);
}
