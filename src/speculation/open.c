/* See open.h. */
#include "speculation/open.h"

#include "backend/needs.h"
#include "base/file.h"
#include "speculation/draft_auto.h"
#include "speculation/draft_dflash.h"
#include "speculation/draft_mtp.h"
#include "speculation/draft_ngram.h"
#include "tensor/checkpoint.h"

#include <stdio.h>

enum { DEFAULT_BUDGET = 32, DEFAULT_STEPS = 3, DEFAULT_NGRAM = 15, DFLASH_BLOCK = 16 };

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
    return (DflashOptions){ .dir = shape->dir, .backend = backend, .target = target, .n_slots = o->limits.max_seqs,
                            .methods = shape->dflash,
                            .tree_budget = or_default(o->config->tree_budget, DEFAULT_BUDGET),
                            .is_uncoupled = o->config->is_uncoupled, .load_format = o->load_format };
}

static NgramOptions ngram_options(const SpeculationOptions *o)
{
    return (NgramOptions){ .n_slots = o->limits.max_seqs, .max_model_len = o->max_model_len,
                           .max_tokens = or_default(o->config->num_speculative_tokens, DEFAULT_NGRAM) };
}

/* ---- deciding ---- */

/* MODEL-DFlash beside the model, which may be MODEL.gguf. */
static bool find_beside(const char *model_dir, char *dir, size_t size)
{
    size_t n = strlen(model_dir);
    while (n > 1 && model_dir[n - 1] == '/') n--;
    if (gguf_is_path(model_dir)) n -= strlen(".gguf");
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

/* The config may promise a module that the file has lost on its way. */
static bool has_mtp(const SpeculationOptions *o, const ModelInfo *target)
{
    Error why = { 0 };
    Checkpoint *file = NULL;
    if (mtp_check(target, &why)) return false;
    if (o->load_format == LOAD_DUMMY) return true;
    bool has = checkpoint_open(&file, o->model_dir, &why) == OK && checkpoint_find(file, "mtp.fc.weight");
    checkpoint_close(file);
    return has;
}

static Status dflash_fits_with(const SpeculationOptions *o, const ModelInfo *target, SpeculationShape *shape, unsigned methods, Error *err)
{
    DflashNeeds needs;
    shape->dflash = methods;
    DflashOptions options = dflash_options(o, shape, NULL, NULL);
    return drafter_dflash_needs(&options, target, &needs, err);
}

/* All its methods; DFlash 2 drafts chains only. */
static Status add_dflash(const SpeculationOptions *o, const ModelInfo *target, SpeculationShape *shape, Error *err)
{
    Error why = { 0 };
    if (dflash_fits_with(o, target, shape, DFLASH_CHAIN | DFLASH_TREE | DFLASH_SPINE, &why) == OK) return OK;
    Status s = dflash_fits_with(o, target, shape, DFLASH_CHAIN, err);
    if (s) shape->dflash = 0;
    return s;
}

static Status decide_auto(const SpeculationOptions *o, const ModelInfo *target, SpeculationShape *shape, Error *err)
{
    Error why = { 0 };
    bool is_named = o->config->model[0] != 0;
    shape->has_ngram = true;
    shape->has_mtp = has_mtp(o, target);
    Status s = find_drafter(o, shape, &why);
    if (!s) s = add_dflash(o, target, shape, &why);
    return s && is_named ? error_set_param(err, s, "speculative_config", "%s", why.text) : OK;
}

static Status decide_one(const SpeculationOptions *o, const ModelInfo *target, SpeculationShape *shape, Error *err)
{
    unsigned tree = o->config->spine ? DFLASH_SPINE : DFLASH_TREE;
    shape->has_ngram = shape->method == SPEC_NGRAM;
    shape->has_mtp = shape->method == SPEC_MTP;
    shape->dflash = shape->method == SPEC_DFLASH ? DFLASH_CHAIN : shape->method == SPEC_DDTREE ? tree : 0;
    if (shape->has_mtp) return mtp_check(target, err);
    return shape->dflash ? find_drafter(o, shape, err) : OK;
}

static void widen(SpeculationShape *shape, int32_t nodes, int32_t depth)
{
    if (nodes > shape->draft_nodes) shape->draft_nodes = nodes;
    if (depth > shape->draft_depth) shape->draft_depth = depth;
}

static void fill_widths(const SpeculationOptions *o, SpeculationShape *shape)
{
    const SpeculativeConfig *c = o->config;
    int32_t steps = or_default(c->num_speculative_tokens, DEFAULT_STEPS), ngram = or_default(c->num_speculative_tokens, DEFAULT_NGRAM);
    int32_t chain = or_default(c->num_speculative_tokens, DFLASH_BLOCK - 1), budget = or_default(c->tree_budget, DEFAULT_BUDGET);
    if (shape->has_ngram) widen(shape, ngram + 1, ngram);
    if (shape->has_mtp) widen(shape, steps + 1, steps);
    if (shape->dflash & DFLASH_CHAIN) widen(shape, chain + 1, chain);
    if (shape->dflash & (DFLASH_TREE | DFLASH_SPINE)) widen(shape, budget + 1, MAX_DEPTH - 1);
    shape->adapts = shape->method == SPEC_AUTO || (!c->num_speculative_tokens && !c->tree_budget);
}

Status speculation_decide(const SpeculationOptions *o, const ModelInfo *target, SpeculationShape *out, Error *err)
{
    *out = (SpeculationShape){ .method = o->config->method };
    if (out->method == SPEC_NONE) return OK;
    Status s = (out->method == SPEC_AUTO ? decide_auto : decide_one)(o, target, out, err);
    if (!s) fill_widths(o, out);
    return s;
}

/* ---- needs, opening ---- */

static void add_needs(DrafterNeeds *out, size_t weights, size_t scratch, CacheGroup group)
{
    out->bytes += weights + backend_held(scratch);
    out->groups[out->n_groups++] = group;
}

static Status add_mtp_needs(const SpeculationOptions *o, const ModelInfo *target, DrafterNeeds *out, Error *err)
{
    MtpOptions options = mtp_options(o, NULL);
    MtpNeeds needs;
    Status s = drafter_mtp_needs(&options, target, &needs, err);
    if (s) return s;
    add_needs(out, needs.weight_bytes + needs.page_bytes, needs.scratch_bytes, needs.group);
    out->wants_last_hidden = true;
    return OK;
}

static Status add_dflash_needs(const SpeculationOptions *o, const SpeculationShape *shape, const ModelInfo *target, DrafterNeeds *out, Error *err)
{
    DflashOptions options = dflash_options(o, shape, NULL, NULL);
    DflashNeeds needs;
    Status s = drafter_dflash_needs(&options, target, &needs, err);
    if (s) return s;
    add_needs(out, needs.weight_bytes + needs.page_bytes, needs.scratch_bytes, needs.group);
    out->n_taps = needs.n_taps;
    return OK;
}

Status speculation_needs(const SpeculationOptions *o, const SpeculationShape *shape, const ModelInfo *target, DrafterNeeds *out, Error *err)
{
    *out = (DrafterNeeds){ 0 };
    NgramOptions ngram = ngram_options(o);
    if (shape->has_ngram) out->bytes += drafter_ngram_bytes(&ngram);
    Status s = shape->has_mtp ? add_mtp_needs(o, target, out, err) : OK;
    if (!s && shape->dflash) s = add_dflash_needs(o, shape, target, out, err);
    return s;
}

/* The drafters of the shape, in the order in which a draw between them is decided. Returns how many are open, on failure too. */
static Status open_children(const SpeculationOptions *o, const SpeculationShape *shape, const Model *target, Backend *backend,
                            Drafter *child[AUTO_MAX_CHILDREN], int *n, Error *err)
{
    NgramOptions ngram = ngram_options(o);
    MtpOptions mtp = mtp_options(o, target);
    DflashOptions dflash = dflash_options(o, shape, target, backend);
    Status s = OK;
    if (shape->has_ngram) s = drafter_open_ngram(&child[*n], &ngram, err);
    if (!s && shape->has_ngram) ++*n;
    if (!s && shape->has_mtp) s = drafter_open_mtp(&child[*n], &mtp, err);
    if (!s && shape->has_mtp) ++*n;
    if (!s && shape->dflash) s = drafter_open_dflash(&child[*n], &dflash, err);
    if (!s && shape->dflash) ++*n;
    return s;
}

Status speculation_open(Drafter **out, const SpeculationOptions *o, const SpeculationShape *shape, const Model *target, Backend *backend,
                        Error *err)
{
    Drafter *child[AUTO_MAX_CHILDREN];
    int n = 0;
    *out = NULL;
    Status s = open_children(o, shape, target, backend, child, &n, err);
    if (!s && n == 1) *out = child[0];
    if (!s && n > 1) s = drafter_open_auto(out, child, n, err);
    if (s)
        for (int i = 0; i < n; i++) drafter_close(child[i]);
    return s;
}
