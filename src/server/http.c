/* The loop thread: evhttp, the tick, the mailbox's eventfd.
 *
 * evhttp objects belong to this thread alone; everybody else leaves something in the mailbox and writes the eventfd, and
 * one wake drains all of it. Limits that evhttp knows (headers, bodies, idle time) are set here, those it does not know in
 * conn.c. Half-close counts as leaving: a client that shuts its sending side while it waits is gone. */
#include "server/http_impl.h"

#include "base/log.h"
#include "base/memory.h"

#include <event2/http_struct.h>
#include <event2/keyvalq_struct.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

void http_wake(Http *h)
{
    uint64_t one = 1;
    if (write(h->event_fd, &one, sizeof one) < 0) return; /* full: then a wake-up is pending anyway */
}

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    Http *h = arg;
    uint64_t count;
    if (read(h->event_fd, &count, sizeof count) < 0) return;
    exchange_drain_mail(h);
    h->hooks.turn(h->hooks.ctx);
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    Http *h = arg;
    double now = clock_ms();
    h->accept_failed = false;
    http_watch_accepting(h);
    conn_check_times(h, now);
    exchange_check_times(h, now);
    h->hooks.turn(h->hooks.ctx);
}

static void on_adopt(evutil_socket_t fd, short what, void *arg)
{
    conn_adopt_new(arg);
}

/* No descriptors left, most likely: listen again at the next tick, not in a busy loop. */
static void on_accept_error(struct evconnlistener *listener, void *arg)
{
    Http *h = arg;
    if (!h->accept_failed) log_warn("server", "cannot accept a connection: %s", strerror(EVUTIL_SOCKET_ERROR()));
    h->accept_failed = true;
    http_watch_accepting(h);
}

static void on_request(struct evhttp_request *raw, void *arg)
{
    Http *h = arg;
    HttpRequest r = { .http = h, .conn = conn_of(h, raw), .raw = raw };
    if (!r.conn) {
        evhttp_send_error(raw, 503, NULL); /* no memory when it connected */
        return;
    }
    h->hooks.request(h->hooks.ctx, &r);
    CHECK(!r.raw);
}

static void on_libevent_log(int severity, const char *text)
{
    log_debug("server", "libevent: %s", text);
}

static Status listener_open(Http *h, int fd, Error *err)
{
    h->listener = evconnlistener_new(h->base, NULL, NULL, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, fd);
    h->bound = h->listener ? evhttp_bind_listener(h->evhttp, h->listener) : NULL;
    if (!h->bound) {
        if (h->listener) evconnlistener_free(h->listener);
        else close(fd);
        h->listener = NULL;
        return error_set(err, ERR_NOMEM, "no memory for the listening socket");
    }
    evconnlistener_set_error_cb(h->listener, on_accept_error);
    h->is_accepting = true;
    return OK;
}

static Status events_open(Http *h, Error *err)
{
    struct timeval tick = time_of(TICK_MS);
    h->base = event_base_new();
    h->evhttp = h->base ? evhttp_new(h->base) : NULL;
    h->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (!h->evhttp || h->event_fd < 0) return error_set(err, ERR_NOMEM, "no memory or descriptors for the event loop");
    h->wake_event = event_new(h->base, h->event_fd, EV_READ | EV_PERSIST, on_wake, h);
    h->tick_event = event_new(h->base, -1, EV_PERSIST, on_tick, h);
    h->adopt_event = event_new(h->base, -1, 0, on_adopt, h);
    if (!h->wake_event || !h->tick_event || !h->adopt_event || event_add(h->wake_event, NULL) ||
        event_add(h->tick_event, &tick)) {
        return error_set(err, ERR_NOMEM, "no memory for the event loop");
    }
    return OK;
}

static void evhttp_configure(Http *h)
{
    struct timeval idle = time_of(h->limits.idle_ms);
    evhttp_set_timeout_tv(h->evhttp, &idle);
    evhttp_set_max_headers_size(h->evhttp, h->limits.max_header_bytes);
    evhttp_set_max_body_size(h->evhttp, h->limits.max_body_bytes);
    evhttp_set_flags(h->evhttp, EVHTTP_SERVER_LINGERING_CLOSE); /* or the 413 would be lost in a connection reset */
    evhttp_set_default_content_type(h->evhttp, NULL);
    /* All that evhttp can parse: the router's 405 is JSON and names what is allowed. */
    evhttp_set_allowed_methods(h->evhttp, EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_HEAD | EVHTTP_REQ_PUT |
                                              EVHTTP_REQ_DELETE | EVHTTP_REQ_OPTIONS | EVHTTP_REQ_TRACE |
                                              EVHTTP_REQ_CONNECT | EVHTTP_REQ_PATCH);
    evhttp_set_bevcb(h->evhttp, conn_new, h);
    evhttp_set_gencb(h->evhttp, on_request, h);
}

Status http_open(Http **out, int listen_fd, const HttpLimits *limits, const HttpHooks *hooks, Error *err)
{
    *out = NULL;
    Http *h = mem_alloc(sizeof *h);
    if (!h) {
        close(listen_fd);
        return error_set(err, ERR_NOMEM, "no memory for the HTTP server");
    }
    h->limits = *limits;
    h->hooks = *hooks;
    h->event_fd = -1;
    pthread_mutex_init(&h->mutex, NULL);
    signal(SIGPIPE, SIG_IGN);
    event_set_log_callback(on_libevent_log);

    Status s = events_open(h, err);
    if (!s) s = exchange_slots_open(h, err);
    if (s) {
        close(listen_fd);
        http_close(h);
        return s;
    }
    evhttp_configure(h);
    s = listener_open(h, listen_fd, err);
    if (s) {
        http_close(h);
        return s;
    }
    *out = h;
    return OK;
}

