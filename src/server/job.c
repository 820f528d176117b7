/* Generations: submitting, following, writing the answer.
 *
 * What a stream sends and what a whole answer holds come from the same Answer, so their texts are equal. A stream takes
 * tokens from the engine's Request only while the exchange has room; they wait there and nowhere else. */
#include "server/job.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/sha256.h"
#include "server/api.h"
#include "server/reply.h"
#include "server/timings.h"

#include <inttypes.h>
#include <time.h>

enum {
    PIECE_TOKENS = 256,          /* most tokens of one chunk, so that a stream that catches up stays within its room */
    JOB_ARENA_BYTES = 96 << 20,  /* texts of prompts that are echoed */
    TOKEN_TEXT_BYTES = 1024,     /* more than any token's text, on average */
    CHUNK_BYTES = 16 << 20,
};

/* ---- open and close ---- */

static void new_id(Job *j)
{
    snprintf(j->id, sizeof j->id, "%s-%014" PRIx64 "%014" PRIx64, j->format->id_prefix, random_bits(), random_bits());
}

Status job_open(Job **out, Server *s, Exchange *x, const JobFormat *format, const json_t *body, Error *err)
{
    *out = NULL;
    Job *j = mem_alloc(sizeof *j);
    if (!j) return error_set(err, ERR_NOMEM, "no memory for a request");
    *j = (Job){ .server = s, .x = x, .format = format, .created = (int64_t)time(NULL) };
    arena_init(&j->arena, 4096, JOB_ARENA_BYTES);
    buf_init(&j->out, CHUNK_BYTES);
    new_id(j);
    Status status = fields_read(&j->fields, body, s, &j->arena, err);
    if (status) {
        job_close(j);
        return status;
    }
    *out = j;
    return OK;
}

void job_close(Job *j)
{
    if (!j) return;
    for (int i = 0; i < j->n_prompts; i++) {
        request_close(j->prompts[i].request);
        mem_free(j->prompts[i].ids);
    }
    for (int i = 0; i < j->n_choices; i++) answer_free(&j->choices[i].answer);
    mem_free(j->prompts);
    mem_free(j->choices);
    buf_free(&j->out);
    arena_free(&j->arena);
    j->x->job = NULL;
    mem_free(j);
}

Status job_set_prompts(Job *j, int n, Error *err)
{
    j->prompts = mem_alloc_array((size_t)n, sizeof *j->prompts);
    if (!j->prompts) return error_set(err, ERR_NOMEM, "no memory for %d prompts", n);
    j->n_prompts = n;
    return OK;
}

static Status open_choices(Job *j, Error *err)
{
    const Fields *f = &j->fields;
    int per_prompt = f->g.n_choices, n = j->n_prompts * per_prompt;
    if (n > JOB_MAX_CHOICES) {
        return error_set_param(err, ERR_INPUT, "n", "%d prompts with n = %d are more than %d choices", j->n_prompts, per_prompt,
                               JOB_MAX_CHOICES);
    }
    size_t max_bytes = (size_t)j->server->stack.max_model_len * TOKEN_TEXT_BYTES;
    AnswerOptions options = { .tokenizer = j->server->stack.tokenizer, .skip_special = f->skip_special,
                              .include_stop = f->include_stop, .n_stops = f->n_stops, .stops = f->stops, .max_bytes = max_bytes };
    j->choices = mem_alloc_array((size_t)n, sizeof *j->choices);
    if (!j->choices) return error_set(err, ERR_NOMEM, "no memory for %d choices", n);
    for (int i = 0; i < n; i++) {
        JobChoice *c = &j->choices[i];
        *c = (JobChoice){ .prompt = &j->prompts[i / per_prompt], .choice = i % per_prompt, .index = i };
        Status s = answer_init(&c->answer, &options, err);
        if (s) return s;
        j->n_choices = i + 1;
    }
    return OK;
}

/* ---- to the engine ---- */

static void on_news(void *arg)
{
    Job *j = arg;
    work_post(j->server->work, &j->x->work);
}

static Status submit_prompt(Job *j, JobPrompt *p, Error *err)
{
    GenerateRequest g = j->fields.g;
    g.id = atomic_fetch_add(&j->server->n_started, 1) + 1;
    g.prompt = p->ids;
    g.n_prompt = p->n_ids;
    g.max_tokens = j->drops_output ? 1 : fields_max_tokens(&j->fields, p->n_ids, j->server->stack.max_model_len);
    g.prompt_logprobs = j->echo && g.params.n_logprobs >= 0;
    return engine_submit(j->server->stack.engine, &g, on_news, j, &p->request, err);
}

static bool any_runs(const Job *j)
{
    for (int i = 0; i < j->n_submitted; i++) {
        if (!request_done(j->prompts[i].request)) return true;
    }
    return false;
}

