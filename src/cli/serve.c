/* tandem serve: keys and addresses checked, the server started, the URL and a line to try printed, Ctrl-C awaited. */
#include "cli/command.h"

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "cli/progress.h"
#include "server/server.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAX_ORIGINS = 32 };

typedef struct Keys {
    const char *list[SERVER_MAX_KEYS];
    int         n;
    char       *text; /* of the file */
} Keys;

static Status keys_add(Keys *k, const char *key, Error *err)
{
    if (!*key) return OK;
    if (k->n == SERVER_MAX_KEYS) return error_set(err, ERR_USAGE, "more than %d keys", SERVER_MAX_KEYS);
    k->list[k->n++] = key;
    return OK;
}

static Status keys_read(Keys *k, const Options *o, Error *err)
{
    size_t n;
    Status s = OK;
    for (int i = 0; !s && i < o->n_api_keys; i++) s = keys_add(k, o->api_keys[i], err);
    if (s || !o->api_key_file) return s;
    s = file_read(o->api_key_file, 1 << 20, &k->text, &n, err);
    for (char *line = k->text; !s && line;) {
        char *next = strchr(line, '\n');
        if (next) *next++ = 0;
        line[strcspn(line, "\r")] = 0;
        if (*line != '#') s = keys_add(k, line, err);
        line = next;
    }
    if (!s && !k->n) s = error_set(err, ERR_USAGE, "%s holds no key", o->api_key_file);
    return s;
}

/* ["https://a.example", ...], or one origin as it is. *list keeps the strings alive. */
static Status origins_read(const char *text, json_t **list, const char **origins, int *n, Error *err)
{
    Status s = OK;
    if (text[0] != '[') {
        origins[(*n)++] = text;
        return OK;
    }
    s = json_parse(list, text, strlen(text), "--allowed-origins", err);
    for (size_t i = 0; !s && i < json_array_size(*list); i++) {
        const char *origin = json_string_value(json_array_get(*list, i));
        if (!origin || *n == MAX_ORIGINS)
            s = error_set(err, ERR_USAGE, "--allowed-origins must be a JSON list of at most %d strings", MAX_ORIGINS);
        else origins[(*n)++] = origin;
    }
    return s ? ERR_USAGE : OK;
}

static Server *running;

static void on_signal(int signal_number)
{
    server_stop(running);
}

static void catch_signals(Server *server)
{
    struct sigaction action = { .sa_handler = on_signal };
    running = server;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static void print_ready(const Server *server, bool needs_key)
{
    printf("ready. Try:\n\n"
           "    curl -N %s/v1/chat/completions -H 'Content-Type: application/json'%s -d '{\"model\": \"%s\",\n"
           "        \"messages\": [{\"role\": \"user\", \"content\": \"Write a function that reverses a string.\"}],\n"
           "        \"max_tokens\": 200, \"temperature\": 0, \"stream\": true}'\n\n"
           "Ctrl-C stops the server.\n",
           server_url(server), needs_key ? " -H \"Authorization: Bearer $TANDEM_API_KEY\"" : "", server_name(server));
    fflush(stdout);
}

static Status serve(ServerOptions *so, Error *err)
{
    Server *server = NULL;
    Status s = server_open(&server, so, err);
    if (s) return s;
    catch_signals(server);
    printf("%s\n", server_url(server)); /* first line: scripts read it */
    fflush(stdout);
    Progress *bar = progress_begin(server_progress(server));
    s = server_wait_ready(server, err);
    progress_end(bar);
    if (!s) print_ready(server, so->n_keys > 0);
    if (!s) s = server_run(server, err);
    running = NULL;
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    server_close(server);
    return s;
}

Status command_serve(const Options *o, Error *err)
{
    Keys keys = { .n = 0 };
    json_t *kwargs = NULL, *origin_list = NULL;
    const char *origins[MAX_ORIGINS];
    const char *name = o->served_model_name;
    ServerOptions so = { .host = o->host, .port = (int)o->port, .no_auth = o->no_auth, .n_names = name != NULL, .names = &name,
                         .seed = (uint64_t)o->seed, .has_seed = o->seed >= 0 };
    log_level_default(LOG_INFO);
    Status s = command_stack_options(o, &so.stack, err);
    if (!s) s = keys_read(&keys, o, err);
    so.keys = keys.list;
    so.n_keys = keys.n;
    if (!s && o->default_chat_template_kwargs) {
        const char *text = o->default_chat_template_kwargs;
        s = json_parse(&kwargs, text, strlen(text), "--default-chat-template-kwargs", err);
        if (!s && !json_is_object(kwargs)) s = error_set(err, ERR_USAGE, "--default-chat-template-kwargs must be a JSON object");
        if (s) s = ERR_USAGE;
    }
    so.chat_template_kwargs = kwargs;
    so.origins = origins;
    if (!s && o->allowed_origins) s = origins_read(o->allowed_origins, &origin_list, origins, &so.n_origins, err);
    if (!s) s = command_explain_plan(&so.stack, serve(&so, err), err);
    json_decref(origin_list);
    json_decref(kwargs);
    mem_free(keys.text);
    return s;
}
