/* POST /v1/chat/completions: messages through the model's chat template to a prompt, and the answer as a message.
 *
 * Tools are shown to the model by its template; calls that it writes stay in the text of the answer, so tool_choice can
 * only be "auto" or "none". Reasoning stays in the text as well. */
#include "server/api.h"

#include "base/memory.h"
#include "server/job.h"
#include "server/logprobs.h"

enum { MAX_PROMPT_BYTES = 64 << 20 };

/* ---- messages ---- */

static Status bad_content(size_t i, const char *why, Error *err)
{
    return error_set_param(err, ERR_INPUT, "messages", "messages[%zu].content %s", i, why);
}

/* Parts of type text become one string, joined by newlines, for templates that know strings only. */
static Status join_parts(json_t *message, size_t i, const json_t *parts, Error *err)
{
    Buf text;
    size_t k;
    json_t *part;
    buf_init(&text, MAX_PROMPT_BYTES);
    json_array_foreach(parts, k, part) {
        if (k) buf_text(&text, "\n");
        const json_t *t = json_object_get(part, "text");
        buf_append(&text, json_string_value(t), json_string_length(t));
    }
    json_t *joined = text.failed ? NULL : json_stringn(text.data ? text.data : "", text.len);
    buf_free(&text);
    if (!joined || json_object_set_new(message, "content", joined)) {
        return error_set(err, ERR_NOMEM, "no memory for messages[%zu]", i);
    }
    return OK;
}

static Status check_parts(Server *s, json_t *message, size_t i, json_t *parts, Error *err)
{
    size_t k;
    json_t *part;
    json_array_foreach(parts, k, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!type) return bad_content(i, "has a part without a type", err);
        if (strcmp(type, "text") != 0) {
            return error_set_param(err, ERR_UNSUPPORTED, "messages", "messages[%zu].content has a part of type \"%.32s\"; this model reads text only",
                                   i, type);
        }
        if (!json_is_string(json_object_get(part, "text"))) return bad_content(i, "has a text part without a text", err);
    }
    return s->template_takes_parts ? OK : join_parts(message, i, parts, err);
}

/* The API carries the arguments of a call as a string that holds JSON; templates want the object itself. A string that is
 * none stays as it is: some model once wrote it, and the template may still show it. */
static void open_arguments(json_t *call)
{
    json_t *function = json_object_get(call, "function"), *arguments = json_object_get(function, "arguments"), *object = NULL;
    if (!json_is_string(arguments)) return;
    size_t n = json_string_length(arguments);
    if (n == 0) object = json_object();
    else json_parse(&object, json_string_value(arguments), n, "arguments", NULL);
    if (json_is_object(object)) json_object_set(function, "arguments", object);
    json_decref(object);
}

static Status prepare_message(Server *s, json_t *message, size_t i, Error *err)
{
    if (!json_is_object(message)) return error_set_param(err, ERR_INPUT, "messages", "messages[%zu] must be an object", i);
    const char *role = json_string_value(json_object_get(message, "role"));
    if (!role) return error_set_param(err, ERR_INPUT, "messages", "messages[%zu].role must be a string", i);
    bool may_be_empty = strcmp(role, "assistant") == 0, is_developer = strcmp(role, "developer") == 0;
    /* OpenAI's newer name for the same; no template of the models here knows it. role itself is gone then. */
    if (is_developer && json_object_set_new(message, "role", json_string("system"))) {
        return error_set(err, ERR_NOMEM, "no memory for messages[%zu]", i);
    }

    json_t *calls = json_object_get(message, "tool_calls"), *content = json_object_get(message, "content"), *call;
    size_t k;
    if (calls && !json_is_null(calls) && !json_is_array(calls)) {
        return error_set_param(err, ERR_INPUT, "messages", "messages[%zu].tool_calls must be an array", i);
    }
    json_array_foreach(calls, k, call) open_arguments(call);
    if (json_is_array(content)) return check_parts(s, message, i, content, err);
    if (json_is_string(content) || (may_be_empty && (!content || json_is_null(content)))) return OK;
    return bad_content(i, "must be a string or an array of parts", err);
}