/* Submits as many prompts as the engine takes. A full queue refuses the first; the others wait for the end of one of ours,
 * or, when strangers filled the queue, for the next tick. */
static Status submit_more(Job *j, Error *err)
{
    while (j->n_submitted < j->n_prompts) {
        Error e = { .status = OK };
        Status s = submit_prompt(j, &j->prompts[j->n_submitted], &e);
        if (s == ERR_FULL && j->n_submitted > 0) {
            if (!any_runs(j)) atomic_store(&j->x->wants_tick, true);
            return OK;
        }
        if (s) {
            *err = e;
            return s;
        }
        j->n_submitted++;
    }
    return OK;
}

static Status check_prompts(Job *j, Error *err)
{
    int32_t context = j->server->stack.max_model_len;
    for (int i = 0; i < j->n_prompts; i++) {
        if (j->prompts[i].n_ids < 1) return error_set_param(err, ERR_INPUT, "prompt", "the prompt is empty");
        if (j->prompts[i].n_ids < context) continue;
        j->x->error_code = "context_length_exceeded";
        return error_set_param(err, ERR_INPUT, "prompt",
                               "this model's maximum context length is %d tokens, but the prompt has %d and an answer needs room",
                               context, j->prompts[i].n_ids);
    }
    return OK;
}

static bool send_piece(Job *j, JobChoice *c, const JobPiece *piece);

Status job_start(Job *j, Error *err)
{
    Status s = check_prompts(j, err);
    if (!s) s = open_choices(j, err);
    if (!s) s = submit_more(j, err);
    if (s) return s;
    j->x->job = j;
    log_debug("server", "%s: %d prompts, the first of %d tokens", j->id, j->n_prompts, j->prompts[0].n_ids);
    if (!j->fields.is_stream) return OK;
    exchange_begin(j->x);
    for (int i = 0; i < j->n_choices && j->format->sends_role; i++) {
        JobPiece role = { .is_first = true };
        send_piece(j, &j->choices[i], &role);
    }
    return OK;
}

/* ---- tokens ---- */

const TokenLogprob *job_logprobs(const JobChoice *c)
{
    return request_logprobs(c->prompt->request, c->choice);
}

const int32_t *job_tokens(const JobChoice *c)
{
    return request_tokens(c->prompt->request, c->choice);
}

static void end_choice(JobChoice *c, FinishReason why)
{
    answer_end(&c->answer);
    c->finish = why;
}

static bool is_stop_id(const Job *j, int32_t token)
{
    const GenerateRequest *g = &j->fields.g;
    for (int i = 0; i < g->n_stop_ids; i++) {
        if (g->stop_ids[i] == token) return true;
    }
    return false;
}

/* A stop id counts as a token and adds no text. */
static void take_token(Job *j, JobChoice *c, int32_t token)
{
    c->n_tokens++;
    if (is_stop_id(j, token)) {
        end_choice(c, FINISH_STOP);
        return;
    }
    answer_push(&c->answer, token);
    if (c->answer.stop < 0) return;
    request_stop_choice(c->prompt->request, c->choice);
    end_choice(c, FINISH_STOP);
}

/* Takes up to max tokens that the engine has published, none behind a text that did not grow. Errors and cancels end the job, not the choice: they are left to
 * check_failures() in the turn that their news brings. */
static void take_tokens(Job *j, JobChoice *c, int32_t max)
{
    Request *r = c->prompt->request;
    if (!r || c->finish) return;
    FinishReason why = request_finish(r, c->choice); /* before the count: once it is set, the count is final */
    int32_t n = request_count(r, c->choice);
    const int32_t *tokens = request_tokens(r, c->choice);
    if (why == FINISH_ERROR || why == FINISH_CANCELLED) why = FINISH_NONE;
    if (j->drops_output) {
        if (why) end_choice(c, FINISH_LENGTH);
        return;
    }
    for (int32_t i = 0; i < max && c->n_tokens < n && !c->finish && !c->answer.text.failed; i++)
        take_token(j, c, tokens[c->n_tokens]);
    if (!c->finish && why && c->n_tokens == n) end_choice(c, why);
}

static const char *finish_name(FinishReason why)
{
    return why == FINISH_STOP ? "stop" : why == FINISH_LENGTH ? "length" : NULL;
}

/* What ended a choice before it was complete: lost engine, numeric trouble, the server stopping. */
static Status check_failures(Job *j, Error *err)
{
    for (int i = 0; i < j->n_choices; i++) {
        JobChoice *c = &j->choices[i];
        Request *r = c->prompt->request;
        if (!r || c->finish) continue;
        FinishReason why = request_finish(r, c->choice);
        if (why != FINISH_ERROR && why != FINISH_CANCELLED) continue;
        Status s = request_error(r, err);
        return s ? s : error_set(err, ERR_CANCELLED, "the request was cancelled");
    }
    return OK;
}

