/* The engine's face over a thread that copies tokens. One mutex guards the list of requests and everything in them but
 * what readers see, which is published as in the real engine: tokens first, then the count. */
#include "support/fake_stack.h"

#include "base/clock.h"
#include "base/memory.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

FakeOptions fake_options;

typedef struct FakeChoice {
    int32_t      *tokens; /* [limit] */
    TokenLogprob *logprobs;
    atomic_int    n, finish;
    atomic_bool   stop_wanted;
    double        due_ms;
} FakeChoice;

struct Request {
    Engine         *engine;
    Request        *next;
    GenerateRequest g;
    int32_t        *prompt, *speech; /* speech: prompt without stop ids */
    int32_t         n_speech, limit;
    TokenLogprob   *prompt_logprobs;
    FakeChoice      choices[MAX_CHOICES];
    void          (*notify)(void *ctx);
    void           *notify_ctx;
    pthread_mutex_t notify_mutex;    /* held while notify runs */
    atomic_bool     cancel_wanted, is_closed;
    Error           error;
    double          submitted_ms, first_ms, last_ms;
};

struct Engine {
    pthread_t       thread;
    pthread_mutex_t mutex;
    pthread_cond_t  changed;
    bool            is_closing;
    Request        *requests;
    EngineStats     stats;
    int32_t         vocab_size;
};

/* ---- one request ---- */

static TokenLogprob made_up_logprob(const Request *r, int32_t token)
{
    TokenLogprob l = { .logprob = -0.5f, .n_top = r->g.params.n_logprobs };
    for (int32_t k = 0; k < l.n_top; k++) {
        l.top_id[k] = (token + k) % r->engine->vocab_size;
        l.top_logprob[k] = -0.5f - (float)k;
    }
    return l;
}

static void end_choice(FakeChoice *c, FinishReason why)
{
    atomic_store(&c->finish, (int)why);
}

static bool choice_wants_out(Request *r, FakeChoice *c)
{
    if (atomic_load(&r->cancel_wanted) || r->engine->is_closing) {
        error_set(&r->error, ERR_CANCELLED, "the request was cancelled");
        end_choice(c, FINISH_CANCELLED);
        return true;
    }
    if (atomic_load(&c->stop_wanted)) end_choice(c, FINISH_STOP);
    return atomic_load(&c->stop_wanted);
}

static void emit(Request *r, int choice)
{
    FakeChoice *c = &r->choices[choice];
    int32_t n = atomic_load(&c->n);
    bool at_end = n >= r->n_speech && n >= r->g.min_tokens && !r->g.ignore_eos && r->g.n_stop_ids > 0;
    int32_t token = at_end ? r->g.stop_ids[0] : r->speech[(n + choice) % r->n_speech];
    c->tokens[n] = token;
    if (c->logprobs) c->logprobs[n] = made_up_logprob(r, token);
    atomic_store(&c->n, n + 1);
    r->last_ms = clock_ms();
    if (r->first_ms == 0) r->first_ms = r->last_ms;
    r->engine->stats.output_tokens++;
    if (at_end) end_choice(c, FINISH_STOP);
    else if (n + 1 == r->limit) end_choice(c, FINISH_LENGTH);
    if (r->g.seed == FAKE_SEED_BROKEN && n == 2) {
        error_set(&r->error, ERR_NUMERIC, "the logits are not finite");
        end_choice(c, FINISH_ERROR);
    }
}

/* One step of a request; true when something was published. */
static bool step_request(Request *r, double now, double *next_ms)
{
    bool has_news = false;
    double pace = r->g.seed >= FAKE_SEED_PACE && r->g.seed < FAKE_SEED_PACE + 10000 ? (double)(r->g.seed - FAKE_SEED_PACE) : 0;
    for (int i = 0; i < r->g.n_choices; i++) {
        FakeChoice *c = &r->choices[i];
        if (atomic_load(&c->finish)) continue;
        if (choice_wants_out(r, c)) {
            has_news = true;
            continue;
        }
        if (now >= c->due_ms) {
            emit(r, i);
            c->due_ms = now + pace;
            has_news = true;
        }
        if (c->due_ms < *next_ms) *next_ms = c->due_ms;
    }
    return has_news;
}

/* ---- the engine ---- */

static void free_request(Request *r)
{
    for (int i = 0; i < MAX_CHOICES; i++) {
        mem_free(r->choices[i].tokens);
        mem_free(r->choices[i].logprobs);
    }
    pthread_mutex_destroy(&r->notify_mutex);
    mem_free(r->prompt_logprobs);
    mem_free(r->prompt);
    mem_free(r->speech);
    mem_free(r);
}

