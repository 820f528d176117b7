/* One request being answered by the front workers, and the way of its answer to the loop thread.
 *
 * Exchanges are slots of a fixed array, so a late wake-up of one that ended touches valid memory and merely gives a turn
 * for nothing. A worker ends one by returning true from its turn, after exchange_reply() or the stream's last write; then
 * the loop thread sends what is left and frees the slot. */
#pragma once

#include "server/http.h"
#include "server/work.h"

#include <stdatomic.h>

struct evbuffer;
struct evhttp_request;
typedef struct Conn Conn;

enum {
    EXCHANGE_PENDING_BYTES = 64 << 10, /* formatted and not yet taken by the loop: a worker stops above */
    OUTPUT_HIGH_BYTES = 256 << 10,     /* in the connection's output buffer: the loop stops above ... */
    OUTPUT_LOW_BYTES = 64 << 10,       /* ... and goes on below */
    MAX_REPLY_BYTES = 256 << 20,
};

struct Exchange {
    Http    *http;
    WorkItem work;
    atomic_bool is_gone;      /* any thread: the client left, or reads too slowly; nothing it is sent arrives */
    atomic_bool is_cancelled; /* any thread: the server is stopping; end now and say so */
    atomic_bool wants_tick;   /* a worker sets it to get another turn within a quarter of a second */

    /* Worker, during its turn. */
    const void      *route;
    void            *job;      /* NULL before the first turn */
    const char      *error_code; /* OpenAI's `code` of a failure, when there is one beyond its HTTP status */
    struct evbuffer *body;     /* until exchange_body() */

    /* Mailbox: guarded by http's mutex. */
    Exchange   *next_mail;
    bool        is_mailed;
    bool        is_stream, is_last, wants_room;
    int         code;
    const char *content_type;  /* a constant */
    Buf         pending;

    /* Loop thread. */
    Exchange              *next_free;
    struct evhttp_request *request; /* NULL when the client left or the slot is free */
    Conn                  *conn;    /* NULL likewise */
    bool                   is_live, has_started;
    double                 blocked_ms; /* since when the output is above its high mark; 0 = it is not */
    double                 sent_ms;    /* when a byte was last handed to the connection */
    int64_t                held_bytes; /* of the body, counted in http's total; atomic there */
};

/* ---- workers, during a turn ---- */

/* The body as one piece of text (owned, mem_free); first turn only. ERR_NOMEM. */
Status exchange_body(Exchange *x, char **text, size_t *n, Error *err);
/* The body is parsed and freed: others may send theirs. */
void   exchange_release(Exchange *x);

/* The whole answer at once. body is handed over. */
void exchange_reply(Exchange *x, int code, const char *content_type, Buf *body);

void exchange_begin(Exchange *x);                               /* a stream of server-sent events begins */
bool exchange_write(Exchange *x, const char *bytes, size_t n);  /* false: no room for more; a turn comes when there is */
bool exchange_has_room(Exchange *x);                            /* the same question without writing */
bool exchange_has_begun(const Exchange *x);

/* ---- workers' loop (WorkHooks.over) ---- */
void exchange_over(Exchange *x); /* the worker is done with it */
