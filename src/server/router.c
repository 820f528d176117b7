/* What a request must pass, in this order: well-formed framing, an origin we trust, a known path and method, a key, a
 * loaded stack, room. evhttp is lenient where request smuggling begins (the first of two Content-Lengths wins), so
 * framing is checked again here.
 *
 * Web pages. A browser lets any page of any site send requests to 127.0.0.1, it only hides the answer; and an answer costs
 * minutes of our machine. So a request that carries an Origin is refused unless the page is our own or its origin was
 * allowed by name. Our own: the Origin equals the Host we are called by, and that is no name which a stranger's DNS could
 * point at us (DNS rebinding). */
#include "server/router.h"

#include "base/log.h"
#include "base/planted.h"
#include "server/api.h"
#include "server/reply.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

static const Route routes[] = {
    { "GET", "/health", .answer = api_health_answer, .needs_no_key = true, .needs_no_stack = true },
    { "GET", "/version", .answer = api_version_answer, .needs_no_stack = true },
    { "GET", "/metrics", .answer = api_metrics_answer },
    { "GET", "/v1/models", .answer = api_models_answer },
    { "GET", "/v1/models/", .answer = api_model_answer },
    { "POST", "/v1/chat/completions", .start = api_chat_start },
    { "POST", "/v1/completions", .start = api_completions_start },
    { "POST", "/tokenize", .start = api_tokenize_start },
    { "POST", "/detokenize", .start = api_detokenize_start },
};

void router_answer_json(Server *s, HttpRequest *r, int code, Buf *body)
{
    if (body->failed) code = 503;
    atomic_fetch_add(&s->n_answers[code / 100], 1);
    http_answer(r, code, "application/json", body->data, body->failed ? 0 : body->len);
    buf_free(body);
}

void router_fail(Server *s, HttpRequest *r, int code, const char *message, const char *param, const char *error_code)
{
    Buf body;
    buf_init(&body, 1 << 16);
    log_debug("server", "%s %s: %d %s", http_method(r), http_path(r), code, message);
    reply_error(&body, code, message, param, error_code);
    router_answer_json(s, r, code, &body);
}

static bool is_digits(const char *text)
{
    return *text && text[strspn(text, "0123456789")] == 0;
}

/* NULL, or what is wrong with the framing. */
static const char *bad_framing(const HttpRequest *r)
{
    int n_lengths, n_encodings, n_hosts;
    const char *length = http_header(r, "Content-Length", &n_lengths);
    http_header(r, "Transfer-Encoding", &n_encodings);
    http_header(r, "Host", &n_hosts);
    if (n_lengths > 1) return "Content-Length may be given once only";
    if (n_encodings > 1) return "Transfer-Encoding may be given once only";
    if (n_lengths && n_encodings) return "Content-Length and Transfer-Encoding exclude each other";
    if (length && !is_digits(length)) return "Content-Length must be a number";
    if (n_hosts > 1) return "Host may be given once only";
    if (n_hosts == 0 && http_is_version_1_1(r)) return "Host is missing";
    return NULL;
}

/* The name without the port: addresses, names without a dot and .local names are out of reach of public DNS. */
static bool host_is_private(const char *host)
{
    char name[256];
    unsigned char address[16];
    if (*host == '[') return true;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(host, ":"), host);
    size_t n = strlen(name);
    if (!strchr(name, '.') || inet_pton(AF_INET, name, address) == 1) return true;
    return (n > 6 && !strcasecmp(name + n - 6, ".local")) || (n > 10 && !strcasecmp(name + n - 10, ".localhost"));
}

static bool is_own_origin(const Server *s, const char *origin, const char *host)
{
    if (!host) return false;
    if (strncmp(origin, "http://", 7) == 0) origin += 7;
    else if (strncmp(origin, "https://", 8) == 0) origin += 8;
    else return false;
    return strcasecmp(origin, host) == 0 && (s->keys.n > 0 || host_is_private(host));
}

/* False: refused. Sets the headers that let the page read the answer. */
static bool check_origin(Server *s, HttpRequest *r)
{
    const char *origin = http_header(r, "Origin", NULL);
    if (!origin) return true;
    bool is_listed = s->any_origin;
    for (int i = 0; i < s->n_origins; i++) is_listed |= strcmp(s->origins[i], origin) == 0;
    if (is_listed) {
        http_set_header(r, "Access-Control-Allow-Origin", s->any_origin ? "*" : origin);
        http_set_header(r, "Vary", "Origin");
    }
    return is_listed || is_own_origin(s, origin, http_header(r, "Host", NULL));
}

