/* One answer on the terminal: text in, pieces of text out as they come. What `run` and `chat` share.
 * The engine is stepped by the calling thread: nothing else runs in these commands. */
#pragma once

#include "cli/command.h"

typedef struct SessionResult {
    int32_t        n_prompt, n_tokens;
    int32_t       *tokens;               /* owned: mem_free */
    FinishReason   finish;
    RequestTimings timings;
    double         first_token_ms;       /* from session_answer() on */
} SessionResult;

typedef struct SessionAsk {
    const char  *prompt;                 /* as the tokenizer shall see it */
    int32_t      max_tokens;             /* 0 = what the context leaves */
    SampleParams params;
    uint64_t     seed;
    bool         ignore_eos;
    bool         no_speculation;
    const char  *draft_method;           /* a name of engine_methods(); NULL or "" = whichever pays */
    void       (*piece)(void *ctx, const char *text, size_t n); /* text as it becomes ready; may be NULL */
    void        *ctx;
} SessionAsk;

/* stack_open() with a progress bar on a terminal. */
Status session_open(Stack *s, const StackOptions *options, Error *err);

/* Ctrl-C (command_interrupted) ends the answer early with FINISH_CANCELLED: that is not an error. */
Status session_answer(Stack *s, const SessionAsk *ask, SessionResult *out, Error *err);
