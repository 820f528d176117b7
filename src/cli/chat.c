/* tandem chat: the conversation so far through the template, the answer streamed, an input at a time.
 *
 * Ctrl-C while an answer runs stops that answer and no more; what was said of it stays in the conversation. At the
 * prompt it throws away what was typed; with nothing typed, the second one in a row leaves. Remarks (rates, settings,
 * errors) go to stderr, so standard output holds answers alone. */
#include "cli/chat_impl.h"

#include "base/memory.h"
#include "cli/line_history.h"
#include "cli/terminal.h"

#include <stdio.h>

Status chat_add_message(Chat *c, const char *role, const char *text, Error *err)
{
    json_t *message = json_pack("{s:s, s:s}", "role", role, "content", text);
    if (!message) return error_set(err, ERR_INPUT, "that line is not valid UTF-8");
    json_array_append_new(c->messages, message);
    return OK;
}

static void drop_last_message(Chat *c)
{
    json_array_remove(c->messages, json_array_size(c->messages) - 1);
}

/* ---- an answer ---- */

static void write_shown(Chat *c)
{
    fwrite(c->shown.data, 1, c->shown.len, stdout);
    fflush(stdout);
    buf_clear(&c->shown);
}

static void show_piece(void *ctx, const char *text, size_t n)
{
    Chat *c = ctx;
    buf_append(&c->answer, text, n);
    if (c->is_terminal) markdown_push(&c->markdown, text, n, &c->shown);
    else buf_append(&c->shown, text, n);
    write_shown(c);
}

static void end_shown(Chat *c)
{
    if (c->is_terminal) markdown_end(&c->markdown, &c->shown);
    bool is_at_start = c->is_terminal && c->answer.len > 0 && c->answer.data[c->answer.len - 1] == '\n';
    if (!is_at_start) buf_text(&c->shown, "\n");
    write_shown(c);
}

static void name_methods(const Chat *c, const RequestTimings *t, Buf *out)
{
    int32_t n;
    const DraftMethod *methods = engine_methods(c->stack->engine, &n);
    const char *between = " by ";
    for (int32_t i = 0; i < n; i++) {
        if (t->drafts[i].rounds == 0) continue;
        buf_printf(out, "%s%s", between, methods[i].name);
        between = ", ";
    }
}

/* "[132 tokens, 45.1 tokens/s, 2.31 a round, 64 % of drafts accepted by mtp]"; rates without the first token, which the
 * prompt pays for. */
static void remark_rates(const Chat *c, const SessionResult *r)
{
    const RequestTimings *t = &r->timings;
    int n_later = r->n_tokens - 1;
    Buf b;
    if (!c->is_terminal || !isatty(STDERR_FILENO) || n_later < 1 || t->decode_ms <= 0 || t->steps < 1) return;
    buf_init(&b, 1024);
    buf_printf(&b, "[%d tokens, %.1f tokens/s, %.2f a round", r->n_tokens, n_later / (t->decode_ms / 1e3),
               (double)n_later / (double)t->steps);
    if (t->draft_tokens > 0) {
        buf_printf(&b, ", %.0f %% of drafts accepted", 100.0 * (double)t->accepted_tokens / (double)t->draft_tokens);
        name_methods(c, t, &b);
    }
    if (r->finish == FINISH_CANCELLED) buf_text(&b, ", stopped");
    if (r->finish == FINISH_LENGTH) buf_text(&b, ", cut at its limit");
    chat_remark("%s]", b.data);
    buf_free(&b);
}

static Status answer(Chat *c, const Options *o, SessionResult *result, Error *err)
{
    Buf prompt;
    ChatInput in = { .messages = c->messages, .add_generation_prompt = true };
    buf_init(&prompt, SIZE_MAX);
    Status s = chat_template_render(c->stack->chat_template, &in, &prompt, err);
    SessionAsk ask = { .prompt = prompt.data ? prompt.data : "", .max_tokens = (int32_t)o->n_tokens,
                       .params = c->params, .seed = command_seed(o), .no_speculation = c->no_speculation,
                       .draft_method = c->draft_method, .piece = show_piece, .ctx = c };
    if (!s) s = session_answer(c->stack, &ask, result, err);
    buf_free(&prompt);
    return s;
}

