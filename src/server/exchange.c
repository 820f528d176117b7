/* Exchanges: slots, the mailbox from workers to the loop thread, and how fast bytes may flow.
 *
 *     worker ──> pending (64 KB) ──mail──> output buffer of the connection (256 KB) ──> socket
 *
 * A full stage stops the one before it: tokens then wait in the engine's Request, which keeps them anyway. A client
 * that does not bring the output buffer from its high to its low mark within limits.stall_ms is cut off. */
#include "server/http_impl.h"

#include "base/memory.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

Status exchange_slots_open(Http *h, Error *err)
{
    int n = h->limits.max_requests;
    h->slots = mem_alloc_array((size_t)n, sizeof *h->slots);
    if (!h->slots) return error_set(err, ERR_NOMEM, "no memory for %d requests", n);
    for (int i = n - 1; i >= 0; i--) {
        Exchange *x = &h->slots[i];
        x->http = h;
        x->work = (WorkItem){ .owner = x };
        buf_init(&x->pending, MAX_REPLY_BYTES);
        x->next_free = h->free_slots;
        h->free_slots = x;
    }
    h->mail_tail = &h->mail;
    return OK;
}

static void slot_clear(Exchange *x)
{
    exchange_release(x);
    buf_free(&x->pending);
    x->route = x->job = NULL;
    x->content_type = x->error_code = NULL;
    x->is_stream = x->is_last = x->wants_room = x->has_started = false;
    x->blocked_ms = x->sent_ms = 0;
    x->code = 0;
    atomic_store(&x->is_gone, false);
    atomic_store(&x->is_cancelled, false);
    atomic_store(&x->wants_tick, false);
}

void exchange_slots_close(Http *h)
{
    for (int i = 0; h->slots && i < h->limits.max_requests; i++) slot_clear(&h->slots[i]);
    mem_free(h->slots);
    h->slots = NULL;
}

Exchange *exchange_take(Http *h)
{
    Exchange *x = h->free_slots;
    if (!x) return NULL;
    h->free_slots = x->next_free;
    h->n_live++;
    x->is_live = true;
    return x;
}

static void slot_give(Exchange *x)
{
    Http *h = x->http;
    slot_clear(x);
    x->is_live = false;
    x->next_free = h->free_slots;
    h->free_slots = x;
    h->n_live--;
}

/* ---- workers ---- */

Status exchange_body(Exchange *x, char **text, size_t *n, Error *err)
{
    *n = evbuffer_get_length(x->body);
    *text = mem_alloc(*n + 1);
    if (!*text) return error_set(err, ERR_NOMEM, "no memory for a request body of %zu bytes", *n);
    evbuffer_remove(x->body, *text, *n);
    return OK;
}

void exchange_release(Exchange *x)
{
    if (x->body) evbuffer_free(x->body);
    x->body = NULL;
    atomic_fetch_sub(&x->http->n_held, x->held_bytes);
    x->held_bytes = 0;
}

/* Mutex held. True: the loop must be woken. */
static bool mail(Exchange *x)
{
    Http *h = x->http;
    if (x->is_mailed) return false;
    bool was_empty = h->mail == NULL;
    x->is_mailed = true;
    x->next_mail = NULL;
    *h->mail_tail = x;
    h->mail_tail = &x->next_mail;
    return was_empty;
}

void exchange_reply(Exchange *x, int code, const char *content_type, Buf *body)
{
    pthread_mutex_lock(&x->http->mutex);
    buf_free(&x->pending);
    x->pending = *body;
    x->code = code;
    x->content_type = content_type;
    pthread_mutex_unlock(&x->http->mutex);
    *body = (Buf){ .limit = 0 };
}

void exchange_begin(Exchange *x)
{
    pthread_mutex_lock(&x->http->mutex);
    x->is_stream = true;
    bool wake = mail(x);
    pthread_mutex_unlock(&x->http->mutex);
    if (wake) http_wake(x->http);
}

