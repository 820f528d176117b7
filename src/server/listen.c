/* Binds one TCP address.
 *
 * The socket is made here and not by evhttp_bind_socket(), which listens with a backlog of 128 (a thousand clients at
 * once took 4 s to connect) and leaves Nagle's algorithm on; accepted sockets inherit TCP_NODELAY from this one. */
#include "server/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
    if (a->sa_family != AF_INET6) return false;
    const struct in6_addr *in = &((const struct sockaddr_in6 *)a)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(in) || (IN6_IS_ADDR_V4MAPPED(in) && in->s6_addr[12] == 127);
}

static bool is_wildcard(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) return ((const struct sockaddr_in *)a)->sin_addr.s_addr == htonl(INADDR_ANY);
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

static Status say_why(const char *host, int port, int why, Error *err)
{
    if (why == EADDRINUSE) {
        return error_set_param(err, ERR_IO, "port", "port %d of %s is in use by another program; choose another with --port",
                               port, host);
    }
    if (why == EACCES) {
        return error_set_param(err, ERR_IO, "port", "port %d of %s may be bound by root only; choose one above 1023", port,
                               host);
    }
    return error_set_param(err, ERR_IO, "host", "cannot listen on port %d of %s: %s", port, host, strerror(why));
}

/* A bound, listening socket; or -1 and errno. */
static int bind_address(const struct addrinfo *a)
{
    int on = 1, off = 0;
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (a->ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, LISTEN_BACKLOG) == 0) return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static void describe(Listen *l)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    char host[INET6_ADDRSTRLEN] = "127.0.0.1";
    bool v6 = false;
    if (getsockname(l->fd, (struct sockaddr *)&a, &n)) return;
    if (a.ss_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)&a;
        l->port = ntohs(in->sin6_port);
        v6 = !is_wildcard((struct sockaddr *)&a);
        if (v6) inet_ntop(AF_INET6, &in->sin6_addr, host, sizeof host);
    } else {
        const struct sockaddr_in *in = (const struct sockaddr_in *)&a;
        l->port = ntohs(in->sin_port);
        if (!is_wildcard((struct sockaddr *)&a)) inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
    }
    l->is_loopback = is_loopback((struct sockaddr *)&a);
    snprintf(l->url, sizeof l->url, v6 ? "http://[%s]:%d" : "http://%s:%d", host, l->port);
}

Status listen_open(Listen *out, const char *host, int port, bool loopback_only, Error *err)
{
    *out = (Listen){ .fd = -1 };
    /* "localhost" may mean ::1 first, where clients that try 127.0.0.1 do not find us. */
    const char *name = strcmp(host, "localhost") ? host : "127.0.0.1";
    struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV };
    struct addrinfo *list = NULL;
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    int failed = getaddrinfo(name, service, &hints, &list);
    if (failed) {
        return error_set_param(err, ERR_IO, "host", "cannot find the address %s to listen on: %s", host, gai_strerror(failed));
    }

    int why = EADDRNOTAVAIL;
    bool is_open = false;
    for (struct addrinfo *a = list; a && out->fd < 0; a = a->ai_next) {
        if (loopback_only && !is_loopback(a->ai_addr)) {
            is_open = true;
            continue;
        }
        out->fd = bind_address(a);
        if (out->fd < 0) why = errno;
    }
    freeaddrinfo(list);
    if (out->fd < 0 && is_open) {
        return error_set_param(err, ERR_USAGE, "host",
                               "%s can be reached from other machines, and no key is set; give an API key, or --no-auth to "
                               "serve anyone", host);
    }
    if (out->fd < 0) return say_why(host, port, why, err);
    describe(out);
    return OK;
}
