/* The server over the parrot of support/fake_stack.h, as a program for tests/server/test_http.py.
 *
 *     serve_fake MODEL_DIR [name=value ...]
 *
 * Names: the fields of ServerLimits; host, port, key, name, origin (the last three may repeat), no_auth, seed, kwargs; the
 * fields of FakeOptions. Prints the URL, runs until SIGINT or SIGTERM, exits like `tandem serve`. */
#include "server/server.h"
#include "support/fake_stack.h"

#include "base/log.h"

#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static Server *server;
static const char *keys[SERVER_MAX_KEYS], *names[SERVER_MAX_NAMES], *origins[64];

static void on_signal(int number)
{
    server_stop(server);
}

static const struct {
    const char *name;
    size_t      offset;
} limits[] = {
    { "max_header_bytes", offsetof(ServerLimits, max_header_bytes) }, { "max_connections", offsetof(ServerLimits, max_connections) },
    { "max_requests", offsetof(ServerLimits, max_requests) },         { "request_ms", offsetof(ServerLimits, request_ms) },
    { "idle_ms", offsetof(ServerLimits, idle_ms) },                   { "stall_ms", offsetof(ServerLimits, stall_ms) },
    { "grace_ms", offsetof(ServerLimits, grace_ms) },                 { "keep_alive_ms", offsetof(ServerLimits, keep_alive_ms) },
    { "n_workers", offsetof(ServerLimits, n_workers) },
};

static bool set_limit(ServerOptions *o, const char *name, int value)
{
    for (int i = 0; i < COUNT(limits); i++) {
        if (strcmp(limits[i].name, name) != 0) continue;
        *(int32_t *)((char *)&o->limits + limits[i].offset) = value;
        return true;
    }
    if (strcmp(name, "max_body_bytes") == 0) o->limits.max_body_bytes = value;
    else if (strcmp(name, "load_ms") == 0) fake_options.load_ms = value;
    else if (strcmp(name, "max_waiting") == 0) fake_options.max_waiting = value;
    else if (strcmp(name, "context") == 0) fake_options.context = value;
    else if (strcmp(name, "port") == 0) o->port = value;
    else if (strcmp(name, "no_auth") == 0) o->no_auth = value != 0;
    else if (strcmp(name, "seed") == 0) o->has_seed = true, o->seed = (uint64_t)value;
    else return false;
    return true;
}

static bool set_option(ServerOptions *o, char *argument)
{
    char *value = strchr(argument, '=');
    if (!value) return false;
    *value++ = 0;
    if (strcmp(argument, "key") == 0) keys[o->n_keys++] = value;
    else if (strcmp(argument, "name") == 0) names[o->n_names++] = value;
    else if (strcmp(argument, "origin") == 0) origins[o->n_origins++] = value;
    else if (strcmp(argument, "host") == 0) o->host = value;
    else if (strcmp(argument, "load_error") == 0) fake_options.load_error = value;
    else if (strcmp(argument, "kwargs") == 0) json_parse((json_t **)&o->chat_template_kwargs, value, strlen(value), "kwargs", NULL);
    else return set_limit(o, argument, (int)strtol(value, NULL, 10));
    return true;
}

int main(int argc, char **argv)
{
    ServerOptions o = { .keys = keys, .names = names, .origins = origins };
    Error err = { .status = OK };
    o.stack.model = argc > 1 ? argv[1] : "";
    for (int i = 2; i < argc; i++) {
        if (set_option(&o, argv[i])) continue;
        fprintf(stderr, "serve_fake: what is %s?\n", argv[i]);
        return 2;
    }
    log_level_set(getenv("SERVE_FAKE_DEBUG") ? LOG_DEBUG : LOG_INFO);
    Status s = server_open(&server, &o, &err);
    if (!s) {
        struct sigaction action = { .sa_handler = on_signal };
        sigaction(SIGINT, &action, NULL);
        sigaction(SIGTERM, &action, NULL);
        printf("%s\n", server_url(server));
        fflush(stdout);
        s = server_run(server, &err);
        signal(SIGINT, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
        server_close(server);
    }
    if (s) fprintf(stderr, "serve_fake: %s\n", err.text);
    json_decref((json_t *)o.chat_template_kwargs);
    return s == OK ? 0 : s == ERR_USAGE ? 2 : s == ERR_LOST ? 4 : 1;
}
