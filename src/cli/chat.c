/* tandem chat: the conversation so far through the template, the answer streamed, a line of input at a time.
 * Ctrl-C stops the answer; at the prompt it ends the chat, as does an empty input (Ctrl-D) or /exit. */
#include "cli/session.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct Chat {
    Stack       *stack;
    json_t      *messages;
    Buf          answer;
    SampleParams params;
} Chat;

static void show_piece(void *ctx, const char *text, size_t n)
{
    buf_append(&((Chat *)ctx)->answer, text, n);
    fwrite(text, 1, n, stdout);
    fflush(stdout);
}

static Status add_message(Chat *c, const char *role, const char *text, Error *err)
{
    json_t *message = json_pack("{s:s, s:s}", "role", role, "content", text);
    if (!message) return error_set(err, ERR_INPUT, "that line is not valid UTF-8");
    json_array_append_new(c->messages, message);
    return OK;
}

static Status turn(Chat *c, const Options *o, const char *line, Error *err)
{
    Buf prompt;
    SessionResult result = { 0 };
    buf_init(&prompt, SIZE_MAX);
    buf_clear(&c->answer);
    Status s = add_message(c, "user", line, err);
    if (s) return s;
    ChatInput in = { .messages = c->messages, .add_generation_prompt = true };
    s = chat_template_render(c->stack->chat_template, &in, &prompt, err);
    SessionAsk ask = { .prompt = prompt.data ? prompt.data : "", .max_tokens = (int32_t)o->n_tokens, .params = c->params,
                       .seed = command_seed(o), .piece = show_piece, .ctx = c };
    if (!s) s = session_answer(c->stack, &ask, &result, err);
    putchar('\n');
    if (!s) s = add_message(c, "assistant", c->answer.data ? c->answer.data : "", err);
    else json_array_remove(c->messages, json_array_size(c->messages) - 1); /* the next line is a fresh try */
    bool talks = isatty(STDOUT_FILENO);
    if (!s && talks && result.timings.decode_ms > 0)
        fprintf(stderr, "[%d tokens, %.0f tokens/s, %.2f a pass]\n", result.n_tokens,
                (result.n_tokens - 1) / (result.timings.decode_ms / 1e3), (double)(result.n_tokens - 1) / (double)result.timings.steps);
    mem_free(result.tokens);
    buf_free(&prompt);
    return s;
}

static Status talk(Chat *c, const Options *o, Error *err)
{
    char *line = NULL;
    size_t capacity = 0;
    bool talks = isatty(STDIN_FILENO);
    Status s = OK;
    while (!s) {
        command_clear_interrupt();
        if (talks) fputs("> ", stdout);
        fflush(stdout);
        ssize_t n = getline(&line, &capacity, stdin);
        if (n < 0 || command_interrupted() || !strcmp(line, "/exit\n")) break;
        if (n && line[n - 1] == '\n') line[n - 1] = 0;
        if (!*line) continue;
        s = turn(c, o, line, err);
        if (s == ERR_INPUT) { /* too long, a template that objects: say it and go on */
            fprintf(stderr, "tandem: %s\n", err->text);
            error_clear(err);
            s = OK;
        }
    }
    if (talks) putchar('\n');
    (free)(line); /* getline's own memory */
    return s;
}

Status command_chat(const Options *o, Error *err)
{
    StackOptions options;
    Stack stack;
    Status s = command_stack_options(o, &options, err);
    options.max_num_seqs = 1;
    if (!s) s = command_explain_plan(&options, stack_open(&stack, &options, NULL, err), err);
    if (s) return s;
    Chat chat = { .stack = &stack, .messages = json_array() };
    buf_init(&chat.answer, SIZE_MAX);
    if (!stack.chat_template) s = error_set(err, ERR_INPUT, "%s has no chat template; use tandem run", o->model);
    if (!s) s = command_sample_params(o, &stack, &chat.params, err);
    if (!s && o->system) s = add_message(&chat, "system", o->system, err);
    command_catch_interrupt();
    if (!s) s = talk(&chat, o, err);
    buf_free(&chat.answer);
    json_decref(chat.messages);
    stack_close(&stack);
    return s;
}