bool exchange_has_begun(const Exchange *x)
{
    return x->is_stream; /* written by the worker alone */
}

bool exchange_write(Exchange *x, const char *bytes, size_t n)
{
    if (atomic_load(&x->is_gone)) return true;
    pthread_mutex_lock(&x->http->mutex);
    buf_append(&x->pending, bytes, n);
    bool has_room = x->pending.len < EXCHANGE_PENDING_BYTES;
    if (!has_room) x->wants_room = true;
    bool wake = mail(x);
    pthread_mutex_unlock(&x->http->mutex);
    if (wake) http_wake(x->http);
    return has_room;
}

bool exchange_has_room(Exchange *x)
{
    pthread_mutex_lock(&x->http->mutex);
    bool has_room = x->pending.len < EXCHANGE_PENDING_BYTES;
    if (!has_room) x->wants_room = true;
    pthread_mutex_unlock(&x->http->mutex);
    return has_room;
}

void exchange_over(Exchange *x)
{
    Http *h = x->http;
    pthread_mutex_lock(&h->mutex);
    x->is_last = true;
    bool wake = mail(x);
    pthread_mutex_unlock(&h->mutex);
    if (wake) http_wake(h);
}

/* ---- loop thread ---- */

static const char *reason(int code)
{
    return code == 429 ? "Too Many Requests" : NULL; /* the rest evhttp knows */
}

static void set_reply_headers(Exchange *x, int code, const char *content_type)
{
    struct evkeyvalq *headers = evhttp_request_get_output_headers(x->request);
    if (content_type) evhttp_add_header(headers, "Content-Type", content_type);
    if (code == 429 || code == 503) evhttp_add_header(headers, "Retry-After", "1");
    if (x->http->has_stopped) evhttp_add_header(headers, "Connection", "close");
}

static void free_reply(const void *data, size_t n, void *arg)
{
    mem_free(arg);
}

static void send_reply(Exchange *x, Buf *body)
{
    struct evhttp_request *request = x->request;
    struct evbuffer *out = evbuffer_new();
    int code = x->code ? x->code : 500;
    bool complete = out && !body->failed;
    if (complete && body->len) {
        complete = !evbuffer_add_reference(out, body->data, body->len, free_reply, body->data);
        if (complete) *body = (Buf){ .limit = 0 };
    }
    if (!complete) code = 500;
    set_reply_headers(x, code, x->content_type);
    conn_end_exchange(x->conn);
    x->request = NULL;
    x->conn = NULL;
    evhttp_send_reply(request, code, reason(code), complete ? out : NULL);
    if (out) evbuffer_free(out);
}

static void deliver(Exchange *x);

static void on_written(struct evhttp_connection *evcon, void *arg)
{
    Exchange *x = arg;
    if (!x->conn || x->conn->evcon != evcon) return;
    x->blocked_ms = 0;
    deliver(x);
}

static void begin_stream(Exchange *x)
{
    struct evkeyvalq *headers = evhttp_request_get_output_headers(x->request);
    evhttp_add_header(headers, "Cache-Control", "no-cache");
    evhttp_add_header(headers, "X-Accel-Buffering", "no"); /* a proxy in front must pass events on at once */
    set_reply_headers(x, 200, "text/event-stream; charset=utf-8");
    bufferevent_setwatermark(x->conn->bev, EV_WRITE, OUTPUT_LOW_BYTES, 0);
    evhttp_send_reply_start(x->request, 200, NULL);
    x->has_started = true;
    x->sent_ms = clock_ms();
}

static void send_chunk(Exchange *x, const char *bytes, size_t n)
{
    struct evbuffer *out = evbuffer_new();
    if (!out || evbuffer_add(out, bytes, n)) conn_cut(x->conn, "gets more than there is memory for");
    else evhttp_send_reply_chunk_with_cb(x->request, out, on_written, x);
    if (out) evbuffer_free(out);
    x->sent_ms = clock_ms();
}

