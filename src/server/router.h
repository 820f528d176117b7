/* Who answers what: the table of paths, and what is checked before anybody answers. Loop thread. */
#pragma once

#include "server/server_impl.h"

typedef struct Route {
    const char *method, *path;                                    /* a path that ends in "/" stands for all below it */
    void      (*answer)(Server *s, HttpRequest *r);               /* short ones: on the loop thread */
    bool      (*start)(Server *s, Exchange *x, int worker);       /* the rest: first turn on a worker; true = over */
    bool        needs_no_key, needs_no_stack;
} Route;

void router_request(void *server, HttpRequest *r); /* HttpHooks.request */

/* Answers with an error in OpenAI's shape. */
void router_fail(Server *s, HttpRequest *r, int code, const char *message, const char *param, const char *error_code);
void router_answer_json(Server *s, HttpRequest *r, int code, Buf *body); /* frees body */
