/* One generation: from the parsed fields to the last byte of the answer. Owned by an Exchange (x->job) and touched only
 * during its turns.
 *
 * A job has one or more prompts, each with n choices; choice k of prompt p has the index p * n + k in the answer. Each
 * prompt is one Request of the engine, submitted when the queue has room: a long list is worked off in order. */
#pragma once

#include "base/arena.h"
#include "server/fields.h"

enum { JOB_MAX_PROMPTS = 1024, JOB_MAX_CHOICES = 2048, JOB_ID_BYTES = 48 };

typedef struct Job Job;

typedef struct JobPrompt {
    int32_t *ids;       /* owned, mem_free */
    int32_t  n_ids;
    Str      text;      /* echoed before the answer; in the arena; empty without echo */
    Request *request;   /* NULL until submitted */
} JobPrompt;

typedef struct JobChoice {
    JobPrompt   *prompt;
    int32_t      choice;      /* of the prompt's request */
    int32_t      index;       /* in the answer */
    Answer       answer;
    int32_t      n_tokens;    /* tokens taken from the request: what usage counts */
    FinishReason finish;      /* FINISH_STOP or FINISH_LENGTH once no more tokens are taken */
    /* streaming: what has been sent */
    bool         has_begun, is_sent;
    size_t       n_sent_bytes;
    int32_t      n_sent_tokens;
    size_t       n_chars;     /* characters before the next token, for text_offset */
} JobChoice;

/* A piece of a choice's answer: the whole, or what a stream sends next. */
typedef struct JobPiece {
    Str         text;
    int32_t     first, n;     /* tokens that came with it */
    bool        is_first;     /* nothing of the choice was written before: echo, role */
    const char *finish;       /* "stop", "length", or NULL while it runs */
} JobPiece;

/* How an endpoint writes its choices; each appends one entry of "choices". */
typedef struct JobFormat {
    const char *id_prefix, *object, *chunk_object;
    bool        sends_role; /* a stream begins with a piece without text */
    void      (*whole)(Job *j, JobChoice *c, const JobPiece *piece, Buf *out);
    void      (*delta)(Job *j, JobChoice *c, const JobPiece *piece, Buf *out);
} JobFormat;

struct Job {
    Server          *server;
    Exchange        *x;
    const JobFormat *format;
    Arena            arena;       /* texts, stop strings, bias */
    Fields           fields;
    bool             drops_output; /* max_tokens 0 with echo: the one token that the engine makes is not shown */
    bool             echo;
    char             id[JOB_ID_BYTES];
    int64_t          created;
    int              n_prompts, n_submitted, n_choices;
    JobPrompt       *prompts;     /* [n_prompts] */
    JobChoice       *choices;     /* [n_prompts * n] */
    Buf              out;         /* the chunk being written */
};

/* A job without prompts, reading the fields that all share. */
Status job_open(Job **out, Server *s, Exchange *x, const JobFormat *format, const json_t *body, Error *err);
void   job_close(Job *j); /* cancels what still runs. Copes with NULL */
/* Room for n prompts, to be filled by the caller. */
Status job_set_prompts(Job *j, int n, Error *err);

/* Checks the lengths, submits, begins the stream. Then the job belongs to the exchange. On failure the caller closes it. */
Status job_start(Job *j, Error *err);
/* A turn: sends on what has come. True: the exchange is over, and the job is closed. */
bool   job_follow(Job *j);

/* For formats. */
const TokenLogprob *job_logprobs(const JobChoice *c);
const int32_t      *job_tokens(const JobChoice *c);
