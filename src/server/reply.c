/* What an error looks like to a client. Client libraries pick their exception by the HTTP code and show `message`;
 * agents look at `code`. */
#include "server/reply.h"

int reply_code(Status status)
{
    switch (status) {
    case OK: return 200;
    case ERR_INPUT:
    case ERR_UNSUPPORTED: return 400;
    case ERR_NOT_FOUND: return 404;
    case ERR_FULL: return 429;
    case ERR_NOMEM:
    case ERR_LOST:
    case ERR_CANCELLED: return 503;
    default: return 500;
    }
}

static const struct {
    int         http_code;
    const char *type, *code;
} kinds[] = {
    { 400, "invalid_request_error", NULL },
    { 401, "authentication_error", "invalid_api_key" },
    { 403, "permission_error", "origin_not_allowed" },
    { 404, "not_found_error", "not_found" },
    { 405, "invalid_request_error", "method_not_allowed" },
    { 413, "invalid_request_error", "too_large" },
    { 429, "rate_limit_error", "overloaded" },
    { 500, "server_error", "internal_error" },
    { 503, "server_error", "unavailable" },
};

static void string_or_null(Buf *out, const char *text)
{
    if (text && *text) buf_json_string(out, text, strlen(text));
    else buf_text(out, "null");
}

void reply_error(Buf *out, int http_code, const char *message, const char *param, const char *code)
{
    const char *type = "server_error";
    for (int i = 0; i < COUNT(kinds); i++) {
        if (kinds[i].http_code != http_code) continue;
        type = kinds[i].type;
        if (!code) code = kinds[i].code;
    }
    buf_text(out, "{\"error\":{\"message\":");
    buf_json_string(out, message, strlen(message));
    buf_printf(out, ",\"type\":\"%s\",\"param\":", type);
    string_or_null(out, param);
    buf_text(out, ",\"code\":");
    string_or_null(out, code);
    buf_text(out, "}}");
}
