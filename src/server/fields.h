/* The fields of a generation request that /v1/chat/completions and /v1/completions share, from JSON to GenerateRequest.
 *
 * Three kinds of fields: those we do; those that would change the answer and that we do not do, refused by name; all
 * others (user, store, metadata, service_tier ... and whatever comes next year), ignored. */
#pragma once

#include "base/json.h"
#include "server/server_impl.h"

typedef struct Fields {
    GenerateRequest g;             /* all but id and prompt; bias in the arena */
    int             n_stops;
    Str             stops[MAX_STOP_STRINGS]; /* in the arena */
    bool            include_stop;  /* include_stop_str_in_output */
    bool            skip_special;  /* skip_special_tokens */
    bool            is_stream, include_usage;
    bool            has_max_tokens; /* g.max_tokens was given; it may be 0 then */
} Fields;

/* body: a JSON object. Everything kept is copied into the arena. */
Status fields_read(Fields *f, const json_t *body, const Server *s, Arena *arena, Error *err);

/* "speculation": false, true, the name of a method, {"method", "num_speculative_tokens" or "tree_budget"}. Part of the above. */
Status fields_read_speculation(GenerateRequest *g, const json_t *body, const Engine *e, Error *err);

/* What is left of max_tokens after a prompt of n_prompt tokens. max_tokens is a limit and no reservation: clients send
 * fixed large ones, so one beyond the context is lowered, not refused; the answer then ends with "length" as well. */
int32_t fields_max_tokens(const Fields *f, int32_t n_prompt, int32_t max_model_len);

uint64_t random_bits(void); /* 53 of them: exact in every JSON reader */
