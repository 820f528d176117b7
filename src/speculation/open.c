/* See open.h. */
#include "speculation/open.h"

#include "base/file.h"
#include "speculation/draft_dflash.h"
#include "speculation/draft_mtp.h"
#include "speculation/draft_ngram.h"
#include "tensor/safetensors.h"

#include <stdio.h>

enum { DEFAULT_BUDGET = 32, DEFAULT_STEPS = 3, DEFAULT_NGRAM = 8, DFLASH_BLOCK = 16 };

static int32_t or_default(int32_t value, int32_t otherwise)
{
    return value > 0 ? value : otherwise;
}

/* ---- options of each drafter ---- */

static MtpOptions mtp_options(const SpeculationOptions *o, const Model *target)
{
    return (MtpOptions){ .target = target, .dir = o->model_dir, .load_format = o->load_format, .limits = o->limits,
                         .n_steps = o->config->num_speculative_tokens, .is_uncoupled = o->config->is_uncoupled };
}

static DflashOptions dflash_options(const SpeculationOptions *o, const SpeculationShape *shape, const Model *target, Backend *backend)
{
    unsigned tree = o->config->spine ? DFLASH_SPINE : DFLASH_TREE;
    return (DflashOptions){ .dir = shape->dir, .backend = backend, .target = target, .n_slots = o->limits.max_seqs,
                            .methods = shape->method == SPEC_DDTREE ? tree : DFLASH_CHAIN,
                            .tree_budget = or_default(o->config->tree_budget, DEFAULT_BUDGET),
                            .is_uncoupled = o->config->is_uncoupled, .load_format = o->load_format };
}

static NgramOptions ngram_options(const SpeculationOptions *o)
{
    return (NgramOptions){ .n_slots = o->limits.max_seqs, .max_model_len = o->max_model_len,
                           .max_tokens = or_default(o->config->num_speculative_tokens, DEFAULT_NGRAM) };
}

/* ---- deciding ---- */

/* MODEL-DFlash beside the model. */
static bool find_beside(const char *model_dir, char *dir, size_t size)
{
    size_t n = strlen(model_dir);
    while (n > 1 && model_dir[n - 1] == '/') n--;
    int len = snprintf(dir, size, "%.*s-DFlash", (int)n, model_dir);
    return len > 0 && (size_t)len < size && dir_exists(dir);
}

static Status find_drafter(const SpeculationOptions *o, SpeculationShape *shape, Error *err)
{
    if (o->config->model[0]) return model_find(o->config->model, shape->dir, sizeof shape->dir, err);
    if (find_beside(o->model_dir, shape->dir, sizeof shape->dir)) return OK;
    return error_set_param(err, ERR_USAGE, "speculative_config", "method %s needs a drafter: name it as \"model\" in --speculative-config",
                           spec_method_name(shape->method));
}

static Status lies_fitting(const SpeculationOptions *o, const SpeculationShape *shape, const ModelInfo *target, Error *err)
{
    DflashOptions options = dflash_options(o, shape, NULL, NULL);
    DflashNeeds needs;
    return drafter_dflash_needs(&options, target, &needs, err);
}

/* The config may promise a module that the file has lost on its way. */
static bool has_mtp(const SpeculationOptions *o, const ModelInfo *target)
{
    Error why = { 0 };
    Safetensors *file = NULL;
    if (mtp_check(target, &why)) return false;
    if (o->load_format == LOAD_DUMMY) return true;
    bool has = safetensors_open(&file, o->model_dir, &why) == OK && safetensors_find(file, "mtp.fc.weight");
    safetensors_close(file);
    return has;
}

