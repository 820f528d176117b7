/* The face of the template interpreter: finds a model's template, prepares the names it sees, runs it.
 *
 * The environment is that of the published templates (docs/spec/models.md 7.1): messages, tools, documents (None when
 * absent, as the original passes them), add_generation_prompt, the special tokens, the request's own arguments, and a
 * few functions. What nobody gave is undefined. */
#include "text/chat_template.h"
#include "base/file.h"
#include "base/memory.h"
#include "tensor/gguf.h"
#include "text/jinja_eval_impl.h"
#include "text/tokenizer_impl.h"

#include <limits.h>

enum { MAX_TOKENS = 16, MAX_CONFIG_BYTES = 16 << 20 };

struct ChatTemplate {
    Template template;
    int n_tokens;
    struct TokenText {
        char *name, *text;
    } tokens[MAX_TOKENS];
};

/* ---- opening ---- */

Status chat_template_parse(ChatTemplate **out, const char *source, size_t n, Error *err)
{
    *out = NULL;
    ChatTemplate *t = mem_alloc(sizeof *t);
    if (!t) return error_set(err, ERR_NOMEM, "no memory for the chat template");
    arena_init(&t->template.arena, 64 << 10, MAX_TEMPLATE_MEMORY);
    Status status = template_parse(&t->template, source, n, err);
    if (status != OK) {
        chat_template_close(t);
        return status;
    }
    *out = t;
    return OK;
}

void chat_template_close(ChatTemplate *t)
{
    if (!t) return;
    for (int i = 0; i < t->n_tokens; i++) {
        mem_free(t->tokens[i].name);
        mem_free(t->tokens[i].text);
    }
    arena_free(&t->template.arena);
    mem_free(t);
}

/* The template in a configuration: a string, or a list of {name, template} of which "default" is meant. */
static const json_t *find_source(const json_t *config)
{
    const json_t *found = json_object_get(config, "chat_template");
    size_t i;
    json_t *entry;
    if (!json_is_array(found)) return found;
    json_array_foreach(found, i, entry) {
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name && strcmp(name, "default") == 0) return json_object_get(entry, "template");
    }
    return NULL;
}

static Status parse_config(ChatTemplate **out, const char *dir, const char *path, Error *err)
{
    json_t *config;
    Status status = json_parse_file(&config, path, MAX_CONFIG_BYTES, err);
    if (status != OK) return status;
    const json_t *source = find_source(config);
    if (json_is_string(source))
        status = chat_template_parse(out, json_string_value(source), json_string_length(source), err);
    else status = error_set(err, ERR_NOT_FOUND, "the model in %s has no chat template", dir);
    json_decref(config);
    return status;
}

Status chat_template_open(ChatTemplate **out, const char *dir, Error *err)
{
    char path[PATH_MAX], *source;
    size_t n;
    *out = NULL;
    Status status = path_join(path, sizeof path, dir, "chat_template.jinja", err);
    if (status != OK) return status;
    const bool is_gguf = gguf_is_path(dir);
    if (!is_gguf && !file_exists(path)) {
        status = path_join(path, sizeof path, dir, "tokenizer_config.json", err);
        if (status != OK) return status;
        if (!file_exists(path)) return error_set(err, ERR_NOT_FOUND, "the model in %s has no chat template", dir);
        return parse_config(out, dir, path, err);
    }
    status = is_gguf ? gguf_chat_template(&source, &n, dir, err)
                     : file_read(path, MAX_TEMPLATE_BYTES, &source, &n, err);
    if (status != OK) return status;
    status = chat_template_parse(out, source, n, err);
    mem_free(source);
    return status;
}

void chat_template_set_token(ChatTemplate *t, const char *name, const char *text)
{
    int i = 0;
    while (i < t->n_tokens && strcmp(t->tokens[i].name, name) != 0) i++;
    if (i == MAX_TOKENS) return;
    char *new_name = mem_strdup(name), *new_text = mem_strdup(text);
    if (!new_name || !new_text) { /* the token stays undefined, which templates print as nothing */
        mem_free(new_name);
        mem_free(new_text);
        return;
    }
    if (i < t->n_tokens) {
        mem_free(t->tokens[i].name);
        mem_free(t->tokens[i].text);
    }
    t->tokens[i] = (struct TokenText){ new_name, new_text };
    if (i == t->n_tokens) t->n_tokens++;
}

/* ---- rendering ---- */

/* Names that the template never mentions are not even converted. */
static void set_global(Interp *in, const char *name, const json_t *json)
{
    int symbol = template_symbol(in->t, str_of(name));
    if (symbol >= 0) in->globals[symbol] = value_from_json(in, json);
}

static void fill_globals(Interp *in, const ChatTemplate *t, const ChatInput *input)
{
    const char *key;
    json_t *value;
    for (int i = 0; i < in->t->n_names; i++) {
        const Builtin *function = function_find(in->t->names[i]);
        in->globals[i] = function ? (Value){ .type = V_FUNCTION, .function = function }
                                  : value_undefined(UNDEFINED_NAME, V_NONE, in->t->names[i]);
    }
    for (int i = 0; i < t->n_tokens; i++) {
        int symbol = template_symbol(in->t, str_of(t->tokens[i].name));
        if (symbol >= 0) in->globals[symbol] = value_str(str_of(t->tokens[i].text));
    }
    set_global(in, "documents", NULL);
    json_object_foreach((json_t *)input->kwargs, key, value) set_global(in, key, value);
    set_global(in, "messages", input->messages);
    set_global(in, "tools", input->tools);
    int symbol = template_symbol(in->t, STR("add_generation_prompt"));
    if (symbol >= 0) in->globals[symbol] = value_bool(input->add_generation_prompt);
}

static Status check_kwargs(const json_t *kwargs, Error *err)
{
    static const char *const reserved[] = { "messages", "tools", "add_generation_prompt" };
    for (int i = 0; i < COUNT(reserved); i++) {
        if (!json_object_get(kwargs, reserved[i])) continue;
        return error_set_param(err, ERR_INPUT, "chat_template_kwargs", "chat_template_kwargs cannot hold %s",
                               reserved[i]);
    }
    return OK;
}

static Status append_text(Buf *out, const Buf *text, Error *err)
{
    if (text->len > out->limit - out->len) {
        return error_set(err, ERR_INPUT, "the rendered conversation is longer than %zu bytes", out->limit - out->len);
    }
    buf_append(out, text->data, text->len);
    return out->failed ? error_set(err, ERR_NOMEM, "no memory for the rendered conversation") : OK;
}

Status chat_template_render(const ChatTemplate *t, const ChatInput *input, Buf *out, Error *err)
{
    Buf text;
    Status status = check_kwargs(input->kwargs, err);
    if (status != OK) return status;
    buf_init(&text, MAX_RENDER_BYTES);
    Interp in = { .t = &t->template, .out = &text, .err = err };
    arena_init(&in.arena, 64 << 10, MAX_RENDER_MEMORY);
    in.globals = interp_array(&in, Value, t->template.n_names);
    if (!in.failed) fill_globals(&in, t, input);
    if (!in.failed) exec_template(&in);
    if (!in.failed) status = append_text(out, &text, err);
    arena_free(&in.arena);
    buf_free(&text);
    return in.failed ? in.status : status;
}
