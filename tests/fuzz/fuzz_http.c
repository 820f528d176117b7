/* HTTP: any bytes on a connection of the real server, over the parrot of support/fake_stack.h. Every status line that comes back
 * is one of ours, and a client that has left is forgotten: the connection ends within seconds.
 *
 * Requests that are refused and those on the loop thread answer at once; when nothing has come for a moment the client
 * shuts its sending side and waits for the end. Needs TANDEM_SOURCE_ROOT. */
#include "base/clock.h"
#include "base/log.h"
#include "fuzz/fuzz.h"
#include "server/server.h"
#include "support/fake_stack.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { QUIET_MS = 3, END_MS = 20000, MAX_ANSWER = 1 << 16 };

static Server *server;

static void open_server(void)
{
    static char model[4096];
    static const char *const keys[] = { "key" }, *const names[] = { "parrot" }, *const origins[] = { "http://allowed.example" };
    Error err = { .status = OK };
    const char *root = getenv("TANDEM_SOURCE_ROOT");
    snprintf(model, sizeof model, "%s/models/nano", root ? root : ".");
    ServerOptions o = {
        .n_keys = 1, .keys = keys, .n_names = 1, .names = names, .n_origins = 1, .origins = origins, .has_seed = true,
        .stack.model = model, .limits = { .max_body_bytes = 3000, .max_header_bytes = 2048, .request_ms = 500, .n_workers = 2 },
    };
    log_level_set(LOG_ERROR);
    fake_options.max_waiting = -1; /* as in fuzz_body.c: generations end with 429 */
    Status s = server_open(&server, &o, &err);
    if (!s) s = server_wait_ready(server, &err);
    if (s) fprintf(stderr, "fuzz_http: %s\n", err.text);
    CHECK(s == OK);
}

/* From another address of loopback each time: ports of closed connections stay taken for a minute. */
static int connect_to(int port)
{
    static uint32_t n_calls;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr_in here = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000001 + n_calls++ % 250) };
    struct sockaddr_in there = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    CHECK(fd >= 0);
    setsockopt(fd, SOL_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    CHECK(bind(fd, (struct sockaddr *)&here, sizeof here) == 0);
    CHECK(connect(fd, (struct sockaddr *)&there, sizeof there) == 0);
    return fd;
}

/* Appends what comes until the end; false when it is quiet for that long. */
static bool read_to_end(int fd, char *answer, size_t *n, int quiet_ms)
{
    char more[4096];
    for (;;) {
        struct pollfd p = { .fd = fd, .events = POLLIN };
        if (poll(&p, 1, quiet_ms) == 0) return false;
        ssize_t got = recv(fd, more, sizeof more, 0);
        if (got <= 0) return true; /* a reset is an end, too: the server closed with bytes unread */
        size_t room = MAX_ANSWER - *n, some = (size_t)got < room ? (size_t)got : room;
        memcpy(answer + *n, more, some);
        *n += some;
    }
}

static void check_answer(const char *answer, size_t n)
{
    static const int codes[] = { 100, 200, 204, 400, 401, 403, 404, 405, 413, 417, 429, 501 };
    int code = 0;
    bool is_known = false;
    if (n < 12) return;
    CHECK(sscanf(answer, "HTTP/%*d.%*d %d", &code) == 1);
    for (int i = 0; i < COUNT(codes); i++) is_known |= codes[i] == code;
    if (!is_known) fprintf(stderr, "fuzz_http: status %d\n", code);
    CHECK(is_known);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static char answer[MAX_ANSWER + 1];
    size_t n_answer = 0;
    if (!server) open_server();
    int fd = connect_to(server_port(server));
    send(fd, data, n, MSG_NOSIGNAL);
    if (!read_to_end(fd, answer, &n_answer, QUIET_MS)) {
        shutdown(fd, SHUT_WR);
        CHECK(read_to_end(fd, answer, &n_answer, END_MS));
    }
    answer[n_answer] = 0;
    check_answer(answer, n_answer);
    close(fd);
    return 0;
}
