/* The engine: requests come in by a bounded queue, one thread turns steps, tokens go out through the requests.
 *
 *     submit ──> incoming ──intake──> scheduler ──step──> touched requests ──publish──> front
 *                                        │ sweep: cancelled, stopped
 *
 * Everything a step needs was taken in open; between open and close the engine thread allocates nothing. It sleeps on
 * `incoming` when no request is alive. Cancelling needs no wake-up: while a request is alive the thread is turning. */
#include "engine/engine_impl.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "cache/group_memory.h"
#include "engine/plan.h"

#include <signal.h>

/* ---- open ---- */

typedef struct OptionRange {
    const char *flag;
    int64_t value, min, max;
} OptionRange;

static Status check_options(const EngineOptions *o, Error *err)
{
    const OptionRange ranges[] = {
        { "--max-num-seqs", o->max_num_seqs, 1, MAX_SLOTS },
        { "--max-num-batched-tokens", o->max_num_batched_tokens, o->max_num_seqs, COUNT_ROWS_MAX },
        { "--max-model-len", o->max_model_len, 2, INT32_MAX / 2 },
        { "--block-size", o->block_size, 1, 4096 },
        { "--max-waiting", o->max_waiting, 1, 1 << 20 },
        { "prefill_chunk", o->prefill_chunk, 0, INT32_MAX },
        { "draft_nodes", o->draft_nodes, 0, TREE_MAX_NODES },
        { "draft_depth", o->draft_depth, 0, INT32_MAX },
        { "n_blocks", o->n_blocks,
          ((int64_t)o->max_model_len + o->block_size - 1) / (o->block_size > 0 ? o->block_size : 1), INT32_MAX / 2 },
    };
    for (int i = 0; i < COUNT(ranges); i++) {
        const OptionRange *r = &ranges[i];
        if (r->value < r->min || r->value > r->max)
            return error_set_param(err, ERR_USAGE, r->flag, "%s must be between %lld and %lld here, got %lld", r->flag,
                                   (long long)r->min, (long long)r->max, (long long)r->value);
    }
    return (int64_t)(o->n_blocks + 1) * o->block_size <= INT32_MAX
               ? OK
               : error_set_param(err, ERR_USAGE, "--block-size",
                                 "%d blocks of %d tokens are more entries than can be numbered", o->n_blocks,
                                 o->block_size);
}

static Status open_caches(Engine *e, Error *err)
{
    const EngineOptions *o = &e->options;
    CacheShape shape = { o->max_num_seqs, o->n_blocks, o->block_size };
    CacheGroup groups[MAX_GROUPS];
    int n = e->model->groups(e->model, groups);
    Status s = groups_alloc(e->memory, groups, n, &shape, &e->scheduler.table, err);
    if (s) return s;
    e->n_groups = n;
    e->model->bind(e->model, e->memory);
    n = e->drafter ? e->drafter->groups(e->drafter, groups) : 0;
    if (n == 0) return OK;
    s = groups_alloc(e->drafter_memory, groups, n, &shape, &e->scheduler.table, err);
    if (s) return s;
    e->n_drafter_groups = n;
    e->drafter->bind(e->drafter, e->drafter_memory);
    return OK;
}

static Status open_parts(Engine *e, Error *err)
{
    const EngineOptions *o = &e->options;
    DrafterNeeds needs = drafter_needs(e->drafter);
    Drafter *drafter = o->draft_nodes > 1 ? e->drafter : NULL; /* who may not draft is told nothing */
    int32_t max_entries = o->max_model_len + drafts_max_entries(&needs, o);
    Status s = e->drafter ? e->drafter->fits(e->drafter, &e->model->info, err) : OK;
    if (!s) s = scheduler_open(&e->scheduler, e->backend, drafter, &e->options, max_entries, err);
    if (!s) s = open_caches(e, err);
    if (!s) s = step_open(&e->step, e->model, e->backend, drafter, &e->scheduler, &e->options, err);
    if (!s) s = queue_open(&e->incoming, o->max_waiting, err);
    if (s) return s;
    e->budget = request_budget_open((int64_t)plan_request_bytes(o));
    return e->budget ? OK : error_set(err, ERR_NOMEM, "no memory for the engine");
}

static void free_parts(Engine *e)
{
    step_close(&e->step);
    groups_free(e->drafter_memory, e->n_drafter_groups, e->backend);
    groups_free(e->memory, e->n_groups, e->backend);
    scheduler_close(&e->scheduler);
    queue_free(e->incoming);
    request_budget_close(e->budget);
    pthread_mutex_destroy(&e->stats_mutex);
    mem_free(e);
}

static void publish_stats(Engine *e);

