/* tandem logits: float32 logits [T, V] of every position of a list of ids, into a safetensors file. */
#include "cli/command.h"

#include "base/json.h"
#include "base/memory.h"
#include "engine/score.h"
#include "tensor/safetensors.h"

#include <string.h>

typedef struct Table {
    float  *values;
    int32_t vocab_size;
} Table;

static void keep_rows(void *ctx, int32_t first, Tensor logits)
{
    Table *t = ctx;
    size_t row = (size_t)t->vocab_size;
    for (int64_t i = 0; i < logits.shape[0]; i++)
        memcpy(t->values + ((size_t)first + (size_t)i) * row, tensor_f32(logits, i), row * sizeof(float));
}

static Status read_ids(const char *path, int32_t **ids, int32_t *n, Error *err)
{
    json_t *list = NULL;
    Status s = json_parse_file(&list, path, 64 << 20, err);
    if (!s && (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > INT32_MAX))
        s = error_set(err, ERR_INPUT, "%s must hold a JSON list of token ids", path);
    if (!s && !(*ids = mem_alloc_array(json_array_size(list), sizeof **ids))) s = error_set(err, ERR_NOMEM, "no memory for the ids");
    for (size_t i = 0; !s && i < json_array_size(list); i++) {
        json_t *item = json_array_get(list, i);
        if (!json_is_integer(item) || json_integer_value(item) < 0 || json_integer_value(item) > INT32_MAX)
            s = error_set(err, ERR_INPUT, "%s: item %zu is not a token id", path, i);
        else (*ids)[i] = (int32_t)json_integer_value(item);
    }
    *n = list && !s ? (int32_t)json_array_size(list) : 0;
    json_decref(list);
    return s;
}

static Status compute(const Options *o, const StackOptions *so, const int32_t *ids, int32_t n, Table *t, Error *err)
{
    enum { CHUNK = 64 };
    char dir[4096];
    Backend *backend = NULL;
    Model *model = NULL;
    Scorer *scorer = NULL;
    ModelOptions options = stack_model_options(so);
    options.limits = (ModelLimits){ .max_rows = CHUNK, .max_outputs = CHUNK, .max_seqs = 1, .max_uncertain_rows = 1 };
    Status s = model_find(o->model, dir, sizeof dir, err);
    if (!s) s = backend_open(&backend, &so->backend, err);
    if (!s) s = model_open(&model, dir, backend, &options, err);
    if (!s) s = score_open(&scorer, model, backend, n, CHUNK, err);
    if (!s) {
        t->vocab_size = model->info.vocab_size;
        t->values = mem_alloc_array((size_t)n * (size_t)t->vocab_size, sizeof(float));
        if (!t->values) s = error_set(err, ERR_NOMEM, "no memory for %d x %d logits", n, t->vocab_size);
    }
    if (!s) s = score_run(scorer, ids, n, keep_rows, t, err);
    score_close(scorer);
    model_close(model);
    backend_close(backend);
    return s;
}

Status command_logits(const Options *o, Error *err)
{
    if (!o->ids || !o->output) return error_set(err, ERR_USAGE, "usage: tandem logits MODEL --ids FILE -o OUT.safetensors");
    if (o->inputs) return error_set(err, ERR_UNSUPPORTED, "--inputs: this version has no picture input");
    StackOptions so;
    Table table = { 0 };
    int32_t *ids = NULL, n = 0;
    Status s = command_stack_options(o, &so, err);
    if (!s) s = read_ids(o->ids, &ids, &n, err);
    if (!s) s = compute(o, &so, ids, n, &table, err);
    SafetensorsEntry entry = { .name = "logits", .dtype = DT_F32, .n_dims = 2, .shape = { n, table.vocab_size } };
    const void *data = table.values;
    if (!s) s = safetensors_write(o->output, &entry, &data, 1, err);
    mem_free(table.values);
    mem_free(ids);
    return s;
}
