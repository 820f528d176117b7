/* What the endpoints on front workers share: a turn, the body, encoding, replying. */
#include "server/api.h"

#include "base/log.h"
#include "base/memory.h"
#include "server/job.h"
#include "server/reply.h"

/* A tree costs some 50 bytes a value, a list of token ids two bytes of text a value. This many are enough for the ids of a
 * million tokens. */
enum { MAX_JSON_VALUES = 2 << 20, MAX_ERROR_BYTES = 1 << 16 };

bool api_turn(void *server, void *exchange, int worker)
{
    Server *s = server;
    Exchange *x = exchange;
    if (x->job) return job_follow(x->job);
    const Route *route = x->route;
    return atomic_load(&x->is_gone) || route->start(s, x, worker);
}

bool api_reply(Server *s, Exchange *x, Buf *body)
{
    int code = body->failed ? 503 : 200;
    atomic_fetch_add(&s->n_answers[code / 100], 1);
    exchange_reply(x, code, "application/json", body);
    return true;
}

bool api_fail(Server *s, Exchange *x, const Error *err)
{
    Buf body;
    int code = reply_code(err->status);
    buf_init(&body, MAX_ERROR_BYTES);
    reply_error(&body, code, err->text, err->param, x->error_code);
    log_debug("server", "%s: %d %s", ((const Route *)x->route)->path, code, err->text);
    atomic_fetch_add(&s->n_answers[code / 100], 1);
    exchange_reply(x, code, "application/json", &body);
    return true;
}

bool server_has_name(const Server *s, const char *name)
{
    for (int i = 0; i < s->n_names; i++) {
        if (strcmp(s->names[i], name) == 0) return true;
    }
    return false;
}

/* Commas and opening brackets outside strings: at least as many as there are values. */
static bool has_few_values(const char *text, size_t n)
{
    size_t count = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string && c == '\\') i++;
        else if (c == '"') in_string = !in_string;
        else if (!in_string && (c == ',' || c == '[' || c == '{')) count++;
    }
    return count <= MAX_JSON_VALUES;
}

static Status check_model(Server *s, Exchange *x, const json_t *body, Error *err)
{
    const char *model = NULL;
    Status status = json_get_string(body, "model", &model, err);
    if (status || !model || server_has_name(s, model)) return status;
    x->error_code = "model_not_found";
    return error_set_param(err, ERR_NOT_FOUND, "model", "the model \"%.200s\" is not served here; \"%s\" is", model, s->names[0]);
}

Status api_body(Server *s, Exchange *x, json_t **body, Error *err)
{
    char *text = NULL;
    size_t n;
    *body = NULL;
    Status status = exchange_body(x, &text, &n, err);
    exchange_release(x);
    if (!status && !has_few_values(text, n)) {
        status = error_set(err, ERR_INPUT, "the request body has more than %d values", MAX_JSON_VALUES);
    }
    if (!status) status = json_parse(body, text, n, "the request body", err);
    mem_free(text);
    if (!status && !json_is_object(*body)) status = error_set(err, ERR_INPUT, "the request body must be a JSON object");
    if (!status) status = check_model(s, x, *body, err);
    if (!status) return OK;
    json_decref(*body);
    *body = NULL;
    return status;
}

Status api_encode(Server *s, Exchange *x, int worker, const char *param, const char *text, size_t n, int32_t **ids,
                  int32_t *n_ids, Error *err)
{
    int64_t count = 0, capacity = 0, context = s->stack.max_model_len;
    Error e = { .status = OK };
    *ids = NULL;
    *n_ids = 0;
    Status status = s->scratch[worker] ? OK : tokenizer_scratch_open(&s->scratch[worker], s->stack.tokenizer, err);
    if (status) return status;
    status = tokenizer_encode(s->stack.tokenizer, s->scratch[worker], text, n, false, context, ids, &count, &capacity, &e);
    *n_ids = (int32_t)count;
    if (!status) return OK;
    mem_free(*ids);
    *ids = NULL;
    if (status != ERR_INPUT) return error_set(err, status, "%s", e.text);
    /* The text is UTF-8, the JSON parser saw to that, so it must be too long. */
    x->error_code = "context_length_exceeded";
    return error_set_param(err, ERR_INPUT, param, "this model's maximum context length is %lld tokens, but the prompt has more",
                           (long long)context);
}