static void end_stream(Exchange *x)
{
    struct evhttp_request *request = x->request;
    conn_end_exchange(x->conn);
    x->request = NULL;
    x->conn = NULL;
    evhttp_send_reply_end(request);
}

static void send_stream(Exchange *x, const Buf *out, bool is_last)
{
    if (!x->has_started) begin_stream(x);
    if (out->failed) conn_cut(x->conn, "gets more than there is memory for");
    if (out->len) send_chunk(x, out->data, out->len);
    if (is_last) end_stream(x);
}

static bool output_is_full(Exchange *x)
{
    if (!x->has_started || !x->conn || conn_unsent(x->conn) <= OUTPUT_HIGH_BYTES) return false;
    if (x->blocked_ms == 0) x->blocked_ms = clock_ms();
    return true;
}

/* Sends what the mailbox holds for x, unless its connection is full: then on_written() comes back to it. */
static void deliver(Exchange *x)
{
    Http *h = x->http;
    if (output_is_full(x)) return;
    pthread_mutex_lock(&h->mutex);
    Buf out = x->pending;
    buf_init(&x->pending, MAX_REPLY_BYTES);
    bool is_last = x->is_last, wanted_room = x->wants_room, is_stream = x->is_stream;
    x->wants_room = false;
    pthread_mutex_unlock(&h->mutex);

    if (x->request && is_stream) send_stream(x, &out, is_last);
    else if (x->request && is_last) send_reply(x, &out);
    buf_free(&out);
    if (is_last) slot_give(x);
    else if (wanted_room) h->hooks.post(h->hooks.ctx, x);
}

void exchange_drain_mail(Http *h)
{
    pthread_mutex_lock(&h->mutex);
    Exchange *list = h->mail;
    h->mail = NULL;
    h->mail_tail = &h->mail;
    pthread_mutex_unlock(&h->mutex);
    while (list) {
        Exchange *x = list;
        pthread_mutex_lock(&h->mutex);
        list = x->next_mail;
        x->is_mailed = false;
        pthread_mutex_unlock(&h->mutex);
        deliver(x);
    }
}

/* A worker that has written its last does nothing about the post, and on_written() will not come any more: the slot of
 * such an answer, held back by a full connection, is given by the next drain. */
static void mail_again(Exchange *x)
{
    pthread_mutex_lock(&x->http->mutex);
    bool wake = mail(x);
    pthread_mutex_unlock(&x->http->mutex);
    if (wake) http_wake(x->http);
}

/* In evhttp's close callback. A request that evhttp has taken off its connection is ours to free; one that is still on it
 * (http_close) goes with the connection. */
void exchange_client_left(Exchange *x)
{
    struct evhttp_request *request = x->request;
    x->conn = NULL;
    x->request = NULL;
    x->blocked_ms = 0;
    if (!evhttp_request_get_connection(request)) {
        if (x->has_started) evhttp_send_reply_end(request);
        else evhttp_request_free(request);
    }
    atomic_store(&x->is_gone, true);
    mail_again(x);
    x->http->hooks.post(x->http->hooks.ctx, x);
}

void exchange_check_times(Http *h, double now)
{
    for (int i = 0; i < h->limits.max_requests; i++) {
        Exchange *x = &h->slots[i];
        if (x->is_live && atomic_exchange(&x->wants_tick, false)) h->hooks.post(h->hooks.ctx, x);
        if (!x->is_live || !x->conn || !x->has_started) continue;
        if (x->blocked_ms > 0 && now - x->blocked_ms > h->limits.stall_ms) conn_cut(x->conn, "reads too slowly");
        if (x->blocked_ms == 0 && now - x->sent_ms > h->limits.keep_alive_ms) send_chunk(x, ": still here\n\n", 14);
    }
}
