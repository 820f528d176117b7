/* How anything here says that it failed.
 *
 * A function that can fail returns a Status and fills an Error: the code and one sentence, complete
 * enough to show to the person who can do something about it. The first failure wins: error_set()
 * on an Error that already holds one leaves it as it is. Success leaves the Error untouched. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>

typedef enum Status {
    OK = 0,
    ERR_INPUT,       /* a request, file or model output is malformed or out of range    400, exit 1 */
    ERR_NOT_FOUND,   /* no such file, model, tensor                                     404, exit 1 */
    ERR_UNSUPPORTED, /* well formed, but this program does not do it                    400, exit 1 */
    ERR_FULL,        /* no room just now (queue, blocks, slots): an ordinary state      429         */
    ERR_NOMEM,       /* the system gave no memory                                       503, exit 1 */
    ERR_IO,          /* reading, writing, binding a port                                500, exit 1 */
    ERR_USAGE,       /* wrong command line                                                   exit 2 */
    ERR_PLAN,        /* the memory plan does not fit                                         exit 3 */
    ERR_LOST,        /* a device or rank is gone                                        503, exit 4 */
    ERR_NUMERIC,     /* non-finite logits: the request ends, nobody else notices        500         */
    ERR_CANCELLED,   /* the client left, or the server is stopping                      503         */
} Status;

enum { ERROR_TEXT_BYTES = 512 };

typedef struct Error {
    Status status;
    char   param[64];               /* the request field or flag at fault; "" if none */
    char   text[ERROR_TEXT_BYTES];  /* the sentence, without a final newline; cut, never overrun */
} Error;

/* Fills err (may be NULL) unless it already holds a failure; returns `status` either way, so that
 * `return error_set(...)` reads as one step. */
Status error_set(Error *err, Status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same, naming the request field or flag at fault (OpenAI's `param`). */
Status error_set_param(Error *err, Status status, const char *param, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Puts "context: " in front of the sentence, e.g. a file name. No effect on success. */
void error_prefix(Error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

void error_clear(Error *err);

/* Our own bug: prints file, line, condition and stops the process. On in release builds; no input
 * can reach one. check_handler_set() lets a test see the call instead (it must not return). */
#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) check_failed(__FILE__, __LINE__, #cond);                                      \
    } while (0)
_Noreturn void check_failed(const char *file, int line, const char *condition);
void check_handler_set(void (*handler)(const char *file, int line, const char *condition));

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))