/* A turn that fails, or is stopped before its first word, leaves the conversation as it was. */
static Status turn(Chat *c, const Options *o, const char *text, Error *err)
{
    SessionResult result = { 0 };
    buf_clear(&c->answer);
    markdown_init(&c->markdown, terminal_has_colors(STDOUT_FILENO));
    Status s = chat_add_message(c, "user", text, err);
    if (s) return s;
    s = answer(c, o, &result, err);
    bool is_said = !s && c->answer.len > 0;
    if (c->answer.len > 0 || result.n_tokens > 0) end_shown(c);
    bool is_kept = is_said || (!s && result.finish != FINISH_CANCELLED);
    if (is_kept) s = chat_add_message(c, "assistant", c->answer.data ? c->answer.data : "", err);
    else drop_last_message(c);
    if (!s) remark_rates(c, &result);
    mem_free(result.tokens);
    return s;
}

/* ---- the prompt ---- */

static Status respond(Chat *c, const Options *o, const char *text, Error *err)
{
    if (text[0] == '/' && text[1] != '/') {
        chat_command(c, text);
        return OK;
    }
    Status s = turn(c, o, text[0] == '/' ? text + 1 : text, err);
    if (s != ERR_INPUT) return s;
    bool has_past = json_array_size(c->messages) > 1;
    /* Too long, a template that objects: say it and go on. */
    chat_remark("tandem: %s%s", err->text, has_past ? " (/clear begins a new conversation)" : "");
    error_clear(err);
    return OK;
}

static Status talk(Chat *c, const Options *o, LineReader *lines, Error *err)
{
    Buf text;
    bool was_interrupted = false;
    Status s = OK;
    buf_init(&text, SIZE_MAX);
    while (!s && !c->leaves) {
        LineEvent event = line_read(lines, "> ", &text);
        command_clear_interrupt();
        if (event == LINE_END || (event == LINE_INTERRUPT && was_interrupted && text.len == 0)) break;
        if (event == LINE_INTERRUPT) {
            if (c->is_terminal) putchar('\n');
            if (text.len == 0) chat_remark("once more leaves");
            was_interrupted = text.len == 0;
            continue;
        }
        if (text.len > 0) s = respond(c, o, text.data, err);
        was_interrupted = command_interrupted();
        command_clear_interrupt();
    }
    if (!c->leaves && isatty(STDIN_FILENO) && c->is_terminal) putchar('\n');
    buf_free(&text);
    return s;
}

static Status converse(Chat *c, const Options *o, Error *err)
{
    char history[4096];
    LineReader *lines = NULL;
    history_default_path(history, sizeof history);
    Status s = line_open(&lines, history[0] ? history : NULL, err);
    if (!s && isatty(STDIN_FILENO) && c->is_terminal)
        chat_remark("%s, context %d. /help lists the commands.", c->stack->served_name, c->stack->max_model_len);
    if (!s) s = talk(c, o, lines, err);
    line_close(lines);
    return s;
}

Status command_chat(const Options *o, Error *err)
{
    StackOptions options;
    Stack stack;
    Status s = command_stack_options(o, &options, err);
    options.max_num_seqs = 1;
    if (!s) s = command_explain_plan(&options, session_open(&stack, &options, err), err);
    if (s) return s;
    Chat chat = { .stack = &stack, .messages = json_array(), .is_terminal = isatty(STDOUT_FILENO) };
    buf_init(&chat.answer, SIZE_MAX);
    buf_init(&chat.shown, SIZE_MAX);
    if (!stack.chat_template) s = error_set(err, ERR_INPUT, "%s has no chat template; use tandem run", o->model);
    if (!s) s = command_sample_params(o, &stack, &chat.params, err);
    if (!s && o->system) s = chat_add_message(&chat, "system", o->system, err);
    command_catch_interrupt();
    if (!s) s = converse(&chat, o, err);
    buf_free(&chat.shown);
    buf_free(&chat.answer);
    json_decref(chat.messages);
    stack_close(&stack);
    return s;
}
