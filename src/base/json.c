/* JSON: jansson behind our limits.
 *
 * Depth is checked in one pass before jansson sees the text: its own limit is 2048, and every consumer of a
 * tree walks it recursively. jansson allocates through mem_alloc's door, so tests can starve it too. */
#include "base/json.h"
#include "base/file.h"
#include "base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>

/* jansson reports a failed allocation as a fault of the text, or not at all: a string then lacks bytes. */
static _Thread_local bool memory_ran_out;

static void *json_memory(size_t bytes)
{
    void *p = mem_realloc(NULL, bytes);
    if (!p) memory_ran_out = true;
    return p;
}

static void use_our_memory(void)
{
    json_set_alloc_funcs(json_memory, mem_free);
}

/* False when brackets nest deeper than JSON_MAX_DEPTH. Knows only strings and brackets: whether the text is
 * JSON at all is jansson's question. */
static bool depth_ok(const char *text, size_t n)
{
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\') i++;
            else if (c == '"') in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > JSON_MAX_DEPTH) return false;
        } else if (c == ']' || c == '}') {
            depth--;
        }
    }
    return true;
}

Status json_parse(json_t **out, const char *text, size_t n, const char *what, Error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, use_our_memory);
    *out = NULL;
    if (!depth_ok(text, n)) {
        return error_set(err, ERR_INPUT, "%s nests deeper than %d levels", what, JSON_MAX_DEPTH);
    }
    json_error_t at;
    memory_ran_out = false;
    *out = json_loadb(text, n, JSON_REJECT_DUPLICATES, &at);
    if (memory_ran_out) {
        json_decref(*out);
        *out = NULL;
        return error_set(err, ERR_NOMEM, "no memory to parse %s", what);
    }
    if (*out) return OK;
    return error_set(err, ERR_INPUT, "%s is not valid JSON at line %d, column %d: %s", what, at.line, at.column,
                     at.text);
}

Status json_parse_file(json_t **out, const char *path, size_t max_bytes, Error *err)
{
    char *text;
    size_t n;
    *out = NULL;
    Status status = file_read(path, max_bytes, &text, &n, err);
    if (status != OK) return status;
    if (file_is_lfs_pointer(text, n)) {
        status = error_set(err, ERR_INPUT, "%s is a git-lfs pointer, not the file itself: run git lfs pull", path);
    } else {
        status = json_parse(out, text, n, path, err);
    }
    mem_free(text);
    return status;
}

bool json_has(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return value && !json_is_null(value);
}

/* A value as a sentence names it: numbers and strings themselves (long ones cut), the rest by kind. */
static const char *describe(const json_t *value, char out[64])
{
    switch (json_typeof(value)) {
    case JSON_INTEGER: snprintf(out, 64, "%" JSON_INTEGER_FORMAT, json_integer_value(value)); return out;
    case JSON_REAL: double_text(out, json_real_value(value)); return out;
    case JSON_STRING:
        snprintf(out, 64, json_string_length(value) > 40 ? "\"%.40s...\"" : "\"%s\"", json_string_value(value));
        return out;
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    case JSON_NULL: return "null";
    case JSON_ARRAY: return "an array";
    case JSON_OBJECT: return "an object";
    }
    return "something else";
}

static Status wrong_type(const json_t *value, const char *key, const char *type, Error *err)
{
    char got[64];
    return error_set_param(err, ERR_INPUT, key, "%s must be %s, got %s", key, type, describe(value, got));
}

static const json_t *find(const json_t *object, const char *key)
{
    return json_has(object, key) ? json_object_get(object, key) : NULL;
}

Status json_get_bool(const json_t *object, const char *key, bool *value, Error *err)
{
    const json_t *v = find(object, key);
    if (!v) return OK;
    if (!json_is_boolean(v)) return wrong_type(v, key, "true or false", err);
    *value = json_is_true(v);
    return OK;
}

static Status out_of_range(const json_t *value, const char *key, const char *min, const char *max, Error *err)
{
    char got[64];
    describe(value, got);
    if (!max) return error_set_param(err, ERR_INPUT, key, "%s must be at least %s, got %s", key, min, got);
    if (!min) return error_set_param(err, ERR_INPUT, key, "%s must be at most %s, got %s", key, max, got);
    return error_set_param(err, ERR_INPUT, key, "%s must be in [%s, %s], got %s", key, min, max, got);
}

Status json_get_int(const json_t *object, const char *key, int64_t min, int64_t max, int64_t *value, Error *err)
{
    const json_t *v = find(object, key);
    if (!v) return OK;
    double real = json_is_real(v) ? json_real_value(v) : 0;
    if (!json_is_number(v) || real != floor(real)) return wrong_type(v, key, "an integer", err);
    if (fabs(real) >= 0x1p63) return wrong_type(v, key, "a 64-bit integer", err);
    int64_t got = json_is_integer(v) ? json_integer_value(v) : (int64_t)real; /* 16.0 is an integer to JSON */
    if (got >= min && got <= max) {
        *value = got;
        return OK;
    }
    char low[32], high[32];
    snprintf(low, sizeof low, "%" PRId64, min);
    snprintf(high, sizeof high, "%" PRId64, max);
    return out_of_range(v, key, min == INT64_MIN ? NULL : low, max == INT64_MAX ? NULL : high, err);
}

Status json_get_double(const json_t *object, const char *key, double min, double max, double *value, Error *err)
{
    const json_t *v = find(object, key);
    if (!v) return OK;
    if (!json_is_number(v)) return wrong_type(v, key, "a number", err);
    double got = json_number_value(v);
    if (got >= min && got <= max) {
        *value = got;
        return OK;
    }
    char low[32], high[32];
    double_text(low, min);
    double_text(high, max);
    return out_of_range(v, key, isinf(min) ? NULL : low, isinf(max) ? NULL : high, err);
}

Status json_get_string(const json_t *object, const char *key, const char **value, Error *err)
{
    const json_t *v = find(object, key);
    if (!v) return OK;
    if (!json_is_string(v)) return wrong_type(v, key, "a string", err);
    *value = json_string_value(v);
    return OK;
}

Status json_get_array(const json_t *object, const char *key, json_t **value, Error *err)
{
    const json_t *v = find(object, key);
    if (!v) return OK;
    if (!json_is_array(v)) return wrong_type(v, key, "an array", err);
    *value = json_object_get(object, key);
    return OK;
}

Status json_get_object(const json_t *object, const char *key, json_t **value, Error *err)
{
    const json_t *v = find(object, key);
    if (!v) return OK;
    if (!json_is_object(v)) return wrong_type(v, key, "an object", err);
    *value = json_object_get(object, key);
    return OK;
}
