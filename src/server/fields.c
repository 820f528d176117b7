/* Generation parameters: tables of names, ranges and places; then the few fields that are no plain numbers. */
#include "server/fields.h"

#include "base/planted.h"

#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/random.h>

uint64_t random_bits(void)
{
    uint64_t bits = 0;
    if (getrandom(&bits, sizeof bits, 0) != sizeof bits) bits = (uint64_t)(uintptr_t)&bits;
    return bits >> 11;
}

/* ---- refused ---- */

typedef enum Refusal { IF_TRUE, IF_GIVEN } Refusal;

static const struct {
    const char *key;
    Refusal     when;
} refused[] = {
    { "use_beam_search", IF_TRUE }, { "continue_final_message", IF_TRUE }, { "suffix", IF_GIVEN },
    { "guided_json", IF_GIVEN }, { "guided_regex", IF_GIVEN }, { "guided_choice", IF_GIVEN }, { "guided_grammar", IF_GIVEN },
    { "structured_outputs", IF_GIVEN }, { "functions", IF_GIVEN }, { "function_call", IF_GIVEN }, { "audio", IF_GIVEN },
    { "logits_processors", IF_GIVEN }, { "bad_words", IF_GIVEN }, { "allowed_token_ids", IF_GIVEN },
    { "truncate_prompt_tokens", IF_GIVEN }, { "prompt_logprobs", IF_GIVEN }, { "chat_template", IF_GIVEN },
    { "documents", IF_GIVEN }, { "prompt_embeds", IF_GIVEN }, { "kv_transfer_params", IF_GIVEN },
};

static Status refuse_unsupported(const json_t *body, Error *err)
{
    for (int i = 0; i < COUNT(refused); i++) {
        const json_t *v = json_object_get(body, refused[i].key);
        if (!v || json_is_null(v) || json_is_false(v)) continue;
        if (refused[i].when == IF_TRUE && !json_is_true(v)) continue;
        if (json_is_array(v) && json_array_size(v) == 0) continue;
        return error_set_param(err, ERR_UNSUPPORTED, refused[i].key, "%s is not supported", refused[i].key);
    }
    json_t *format = NULL;
    const char *type = "text";
    Status s = json_get_object(body, "response_format", &format, err);
    if (!s && format) s = json_get_string(format, "type", &type, err);
    if (s || strcmp(type, "text") == 0) return s;
    return error_set_param(err, ERR_UNSUPPORTED, "response_format", "response_format of type \"%.32s\" is not supported, only \"text\"",
                           type);
}

/* ---- numbers ---- */

static Status read_int32(const json_t *body, const char *key, int32_t min, int32_t max, int32_t *value, Error *err)
{
    int64_t v = *value;
    Status s = json_get_int(body, key, min, max, &v, err);
    *value = (int32_t)v;
    return s;
}

static Status read_sampling(SampleParams *p, const json_t *body, Error *err)
{
    Status s = OK;
    for (int i = 0; i < N_SAMPLE_RANGES && !s; i++) {
        const SampleRange *r = &sample_ranges[i];
        float *place = (float *)((char *)p + r->offset);
        double v = *place;
        s = json_get_double(body, r->name, r->min, r->max, &v, err); /* an open end is refused when it is submitted */
        *place = (float)v;
    }
    if (!s) s = read_int32(body, "top_k", -1, INT32_MAX, &p->top_k, err);
    if (p->top_k < 0) p->top_k = 0; /* -1 is how others say "off" */
    return s;
}

static Status read_seed(GenerateRequest *g, const json_t *body, const Server *s, Error *err)
{
    int64_t seed = (int64_t)(s->has_seed ? s->seed : random_bits());
    Status status = json_get_int(body, "seed", INT64_MIN, INT64_MAX, &seed, err);
    g->seed = (uint64_t)seed;
    return status;
}

