/* See config.h. */
#include "speculation/config.h"

#include "base/json.h"
#include "speculation/tree.h"

#include <stdio.h>
#include <strings.h>

static const struct {
    const char *name;
    SpecMethod  method;
} methods[] = { /* the first of a method is what we call it */
    { "none", SPEC_NONE },      { "auto", SPEC_AUTO },  { "ngram", SPEC_NGRAM },         { "mtp", SPEC_MTP },
    { "dflash", SPEC_DFLASH },  { "ddtree", SPEC_DDTREE }, { "nextn", SPEC_MTP },       { "qwen3_next_mtp", SPEC_MTP },
    { "qwen3_5_mtp", SPEC_MTP }, { "eagle", SPEC_MTP },
};

const char *spec_method_name(SpecMethod m)
{
    for (int i = 0; i < COUNT(methods); i++)
        if (methods[i].method == m) return methods[i].name;
    return "none";
}

bool spec_method_of(const char *name, SpecMethod *out)
{
    for (int i = 0; i < COUNT(methods); i++) {
        if (strcasecmp(methods[i].name, name)) continue;
        *out = methods[i].method;
        return true;
    }
    return false;
}

/* What the parts say together. */
static Status settle(SpeculativeConfig *c, Error *err)
{
    size_t n = strlen(c->model), m = strlen("-DDTree");
    if (c->method == SPEC_DFLASH && n > m && !strcasecmp(c->model + n - m, "-DDTree")) c->method = SPEC_DDTREE;
    if (c->num_speculative_tokens > MAX_DEPTH - 1)
        return error_set(err, ERR_USAGE, "a chain has at most %d drafted tokens, got %d", MAX_DEPTH - 1, c->num_speculative_tokens);
    if (c->tree_budget > TREE_MAX_NODES - 1)
        return error_set(err, ERR_USAGE, "a tree has at most %d nodes, got %d", TREE_MAX_NODES - 1, c->tree_budget);
    if (c->spine && c->method != SPEC_DDTREE && c->method != SPEC_AUTO)
        return error_set(err, ERR_USAGE, "speculative-config: \"tree\" goes with method ddtree, not with %s", spec_method_name(c->method));
    return OK;
}

static Status set_method(SpeculativeConfig *c, const char *name, Error *err)
{
    if (spec_method_of(name, &c->method)) return OK;
    return error_set(err, ERR_USAGE, "speculative-config: method must be dflash, ddtree, mtp, nextn, ngram, auto or none, got \"%s\"", name);
}

static Status set_model(SpeculativeConfig *c, const char *model, Error *err)
{
    int n = snprintf(c->model, sizeof c->model, "%s", model);
    return n < (int)sizeof c->model ? OK : error_set(err, ERR_USAGE, "speculative-config: the model's name is too long");
}

static Status set_tree(SpeculativeConfig *c, const char *tree, Error *err)
{
    c->spine = !strcmp(tree, "spine");
    if (c->spine || !strcmp(tree, "best-first")) return OK;
    return error_set(err, ERR_USAGE, "speculative-config: tree must be best-first or spine, got \"%s\"", tree);
}

static Status check_keys(const json_t *object, Error *err)
{
    static const char *const known[] = { "method", "model", "num_speculative_tokens", "tree_budget", "tree", "coupled" };
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)object, key, value) {
        bool is_known = false;
        for (int i = 0; i < COUNT(known); i++) is_known |= !strcmp(known[i], key);
        if (!is_known)
            return error_set(err, ERR_USAGE,
                             "speculative-config has no key \"%s\"; it takes method, model, num_speculative_tokens, tree_budget, "
                             "tree and coupled", key);
    }
    return OK;
}

static Status read_object(SpeculativeConfig *c, const json_t *object, Error *err)
{
    const char *method = "auto", *model = "", *tree = "best-first";
    int64_t n_tokens = 0, budget = 0;
    bool coupled = true;
    Status s = check_keys(object, err);
    if (!s) s = json_get_string(object, "method", &method, err);
    if (!s) s = json_get_string(object, "model", &model, err);
    if (!s) s = json_get_string(object, "tree", &tree, err);
    if (!s) s = json_get_int(object, "num_speculative_tokens", 1, MAX_DEPTH - 1, &n_tokens, err);
    if (!s) s = json_get_int(object, "tree_budget", 1, TREE_MAX_NODES - 1, &budget, err);
    if (!s) s = json_get_bool(object, "coupled", &coupled, err);
    if (!s) s = set_method(c, method, err);
    if (!s) s = set_model(c, model, err);
    if (!s) s = set_tree(c, tree, err);
    c->num_speculative_tokens = (int32_t)n_tokens;
    c->tree_budget = (int32_t)budget;
    c->is_uncoupled = !coupled;
    return s ? s : settle(c, err);
}

Status speculative_config_parse(SpeculativeConfig *out, const char *json, size_t n, Error *err)
{
    *out = (SpeculativeConfig){ .method = SPEC_AUTO };
    json_t *object = NULL;
    Status s = json_parse(&object, json, n, "--speculative-config", err);
    if (!s && !json_is_object(object)) s = error_set(err, ERR_USAGE, "--speculative-config must be a JSON object");
    if (!s) s = read_object(out, object, err);
    json_decref(object);
    return s ? ERR_USAGE : OK;
}

Status speculative_config_sglang(SpeculativeConfig *out, const SglangSpeculation *f, Error *err)
{
    *out = (SpeculativeConfig){ .method = SPEC_AUTO };
    if (f->eagle_topk > 1)
        return error_set(err, ERR_UNSUPPORTED, "--speculative-eagle-topk %d: MTP drafts are chains here (1); trees come from ddtree",
                         (int)f->eagle_topk);
    Status s = f->algorithm ? set_method(out, f->algorithm, err) : OK;
    if (!s && f->draft_model_path) s = set_model(out, f->draft_model_path, err);
    if (!s) s = settle(out, err); /* the name may turn it into a tree */
    if (s) return s;
    bool is_tree = out->method == SPEC_DDTREE;
    if (is_tree && f->num_draft_tokens) out->tree_budget = (int32_t)f->num_draft_tokens - 1; /* theirs count the anchor */
    if (!is_tree && f->num_draft_tokens) out->num_speculative_tokens = (int32_t)f->num_draft_tokens - 1;
    if (!is_tree && f->num_steps) out->num_speculative_tokens = (int32_t)f->num_steps;
    return settle(out, err);
}
