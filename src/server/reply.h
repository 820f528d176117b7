/* From Status to HTTP, and errors in OpenAI's shape. */
#pragma once

#include "base/buf.h"
#include "base/error.h"

/* 400, 404, 429, 500, 503: the table beside Status in base/error.h. */
int reply_code(Status status);

/* Appends {"error":{"message","type","param","code"}}. param "" or NULL: null. code NULL: the usual one of http_code. */
void reply_error(Buf *out, int http_code, const char *message, const char *param, const char *code);