/* An answer with a hole must not look like one: also after its last token. */
static Status check_texts(const Job *j, Error *err)
{
    for (int i = 0; i < j->n_choices; i++) {
        if (j->choices[i].answer.text.failed) return error_set(err, ERR_NOMEM, "no memory for the text of choice %d", i);
    }
    return OK;
}

static bool is_complete(const Job *j)
{
    for (int i = 0; i < j->n_choices; i++) {
        if (!j->choices[i].finish) return false;
    }
    return !any_runs(j); /* after a stop string the engine has a step to go; then its timings are complete */
}

/* ---- writing ---- */

static void write_head(const Job *j, const char *object, Buf *out)
{
    const Server *s = j->server;
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":", j->id, object, j->created);
    buf_json_string(out, s->names[0], strlen(s->names[0]));
    buf_printf(out, ",\"system_fingerprint\":\"%s\",\"seed\":%" PRId64, s->stack.fingerprint, (int64_t)j->fields.g.seed);
}

/* Hash of all tokens that were emitted, choice after choice. */
static bool hash_tokens(const Job *j, char hex[17])
{
    int64_t n = 0, at = 0;
    for (int i = 0; i < j->n_choices; i++) n += j->choices[i].n_tokens;
    int32_t *ids = mem_alloc_array((size_t)n + 1, sizeof *ids);
    if (!ids) return false;
    for (int i = 0; i < j->n_choices; i++) {
        const JobChoice *c = &j->choices[i];
        memcpy(ids + at, job_tokens(c), (size_t)c->n_tokens * sizeof *ids);
        at += c->n_tokens;
    }
    token_sha(ids, (int)n, hex);
    mem_free(ids);
    return true;
}

static void write_usage(const Job *j, Buf *out)
{
    int64_t n_prompt = 0, n_new = 0;
    char hex[17];
    for (int i = 0; i < j->n_prompts; i++) n_prompt += j->prompts[i].n_ids;
    for (int i = 0; i < j->n_choices; i++) n_new += j->choices[i].n_tokens;
    buf_printf(out, ",\"usage\":{\"prompt_tokens\":%" PRId64 ",\"completion_tokens\":%" PRId64 ",\"total_tokens\":%" PRId64,
               n_prompt, n_new, n_prompt + n_new);
    if (hash_tokens(j, hex)) buf_printf(out, ",\"token_sha\":\"%s\"", hex);
    buf_text(out, "}");
}

/* Times of several prompts are added up; tokens per second: those after the first of each choice, over decode_ms. */
static void write_timings(const Job *j, Buf *out)
{
    RequestTimings sum = { .steps = 0 };
    int64_t n_later = 0;
    for (int i = 0; i < j->n_prompts; i++) {
        RequestTimings t = request_timings(j->prompts[i].request);
        timings_add(&sum, &t);
    }
    for (int i = 0; i < j->n_choices; i++) n_later += j->choices[i].n_tokens > 0 ? j->choices[i].n_tokens - 1 : 0;
    buf_text(out, ",\"timings\":");
    timings_write(&sum, n_later, j->server->stack.engine, out);
}

static Status reply_whole(Job *j, Error *err)
{
    Buf body;
    buf_init(&body, MAX_REPLY_BYTES);
    write_head(j, j->format->object, &body);
    buf_text(&body, ",\"choices\":[");
    for (int i = 0; i < j->n_choices; i++) {
        JobChoice *c = &j->choices[i];
        JobPiece piece = { .text = { c->answer.text.data, c->answer.n_ready }, .n = c->n_tokens, .is_first = true,
                           .finish = finish_name(c->finish) };
        if (i) buf_text(&body, ",");
        j->format->whole(j, c, &piece, &body);
    }
    buf_text(&body, "]");
    write_usage(j, &body);
    write_timings(j, &body);
    buf_text(&body, "}");
    if (body.failed) {
        buf_free(&body);
        return error_set(err, ERR_NOMEM, "the answer has more than %d bytes; ask for fewer logprobs or choices", MAX_REPLY_BYTES);
    }
    api_reply(j->server, j->x, &body);
    return OK;
}

/* ---- streaming ---- */

static bool send_event(Job *j)
{
    buf_text(&j->out, "\n\n");
    if (j->out.failed) atomic_store(&j->x->is_gone, true); /* no memory: there is no way to say more */
    return exchange_write(j->x, j->out.data, j->out.len);
}

static bool send_piece(Job *j, JobChoice *c, const JobPiece *piece)
{
    buf_clear(&j->out);
    buf_text(&j->out, "data: ");
    write_head(j, j->format->chunk_object, &j->out);
    buf_text(&j->out, ",\"choices\":[");
    j->format->delta(j, c, piece, &j->out);
    buf_text(&j->out, j->fields.include_usage ? "],\"usage\":null}" : "]}");
    c->has_begun = true;
    c->n_sent_bytes += piece->text.len;
    c->n_sent_tokens += piece->n;
    if (piece->finish) c->is_sent = true;
    return send_event(j);
}

