/* Reading JSON with jansson under our limits: strict (duplicate keys, bad UTF-8, trailing bytes are
 * errors), bounded in bytes and depth, every message naming the place.
 *
 * json_t comes from <jansson.h>; parsing gives one owned reference (json_decref). The getters below
 * borrow. A getter on a missing key returns the default; on a wrong type or range it fills err with
 * a sentence such as "temperature must be a number, got \"hot\"" and the key as err->param. */
#pragma once

#include "base/buf.h"
#include "base/error.h"

#include <jansson.h>

enum { JSON_MAX_DEPTH = 64 };

/* what: how to call the text in the message, e.g. a file name or "request body". */
Status json_parse(json_t **out, const char *text, size_t n, const char *what, Error *err);
Status json_parse_file(json_t **out, const char *path, size_t max_bytes, Error *err);

bool    json_has(const json_t *object, const char *key); /* present and not null */
Status  json_get_bool(const json_t *object, const char *key, bool *value, Error *err);
Status  json_get_int(const json_t *object, const char *key, int64_t min, int64_t max, int64_t *value,
                     Error *err);
Status  json_get_double(const json_t *object, const char *key, double min, double max, double *value,
                        Error *err);
Status  json_get_string(const json_t *object, const char *key, const char **value, Error *err);
Status  json_get_array(const json_t *object, const char *key, json_t **value, Error *err);
Status  json_get_object(const json_t *object, const char *key, json_t **value, Error *err);
