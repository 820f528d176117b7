/* What http.c, conn.c and exchange.c share. */
#pragma once

#include "base/clock.h"
#include "server/exchange.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/listener.h>
#include <pthread.h>

enum {
    TICK_MS = 250,
    JUNK_BYTES = 64 << 10, /* a client may send this much while its request is being answered; more cuts it off */
};

/* One connection. Loop thread. */
struct Conn {
    Http                     *http;
    Conn                     *prev, *next;
    struct bufferevent       *bev;
    struct evhttp_connection *evcon;      /* NULL until adopted */
    Exchange                 *exchange;   /* being answered on it, or NULL */
    double                    partial_ms; /* since when part of a request is here; 0 = none */
    int64_t                   n_input;    /* bytes in the input buffer */
    bool                      is_cut;     /* its end is on the way */
};

struct Http {
    HttpLimits limits;
    HttpHooks  hooks;
    int        event_fd;

    /* Loop thread. */
    struct event_base     *base;
    struct evhttp         *evhttp;
    struct evconnlistener *listener;        /* NULL once accepting has stopped */
    struct evhttp_bound_socket *bound;      /* evhttp's handle on it */
    struct event          *wake_event, *tick_event, *adopt_event;
    Conn                  *conns;           /* all of them */
    int                    n_conns, n_live;
    bool                   is_accepting, accept_failed, has_stopped;
    Conn                 **by_fd;           /* [n_by_fd] */
    int                    n_by_fd;
    Exchange              *slots, *free_slots;
    int64_t                n_input;         /* bytes in all input buffers */

    /* Any thread. */
    atomic_llong    n_held;  /* bytes of bodies that wait for a worker */
    pthread_mutex_t mutex;   /* the mailbox and what exchanges have in it */
    Exchange       *mail, **mail_tail;
};

struct HttpRequest {
    Http                  *http;
    Conn                  *conn;
    struct evhttp_request *raw;
};

static inline struct timeval time_of(int32_t ms)
{
    return (struct timeval){ .tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000 };
}

/* conn.c */
struct bufferevent *conn_new(struct event_base *base, void *http); /* evhttp's bevcb */
void conn_adopt_new(Http *h);                /* hears of their end from now on */
Conn *conn_of(Http *h, struct evhttp_request *raw);
void conn_begin_exchange(Conn *c, Exchange *x);
void conn_end_exchange(Conn *c);             /* before the last bytes are handed to evhttp */
void conn_cut(Conn *c, const char *why);
void conn_check_times(Http *h, double now);
size_t conn_unsent(const Conn *c);
void http_watch_accepting(Http *h);          /* pauses or resumes the listener */

/* exchange.c */
Status exchange_slots_open(Http *h, Error *err);
void exchange_slots_close(Http *h);
Exchange *exchange_take(Http *h);            /* NULL: all in use */
void exchange_client_left(Exchange *x);
void exchange_drain_mail(Http *h);
void exchange_check_times(Http *h, double now);