static void decide_auto(const SpeculationOptions *o, const ModelInfo *target, SpeculationShape *shape)
{
    Error why = { 0 };
    bool is_named = o->config->model[0] != 0;
    shape->method = SPEC_MTP;
    if (!is_named && has_mtp(o, target)) return;
    shape->method = SPEC_NGRAM;
    if (find_drafter(o, shape, &why)) return;
    shape->method = SPEC_DFLASH;
    Status chain = lies_fitting(o, shape, target, &why);
    shape->method = SPEC_DDTREE;
    Status tree = lies_fitting(o, shape, target, &why);
    if (tree && !chain) shape->method = SPEC_DFLASH; /* DFlash 2 */
    if (tree && chain && !is_named) shape->method = SPEC_NGRAM;
}

static void fill_widths(const SpeculationOptions *o, SpeculationShape *shape)
{
    const SpeculativeConfig *c = o->config;
    int32_t chain = 0;
    switch (shape->method) {
    case SPEC_MTP: chain = or_default(c->num_speculative_tokens, DEFAULT_STEPS); break;
    case SPEC_NGRAM: chain = or_default(c->num_speculative_tokens, DEFAULT_NGRAM); break;
    case SPEC_DFLASH: chain = or_default(c->num_speculative_tokens, DFLASH_BLOCK - 1); break;
    case SPEC_DDTREE:
        shape->draft_nodes = or_default(c->tree_budget, DEFAULT_BUDGET) + 1;
        shape->draft_depth = MAX_DEPTH - 1;
        return;
    default: return;
    }
    shape->draft_nodes = chain + 1;
    shape->draft_depth = chain;
}

Status speculation_decide(const SpeculationOptions *o, const ModelInfo *target, SpeculationShape *out, Error *err)
{
    *out = (SpeculationShape){ .method = o->config->method };
    if (out->method == SPEC_AUTO) decide_auto(o, target, out);
    Status s = OK;
    if (out->method == SPEC_MTP) s = mtp_check(target, err);
    if (!s && (out->method == SPEC_DFLASH || out->method == SPEC_DDTREE) && !out->dir[0]) s = find_drafter(o, out, err);
    if (!s) fill_widths(o, out);
    return s;
}

/* ---- needs, opening ---- */

static void add_needs(DrafterNeeds *out, size_t weights, size_t scratch, CacheGroup group)
{
    out->bytes += weights + scratch;
    out->groups[out->n_groups++] = group;
}

Status speculation_needs(const SpeculationOptions *o, const SpeculationShape *shape, const ModelInfo *target, DrafterNeeds *out, Error *err)
{
    *out = (DrafterNeeds){ 0 };
    if (shape->method == SPEC_NGRAM) {
        NgramOptions options = ngram_options(o);
        out->bytes = drafter_ngram_bytes(&options);
    } else if (shape->method == SPEC_MTP) {
        MtpOptions options = mtp_options(o, NULL);
        MtpNeeds needs;
        Status s = drafter_mtp_needs(&options, target, &needs, err);
        if (s) return s;
        add_needs(out, needs.weight_bytes, needs.scratch_bytes, needs.group);
        out->wants_last_hidden = true;
    } else if (shape->method == SPEC_DFLASH || shape->method == SPEC_DDTREE) {
        DflashOptions options = dflash_options(o, shape, NULL, NULL);
        DflashNeeds needs;
        Status s = drafter_dflash_needs(&options, target, &needs, err);
        if (s) return s;
        add_needs(out, needs.weight_bytes, needs.scratch_bytes, needs.group);
        out->n_taps = needs.n_taps;
    }
    return OK;
}

Status speculation_open(Drafter **out, const SpeculationOptions *o, const SpeculationShape *shape, const Model *target, Backend *backend,
                        Error *err)
{
    *out = NULL;
    NgramOptions ngram = ngram_options(o);
    MtpOptions mtp = mtp_options(o, target);
    DflashOptions dflash = dflash_options(o, shape, target, backend);
    switch (shape->method) {
    case SPEC_NGRAM: return drafter_open_ngram(out, &ngram, err);
    case SPEC_MTP: return drafter_open_mtp(out, &mtp, err);
    case SPEC_DFLASH:
    case SPEC_DDTREE: return drafter_open_dflash(out, &dflash, err);
    default: return OK;
    }
}