Status engine_open(Engine **out, Model *model, Backend *backend, Drafter *drafter, const EngineOptions *options,
                   Error *err)
{
    *out = NULL;
    Status s = check_options(options, err);
    if (s) return s;
    Engine *e = mem_alloc(sizeof *e);
    if (!e) return error_set(err, ERR_NOMEM, "no memory for the engine");
    e->options = *options;
    e->model = model;
    e->backend = backend;
    e->drafter = drafter;
    pthread_mutex_init(&e->stats_mutex, NULL);
    s = open_parts(e, err);
    if (s) { /* model and drafter stay the caller's */
        free_parts(e);
        return s;
    }
    publish_stats(e);
    *out = e;
    return OK;
}

/* ---- requests come in, and end ---- */

/* On failure nobody owns r any more. */
static Status hand_in(Engine *e, Request *r, void (*notify)(void *ctx), void *ctx, Error *err)
{
    r->notify = notify;
    r->notify_ctx = ctx;
    Status s = queue_push(e->incoming, r);
    if (!s) return OK;
    request_release(r); /* the engine's reference, and the front's */
    request_release(r);
    return error_set(err, s, "the engine is stopping");
}

Status engine_submit(Engine *e, const GenerateRequest *g, void (*notify)(void *ctx), void *ctx, Request **out,
                     Error *err)
{
    const Drafts *d = &e->step.drafts;
    RequestBounds bounds = { e->model->info.vocab_size, e->options.max_model_len, e->options.draft_nodes, d->n_methods, d->methods };
    *out = NULL;
    if (atomic_fetch_add(&e->n_waiting, 1) >= e->options.max_waiting) {
        atomic_fetch_sub(&e->n_waiting, 1);
        return error_set(err, ERR_FULL, "%d requests are waiting already; try again later", e->options.max_waiting);
    }
    Status s = request_open(out, g, &bounds, e->budget, err);
    if (!s) s = hand_in(e, *out, notify, ctx, err);
    if (!s) return OK;
    *out = NULL;
    atomic_fetch_sub(&e->n_waiting, 1);
    return s;
}

static void touch(Engine *e, Request *r)
{
    if (r->is_touched) return;
    r->is_touched = true;
    r->next_touched = e->touched;
    e->touched = r;
}

static void intake_request(Engine *e, Request *r)
{
    for (int32_t c = 0; c < r->g.n_choices; c++) scheduler_add(&e->scheduler, &r->sequence[c]);
}

static void intake(Engine *e)
{
    Request *r;
    while ((r = queue_pop(e->incoming, 0))) intake_request(e, r);
}

/* Takes a sequence whose `ended` is set out of the scheduler. */
static void retire(Engine *e, Sequence *seq)
{
    Request *r = seq->request;
    scheduler_remove(&e->scheduler, seq);
    seq->is_retired = true;
    if (!seq->was_admitted && --r->n_unadmitted == 0) atomic_fetch_sub(&e->n_waiting, 1);
    if (--r->n_unended == 0) {
        e->n_done++;
        e->n_failed += r->error.status == ERR_NUMERIC || r->error.status == ERR_LOST;
    }
    touch(e, r);
}

/* Ends what the front no longer wants. */
static void end_if_asked(Engine *e, Sequence *seq)
{
    Request *r = seq->request;
    if (atomic_load_explicit(&r->cancel_wanted, memory_order_acquire)) {
        error_set(&r->error, ERR_CANCELLED, "the request was cancelled");
        seq->ended = FINISH_CANCELLED;
    } else if (atomic_load_explicit(&seq->stop_wanted, memory_order_acquire)) {
        seq->ended = FINISH_STOP;
    } else if (atomic_load_explicit(&e->is_closing, memory_order_acquire)) {
        error_set(&r->error, ERR_CANCELLED, "the server is stopping");
        seq->ended = FINISH_CANCELLED;
    }
    if (seq->ended != FINISH_NONE) retire(e, seq);
}

/* Without its device an engine ends all that it has. */
static void end_lost(Engine *e, Sequence *seq)
{
    error_set(&seq->request->error, ERR_LOST, "%s", e->step.lost);
    seq->ended = FINISH_ERROR;
    retire(e, seq);
}

/* Calls end() for every sequence there is; it may take the one at hand out of the scheduler. */
static void sweep(Engine *e, void (*end)(Engine *e, Sequence *seq))
{
    Scheduler *s = &e->scheduler;
    for (int32_t i = s->n_running; i-- > 0;) end(e, s->running[i]);
    for (Sequence *seq = s->oldest_waiting, *next; seq; seq = next) {
        next = seq->younger;
        end(e, seq);
    }
}

/* After a step: who took part has news, and who ended leaves. */
static void collect(Engine *e)
{
    for (int32_t i = 0; i < e->step.n_shares; i++) {
        Sequence *seq = e->step.shares[i].seq;
        touch(e, seq->request);
        if (seq->ended == FINISH_NONE) continue;
        /* Sister choices that failed along may wait, or have had no rows. */
        for (int32_t c = 0; c < seq->request->g.n_choices; c++) {
            Sequence *sister = &seq->request->sequence[c];
            if (sister->ended != FINISH_NONE && !sister->is_retired) retire(e, sister);
        }
    }
}

