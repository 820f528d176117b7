/* Chat templates: the Jinja subset that published Qwen, SmolLM2 and Llama templates use, bounded in steps, depth and
 * output. Environment and features: docs/spec/models.md section 7. A template is untrusted input.
 * Read-only after open; rendering from any thread. */
#pragma once

#include "base/buf.h"
#include "base/json.h"

typedef struct ChatTemplate ChatTemplate;

/* From dir: chat_template.jinja, else chat_template of tokenizer_config.json; or from the .gguf file that dir is. ERR_NOT_FOUND when the model has none. */
Status chat_template_open(ChatTemplate **out, const char *dir, Error *err);
Status chat_template_parse(ChatTemplate **out, const char *source, size_t n, Error *err);
void   chat_template_close(ChatTemplate *t);
/* bos_token, eos_token ...; before the first render. */
void   chat_template_set_token(ChatTemplate *t, const char *name, const char *text);

typedef struct ChatInput {
    const json_t *messages;              /* array; content may be string, null or list of parts */
    const json_t *tools;                 /* array or NULL (None, as the original passes it) */
    const json_t *kwargs;                /* object: chat_template_kwargs, or NULL */
    bool          add_generation_prompt;
} ChatInput;

/* Appends the prompt text to out. raise_exception and missing attributes: ERR_INPUT with the template's message;
 * limits: ERR_INPUT "the chat template ran over its limit of ...". */
Status chat_template_render(const ChatTemplate *t, const ChatInput *in, Buf *out, Error *err);
