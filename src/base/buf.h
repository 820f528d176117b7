/* Growing bytes, born with a limit, and Str, a borrowed piece of text.
 *
 * A Buf remembers its first failure (`failed`): writers may append a whole answer and look once at
 * the end. data is NUL-terminated whenever it is not NULL, so it can be printed. One thread. */
#pragma once

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct Str { /* not NUL-terminated; borrowed */
    const char *data;
    size_t      len;
} Str;
#define STR(literal) ((Str){ (literal), sizeof(literal) - 1 })
static inline Str str_of(const char *text)
{
    return (Str){ text, text ? strlen(text) : 0 };
}
bool str_equal(Str a, Str b);
bool str_starts(Str s, Str prefix);

/* Bytes of the well-formed UTF-8 character at text (n > 0 bytes of it); 0 when there is none: then one U+FFFD
 * stands for the next *bad bytes (the longest beginning of a character, at least 1, as Unicode recommends). */
size_t utf8_length(const void *text, size_t n, size_t *bad);

typedef struct Buf {
    char  *data;
    size_t len, capacity, limit;
    bool   failed; /* over the limit or out of memory; further appends do nothing */
} Buf;

void buf_init(Buf *b, size_t limit_bytes);
void buf_free(Buf *b);
void buf_clear(Buf *b); /* keeps the memory */
void buf_reserve(Buf *b, size_t extra_bytes);
void buf_append(Buf *b, const void *data, size_t n);
void buf_text(Buf *b, const char *text);
void buf_printf(Buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* JSON writers: a string with quotes and escapes (invalid UTF-8 becomes U+FFFD), an int, a double
 * in its shortest form that reads back equal (non-finite becomes null). */
void buf_json_string(Buf *b, const char *text, size_t n);
void buf_json_int(Buf *b, int64_t value);
void buf_json_double(Buf *b, double value);

/* The text of buf_json_double, for messages; inf and nan are written so. */
void double_text(char out[32], double value);
