/* Status and Error: the first failure wins, and the sentence is always fit to print.
 *
 * Text that came from outside (a file name, a JSON excerpt) may hold newlines or halves of characters; a
 * log line or an HTTP answer must not. So control bytes become spaces, and a text cut at the end of the
 * buffer is cut between characters. */
#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Makes text printable on one line; `cut` says that it was longer than the buffer. */
static void tidy(char *text, bool cut)
{
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f) text[i] = ' ';
    }
    if (!cut) return;
    size_t start = n; /* of the last character */
    while (start > 0 && ((unsigned char)text[start - 1] & 0xc0) == 0x80) start--;
    if (start == 0) return;
    unsigned char lead = (unsigned char)text[start - 1];
    size_t want = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    if (n - (start - 1) < want) text[start - 1] = '\0';
}

static void fill(Error *err, Status status, const char *param, const char *format, va_list args)
{
    if (!err || err->status != OK) return;
    err->status = status;
    int n = snprintf(err->param, sizeof err->param, "%s", param);
    tidy(err->param, n >= (int)sizeof err->param);
    n = vsnprintf(err->text, sizeof err->text, format, args);
    tidy(err->text, n >= (int)sizeof err->text);
}

Status error_set(Error *err, Status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fill(err, status, "", format, args);
    va_end(args);
    return status;
}

Status error_set_param(Error *err, Status status, const char *param, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fill(err, status, param ? param : "", format, args);
    va_end(args);
    return status;
}

void error_prefix(Error *err, const char *format, ...)
{
    if (!err || err->status == OK) return;
    char old[ERROR_TEXT_BYTES], context[ERROR_TEXT_BYTES];
    memcpy(old, err->text, sizeof old);
    va_list args;
    va_start(args, format);
    vsnprintf(context, sizeof context, format, args);
    va_end(args);
    int n = snprintf(err->text, sizeof err->text, "%s: %s", context, old);
    tidy(err->text, n >= (int)sizeof err->text);
}

void error_clear(Error *err)
{
    if (err) *err = (Error){ 0 };
}

static void (*check_handler)(const char *file, int line, const char *condition);

void check_handler_set(void (*handler)(const char *file, int line, const char *condition))
{
    __atomic_store_n(&check_handler, handler, __ATOMIC_RELEASE);
}

_Noreturn void check_failed(const char *file, int line, const char *condition)
{
    void (*handler)(const char *, int, const char *) = __atomic_load_n(&check_handler, __ATOMIC_ACQUIRE);
    if (handler) handler(file, line, condition);
    fprintf(stderr, "tandem: %s:%d: CHECK(%s) failed; this is a bug in tandem\n", file, line, condition);
    abort();
}
