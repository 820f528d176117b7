/* How to draft, as users say it: --speculative-config {"method": ..., "model": ..., "num_speculative_tokens": ...,
 * "tree_budget": ..., "tree": ...} in any order, or SGLang's flags for the same. Plain data, nothing opened. */
#pragma once

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

typedef enum SpecMethod { SPEC_NONE, SPEC_AUTO, SPEC_NGRAM, SPEC_MTP, SPEC_DFLASH, SPEC_DDTREE } SpecMethod;

typedef struct SpeculativeConfig {
    SpecMethod method;
    char       model[1024];             /* drafter: a directory or what model_find() knows; "" = none named */
    int32_t    num_speculative_tokens;  /* drafted tokens of a chain; 0 = the drafter's own */
    int32_t    tree_budget;             /* nodes of a tree, anchor not counted; 0 = 32 */
    bool       spine;                   /* "tree": "spine": the chain first, then the best of the rest */
    bool       is_uncoupled;            /* "coupled": false: guesses ignore the noise of the draw */
} SpeculativeConfig;

/* Names: "dflash", "ddtree", "mtp", "nextn", "ngram", "auto", "none" (also "qwen3_next_mtp", "eagle" as others call MTP). A
 * drafter directory named *-DDTree under method dflash means ddtree. ERR_USAGE naming the key. */
Status speculative_config_parse(SpeculativeConfig *out, const char *json, size_t n, Error *err);

/* SGLang's flags; NULL or 0 = not given. algorithm: NEXTN, EAGLE, DFLASH, DDTREE, NGRAM, NONE in any case. */
typedef struct SglangSpeculation {
    const char *algorithm, *draft_model_path;
    int64_t     num_steps, eagle_topk, num_draft_tokens;
} SglangSpeculation;
Status speculative_config_sglang(SpeculativeConfig *out, const SglangSpeculation *flags, Error *err);

const char *spec_method_name(SpecMethod m);
bool        spec_method_of(const char *name, SpecMethod *out);
