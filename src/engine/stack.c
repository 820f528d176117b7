/* The stack: parts opened from the ground up, each needing the ones before it.
 *
 *     directory ──> tokenizer ──> chat template ──> backend ──> plan ──> model ──> engine ──> its thread
 *
 * The plan comes before the model, so a refusal costs the reading of headers and no memory. A half-open stack is closed
 * by the same stack_close as a whole one. */
#include "engine/stack.h"

#include "backend/needs.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/trim.h"
#include "engine/engine_impl.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_TEMPLATE_BYTES = 1 << 20 };
enum { N_FRONTS = 3 }; /* front workers that the server has by default */

static void set_stage(StackProgress *p, const char *stage)
{
    if (p) atomic_store(&p->stage, stage);
}

static void on_progress(void *ctx, uint64_t done_bytes, uint64_t total_bytes)
{
    StackProgress *p = ctx;
    atomic_store_explicit(&p->done_bytes, done_bytes, memory_order_relaxed);
    atomic_store_explicit(&p->total_bytes, total_bytes, memory_order_relaxed);
}

static void name_after(Stack *s, const char *model)
{
    size_t n = strlen(model);
    while (n > 1 && model[n - 1] == '/') n--;
    size_t first = n;
    while (first > 0 && model[first - 1] != '/') first--;
    snprintf(s->served_name, sizeof s->served_name, "%.*s", (int)(n - first), model + first);
}

static Status open_tokenizer(Stack *s, Error *err)
{
    char cache[4096];
    tokenizer_default_cache_dir(cache, sizeof cache);
    return tokenizer_open(&s->tokenizer, s->model_dir, cache[0] ? cache : NULL, err);
}

static Status read_template(Stack *s, const char *path, Error *err)
{
    char *text;
    size_t n;
    Status status = file_read(path, MAX_TEMPLATE_BYTES, &text, &n, err);
    if (status) return status;
    status = chat_template_parse(&s->chat_template, text, n, err);
    mem_free(text);
    return status;
}

/* A model without a template answers completions only, so that is no failure. */
static Status open_template(Stack *s, const char *path, Error *err)
{
    static const char *const names[] = { "bos_token", "eos_token", "pad_token", "unk_token" };
    Error why = { 0 };
    Status status = path ? read_template(s, path, &why) : chat_template_open(&s->chat_template, s->model_dir, &why);
    if (status && (path || status != ERR_NOT_FOUND))
        return error_set_param(err, status, path ? "--chat-template" : "", "%s", why.text);
    for (int i = 0; s->chat_template && i < COUNT(names); i++)
        chat_template_set_token(s->chat_template, names[i], tokenizer_special(s->tokenizer, names[i]));
    return OK;
}

static void add_stop_id(Stack *s, int32_t id)
{
    if (id < 0 || id >= s->config.vocab_size || s->n_stop_ids == STACK_MAX_STOP_IDS) return;
    for (int32_t i = 0; i < s->n_stop_ids; i++)
        if (s->stop_ids[i] == id) return;
    s->stop_ids[s->n_stop_ids++] = id;
}

/* What generation_config.json asks for, in range or not. */
static void params_of_config(const ModelConfig *c, SampleParams *params)
{
    *params = (SampleParams){ .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1 };
    bool is_greedy = c->has_do_sample && !c->do_sample;
    params->temperature = is_greedy ? 0 : c->has_temperature ? c->temperature : 1;
    if (c->has_top_p) params->top_p = c->top_p;
    if (c->has_top_k) params->top_k = c->top_k;
    if (c->has_min_p) params->min_p = c->min_p;
    if (c->has_repetition_penalty) params->repetition_penalty = c->repetition_penalty;
}

static void check_default_params(const Stack *s)
{
    SampleParams p;
    Error why = { .status = OK };
    params_of_config(&s->config, &p);
    if (sample_params_check(&p, s->config.vocab_size, &why))
        log_warn("engine", "generation_config.json: %s; the nearest value in range is the default", why.text);
}

static void gather_stop_ids(Stack *s)
{
    for (int32_t i = 0; i < s->config.n_stop_ids; i++) add_stop_id(s, s->config.stop_ids[i]);
    const char *eos = tokenizer_special(s->tokenizer, "eos_token");
    if (eos[0]) add_stop_id(s, tokenizer_find(s->tokenizer, eos));
}

