/* No memory: the 1st, 2nd, 3rd ... allocation of the server's start, and of the answer to a request, fails in turn. It must
 * end with an Error or an HTTP answer, and the next request must be answered. The sanitizer build says whether anything
 * leaks. (libevent's own memory is not ours to starve.) */
#include "server/server.h"
#include "support/fake_stack.h"

#include "base/json.h"
#include "base/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_ANSWER = 1 << 16 };

static char model_dir[4096];

static ServerOptions options_of_test(void)
{
    static const char *const keys[] = { "one", "two" }, *const names[] = { "a" }, *const origins[] = { "http://ui.example" };
    ServerOptions o = { .keys = keys, .n_keys = 2, .names = names, .n_names = 1, .origins = origins, .n_origins = 1 };
    o.stack.model = model_dir;
    return o;
}

/* One request on a connection of its own; what came back, "" when the server just closed. */
static void ask(const Server *s, const char *path, const char *body, char answer[MAX_ANSWER])
{
    char request[2048];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)server_port(s)), .sin_addr = { htonl(INADDR_LOOPBACK) } };
    struct timeval patience = { .tv_sec = 20 };
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    int n = snprintf(request, sizeof request,
                     "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer two\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s", path,
                     strlen(body), body);
    assert_int_equal(write(fd, request, (size_t)n), n);
    size_t got = 0;
    ssize_t k;
    while (got < MAX_ANSWER - 1 && (k = read(fd, answer + got, MAX_ANSWER - 1 - got)) > 0) got += (size_t)k;
    answer[got] = 0;
    close(fd);
}

static void test_start(void **state)
{
    for (int nth = 1; nth <= 60; nth++) {
        ServerOptions o = options_of_test();
        Error err = { .status = OK };
        Server *s = NULL;
        mem_fail_at(nth);
        Status status = server_open(&s, &o, &err);
        if (!status) status = server_wait_ready(s, &err);
        mem_fail_at(0);
        if (status) {
            assert_int_equal(status, ERR_NOMEM);
            assert_string_not_equal(err.text, "");
        }
        server_close(s);
    }
}

static const struct {
    const char *path, *body;
} requests[] = {
    { "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a b\"}]}],\"n\":2,\"stop\":[\"zz\"],"
                              "\"logprobs\":true,\"top_logprobs\":1,\"logit_bias\":{\"5\":1},\"chat_template_kwargs\":{\"x\":1}}" },
    { "/v1/chat/completions", "{\"messages\":[{\"role\":\"developer\",\"content\":\"c\"},{\"role\":\"user\",\"content\":\"a b\"}],\"stream\":true,"
                              "\"stream_options\":{\"include_usage\":true}}" },
    { "/v1/completions", "{\"prompt\":[[65,66],[67]],\"echo\":true,\"logprobs\":1,\"max_tokens\":3}" },
    { "/tokenize", "{\"prompt\":\"a b c\",\"return_token_strs\":true}" },
    { "/detokenize", "{\"tokens\":[65,66,67]}" },
};

/* jansson's lexer (2.14) does not survive a failed allocation, so those of the parser are left out: they come right after
 * the connection's and the body's own. */
static int parser_allocations(const char *body)
{
    json_t *tree;
    uint64_t before = mem_count();
    assert_int_equal(json_parse(&tree, body, strlen(body), "body", NULL), OK);
    int n = (int)(mem_count() - before);
    json_decref(tree);
    return n;
}

/* The texts of an answer's choices, one behind the other: of "content" in chats, of "text" in completions. */
static void words_of(const char *answer, char words[MAX_ANSWER])
{
    static const char *const keys[] = { "\"content\":\"", "\"text\":\"" };
    size_t n = 0;
    for (const char *p = answer; *p; p++) {
        for (int k = 0; k < COUNT(keys); k++) {
            size_t len = strlen(keys[k]);
            if (strncmp(p, keys[k], len) != 0) continue;
            for (p += len; *p && *p != '"'; p++) words[n++] = *p;
            break;
        }
        if (!*p) break;
    }
    words[n] = 0;
}

/* An answer that says it is whole says as much as one that had memory. */
static void check_words(const char *answer, const char *whole_words)
{
    static char words[MAX_ANSWER];
    bool is_stream = strstr(answer, "text/event-stream") != NULL;
    if (strncmp(answer, "HTTP/1.1 200", 12) != 0 || (is_stream && !strstr(answer, "[DONE]"))) return;
    words_of(answer, words);
    assert_string_equal(words, whole_words);
}

static void starve_request(const Server *s, int i)
{
    static char answer[MAX_ANSWER], whole_words[MAX_ANSWER];
    enum { BEFORE = 3 };
    int n_parser = parser_allocations(requests[i].body);
    ask(s, requests[i].path, requests[i].body, answer);
    words_of(answer, whole_words);
    for (int nth = 1;; nth += nth == 1 ? n_parser + BEFORE : 1) {
        uint64_t before = mem_count();
        mem_fail_at(nth);
        ask(s, requests[i].path, requests[i].body, answer);
        mem_fail_at(0);
        bool was_starved = mem_count() - before >= (uint64_t)nth;
        bool is_answer = strncmp(answer, "HTTP/1.1 ", 9) == 0;
        if (answer[0]) assert_true(is_answer);
        check_words(answer, whole_words);
        if (!was_starved) assert_int_equal(strncmp(answer, "HTTP/1.1 200", 12), 0);
        ask(s, "/tokenize", "{\"prompt\":\"a\"}", answer);
        assert_int_equal(strncmp(answer, "HTTP/1.1 200", 12), 0);
        if (!was_starved) return;
        assert_true(nth < 5000);
    }
}

static void test_requests(void **state)
{
    ServerOptions o = options_of_test();
    Error err = { .status = OK };
    Server *s;
    assert_int_equal(server_open(&s, &o, &err), OK);
    assert_int_equal(server_wait_ready(s, &err), OK);
    for (int i = 0; i < COUNT(requests); i++) starve_request(s, i);
    server_close(s);
}

static void test_wrong_options(void **state)
{
    static const char *const empty[] = { "" };
    ServerOptions wrong[] = { { .port = -1 }, { .port = 65536 }, { .keys = empty, .n_keys = 1 }, { .n_keys = SERVER_MAX_KEYS + 1 },
                              { .names = empty, .n_names = 1 }, { .n_names = SERVER_MAX_NAMES + 1 }, { .host = "0.0.0.0" },
                              { .limits = { .n_workers = 1 } }, { .limits = { .max_body_bytes = -1 } }, { .limits = { .idle_ms = -5 } } };
    for (int i = 0; i < COUNT(wrong); i++) {
        Error err = { .status = OK };
        Server *s = NULL;
        assert_int_equal(server_open(&s, &wrong[i], &err), ERR_USAGE);
        assert_null(s);
        assert_string_not_equal(err.text, "");
    }
    server_close(NULL);
}

int main(void)
{
    const char *root = getenv("TANDEM_SOURCE_ROOT");
    snprintf(model_dir, sizeof model_dir, "%s/models/nano", root ? root : ".");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_options),
        cmocka_unit_test(test_start),
        cmocka_unit_test(test_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
