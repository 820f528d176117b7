/* Connections: what evhttp does not do about clients that are slow, silent, gone or too generous.
 *
 * evhttp owns each connection; a Conn stands beside it from accept to its close callback. evhttp tells us about a connection
 * only with its first whole request, too late for clients that never send one, so conn_new() (its bufferevent factory)
 * makes the Conn, and conn_adopt_new(), in the same turn of the loop, finds evhttp's handle as the argument of the
 * callbacks that it has set meanwhile.
 *
 * While a request is being answered evhttp stops reading, so that a client that leaves goes unseen. conn_begin_exchange()
 * turns reading back on without the parser, with a limit for what a client may push meanwhile. */
#include "server/http_impl.h"

#include "base/log.h"
#include "base/memory.h"

#include <string.h>

void http_watch_accepting(Http *h)
{
    bool want = h->n_conns < h->limits.max_connections && !h->accept_failed;
    if (want == h->is_accepting || !h->listener) return;
    h->is_accepting = want;
    if (want) evconnlistener_enable(h->listener);
    else evconnlistener_disable(h->listener);
}

static void conn_free(Conn *c)
{
    Http *h = c->http;
    if (c->prev) c->prev->next = c->next;
    else h->conns = c->next;
    if (c->next) c->next->prev = c->prev;
    h->n_input -= c->n_input;
    h->n_conns--;
    mem_free(c);
    http_watch_accepting(h);
}

/* Plays the end of file to evhttp, which owns the connection, soon and not now: we may be inside a callback of its
 * buffers. A real one, by shutdown(), would come behind all that the client has sent, and might never be read. */
void conn_cut(Conn *c, const char *why)
{
    if (c->is_cut) return;
    log_info("server", "cutting off a client that %s", why);
    c->is_cut = true;
    bufferevent_trigger_event(c->bev, BEV_EVENT_EOF | BEV_EVENT_READING, BEV_TRIG_DEFER_CALLBACKS);
}

/* Bytes came in or were parsed. Counted are those that came since the request began: for a body in chunks evhttp moves
 * them elsewhere before the request is whole. */
static void on_input(struct evbuffer *input, const struct evbuffer_cb_info *info, void *arg)
{
    Conn *c = arg;
    Http *h = c->http;
    if (info->n_added == 0) return;
    c->n_input += (int64_t)info->n_added;
    h->n_input += (int64_t)info->n_added;
    if (!c->exchange && c->partial_ms == 0) c->partial_ms = clock_ms();
    if (c->exchange && c->n_input > JUNK_BYTES) conn_cut(c, "sends more while it waits for its answer");
    if (h->n_input + atomic_load(&h->n_held) > h->limits.max_held_bytes) conn_cut(c, "sends more than there is room for");
}

/* The bytes of the last request are accounted for elsewhere now; what is in the buffer belongs to the next. */
static void conn_recount(Conn *c)
{
    int64_t rest = (int64_t)evbuffer_get_length(bufferevent_get_input(c->bev));
    c->http->n_input += rest - c->n_input;
    c->n_input = rest;
}

static void on_closed(struct evhttp_connection *evcon, void *arg)
{
    Conn *c = arg;
    Exchange *x = c->exchange;
    int fd = bufferevent_getfd(c->bev);
    if (fd >= 0 && fd < c->http->n_by_fd) c->http->by_fd[fd] = NULL;
    evbuffer_remove_cb(bufferevent_get_input(c->bev), on_input, c);
    conn_free(c);
    if (x) exchange_client_left(x);
}

struct bufferevent *conn_new(struct event_base *base, void *http)
{
    Http *h = http;
    struct bufferevent *bev = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
    Conn *c = bev ? mem_alloc(sizeof *c) : NULL;
    if (!c) return bev;
    bufferevent_incref(bev); /* so that it is still there when evhttp gives up before the adoption */
    *c = (Conn){ .http = h, .bev = bev, .next = h->conns };
    if (c->next) c->next->prev = c;
    h->conns = c;
    h->n_conns++;
    http_watch_accepting(h);
    event_active(h->adopt_event, EV_TIMEOUT, 1);
    return bev;
}

static bool put_by_fd(Http *h, int fd, Conn *c)
{
    if (fd >= h->n_by_fd) {
        int n = fd + 64;
        Conn **grown = mem_realloc(h->by_fd, (size_t)n * sizeof *grown);
        if (!grown) return false;
        memset(grown + h->n_by_fd, 0, (size_t)(n - h->n_by_fd) * sizeof *grown);
        h->by_fd = grown;
        h->n_by_fd = n;
    }
    h->by_fd[fd] = c;
    return true;
}

static void conn_adopt(Conn *c)
{
    bufferevent_event_cb on_event;
    void *evcon;
    struct bufferevent *bev = c->bev;
    bufferevent_getcb(bev, NULL, NULL, &on_event, &evcon);
    if (on_event && put_by_fd(c->http, bufferevent_getfd(bev), c)) {
        c->evcon = evcon;
        evhttp_connection_set_closecb(evcon, on_closed, c);
        evbuffer_add_cb(bufferevent_get_input(bev), on_input, c);
    } else {
        conn_free(c); /* evhttp had no memory for it, or we have none: its requests will find no Conn */
    }
    bufferevent_decref(bev);
}

/* New ones stand at the head of the list. */
void conn_adopt_new(Http *h)
{
    while (h->conns && !h->conns->evcon) {
        Conn *c = h->conns;
        while (c->next && !c->next->evcon) c = c->next;
        conn_adopt(c);
    }
}

Conn *conn_of(Http *h, struct evhttp_request *raw)
{
    struct evhttp_connection *evcon = evhttp_request_get_connection(raw);
    int fd = bufferevent_getfd(evhttp_connection_get_bufferevent(evcon));
    Conn *c = fd >= 0 && fd < h->n_by_fd ? h->by_fd[fd] : NULL;
    if (!c) return NULL;
    c->partial_ms = 0;
    conn_recount(c);
    return c;
}

void conn_begin_exchange(Conn *c, Exchange *x)
{
    bufferevent_data_cb on_write;
    bufferevent_event_cb on_event;
    void *arg;
    struct timeval stall = time_of(c->http->limits.stall_ms);
    c->exchange = x;
    bufferevent_getcb(c->bev, NULL, &on_write, &on_event, &arg);
    bufferevent_setcb(c->bev, NULL, on_write, on_event, arg);
    bufferevent_setwatermark(c->bev, EV_READ, 0, 2 * JUNK_BYTES);
    bufferevent_set_timeouts(c->bev, NULL, &stall); /* the read time-out would end a request that waits quietly */
    bufferevent_enable(c->bev, EV_READ);
}

void conn_end_exchange(Conn *c)
{
    struct timeval idle = time_of(c->http->limits.idle_ms), stall = time_of(c->http->limits.stall_ms);
    c->exchange = NULL;
    bufferevent_setwatermark(c->bev, EV_READ, 0, 0);
    bufferevent_setwatermark(c->bev, EV_WRITE, 0, 0);
    bufferevent_set_timeouts(c->bev, &idle, &stall);
    conn_recount(c);
    c->partial_ms = c->n_input > 0 ? clock_ms() : 0;
}

void conn_check_times(Http *h, double now)
{
    for (Conn *c = h->conns; c; c = c->next) {
        bool late = c->partial_ms > 0 && now - c->partial_ms > h->limits.request_ms;
        if (late && !c->exchange) conn_cut(c, "takes too long to send its request");
    }
}

size_t conn_unsent(const Conn *c)
{
    return evbuffer_get_length(bufferevent_get_output(c->bev));
}