static void publish(Engine *e)
{
    while (e->touched) {
        Request *r = e->touched;
        e->touched = r->next_touched;
        r->is_touched = false;
        bool is_done = r->n_unended == 0;
        request_publish(r);
        if (is_done) request_release(r);
    }
}

/* ---- turning ---- */

static void copy_methods(const Drafts *d, EngineStats *out)
{
    out->n_methods = d->n_methods;
    for (int32_t m = 0; m < d->n_methods; m++) {
        const MethodState *state = &d->states[m];
        out->methods[m] = (MethodStats){ .name = d->methods[m].name, .counts = state->counts, .failed_drafts = state->n_failed,
                                         .is_suspect = state->is_suspect };
        memcpy(out->methods[m].off, d->methods[m].off, sizeof out->methods[m].off);
    }
}

static void publish_stats(Engine *e)
{
    const StepCounts *c = &e->step.counts;
    BlockPool *pool = e->scheduler.table.pool;
    EngineStats now = { .running = e->scheduler.n_running,
                        .blocks_total = block_pool_total(pool),
                        .blocks_used = block_pool_total(pool) - block_pool_free_count(pool),
                        .steps = c->passes,
                        .prompt_tokens = c->prompt_tokens,
                        .output_tokens = c->output_tokens,
                        .draft_tokens = c->draft_tokens,
                        .accepted_tokens = c->accepted_tokens,
                        .preemptions = e->scheduler.n_preemptions,
                        .requests_done = e->n_done,
                        .requests_failed = e->n_failed,
                        .last_step_ms = (uint64_t)clock_ms(),
                        .failed_drafts = e->step.drafts.n_failed,
                        .draft_ms = c->draft_ms,
                        .forward_ms = c->forward_ms,
                        .choose_ms = c->choose_ms,
                        .is_lost = e->is_lost };
    copy_methods(&e->step.drafts, &now);
    pthread_mutex_lock(&e->stats_mutex);
    e->stats = now;
    pthread_mutex_unlock(&e->stats_mutex);
}

static void lose(Engine *e)
{
    if (!e->is_lost) log_error("engine", "%s", e->step.lost);
    e->is_lost = true;
    sweep(e, end_lost);
}

bool engine_step(Engine *e)
{
    numeric_mode_enter();
    intake(e);
    if (scheduler_is_idle(&e->scheduler)) return false;
    sweep(e, end_if_asked);
    atomic_fetch_sub(&e->n_waiting, scheduler_admit(&e->scheduler));
    if (!e->is_lost) {
        step_run(&e->step);
        collect(e);
    }
    if (e->step.lost) lose(e);
    publish_stats(e);
    publish(e);
    return true;
}

static void *engine_main(void *arg)
{
    Engine *e = arg;
    while (!atomic_load_explicit(&e->is_closing, memory_order_acquire)) {
        if (engine_step(e)) continue;
        Request *r = queue_pop(e->incoming, -1);
        if (r) intake_request(e, r);
    }
    return NULL;
}

Status engine_start(Engine *e, Error *err)
{
    CHECK(!e->has_thread);
    sigset_t all, old;
    sigfillset(&all); /* signals are for the threads that wait for them, never for this one */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&e->thread, NULL, engine_main, e);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc) return error_set(err, ERR_NOMEM, "the engine's thread could not be started: %s", strerror(rc));
    e->has_thread = true;
    return OK;
}

void engine_keep_drafter(Engine *e)
{
    e->keeps_drafter = true;
}

void engine_close(Engine *e)
{
    if (!e) return;
    atomic_store_explicit(&e->is_closing, true, memory_order_release);
    queue_close(e->incoming);
    if (e->has_thread) pthread_join(e->thread, NULL);
    intake(e);
    sweep(e, end_if_asked);
    publish(e);
    if (!e->keeps_drafter) drafter_close(e->drafter); /* it borrows from the model */
    model_close(e->model);
    free_parts(e);
}

/* ---- questions ---- */

EngineStats engine_stats(const Engine *e)
{
    Engine *locked = (Engine *)e; /* the mutex is no part of what const promises */
    pthread_mutex_lock(&locked->stats_mutex);
    EngineStats now = e->stats;
    pthread_mutex_unlock(&locked->stats_mutex);
    now.waiting = atomic_load(&locked->n_waiting);
    return now;
}

const DraftMethod *engine_methods(const Engine *e, int32_t *n)
{
    *n = e->step.drafts.n_methods;
    return e->step.drafts.methods;
}

const ModelInfo *engine_model(const Engine *e)
{
    return &e->model->info;
}

const EngineOptions *engine_options(const Engine *e)
{
    return &e->options;
}
