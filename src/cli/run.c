/* tandem run: one completion to standard output, or with --json one object about it. */
#include "cli/session.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/sha256.h"
#include "server/timings.h"

#include <stdio.h>
#include <unistd.h>

static void print_piece(void *ctx, const char *text, size_t n)
{
    fwrite(text, 1, n, stdout);
    fflush(stdout);
}

static void keep_piece(void *ctx, const char *text, size_t n)
{
    buf_append(ctx, text, n);
}

static const char *finish_name(FinishReason f)
{
    return f == FINISH_STOP ? "stop" : f == FINISH_LENGTH ? "length" : "cancelled";
}

static void print_json(const SessionResult *r, const Engine *e, const Buf *text, double load_ms, uint64_t seed)
{
    Buf b;
    char sha[17];
    token_sha(r->tokens, r->n_tokens, sha);
    buf_init(&b, SIZE_MAX);
    buf_text(&b, "{\"text\": ");
    buf_json_string(&b, text->data, text->len);
    buf_text(&b, ", \"token_ids\": [");
    for (int i = 0; i < r->n_tokens; i++) buf_printf(&b, "%s%d", i ? ", " : "", r->tokens[i]);
    double seconds = r->timings.decode_ms / 1e3;
    buf_printf(&b,
               "], \"token_sha\": \"%s\", \"prompt_tokens\": %d, \"completion_tokens\": %d, \"finish_reason\": \"%s\", "
               "\"seed\": %llu, \"timings\": {\"load_ms\": %.3f, \"prefill_ms\": %.3f, \"decode_ms\": %.3f, \"steps\": %lld, "
               "\"draft_tokens\": %lld, \"accepted_tokens\": %lld, \"tokens_per_s\": %.2f, \"methods\": ",
               sha, r->n_prompt, r->n_tokens, finish_name(r->finish), (unsigned long long)seed, load_ms,
               r->timings.prefill_ms, r->timings.decode_ms, (long long)r->timings.steps,
               (long long)r->timings.draft_tokens, (long long)r->timings.accepted_tokens,
               seconds > 0 ? (r->n_tokens - 1) / seconds : 0.0);
    timings_write_methods(&r->timings, e, &b);
    buf_text(&b, "}}\n");
    fwrite(b.data, 1, b.len, stdout);
    buf_free(&b);
}

static Status answer(const Options *o, Stack *s, double load_ms, Error *err)
{
    Buf text, prompt;
    SessionResult result = { 0 };
    SessionAsk ask = { .max_tokens = (int32_t)o->n_tokens, .seed = command_seed(o), .ignore_eos = o->ignore_eos,
                       .piece = o->json ? keep_piece : print_piece, .ctx = &text };
    buf_init(&text, SIZE_MAX);
    buf_init(&prompt, SIZE_MAX);
    Status status = command_sample_params(o, s, &ask.params, err);
    if (!status && o->chat) status = command_render(s, o->system, o->prompt, &prompt, err);
    if (!status && !o->chat) buf_text(&prompt, o->prompt);
    ask.prompt = prompt.data ? prompt.data : "";
    if (!status) status = session_answer(s, &ask, &result, err);
    if (!status && o->json) print_json(&result, s->engine, &text, load_ms, ask.seed);
    if (!status && !o->json) putchar('\n');
    if (!status && result.finish == FINISH_CANCELLED)
        status = error_set(err, ERR_CANCELLED, "interrupted after %d tokens", result.n_tokens);
    mem_free(result.tokens);
    buf_free(&prompt);
    buf_free(&text);
    return status;
}

Status command_run(const Options *o, Error *err)
{
    if (!o->prompt) return error_set(err, ERR_USAGE, "which text? tandem run MODEL -p TEXT");
    StackOptions options;
    Stack stack;
    double start = clock_ms();
    Status s = command_stack_options(o, &options, err);
    options.max_num_seqs = 1;
    if (!s) s = session_open(&stack, &options, err);
    if (s) return s;
    command_catch_interrupt();
    s = answer(o, &stack, clock_ms() - start, err);
    stack_close(&stack);
    return s;
}
