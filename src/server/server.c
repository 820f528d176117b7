/* The server's life: open, load, run, drain, close.
 *
 *     LOADING ──stack_open──> READY ──server_stop──> STOPPING: new requests get 503, running ones end or, after
 *        └──it failed──> FAILED                      grace_ms or a second stop, are cancelled; then the loop ends
 *
 * The phase moves on the loop thread, except that the loading thread says how loading ended. Workers touch the stack only
 * for requests that the router let through, which it does in phase READY only. */
#include "server/server.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "server/api.h"
#include "server/job.h"
#include "server/router.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum {
    CANCEL_MS = 2000,       /* from cancelling to breaking off */
    SPARE_DESCRIPTORS = 64, /* files, eventfds, the model's */
    HELD_BODIES = 16,       /* bodies of the largest size that may be held at once */
};

/* ---- options ---- */

typedef struct LimitRule {
    const char *name;
    size_t      offset;
    int32_t     standard, min, max;
} LimitRule;

#define LIMIT(field, standard, min, max) { #field, offsetof(ServerLimits, field), standard, min, max }
static const LimitRule limit_rules[] = {
    LIMIT(max_header_bytes, 32 << 10, 1 << 10, 1 << 20), LIMIT(max_connections, 4096, 1, 1 << 20),
    LIMIT(max_requests, 512, 1, 1 << 16),                LIMIT(request_ms, 60000, 1, 1 << 30),
    LIMIT(idle_ms, 75000, 1, 1 << 30),                   LIMIT(stall_ms, 60000, 1, 1 << 30),
    LIMIT(grace_ms, 10000, 1, 1 << 30),                  LIMIT(keep_alive_ms, 15000, 1, 1 << 30),
    LIMIT(n_workers, 3, 2, SERVER_MAX_WORKERS),
};

static Status set_limits(Server *s, const ServerLimits *given, Error *err)
{
    s->limits = *given;
    if (s->limits.max_body_bytes == 0) s->limits.max_body_bytes = 8 << 20;
    if (s->limits.max_body_bytes < 1 || s->limits.max_body_bytes > 1 << 30) {
        return error_set_param(err, ERR_USAGE, "max_body_bytes", "max_body_bytes must be in [1, %d]", 1 << 30);
    }
    for (int i = 0; i < COUNT(limit_rules); i++) {
        const LimitRule *rule = &limit_rules[i];
        int32_t *value = (int32_t *)((char *)&s->limits + rule->offset);
        if (*value == 0) *value = rule->standard;
        if (*value >= rule->min && *value <= rule->max) continue;
        return error_set_param(err, ERR_USAGE, rule->name, "%s must be in [%d, %d], got %d", rule->name, rule->min, rule->max,
                               *value);
    }
    return OK;
}