static Status read_lengths(Fields *f, const json_t *body, Error *err)
{
    GenerateRequest *g = &f->g;
    const char *newer = "max_completion_tokens", *older = "max_tokens";
    const char *key = json_has(body, newer) ? newer : older;
    int32_t unused = 0;
    f->has_max_tokens = json_has(body, key);
    Status s = read_int32(body, older, 0, INT32_MAX, &unused, err); /* checked even if the newer name wins */
    if (!s) s = read_int32(body, key, 0, INT32_MAX, &g->max_tokens, err);
    if (!s) s = read_int32(body, "min_tokens", 0, INT32_MAX, &g->min_tokens, err);
    if (!s) s = read_int32(body, "n", 1, MAX_CHOICES, &g->n_choices, err);
    int32_t best_of = g->n_choices;
    if (!s) s = read_int32(body, "best_of", 1, INT32_MAX, &best_of, err);
    if (!s && best_of != g->n_choices) {
        s = error_set_param(err, ERR_UNSUPPORTED, "best_of", "best_of must equal n (%d), got %d", g->n_choices, best_of);
    }
    return s;
}

/* ---- logit_bias ---- */

static Status read_bias_entry(LogitBias *b, const char *key, const json_t *value, Error *err)
{
    char *end;
    long token = strtol(key, &end, 10);
    if (!*key || *end || token < 0 || token > INT32_MAX) {
        return error_set_param(err, ERR_INPUT, "logit_bias", "logit_bias has the key \"%.32s\", which is no token id", key);
    }
    double bias = json_is_number(value) ? json_number_value(value) : NAN;
    if (!(bias >= -100 && bias <= 100)) {
        return error_set_param(err, ERR_INPUT, "logit_bias", "logit_bias of token %ld must be a number in [-100, 100]", token);
    }
    *b = (LogitBias){ .token = (int32_t)token, .bias = (float)bias };
    return OK;
}

static Status read_bias(SampleParams *p, const json_t *body, Arena *arena, Error *err)
{
    json_t *object = NULL;
    Status s = json_get_object(body, "logit_bias", &object, err);
    size_t n = object ? json_object_size(object) : 0;
    if (s || n == 0) return s;
    if (n > MAX_LOGIT_BIAS) {
        return error_set_param(err, ERR_INPUT, "logit_bias", "logit_bias may have %d entries, got %zu", MAX_LOGIT_BIAS, n);
    }
    LogitBias *bias = arena_array(arena, LogitBias, n);
    if (!bias) return error_set(err, ERR_NOMEM, "no memory for logit_bias");
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        s = read_bias_entry(&bias[p->n_bias], key, value, err);
        if (s) return s;
        p->n_bias++;
    }
    p->bias = bias;
    return OK;
}

/* ---- stops ---- */

static Status add_stop(Fields *f, const json_t *value, Arena *arena, Error *err)
{
    if (!json_is_string(value)) return error_set_param(err, ERR_INPUT, "stop", "stop must be a string or a list of strings");
    size_t n = json_string_length(value);
    if (n < 1 || n > MAX_STOP_STRING_BYTES) {
        return error_set_param(err, ERR_INPUT, "stop", "a stop string must have 1 to %d bytes, got one of %zu",
                               MAX_STOP_STRING_BYTES, n);
    }
    if (f->n_stops == MAX_STOP_STRINGS && !PLANTED("body")) {
        return error_set_param(err, ERR_INPUT, "stop", "at most %d stop strings are possible", MAX_STOP_STRINGS);
    }
    char *copy = arena_strndup(arena, json_string_value(value), n);
    if (!copy) return error_set(err, ERR_NOMEM, "no memory for stop strings");
    f->stops[f->n_stops++] = (Str){ copy, n };
    return OK;
}

