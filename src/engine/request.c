/* A request: plain data in, published tokens out.
 *
 * All of it lies in one piece of memory taken at submit, so running it allocates nothing:
 *
 *     Request | Sequence[n_choices] | bias | prompt logprobs | logprobs of each choice | ids of each choice
 *
 * Two owners, the front and the engine, each hold a reference; whoever lets go last frees. The engine writes tokens
 * and then the count (release); the front reads the count (acquire) and then tokens, so readers need no lock. The mutex
 * is for sleeping and for notify: request_close() takes it, so no notify is running or comes after it. */
#include "engine/request_impl.h"

#include "base/clock.h"
#include "base/memory.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- budget ---- */

RequestBudget *request_budget_open(int64_t limit_bytes)
{
    RequestBudget *b = mem_alloc(sizeof *b);
    if (!b) return NULL;
    b->limit = limit_bytes;
    atomic_init(&b->refs, 1);
    return b;
}

void request_budget_close(RequestBudget *b)
{
    if (b && atomic_fetch_sub(&b->refs, 1) == 1) mem_free(b);
}

static Status budget_take(RequestBudget *b, int64_t bytes, Error *err)
{
    if (bytes > b->limit)
        return error_set_param(
            err, ERR_INPUT, "max_tokens",
            "this request alone needs %lld MB for its tokens and logprobs, more than the %lld MB of all "
            "requests; ask for fewer tokens, choices or logprobs",
            (long long)(bytes >> 20), (long long)(b->limit >> 20));
    if (atomic_fetch_add(&b->bytes, bytes) + bytes > b->limit) {
        atomic_fetch_sub(&b->bytes, bytes);
        return error_set(err, ERR_FULL, "the memory for requests is used up; try again later");
    }
    atomic_fetch_add(&b->refs, 1);
    return OK;
}

static void budget_give(RequestBudget *b, int64_t bytes)
{
    atomic_fetch_sub(&b->bytes, bytes);
    request_budget_close(b);
}

/* ---- checks ---- */

static Status check_lengths(const GenerateRequest *g, const RequestBounds *b, Error *err)
{
    if (g->n_prompt < 1) return error_set_param(err, ERR_INPUT, "prompt", "the prompt is empty");
    if (g->n_prompt >= b->max_model_len)
        return error_set_param(err, ERR_INPUT, "prompt",
                               "the prompt has %d tokens and leaves no room for an answer in the context of %d",
                               g->n_prompt, b->max_model_len);
    if (g->n_choices < 1 || g->n_choices > MAX_CHOICES)
        return error_set_param(err, ERR_INPUT, "n", "n must be between 1 and %d, got %d", MAX_CHOICES, g->n_choices);
    int32_t room = b->max_model_len - g->n_prompt;
    if (g->max_tokens < 0)
        return error_set_param(err, ERR_INPUT, "max_tokens", "max_tokens must be at least 1, got %d", g->max_tokens);
    if (g->max_tokens > room)
        return error_set_param(err, ERR_INPUT, "max_tokens",
                               "max_tokens is %d, but after a prompt of %d tokens the context of %d has room for %d",
                               g->max_tokens, g->n_prompt, b->max_model_len, room);
    if (g->min_tokens < 0 || g->min_tokens > (g->max_tokens ? g->max_tokens : room))
        return error_set_param(err, ERR_INPUT, "min_tokens", "min_tokens must be between 0 and max_tokens, got %d",
                               g->min_tokens);
    return OK;
}

static Status check_ids(const char *field, const int32_t *ids, int32_t n, int32_t vocab_size, Error *err)
{
    for (int32_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocab_size)
            return error_set_param(err, ERR_INPUT, field, "%s holds the token id %d; ids run from 0 to %d", field,
                                   ids[i], vocab_size - 1);
    return OK;
}

/* Index of the method that the request names; -1 = it names none. */
static int32_t method_of(const GenerateRequest *g, const RequestBounds *b)
{
    int32_t m = b->n_methods - 1;
    while (m >= 0 && strcmp(b->methods[m].name, g->draft_method) != 0) m--;
    return g->draft_method[0] ? m : -1;
}

static Status check_drafts(const GenerateRequest *g, const RequestBounds *b, Error *err)
{
    char names[160] = "nothing";
    if (g->draft_nodes < 0 || g->draft_nodes == 1 || (g->draft_nodes && g->draft_nodes > b->draft_nodes))
        return error_set_param(err, ERR_INPUT, "speculation", "speculation asks for drafts of %d tokens; here they have 1 to %d",
                               g->draft_nodes - 1, b->draft_nodes > 1 ? b->draft_nodes - 1 : 0);
    if (!g->draft_method[0] || method_of(g, b) >= 0) return OK;
    for (int32_t m = 0, at = 0; m < b->n_methods && at < (int32_t)sizeof names; m++)
        at += snprintf(names + at, sizeof names - (size_t)at, "%s%s", m ? ", " : "", b->methods[m].name);
    return error_set_param(err, ERR_INPUT, "speculation", "speculation asks for the method \"%s\", but this server drafts by %s",
                           g->draft_method, names);
}

