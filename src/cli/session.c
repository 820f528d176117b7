/* See session.h: submit, step the engine, hand text on, until the request is done. */
#include "cli/session.h"

#include "base/clock.h"
#include "base/memory.h"
#include "cli/progress.h"

#include <stdio.h>
#include <string.h>

static Status encode(Stack *s, const char *text, int32_t **ids, int64_t *n, Error *err)
{
    TokenizerScratch *scratch = NULL;
    int64_t capacity = 0;
    Status status = tokenizer_scratch_open(&scratch, s->tokenizer, err);
    if (!status)
        status = tokenizer_encode(s->tokenizer, scratch, text, strlen(text), false, s->max_model_len, ids, n, &capacity, err);
    tokenizer_scratch_close(scratch);
    return status;
}

Status session_open(Stack *s, const StackOptions *options, Error *err)
{
    StackProgress progress = { .stage = NULL };
    Progress *bar = progress_begin(&progress);
    Status status = stack_open(s, options, &progress, err);
    progress_end(bar);
    return status;
}

static void hand_on(Answer *a, size_t *shown, const SessionAsk *ask)
{
    if (ask->piece && a->n_ready > *shown) ask->piece(ask->ctx, a->text.data + *shown, a->n_ready - *shown);
    *shown = a->n_ready;
}

static Status follow(Stack *s, Request *r, Answer *a, const SessionAsk *ask, double start, SessionResult *out, Error *err)
{
    size_t shown = 0;
    int32_t n = 0;
    bool asked_to_stop = false;
    while (!request_done(r)) {
        if (command_interrupted() && !asked_to_stop) {
            request_cancel(r);
            asked_to_stop = true;
        }
        engine_step(s->engine);
        for (int32_t count = request_count(r, 0); n < count; n++) {
            if (!n) out->first_token_ms = clock_ms() - start;
            answer_push(a, request_tokens(r, 0)[n]);
        }
        hand_on(a, &shown, ask);
    }
    answer_end(a);
    hand_on(a, &shown, ask);
    out->finish = request_finish(r, 0);
    return out->finish == FINISH_ERROR ? request_error(r, err) : OK;
}

static Status keep_tokens(const Request *r, SessionResult *out, Error *err)
{
    out->n_prompt = request_n_prompt(r);
    out->n_tokens = request_count(r, 0);
    out->timings = request_timings(r);
    out->tokens = mem_alloc_array((size_t)out->n_tokens + 1, sizeof *out->tokens);
    if (!out->tokens) return error_set(err, ERR_NOMEM, "no memory for %d tokens", out->n_tokens);
    memcpy(out->tokens, request_tokens(r, 0), (size_t)out->n_tokens * sizeof *out->tokens);
    return OK;
}

Status session_answer(Stack *s, const SessionAsk *ask, SessionResult *out, Error *err)
{
    *out = (SessionResult){ 0 };
    double start = clock_ms();
    int32_t *ids = NULL;
    int64_t n = 0;
    Answer answer;
    AnswerOptions options = { .tokenizer = s->tokenizer, .skip_special = true, .max_bytes = SIZE_MAX };
    Status status = answer_init(&answer, &options, err);
    if (!status) status = encode(s, ask->prompt, &ids, &n, err);
    if (!status && n == 0) status = error_set(err, ERR_INPUT, "the prompt is empty");
    GenerateRequest g = { .id = 1, .prompt = ids, .n_prompt = (int32_t)n, .n_choices = 1, .max_tokens = ask->max_tokens,
                          .params = ask->params, .seed = ask->seed, .ignore_eos = ask->ignore_eos,
                          .no_speculation = ask->no_speculation, .n_stop_ids = s->n_stop_ids };
    snprintf(g.draft_method, sizeof g.draft_method, "%s", ask->draft_method ? ask->draft_method : "");
    memcpy(g.stop_ids, s->stop_ids, sizeof s->stop_ids);
    Request *r = NULL;
    if (!status) status = engine_submit(s->engine, &g, NULL, NULL, &r, err);
    if (!status) status = follow(s, r, &answer, ask, start, out, err);
    if (!status) status = keep_tokens(r, out, err);
    if (r) request_close(r);
    answer_free(&answer);
    mem_free(ids);
    return status;
}
