/* Reading reference data, see golden.h. */
#include "support/golden.h"

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "tensor/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

Status source_path(char *out, size_t size, const char *below, Error *err)
{
    const char *root = getenv("TANDEM_SOURCE_ROOT");
    if (!root) return error_set(err, ERR_USAGE, "TANDEM_SOURCE_ROOT is not set: run the tests by meson test");
    return path_join(out, size, root, below, err);
}

double distance(const float *got, const float *want, size_t n)
{
    double largest = 0, worst = 0;
    for (size_t i = 0; i < n; i++) {
        double diff = fabs((double)got[i] - (double)want[i]);
        if (!(diff <= worst)) worst = isfinite(diff) ? diff : INFINITY;
        if (fabs((double)want[i]) > largest) largest = fabs((double)want[i]);
    }
    return worst / largest;
}

/* ---- random checkpoints ---- */

/* A whole tensor of 4-byte numbers; rows and cols are filled when not NULL. */
static Status read_tensor(void **out, const Safetensors *st, const char *name, int32_t *rows, int32_t *cols, Error *err)
{
    const SafetensorsEntry *e = safetensors_find(st, name);
    if (!e || dtype_bytes(e->dtype) != 4) return error_set(err, ERR_NOT_FOUND, "no 4-byte tensor %s", name);
    *out = mem_alloc(e->bytes);
    if (!*out) return error_set(err, ERR_NOMEM, "no memory for %s", name);
    if (rows) *rows = (int32_t)e->shape[0];
    if (cols) *cols = (int32_t)e->shape[1];
    return safetensors_read(st, e, 0, *out, e->bytes, err);
}

static Status read_golden(Golden *g, const Safetensors *st, Error *err)
{
    Status s = read_tensor((void **)&g->ids, st, "input_ids", &g->n, NULL, err);
    if (!s && safetensors_find(st, "greedy")) s = read_tensor((void **)&g->greedy, st, "greedy", &g->n_greedy, NULL, err);
    if (!s) s = read_tensor((void **)&g->logits, st, "logits", &g->n, &g->vocab, err);
    for (int i = 0; i < GOLDEN_MAX_STATES && !s; i++) {
        char name[32];
        snprintf(name, sizeof name, "hidden_tail.%d", i);
        if (!safetensors_find(st, name)) break;
        s = read_tensor((void **)&g->tail[i], st, name, &g->n_tail, &g->hidden, err);
        g->n_states = i + 1;
    }
    return s;
}

Status golden_open(Golden *g, const char *name, Error *err)
{
    *g = (Golden){ 0 };
    char below[128], path[4096 + 32];
    snprintf(below, sizeof below, "tests/data/%s", name);
    Safetensors *st = NULL;
    Status s = source_path(g->model_dir, sizeof g->model_dir, below, err);
    if (!s) s = path_join(path, sizeof path, g->model_dir, "golden.safetensors", err);
    if (!s) s = safetensors_open(&st, path, err);
    if (!s) s = read_golden(g, st, err);
    safetensors_close(st);
    if (s) golden_free(g);
    return s;
}

void golden_free(Golden *g)
{
    mem_free(g->ids);
    mem_free(g->greedy);
    mem_free(g->logits);
    for (int i = 0; i < GOLDEN_MAX_STATES; i++) mem_free(g->tail[i]);
    *g = (Golden){ 0 };
}

/* ---- traces of the trained models ---- */

static int32_t read_ids(const json_t *trace, const char *key, int32_t out[TRACE_MAX_TOKENS])
{
    const json_t *list = json_object_get(trace, key);
    size_t n = json_array_size(list);
    CHECK(n <= TRACE_MAX_TOKENS);
    for (size_t i = 0; i < n; i++) out[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return (int32_t)n;
}

static void read_trace(Trace *t, const json_t *trace)
{
    t->n_prompt = read_ids(trace, "prompt_ids", t->prompt);
    t->n_greedy = read_ids(trace, "greedy", t->greedy);
    t->n_mtp = read_ids(trace, "mtp3_accept", t->mtp);
    const json_t *head = json_object_get(trace, "last_logits_head");
    for (; t->n_head < TRACE_HEAD && (size_t)t->n_head < json_array_size(head); t->n_head++)
        t->head[t->n_head] = (float)json_number_value(json_array_get(head, (size_t)t->n_head));
}

Status traces_open(Traces **out, const char *file, const char *key, Error *err)
{
    char below[128], path[4096];
    snprintf(below, sizeof below, "tests/data/golden/%s", file);
    json_t *root = NULL;
    Traces *t = *out = NULL;
    Status s = source_path(path, sizeof path, below, err);
    if (!s) s = json_parse_file(&root, path, 16 << 20, err);
    if (!s && !(t = mem_alloc(sizeof *t))) s = error_set(err, ERR_NOMEM, "no memory for traces");
    const json_t *list = s ? NULL : json_object_get(root, key);
    if (!s && (json_array_size(list) == 0 || json_array_size(list) > TRACE_MAX))
        s = error_set(err, ERR_INPUT, "%s has no list of traces called %s", file, key);
    for (size_t i = 0; !s && i < json_array_size(list); i++) read_trace(&t->item[t->n++], json_array_get(list, i));
    json_decref(root);
    if (s) mem_free(t);
    else *out = t;
    return s;
}

void traces_free(Traces *t)
{
    mem_free(t);
}