ModelOptions stack_model_options(const StackOptions *o)
{
    return (ModelOptions){ .dtype = o->dtype, .kv_dtype = o->kv_dtype, .load_format = o->load_format,
                           .quantization = o->quantization, .sampler_version = SAMPLER_VERSION };
}

/* The compiled tokenizer is a little smaller than its source; a model in one file carries its own. */
static size_t text_bytes(const char *dir)
{
    static const char *const names[] = { "tokenizer.json", "tokenizer_config.json", "chat_template.jinja" };
    char path[4096 + 32];
    size_t sum = 0;
    for (int i = 0; i < COUNT(names); i++) {
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        if (stat(path, &st) == 0) sum += (size_t)st.st_size;
    }
    return sum;
}

static PlanHost plan_host(const StackOptions *o, const char *dir)
{
    PlanHost h = { .is_device = o->on_device, .text_bytes = text_bytes(dir), .n_fronts = N_FRONTS };
    h.worker_bytes = backend_own_bytes(&o->backend, &h.n_workers);
    return h;
}

static PlanInput plan_input(const StackOptions *o, const char *dir)
{
    PlanInput in = { .dir = dir, .model = stack_model_options(o), .memory_fraction = o->memory_fraction,
                     .available_bytes = o->available_bytes };
    in.engine = (EngineOptions){ .max_num_seqs = o->max_num_seqs,
                                 .max_num_batched_tokens = o->max_num_batched_tokens,
                                 .max_model_len = o->max_model_len,
                                 .block_size = o->block_size,
                                 .max_waiting = o->max_waiting,
                                 .draft_nodes = o->drafter ? o->draft_nodes : 0,
                                 .draft_depth = o->draft_depth };
    in.drafter = drafter_needs(o->drafter);
    in.host = plan_host(o, dir);
    return in;
}

static SpeculationOptions speculation_options(const StackOptions *o, const char *dir, const Plan *plan)
{
    return (SpeculationOptions){ .config = &o->speculation, .model_dir = dir, .load_format = o->load_format,
                                 .limits = plan->limits, .max_model_len = plan->engine.max_model_len };
}

/* A drafter's needs follow from the limits of a pass, and those from the flags: so the plan is made without it, then with. */
static Status plan_with_drafter(const StackOptions *o, PlanInput *in, SpeculationShape *shape, Plan *out, Error *err)
{
    ModelConfig config;
    ModelInfo info;
    SpeculationOptions so = speculation_options(o, in->dir, out);
    Status s = model_info(in->dir, &in->model, &config, &info, err);
    if (!s) s = speculation_decide(&so, &info, shape, err);
    if (s || shape->method == SPEC_NONE) return s;
    in->engine.draft_nodes = shape->draft_nodes;
    in->engine.draft_depth = shape->draft_depth;
    in->engine.adapts_drafts = shape->adapts;
    s = plan_make(out, in, err);
    so = speculation_options(o, in->dir, out);
    if (!s) s = speculation_needs(&so, shape, &info, &in->drafter, err);
    return s ? s : plan_make(out, in, err);
}

static Status make_plan(const StackOptions *o, const char *dir, SpeculationShape *shape, Plan *out, Error *err)
{
    PlanInput in = plan_input(o, dir);
    *shape = (SpeculationShape){ .method = SPEC_NONE };
    Status s = plan_make(out, &in, err);
    if (s || o->drafter || o->speculation.method == SPEC_NONE) return s;
    return plan_with_drafter(o, &in, shape, out, err);
}

void stack_options_size(StackOptions *o, const Backend *backend)
{
    uint64_t available = backend_available(backend);
    o->on_device = available > 0;
    if (!o->available_bytes) o->available_bytes = available;
}

Status stack_plan(const StackOptions *options, const char *dir, Plan *out, Error *err)
{
    SpeculationShape shape;
    return make_plan(options, dir, &shape, out, err);
}

static void log_plan(const Plan *p)
{
    log_info("plan", "weights=%zuMB caches=%zuMB total=%zuMB of=%zuMB context=%d blocks=%d", p->weight_bytes >> 20,
             (p->token_cache_bytes + p->state_bytes) >> 20, p->total_bytes >> 20, p->budget_bytes >> 20,
             p->engine.max_model_len, p->engine.n_blocks);
}

/* Buffers while loading come out of what the plan keeps for later: nothing of it is touched before. A device's plan does not
 * count main memory. */
