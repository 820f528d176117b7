/* Buf: growing bytes that remember their first failure, and the JSON writers on top of it.
 *
 * Always: len <= limit, and data[len] == 0 whenever data is there. After a failure nothing is appended any
 * more, so what a failed Buf holds is a true beginning of what was to be written. */
#include "base/buf.h"
#include "base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

bool str_equal(Str a, Str b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

bool str_starts(Str s, Str prefix)
{
    return s.len >= prefix.len && str_equal((Str){ s.data, prefix.len }, prefix);
}

void buf_init(Buf *b, size_t limit_bytes)
{
    *b = (Buf){ .limit = limit_bytes < SIZE_MAX ? limit_bytes : SIZE_MAX - 1 };
}

void buf_free(Buf *b)
{
    mem_free(b->data);
    *b = (Buf){ .limit = b->limit };
}

void buf_clear(Buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data) b->data[0] = '\0';
}

/* Room for `extra` bytes and the final NUL. */
void buf_reserve(Buf *b, size_t extra_bytes)
{
    if (b->failed) return;
    if (extra_bytes > b->limit - b->len) {
        b->failed = true;
        return;
    }
    size_t need = b->len + extra_bytes + 1;
    if (need <= b->capacity) return;
    size_t capacity = b->capacity < 32 ? 64 : b->capacity <= b->limit / 2 ? 2 * b->capacity : b->limit + 1;
    if (capacity > b->limit + 1) capacity = b->limit + 1;
    if (capacity < need) capacity = need;
    char *data = mem_realloc(b->data, capacity);
    if (!data) {
        b->failed = true;
        return;
    }
    if (!b->data) data[0] = '\0';
    b->data = data;
    b->capacity = capacity;
}

void buf_append(Buf *b, const void *data, size_t n)
{
    buf_reserve(b, n);
    if (b->failed) return;
    if (n) memcpy(b->data + b->len, data, n);
    b->len += n;
    b->data[b->len] = '\0';
}

void buf_text(Buf *b, const char *text)
{
    buf_append(b, text, strlen(text));
}

void buf_printf(Buf *b, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0) b->failed = true;
    if (b->failed) return;
    buf_reserve(b, (size_t)n);
    if (b->failed) return;
    va_start(args, format);
    vsnprintf(b->data + b->len, (size_t)n + 1, format, args);
    va_end(args);
    b->len += (size_t)n;
}

size_t utf8_length(const void *text, size_t n, size_t *bad)
{
    const unsigned char *s = text;
    *bad = 1;
    if (s[0] < 0x80) return 1;
    if (s[0] < 0xc2 || s[0] > 0xf4) return 0;
    size_t want = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    unsigned char low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80; /* no overlong forms */
    unsigned char high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf; /* no surrogates, none over 10ffff */
    for (size_t i = 1; i < want; i++) {
        if (i >= n || s[i] < low || s[i] > high) return 0;
        low = 0x80;
        high = 0xbf;
        *bad = i + 1;
    }
    return want;
}

static void append_escape(Buf *b, unsigned char c)
{
    static const char *const short_form[0x20] = {
        ['\b'] = "\\b", ['\f'] = "\\f", ['\n'] = "\\n", ['\r'] = "\\r", ['\t'] = "\\t",
    };
    if (c == '"') buf_text(b, "\\\"");
    else if (c == '\\') buf_text(b, "\\\\");
    else if (short_form[c]) buf_text(b, short_form[c]);
    else buf_printf(b, "\\u%04x", c);
}

void buf_json_string(Buf *b, const char *text, size_t n)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t plain = 0; /* s[plain, i) is copied as it is */
    buf_append(b, "\"", 1);
    for (size_t i = 0; i < n;) {
        size_t bad, len = utf8_length(s + i, n - i, &bad);
        bool escape = s[i] < 0x20 || s[i] == '"' || s[i] == '\\';
        if (len && !escape) {
            i += len;
            continue;
        }
        buf_append(b, text + plain, i - plain);
        if (escape) append_escape(b, s[i]);
        else buf_text(b, "\xef\xbf\xbd");
        i += len ? len : bad;
        plain = i;
    }
    if (n > plain) buf_append(b, text + plain, n - plain);
    buf_append(b, "\"", 1);
}

void buf_json_int(Buf *b, int64_t value)
{
    buf_printf(b, "%" PRId64, value);
}

/* 15 digits give back every decimal of up to 15 digits, and %g drops their zeros; 17 digits give back every
 * double. */
void double_text(char out[32], double value)
{
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(out, 32, "%.*g", digits, value);
        if (strtod(out, NULL) == value) return;
    }
}

void buf_json_double(Buf *b, double value)
{
    char text[32] = "null";
    if (isfinite(value)) double_text(text, value);
    buf_text(b, text);
}