static void tell(Request *r)
{
    pthread_mutex_lock(&r->notify_mutex);
    if (r->notify) r->notify(r->notify_ctx);
    pthread_mutex_unlock(&r->notify_mutex);
}

static void sweep(Engine *e)
{
    int32_t running = 0;
    for (Request **p = &e->requests; *p;) {
        Request *r = *p;
        running += !request_done(r);
        if (!request_done(r) || !atomic_load(&r->is_closed)) {
            p = &r->next;
            continue;
        }
        *p = r->next;
        e->stats.requests_done++;
        free_request(r);
    }
    e->stats.running = running;
}

static void *engine_main(void *arg)
{
    Engine *e = arg;
    pthread_mutex_lock(&e->mutex);
    for (;;) {
        double now = clock_ms(), next = now + 20;
        for (Request *r = e->requests; r; r = r->next) {
            if (step_request(r, now, &next)) tell(r);
        }
        sweep(e);
        e->stats.steps++;
        if (e->is_closing && e->stats.running == 0) break;
        pthread_mutex_unlock(&e->mutex);
        double pause = next - clock_ms();
        if (pause > 0) usleep((useconds_t)(pause * 1e3));
        pthread_mutex_lock(&e->mutex);
    }
    pthread_mutex_unlock(&e->mutex);
    return NULL;
}

static Status copy_prompt(Request *r, const GenerateRequest *g)
{
    r->prompt = mem_alloc_array((size_t)g->n_prompt, sizeof(int32_t));
    r->speech = mem_alloc_array((size_t)g->n_prompt + 1, sizeof(int32_t));
    r->prompt_logprobs = mem_alloc_array((size_t)g->n_prompt, sizeof(TokenLogprob));
    if (!r->prompt || !r->speech || !r->prompt_logprobs) return ERR_NOMEM;
    for (int32_t i = 0; i < g->n_prompt; i++) {
        bool stops = false;
        r->prompt[i] = g->prompt[i];
        r->prompt_logprobs[i] = made_up_logprob(r, g->prompt[i]);
        for (int k = 0; k < g->n_stop_ids; k++) stops |= g->stop_ids[k] == g->prompt[i];
        if (!stops) r->speech[r->n_speech++] = g->prompt[i];
    }
    if (r->n_speech == 0) r->speech[r->n_speech++] = 1;
    return OK;
}

static Status open_choices(Request *r)
{
    for (int i = 0; i < r->g.n_choices; i++) {
        FakeChoice *c = &r->choices[i];
        c->tokens = mem_alloc_array((size_t)r->limit, sizeof(int32_t));
        if (r->g.params.n_logprobs >= 0) c->logprobs = mem_alloc_array((size_t)r->limit, sizeof(TokenLogprob));
        if (!c->tokens || (r->g.params.n_logprobs >= 0 && !c->logprobs)) return ERR_NOMEM;
    }
    return OK;
}

Status engine_submit(Engine *e, const GenerateRequest *g, void (*notify)(void *ctx), void *ctx, Request **out, Error *err)
{
    int max = fake_options.max_waiting ? fake_options.max_waiting : 128;
    *out = NULL;
    Request *r = mem_alloc(sizeof *r);
    if (!r) return error_set(err, ERR_NOMEM, "no memory for a request");
    r->engine = e;
    r->g = *g;
    r->limit = g->max_tokens;
    r->notify = notify;
    r->notify_ctx = ctx;
    r->submitted_ms = clock_ms();
    pthread_mutex_init(&r->notify_mutex, NULL);
    if (copy_prompt(r, g) || open_choices(r)) {
        free_request(r);
        return error_set(err, ERR_NOMEM, "no memory for a request");
    }
    pthread_mutex_lock(&e->mutex);
    bool is_full = e->stats.running >= max;
    if (!is_full) {
        r->next = e->requests;
        e->requests = r;
        e->stats.running++;
        e->stats.prompt_tokens += (uint64_t)g->n_prompt;
        e->stats.is_lost |= g->seed == FAKE_SEED_LOST;
    }
    pthread_mutex_unlock(&e->mutex);
    if (is_full) {
        free_request(r);
        return error_set(err, ERR_FULL, "%d requests are waiting already; try again later", max);
    }
    *out = r;
    return OK;
}

EngineStats engine_stats(const Engine *e)
{
    Engine *locked = (Engine *)e;
    pthread_mutex_lock(&locked->mutex);
    EngineStats stats = e->stats;
    pthread_mutex_unlock(&locked->mutex);
    return stats;
}

const DraftMethod *engine_methods(const Engine *e, int32_t *n)
{
    *n = 0; /* parrots do not draft */
    return NULL;
}