static Status prepare_messages(Server *s, json_t *body, json_t **messages, Error *err)
{
    Status status = json_get_array(body, "messages", messages, err);
    if (status) return status;
    if (json_array_size(*messages) == 0) {
        return error_set_param(err, ERR_INPUT, "messages", "messages must be an array with at least one message");
    }
    size_t i;
    json_t *message;
    json_array_foreach(*messages, i, message) {
        status = prepare_message(s, message, i, err);
        if (status) return status;
    }
    return OK;
}

/* ---- tools ---- */

static Status read_tools(const json_t *body, json_t **tools, Error *err)
{
    const json_t *choice = json_object_get(body, "tool_choice");
    Status status = json_get_array(body, "tools", tools, err);
    if (status) return status;
    for (size_t i = 0; i < json_array_size(*tools); i++) {
        const json_t *function = json_object_get(json_array_get(*tools, i), "function");
        if (json_is_string(json_object_get(function, "name"))) continue;
        return error_set_param(err, ERR_INPUT, "tools", "tools[%zu] must be {\"type\": \"function\", \"function\": {\"name\": ...}}", i);
    }
    if (json_array_size(*tools) == 0) *tools = NULL; /* undefined to the template */
    if (!choice || json_is_null(choice)) return OK;
    const char *name = json_string_value(choice);
    if (name && strcmp(name, "none") == 0) *tools = NULL;
    else if (!name || strcmp(name, "auto") != 0) {
        return error_set_param(err, ERR_UNSUPPORTED, "tool_choice", "tool_choice can be \"auto\" or \"none\"; a call cannot be forced");
    }
    return OK;
}

/* ---- template ---- */

/* The server's defaults with the request's own on top; owned, NULL when there are none. */
static Status merge_kwargs(const Server *s, const json_t *body, json_t **kwargs, Error *err)
{
    json_t *own = NULL;
    Status status = json_get_object(body, "chat_template_kwargs", &own, err);
    *kwargs = NULL;
    if (status || (!own && !s->chat_template_kwargs)) return status;
    *kwargs = s->chat_template_kwargs ? json_copy(s->chat_template_kwargs) : json_object();
    if (!*kwargs || (own && json_object_update(*kwargs, own))) return error_set(err, ERR_NOMEM, "no memory for chat_template_kwargs");
    return OK;
}

Status api_render(Server *s, json_t *body, Buf *out, Error *err)
{
    json_t *messages = NULL, *tools = NULL, *kwargs = NULL;
    bool add_generation_prompt = true;
    Status status = prepare_messages(s, body, &messages, err);
    if (!status && !s->stack.chat_template) {
        status = error_set(err, ERR_UNSUPPORTED, "this model has no chat template; use /v1/completions, or start with --chat-template");
    }
    if (!status) status = read_tools(body, &tools, err);
    if (!status) status = merge_kwargs(s, body, &kwargs, err);
    if (!status) status = json_get_bool(body, "add_generation_prompt", &add_generation_prompt, err);
    if (!status) {
        ChatInput in = { .messages = messages, .tools = tools, .kwargs = kwargs, .add_generation_prompt = add_generation_prompt };
        Error e = { .status = OK };
        status = chat_template_render(s->stack.chat_template, &in, out, &e);
        if (status) error_set_param(err, status, e.param[0] ? e.param : "messages", "%s", e.text);
    }
    json_decref(kwargs);
    return status;
}

bool api_template_takes_parts(const ChatTemplate *t)
{
    static const char probe[] = "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"one-\"}, {\"type\": \"text\", \"text\": \"two\"}]}]";
    json_t *messages;
    Buf out;
    if (!t || json_parse(&messages, probe, sizeof probe - 1, "probe", NULL)) return false;
    buf_init(&out, 1 << 20);
    ChatInput in = { .messages = messages };
    bool takes = chat_template_render(t, &in, &out, NULL) == OK && out.data && strstr(out.data, "one-two");
    buf_free(&out);
    json_decref(messages);
    return takes;
}

