/* The HTTP server: the OpenAI API in front of one Stack.
 *
 *     server_open ──> (answers at once; the stack loads in a thread of its own) ──> server_run ──> server_close
 *
 * Threads: one loop thread moves bytes, a few front workers parse, render, tokenise and follow running requests, one
 * thread loads the stack. Nothing here prints or exits; what a user should see comes back as an Error or is logged. */
#pragma once

#include "base/error.h"
#include "engine/stack.h"

enum { SERVER_MAX_NAMES = 16, SERVER_MAX_KEYS = 256 };

typedef struct ServerLimits { /* 0 = the default in brackets */
    int64_t max_body_bytes;    /* of one request: more is a 413 [8 MB] */
    int32_t max_header_bytes;  /* of one request: more is a 400 [32 KB] */
    int32_t max_connections;   /* more wait in the listen backlog [4096, at most what RLIMIT_NOFILE leaves] */
    int32_t max_requests;      /* being read, waiting or running: more is a 429 [512] */
    int32_t request_ms;        /* a request must have arrived this long after its first byte [60000] */
    int32_t idle_ms;           /* an open connection may be quiet between requests [75000] */
    int32_t stall_ms;          /* a client that reads too slowly is cut off after this long [60000] */
    int32_t grace_ms;          /* running requests may go on after server_stop() [10000] */
    int32_t keep_alive_ms;     /* a silent stream gets an SSE comment this often [15000] */
    int32_t n_workers;         /* front workers, 2 .. 16 [3] */
} ServerLimits;

/* All pointers are borrowed until server_close(), except where copied is said. */
typedef struct ServerOptions {
    const char        *host;          /* name or address to bind; NULL = "127.0.0.1" (copied) */
    int                port;          /* 0 = any free one, see server_port() */
    bool               no_auth;       /* --no-auth: without keys, bind more than loopback all the same */
    int                n_keys;        /* any of them opens every path; with none no key is asked for */
    const char *const *keys;          /* each 1 .. 255 bytes, already read from file or environment (copied, hashed) */
    int                n_names;       /* served model names; 0 = the stack's served_name */
    const char *const *names;         /* the first is the one that answers carry (copied) */
    int                n_origins;     /* CORS: origins of web pages that may call us, "*" = all; 0 = only our own */
    const char *const *origins;
    const json_t      *chat_template_kwargs; /* defaults of every request, an object; NULL = none */
    uint64_t           seed;          /* has_seed: of requests that bring none, else each gets a random one */
    bool               has_seed;
    StackOptions       stack;         /* start_thread is set by the server */
    ServerLimits       limits;
} ServerOptions;

typedef struct Server Server;

/* Binds, starts answering (/health: 503 with progress) and begins to load the stack. options->stack.drafter is handed
 * over on success. ERR_IO: the address cannot be bound, in one sentence; ERR_USAGE: an address that is not loopback without a
 * key, bad keys, names or limits. */
Status server_open(Server **out, const ServerOptions *options, Error *err);

int         server_port(const Server *s); /* the bound one */
const char *server_name(const Server *s); /* the first served name; once it is ready */
const char *server_url(const Server *s);  /* "http://127.0.0.1:8000"; borrowed until server_close() */

const StackProgress *server_progress(const Server *s); /* how far loading is; borrowed until server_close() */

/* Blocks until the stack is loaded: OK, or why it could not be. Requests are answered from then on. Any thread. */
Status server_wait_ready(Server *s, Error *err);

/* Blocks until the server has stopped: OK after server_stop(), else what ended it (the stack could not be loaded; ERR_LOST).
 * server_wait_ready() first is not needed. One thread, once. */
Status server_run(Server *s, Error *err);

/* Async-signal-safe, any thread. First call: no new requests, running ones get limits.grace_ms to end. Second: they are
 * cancelled now. A stop while the stack loads takes effect when loading has ended. */
void server_stop(Server *s);

/* Stops at once if it still runs, joins the threads, closes the stack. Copes with NULL. */
void server_close(Server *s);