static Engine *fake_engine_open(int32_t vocab_size)
{
    Engine *e = mem_alloc(sizeof *e);
    if (!e) return NULL;
    e->vocab_size = vocab_size;
    pthread_mutex_init(&e->mutex, NULL);
    if (pthread_create(&e->thread, NULL, engine_main, e) == 0) return e;
    mem_free(e);
    return NULL;
}

void engine_close(Engine *e)
{
    if (!e) return;
    pthread_mutex_lock(&e->mutex);
    e->is_closing = true;
    pthread_mutex_unlock(&e->mutex);
    pthread_join(e->thread, NULL);
    pthread_mutex_destroy(&e->mutex);
    mem_free(e);
}

/* ---- readers ---- */

int32_t request_count(const Request *r, int32_t choice)
{
    return atomic_load(&r->choices[choice].n);
}

const int32_t *request_tokens(const Request *r, int32_t choice)
{
    return r->choices[choice].tokens;
}

const TokenLogprob *request_logprobs(const Request *r, int32_t choice)
{
    return r->choices[choice].logprobs;
}

const TokenLogprob *request_prompt_logprobs(const Request *r)
{
    return r->prompt_logprobs;
}

FinishReason request_finish(const Request *r, int32_t choice)
{
    return (FinishReason)atomic_load(&r->choices[choice].finish);
}

bool request_done(const Request *r)
{
    for (int i = 0; i < r->g.n_choices; i++) {
        if (!atomic_load(&r->choices[i].finish)) return false;
    }
    return true;
}

Status request_error(const Request *r, Error *err)
{
    for (int i = 0; i < r->g.n_choices; i++) {
        FinishReason why = request_finish(r, i);
        if (why == FINISH_ERROR || why == FINISH_CANCELLED) return error_set(err, r->error.status, "%s", r->error.text);
    }
    return OK;
}

RequestTimings request_timings(const Request *r)
{
    Engine *e = r->engine;
    pthread_mutex_lock(&e->mutex);
    RequestTimings t = { .prefill_ms = r->first_ms - r->submitted_ms, .decode_ms = r->last_ms - r->first_ms, .steps = 1 };
    pthread_mutex_unlock(&e->mutex);
    return t;
}

void request_stop_choice(Request *r, int32_t choice)
{
    atomic_store(&r->choices[choice].stop_wanted, true);
}

void request_cancel(Request *r)
{
    atomic_store(&r->cancel_wanted, true);
}

void request_close(Request *r)
{
    if (!r) return;
    request_cancel(r);
    pthread_mutex_lock(&r->notify_mutex);
    r->notify = NULL;
    pthread_mutex_unlock(&r->notify_mutex);
    atomic_store(&r->is_closed, true); /* the engine frees it at a later step */
}

/* ---- the stack ---- */

static void fake_load(StackProgress *p)
{
    atomic_store(&p->stage, "weights");
    atomic_store(&p->total_bytes, 1000);
    for (int i = 0; i < fake_options.load_ms; i += 10) {
        atomic_store(&p->done_bytes, (uint64_t)(i * 1000 / fake_options.load_ms));
        usleep(10000);
    }
}

Status stack_open(Stack *s, const StackOptions *options, StackProgress *progress, Error *err)
{
    BackendOptions backend = { .n_workers = 1, .cpu_mask = "scalar" };
    fake_load(progress);
    *s = (Stack){ .max_model_len = fake_options.context ? fake_options.context : 4096 };
    if (fake_options.load_error) return error_set(err, ERR_NOT_FOUND, "%s", fake_options.load_error);
    snprintf(s->model_dir, sizeof s->model_dir, "%s", options->model);
    snprintf(s->served_name, sizeof s->served_name, "parrot");
    snprintf(s->fingerprint, sizeof s->fingerprint, "td-0000000000000000");
    Status status = tokenizer_open(&s->tokenizer, options->model, NULL, err);
    if (!status) status = chat_template_open(&s->chat_template, options->model, err);
    if (!status) status = backend_open_cpu(&s->backend, &backend, err);
    if (!status) {
        s->config.vocab_size = tokenizer_vocab_size(s->tokenizer);
        s->stop_ids[s->n_stop_ids++] = tokenizer_find(s->tokenizer, tokenizer_special(s->tokenizer, "eos_token"));
        s->engine = fake_engine_open(s->config.vocab_size);
        if (!s->engine) status = error_set(err, ERR_NOMEM, "no memory for the engine");
    }
    return status;
}

void stack_close(Stack *s)
{
    engine_close(s->engine);
    backend_close(s->backend);
    chat_template_close(s->chat_template);
    tokenizer_close(s->tokenizer);
}

void stack_default_params(const Stack *s, SampleParams *params)
{
    *params = (SampleParams){ .temperature = 1, .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1 };
}
