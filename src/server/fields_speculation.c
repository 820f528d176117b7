/* "speculation" of a request: whether it is drafted, by which method, how wide. Drafts change nothing but speed; still, what
 * cannot be had is refused instead of passed over: who names a method or a width wants to measure it. */
#include "server/fields.h"

#include "speculation/config.h"

#include <stdio.h>

/* The method that the request names; NULL: it names none, or one that is not here, which engine_submit() refuses. */
static const DraftMethod *find_method(const GenerateRequest *g, const DraftMethod *methods, int32_t n)
{
    for (int32_t m = 0; m < n; m++) {
        if (strcmp(methods[m].name, g->draft_method) == 0) return &methods[m];
    }
    return NULL;
}

/* All names that --speculative-config knows mean the same here. */
static Status read_method(GenerateRequest *g, const char *name, Error *err)
{
    SpecMethod known;
    if (!*name) return error_set_param(err, ERR_INPUT, "speculation", "speculation names no method: it is an empty string");
    if (spec_method_of(name, &known)) name = spec_method_name(known);
    g->no_speculation = strcmp(name, "none") == 0;
    bool is_open = g->no_speculation || strcmp(name, "auto") == 0;
    snprintf(g->draft_method, sizeof g->draft_method, "%s", is_open ? "" : name); /* cut, it is no name of ours either */
    return OK;
}

static Status check_keys(const json_t *object, Error *err)
{
    static const char *const known[] = { "method", "num_speculative_tokens", "tree_budget" };
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value) {
        bool is_known = false;
        for (int i = 0; i < COUNT(known); i++) is_known |= strcmp(known[i], key) == 0;
        if (is_known) continue;
        return error_set_param(err, ERR_INPUT, "speculation",
                               "speculation has no key \"%.64s\"; it takes method, num_speculative_tokens and tree_budget", key);
    }
    return OK;
}

/* A width goes with one method: as many tokens cost and bring different things with another. */
static Status check_width(GenerateRequest *g, bool is_budget, const Engine *e, Error *err)
{
    int32_t n, n_tokens = g->draft_nodes - 1;
    const DraftMethod *methods = engine_methods(e, &n), *m = n == 1 && !g->draft_method[0] ? methods : find_method(g, methods, n);
    if (g->no_speculation || n == 0) {
        return error_set_param(err, ERR_INPUT, "speculation", "speculation asks for %d draft tokens, but %s", n_tokens,
                               n == 0 ? "this server does not draft" : "its method is \"none\"");
    }
    if (!m && g->draft_method[0]) return OK;
    if (!m) return error_set_param(err, ERR_INPUT, "speculation", "speculation that states a width must name its method too");
    if (is_budget && !m->is_tree) {
        return error_set_param(err, ERR_INPUT, "speculation", "speculation: tree_budget is for trees, and %s drafts chains; "
                               "say num_speculative_tokens", m->name);
    }
    if (g->draft_nodes > m->max_nodes) {
        return error_set_param(err, ERR_INPUT, "speculation", "speculation asks for %d draft tokens; here %s has at most %d", n_tokens,
                               m->name, m->max_nodes - 1);
    }
    snprintf(g->draft_method, sizeof g->draft_method, "%s", m->name);
    return OK;
}

static Status read_object(GenerateRequest *g, const json_t *object, const Engine *e, Error *err)
{
    const char *method = "auto", *tokens_key = "num_speculative_tokens", *budget_key = "tree_budget";
    int64_t n_tokens = 0, budget = 0;
    Error why = { .status = OK };
    Status s = check_keys(object, err);
    if (s) return s;
    s = json_get_string(object, "method", &method, &why);
    if (!s) s = json_get_int(object, tokens_key, 1, TREE_MAX_NODES - 1, &n_tokens, &why);
    if (!s) s = json_get_int(object, budget_key, 1, TREE_MAX_NODES - 1, &budget, &why);
    if (!s && n_tokens && budget) s = error_set(&why, ERR_INPUT, "say %s or %s, not both", tokens_key, budget_key);
    if (s) return error_set_param(err, s, "speculation", "speculation: %s", why.text);
    s = read_method(g, method, err);
    if (s || (!n_tokens && !budget)) return s;
    g->draft_nodes = (int32_t)(n_tokens + budget) + 1;
    return check_width(g, budget > 0, e, err);
}

Status fields_read_speculation(GenerateRequest *g, const json_t *body, const Engine *e, Error *err)
{
    const json_t *value = json_object_get(body, "speculation");
    if (!value || json_is_null(value) || json_is_true(value)) return OK;
    if (json_is_string(value)) return read_method(g, json_string_value(value), err);
    if (json_is_object(value)) return read_object(g, value, e, err);
    g->no_speculation = json_is_false(value);
    return g->no_speculation ? OK : error_set_param(err, ERR_INPUT, "speculation",
                                                    "speculation must be true, false, the name of a method or an object");
}
