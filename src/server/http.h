/* HTTP/1.1 on one loop thread that moves bytes and nothing else (libevent's evhttp).
 *
 *     client ──bytes──> loop ──HttpRequest──> hooks.request ──http_take()──> Exchange ──> front worker
 *     client <──bytes── loop <──mailbox + eventfd── exchange_reply, exchange_write
 *
 * Short answers are given inside hooks.request (http_answer); whatever parses a body becomes an Exchange (exchange.h). */
#pragma once

#include "base/buf.h"
#include "base/error.h"
#include "server/listen.h"

#include <stdint.h>

typedef struct Http Http;
typedef struct HttpRequest HttpRequest;
typedef struct Exchange Exchange;

typedef struct HttpLimits {
    int64_t max_body_bytes, max_held_bytes; /* of one body; of all bodies that are arriving or wait to be parsed */
    int32_t max_header_bytes, max_connections, max_requests;
    int32_t request_ms, idle_ms, stall_ms, keep_alive_ms;
} HttpLimits;

/* All on the loop thread; none may block. */
typedef struct HttpHooks {
    void (*request)(void *ctx, HttpRequest *r); /* must call http_answer() or http_take() */
    void (*submit)(void *ctx, Exchange *x);     /* a new exchange for a worker */
    void (*post)(void *ctx, Exchange *x);       /* its client left, or there is room again */
    void (*turn)(void *ctx);                    /* after http_wake(), and a few times a second */
    void *ctx;
} HttpHooks;

/* The listening socket is handed over, in failure too. */
Status http_open(Http **out, int listen_fd, const HttpLimits *limits, const HttpHooks *hooks, Error *err);
void   http_close(Http *h); /* after the loop thread has ended and no worker runs. Copes with NULL */
void   http_loop(Http *h);  /* the loop thread's life: until http_break() */
void   http_wake(Http *h);  /* hooks.turn soon. Any thread, async-signal-safe */

/* Loop thread (hooks). */
void http_stop_accepting(Http *h); /* closes the listening socket, asks clients to close their connections */
bool http_is_quiet(const Http *h); /* no exchange lives, no byte waits to be sent */
void http_each_exchange(Http *h, void (*fn)(void *ctx, Exchange *x), void *ctx);
void http_break(Http *h);
int  http_n_connections(const Http *h);
int  http_n_exchanges(const Http *h);

/* ---- one request, inside hooks.request ---- */

/* Its method: GET, POST ...; its path, not decoded, without the query. */
const char *http_method(const HttpRequest *r);
const char *http_path(const HttpRequest *r);
/* A header's value: NULL when absent. n_same: how often it came, may be NULL. */
const char *http_header(const HttpRequest *r, const char *name, int *n_same);
bool        http_is_version_1_1(const HttpRequest *r);
void        http_set_header(HttpRequest *r, const char *name, const char *value); /* of the answer */
/* content_type NULL: no body. */
void        http_answer(HttpRequest *r, int code, const char *content_type, const char *body, size_t n_body);
/* Makes an Exchange of it and submits that; false when the limits forbid one more: answer 429. route: see exchange.h. */
bool        http_take(HttpRequest *r, const void *route);