static Status request_check(const GenerateRequest *g, const RequestBounds *b, Error *err)
{
    Status s = check_lengths(g, b, err);
    if (!s && (g->n_stop_ids < 0 || g->n_stop_ids > MAX_STOP_IDS))
        s = error_set_param(err, ERR_INPUT, "stop_token_ids", "at most %d stop ids are possible, got %d", MAX_STOP_IDS,
                            g->n_stop_ids);
    if (!s) s = check_ids("prompt", g->prompt, g->n_prompt, b->vocab_size, err);
    if (!s) s = check_ids("stop_token_ids", g->stop_ids, g->n_stop_ids, b->vocab_size, err);
    if (!s) s = sample_params_check(&g->params, b->vocab_size, err);
    if (!s && !g->no_speculation) s = check_drafts(g, b, err);
    return s;
}

/* ---- memory ---- */

/* Places one array behind the others; base NULL only counts. */
static void *place(char *base, size_t *used, size_t n, size_t item_bytes)
{
    size_t at = (*used + 63) & ~(size_t)63;
    *used = at + n * item_bytes;
    return base ? base + at : NULL;
}

/* The picture above. Fills r's pointers when r is its own memory, and returns the bytes needed. No product overflows:
 * lengths are at most max_model_len (31 bits), choices at most MAX_CHOICES. */
static size_t request_layout(Request *r, const GenerateRequest *g, int32_t limit)
{
    char *base = (char *)r;
    size_t used = sizeof *r, n_new = (size_t)(limit - g->n_prompt);
    bool wants_logprobs = g->params.n_logprobs >= 0;
    Sequence *sequence = place(base, &used, (size_t)g->n_choices, sizeof *sequence);
    LogitBias *bias = place(base, &used, (size_t)g->params.n_bias, sizeof *bias);
    TokenLogprob *scores = g->prompt_logprobs ? place(base, &used, (size_t)g->n_prompt, sizeof *scores) : NULL;
    for (int32_t c = 0; c < g->n_choices; c++) {
        TokenLogprob *logprobs = wants_logprobs ? place(base, &used, n_new, sizeof *logprobs) : NULL;
        int32_t *ids = place(base, &used, (size_t)limit, sizeof *ids);
        if (r)
            sequence[c] = (Sequence){ .request = r,
                                      .choice = c,
                                      .n_prompt = g->n_prompt,
                                      .limit = limit,
                                      .ids = ids,
                                      .logprobs = logprobs,
                                      .n_ids = g->n_prompt,
                                      .slot = -1 };
    }
    if (!r) return used;
    r->sequence = sequence;
    r->prompt_logprobs = scores;
    r->g = *g;
    if (g->params.n_bias) memcpy(bias, g->params.bias, (size_t)g->params.n_bias * sizeof *bias);
    r->g.params.bias = g->params.n_bias ? bias : NULL;
    for (int32_t c = 0; c < g->n_choices; c++)
        memcpy(sequence[c].ids, g->prompt, (size_t)g->n_prompt * sizeof(int32_t));
    r->g.prompt = sequence[0].ids;
    return used;
}

static void condition_init(pthread_cond_t *c)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

Status request_open(Request **out, const GenerateRequest *g, const RequestBounds *bounds, RequestBudget *budget,
                    Error *err)
{
    *out = NULL;
    Status s = request_check(g, bounds, err);
    if (s) return s;
    int32_t limit = g->max_tokens ? g->n_prompt + g->max_tokens : bounds->max_model_len;
    size_t bytes = request_layout(NULL, g, limit);
    s = budget_take(budget, (int64_t)bytes, err);
    if (s) return s;
    Request *r = mem_alloc(bytes);
    if (!r) {
        budget_give(budget, (int64_t)bytes);
        return error_set(err, ERR_NOMEM, "no memory for a request of %zu bytes", bytes);
    }
    request_layout(r, g, limit);
    r->budget = budget;
    r->bytes = (int64_t)bytes;
    r->only_method = method_of(g, bounds);
    r->n_unended = r->n_unadmitted = g->n_choices;
    r->submitted_ms = clock_ms();
    atomic_init(&r->refs, 2);
    pthread_mutex_init(&r->mutex, NULL);
    condition_init(&r->published);
    *out = r;
    return OK;
}

