/* See rounds.h. */
#include "support/rounds.h"

#include "base/json.h"
#include "base/memory.h"

#include <stdio.h>

static const json_t *list_of(const json_t *trace, const char *method)
{
    char key[32];
    snprintf(key, sizeof key, "%s_accept", method);
    const json_t *list = json_object_get(trace, key);
    return list ? list : json_object_get(json_object_get(trace, "ddtree_accept"), method);
}

static Status read_all(RoundsList *r, const json_t *traces, const char *method, Error *err)
{
    for (size_t i = 0; i < json_array_size(traces) && i < TRACE_MAX; i++) {
        const json_t *list = list_of(json_array_get(traces, i), method);
        Rounds *rounds = &r->item[r->n++];
        if (json_array_size(list) == 0 || json_array_size(list) > ROUNDS_MAX)
            return error_set(err, ERR_INPUT, "trace %zu has no rounds of %s", i, method);
        for (size_t k = 0; k < json_array_size(list); k++)
            rounds->gained[rounds->n++] = (int32_t)json_integer_value(json_array_get(list, k));
    }
    return OK;
}

Status rounds_open(RoundsList **out, const char *file, const char *key, const char *method, Error *err)
{
    char below[128], path[4096];
    json_t *root = NULL;
    snprintf(below, sizeof below, "tests/data/golden/%s", file);
    RoundsList *r = *out = mem_alloc(sizeof *r);
    Status s = r ? OK : error_set(err, ERR_NOMEM, "no memory for rounds");
    if (!s) s = source_path(path, sizeof path, below, err);
    if (!s) s = json_parse_file(&root, path, 16 << 20, err);
    if (!s) s = read_all(r, json_object_get(root, key), method, err);
    json_decref(root);
    if (s) {
        mem_free(r);
        *out = NULL;
    }
    return s;
}

void rounds_free(RoundsList *r)
{
    mem_free(r);
}
