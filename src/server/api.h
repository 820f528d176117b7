/* The endpoints. Those with an Exchange run on a front worker, the others on the loop thread. */
#pragma once

#include "base/json.h"
#include "server/router.h"

bool api_chat_start(Server *s, Exchange *x, int worker);
bool api_completions_start(Server *s, Exchange *x, int worker);
bool api_tokenize_start(Server *s, Exchange *x, int worker);
bool api_detokenize_start(Server *s, Exchange *x, int worker);

void api_models_answer(Server *s, HttpRequest *r);
void api_model_answer(Server *s, HttpRequest *r);
void api_health_answer(Server *s, HttpRequest *r);
void api_version_answer(Server *s, HttpRequest *r);
void api_metrics_answer(Server *s, HttpRequest *r);

/* ---- what the ones on workers share: api.c ---- */

bool api_turn(void *server, void *exchange, int worker); /* WorkHooks.turn */

/* Parses the body: a JSON object (owned, json_decref), its "model" one that is served or absent. */
Status api_body(Server *s, Exchange *x, json_t **body, Error *err);

/* Replies with an error, or 200 and what is in body (handed over); both return true: the exchange is over. */
bool api_fail(Server *s, Exchange *x, const Error *err);
bool api_reply(Server *s, Exchange *x, Buf *body);

/* Text to ids (owned, mem_free), at most as many as the context has room for. param: the field to blame. */
Status api_encode(Server *s, Exchange *x, int worker, const char *param, const char *text, size_t n, int32_t **ids,
                  int32_t *n_ids, Error *err);
/* The prompt text of a chat request's messages, tools, chat_template_kwargs ..., appended to out. Messages are put into
 * the form that templates expect, in place. */
Status api_render(Server *s, json_t *body, Buf *out, Error *err);
/* Whether the template reads content that is a list of parts: asked once, by rendering one. */
bool   api_template_takes_parts(const ChatTemplate *t);
