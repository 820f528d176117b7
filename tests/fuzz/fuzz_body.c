/* Bodies of requests, without HTTP: any bytes are answered, with JSON, and with 200, a refusal or "try again".
 *
 * Input: a letter for the path (see paths; capital: the chat template reads parts), then the body. The engine is the parrot
 * of support/fake_stack.h with a full queue, so what passes all checks ends with 429 and nothing runs in the background.
 * Needs TANDEM_SOURCE_ROOT. */
#include "base/clock.h"
#include "base/log.h"
#include "fuzz/fuzz.h"
#include "server/api.h"
#include "server/http_impl.h"
#include "support/fake_stack.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

static const struct {
    char  letter;
    Route route;
} paths[] = {
    { 'c', { "POST", "/v1/chat/completions", .start = api_chat_start } },
    { 'p', { "POST", "/v1/completions", .start = api_completions_start } },
    { 't', { "POST", "/tokenize", .start = api_tokenize_start } },
    { 'd', { "POST", "/detokenize", .start = api_detokenize_start } },
};

static Server server;
static Http   http = { .event_fd = -1 };

static void open_server(void)
{
    static char model[4096];
    Error err = { .status = OK };
    const char *root = getenv("TANDEM_SOURCE_ROOT");
    snprintf(model, sizeof model, "%s/models/nano", root ? root : ".");
    StackOptions options = { .model = model };
    log_level_set(LOG_ERROR);
    fake_options.max_waiting = -1;
    Status s = stack_open(&server.stack, &options, &server.progress, &err);
    if (s) fprintf(stderr, "fuzz_body: %s\n", err.text);
    CHECK(s == OK);
    server.names[server.n_names++] = server.stack.served_name;
    server.has_seed = true;
    atomic_store(&server.phase, SERVER_READY);
    pthread_mutex_init(&http.mutex, NULL);
}

static void check_answer(const Exchange *x)
{
    Error err = { .status = OK };
    json_t *answer;
    CHECK(x->code == 200 || x->code == 400 || x->code == 404 || x->code == 429);
    CHECK(json_parse(&answer, x->pending.data, x->pending.len, "the answer", &err) == OK);
    CHECK(json_is_object(answer) && (x->code == 200) == !json_has(answer, "error"));
    json_decref(answer);
}

static void answer(const Route *route, const uint8_t *body, size_t n)
{
    Exchange x = { .http = &http, .route = route, .body = evbuffer_new() };
    CHECK(x.body && evbuffer_add(x.body, body, n) == 0);
    buf_init(&x.pending, MAX_REPLY_BYTES);
    bool is_over = api_turn(&server, &x, 0);
    CHECK(is_over && !x.job && !x.body);
    check_answer(&x);
    buf_free(&x.pending);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (server.n_names == 0) open_server();
    if (n == 0) return 0;
    server.template_takes_parts = isupper(data[0]);
    for (int i = 0; i < COUNT(paths); i++) {
        if (paths[i].letter == tolower(data[0])) answer(&paths[i].route, data + 1, n - 1);
    }
    return 0;
}
