/* POST /tokenize and /detokenize, in vLLM's shapes. */
#include "server/api.h"

#include "base/memory.h"

#include <inttypes.h>

enum { MAX_TEXT_BYTES = 64 << 20 };

/* prompt, or what the chat template makes of messages. */
static Status read_text(Server *s, json_t *body, Buf *text, Error *err)
{
    const char *prompt = NULL;
    if (json_has(body, "messages")) return api_render(s, body, text, err);
    Status status = json_get_string(body, "prompt", &prompt, err);
    if (!status && !prompt) status = error_set_param(err, ERR_INPUT, "prompt", "prompt is missing (or messages)");
    if (!status) buf_append(text, prompt, json_string_length(json_object_get(body, "prompt")));
    if (!status && text->failed) status = error_set(err, ERR_NOMEM, "no memory for the prompt");
    return status;
}

static Status encode(Server *s, int worker, const Buf *text, int32_t **ids, int64_t *n, Error *err)
{
    int64_t capacity = 0;
    Status status = OK;
    if (!s->scratch[worker]) status = tokenizer_scratch_open(&s->scratch[worker], s->stack.tokenizer, err);
    if (status) return status;
    /* More than the context is a fair question here. */
    return tokenizer_encode(s->stack.tokenizer, s->scratch[worker], text->data ? text->data : "", text->len, false, INT32_MAX,
                            ids, n, &capacity, err);
}

static void write_ids(const Server *s, const int32_t *ids, int64_t n, bool with_strings, Buf *out)
{
    bool special;
    buf_printf(out, "{\"count\":%" PRId64 ",\"max_model_len\":%d,\"tokens\":[", n, s->stack.max_model_len);
    for (int64_t i = 0; i < n; i++) buf_printf(out, i ? ",%d" : "%d", ids[i]);
    buf_text(out, with_strings ? "],\"token_strs\":[" : "],\"token_strs\":null}");
    if (!with_strings) return;
    for (int64_t i = 0; i < n; i++) {
        Str bytes = tokenizer_token_bytes(s->stack.tokenizer, ids[i], &special);
        if (i) buf_text(out, ",");
        buf_json_string(out, bytes.data, bytes.len);
    }
    buf_text(out, "]}");
}

bool api_tokenize_start(Server *s, Exchange *x, int worker)
{
    Error err = { .status = OK };
    Buf text, out;
    json_t *body;
    int32_t *ids = NULL;
    int64_t n = 0;
    bool with_strings = false;
    buf_init(&text, MAX_TEXT_BYTES);
    buf_init(&out, MAX_REPLY_BYTES);
    Status status = api_body(s, x, &body, &err);
    if (!status) status = json_get_bool(body, "return_token_strs", &with_strings, &err);
    if (!status) status = read_text(s, body, &text, &err);
    if (!status) status = encode(s, worker, &text, &ids, &n, &err);
    if (!status) write_ids(s, ids, n, with_strings, &out);
    json_decref(body);
    buf_free(&text);
    mem_free(ids);
    return status ? api_fail(s, x, &err) : api_reply(s, x, &out);
}

static Status read_tokens(Server *s, const json_t *body, Buf *text, Error *err)
{
    json_t *tokens = NULL;
    Detokenizer d;
    Status status = json_get_array(body, "tokens", &tokens, err);
    if (!status && !tokens) status = error_set_param(err, ERR_INPUT, "tokens", "tokens is missing");
    detokenizer_init(&d, s->stack.tokenizer, false);
    for (size_t i = 0; i < json_array_size(tokens) && !status; i++) {
        const json_t *id = json_array_get(tokens, i);
        int64_t v = json_is_integer(id) ? json_integer_value(id) : -1;
        if (v >= 0 && v < s->stack.config.vocab_size) detokenizer_push(&d, (int32_t)v, text);
        else status = error_set_param(err, ERR_INPUT, "tokens", "tokens[%zu] is no token id; ids run from 0 to %d", i, s->stack.config.vocab_size - 1);
    }
    if (!status) detokenizer_end(&d, text);
    if (!status && text->failed) status = error_set(err, ERR_NOMEM, "no memory for the text");
    return status;
}

bool api_detokenize_start(Server *s, Exchange *x, int worker)
{
    Error err = { .status = OK };
    Buf text, out;
    json_t *body;
    buf_init(&text, MAX_TEXT_BYTES);
    buf_init(&out, MAX_REPLY_BYTES);
    Status status = api_body(s, x, &body, &err);
    if (!status) status = read_tokens(s, body, &text, &err);
    if (!status) {
        buf_text(&out, "{\"prompt\":");
        buf_json_string(&out, text.data, text.len);
        buf_text(&out, "}");
    }
    json_decref(body);
    buf_free(&text);
    return status ? api_fail(s, x, &err) : api_reply(s, x, &out);
}