void request_release(Request *r)
{
    if (atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) != 1) return;
    pthread_cond_destroy(&r->published);
    pthread_mutex_destroy(&r->mutex);
    RequestBudget *budget = r->budget;
    int64_t bytes = r->bytes;
    mem_free(r);
    budget_give(budget, bytes);
}

/* ---- publishing ---- */

static void count_times(Request *r)
{
    r->counted.queue_ms = r->admitted_ms ? r->admitted_ms - r->submitted_ms : 0;
    r->counted.prefill_ms = r->first_token_ms ? r->first_token_ms - r->admitted_ms : 0;
    r->counted.decode_ms = r->first_token_ms ? r->last_token_ms - r->first_token_ms : 0;
}

void request_publish(Request *r)
{
    count_times(r);
    pthread_mutex_lock(&r->mutex);
    for (int32_t c = 0; c < r->g.n_choices; c++) {
        Sequence *seq = &r->sequence[c];
        atomic_store_explicit(&seq->n_published, seq->n_ids - seq->n_prompt, memory_order_release);
        atomic_store_explicit(&seq->finish, (int)seq->ended, memory_order_release);
    }
    r->timings = r->counted;
    r->n_published++;
    pthread_cond_broadcast(&r->published);
    if (r->notify) r->notify(r->notify_ctx);
    pthread_mutex_unlock(&r->mutex);
}

/* ---- the front's side ---- */

static const Sequence *choice_of(const Request *r, int32_t choice)
{
    CHECK(choice >= 0 && choice < r->g.n_choices);
    return &r->sequence[choice];
}

int32_t request_count(const Request *r, int32_t choice)
{
    return atomic_load_explicit(&choice_of(r, choice)->n_published, memory_order_acquire);
}

const int32_t *request_tokens(const Request *r, int32_t choice)
{
    return choice_of(r, choice)->ids + r->g.n_prompt;
}

const TokenLogprob *request_logprobs(const Request *r, int32_t choice)
{
    return choice_of(r, choice)->logprobs;
}

const TokenLogprob *request_prompt_logprobs(const Request *r)
{
    return r->prompt_logprobs;
}

FinishReason request_finish(const Request *r, int32_t choice)
{
    return (FinishReason)atomic_load_explicit(&choice_of(r, choice)->finish, memory_order_acquire);
}

bool request_done(const Request *r)
{
    for (int32_t c = 0; c < r->g.n_choices; c++)
        if (request_finish(r, c) == FINISH_NONE) return false;
    return true;
}

Status request_error(const Request *r, Error *err)
{
    for (int32_t c = 0; c < r->g.n_choices; c++) {
        FinishReason why = request_finish(r, c);
        if (why == FINISH_ERROR || why == FINISH_CANCELLED) return error_set(err, r->error.status, "%s", r->error.text);
    }
    return OK;
}

RequestTimings request_timings(const Request *r)
{
    Request *locked = (Request *)r; /* the mutex is no part of what const promises */
    pthread_mutex_lock(&locked->mutex);
    RequestTimings t = r->timings;
    pthread_mutex_unlock(&locked->mutex);
    return t;
}

int32_t request_n_prompt(const Request *r)
{
    return r->g.n_prompt;
}

void request_stop_choice(Request *r, int32_t choice)
{
    CHECK(choice >= 0 && choice < r->g.n_choices);
    atomic_store_explicit(&r->sequence[choice].stop_wanted, true, memory_order_release);
}

void request_cancel(Request *r)
{
    atomic_store_explicit(&r->cancel_wanted, true, memory_order_release);
}

void request_close(Request *r)
{
    if (!r) return;
    request_cancel(r);
    pthread_mutex_lock(&r->mutex);
    r->notify = NULL;
    pthread_mutex_unlock(&r->mutex);
    request_release(r);
}

static struct timespec deadline_after(int timeout_ms)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t ns = t.tv_nsec + (int64_t)timeout_ms * 1000000;
    return (struct timespec){ t.tv_sec + ns / 1000000000, ns % 1000000000 };
}

bool request_wait(Request *r, int timeout_ms)
{
    struct timespec end = deadline_after(timeout_ms > 0 ? timeout_ms : 0);
    int rc = timeout_ms == 0 ? ETIMEDOUT : 0;
    pthread_mutex_lock(&r->mutex);
    while (r->n_published == r->n_seen && rc != ETIMEDOUT && !request_done(r))
        rc = timeout_ms < 0 ? pthread_cond_wait(&r->published, &r->mutex)
                            : pthread_cond_timedwait(&r->published, &r->mutex, &end);
    bool is_new = r->n_published != r->n_seen;
    r->n_seen = r->n_published;
    pthread_mutex_unlock(&r->mutex);
    return is_new;
}