void http_close(Http *h)
{
    if (!h) return;
    if (h->evhttp) evhttp_free(h->evhttp); /* ends every connection, through its close callback */
    if (h->wake_event) event_free(h->wake_event);
    if (h->tick_event) event_free(h->tick_event);
    if (h->adopt_event) event_free(h->adopt_event);
    if (h->base) event_base_free(h->base);
    if (h->event_fd >= 0) close(h->event_fd);
    exchange_slots_close(h);
    mem_free(h->by_fd);
    pthread_mutex_destroy(&h->mutex);
    mem_free(h);
}

void http_loop(Http *h)
{
    event_base_loop(h->base, EVLOOP_NO_EXIT_ON_EMPTY);
}

void http_break(Http *h)
{
    event_base_loopbreak(h->base);
}

void http_stop_accepting(Http *h)
{
    if (h->has_stopped) return;
    h->has_stopped = true;
    evhttp_del_accept_socket(h->evhttp, h->bound);
    h->listener = NULL;
}

bool http_is_quiet(const Http *h)
{
    if (h->n_live > 0) return false;
    for (const Conn *c = h->conns; c; c = c->next) {
        if (c->evcon && conn_unsent(c) > 0) return false;
    }
    return true;
}

void http_each_exchange(Http *h, void (*fn)(void *ctx, Exchange *x), void *ctx)
{
    for (int i = 0; i < h->limits.max_requests; i++) {
        if (h->slots[i].is_live) fn(ctx, &h->slots[i]);
    }
}

int http_n_connections(const Http *h)
{
    return h->n_conns;
}

int http_n_exchanges(const Http *h)
{
    return h->n_live;
}

/* ---- one request ---- */

const char *http_method(const HttpRequest *r)
{
    switch (evhttp_request_get_command(r->raw)) {
    case EVHTTP_REQ_GET: return "GET";
    case EVHTTP_REQ_POST: return "POST";
    case EVHTTP_REQ_HEAD: return "HEAD";
    case EVHTTP_REQ_PUT: return "PUT";
    case EVHTTP_REQ_DELETE: return "DELETE";
    case EVHTTP_REQ_OPTIONS: return "OPTIONS";
    case EVHTTP_REQ_PATCH: return "PATCH";
    default: return "?";
    }
}

const char *http_path(const HttpRequest *r)
{
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(r->raw);
    const char *path = uri ? evhttp_uri_get_path(uri) : NULL;
    return path && *path ? path : "/";
}

const char *http_header(const HttpRequest *r, const char *name, int *n_same)
{
    struct evkeyvalq *headers = evhttp_request_get_input_headers(r->raw);
    const char *found = NULL;
    int n = 0;
    for (const struct evkeyval *kv = headers->tqh_first; kv; kv = kv->next.tqe_next) {
        if (evutil_ascii_strcasecmp(kv->key, name)) continue;
        if (!found) found = kv->value;
        n++;
    }
    if (n_same) *n_same = n;
    return found;
}

bool http_is_version_1_1(const HttpRequest *r)
{
    return r->raw->major > 1 || (r->raw->major == 1 && r->raw->minor >= 1);
}

void http_set_header(HttpRequest *r, const char *name, const char *value)
{
    evhttp_add_header(evhttp_request_get_output_headers(r->raw), name, value);
}

void http_answer(HttpRequest *r, int code, const char *content_type, const char *body, size_t n_body)
{
    struct evhttp_request *raw = r->raw;
    struct evbuffer *out = evbuffer_new();
    char length[24];
    r->raw = NULL;
    r->conn->partial_ms = r->conn->n_input > 0 ? clock_ms() : 0; /* part of a next request may be here already */
    struct evkeyvalq *headers = evhttp_request_get_output_headers(raw);
    if (content_type) evhttp_add_header(headers, "Content-Type", content_type);
    if (code == 429 || code == 503) evhttp_add_header(headers, "Retry-After", "1");
    if (r->http->has_stopped) evhttp_add_header(headers, "Connection", "close");
    if (evhttp_request_get_command(raw) == EVHTTP_REQ_HEAD) {
        snprintf(length, sizeof length, "%zu", n_body);
        evhttp_add_header(headers, "Content-Length", length);
    } else if (out && n_body) {
        evbuffer_add(out, body, n_body);
    }
    evhttp_send_reply(raw, code, code == 429 ? "Too Many Requests" : NULL, out);
    if (out) evbuffer_free(out);
}

bool http_take(HttpRequest *r, const void *route)
{
    Http *h = r->http;
    struct evbuffer *input = evhttp_request_get_input_buffer(r->raw);
    int64_t n = (int64_t)evbuffer_get_length(input);
    if (atomic_load(&h->n_held) + n > h->limits.max_held_bytes) return false;
    struct evbuffer *body = evbuffer_new();
    Exchange *x = body ? exchange_take(h) : NULL;
    if (!x || evbuffer_add_buffer(body, input)) {
        if (body) evbuffer_free(body);
        CHECK(!x); /* moving chains between buffers of our own cannot fail */
        return false;
    }
    x->route = route;
    x->body = body;
    x->held_bytes = n;
    atomic_fetch_add(&h->n_held, n);
    x->request = r->raw;
    x->conn = r->conn;
    r->raw = NULL;
    conn_begin_exchange(x->conn, x);
    h->hooks.submit(h->hooks.ctx, x);
    return true;
}
