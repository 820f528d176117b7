/* What there is and how it is: /v1/models, /health, /version. All on the loop thread, so that /health answers whatever
 * the workers are busy with. */
#include "server/api.h"

#include <ctype.h>
#include <inttypes.h>

enum { MAX_INFO_BYTES = 1 << 20 };

static void write_model(const Server *s, int i, Buf *out)
{
    buf_text(out, "{\"id\":");
    buf_json_string(out, s->names[i], strlen(s->names[i]));
    buf_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"tandem\",\"root\":", (long long)s->started);
    buf_json_string(out, s->stack.served_name, strlen(s->stack.served_name));
    buf_printf(out, ",\"max_model_len\":%d}", s->stack.max_model_len);
}

void api_models_answer(Server *s, HttpRequest *r)
{
    Buf out;
    buf_init(&out, MAX_INFO_BYTES);
    buf_text(&out, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < s->n_names; i++) {
        if (i) buf_text(&out, ",");
        write_model(s, i, &out);
    }
    buf_text(&out, "]}");
    router_answer_json(s, r, 200, &out);
}

static int hex_value(char c)
{
    if (!isxdigit((unsigned char)c)) return -1;
    return isdigit((unsigned char)c) ? c - '0' : tolower((unsigned char)c) - 'a' + 10;
}

/* Whether a path, in which %2F stands for a slash and so on, says name. */
static bool path_says(const char *path, const char *name)
{
    for (; *path && *name; path++, name++) {
        int high = *path == '%' ? hex_value(path[1]) : -1, low = high >= 0 ? hex_value(path[2]) : -1;
        char c = low >= 0 ? (char)(16 * high + low) : *path;
        if (c != *name) return false;
        if (low >= 0) path += 2;
    }
    return !*path && !*name;
}

void api_model_answer(Server *s, HttpRequest *r)
{
    Buf out;
    int found = -1;
    for (int i = 0; i < s->n_names; i++) {
        if (path_says(http_path(r) + strlen("/v1/models/"), s->names[i])) found = i;
    }
    if (found < 0) {
        router_fail(s, r, 404, "no such model is served here, see /v1/models", "model", "model_not_found");
        return;
    }
    buf_init(&out, MAX_INFO_BYTES);
    write_model(s, found, &out);
    router_answer_json(s, r, 200, &out);
}

static const char *health_name(const Server *s)
{
    switch (server_phase(s)) {
    case SERVER_LOADING: return "loading";
    case SERVER_FAILED: return "failed";
    case SERVER_STOPPING: return "stopping";
    case SERVER_READY: break;
    }
    return engine_stats(s->stack.engine).is_lost ? "lost" : "ok";
}

void api_health_answer(Server *s, HttpRequest *r)
{
    Buf out;
    const char *name = health_name(s), *stage = atomic_load(&s->progress.stage);
    buf_init(&out, MAX_INFO_BYTES);
    buf_printf(&out, "{\"status\":\"%s\"", name);
    if (server_phase(s) == SERVER_LOADING) {
        buf_text(&out, ",\"stage\":");
        buf_json_string(&out, stage ? stage : "", stage ? strlen(stage) : 0);
        buf_printf(&out, ",\"done_bytes\":%" PRIu64 ",\"total_bytes\":%" PRIu64, atomic_load(&s->progress.done_bytes),
                   atomic_load(&s->progress.total_bytes));
    }
    buf_text(&out, "}");
    router_answer_json(s, r, strcmp(name, "ok") == 0 ? 200 : 503, &out);
}

void api_version_answer(Server *s, HttpRequest *r)
{
    Buf out;
    buf_init(&out, MAX_INFO_BYTES);
    buf_text(&out, "{\"version\":\"" TANDEM_VERSION "\"");
    if (server_phase(s) == SERVER_READY) {
        buf_printf(&out, ",\"system_fingerprint\":\"%s\",\"backend\":\"%s\",\"variant\":\"%s\"", s->stack.fingerprint,
                   backend_name(s->stack.backend), backend_variant(s->stack.backend));
    }
    buf_text(&out, "}");
    router_answer_json(s, r, 200, &out);
}