static Status read_stops(Fields *f, const json_t *body, Arena *arena, Error *err)
{
    const json_t *stop = json_object_get(body, "stop");
    if (!stop || json_is_null(stop)) return OK;
    if (!json_is_array(stop)) return add_stop(f, stop, arena, err);
    Status s = OK;
    for (size_t i = 0; i < json_array_size(stop) && !s; i++) s = add_stop(f, json_array_get(stop, i), arena, err);
    return s;
}

static Status add_stop_id(GenerateRequest *g, int64_t id, Error *err)
{
    for (int i = 0; i < g->n_stop_ids; i++) {
        if (g->stop_ids[i] == id) return OK;
    }
    if (g->n_stop_ids == MAX_STOP_IDS) {
        return error_set_param(err, ERR_INPUT, "stop_token_ids", "at most %d stop ids are possible", MAX_STOP_IDS);
    }
    g->stop_ids[g->n_stop_ids++] = (int32_t)id;
    return OK;
}

/* ignore_eos switches the model's own stop ids off, those of the request stay. */
static Status read_stop_ids(GenerateRequest *g, const json_t *body, const Server *s, Error *err)
{
    bool ignore_eos = false;
    json_t *ids = NULL;
    Status status = json_get_bool(body, "ignore_eos", &ignore_eos, err);
    if (!status) status = json_get_array(body, "stop_token_ids", &ids, err);
    for (int i = 0; i < s->stack.n_stop_ids && !ignore_eos && !status; i++) {
        status = add_stop_id(g, s->stack.stop_ids[i], err);
    }
    for (size_t i = 0; i < json_array_size(ids) && !status; i++) {
        const json_t *id = json_array_get(ids, i);
        int64_t v = json_is_integer(id) ? json_integer_value(id) : -1;
        if (v < 0 || v > INT32_MAX) {
            return error_set_param(err, ERR_INPUT, "stop_token_ids", "stop_token_ids must be a list of token ids");
        }
        status = add_stop_id(g, v, err);
    }
    g->ignore_eos = g->n_stop_ids == 0;
    return status;
}

/* ---- streaming ---- */

static Status read_stream(Fields *f, const json_t *body, Error *err)
{
    json_t *options = NULL;
    Status s = json_get_bool(body, "stream", &f->is_stream, err);
    if (!s) s = json_get_object(body, "stream_options", &options, err);
    if (!s && options && !f->is_stream) {
        s = error_set_param(err, ERR_INPUT, "stream_options", "stream_options needs \"stream\": true");
    }
    if (!s && options) s = json_get_bool(options, "include_usage", &f->include_usage, err);
    return s;
}

Status fields_read(Fields *f, const json_t *body, const Server *s, Arena *arena, Error *err)
{
    *f = (Fields){ .skip_special = true };
    GenerateRequest *g = &f->g;
    g->n_choices = 1;
    stack_default_params(&s->stack, &g->params);
    g->params.n_logprobs = -1;

    Status status = refuse_unsupported(body, err);
    if (!status) status = read_sampling(&g->params, body, err);
    if (!status) status = read_lengths(f, body, err);
    if (!status) status = read_seed(g, body, s, err);
    if (!status) status = read_bias(&g->params, body, arena, err);
    if (!status) status = read_stops(f, body, arena, err);
    if (!status) status = read_stop_ids(g, body, s, err);
    if (!status) status = read_stream(f, body, err);
    if (!status) status = json_get_bool(body, "include_stop_str_in_output", &f->include_stop, err);
    if (!status) status = json_get_bool(body, "skip_special_tokens", &f->skip_special, err);
    if (!status) status = fields_read_speculation(g, body, s->stack.engine, err);
    if (!status) status = sample_params_check(&g->params, s->stack.config.vocab_size, err);
    return status;
}

int32_t fields_max_tokens(const Fields *f, int32_t n_prompt, int32_t max_model_len)
{
    int32_t room = max_model_len - n_prompt;
    return f->has_max_tokens && f->g.max_tokens < room ? f->g.max_tokens : room;
}