/* ---- the answer ---- */

static void write_end(const JobPiece *piece, Buf *out)
{
    if (piece->finish) buf_printf(out, ",\"finish_reason\":\"%s\"}", piece->finish);
    else buf_text(out, ",\"finish_reason\":null}");
}

static void write_message(Job *j, JobChoice *c, const JobPiece *piece, Buf *out)
{
    buf_printf(out, "{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":", c->index);
    buf_json_string(out, piece->text.data, piece->text.len);
    buf_text(out, ",\"refusal\":null},\"logprobs\":");
    logprobs_chat(j, c, piece, out);
    write_end(piece, out);
}

static void write_delta(Job *j, JobChoice *c, const JobPiece *piece, Buf *out)
{
    buf_printf(out, "{\"index\":%d,\"delta\":{", c->index);
    if (piece->is_first) buf_text(out, "\"role\":\"assistant\",");
    if (!piece->finish) {
        buf_text(out, "\"content\":");
        buf_json_string(out, piece->text.data, piece->text.len);
    }
    buf_text(out, "},\"logprobs\":");
    logprobs_chat(j, c, piece, out);
    write_end(piece, out);
}

static const JobFormat chat_format = {
    .id_prefix = "chatcmpl", .object = "chat.completion", .chunk_object = "chat.completion.chunk", .sends_role = true,
    .whole = write_message, .delta = write_delta,
};

/* ---- the request ---- */

static Status read_logprobs(Job *j, const json_t *body, Error *err)
{
    bool wanted = false;
    int64_t n_top = 0;
    Status s = json_get_bool(body, "logprobs", &wanted, err);
    if (!s) s = json_get_int(body, "top_logprobs", 0, MAX_TOP_LOGPROBS, &n_top, err);
    if (!s && n_top > 0 && !wanted) {
        s = error_set_param(err, ERR_INPUT, "top_logprobs", "top_logprobs needs \"logprobs\": true");
    }
    if (wanted) j->fields.g.params.n_logprobs = (int32_t)n_top;
    return s;
}

static Status read_prompt(Job *j, json_t *body, int worker, Error *err)
{
    Buf text;
    buf_init(&text, MAX_PROMPT_BYTES);
    Status s = job_set_prompts(j, 1, err);
    if (!s) s = api_render(j->server, body, &text, err);
    if (!s) {
        s = api_encode(j->server, j->x, worker, "messages", text.data ? text.data : "", text.len, &j->prompts[0].ids,
                       &j->prompts[0].n_ids, err);
    }
    buf_free(&text);
    return s;
}

static Status check_max_tokens(const Job *j, Error *err)
{
    if (!j->fields.has_max_tokens || j->fields.g.max_tokens > 0) return OK;
    return error_set_param(err, ERR_INPUT, "max_tokens", "max_tokens must be at least 1, got 0");
}

static Status refuse_echo(const json_t *body, Error *err)
{
    bool echo = false;
    Status s = json_get_bool(body, "echo", &echo, err);
    if (s || !echo) return s;
    return error_set_param(err, ERR_UNSUPPORTED, "echo", "echo is not supported in chats, only in /v1/completions");
}

bool api_chat_start(Server *s, Exchange *x, int worker)
{
    Error err = { .status = OK };
    json_t *body;
    Job *j = NULL;
    Status status = api_body(s, x, &body, &err);
    if (!status) status = job_open(&j, s, x, &chat_format, body, &err);
    if (!status) status = refuse_echo(body, &err);
    if (!status) status = read_logprobs(j, body, &err);
    if (!status) status = check_max_tokens(j, &err);
    if (!status) status = read_prompt(j, body, worker, &err);
    json_decref(body);
    if (!status) status = job_start(j, &err);
    if (!status) return job_follow(j);
    job_close(j);
    return api_fail(s, x, &err);
}