static size_t load_bytes(const Plan *p, bool on_device)
{
    size_t held = p->weight_bytes + p->worker_bytes + p->text_bytes + p->program_bytes + p->page_bytes;
    return on_device || p->total_bytes <= held ? 0 : p->total_bytes - held;
}

static Status open_model(Stack *s, const StackOptions *o, const Plan *plan, StackProgress *progress, Model **model,
                         Error *err)
{
    ModelOptions options = stack_model_options(o);
    options.limits = plan->limits;
    options.load_bytes = load_bytes(plan, backend_available(s->backend) > 0);
    if (progress) {
        options.progress = on_progress;
        options.progress_ctx = progress;
    }
    set_stage(progress, "weights");
    return model_open(model, s->model_dir, s->backend, &options, err);
}

static Status open_drafter(Stack *s, const StackOptions *o, const SpeculationShape *shape, const Plan *plan, const Model *model,
                           Drafter **out, Error *err)
{
    SpeculationOptions so = speculation_options(o, s->model_dir, plan);
    *out = o->drafter;
    return *out ? OK : speculation_open(out, &so, shape, model, s->backend, err);
}

static void log_drafters(const Stack *s)
{
    int32_t n;
    const DraftMethod *m = engine_methods(s->engine, &n);
    for (int32_t i = 0; i < n; i++)
        log_info("drafts", "method=%s rows=%d depth=%d fingerprint=%016llx", m[i].name, m[i].max_nodes, m[i].max_depth,
                 (unsigned long long)m[i].fingerprint);
}

static Status open_engine(Stack *s, const StackOptions *o, const SpeculationShape *shape, const Plan *plan, Model *model, Error *err)
{
    EngineOptions options = plan->engine;
    Drafter *drafter = NULL;
    options.n_valid = tokenizer_vocab_size(s->tokenizer);
    Status status = open_drafter(s, o, shape, plan, model, &drafter, err);
    if (!status) status = engine_open(&s->engine, model, s->backend, drafter, &options, err);
    if (status) {
        if (drafter != o->drafter) drafter_close(drafter);
        model_close(model);
        return status;
    }
    snprintf(s->fingerprint, sizeof s->fingerprint, "td-%016llx",
             (unsigned long long)engine_model(s->engine)->numerics.fingerprint);
    s->max_model_len = options.max_model_len;
    s->method = o->drafter ? o->drafter->name : spec_method_name(shape->method);
    log_drafters(s);
    return OK;
}

static Status open_all(Stack *s, const StackOptions *o, StackProgress *progress, Error *err)
{
    Plan plan;
    SpeculationShape shape;
    Model *model = NULL;
    set_stage(progress, "tokenizer");
    Status status = model_find(o->model, s->model_dir, sizeof s->model_dir, err);
    if (!status) status = open_tokenizer(s, err);
    if (!status) status = open_template(s, o->chat_template, err);
    set_stage(progress, "plan");
    if (!status) status = backend_open(&s->backend, &o->backend, err);
    if (status) return status;
    StackOptions sized = *o;
    stack_options_size(&sized, s->backend);
    status = make_plan(&sized, s->model_dir, &shape, &plan, err);
    if (status) return status;
    log_plan(&plan);
    s->config = plan.config;
    name_after(s, o->model);
    gather_stop_ids(s);
    check_default_params(s);
    status = open_model(s, o, &plan, progress, &model, err);
    if (!status) status = open_engine(s, o, &shape, &plan, model, err);
    return status;
}

Status stack_open(Stack *s, const StackOptions *options, StackProgress *progress, Error *err)
{
    *s = (Stack){ 0 };
    Status status = open_all(s, options, progress, err);
    if (!status && options->start_thread) status = engine_start(s->engine, err);
    if (status) {
        if (s->engine && options->drafter) engine_keep_drafter(s->engine); /* after a failure it is still the caller's */
        stack_close(s);
        return status;
    }
    mem_trim();
    set_stage(progress, "ready");
    return OK;
}

void stack_close(Stack *s)
{
    engine_close(s->engine);
    chat_template_close(s->chat_template);
    tokenizer_close(s->tokenizer);
    backend_close(s->backend);
    *s = (Stack){ 0 };
}

void stack_default_params(const Stack *s, SampleParams *params)
{
    params_of_config(&s->config, params);
    sample_params_clamp(params);
}