/* What of c can be sent now; false: nothing. */
static bool next_piece(Job *j, JobChoice *c, JobPiece *piece)
{
    const Answer *a = &c->answer;
    bool has_text = a->n_ready > c->n_sent_bytes;
    bool has_logprobs = j->fields.g.params.n_logprobs >= 0 && c->n_tokens > c->n_sent_tokens;
    bool has_echo = j->echo && !c->has_begun && (c->n_tokens > 0 || c->finish);
    *piece = (JobPiece){ .first = c->n_sent_tokens, .is_first = !c->has_begun };
    if (has_text || has_logprobs || has_echo) {
        piece->text = (Str){ a->text.data + c->n_sent_bytes, a->n_ready - c->n_sent_bytes };
        piece->n = c->n_tokens - c->n_sent_tokens;
        return true;
    }
    if (!c->finish || c->is_sent) return false;
    piece->finish = finish_name(c->finish);
    return true;
}

/* False: no room for more. */
static bool stream_choice(Job *j, JobChoice *c)
{
    JobPiece piece;
    for (;;) {
        take_tokens(j, c, PIECE_TOKENS);
        if (c->answer.text.failed || !next_piece(j, c, &piece)) return true;
        if (!send_piece(j, c, &piece)) return false;
    }
}

static void end_stream(Job *j)
{
    buf_clear(&j->out);
    if (j->fields.include_usage) {
        buf_text(&j->out, "data: ");
        write_head(j, j->format->chunk_object, &j->out);
        buf_text(&j->out, ",\"choices\":[]");
        write_usage(j, &j->out);
        write_timings(j, &j->out);
        buf_text(&j->out, "}\n\n");
    }
    buf_text(&j->out, "data: [DONE]");
    send_event(j);
}

static bool all_sent(const Job *j)
{
    for (int i = 0; i < j->n_choices; i++) {
        if (!j->choices[i].is_sent) return false;
    }
    return true;
}

/* ---- turns ---- */

static void log_end(const Job *j)
{
    int64_t n_new = 0;
    for (int i = 0; i < j->n_choices; i++) n_new += j->choices[i].n_tokens;
    RequestTimings t = request_timings(j->prompts[0].request);
    log_debug("server", "%s: done, %" PRId64 " tokens, queue %.1f ms, prefill %.1f ms, decode %.1f ms", j->id, n_new, t.queue_ms,
              t.prefill_ms, t.decode_ms);
}

static bool fail(Job *j, const Error *err)
{
    if (!exchange_has_begun(j->x)) {
        api_fail(j->server, j->x, err);
    } else {
        buf_clear(&j->out);
        buf_text(&j->out, "data: ");
        reply_error(&j->out, reply_code(err->status), err->text, err->param, j->x->error_code);
        send_event(j);
        atomic_fetch_add(&j->server->n_answers[reply_code(err->status) / 100], 1);
    }
    job_close(j);
    return true;
}

static bool follow_whole(Job *j, Error *err)
{
    for (int i = 0; i < j->n_choices; i++) take_tokens(j, &j->choices[i], INT32_MAX);
    if (check_texts(j, err)) return fail(j, err);
    if (!is_complete(j)) return false;
    if (reply_whole(j, err)) return fail(j, err);
    log_end(j);
    job_close(j);
    return true;
}

static bool follow_stream(Job *j, Error *err)
{
    if (!exchange_has_room(j->x)) return false;
    for (int i = 0; i < j->n_choices; i++) {
        if (!stream_choice(j, &j->choices[i])) return false;
    }
    if (check_texts(j, err)) return fail(j, err);
    if (!is_complete(j) || !all_sent(j)) return false;
    end_stream(j);
    log_end(j);
    atomic_fetch_add(&j->server->n_answers[2], 1);
    job_close(j);
    return true;
}

bool job_follow(Job *j)
{
    Error err = { .status = OK };
    if (atomic_load(&j->x->is_gone)) {
        log_debug("server", "%s: the client left", j->id);
        job_close(j);
        return true;
    }
    bool cancelled = atomic_load(&j->x->is_cancelled);
    for (int i = 0; i < j->n_submitted && cancelled; i++) request_cancel(j->prompts[i].request);
    if (cancelled && j->n_submitted < j->n_prompts) error_set(&err, ERR_CANCELLED, "the server is stopping");
    if (err.status || submit_more(j, &err) || check_failures(j, &err)) return fail(j, &err);
    return j->fields.is_stream ? follow_stream(j, &err) : follow_whole(j, &err);
}