/* As many descriptors as connections are allowed, or as few connections as descriptors are left. */
static void fit_connections(ServerLimits *limits)
{
    struct rlimit files;
    rlim_t want = (rlim_t)limits->max_connections + SPARE_DESCRIPTORS;
    if (getrlimit(RLIMIT_NOFILE, &files)) return;
    if (files.rlim_cur < want) {
        files.rlim_cur = want < files.rlim_max ? want : files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (files.rlim_cur >= want) return;
    limits->max_connections = files.rlim_cur > 2 * SPARE_DESCRIPTORS ? (int32_t)files.rlim_cur - SPARE_DESCRIPTORS : SPARE_DESCRIPTORS;
    log_info("server", "%d connections at most: the limit of open files is %llu", limits->max_connections,
             (unsigned long long)files.rlim_cur);
}

static Status copy_list(Server *s, const char **out, int *n_out, const char *const *list, int n, int max, const char *what,
                        Error *err)
{
    if (n < 0 || n > max) return error_set(err, ERR_USAGE, "at most %d %s are possible, got %d", max, what, n);
    for (int i = 0; i < n; i++) {
        if (!list[i][0]) return error_set(err, ERR_USAGE, "one of the %s is empty", what);
        out[i] = arena_strndup(&s->arena, list[i], strlen(list[i]));
        if (!out[i]) return error_set(err, ERR_NOMEM, "no memory for the %s", what);
        *n_out = i + 1;
    }
    return OK;
}

static Status take_options(Server *s, const ServerOptions *o, Error *err)
{
    if (o->port < 0 || o->port > 65535) return error_set_param(err, ERR_USAGE, "port", "port must be in [0, 65535], got %d", o->port);
    if (o->n_keys > SERVER_MAX_KEYS) return error_set_param(err, ERR_USAGE, "api-key", "at most %d keys are possible", SERVER_MAX_KEYS);
    Status status = set_limits(s, &o->limits, err);
    if (!status) status = copy_list(s, s->names, &s->n_names, o->names, o->n_names, SERVER_MAX_NAMES, "served model names", err);
    if (!status) status = copy_list(s, s->origins, &s->n_origins, o->origins, o->n_origins, SERVER_MAX_ORIGINS, "origins", err);
    if (!status) status = keys_init(&s->keys, o->keys, o->n_keys, err);
    for (int i = 0; i < s->n_origins; i++) s->any_origin |= strcmp(s->origins[i], "*") == 0;
    s->chat_template_kwargs = o->chat_template_kwargs ? json_deep_copy(o->chat_template_kwargs) : NULL;
    s->seed = o->seed;
    s->has_seed = o->has_seed;
    s->stack_options = o->stack;
    s->stack_options.start_thread = true;
    return status;
}

/* ---- threads ---- */

static void *load_main(void *arg)
{
    Server *s = arg;
    Error err = { .status = OK };
    double begin = clock_ms();
    Status status = stack_open(&s->stack, &s->stack_options, &s->progress, &err);
    if (!status) {
        if (s->n_names == 0) s->names[s->n_names++] = s->stack.served_name;
        s->template_takes_parts = api_template_takes_parts(s->stack.chat_template);
        log_info("server", "%s is ready after %.0f ms, context %d", s->names[0], clock_ms() - begin, s->stack.max_model_len);
    }
    if (status) drafter_close(s->stack_options.drafter);
    pthread_mutex_lock(&s->mutex);
    s->is_loaded = true;
    s->failure = err;
    atomic_store(&s->phase, status ? SERVER_FAILED : SERVER_READY);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    http_wake(s->http);
    return NULL;
}

static void *loop_main(void *arg)
{
    Server *s = arg;
    http_loop(s->http);
    pthread_mutex_lock(&s->mutex);
    s->has_ended = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

/* ---- stopping, on the loop thread ---- */

static void cancel_exchange(void *ctx, Exchange *x)
{
    Server *s = ctx;
    atomic_store(&x->is_cancelled, true);
    work_post(s->work, &x->work);
}

static void begin_draining(Server *s, double now)
{
    log_info("server", "stopping: %d requests have %d ms to end", http_n_exchanges(s->http), s->limits.grace_ms);
    s->is_draining = true;
    s->drain_until_ms = now + s->limits.grace_ms;
    atomic_store(&s->phase, SERVER_STOPPING);
    http_stop_accepting(s->http);
}

static void begin_cancelling(Server *s, double now)
{
    s->is_cancelling = true;
    s->break_at_ms = now + CANCEL_MS;
    http_each_exchange(s->http, cancel_exchange, s);
}

static void watch_loss(Server *s)
{
    if (server_phase(s) != SERVER_READY || !engine_stats(s->stack.engine).is_lost) return;
    pthread_mutex_lock(&s->mutex);
    error_set(&s->failure, ERR_LOST, "a device or rank was lost");
    pthread_mutex_unlock(&s->mutex);
    atomic_fetch_add(&s->n_stops, 1);
}

/* HttpHooks.turn. A stop waits for the end of loading, which cannot be interrupted. */
static void on_turn(void *ctx)
{
    Server *s = ctx;
    double now = clock_ms();
    watch_loss(s);
    int n_stops = atomic_load(&s->n_stops);
    if (server_phase(s) == SERVER_FAILED) {
        http_break(s->http);
        return;
    }
    if (n_stops == 0 || server_phase(s) == SERVER_LOADING) return;
    if (!s->is_draining) begin_draining(s, now);
    if (!s->is_cancelling && (n_stops > 1 || now > s->drain_until_ms)) begin_cancelling(s, now);
    if (http_is_quiet(s->http) || (s->is_cancelling && now > s->break_at_ms)) http_break(s->http);
}

static void on_submit(void *ctx, Exchange *x)
{
    work_submit(((Server *)ctx)->work, &x->work);
}

static void on_post(void *ctx, Exchange *x)
{
    work_post(((Server *)ctx)->work, &x->work);
}

static void on_over(void *ctx, void *exchange)
{
    exchange_over(exchange);
}

/* ---- the face ---- */

static Status open_parts(Server *s, const ServerOptions *o, Error *err)
{
    Status status = take_options(s, o, err);
    if (status) return status;
    bool loopback_only = s->keys.n == 0 && !o->no_auth;
    status = listen_open(&s->listen, o->host ? o->host : "127.0.0.1", o->port, loopback_only, err);
    if (status) return status;
    fit_connections(&s->limits);
    const ServerLimits *l = &s->limits;
    HttpLimits limits = { .max_body_bytes = l->max_body_bytes, .max_held_bytes = HELD_BODIES * l->max_body_bytes,
                          .max_header_bytes = l->max_header_bytes, .max_connections = l->max_connections,
                          .max_requests = l->max_requests, .request_ms = l->request_ms, .idle_ms = l->idle_ms,
                          .stall_ms = l->stall_ms, .keep_alive_ms = l->keep_alive_ms };
    HttpHooks hooks = { .request = router_request, .submit = on_submit, .post = on_post, .turn = on_turn, .ctx = s };
    WorkHooks work = { .turn = api_turn, .over = on_over, .ctx = s };
    status = http_open(&s->http, s->listen.fd, &limits, &hooks, err);
    if (!status) status = work_open(&s->work, l->n_workers, &work, err);
    return status;
}

static Status start_threads(Server *s, Error *err)
{
    s->has_loop_thread = pthread_create(&s->loop_thread, NULL, loop_main, s) == 0;
    if (s->has_loop_thread) s->has_load_thread = pthread_create(&s->load_thread, NULL, load_main, s) == 0;
    if (s->has_load_thread) return OK;
    atomic_store(&s->phase, SERVER_FAILED);
    return error_set(err, ERR_NOMEM, "the system gives no thread for the server");
}

Status server_open(Server **out, const ServerOptions *options, Error *err)
{
    *out = NULL;
    Server *s = mem_alloc(sizeof *s);
    if (!s) return error_set(err, ERR_NOMEM, "no memory for the server");
    arena_init(&s->arena, 4096, 1 << 20);
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->started = (int64_t)time(NULL);
    Status status = open_parts(s, options, err);
    if (!status) status = start_threads(s, err);
    if (status) {
        server_close(s);
        return status;
    }
    log_info("server", "listening on %s%s", s->listen.url, s->keys.n ? ", a key is needed" : "");
    *out = s;
    return OK;
}

const StackProgress *server_progress(const Server *s)
{
    return &s->progress;
}

int server_port(const Server *s)
{
    return s->listen.port;
}

const char *server_name(const Server *s)
{
    return s->names[0];
}

const char *server_url(const Server *s)
{
    return s->listen.url;
}

Status server_wait_ready(Server *s, Error *err)
{
    pthread_mutex_lock(&s->mutex);
    while (!s->is_loaded) pthread_cond_wait(&s->changed, &s->mutex);
    Error failure = s->failure;
    pthread_mutex_unlock(&s->mutex);
    return failure.status ? error_set_param(err, failure.status, failure.param, "%s", failure.text) : OK;
}

Status server_run(Server *s, Error *err)
{
    pthread_mutex_lock(&s->mutex);
    while (!s->has_ended) pthread_cond_wait(&s->changed, &s->mutex);
    Error failure = s->failure;
    pthread_mutex_unlock(&s->mutex);
    return failure.status ? error_set_param(err, failure.status, failure.param, "%s", failure.text) : OK;
}

void server_stop(Server *s)
{
    atomic_fetch_add(&s->n_stops, 1);
    http_wake(s->http);
}

static void close_job(void *ctx, Exchange *x)
{
    job_close(x->job);
}

/* Order: nobody new comes in; workers end; their requests leave the engine; the engine ends, after which nobody posts; then
 * what was posted to. */
void server_close(Server *s)
{
    if (!s) return;
    if (s->has_load_thread) pthread_join(s->load_thread, NULL);
    atomic_fetch_add(&s->n_stops, 2);
    if (s->http) http_wake(s->http);
    if (s->has_loop_thread) pthread_join(s->loop_thread, NULL);
    work_stop(s->work);
    if (s->http) http_each_exchange(s->http, close_job, s);
    for (int i = 0; i < SERVER_MAX_WORKERS; i++) tokenizer_scratch_close(s->scratch[i]);
    stack_close(&s->stack);
    http_close(s->http);
    work_close(s->work);
    keys_free(&s->keys);
    json_decref(s->chat_template_kwargs);
    arena_free(&s->arena);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->mutex);
    mem_free(s);
}