static bool path_matches(const Route *route, const char *path)
{
    size_t n = strlen(route->path);
    if (route->path[n - 1] == '/') return strncmp(route->path, path, n) == 0 && path[n];
    return strcmp(route->path, path) == 0;
}

/* The route of this method, or NULL; *allowed: the method that the path does take, NULL = no such path. HEAD goes with GET. */
static const Route *find_route(const char *method, const char *path, const char **allowed)
{
    if (strcmp(method, "HEAD") == 0) method = "GET";
    *allowed = NULL;
    for (int i = 0; i < COUNT(routes); i++) {
        if (!path_matches(&routes[i], path)) continue;
        *allowed = routes[i].method;
        if (strcmp(routes[i].method, method) == 0) return &routes[i];
    }
    return NULL;
}

static void set_allow(HttpRequest *r, const char *header, const char *method)
{
    http_set_header(r, header, strcmp(method, "GET") == 0 ? "GET, HEAD, OPTIONS" : "POST, OPTIONS");
}

/* A browser asks before it sends a request with headers of ours. */
static void answer_options(Server *s, HttpRequest *r, const char *method)
{
    const char *headers = http_header(r, "Access-Control-Request-Headers", NULL);
    set_allow(r, "Allow", method);
    set_allow(r, "Access-Control-Allow-Methods", method);
    http_set_header(r, "Access-Control-Allow-Headers", headers ? headers : "Authorization, Content-Type, X-Api-Key");
    http_set_header(r, "Access-Control-Max-Age", "600");
    atomic_fetch_add(&s->n_answers[2], 1);
    http_answer(r, 204, NULL, NULL, 0);
}

static bool has_key(const Server *s, const HttpRequest *r)
{
    const char *bearer = http_header(r, "Authorization", NULL);
    const char *key = http_header(r, "X-Api-Key", NULL);
    if (bearer && strncasecmp(bearer, "Bearer ", PLANTED("http") ? 6 : 7) == 0) {
        bearer += 7;
        bearer += strspn(bearer, " ");
    } else {
        bearer = NULL;
    }
    bool by_bearer = keys_accept(&s->keys, bearer), by_key = keys_accept(&s->keys, key);
    return by_bearer || by_key;
}

static void refuse_key(Server *s, HttpRequest *r)
{
    http_set_header(r, "WWW-Authenticate", "Bearer realm=\"tandem\"");
    router_fail(s, r, 401, "this server needs an API key: Authorization: Bearer KEY, or X-Api-Key: KEY", NULL, NULL);
}

/* False: answered with 503. */
static bool check_phase(Server *s, HttpRequest *r)
{
    switch (server_phase(s)) {
    case SERVER_READY: break;
    case SERVER_LOADING: router_fail(s, r, 503, "the model is still loading, see /health", NULL, "loading"); return false;
    case SERVER_STOPPING: router_fail(s, r, 503, "the server is stopping", NULL, "stopping"); return false;
    case SERVER_FAILED: router_fail(s, r, 503, "the model could not be loaded", NULL, "failed"); return false;
    }
    if (!engine_stats(s->stack.engine).is_lost) return true;
    router_fail(s, r, 503, "a device or rank was lost", NULL, "lost");
    return false;
}

static void dispatch(Server *s, HttpRequest *r, const Route *route)
{
    if (!route->needs_no_key && !has_key(s, r)) refuse_key(s, r);
    else if (!route->needs_no_stack && !check_phase(s, r)) return;
    else if (route->answer) route->answer(s, r);
    else if (!http_take(r, route)) router_fail(s, r, 429, "too many requests are being answered; try again soon", NULL, NULL);
}

void router_request(void *server, HttpRequest *r)
{
    Server *s = server;
    const char *method = http_method(r), *allowed, *framing = bad_framing(r);
    const Route *route = find_route(method, http_path(r), &allowed);
    if (framing) {
        http_set_header(r, "Connection", "close"); /* who knows where the next request begins */
        router_fail(s, r, 400, framing, NULL, NULL);
    } else if (!check_origin(s, r)) {
        router_fail(s, r, 403, "web pages of this origin may not use this server; allow it with --allowed-origins", NULL, NULL);
    } else if (!allowed) {
        router_fail(s, r, 404, "no such path; the API begins at /v1", NULL, NULL);
    } else if (strcmp(method, "OPTIONS") == 0) {
        answer_options(s, r, allowed);
    } else if (!route) {
        set_allow(r, "Allow", allowed);
        router_fail(s, r, 405, "this path does not take that method", NULL, NULL);
    } else {
        dispatch(s, r, route);
    }
}
