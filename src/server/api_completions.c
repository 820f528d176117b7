/* POST /v1/completions: a text, or token ids, continued. Prompts go in as they are, without a template.
 *
 * With echo and logprobs the prompt itself is scored, which is how evaluation harnesses rank given answers: they send
 * prompt + answer, max_tokens 0 or 1, and add up the logprobs of the answer's tokens. */
#include "server/api.h"

#include "base/memory.h"
#include "server/job.h"
#include "server/logprobs.h"

/* ---- prompts ---- */

static Status bad_prompt(Error *err)
{
    return error_set_param(err, ERR_INPUT, "prompt", "prompt must be a string, a list of strings, a list of token ids, or a list of such lists");
}

static Status take_text(Job *j, JobPrompt *p, const json_t *text, int worker, Error *err)
{
    size_t n = json_string_length(text);
    if (j->echo) {
        p->text = (Str){ arena_strndup(&j->arena, json_string_value(text), n), n };
        if (!p->text.data) return error_set(err, ERR_NOMEM, "no memory to echo a prompt of %zu bytes", n);
    }
    return api_encode(j->server, j->x, worker, "prompt", json_string_value(text), n, &p->ids, &p->n_ids, err);
}

static Status echo_ids(Job *j, JobPrompt *p, Error *err)
{
    Detokenizer d;
    Buf text;
    buf_init(&text, MAX_REPLY_BYTES);
    detokenizer_init(&d, j->server->stack.tokenizer, false);
    for (int32_t i = 0; i < p->n_ids; i++) detokenizer_push(&d, p->ids[i], &text);
    detokenizer_end(&d, &text);
    char *copy = text.failed ? NULL : arena_strndup(&j->arena, text.data ? text.data : "", text.len);
    p->text = (Str){ copy, text.len };
    buf_free(&text);
    return copy ? OK : error_set(err, ERR_NOMEM, "no memory to echo a prompt of %d tokens", p->n_ids);
}

static Status take_ids(Job *j, JobPrompt *p, const json_t *ids, Error *err)
{
    size_t n = json_array_size(ids);
    int32_t vocab = j->server->stack.config.vocab_size;
    if (n > (size_t)j->server->stack.max_model_len) {
        j->x->error_code = "context_length_exceeded";
        return error_set_param(err, ERR_INPUT, "prompt", "this model's maximum context length is %d tokens, but the prompt has %zu",
                               j->server->stack.max_model_len, n);
    }
    p->ids = mem_alloc_array(n + 1, sizeof *p->ids);
    if (!p->ids) return error_set(err, ERR_NOMEM, "no memory for a prompt of %zu tokens", n);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(ids, i);
        int64_t v = json_is_integer(id) ? json_integer_value(id) : -1;
        if (!json_is_integer(id)) return bad_prompt(err);
        if (v < 0 || v >= vocab) {
            return error_set_param(err, ERR_INPUT, "prompt", "prompt holds the token id %lld; ids run from 0 to %d", (long long)v,
                                   vocab - 1);
        }
        p->ids[i] = (int32_t)v;
    }
    p->n_ids = (int32_t)n;
    return j->echo ? echo_ids(j, p, err) : OK;
}

static Status take_prompt(Job *j, JobPrompt *p, const json_t *prompt, int worker, Error *err)
{
    if (json_is_string(prompt)) return take_text(j, p, prompt, worker, err);
    if (json_is_array(prompt)) return take_ids(j, p, prompt, err);
    return bad_prompt(err);
}

static Status read_prompts(Job *j, const json_t *body, int worker, Error *err)
{
    const json_t *prompt = json_object_get(body, "prompt");
    bool is_list = json_is_array(prompt) && !json_is_integer(json_array_get(prompt, 0));
    size_t n = is_list ? json_array_size(prompt) : 1;
    if (!prompt || json_is_null(prompt)) return error_set_param(err, ERR_INPUT, "prompt", "prompt is missing");
    if (n < 1 || n > JOB_MAX_PROMPTS) {
        return error_set_param(err, ERR_INPUT, "prompt", "a list must hold 1 to %d prompts, got %zu", JOB_MAX_PROMPTS, n);
    }
    Status s = job_set_prompts(j, (int)n, err);
    for (size_t i = 0; i < n && !s; i++) {
        s = take_prompt(j, &j->prompts[i], is_list ? json_array_get(prompt, i) : prompt, worker, err);
    }
    return s;
}

/* ---- the answer ---- */

static void write_text(const Job *j, const JobChoice *c, const JobPiece *piece, Buf *out)
{
    if (!j->echo || !piece->is_first) {
        buf_json_string(out, piece->text.data, piece->text.len);
        return;
    }
    Buf all;
    buf_init(&all, MAX_REPLY_BYTES);
    buf_append(&all, c->prompt->text.data, c->prompt->text.len);
    buf_append(&all, piece->text.data, piece->text.len);
    buf_json_string(out, all.data, all.len);
    out->failed |= all.failed;
    buf_free(&all);
}

static void write_choice(Job *j, JobChoice *c, const JobPiece *piece, Buf *out)
{
    buf_printf(out, "{\"index\":%d,\"text\":", c->index);
    write_text(j, c, piece, out);
    buf_text(out, ",\"logprobs\":");
    logprobs_legacy(j, c, piece, out);
    if (piece->finish) buf_printf(out, ",\"finish_reason\":\"%s\"}", piece->finish);
    else buf_text(out, ",\"finish_reason\":null}");
}

static const JobFormat completion_format = {
    .id_prefix = "cmpl", .object = "text_completion", .chunk_object = "text_completion", .whole = write_choice, .delta = write_choice,
};

/* ---- the request ---- */

static Status read_logprobs(Job *j, const json_t *body, Error *err)
{
    int64_t n = 0;
    const json_t *given = json_object_get(body, "logprobs");
    if (!given || json_is_null(given)) return OK;
    Status s = json_get_int(body, "logprobs", 0, MAX_TOP_LOGPROBS, &n, err);
    j->fields.g.params.n_logprobs = (int32_t)n;
    return s;
}

/* OpenAI's default here is 16 tokens, which nobody expects who did not read it; ours is the same as in chats. */
static Status read_echo(Job *j, const json_t *body, Error *err)
{
    Status s = json_get_bool(body, "echo", &j->echo, err);
    if (s || !j->fields.has_max_tokens || j->fields.g.max_tokens > 0) return s;
    j->drops_output = true;
    if (j->echo && j->fields.g.min_tokens == 0) return OK;
    return error_set_param(err, ERR_INPUT, "max_tokens", "max_tokens must be at least 1, or 0 with echo, got 0");
}

bool api_completions_start(Server *s, Exchange *x, int worker)
{
    Error err = { .status = OK };
    json_t *body;
    Job *j = NULL;
    Status status = api_body(s, x, &body, &err);
    if (!status) status = job_open(&j, s, x, &completion_format, body, &err);
    if (!status) status = read_logprobs(j, body, &err);
    if (!status) status = read_echo(j, body, &err);
    if (!status) status = read_prompts(j, body, worker, &err);
    json_decref(body);
    if (!status) status = job_start(j, &err);
    if (!status) return job_follow(j);
    job_close(j);
    return api_fail(s, x, &err);
}
