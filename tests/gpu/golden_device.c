/* Reference data on a device, in float32: golden_device [cuda|cpu]
 *
 * The 12 greedy traces of both bundled models (tests/data/golden/nano_traces.json): behind every token the largest logit must
 * be the next one's. The first round of the published DFlash program (tests/data/golden/dflash): logits within 5e-5 of the
 * largest, and the CPU's bits. TANDEM_SOURCE_ROOT: where models/ and tests/ lie. The last line is the sum. */
#include "base/memory.h"
#include "engine/score.h"
#include "models/dflash.h"
#include "support/golden.h"
#include "tensor/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 64, LONGEST = 512, HIDDEN = 64, VOCAB = 320, BLOCK = 8, TAPS = 3, N_PROMPT = 41, MAX_TOKENS = 64 };
static const double LIMIT = 5e-5;

static void must(Status s, const Error *err)
{
    if (!s) return;
    fprintf(stderr, "%s\n", err->text);
    exit(1);
}

/* ---- traces ---- */

typedef struct Reading {
    const Trace *trace;
    int32_t      n_right, n_wrong;
} Reading;

static int32_t argmax(const float *x, int64_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static void compare_rows(void *ctx, int32_t first, Tensor logits)
{
    Reading *r = ctx;
    for (int32_t i = 0; i < logits.shape[0]; i++) {
        int32_t k = first + i + 1 - r->trace->n_prompt;
        if (k < 0 || k >= r->trace->n_greedy) continue;
        bool is_right = argmax(tensor_f32(logits, i), logits.shape[1]) == r->trace->greedy[k];
        r->n_right += is_right;
        r->n_wrong += !is_right;
    }
}

static int32_t read_traces(Backend *b, const char *key, const char *model_dir)
{
    Error err = { 0 };
    char dir[4096];
    Model *model;
    Scorer *scorer;
    Traces *traces;
    Reading r = { 0 };
    ModelOptions options = { .dtype = DT_F32, .limits = { CHUNK, CHUNK, 1, 1 } };
    must(source_path(dir, sizeof dir, model_dir, &err), &err);
    must(traces_open(&traces, "nano_traces.json", key, &err), &err);
    must(model_open(&model, dir, b, &options, &err), &err);
    must(score_open(&scorer, model, b, LONGEST, CHUNK, &err), &err);
    for (int32_t i = 0; i < traces->n; i++) {
        int32_t ids[LONGEST];
        const Trace *t = r.trace = &traces->item[i];
        memcpy(ids, t->prompt, (size_t)t->n_prompt * sizeof *ids);
        memcpy(ids + t->n_prompt, t->greedy, (size_t)t->n_greedy * sizeof *ids);
        must(score_run(scorer, ids, t->n_prompt + t->n_greedy, compare_rows, &r, &err), &err);
    }
    printf("%-28s %d traces, %d tokens, %d differ\n", model_dir, traces->n, r.n_right + r.n_wrong, r.n_wrong);
    score_close(scorer);
    model_close(model);
    traces_free(traces);
    return r.n_wrong + (r.n_right == 0);
}

/* ---- DFlash ---- */

static void *read_golden(const char *name)
{
    Error err = { 0 };
    char path[4096];
    Safetensors *file;
    must(source_path(path, sizeof path, "tests/data/golden/dflash/golden.safetensors", &err), &err);
    must(safetensors_open(&file, path, &err), &err);
    const SafetensorsEntry *e = safetensors_find(file, name);
    void *data = e ? mem_alloc(e->bytes) : NULL;
    CHECK(data);
    must(safetensors_read(file, e, 0, data, e->bytes, &err), &err);
    safetensors_close(file);
    return data;
}

typedef struct Network {
    Backend    *backend;
    Model      *target;
    Dflash     *net;
    int32_t     table[MAX_TOKENS / 16];
    CacheMemory cache;
    float      *features, *logits; /* of both sides */
} Network;

static void open_network(Network *n, Backend *b)
{
    Error err = { 0 };
    char dir[4096];
    ModelOptions options = { .dtype = DT_F32, .limits = { 64, 64, 2, 16 } };
    DflashSetup setup = { .max_context = 64, .max_blocks = 1, .max_outputs = BLOCK };
    *n = (Network){ .backend = b };
    must(source_path(dir, sizeof dir, "tests/data/golden/dflash/target", &err), &err);
    must(model_open(&n->target, dir, b, &options, &err), &err);
    must(source_path(dir, sizeof dir, "tests/data/golden/dflash/draft", &err), &err);
    must(dflash_open(&n->net, dir, n->target, b, &setup, &err), &err);
    CacheGroup g = dflash_group(n->net);
    for (int32_t i = 0; i < COUNT(n->table); i++) n->table[i] = COUNT(n->table) - i;
    n->cache = (CacheMemory){ .block_size = 16, .max_blocks = COUNT(n->table), .block_table = n->table,
                              .layer_bytes = (size_t)(COUNT(n->table) + 1) * 16 * g.entry_bytes };
    n->cache.data = backend_alloc_device(b, n->cache.layer_bytes * (size_t)g.n_layers);
    n->features = backend_alloc(b, (size_t)N_PROMPT * TAPS * HIDDEN * sizeof(float));
    n->logits = backend_alloc(b, (size_t)BLOCK * VOCAB * sizeof(float));
    CHECK(n->cache.data && n->features && n->logits);
    dflash_bind(n->net, &n->cache);
}

static void close_network(Network *n)
{
    backend_free(n->backend, n->cache.data);
    backend_free(n->backend, n->features);
    backend_free(n->backend, n->logits);
    dflash_close(n->net);
    model_close(n->target);
}

/* Features of the prompt and a block behind it. */
static void run_round(Network *n, const float *features, int32_t anchor, float *out)
{
    DflashContext context[N_PROMPT];
    int32_t rows[BLOCK];
    Stream *st = backend_stream(n->backend);
    memcpy(n->features, features, (size_t)N_PROMPT * TAPS * HIDDEN * sizeof(float));
    for (int32_t i = 0; i < N_PROMPT; i++) context[i] = (DflashContext){ 0, i, i };
    for (int32_t i = 0; i < BLOCK; i++) rows[i] = i;
    backend_ops(n->backend)->round_rows(st, dflash_features(n->net, N_PROMPT), tensor_2d(n->features, DT_F32, N_PROMPT, TAPS * HIDDEN));
    DflashBlock block = { .slot = 0, .anchor = anchor, .n_committed = N_PROMPT, .rope = N_PROMPT };
    dflash_pass(n->net, st, context, N_PROMPT, &block, 1);
    Tensor logits = dflash_logits(n->net, st, rows, BLOCK);
    stream_download(st, n->logits, logits.data, (size_t)BLOCK * VOCAB * sizeof(float));
    stream_sync(st);
    memcpy(out, n->logits, (size_t)BLOCK * VOCAB * sizeof(float));
}

static int32_t check_dflash(Backend *device, Backend *cpu)
{
    static float got[2][BLOCK * VOCAB];
    Backend *backends[] = { device, cpu };
    float *features = read_golden("target_hidden"), *want = read_golden("draft_logits1");
    int32_t *block = read_golden("block1");
    for (int i = 0; i < 2; i++) {
        Network n;
        open_network(&n, backends[i]);
        run_round(&n, features, block[0], got[i]);
        close_network(&n);
    }
    double far = distance(got[0], want, COUNT(got[0]));
    bool is_same = memcmp(got[0], got[1], sizeof got[0]) == 0;
    printf("%-28s within %.1e of the largest logit, %s\n", "dflash, first round", far, is_same ? "the CPU's bits" : "OTHER BITS");
    mem_free(features);
    mem_free(want);
    mem_free(block);
    return far > LIMIT || !is_same;
}

int main(int argc, char **argv)
{
    Error err = { 0 };
    Backend *device, *cpu;
    DeviceChoice choice = argc > 1 && strcmp(argv[1], "cpu") == 0 ? DEVICE_CPU : DEVICE_CUDA;
    must(backend_open(&device, &(BackendOptions){ .device = choice }, &err), &err);
    must(backend_open_cpu(&cpu, NULL, &err), &err);
    numeric_mode_enter();
    int32_t n = read_traces(device, "plain", "models/nano-plain") + read_traces(device, "hybrid", "models/nano") + check_dflash(device, cpu);
    printf("golden data on %s: %s\n", backend_variant(device), n ? "FAILED" : "equal");
    backend_close(cpu);
    backend_close(device);
    return n != 0;
}
